"""Recurrent layers over a whole sequence as native work: see `ops.nn.recurrent`.

At each step the hidden part of all gates is one matrix product, written to where the gates will be;
a second work makes the gates and the states of it, in place, row by row. Code is the same at every
step: what moves are the arguments, which point into the same few arrays. Backwards, gradients of
gates go to the result, and what is carried from step to step lies in scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.gemm.gemm import matmul as product
from everygrad.backends.cpu.kernels import copy_index, single_op
from everygrad.backends.cpu.kernels.half_conversions import converted, widened
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Value as Reg, engine, literal
from everygrad.backends.cpu.llvm.loop_writer import LoopWriter
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work, contiguous
from everygrad.core.shapes import Shape
from everygrad.dtypes import DType

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
STATES = {"lstm": 2, "gru": 1, "tanh": 1, "relu": 1}
# Inputs that definitions read and kernels do not, by position: the reserve holds what they decide.
UNREAD = {"rnn_sequence": (0, 1, 2, 3), "rnn_grads": (1, 4)}
# where the gates begin among what a step keeps, counted in hidden sizes: behind the states, but
# the one gate of a plain layer becomes its state
_FIRST_GATE = {"lstm": 2, "gru": 1, "tanh": 0, "relu": 0}


class RowWriter:
    """A function over rows of arrays whose rows have different lengths, element by element."""

    def __init__(self, dtype: DType, hidden: int, strides: tuple[int, ...]) -> None:
        self.dtype, self.kind = dtype, intrinsics.memory_type(dtype)
        self.hidden, self.strides = hidden, strides
        self.w = LoopWriter()
        self.w.lines.append("entry:")
        self.w.arguments(len(strides))
        self.rows: list[str] = []
        self.at = Reg("i64", "0")

    def number(self, fn: str, *args: Reg) -> Reg:
        return intrinsics.apply(self.w.e, fn, self.dtype, list(args))

    def constant(self, value: float) -> Reg:
        return intrinsics.constant(self.dtype, value)

    def place(self, argument: int, part: int) -> str:
        at = self.w.e.op("add", self.at, literal("i64", part * self.hidden)) if part else self.at
        return self.w.indexed(self.rows[argument], at, self.kind)

    def load(self, argument: int, part: int = 0) -> Reg:
        """An element of one of the parts of a row."""
        return self.w.load_raw(self.place(argument, part), self.kind, True)

    def store(self, value: Reg, argument: int, part: int = 0) -> None:
        self.w.store_raw(value, self.place(argument, part), True)

    def sigmoid(self, x: Reg) -> Reg:
        one = self.constant(1.0)
        return self.number("div", one, self.number("add", one, self.number("exp", self.minus(x))))

    def minus(self, x: Reg) -> Reg:
        return self.number("sub", self.constant(0.0), x)

    def plus(self, *terms: Reg) -> Reg:
        total = terms[0]
        for term in terms[1:]:
            total = self.number("add", total, term)
        return total

    def times(self, *factors: Reg) -> Reg:
        total = factors[0]
        for factor in factors[1:]:
            total = self.number("mul", total, factor)
        return total

    def sigmoid_slope(self, y: Reg) -> Reg:
        return self.times(y, self.number("sub", self.constant(1.0), y))

    def tanh_slope(self, y: Reg) -> Reg:
        return self.number("sub", self.constant(1.0), self.times(y, y))

    def step(self, n: int, body: Callable[[RowWriter], None]) -> Step:
        w = self.w
        with w.counted("r", "%lo", "%hi") as row:
            self.rows = [
                w.indexed(f"%p{k}", w.e.op("mul", row, literal("i64", stride)), self.kind)
                if stride
                else f"%p{k}"
                for k, stride in enumerate(self.strides)
            ]
            with w.counted("j", "0", str(self.hidden), parallel=True) as j:
                self.at = j
                body(self)
        w.lines.append("  ret void")
        return Step(w.module(engine().attributes), n)


# --- what becomes of the gates -------------------------------------------------------------------
# forward: 0 what the step keeps, its gates holding h @ w^T; 1 what came before; 2 gx; 3 b


def _lstm(k: RowWriter) -> None:
    i, f, g, o = (k.plus(k.load(0, 2 + p), k.load(2, p), k.load(3, p)) for p in range(4))
    i, f, g, o = k.sigmoid(i), k.sigmoid(f), k.number("tanh", g), k.sigmoid(o)
    c = k.plus(k.times(f, k.load(1, 1)), k.times(i, g))
    for part, value in enumerate((k.times(o, k.number("tanh", c)), c, i, f, g, o)):
        k.store(value, 0, part)


def _gru(k: RowWriter) -> None:
    r, z = (k.sigmoid(k.plus(k.load(0, 1 + p), k.load(2, p), k.load(3, p))) for p in range(2))
    hn = k.plus(k.load(0, 3), k.load(3, 2))
    n = k.number("tanh", k.plus(k.load(2, 2), k.times(r, hn)))
    h = k.plus(n, k.times(z, k.number("sub", k.load(1), n)))
    for part, value in enumerate((h, r, z, n, hn)):
        k.store(value, 0, part)


def _plain(fn: str) -> Callable[[RowWriter], None]:
    def body(k: RowWriter) -> None:
        x = k.plus(k.load(0), k.load(2), k.load(3))
        k.store(k.number("tanh", x) if fn == "tanh" else k.number("max", x, k.constant(0.0)), 0)

    return body


# backward: 0 gradients of the gates; 1 what is carried beside h; 2 the gradient of h that the
# product brought; 3 what the step kept; 4 what came before; 5 the gradient of its states


def _lstm_back(k: RowWriter) -> None:
    c, i, f, g, o = (k.load(3, part) for part in range(1, 6))
    gh = k.plus(k.load(2), k.load(5))
    t = k.number("tanh", c)
    dc = k.plus(k.load(1), k.load(5, 1), k.times(gh, o, k.tanh_slope(t)))
    k.store(k.times(dc, g, k.sigmoid_slope(i)), 0, 0)
    k.store(k.times(dc, k.load(4, 1), k.sigmoid_slope(f)), 0, 1)
    k.store(k.times(dc, i, k.tanh_slope(g)), 0, 2)
    k.store(k.times(gh, t, k.sigmoid_slope(o)), 0, 3)
    k.store(k.times(dc, f), 1)


def _gru_back(k: RowWriter) -> None:
    r, z, n, hn = (k.load(3, part) for part in range(1, 5))
    gh = k.plus(k.load(2), k.load(5), k.load(1))
    dn = k.times(gh, k.number("sub", k.constant(1.0), z), k.tanh_slope(n))
    k.store(k.times(dn, hn, k.sigmoid_slope(r)), 0, 0)
    k.store(k.times(gh, k.number("sub", k.load(4), n), k.sigmoid_slope(z)), 0, 1)
    k.store(k.times(dn, r), 0, 2)
    k.store(dn, 0, 3)
    k.store(k.times(gh, z), 1)


def _plain_back(fn: str) -> Callable[[RowWriter], None]:
    def body(k: RowWriter) -> None:
        h, gh = k.load(3), k.plus(k.load(2), k.load(5))
        if fn == "tanh":
            k.store(k.times(gh, k.tanh_slope(h)), 0)
        else:
            alive = k.number("gt", h, k.constant(0.0))
            k.store(k.w.e.select(alive, gh, k.constant(0.0)), 0)

    return body


def _last(mode: str) -> Callable[[RowWriter], None]:
    """0 the gradients of the start; 1 what is carried beside h; 2 the gradient of h."""

    def body(k: RowWriter) -> None:
        dh = k.load(2)
        if mode == "lstm":
            found = [dh, k.load(1), k.constant(0.0), k.constant(0.0)]
        elif mode == "gru":
            found = [k.plus(dh, k.load(1)), *[k.constant(0.0)] * 3]
        else:
            found = [dh]
        for part, value in enumerate(found):
            k.store(value, 0, part)

    return body


_FORWARD = {"lstm": _lstm, "gru": _gru, "tanh": _plain("tanh"), "relu": _plain("relu")}
_BACKWARD = {"lstm": _lstm_back, "gru": _gru_back, "tanh": _plain_back("tanh"), "relu": _plain_back("relu")}  # fmt: skip # noqa: E501


@lru_cache(maxsize=256)
def _gates(mode: str, dtype: DType, n: int, hidden: int, strides: Shape, kind: str) -> Work:
    body = {"forward": _FORWARD[mode], "backward": _BACKWARD[mode], "last": _last(mode)}[kind]
    return Work((RowWriter(dtype, hidden, strides).step(n, body),))


# --- all steps -----------------------------------------------------------------------------------


def lower_reserve(p: Any, v: Any) -> bool:
    """Emits `rnn_reserve` (gx, start, w, b)."""
    mode, dtype = v.params["mode"], v.dtype
    (gx_slot, _), (start, _), (w_slot, w), (b_slot, _) = (p.contiguous_operand(a) for a in v.args)
    out, (steps, n, kept) = p.slot(v), v.shape
    hidden, size = w.shape[1], dtype.itemsize
    gates, first = GATES[mode] * hidden, _FIRST_GATE[mode] * hidden
    weight = ArrayLayout(dtype, (hidden, gates), (1, hidden))
    target = ArrayLayout(dtype, (n, gates), (kept, 1))
    for t in range(steps):
        row = STATES[mode] * hidden if not t else kept
        before = start if not t else p.at(out, (t - 1) * n * kept * size)
        here = p.at(out, t * n * kept * size)
        held = ArrayLayout(dtype, (n, hidden), (row, 1))
        into = p.at(here, first * size)
        p.emit(product(held, weight, target), [into, before, w_slot], f"%{v.number} {v.name}: h")
        work = _gates(mode, dtype, n, hidden, (kept, row, gates, 0), "forward")
        given = [here, before, p.at(gx_slot, t * n * gates * size), b_slot]
        p.emit(work, given, f"%{v.number} {v.name}: gates")
    return True


def lower_states(p: Any, v: Any) -> bool:
    """Emits `rnn_sequence`: the states among what was kept."""
    slot, held = p.operand(v.args[4])
    source = ArrayLayout(v.dtype, v.shape, held.strides, held.offset)
    target = contiguous(v.dtype, v.shape)
    p.emit(Work((copy_index.copy(source, target),)), [p.slot(v), slot], f"%{v.number} {v.name}")
    return True


def lower_grads(p: Any, v: Any) -> bool:
    """Emits `rnn_grads` (g, gx, start, w, b, reserve)."""
    mode, dtype = v.params["mode"], v.dtype
    chosen = (v.args[0], v.args[2], v.args[3], v.args[5])
    (g_slot, g), (start, _), (w_slot, w), (kept_slot, kept_) = (
        p.contiguous_operand(a) for a in chosen
    )
    out, (_, n, slopes) = p.slot(v), v.shape
    steps, kept, hidden, size = g.shape[0], kept_.shape[2], w.shape[1], dtype.itemsize
    states, gates = STATES[mode] * hidden, GATES[mode] * hidden
    square = contiguous(dtype, (n, hidden))
    carried, dh = (p.scratch(n * hidden * size) for _ in range(2))
    for slot in (carried, dh):
        p.emit(Work((copy_index.zero(square),)), [slot], f"%{v.number} {v.name}: zeros")
    weight = contiguous(dtype, (gates, hidden))
    back = ArrayLayout(dtype, (n, gates), (slopes, 1))
    for t in range(steps - 1, -1, -1):
        row = kept if t else states
        before = p.at(kept_slot, (t - 1) * n * kept * size) if t else start
        here = p.at(out, t * n * slopes * size)
        work = _gates(
            mode, dtype, n, hidden, (slopes, hidden, hidden, kept, row, states), "backward"
        )
        given = [here, carried, dh, p.at(kept_slot, t * n * kept * size), before,
                 p.at(g_slot, t * n * states * size)]  # fmt: skip
        p.emit(work, given, f"%{v.number} {v.name}: gates", written=2)
        p.emit(product(back, weight, square), [dh, here, w_slot], f"%{v.number} {v.name}: h")
    end = _gates(mode, dtype, n, hidden, (slopes, hidden, hidden), "last")
    where = p.at(out, steps * n * slopes * size)
    p.emit(end, [where, carried, dh], f"%{v.number} {v.name}: start")
    return True


# --- eager ---------------------------------------------------------------------------------------


def _eager(op: str) -> Callable[..., Any]:
    def call(*arrays: Any, mode: str) -> Any:
        dtype = arrays[0].dtype
        wide = single_op.as_contiguous(*map(widened, arrays))
        return converted(single_op.call(op, *wide, mode=mode), dtype)

    return call


def _states(gx: Any, start: Any, w: Any, b: Any, reserve: Any, mode: str) -> Any:
    out = reserve[..., : STATES[mode] * w.shape[1]]
    return np.ascontiguousarray(out) if out.size < 1 << 12 else out


KERNELS: dict[str, Callable[..., Any]] = {
    "rnn_reserve": _eager("rnn_reserve"),
    "rnn_sequence": _states,
    "rnn_grads": _eager("rnn_grads"),
}
