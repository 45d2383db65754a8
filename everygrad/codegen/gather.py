"""Gathers, checks of indices, and which write is the last, on every device.

An index out of range reads nothing, or, where values are checked by a kernel of their own, some
element: the result is not seen, since the check is raised first.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import NamedTuple

from everygrad import dtypes
from everygrad.codegen.copy import (
    Axes,
    Layout,
    Lowered,
    bits_of,
    each,
    finished,
    groups_for,
    result,
    split,
    store_each,
    vectors,
)
from everygrad.codegen.kernel import Buffer, Builder
from everygrad.codegen.machine import Machine
from everygrad.compiler.expr import Expr, call
from everygrad.core.shapes import size_of
from everygrad.core.strides import collapse
from everygrad.dtypes import DType


class Read(NamedTuple):
    """An index that was read: its value in the kernel's index dtype, and what must hold for it."""

    value: Expr
    inside: Expr | None


class Indices:
    """Reads and checks indices below `size`; `number` is that of the check."""

    def __init__(
        self, b: Builder, machine: Machine, buffer: Buffer, size: int, number: int
    ) -> None:
        self.b, self.machine, self.buffer = b, machine, buffer
        if machine.checks_before:
            self.count = b.symbol(size)
        elif machine.checks_apart:
            self.last = b.symbol(size - 1)
        else:
            self.number = b.symbol(number)
            self.size = b.let(b.symbol(size).cast(dtypes.uint64), dtypes.uint64)

    def read(self, place: Expr) -> Read:
        b = self.b
        found = b.load(self.buffer, place)
        if self.machine.checks_before:
            value = b.let(found.cast(b.index))
            b.assume(value < self.count)
            return Read(value, None)
        if self.machine.checks_apart:
            return Read(b.let(call("min", found.cast(b.index), self.last)), None)
        value = b.let(found.cast(dtypes.uint64), dtypes.uint64)  # negative ones become large
        b.fault(self.number, value.cast(dtypes.int64), value >= self.size)
        return Read(value.cast(b.index), value < self.size)


def moved_as_one(machine: Machine, dtype: DType, axes: Axes, aligned: int) -> int:
    """How many neighbours along the last axis are moved as one element; the array begins at a
    multiple of `aligned` bytes."""
    count = (machine.vector_bytes or 1) // dtype.itemsize
    *steps, last = axes.strides
    while count > 1:
        whole = last == 1 and axes.sizes[-1] % count == 0 and all(s % count == 0 for s in steps)
        if whole and aligned % (count * dtype.itemsize) == 0:
            return count
        count //= 2
    return 1


@lru_cache(maxsize=1024)
def take(
    x: Layout, index: Layout, axis: int, machine: Machine, number: int = 0, aligned: int = 1
) -> Lowered:
    """Slices of x; buffers: x, index, out. Results have axes before, of the index, and after."""
    before, (first,) = collapse(x.shape[:axis], [x.strides[:axis]])
    middle, (along,) = collapse(index.shape, [index.strides])
    after, (behind,) = collapse(x.shape[axis + 1 :], [x.strides[axis + 1 :]])
    reads = Axes("x", (*before, x.shape[axis], *after), (*first, x.strides[axis], *behind))
    many = moved_as_one(machine, x.dtype, reads, aligned) if x.shape[axis + 1 :] else 1
    if many > 1:
        _, sizes, steps = reads
        after = (*after[:-1], after[-1] // many)
        reads = Axes("x", (*sizes[:-1], after[-1]), (*(s // many for s in steps[:-1]), 1))
    picks = Axes("index", middle, along)
    bits = bits_of(x.dtype, many)
    total = size_of(before) * size_of(middle) * size_of(after)
    groups = groups_for(machine, vectors(machine, bits, total))
    index_dtype = machine.index_for(total, reads.reach, picks.reach, x.shape[axis])
    b = Builder("take", index_dtype, groups, machine.threads)
    held = b.buffer("x", bits, reads.reach), b.buffer("index", index.dtype, picks.reach)
    out = result(b, machine, bits, total)
    indices = Indices(b, machine, held[1], x.shape[axis], number)

    def value(at: Expr) -> Expr:
        where_ = split(b, at, (*before, *middle, *after))
        ends = len(before), len(before) + len(middle)
        k = indices.read(picks.place(b, where_[ends[0] : ends[1]]))
        place = reads.place(b, [*where_[: ends[0]], k.value, *where_[ends[1] :]])
        return b.load(held[0], place, k.inside)

    store_each(b, machine, out, total, value)
    return finished(b, reads if many == 1 else _in_vectors(reads, many), picks, None)


def _in_vectors(axes: Axes, many: int) -> Axes:
    """The same axes with strides in elements again."""
    return axes._replace(strides=(*(s * many for s in axes.strides[:-1]), 1))


@lru_cache(maxsize=1024)
def gather(x: Layout, index: Layout, axis: int, machine: Machine, number: int = 0) -> Lowered:
    """An element of x for each index; buffers: x, index, out."""
    shape = index.shape
    fixed = tuple(0 if a == axis else s for a, s in enumerate(x.strides))
    sizes, (own, along) = collapse(shape, [fixed, index.strides])
    reads = Axes("x", (*sizes, x.shape[axis]), (*own, x.strides[axis]))
    picks = Axes("index", sizes, along)
    bits, total = bits_of(x.dtype), size_of(shape)
    groups = groups_for(machine, vectors(machine, bits, total))
    index_dtype = machine.index_for(total, reads.reach, picks.reach, x.shape[axis])
    b = Builder("gather", index_dtype, groups, machine.threads)
    held = b.buffer("x", bits, reads.reach), b.buffer("index", index.dtype, picks.reach)
    out = result(b, machine, bits, total)
    indices = Indices(b, machine, held[1], x.shape[axis], number)

    def value(at: Expr) -> Expr:
        where_ = split(b, at, sizes)
        k = indices.read(picks.place_of(b, at, where_))
        return b.load(held[0], reads.place(b, [*where_, k.value]), k.inside)

    store_each(b, machine, out, total, value)
    return finished(b, reads, picks, None)


# --- checks --------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def check(x: Layout, size: int, number: int, machine: Machine) -> Lowered:
    """Indices must be below the size, bools true; buffer: x. The check's number is its first
    symbol."""
    sizes, (steps,) = collapse(x.shape, [x.strides])
    reads, total = Axes("x", sizes, steps), size_of(sizes)
    index_dtype = machine.index_for(total, reads.reach, size)
    b = Builder("check_range", index_dtype, groups_for(machine, total), machine.threads)
    held = b.buffer("x", x.dtype, reads.reach)
    check_number, end = b.symbol(number), b.symbol(size)
    with each(b, machine, total) as at:
        found = b.load(held, reads.place_of(b, at, split(b, at, sizes)))
        if x.dtype is dtypes.bool_:
            b.fault(check_number, b.let(0, dtypes.int64), ~found)
        else:
            value = b.let(found.cast(dtypes.uint64), dtypes.uint64)
            b.fault(check_number, value.cast(dtypes.int64), value >= end.cast(dtypes.uint64))
    return finished(b, reads)


# --- the last write ------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def last_write(index: Layout, size: int, machine: Machine, number: int = 0) -> Lowered:
    """For each of `size` places 1 + the last position at which an index names it; `found` is 0
    before, and stays so where none does. Buffers: index, found."""
    (total,), picks = index.shape, Axes("index", index.shape, index.strides)
    index_dtype = machine.index_for(total + 1, picks.reach, size)
    b = Builder("last_write", index_dtype, groups_for(machine, total), machine.threads)
    held = b.buffer("index", index.dtype, picks.reach)
    found = b.buffer("found", positions(machine, total), size, written=True, held=True)
    indices = Indices(b, machine, held, size, number)
    with each(b, machine, total) as at:
        k = indices.read(picks.place(b, [at]))
        after = (at + 1).cast(found.dtype)
        with b.when(k.inside) if k.inside is not None else nullcontext():
            b.atomic("max", found, k.value, after)
    return finished(b, picks, None)


def positions(machine: Machine, total: int) -> DType:
    """What the last positions of so many indices are found in."""
    return machine.index_for(total + 1)


@lru_cache(maxsize=1024)
def last_write_in_order(index: Layout, size: int, machine: Machine) -> tuple[Lowered, Lowered]:
    """On a core: -1 everywhere, then positions in order, in the index' dtype. Buffers: out; index,
    out."""
    b = Builder("last_write_none", machine.narrow_index, groups_for(machine, size), 1)
    out = b.buffer("out", index.dtype, size, written=True)
    start = b.let(b.group * machine.grain)
    count = b.let(call("min", size - start, machine.grain))
    with b.loop(0, count, parallel=True) as at:
        b.store(out, start + at, -1 if index.dtype.kind == "int" else (1 << index.dtype.bits) - 1)
    fill = finished(b, None)
    (total,) = index.shape
    b = Builder("last_write", machine.narrow_index, 1, 1)
    held = b.buffer("index", index.dtype, total)
    out = b.buffer("out", index.dtype, size, written=True, held=True)
    indices = Indices(b, machine._replace(checks_before=True), held, size, 0)
    with b.loop(0, total) as at:
        b.store(out, indices.read(at).value, at.cast(index.dtype))
    return fill, finished(b, None, None)
