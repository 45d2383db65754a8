"""A graph made smaller: dead values dropped, constants folded, moves that cancel removed.

One pass in order over the live values; each is rebuilt from its rewritten arguments, and a rule may
answer with something simpler. Rules keep results within rounding: x + 0 is x though -0.0 + 0 is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everygrad.compiler import accumulate
from everygrad.compiler.facts import Move, Neutral, OpFacts
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.rewrite import Rewriter
from everygrad.compiler.thresholds import edge
from everygrad.compiler.views import View, apply_move, view_of
from everygrad.core.shapes import size_of
from everygrad.dtypes import DType

Evaluate = Callable[[Any, Sequence[Any], dict[str, Any]], Any]  # (op, arrays, params) -> array
# elements up to which constants are computed while compiling
FOLDED = edge(__name__, "FOLDED", 1 << 20, "elements")


class Simplifier(Rewriter):
    """Builds the new graph. `evaluate` computes an op on NumPy arrays."""

    def __init__(self, evaluate: Evaluate, moves: dict[str, Any]) -> None:
        super().__init__()
        self.evaluate = evaluate
        self.moves = moves  # records of the layout moves and of `copy`, which rules build with
        self.rules = {
            "kernel": self.kernel,
            "reduction": self.reduction,
            "movement": self.movement,
            "elementwise": self.elementwise,
        }

    def replacement(self, v: Value, args: list[Value]) -> Value | None:
        return self.folded(v, args) or self.rules[v.kind](v, args)

    def folded(self, v: Value, args: list[Value]) -> Value | None:
        """A value of constants alone, computed now."""
        if v.kind == "kernel" or not all(a.kind in ("full", "constant") for a in args):
            return None
        if all(a.kind == "full" for a in args):
            if v.kind == "elementwise":
                numbers = [_array(a, ()) for a in args]
                out = self.evaluate(v.op, numbers, v.params)
                return self.graph.full(v.shape, out.item(), v.dtype)
            return None
        if v.size > FOLDED or any(a.kind == "constant" and a.size > FOLDED for a in args):
            return None
        arrays = [_array(a, a.shape) for a in args]
        return self.graph.constant(self.evaluate(v.op, arrays, v.params), v.dtype)

    # --- by kind --------------------------------------------------------------------------------

    def kernel(self, v: Value, args: list[Value]) -> Value | None:
        return args[0] if v.facts.alias else None

    def reduction(self, v: Value, args: list[Value]) -> Value | None:
        (x,) = args
        axes = v.params["axes"]
        count = size_of(tuple(x.shape[a] for a in axes))
        if not count and v.size:
            value = accumulate.of_nothing(v.op.combine, v.dtype, v.op.mean)
            return self.graph.full(v.shape, value, v.dtype)
        if count == 1:  # nothing to combine
            return self.alone(self.reshaped(x, v.shape), v.op.combine)
        if x.kind == "full" and count and v.op.combine in ("add", "max", "min"):
            value = accumulate.of_equal(v.op.combine, x.params["value"], count, v.op.mean)
            return self.graph.full(v.shape, value, v.dtype) if _fits(value, v.dtype) else None
        return None

    def alone(self, x: Value, combine: str) -> Value:
        """The reduction of each element by itself."""
        if combine != "add" or not x.dtype.is_differentiable:
            return x
        if x.kind == "full":
            value = accumulate.of_equal(combine, x.params["value"], 1, False)
            return self.graph.full(x.shape, value, x.dtype)
        if x.dtype.is_complex:  # each of its parts
            start = self.graph.full(x.shape, accumulate.identity(combine, x.dtype), x.dtype)
            return self.graph.call(self.moves["add"], [start, x], {}, x.where)
        return self.graph.call(self.moves["sum_alone"], [x], {}, x.where)

    def movement(self, v: Value, args: list[Value]) -> Value | None:
        (x,) = args
        if v.shape == x.shape and _keeps_order(v):
            return x
        if x.kind == "full" and (v.move is not Move.UNSLICE or _is_zero(x)):
            return self.graph.full(v.shape, x.params["value"], v.dtype)
        if x.kind == "movement":
            return self.two_moves(v, x)
        return self.legal(v, x)

    def two_moves(self, v: Value, x: Value) -> Value | None:
        """Two moves of one kind as one move."""
        (below,) = x.args
        if v.move is x.move is Move.RESHAPE:
            return self.reshaped(below, v.shape)
        if v.move is x.move is Move.PERMUTE:
            axes = tuple(x.params["axes"][a] for a in v.params["axes"])
            if axes == tuple(range(len(axes))):
                return below
            return self.graph.call(v.op, [below], {"axes": axes}, v.where)
        return self.legal(v, x)

    def legal(self, v: Value, x: Value) -> Value | None:
        """A reshape that strides cannot express reads a copy instead."""
        if v.move is not Move.RESHAPE:
            return None
        view: View = view_of(x)
        if view.base is x or apply_move(view, v.copy_of(x)) is not None:
            return None
        copied = self.graph.call(self.moves["copy"], [x], {}, v.where)
        return self.graph.call(v.op, [copied], v.params, v.where)

    def reshaped(self, x: Value, shape: tuple[int, ...]) -> Value:
        if x.shape == shape:
            return x
        if x.kind == "full":
            return self.graph.full(shape, x.params["value"], x.dtype)
        if x.move is Move.RESHAPE:
            return self.reshaped(x.args[0], shape)
        move = Value("movement", "reshape", self.moves["reshape"], (x,), {"shape": shape}, shape,
                     x.dtype, -1, x.where)  # fmt: skip
        return self.legal(move, x) or self.graph.call(move.op, [x], move.params, x.where)

    def elementwise(self, v: Value, args: list[Value]) -> Value | None:
        kept = _one_of(v.facts, args)
        if kept is None or kept.dtype is not v.dtype:
            return None
        if kept.shape == v.shape:
            return kept
        if kept.kind == "full":
            return self.graph.full(v.shape, kept.params["value"], v.dtype)
        return self.graph.call(self.moves["broadcast_to"], [kept], {"shape": v.shape}, v.where)


def _array(v: Value, shape: tuple[int, ...]) -> Any:
    if v.kind == "constant":
        return v.params["array"]
    return np.full(shape, v.params["value"], v.dtype.np)


def _keeps_order(v: Value) -> bool:
    """Whether a move from a shape to the same shape moves nothing."""
    if v.move is Move.PERMUTE:
        order = [a for a in v.params["axes"] if v.shape[a] != 1]
        return order == sorted(order)
    if v.move in (Move.SLICE, Move.UNSLICE):
        return all(start == 0 and step == 1 for start, _, step in v.params["slices"])
    return True


def _fits(value: Any, dtype: DType) -> bool:
    if dtype.is_integer:
        limits = np.iinfo(dtype.np)
        return bool(limits.min <= value <= limits.max)
    return not dtype.is_differentiable or abs(value) < 6e4  # whatever its precision


def _same_sign(v: Value, number: float) -> bool:
    """Whether a number that is equal has the same sign; integers have one zero, complex numbers
    several: none of them is neutral."""
    if v.dtype.is_complex:
        return number != 0
    value = v.params["value"]
    return v.dtype.is_integer or math.copysign(1.0, value) == math.copysign(1.0, number)


def _is_zero(v: Value) -> bool:
    value = v.params["value"]
    return value == 0 and not math.copysign(1.0, value if not isinstance(value, complex) else 1) < 0


def _number(v: Value, value: float) -> bool:
    return v.kind == "full" and v.params["value"] == value


def _one_of(facts: OpFacts, args: list[Value]) -> Value | None:
    """What an elementwise op gives, where its algebra says that it is one of the values at hand."""
    if facts.neutral is not None:
        return _beside_neutral(facts.neutral, args)
    if facts.involution and args[0].op is facts:
        return args[0].args[0]
    return _chosen(args) if facts.selects else None


def _beside_neutral(neutral: Neutral, args: list[Value]) -> Value | None:
    """The input beside the neutral number. Of the zeros the one with its sign is neutral:
    -0.0 + 0.0 is 0.0."""
    x, y = args
    right, both = neutral
    if _number(y, right) and _same_sign(y, right):
        return x
    return y if both and _number(x, right) and _same_sign(x, right) else None


def _chosen(args: list[Value]) -> Value | None:
    condition, yes, no = args
    if condition.kind != "full":
        return None
    return yes if condition.params["value"] else no


def simplify(graph: Graph, evaluate: Evaluate, moves: dict[str, Any]) -> Graph:
    """The same outputs from fewer values."""
    return Simplifier(evaluate, moves).run(graph)
