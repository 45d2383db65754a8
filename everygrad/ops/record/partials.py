"""The derivatives of elementwise ops by each of their inputs, as elementwise ops themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from everygrad.compiler import expr
from everygrad.compiler.expr import Expr
from everygrad.core import fast_calls
from everygrad.core.context import fast_limit, intercepted
from everygrad.core.fast_calls import DTYPES
from everygrad.core.tensor import Tensor
from everygrad.dispatch import F32, F64, apply
from everygrad.dtypes import bool_
from everygrad.ops.record.polynomials import derivative, evaluate, is_polynomial, operations
from everygrad.ops.record.spec import Op, Rule

if TYPE_CHECKING:
    from everygrad.ops.record.families import Elementwise

_REAL = frozenset((F32, F64))
_UNKNOWN = object()


class Partial:
    """The derivative of one input: fused into one elementwise op of (g, what it needs).

    `fast` maps float32 and float64 to a function of (g, saved) on small NumPy arrays.
    """

    __slots__ = (
        "again", "fast", "fast32", "fused", "make", "name", "needs", "op", "places", "rule", "same",
    )  # fmt: skip

    def __init__(
        self, make: type[Elementwise], op: Elementwise, name: str, rule: Rule | None, places: int
    ) -> None:
        self.make = make  # the family, whose ops the derivatives are; op may be of a part of it
        self.op = op
        self.name = name
        self.rule = rule
        self.places = places
        self.needs = () if rule is None else tuple(sorted(rule.needs))
        self.same = False  # the derivative is g itself
        self.fused: Elementwise | None = None
        self.fast: dict[Any, Callable[[Any, Any], Any]] = {}  # filled in by compile()
        self.fast32: Any = None  # the one of them that is used most, without looking it up
        self.again: Any = _UNKNOWN  # see `differentiable`

    def body(self, g: Expr, *kept: Expr) -> Any:
        values: list[Any] = [None] * self.places
        for place, value in zip(self.needs, kept, strict=True):
            values[place] = value
        assert self.rule is not None
        return self.rule(values, {"g": g})

    def compile(self) -> Elementwise | None:
        """The op; None where the derivative is g unchanged."""
        if self.fused is None and not self.same:
            g, *kept = Expr.inputs(1 + len(self.needs))
            root = self.body(g, *kept)
            if root is g:
                self.same = True
                return None
            names = ("g", *(f"v{i}" for i in self.needs))
            self.fused = self.make(
                self.name,
                self.body,
                names=names,
                derivative_of=self.op,
                coarse_halves=self.op.coarse_halves,
                recompute="cheap" if expr.is_short(root) else "",
            )
            for dtype in (F32, F64):
                self.fast[dtype] = self.on_saved(dtype)
            self.fast32 = self.fast[F32]
        return self.fused

    def differentiable(self) -> Elementwise | None:
        """The derivative as one op that can be differentiated again; None where its formula is no
        polynomial, or nothing but one op already."""
        if self.again is _UNKNOWN:
            found = None
            count = 1 + len(self.needs)
            if self.rule is not None and 2 <= count <= 3:
                root = expr.trace(self.body, count)
                if is_polynomial(root) and operations(root) > 1:
                    g = Expr("input", (), count)
                    found = self._as_op(root, [derivative(root, i, g) for i in range(count)])
            self.again = found
        return self.again

    def _as_op(self, root: Expr, by: Sequence[Any]) -> Elementwise | None:
        """The polynomial `root` as an op, given its derivatives times g."""
        if any(d is None for d in by):
            return None
        body: Callable[..., Any] = lambda u, v: evaluate(root, (u, v))  # noqa: E731
        rules: list[Callable[..., Any]] = [  # linear in u: the derivative by it does without
            lambda g, v: evaluate(by[0], (None, v, g)),
            lambda g, u, v: evaluate(by[1], (u, v, g)),
        ]
        if len(by) == 3:
            body = lambda u, v, w: evaluate(root, (u, v, w))  # noqa: E731
            rules = [
                lambda g, v, w: evaluate(by[0], (None, v, w, g)),
                lambda g, u, v, w: evaluate(by[1], (u, v, w, g)),
                lambda g, u, v, w: evaluate(by[2], (u, v, w, g)),
            ]
        facts: dict[str, Any] = {"derivative_of": self.op, "coarse_halves": self.op.coarse_halves}
        op = self.make(self.name, body, rules, **facts)
        if len(by) == 2:
            op.__dict__["vjp"] = fast_vjp(op)
        return op

    def native(self) -> tuple[Any, ...] | None:
        """What `fast_calls` asks of a compiled derivative; None for the gradient itself."""
        if self.same or self.rule is None:
            return None
        assert self.fused is not None
        fused, condition = self.fused, "condition" in self.rule.names
        functions, programs = [], []
        for np_dtype, dtype in DTYPES:
            functions.append(fused.numpy_function(np_dtype, condition=condition))
            inputs = [dtype] * (1 + len(self.needs))
            if condition:
                inputs[1] = bool_
            programs.append(fused.program(inputs, {}))
        return self.needs, functions, programs

    def on_saved(self, dtype: Any) -> Callable[[Any, Any], Any]:
        assert self.fused is not None
        assert self.rule is not None
        # a condition is the one kind of input whose dtype is not that of the gradient
        fn = self.fused.numpy_function(dtype, condition="condition" in self.rule.names)
        needs = self.needs
        if not needs:
            return lambda g, saved: fn(g)
        if len(needs) == 1:
            (i,) = needs
            return lambda g, saved: fn(g, saved[i])
        if len(needs) == 2:
            i, j = needs
            return lambda g, saved: fn(g, saved[i], saved[j])
        return lambda g, saved: fn(g, *[saved[i] for i in needs])


def recorded_vjp(op: Elementwise, node: Any, g: Tensor) -> Sequence[Any]:
    """The derivatives of real numbers, recorded: of large arrays of the CPU as one op each, where a
    formula of several would go over them several times."""
    plain = type(g._data) is ndarray and not intercepted() and not node.level and not node.params
    if not plain or g._data.size <= fast_limit():
        return Op.vjp(op, node, g, True)
    ops = [None if p is None else d.differentiable() for p, d in zip(node.parents, op.partials)]  # noqa: B905
    if not any(ops):
        return Op.vjp(op, node, g, True)
    values = op.restore(node, True)
    results: list[Any] = []
    for i, (parent, part, one) in enumerate(zip(node.parents, op.partials, ops, strict=True)):
        if parent is None or part.rule is None:
            results.append(None)
        elif one is not None:
            results.append(apply(one, g, *[values[k] for k in part.needs]))
        else:
            results.append(part.rule(values, {"g": g, "shape": parent.shape, "which": i}))
    return results


def fast_vjp(op: Elementwise) -> Callable[[Any, Tensor, bool], Sequence[Any]]:
    """`op.vjp` with a fast path for small CPU arrays of one or two inputs, as dispatch has."""
    slow = op.partials[0].make.vjp
    first, second = op.partials[0], op.partials[-1]
    heat = fast_calls.Heat()

    def take_over() -> None:
        """From now on the derivatives are native code, which calls what they were elsewhere."""
        if any(part.rule is None for part in op.partials):
            return
        for part in op.partials:
            part.compile()
        made = fast_calls.backward([part.native() for part in op.partials], here)
        if made is not None:
            op.__dict__["vjp"] = made

    def one(node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        payload = g._data
        try:
            size = payload.size
        except AttributeError:  # a payload that the fast path is not for
            return slow(op, node, g, create_graph)
        if create_graph or size > fast_limit() or node.level or node.params:
            if create_graph and payload.dtype in _REAL:
                return recorded_vjp(op, node, g)
            return slow(op, node, g, create_graph)
        if first.same:
            return (g,)
        fast = first.fast32 if payload.dtype is F32 else first.fast.get(payload.dtype)
        if fast is None:  # not compiled yet, or of another dtype
            return slow(op, node, g, create_graph)
        try:
            out = fast(payload, node.saved)
        except RuntimeWarning:  # raised by a filter: the slow path computes without warnings
            return slow(op, node, g, create_graph)
        t = Tensor()
        t._data = out if type(out) is ndarray else np.asarray(out)
        t._node = None
        t._source = None
        if heat.is_hot():
            take_over()
        return (t,)

    def two(node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        px, py = node.parents
        if first.same and second.same:  # addition: the same in every mode, on every device
            if heat.is_hot():
                take_over()
            return (g if px is not None else None, g if py is not None else None)
        payload = g._data
        try:
            size = payload.size
        except AttributeError:  # a payload that the fast path is not for
            return slow(op, node, g, create_graph)
        if create_graph or size > fast_limit() or node.level:
            if create_graph and payload.dtype in _REAL:
                return recorded_vjp(op, node, g)
            return slow(op, node, g, create_graph)
        dtype = payload.dtype
        dx: Any = g
        dy: Any = g
        try:
            if px is None:
                dx = None
            elif not first.same:
                fast = first.fast32 if dtype is F32 else first.fast.get(dtype)
                if fast is None:  # not compiled yet, or of another dtype
                    return slow(op, node, g, create_graph)
                out = fast(payload, node.saved)
                dx = Tensor()
                dx._data = out if type(out) is ndarray else np.asarray(out)
                dx._node = None
                dx._source = None
            if py is None:
                dy = None
            elif not second.same:
                fast = second.fast32 if dtype is F32 else second.fast.get(dtype)
                if fast is None:
                    return slow(op, node, g, create_graph)
                out = fast(payload, node.saved)
                dy = Tensor()
                dy._data = out if type(out) is ndarray else np.asarray(out)
                dy._node = None
                dy._source = None
        except RuntimeWarning:  # raised by a filter: the slow path computes without warnings
            return slow(op, node, g, create_graph)
        if heat.is_hot():
            take_over()
        return (dx, dy)

    here = one if len(op.inputs) == 1 else two
    return here
