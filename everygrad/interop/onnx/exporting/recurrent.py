"""Recurrent layers as a Scan over their steps, so that the number of steps may stay open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import helper

from everygrad import dtypes
from everygrad.compiler.ir import Value
from everygrad.dtypes import DType
from everygrad.interop.onnx.exporting.writer import ONNX_TYPES, Writer

Names = list[str]


def reserve(w: Writer, v: Value) -> str:
    """All that a step makes, of every step: (steps, batch, kept * hidden)."""
    mode = v.params["mode"]
    gx, weight = v.args[0], v.args[2]
    hidden = weight.shape[1]
    wide = dtypes.float32 if v.dtype.bits <= 16 else v.dtype  # a state is added to at every step
    names = [a if v.dtype is wide else w.cast(a, wide) for a in map(w.name, v.args)]
    turned = w.node("Transpose", names[2], perm=[1, 0])
    states = _split(w, names[1], 2 if mode == "lstm" else 1, hidden)
    before, w.nodes = w.nodes, []
    h = [w.unique("state") for _ in states]
    x = w.unique("step")
    gates = w.node("Add", w.node("MatMul", h[0], turned), names[3])
    kept = _STEPS[mode](w, wide, x, gates, h, hidden)
    row = kept[0] if len(kept) == 1 else w.node("Concat", *kept, axis=1)
    outputs = [w.node("Identity", s) for s in kept[: len(h)]]  # a state is no other output too
    row = w.node("Identity", row)
    body = helper.make_graph(
        w.nodes,
        w.unique("step_of_recurrence"),
        [_port(n, wide, hidden) for n in h] + [_port(x, wide, gx.shape[2])],
        [_port(n, wide, hidden) for n in outputs] + [_port(row, wide, hidden * len(kept))],
    )
    w.nodes = before
    made = w.nodes_of("Scan", [*states, names[0]], len(h) + 1, body=body, num_scan_inputs=1)
    return made[-1] if v.dtype is wide else w.cast(made[-1], v.dtype)


def sequence(w: Writer, v: Value) -> str:
    """The states among what the steps made: the first columns."""
    width = w.ints([v.shape[2]])
    return w.node("Slice", w.name(v.args[4]), w.ints([0]), width, w.ints([2]))


def _port(name: str, dtype: DType, width: int) -> Any:
    return helper.make_tensor_value_info(name, ONNX_TYPES[dtype], [None, width])


def _split(w: Writer, name: str, count: int, width: int) -> Names:
    if count == 1:
        return [name]
    return w.nodes_of("Split", [name, w.ints([width] * count)], count, axis=1)


def _lstm(w: Writer, dtype: DType, x: str, gates: str, states: Names, hidden: int) -> Names:
    i, f, g, o = _split(w, w.node("Add", x, gates), 4, hidden)
    i, f, o = (w.node("Sigmoid", n) for n in (i, f, o))
    g = w.node("Tanh", g)
    c = w.node("Add", w.node("Mul", f, states[1]), w.node("Mul", i, g))
    return [w.node("Mul", o, w.node("Tanh", c)), c, i, f, g, o]


def _gru(w: Writer, dtype: DType, x: str, gates: str, states: Names, hidden: int) -> Names:
    xr, xz, xn = _split(w, x, 3, hidden)
    hr, hz, hn = _split(w, gates, 3, hidden)
    r = w.node("Sigmoid", w.node("Add", xr, hr))
    z = w.node("Sigmoid", w.node("Add", xz, hz))
    n = w.node("Tanh", w.node("Add", xn, w.node("Mul", r, hn)))
    h = w.node("Add", n, w.node("Mul", z, w.node("Sub", states[0], n)))
    return [h, r, z, n, hn]


def _plain(kind: str) -> Callable[..., Names]:
    def step(w: Writer, dtype: DType, x: str, gates: str, states: Names, hidden: int) -> Names:
        return [w.node(kind, w.node("Add", x, gates))]

    return step


_STEPS: dict[str, Callable[..., Names]] = {
    "lstm": _lstm,
    "gru": _gru,
    "tanh": _plain("Tanh"),
    "relu": _plain("Relu"),
}
