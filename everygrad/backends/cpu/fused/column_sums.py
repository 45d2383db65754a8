"""Sums of columns: float32 accumulators in memory, to which one row after another is added.

A float32 to which hundreds of terms were added one after another has lost digits, and float64
accumulators in memory take 1.4 times as long. So rows go in stretches: their float32 sums are added
to float64 partial results, once for hundreds of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from everygrad.backends.cpu.llvm.compiler import Value as Reg, literal
from everygrad.backends.cpu.llvm.loop_writer import LoopWriter
from everygrad.compiler.ir import Value
from everygrad.compiler.loop_nest import LoopNest, StridedAccess
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import row_major

# terms added to one float32, one after another: where all are equal, each costs 0.2 epsilons
SHORT = edge(__name__, "SHORT", 256, "size")


class Stretch(NamedTuple):
    """The rows, or the iterations over the outer columns of a row, whose sums are added to the
    partial results at once.

    `axis`: the axis of the rows or of the columns that is cut; the indices before it are fixed in
    a stretch. `whole`: how many rows or iterations share those indices. `length`: how many are in
    a stretch.
    """

    axis: int
    whole: int
    length: int


class ColumnSums:
    """How the float32 sums at `places` are accumulated in blocks of so many rows.

    Those that a block adds to too often have `wide` partial results, in float64. Those to which
    one row adds too often have a stretch of `outer_columns`, each its own; the others share one
    stretch of rows, `stretch`. `counts` says how many accumulators a stretch has for each. A sum
    that would need a second stretch of rows, which is rare, has no float32 accumulators.
    """

    def __init__(self, nest: LoopNest, places: Mapping[Value, StridedAccess], rows: int) -> None:
        self.outer_columns: dict[Value, Stretch] = {}
        found: dict[Value, Stretch] = {}
        for v, place in places.items():
            inner, terms = _cut(nest.columns[:-1], place.columns[:-1], 1)
            over_rows, _ = _cut(nest.rows, place.rows, terms)
            if inner is not None:
                self.outer_columns[v] = inner
            elif over_rows is not None and rows > over_rows.length:
                found[v] = over_rows
        self.stretch = min(found.values(), key=lambda s: s.length, default=None)
        self.wide = frozenset({*found, *self.outer_columns})
        self.counts = {v: _kept(nest, places[v], s.axis) for v, s in self.outer_columns.items()}
        for v, s in found.items():
            if s == self.stretch:
                sizes, strides = nest.rows[s.axis :], places[v].rows[s.axis :]
                self.counts[v] = _kept(nest, places[v]) * _followed(sizes, strides)

    def within(self, v: Value, place: StridedAccess) -> StridedAccess:
        """Where elements are in the accumulators of one stretch."""
        if v in self.outer_columns:
            fixed = self.outer_columns[v].axis
            columns = (*(0,) * fixed, *place.columns[fixed:])
            return place._replace(rows=(0,) * len(place.rows), columns=columns)
        fixed = self.stretch.axis if self.stretch is not None else 0
        return place._replace(rows=(*(0,) * fixed, *place.rows[fixed:]))


def _cut(sizes: Shape, strides: Shape, terms: int) -> tuple[Stretch | None, int]:
    """The stretch in which an element gets at most SHORT terms, if an iteration over `sizes` gives
    it so many; or None, and how many terms it gets from all iterations."""
    count = 1
    for axis in reversed(range(len(sizes))):
        n = sizes[axis]
        if not strides[axis]:
            if terms * n > SHORT:
                return Stretch(axis, n * count, count * (SHORT // terms)), terms
            terms *= n
        count *= n
    return None, terms


def _followed(sizes: Shape, strides: Shape) -> int:
    """How many elements of a result these axes lead to; they are contiguous."""
    return size_of(tuple(n for n, stride in zip(sizes, strides, strict=True) if stride))


def _kept(nest: LoopNest, place: StridedAccess, axis: int = 0) -> int:
    return _followed(nest.columns[axis:], place.columns[axis:])


@contextmanager
def stretch_loops(
    w: LoopWriter, stretch: Stretch, first: Reg, end: Reg
) -> Iterator[tuple[Reg, Reg, Reg]]:
    """Writes loops over rows [first, end) in stretches: (the index of the axes before the one that
    is cut, the first row of a stretch, the row after its last)."""
    e = w.e
    whole, rows = literal("i64", stretch.whole), literal("i64", stretch.length)
    last = e.op("add nsw", end, literal("i64", stretch.whole - 1))
    groups = e.op("sdiv", first, whole).name, e.op("sdiv", last, whole).name
    with w.counted("o", *groups) as outer:
        begin = e.op("mul nsw", outer, whole)
        after = e.intrinsic("smin", e.op("add nsw", begin, whole), end)
        begin = e.intrinsic("smax", begin, first)
        last = e.op("add nsw", e.op("sub nsw", after, begin), literal("i64", stretch.length - 1))
        with w.counted("t", "0", e.op("sdiv", last, rows).name) as number:
            start = e.op("add nsw", begin, e.op("mul nsw", number, rows))
            yield outer, start, e.intrinsic("smin", e.op("add nsw", start, rows), after)


def stretch_ends(w: LoopWriter, stretch: Stretch, sizes: Shape) -> Reg:
    """Whether a stretch of outer columns, which have these sizes, ends with the current ones."""
    e, axis = w.e, stretch.axis
    before = w.distance(0, row_major(sizes[axis:]), w.columns[axis:-1])
    done = e.op("add nsw", before, literal("i64", 1))
    is_full = e.compare("eq", e.op("urem", done, literal("i64", stretch.length)), literal("i64", 0))
    return e.op("or", is_full, e.compare("eq", done, literal("i64", stretch.whole)))
