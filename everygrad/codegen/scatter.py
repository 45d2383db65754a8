"""Scatter-adds in an order that does not depend on how threads run, on every device.

Where indices are few, each result looks at all of them. Integers may be added where they lie, in
any order. Otherwise (target, position) pairs are sorted (`scatter_sorted`), and what falls on one
target is summed in the order of the sorted pairs. On a core each block owns a part of the result
and goes through the indices in order.
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
    each,
    finished,
    groups_for,
    result,
    split,
    store_each,
    vectors,
)
from everygrad.codegen.gather import Indices
from everygrad.codegen.kernel import Builder, logical_and
from everygrad.codegen.machine import Machine
from everygrad.compiler.expr import Expr, call
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.core.strides import row_major
from everygrad.dtypes import DType

# indices along the axis up to which each result looks at all of them, always in one order
FEW = edge(__name__, "FEW", 64, "size")
# elements of a slice that a core's block owns, at least, and how many blocks share a slice
_LEAST_PIECE = edge(__name__, "_LEAST_PIECE", 16, "elements")
_PIECES = 16
_BLOCKS = edge(__name__, "_BLOCKS", 64, "count")  # of a core's scatter of single elements


class Scatter(NamedTuple):
    """What is added where. `whole`: an index names a whole slice, not one element."""

    x: Layout
    indices: Layout
    source: Layout
    axis: int
    whole: bool

    @property
    def terms(self) -> int:
        """Indices that each result looks at."""
        return self.indices.shape[0 if self.whole else self.axis]

    @property
    def targets(self) -> int:
        return self.x.shape[self.axis] if self.whole else size_of(self.x.shape)


def summed(dtype: DType) -> DType:
    """What sums of this dtype are kept in."""
    if dtype is dtypes.bool_:
        return dtypes.uint32
    return dtypes.float32 if dtype.is_float and dtype.itemsize == 2 else dtype


# --- few indices ---------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def search(name: str, what: Scatter, machine: Machine) -> Lowered:
    """Each result looks at all indices; they are checked before. Buffers: x, index, source, out."""
    x, index, source, axis, whole = what
    rank, kept = len(x.shape), summed(x.dtype)
    reads = Axes("x", x.shape, x.strides)
    adds = Axes("source", source.shape, source.strides)
    picks = Axes("index", index.shape, index.strides)
    total = size_of(x.shape)
    index_dtype = machine.index_for(total, reads.reach, adds.reach, picks.reach)
    groups = groups_for(machine, vectors(machine, x.dtype, total))
    b = Builder(name, index_dtype, groups, machine.threads)
    held = b.buffer("x", x.dtype, reads.reach)
    named = b.buffer("index", index.dtype, picks.reach)
    given = b.buffer("source", source.dtype, adds.reach)
    out = result(b, machine, x.dtype, total)
    terms = b.symbol(what.terms)
    others = [a for a in range(rank) if a != axis and not whole and index.shape[a] != x.shape[a]]
    limits = {a: b.symbol(index.shape[a]) for a in others}

    def value(at: Expr) -> Expr:
        where_ = split(b, at, x.shape)
        total_ = b.variable(0, kept)

        def look() -> None:
            with b.loop(0, terms) as j:
                moving = [j if a == axis else w for a, w in enumerate(where_)]
                k = b.load(named, picks.place(b, [j] if whole else moving)).cast(b.index)
                with b.when(call("eq", k, where_[axis])):
                    v = b.load(given, adds.place(b, moving))
                    b.assign(total_, total_ + v.cast(kept))

        fits = [call("lt", where_[a], n) for a, n in limits.items()]
        if fits:
            with b.when(logical_and(*fits)):
                look()
        else:
            look()
        start = b.load(held, reads.place_of(b, at, where_)).cast(kept)
        return b.let((start + total_).cast(x.dtype), x.dtype)

    store_each(b, machine, out, total, value)
    return finished(b, reads, picks, adds, None)


# --- integers, where they lie --------------------------------------------------------------------


@lru_cache(maxsize=1024)
def add_integers(name: str, what: Scatter, machine: Machine) -> Lowered:
    """In any order; the result holds x, in C order. Buffers: index, source, out."""
    x, index, source, axis, whole = what
    kept = x.dtype
    adds = Axes("source", source.shape, source.strides)
    picks = Axes("index", index.shape, index.strides)
    writes = Axes("out", x.shape, row_major(x.shape))
    total = size_of(source.shape)
    index_dtype = machine.index_for(total, writes.reach, adds.reach, picks.reach)
    b = Builder(name, index_dtype, groups_for(machine, total), machine.threads)
    named = b.buffer("index", index.dtype, picks.reach)
    given = b.buffer("source", source.dtype, adds.reach)
    out = b.buffer("out", kept, writes.reach, written=True, held=True)
    indices = Indices(b, machine, named, x.shape[axis], 0)
    with each(b, machine, total) as at:
        where_ = split(b, at, source.shape)
        place = picks.place(b, [where_[axis]]) if whole else picks.place_of(b, at, where_)
        k = indices.read(place)
        moved = [k.value if a == axis else w for a, w in enumerate(where_)]
        v = b.load(given, adds.place_of(b, at, where_), k.inside).cast(kept)
        with b.when(k.inside) if k.inside is not None else nullcontext():
            b.atomic("add", out, writes.place(b, moved), v)
    return finished(b, picks, adds, None)


# --- on a core -----------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def slices_in_order(
    name: str, dtype: DType, shape: tuple[int, ...], index: Layout, axis: int, machine: Machine,
    adds: bool,
) -> Lowered:  # fmt: skip
    """out = x with slices of a source added, or put in their place; all contiguous. Each block owns
    a part of the axes behind `axis` and goes through all indices in order. Buffers: out, x, index,
    source."""
    outer, inner, n = size_of(shape[:axis]), size_of(shape[axis + 1 :]), shape[axis]
    count = size_of(index.shape)
    pieces = max(1, min(inner // _LEAST_PIECE, _PIECES))
    piece = -(-inner // pieces)
    b = Builder(name, machine.narrow_index, outer * pieces, 1)
    out = b.buffer("out", dtype, outer * n * inner, written=True)
    x = b.buffer("x", dtype, outer * n * inner)
    named = b.buffer("index", index.dtype, count)
    source = b.buffer("source", dtype, outer * count * inner)
    indices = Indices(b, machine._replace(checks_before=True), named, n, 0)
    before, part = b.let(b.group // pieces), b.let(b.group % pieces)
    start = b.let(call("min", part * piece, inner))
    end = b.let(call("min", start + piece, inner))
    with b.loop(0, n) as row, b.loop(start, end, parallel=True) as column:
        at = b.let((before * n + row) * inner + column)
        b.store(out, at, b.load(x, at))
    with b.loop(0, count) as i:
        row = indices.read(i).value
        to, of = b.let((before * n + row) * inner), b.let((before * count + i) * inner)
        with b.loop(start, end, parallel=True) as column:
            v = b.load(source, of + column)
            b.store(out, to + column, b.load(out, to + column) + v if adds else v)
    return finished(b, None, None, None, None)


@lru_cache(maxsize=1024)
def elements_in_order(
    dtype: DType, shape: tuple[int, ...], index: Layout, axis: int, machine: Machine
) -> Lowered:
    """The result, which holds x, with each element of a source added; all contiguous. Blocks own
    whole parts of the axes before `axis` where x and the index agree on these. Buffers: out, index,
    source."""
    total = size_of(index.shape)
    alike = shape[:axis] == index.shape[:axis]
    outer = size_of(index.shape[:axis]) if alike else 1
    inner = total // max(1, outer)
    each_ = -(-outer // max(1, min(outer, _BLOCKS))) * inner
    writes = Axes("out", shape, row_major(shape))
    b = Builder("scatter_add", machine.narrow_index, -(-total // each_), 1)
    out = b.buffer("out", dtype, writes.reach, written=True, held=True)
    named = b.buffer("index", index.dtype, total)
    source = b.buffer("source", dtype, total)
    indices = Indices(b, machine._replace(checks_before=True), named, shape[axis], 0)
    start = b.let(b.group * each_)
    with b.loop(start, b.let(call("min", start + each_, total))) as i:
        where_ = split(b, i, index.shape)
        where_[axis] = indices.read(i).value
        at = b.let(writes.place(b, where_))
        v = b.load(source, i)
        b.store(out, at, b.load(out, at) + v)
    return finished(b, None, None, None)
