"""Weighted sums of a few elements along an axis, named by a table of indices: native work."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from everygrad.backends.cpu.kernels.run_work import layout_of, run
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Value as Reg, engine, literal
from everygrad.backends.cpu.llvm.loop_writer import LoopWriter
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of

_UNROLLED = edge(__name__, "_UNROLLED", 8, "size")  # terms up to which their loop is unrolled


class _InterpolationWriter:
    """x is (outer, n, inner), the tables (terms, count), the result (outer, count, inner)."""

    def __init__(self, x: ArrayLayout, table: ArrayLayout, axis: int) -> None:
        self.outer, self.n = size_of(x.shape[:axis]), x.shape[axis]
        self.inner = size_of(x.shape[axis + 1 :])
        self.terms, self.count = table.shape
        self.dtype = x.dtype
        self.kind = intrinsics.memory_type(x.dtype)
        self.w = LoopWriter()
        self.w.lines.append("entry:")
        self.w.arguments(4)

    def times(self, a: Reg, number: int) -> Reg:
        return self.w.e.op("mul", a, literal("i64", number))

    def term(self, at: Reg, grouped: bool) -> tuple[Reg, Reg]:
        """The index and the weight at a position of the table."""
        w = self.w
        index = w.load_raw(w.indexed("%p2", at, "i64"), "i64", grouped)
        return index, w.load_raw(w.indexed("%p3", at, self.kind), self.kind, grouped)

    def added(self, total: Reg, x: Reg, weight: Reg) -> Reg:
        """total + x * weight; a weight of 0 adds nothing, even if x is NaN."""
        e, zero = self.w.e, literal(self.kind, 0.0)
        product = e.op("fmul", x, weight)
        used = e.compare("une", weight, zero)
        return e.op("fadd", total, e.select(used, product, zero))

    def along_last(self) -> None:
        """Vectors of results; each gathers from its row."""
        w = self.w
        with w.counted("b", "%lo", "%hi") as row:
            line = w.indexed("%p1", self.times(row, self.n), self.kind)
            own = self.times(row, self.count)
            with w.counted("j", "0", str(self.count), parallel=True) as j:
                total = literal(self.kind, 0.0)
                for t in range(self.terms):
                    at = w.e.op("add", j, literal("i64", t * self.count))
                    index, weight = self.term(at, True)
                    x = w.load_raw(w.indexed(line, index, self.kind), self.kind, True)
                    total = self.added(total, x, weight)
                w.store_raw(total, w.indexed("%p0", w.e.op("add", own, j), self.kind), True)

    def by_slices(self) -> None:
        """For each result, the slice of elements behind the axis, term by term."""
        w = self.w
        with w.counted("b", "%lo", "%hi") as block:
            before, j = w.indices(block, (self.outer, self.count))
            target = w.indexed("%p0", self.times(block, self.inner), self.kind)
            w.fill(target, self.kind, "0.0", self.inner)
            with w.counted("t", "0", str(self.terms)) as t:
                at = w.e.op("add", self.times(t, self.count), j)
                index, weight = self.term(at, False)
                line = w.e.op("add", self.times(before, self.n), index)
                source = w.indexed("%p1", self.times(line, self.inner), self.kind)
                used = w.e.compare("une", weight, literal(self.kind, 0.0))
                end = w.e.select(used, literal("i64", self.inner), literal("i64", 0))
                with w.counted("c", "0", end.name, parallel=True) as c:
                    to = w.indexed(target, c, self.kind)
                    x = w.load_raw(w.indexed(source, c, self.kind), self.kind, True)
                    product = w.e.op("fmul", x, weight)
                    held = w.load_raw(to, self.kind, True)
                    w.store_raw(w.e.op("fadd", held, product), to, True)

    def work(self) -> Work:
        if self.inner == 1 and self.terms <= _UNROLLED:
            self.along_last()
            blocks = self.outer
        else:
            self.by_slices()
            blocks = self.outer * self.count
        self.w.lines.append("  ret void")
        return Work((Step(self.w.module(engine().attributes), blocks),))


@lru_cache(maxsize=1024)
def interpolation(x: ArrayLayout, table: ArrayLayout, axis: int) -> Work:
    """args: out, x, index, weights, all contiguous; x and the weights of one floating dtype."""
    return _InterpolationWriter(x, table, axis).work()


def weighted_gather_sum(x: Any, index: Any, weights: Any, axis: int) -> Any:
    """The map along an axis of contiguous arrays of float32 or float64."""
    shape = (*x.shape[:axis], index.shape[1], *x.shape[axis + 1 :])
    out = empty(shape, x.dtype)
    run(interpolation(layout_of(x), layout_of(index), axis), [out], [x, index, weights])
    return out
