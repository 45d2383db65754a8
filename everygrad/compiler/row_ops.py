"""Ops along rows as graphs of their parts: what their definitions say, without tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from everygrad.compiler.ir import Graph, Value
from everygrad.core.context import records
from everygrad.core.shapes import Shape
from everygrad.dtypes import DType


class _Rows:
    """Writes the ops of a graph along some axes."""

    def __init__(self, graph: Graph, axes: Shape, eps: float, dtype: DType) -> None:
        self.graph, self.axes = graph, axes
        self.eps = graph.full((), eps, dtype)
        self.one = graph.full((), 1.0, dtype)

    def call(self, name: str, *args: Value) -> Value:
        return self.graph.call(records.by_name[name], args, {})

    def over(self, name: str, x: Value) -> Value:
        params: dict[str, Any] = {"axes": self.axes, "keepdims": True}
        return self.graph.call(records.by_name[name], (x,), params)

    def moved(self, name: str, x: Value) -> Value:
        """x without its largest element, or its mean."""
        return self.call("subtract", x, self.over(name, x))

    def scale(self, off: Value) -> Value:
        """What makes the variance 1."""
        squares = self.over("mean", self.call("multiply", off, off))
        return self.call("rsqrt", self.call("add", squares, self.eps))


def _softmax(r: _Rows, x: Value) -> Value:
    e = r.call("exp", r.moved("max", x))
    # one division a row; the product is off by one unit more
    return r.call("multiply", e, r.call("divide", r.one, r.over("sum", e)))


def _softmax_vjp(r: _Rows, g: Value, out: Value) -> Value:
    gout = r.call("multiply", g, out)
    return r.call("subtract", gout, r.call("multiply", out, r.over("sum", gout)))


def _log_softmax(r: _Rows, x: Value) -> Value:
    moved = r.moved("max", x)
    return r.call("subtract", moved, r.call("log", r.over("sum", r.call("exp", moved))))


def _log_softmax_vjp(r: _Rows, g: Value, out: Value) -> Value:
    return r.call("subtract", g, r.call("multiply", r.call("exp", out), r.over("sum", g)))


def _standardize(r: _Rows, x: Value) -> Value:
    off = r.moved("mean", x)
    return r.call("multiply", off, r.scale(off))


def _standardize_vjp(r: _Rows, g: Value, out: Value, x: Value) -> Value:
    along = r.call("multiply", out, r.over("mean", r.call("multiply", g, out)))
    return r.call(
        "multiply", r.scale(r.moved("mean", x)), r.call("subtract", r.moved("mean", g), along)
    )


ROW_OPS: dict[str, Callable[..., Value]] = {
    "softmax": _softmax,
    "softmax_vjp": _softmax_vjp,
    "log_softmax": _log_softmax,
    "log_softmax_vjp": _log_softmax_vjp,
    "standardize": _standardize,
    "standardize_vjp": _standardize_vjp,
}


def row_op(graph: Graph, name: str, args: Sequence[Value], axes: Shape, eps: float) -> Value:
    """The result of an op of this name along axes of values of one dtype."""
    return ROW_OPS[name](_Rows(graph, axes, eps, args[0].dtype), *args)
