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
from everygrad.compiler.thresholds import edge
from everygrad.compiler.loop_nest import StridedAccess, LoopNest
from everygrad.core.shapes import size_of

# terms added to one float32, one after another: where all are equal, each costs 0.2 epsilons
SHORT = edge(__name__, "SHORT", 256, "size")


class RowStretch(NamedTuple):
    """The rows whose sums are added to the partial results at once.

    `axis`: the axis of the rows that is cut; the indices of the axes before it are fixed in a
    stretch. `whole`: how many rows share those indices. `rows`: how many are in a stretch, 0 if
    a single row has too many terms for one element.
    """

    axis: int
    whole: int
    rows: int


class ColumnSums:
    """How the float32 sums at `places` are accumulated in blocks of so many rows.

    Those that a block adds to too often have `wide` partial results, in float64. All that have
    accumulators for a stretch of rows share one stretch; `counts` says how many each of them has.
    The rest, rare, have no float32 accumulators.
    """

    def __init__(self, nest: LoopNest, places: Mapping[Value, StridedAccess], rows: int) -> None:
        found = {v: _row_stretch(nest, place) for v, place in places.items()}
        wide = {v: s for v, s in found.items() if s is not None and rows > s.rows}
        cut = [s for s in wide.values() if s.rows]
        self.stretch = min(cut, key=lambda s: s.rows, default=None)
        self.wide = frozenset(wide)
        self.counts = {
            v: _elements(nest, places[v], s.axis) for v, s in wide.items() if s == self.stretch
        }

    def within(self, place: StridedAccess) -> StridedAccess:
        """Where elements are in the accumulators of one stretch."""
        fixed = self.stretch.axis if self.stretch is not None else 0
        return place._replace(rows=(*(0,) * fixed, *place.rows[fixed:]))


def _row_stretch(nest: LoopNest, place: StridedAccess) -> RowStretch | None:
    """The stretch in which an element of the result at `place` gets at most SHORT terms, or None
    where all rows give it no more."""
    sizes = zip(nest.columns, place.columns, strict=True)
    terms = size_of(tuple(n for n, stride in sizes if not stride))
    if terms > SHORT:
        return RowStretch(0, nest.row_count, 0)
    rows = 1
    for axis in reversed(range(len(nest.rows))):
        n = nest.rows[axis]
        if not place.rows[axis]:
            if terms * n > SHORT:
                return RowStretch(axis, n * rows, rows * (SHORT // terms))
            terms *= n
        rows *= n
    return None


def _elements(nest: LoopNest, place: StridedAccess, axis: int) -> int:
    """How many elements of the result at `place` rows with fixed indices before `axis` add to.
    They are contiguous."""
    sizes = (*nest.rows[axis:], *nest.columns)
    strides = (*place.rows[axis:], *place.columns)
    return size_of(tuple(n for n, stride in zip(sizes, strides, strict=True) if stride))


@contextmanager
def stretch_loops(
    w: LoopWriter, stretch: RowStretch, first: Reg, end: Reg
) -> Iterator[tuple[Reg, Reg, Reg]]:
    """Writes loops over rows [first, end) in stretches: (the index of the axes before the one that
    is cut, the first row of a stretch, the row after its last)."""
    e = w.e
    whole, rows = literal("i64", stretch.whole), literal("i64", stretch.rows)
    last = e.op("add nsw", end, literal("i64", stretch.whole - 1))
    groups = e.op("sdiv", first, whole).name, e.op("sdiv", last, whole).name
    with w.counted("o", *groups) as outer:
        begin = e.op("mul nsw", outer, whole)
        after = e.intrinsic("smin", e.op("add nsw", begin, whole), end)
        begin = e.intrinsic("smax", begin, first)
        last = e.op("add nsw", e.op("sub nsw", after, begin), literal("i64", stretch.rows - 1))
        with w.counted("t", "0", e.op("sdiv", last, rows).name) as number:
            start = e.op("add nsw", begin, e.op("mul nsw", number, rows))
            yield outer, start, e.intrinsic("smin", e.op("add nsw", start, rows), after)
