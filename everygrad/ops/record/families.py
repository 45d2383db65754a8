"""The families: what follows from an op's kind, so that its record need not say it.

Elementwise  a scalar body and its partial derivatives
Reduction    combine, identity, finish; the derivative as weights on the input's elements
Movement     linear in its input; gives its transpose
Kernel       a portable definition in other ops; rules of its own only where they pay
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from numpy import ndarray

from everygrad import dtypes
from everygrad.backends.cpu.kernels.numpy_render import small
from everygrad.backends.cpu.registry import broadcast_to
from everygrad.compiler import expr
from everygrad.compiler.expr import Expr, Program
from everygrad.compiler.facts import Move
from everygrad.core import shapes
from everygrad.core.context import intercepted
from everygrad.core.op import ElementwiseOp
from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import apply, binary, computed, operands, unary
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import DtypeError
from everygrad.ops.record.partials import Partial, fast_vjp
from everygrad.ops.record.spec import REGISTRY, NoRule, Op, Rule, register

Function = Callable[..., Any]  # of Tensors, numbers, and scalar expressions

KINDS = {
    "any": ("bool", "int", "uint", "float", "complex"),
    "numeric": ("int", "uint", "float", "complex"),
    "real": ("int", "uint", "float"),
    "ordered": ("bool", "int", "uint", "float"),
    "float": ("float", "complex"),
    "real float": ("float",),
    "integer": ("int", "uint"),
    "bits": ("bool", "int", "uint"),
    "bool": ("bool",),
}


class Elementwise(Op, ElementwiseOp):
    """Family 3: `body` computes one element; `derivs` gives the derivative in each input times g.

    A rule is linear in `g`, so one formula serves both modes: reverse mode gives it the gradient,
    forward mode the tangent. Bodies and rules are written with operators and op functions that take
    Tensors and scalar expressions alike: as Tensors they are differentiable again, as expressions
    they fuse into one kernel.
    """

    family = "elementwise"
    joins_groups = True

    def __init__(
        self,
        name: str,
        body: Callable[..., Any],
        derivs: Sequence[Callable[..., Any] | None] = (),
        *,
        kinds: str = "numeric",
        holomorphic: bool = True,
        tangents: Sequence[Callable[..., Any] | None] | None = None,
        names: Sequence[str] | None = None,
        **facts: Any,
    ) -> None:
        if names is None:
            code = body.__code__  # inspect.signature takes ten times as long, at every import
            names = code.co_varnames[: code.co_argcount]
        super().__init__(name, names, **facts)
        self.body = body
        self.kinds = kinds
        # dtypes of inputs that need no conversion, if all have the same
        self.floats = frozenset(d.np for d in dtypes.FLOATS if d.kind in KINDS[kinds])
        self.constant = not derivs
        self.holomorphic = holomorphic
        self.set_rules(derivs)
        # forward mode, where it differs from reverse: functions of complex numbers such as abs
        self.tangent_rules = (
            self.rules
            if tangents is None
            else tuple(None if r is None else Rule(r, self.inputs) for r in tangents)
        )
        self._programs: dict[Any, Program] = {}
        self.partials = tuple(
            Partial(Elementwise, self, f"{name}.d{i}", rule, 1 + len(names))
            for i, rule in enumerate(self.rules)
        )
        self._intrinsic: str | None = None
        needs = [set() if r is None else r.needs for r in self.rules]
        union = set().union(*needs)
        self.keeps = tuple(i in union for i in range(len(names) + 1))
        if len(names) == 2:
            rows = [set(), *needs, union]
            rows += [set()] * (4 - len(rows))
            self.keep_table = tuple(
                tuple(i in row for i in range(3)) if row else None for row in rows
            )

    def program(self, inputs: Sequence[DType], params: dict[str, Any]) -> Program:
        """The typed body for inputs of these dtypes."""
        key = (tuple(inputs), *params.items())
        found = self._programs.get(key)
        if found is None:
            root = expr.trace(self.body, len(inputs), **params)
            found = self._programs[key] = expr.lower(root, inputs, self.out_dtype(inputs, params))
        return found

    def intrinsic(self) -> str:
        if self._intrinsic is None:
            code = self.body.__code__
            found = ""
            parameters = code.co_kwonlyargcount or code.co_flags & inspect.CO_VARKEYWORDS
            alone = code.co_argcount == len(self.inputs) and not parameters
            if alone and self.derivative_of is None:
                root = expr.trace(self.body, len(self.inputs))
                places = [a.value if a.fn == "input" else None for a in root.args]
                found = root.fn if places == [*range(len(self.inputs))] else ""
            self._intrinsic = found
        return self._intrinsic

    def out_dtype(self, inputs: Sequence[DType], params: dict[str, Any]) -> DType | None:
        """The result's dtype where the body alone does not say."""
        return None

    def numpy_function(self, np_dtype: Any, condition: bool = False) -> Callable[..., Any]:
        """The body on NumPy arrays that all have this dtype, but for a bool second one if said."""
        inputs = [FROM_NP[np_dtype]] * len(self.inputs)
        if condition:
            inputs[1] = dtypes.bool_
        return small(self.program(inputs, {}), len(inputs))

    def promote(self, *values: Any) -> tuple[Tensor, ...]:
        """The inputs in one dtype that this op takes."""
        tensors = operands(self.name, *values, floating=self.kinds in ("float", "real float"))
        check_kind(self.name, tensors[0].dtype, self.kinds)
        return tensors

    def explain(self, inputs: Sequence[Tensor], params: dict[str, Any]) -> None:
        shapes.broadcast(self.name, *(t.shape for t in inputs))

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        if create_graph or node.level or node.params or not _is_plain(g._data):
            return self.vjp_by_formula(node, g, create_graph)
        return self.vjp_fused(node, g)

    def vjp_fused(self, node: Any, g: Tensor) -> Sequence[Any]:
        """Each derivative as one kernel on the payloads of a backend."""
        payload = g._data
        if payload.dtype.kind == "c" or (not self.holomorphic and _has_complex(node.saved)):
            return self.vjp_by_formula(node, g, False)
        results: list[Tensor | None] = []
        for parent, part in zip(node.parents, self.partials, strict=True):
            if parent is None:
                results.append(None)
                continue
            op = part.compile()  # from now on the fast path has it too
            if op is None:
                results.append(g)
            else:
                arrays = [payload, *(node.saved[i] for i in part.needs)]
                results.append(wrap(computed(op, arrays)))
        return results

    def vjp_by_formula(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        """The rules as tensor ops, for higher order and for transformed or foreign payloads."""
        if not (g.dtype.is_complex and self.holomorphic):
            return super().vjp(node, g, create_graph)
        # PyTorch's convention: the gradient of a holomorphic f is g times the conjugate of f'
        results = super().vjp(node, g.conj(), create_graph)
        return [None if r is None else r.conj() for r in results]

    def jvp(
        self,
        out: Tensor,
        inputs: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        params: dict[str, Any],
    ) -> Tensor | None:
        total: Tensor | None = None
        for t, rule in zip(tangents, self.tangent_rules, strict=not self.constant):
            if t is not None and rule is not None:
                t = t.broadcast_to(out.shape)
                part = rule([out, *inputs], {**params, "g": t, "shape": out.shape})
                total = part if total is None else total + part
        return total


def _is_plain(payload: Any) -> bool:
    """Whether a payload is the CPU's, or takes fused ops as the CPU's do: a tracer's, a shard."""
    return (
        type(payload) is ndarray
        or getattr(payload, "plain", False)
        or getattr(payload, "is_shard", False)
    )


def _has_complex(saved: Sequence[Any]) -> bool:
    """Whether a complex input was saved: of abs, real or imag, whose gradient comes in real."""
    return any(v is not None and v.dtype.kind == "c" for v in saved)


def check_kind(op: str, dtype: DType, kinds: str) -> None:
    """Refuse a dtype the op does not take."""
    if dtype.kind not in KINDS[kinds]:
        if not isinstance(dtype, DType):
            raise DtypeError(f"{op}: takes tensors, got an array; make one with eg.tensor()")
        cure = {
            "bool": "cast it with astype(), or use &, |, ^ and ~",
            "complex": "take real(), imag() or abs() first",
        }.get(dtype.kind, f"cast it with astype() to one of {', '.join(KINDS[kinds])}")
        raise DtypeError(f"{op}: does not take {dtype}; {cure}")


def elementwise(
    name: str,
    body: Callable[..., Any],
    derivs: Sequence[Callable[..., Any] | None] = (),
    *,
    doc: str,
    methods: Sequence[str] | None = None,
    kinds: str = "numeric",
    holomorphic: bool = True,
    tangents: Sequence[Callable[..., Any] | None] | None = None,
    takes_alpha: bool = False,
    **facts: Any,
) -> Callable[..., Any]:
    """Enter an elementwise op and return its function."""
    op = Elementwise(name, body, derivs, kinds=kinds, holomorphic=holomorphic, tangents=tangents)
    op.takes_alpha = takes_alpha
    count = len(op.inputs)
    # abs, real and imag of complex numbers have real gradients: the fast path cannot tell them
    if op.rules and count <= 2 and holomorphic:
        op.__dict__["vjp"] = fast_vjp(op)  # the same, with its inputs known
    if count == 1:
        function: Callable[..., Any] = unary(op)
    elif count == 2:
        function = binary(op)
    else:
        function = _nary(op)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what help() shows
        [
            inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="Tensor")
            for n in op.inputs
        ]
        + [inspect.Parameter("alpha", inspect.Parameter.KEYWORD_ONLY, default=1)] * takes_alpha,
        return_annotation="Tensor",
    )
    register(op, function, methods=(name,) if methods is None else methods, **facts)
    return function


def _nary(op: Elementwise) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        if any(isinstance(v, Expr) for v in values):
            return op.body(*values)
        return apply(op, *op.promote(*values))

    return call


class Reduction(Op):
    """Family 4. Parameters: `axes` (sorted, non-negative) and `keepdims`.

    `weights` names what it needs among x and out (out with its axes kept) and gives d out / d x
    for each element; without it the op is the plain sum.
    """

    family = "reduction"
    joins_groups = True

    def __init__(
        self,
        name: str,
        combine: str,
        weights: Callable[..., Any] | None = None,
        *,
        constant: bool = False,
        kinds: str = "numeric",
        mean: bool = False,
        **facts: Any,
    ) -> None:
        super().__init__(name, ("x",), combine=combine, mean=mean, **facts)
        self.kinds = kinds
        self.constant = constant
        self.weights = None if weights is None else Rule(weights, self.inputs)
        if not constant:
            self.set_rules((lambda g: g,))  # replaced by vjp below; marks the input as wanted

    def save(
        self, parents: Sequence[Any], payload: Any, inputs: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        needs = self.weights.needs if self.weights else frozenset()
        return (payload if 0 in needs else None, inputs[0]._data if 1 in needs else None)

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        axes, keepdims = node.params["axes"], node.params["keepdims"]
        shape = node.parents[0].shape
        if self.weights is None and self.mean:
            g = g / float(max(1, shapes.size_of(tuple(shape[a] for a in axes))))
        if self.weights is None and len(axes) == len(shape) and not keepdims:
            if type(g._data) is ndarray and g._node is None and not intercepted():
                return (wrap(broadcast_to(g._data, shape)),)  # the sum of a loss: bypasses dispatch
            return (apply(REGISTRY["broadcast_to"], g, shape=shape),)
        if self.weights is None and not keepdims and axes[-1:] == (len(axes) - 1,):
            return [apply(REGISTRY["broadcast_to"], g, shape=shape)]  # the last axes stay the last
        kept = shapes.reduced(shape, axes, True)
        g = g if keepdims else g.reshape(kept)
        if self.weights is None:
            return [g.broadcast_to(shape)]
        out, x = self.restore(node, create_graph)
        out = None if out is None else out.reshape(kept)
        return [g * self.weights([out, x], {"axes": axes})]

    def jvp(
        self,
        out: Tensor,
        inputs: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        params: dict[str, Any],
    ) -> Tensor | None:
        (t,), (x,) = tangents, inputs
        if t is None or self.constant:
            return None
        if self.weights is None:
            return apply(self, t, **params)
        kept = out.reshape(shapes.reduced(x.shape, params["axes"], True))
        weighted = t * self.weights([kept, x], params)
        return weighted.sum(axis=params["axes"], keepdims=params["keepdims"])


class Movement(Op):
    """Family 2: rearranges elements and is linear. `transpose(g, shape, **params)` undoes it."""

    family = "movement"
    rearranges = True

    def __init__(
        self,
        move: Move,
        shape: Callable[..., shapes.Shape],
        transpose: Callable[..., Any],
        batch: Callable[..., dict[str, Any]],
    ) -> None:
        super().__init__(move.value, ("x",), move=move)
        self.shape = shape  # (input shape, **params) -> result shape
        self.batch = batch  # (input shape, **params) -> params for one more leading axis
        self.set_rules((transpose,))

    def jvp(
        self,
        out: Tensor,
        inputs: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        params: dict[str, Any],
    ) -> Tensor | None:
        return None if tangents[0] is None else apply(self, tangents[0], **params)


class Kernel(Op):
    """Family 5: a portable definition, and what a backend or a derivative can do better.

    `vjp` has one rule for each input (None: not differentiable). `linear` lists the inputs the op
    is linear in, one at a time, from which forward mode follows. `jvp` is a rule that names
    tangents as t_x. `result` tells a compiler that the op is better left whole. What is missing
    follows from the portable definition.
    """

    family = "kernel"

    def __init__(
        self,
        name: str,
        portable: Callable[..., Any],
        inputs: Sequence[str],
        vjp: Sequence[Callable[..., Any] | None] = (),
        *,
        linear: Sequence[int] = (),
        jvp: Callable[..., Any] | None = None,
        batch: Callable[..., Any] | None = None,
        constant: bool = False,
        result: Callable[..., tuple[shapes.Shape, DType]] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(name, inputs, **facts)
        self.joins_groups = self.indexed_load
        self.__dict__["portable"] = portable  # the record's own definition
        self.result = result  # (inputs with shape and dtype, **params) -> shape and dtype
        self.constant = constant
        self.linear = tuple(linear)
        self.batch = batch  # (inputs, all with the batch axis first, **params)
        self.jvp_rule = jvp
        self.set_rules(vjp)
        self.composed = not vjp and not constant

    def batched(
        self, values: Sequence[Tensor], flags: Sequence[bool], size: int, params: dict[str, Any]
    ) -> Tensor:
        """The op with one more leading axis; `flags` says which inputs have it already."""
        if self.batch is None:
            raise NoRule(self.name)
        full = [
            v if has else v.expand_dims(0).broadcast_to((size, *v.shape))
            for v, has in zip(values, flags, strict=True)
        ]
        return self.batch(full, **params)

    def jvp(
        self,
        out: Tensor,
        inputs: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        params: dict[str, Any],
    ) -> Tensor | None:
        if self.constant:
            return None
        moving = [i for i, t in enumerate(tangents) if t is not None]
        if self.jvp_rule is not None:
            return self.jvp_rule(out, inputs, tangents, **params)
        if not all(i in self.linear for i in moving):
            raise NoRule(self.name)
        total: Tensor | None = None
        for i in moving:
            swapped: list[Any] = list(inputs)
            swapped[i] = tangents[i]
            part = apply(self, *swapped, **params)
            total = part if total is None else total + part
        return total
