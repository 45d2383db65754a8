"""Copies that no strides express, on every device: zeros except where a slice would read, and
arrays one behind the other. Elements are copied as bits, several neighbours at once where alignment
and sizes allow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from everygrad.codegen.copy import (
    Axes,
    Layout,
    Lowered,
    bits_of,
    finished,
    groups_for,
    result,
    split,
    store_each,
    vectors,
)
from everygrad.codegen.kernel import Builder, logical_and
from everygrad.codegen.machine import Machine
from everygrad.compiler.expr import Expr, call
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import collapse

Slices = tuple[tuple[int, int, int], ...]  # by axis: start, count, step


def _together(
    machine: Machine, itemsize: int, sizes: Sequence[int], strides: Sequence[Shape], aligned: int
) -> int:
    """How many neighbours are copied as one: all these sizes must be multiples of it, the last axes
    of all arrays contiguous, and what they begin at aligned."""
    count = (machine.vector_bytes or 1) // itemsize
    while count > 1:
        whole = all(n % count == 0 for n in sizes) and aligned % (count * itemsize) == 0
        for steps in strides:
            whole &= steps[-1] == 1 and all(s % count == 0 for s in steps[:-1])
        if whole:
            return count
        count //= 2
    return 1


def _packed(strides: Shape, count: int) -> Shape:
    return (*(s // count for s in strides[:-1]), strides[-1])


@lru_cache(maxsize=1024)
def unslice(x: Layout, shape: Shape, slices: Slices, machine: Machine, aligned: int = 1) -> Lowered:
    """Zeros of a shape except where slices would read x; buffers: x, out."""
    itemsize = x.dtype.itemsize
    start, count, step = slices[-1]
    many = 1
    if step == 1:
        sizes = (shape[-1], start, count)
        many = _together(machine, itemsize, sizes, [x.strides], aligned)
    shape = (*shape[:-1], shape[-1] // many)
    slices = (*slices[:-1], (start // many, count // many, step))
    strides = _packed(x.strides, many) if many > 1 else x.strides
    first = 0  # of x, from where it is read upwards along all axes of the result
    steps = []
    for (_, n, by), s in zip(slices, strides, strict=True):
        first += (n - 1) * s if by < 0 else 0
        steps.append(-s if by < 0 else s)
    reads = Axes("x", tuple(n for _, n, _ in slices), tuple(steps))
    bits, total = bits_of(x.dtype, many), size_of(shape)
    index = machine.index_for(total, reads.reach, *shape)
    groups = groups_for(machine, vectors(machine, bits, total))
    b = Builder("unslice", index, groups, machine.threads)
    held, out = b.buffer("x", bits, reads.reach), result(b, machine, bits, total)

    def value(at: Expr) -> Expr:
        inside: list[Expr] = []
        places = [
            _place(b, a, i, n, s, inside)
            for a, (i, n, s) in enumerate(zip(split(b, at, shape), shape, slices, strict=True))
        ]
        guard = logical_and(*inside) if inside else None
        return b.load(held, reads.place(b, places), guard)

    store_each(b, machine, out, total, value)
    made = finished(b, reads, None)
    return Lowered(made.kernel, ((first + reads.lowest) * many, 0))


def _place(
    b: Builder, a: int, i: Expr | int, n: int, one: tuple[int, int, int], inside: list[Expr]
) -> Expr | int:
    """Which element along an axis of x is at index i of the result, if `inside` holds."""
    start, count, step = one
    if step < 0:
        start, step = start + (count - 1) * step, -step
    if (start, count, step) == (0, n, 1):
        return i
    i = b.let(i)
    if step > 1:
        by = b.symbol(step, ("step", a))
        rest = b.let(i % by)
        inside.append(call("eq", rest, b.symbol(start % step, ("rest", a))))
        i = b.let(i // by)
    at = b.let(i - b.symbol(start // step, ("start", a)))  # before it: it wraps around
    inside.insert(0, at < b.symbol(count, ("count", a)))
    return at


@lru_cache(maxsize=1024)
def concat(
    arrays: tuple[Layout, ...], axis: int, machine: Machine, aligned: int = 1,
    bindings: tuple[int, ...] = (), offsets: tuple[int, ...] = (),
) -> Lowered:  # fmt: skip
    """Arrays one behind the other; buffers: one for each, or, where a device has few, the ones that
    `bindings` names, of which an array begins at its offset; and out."""
    first = arrays[0]
    dtype, itemsize = first.dtype, first.dtype.itemsize
    shape = (*first.shape[:axis], sum(x.shape[axis] for x in arrays), *first.shape[axis + 1 :])
    strides = [
        tuple(0 if n == 1 else s for n, s in zip(x.shape, x.strides, strict=True)) for x in arrays
    ]
    many = 1 if bindings else _together(
        machine, itemsize, (shape[-1], *(x.shape[-1] for x in arrays)), strides, aligned
    )  # fmt: skip
    if many > 1:
        shape = (*shape[:-1], shape[-1] // many)
        strides = [_packed(s, many) for s in strides]
    widths = [x.shape[axis] // (many if axis == len(shape) - 1 else 1) for x in arrays]
    before, outer = collapse(shape[:axis], [s[:axis] for s in strides])
    after, inner = collapse(shape[axis + 1 :], [s[axis + 1 :] for s in strides])
    reads = [
        Axes(f"x{k}", (*before, n, *after), (*outer[k], s[axis], *inner[k]))
        for k, (n, s) in enumerate(zip(widths, strides, strict=True))
    ]
    bits, total = bits_of(dtype, many), size_of(shape)
    starts = [offsets[k] + a.lowest if bindings else 0 for k, a in enumerate(reads)]
    ends = [start + a.reach for start, a in zip(starts, reads, strict=True)]
    index = machine.index_for(total, *ends)
    groups = groups_for(machine, vectors(machine, bits, total))
    b = Builder("concat", index, groups, machine.threads)
    bound = bindings or tuple(range(len(arrays)))
    held = [
        b.buffer(f"x{j}", bits, max(end for end, at in zip(ends, bound, strict=True) if at == j))
        for j in range(max(bound) + 1)
    ]
    out = result(b, machine, bits, total)

    def value(at: Expr) -> Expr:
        where_ = split(b, at, (*before, shape[axis], *after))
        along = b.let(where_[len(before)])
        found = b.variable(0, bits)
        begin = 0
        for k, (axes, width) in enumerate(zip(reads, widths, strict=True)):
            own = b.let(along - b.symbol(begin, ("begin", k)))  # before it: it wraps around
            with b.when(own < b.symbol(width, ("width", k))):
                places = [*where_[: len(before)], own, *where_[len(before) + 1 :]]
                place = axes.place(b, places)
                if bindings:
                    place = place + b.symbol(starts[k], ("offset", k))
                b.assign(found, b.load(held[bound[k]], place))
            begin += width
        return found

    store_each(b, machine, out, total, value)
    made = finished(b, *([None] * len(held) if bindings else reads), None)
    return Lowered(made.kernel, tuple(s * many for s in made.starts))
