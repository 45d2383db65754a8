"""The recursions of connectionist temporal classification (CTC) as native work: see `ops.ctc`.

A block is one example; for each time step, its states are computed by vectors. Compiled functions
have the sizes in their code. Eager calls pass them as arguments, since labels of every batch have
another length, and compiling a kernel for each would take longer than the training itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from everygrad.backends.cpu.kernels.run_work import run
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Value as Reg, engine, literal
from everygrad.backends.cpu.llvm.loop_writer import LoopWriter
from everygrad.backends.cpu.llvm.work import Step, Work
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.core.shapes import Shape
from everygrad.dtypes import FROM_NP, DType

NEVER = -1e30  # the logarithm of probability 0; see `ops.ctc`


class _Recursion(NamedTuple):
    """One of the two recursions: along the times, or back."""

    rows: int  # of scratch memory per example
    inputs: int
    forward: bool


_RECURSIONS = {
    "ctc_states": _Recursion(1, 3, forward=True),
    "ctc_adjoint": _Recursion(5, 4, forward=False),
}
_PADDING = 2  # a state follows itself and the two states before it
OPS = tuple(_RECURSIONS)


class _CTCWriter:
    """Writes one recursion. `sizes` are (times, examples, states), None if they are arguments."""

    def __init__(self, op: str, dtype: DType, sizes: Shape | None) -> None:
        self.dtype, self.kind = dtype, intrinsics.memory_type(dtype)
        self.w = w = LoopWriter()
        w.lines.append("entry:")
        inputs = _RECURSIONS[op].inputs + (sizes is None)
        w.arguments(inputs + 2)
        if sizes is None:
            at = [w.at(f"%p{inputs}", 8 * k) for k in range(3)]
            self.steps, self.n, self.states = (w.load_raw(p, "i64", False) for p in at)
        else:
            self.steps, self.n, self.states = (literal("i64", n) for n in sizes)
        self.scratch = f"%p{inputs + 1}"
        self.row_size = self.plus(self.states, 2 * _PADDING)  # of the scratch memory
        self.rows = _RECURSIONS[op].rows

    # --- numbers and addresses

    def plus(self, a: Reg, b: int) -> Reg:
        return self.w.e.op("add", a, literal("i64", b))

    def number(self, fn: str, *args: Reg) -> Reg:
        return intrinsics.apply(self.w.e, fn, self.dtype, list(args))

    def constant(self, value: float) -> Reg:
        return intrinsics.constant(self.dtype, value)

    def row(self, pointer: str, t: Reg, example: Reg) -> str:
        """Where the states of one example at one time are."""
        line = self.w.e.op("add", self.w.e.op("mul", t, self.n), example)
        return self.w.indexed(pointer, self.w.e.op("mul", line, self.states), self.kind)

    def own(self, example: Reg) -> list[str]:
        """The example's rows of the scratch memory, each with padding on both sides."""
        w = self.w
        first = w.e.op("mul", example, literal("i64", self.rows))
        found = []
        for k in range(self.rows):
            at = w.e.op("mul", self.plus(first, k), self.row_size)
            found.append(w.indexed(self.scratch, self.plus(at, _PADDING), self.kind))
        return found

    def load(self, row: str, at: Reg, off: int = 0, grouped: bool = True) -> Reg:
        at = self.plus(at, off) if off else at
        return self.w.load_raw(self.w.indexed(row, at, self.kind), self.kind, grouped)

    def store(self, value: Reg, row: str, at: Reg, grouped: bool = True) -> None:
        self.w.store_raw(value, self.w.indexed(row, at, self.kind), grouped)

    # --- loops over the states of one row

    def each(self, body: Callable[[Reg], None]) -> None:
        with self.w.counted("s", "0", self.states.name, parallel=True) as s:
            body(s)

    def copy(self, source: str, target: str) -> None:
        self.each(lambda s: self.store(self.load(source, s), target, s))

    def clear(self, row: str, value: float) -> None:
        """Fills a row of the scratch memory and its padding."""
        with self.w.counted("f", "0", self.row_size.name, parallel=True) as i:
            self.store(self.constant(value), row, self.plus(i, -_PADDING))

    def first_two(self, source: str, target: str) -> None:
        """The states an example can begin in."""
        with self.w.counted("s", "0", self.w.smallest(self.states, 2).name) as s:
            self.store(self.load(source, s, grouped=False), target, s, grouped=False)

    def end(self, times: str, example: Reg) -> Reg:
        """The length of the example: from there on its states do not change. At least 1."""
        w = self.w
        time = w.load_raw(w.indexed(times, example, "i64"), "i64", False)
        time = w.e.call("llvm.smin.i64", "i64", time, self.steps)
        return w.e.call("llvm.smax.i64", "i64", time, literal("i64", 1))

    def ways(self, before: str, skips: str, s: Reg) -> list[Reg]:
        """The predecessors of a state; no skip where `skips` is false."""
        w, e = self.w, self.w.e
        may = e.compare("ne", w.load_raw(w.indexed(skips, s, "i8"), "i8", True), literal("i8", 0))
        skipped = e.select(may, self.load(before, s, -2), self.constant(NEVER))
        return [self.load(before, s), self.load(before, s, -1), skipped]

    def parts(self, ways: list[Reg]) -> tuple[Reg, list[Reg], Reg]:
        """The maximum, the exponentials of the differences to it, and their sum."""
        top = self.number("max", self.number("max", ways[0], ways[1]), ways[2])
        parts = [self.number("exp", self.number("sub", way, top)) for way in ways]
        return top, parts, self.number("add", self.number("add", parts[0], parts[1]), parts[2])

    def skips_of(self, pointer: str, example: Reg) -> str:
        return self.w.indexed(pointer, self.w.e.op("mul", example, self.states), "i8")

    # --- the recursions

    def forward(self) -> None:
        """args: out, emitted, skips, times."""
        w, zero = self.w, literal("i64", 0)
        with w.counted("b", "%lo", "%hi") as example:
            (now,) = self.own(example)
            skips = self.skips_of("%p2", example)
            self.clear(now, NEVER)
            self.first_two(self.row("%p1", zero, example), now)
            self.copy(now, self.row("%p0", zero, example))
            end = self.end("%p3", example)
            with w.counted("t", "1", end.name) as t:
                said, out = self.row("%p1", t, example), self.row("%p0", t, example)

                def state(s: Reg, said: str = said, out: str = out) -> None:
                    top, _, total = self.parts(self.ways(now, skips, s))
                    new = self.number("add", top, self.number("log", total))
                    self.store(self.number("add", new, self.load(said, s)), out, s)

                self.each(state)
                self.copy(out, now)
            with w.counted("t", end.name, self.steps.name) as t:
                self.copy(now, self.row("%p0", t, example))

    def backward(self) -> None:
        """args: out, back, alphas, skips, times."""
        w, zero = self.w, literal("i64", 0)
        with w.counted("b", "%lo", "%hi") as example:
            before, now, *moved = self.own(example)
            skips = self.skips_of("%p3", example)
            self.clear(before, NEVER)
            for row in (now, *moved):
                self.clear(row, 0.0)
            last = self.plus(self.steps, -1)
            self.copy(self.row("%p1", last, example), now)
            end = self.end("%p4", example)
            with w.counted("t", end.name, self.steps.name) as t:  # no gradient beyond the end
                later = w.e.op("add", last, w.e.op("sub", end, t))
                self.each_zero(self.row("%p0", later, example))
                self.add_to(now, self.row("%p1", self.plus(later, -1), example))
            with w.counted("t", "1", end.name) as t:
                time = w.e.op("sub", end, t)
                out = self.row("%p0", time, example)
                self.copy(now, out)
                self.copy(self.row("%p2", self.plus(time, -1), example), before)
                self.each(lambda s: self.spread(s, before, now, skips, moved))
                self.each(lambda s: self.gathered(s, moved, now))
                self.add_to(now, self.row("%p1", self.plus(time, -1), example))
            first = self.row("%p0", zero, example)
            self.each_zero(first)
            self.first_two(now, first)

    def each_zero(self, row: str) -> None:
        self.each(lambda s: self.store(self.constant(0.0), row, s))

    def add_to(self, row: str, other: str) -> None:
        self.each(
            lambda s: self.store(self.number("add", self.load(row, s), self.load(other, s)), row, s)
        )

    def spread(self, s: Reg, before: str, now: str, skips: str, moved: list[str]) -> None:
        """Distributes a state's gradient over its predecessors."""
        ways = self.ways(before, skips, s)
        _, parts, total = self.parts(ways)
        share = self.number("div", self.load(now, s), total)
        w = self.w
        for k, (part, row) in enumerate(zip(parts, moved, strict=True)):
            value = self.number("mul", part, share)
            if k == 2:
                flag = w.load_raw(w.indexed(skips, s, "i8"), "i8", True)
                may = w.e.compare("ne", flag, literal("i8", 0))
                value = w.e.select(may, value, self.constant(0.0))
            self.store(value, row, s)

    def gathered(self, s: Reg, moved: list[str], now: str) -> None:
        stay, step, skip = (self.load(row, s, k) for k, row in enumerate(moved))
        self.store(self.number("add", self.number("add", stay, step), skip), now, s)


def _needed(op: str, sizes: Shape, dtype: DType) -> int:
    """Bytes of the scratch memory."""
    return sizes[1] * _RECURSIONS[op].rows * (sizes[2] + 2 * _PADDING) * dtype.itemsize


@lru_cache(maxsize=1024)
def _step(op: str, dtype: DType, sizes: Shape | None) -> Step:
    writer = _CTCWriter(op, dtype, sizes)
    (writer.forward if _RECURSIONS[op].forward else writer.backward)()
    writer.w.lines.append("  ret void")
    return Step(writer.w.module(engine().attributes), 1)


def work(op: str, dtype: DType, sizes: Shape, known: bool = True) -> Work:
    """args: out, the op's contiguous inputs, and the sizes as int64 if they are not `known`; no
    size is 0."""
    step = _step(op, dtype, sizes if known else None)
    return Work((step._replace(blocks=sizes[1]),), _needed(op, sizes, dtype))


def _eager(op: str) -> Callable[..., Any]:
    def call(first: Any, *rest: Any) -> Any:
        *others, times = rest
        given = [np.ascontiguousarray(a) for a in (first, *others)]
        given.append(np.ascontiguousarray(times, np.int64))
        out = empty(first.shape, first.dtype)
        made = work(op, FROM_NP[first.dtype], first.shape, known=False)
        run(made, [out], [*given, np.array(first.shape, np.int64)])
        return out

    return call


KERNELS: dict[str, Callable[..., Any]] = {op: _eager(op) for op in OPS}
