"""Ops of neural networks: softmax, normalisation, dropout, embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everygrad.amp.policy import policy, whole
from everygrad.core import shapes
from everygrad.core.context import intercepted, tracing
from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import CPU, apply
from everygrad.errors import ArgumentError, AxisError, DtypeError, OutOfRangeError, ShapeError
from everygrad.ops.elementwise.basic import rsqrt, where
from everygrad.ops.elementwise.math import exp, log
from everygrad.ops.index.gather import check_index, taken
from everygrad.ops.random import generators
from everygrad.ops.record import samples as s
from everygrad.ops.record.arguments import taking
from everygrad.ops.record.families import Kernel, check_kind
from everygrad.ops.record.keywords import cast_first, with_names
from everygrad.ops.record.row_calls import rows, scaled_rows
from everygrad.ops.record.spec import REGISTRY, Op, composite, refuse, register, same, sample
from everygrad.ops.record.splits import other_axes


def _shifted(x: Tensor, axis: int) -> Tensor:
    return x - x.max(axis=axis, keepdims=True).detach()


def _softmax_portable(x: Tensor, axis: int) -> Tensor:
    e = exp(_shifted(x, axis))
    return e / e.sum(axis=axis, keepdims=True)


def _softmax_vjp(g: Tensor, out: Tensor, axis: int) -> Tensor:
    """The Jacobian diag(out) - out out^T times g; it is symmetric and serves both modes."""
    return apply(SOFTMAX_VJP, g, out, axis=axis)


def _softmax_vjp_portable(g: Tensor, out: Tensor, axis: int) -> Tensor:
    gout = g * out
    return gout - out * gout.sum(axis=axis, keepdims=True)


def _symmetric(move: Any) -> Any:
    """Forward mode of an op whose Jacobian is symmetric: the reverse rule on the tangent."""
    return lambda out, inputs, tangents, axis: move(tangents[0], out, axis)


def _rows(op: Callable[[], Kernel]) -> Any:
    return lambda xs, axis: apply(op(), *xs, axis=axis + 1)


SOFTMAX: Kernel = Kernel(
    "softmax",
    _softmax_portable,
    ("x",),
    (_softmax_vjp,),
    jvp=_symmetric(_softmax_vjp),
    batch=_rows(lambda: SOFTMAX),
    precision="float32",
    splits=other_axes,
)
# no rules: differentiated again through the portable definition
SOFTMAX_VJP: Kernel = Kernel(
    "softmax_vjp",
    _softmax_vjp_portable,
    ("g", "out"),
    batch=_rows(lambda: SOFTMAX_VJP),
    splits=other_axes,
)


def _log_softmax_portable(x: Tensor, axis: int) -> Tensor:
    moved = _shifted(x, axis)
    return moved - log(exp(moved).sum(axis=axis, keepdims=True))


def _log_softmax_vjp(g: Tensor, out: Tensor, axis: int) -> Tensor:
    return apply(LOG_SOFTMAX_VJP, g, out, axis=axis)


LOG_SOFTMAX: Kernel = Kernel(
    "log_softmax",
    _log_softmax_portable,
    ("x",),
    (_log_softmax_vjp,),
    jvp=lambda out, inputs, tangents, axis: (
        tangents[0] - (exp(out) * tangents[0]).sum(axis=axis, keepdims=True)
    ),
    batch=_rows(lambda: LOG_SOFTMAX),
    precision="float32",
    splits=other_axes,
)
LOG_SOFTMAX_VJP: Kernel = Kernel(
    "log_softmax_vjp",
    lambda g, out, axis: g - exp(out) * g.sum(axis=axis, keepdims=True),
    ("g", "out"),
    batch=_rows(lambda: LOG_SOFTMAX_VJP),
    splits=other_axes,
)


def _along(op: str, x: Tensor, axis: int) -> int:
    check_kind(op, x.dtype, "real float")
    return shapes.axis_index(axis, x.ndim, op)


# an axis without elements has no largest, and needs none: the result is empty, as x is


def softmax(x: Tensor, axis: int = -1, **names: Any) -> Tensor:
    """exp(x) scaled to sum to 1 along the axis."""
    if names:
        return with_names(softmax, *cast_first(x, names), axis)
    at = _along("softmax", x, axis)
    return apply(SOFTMAX, x, axis=at) if x.shape[at] else same(x)


def log_softmax(x: Tensor, axis: int = -1, **names: Any) -> Tensor:
    """The logarithm of softmax, without going through it."""
    if names:
        return with_names(log_softmax, *cast_first(x, names), axis)
    at = _along("log_softmax", x, axis)
    return apply(LOG_SOFTMAX, x, axis=at) if x.shape[at] else same(x)


softmax = rows(SOFTMAX, taking(softmax, scalar_rows="row"), "softmax_vjp")
log_softmax = rows(LOG_SOFTMAX, taking(log_softmax, scalar_rows="row"), "log_softmax_vjp")


def _row_samples() -> Any:
    yield sample(s.real(2, 3))
    yield sample(s.real(2, 3, 4), axis=1)
    yield sample(s.real(5), axis=0)
    yield sample(s.real(0, 3), axis=-1)
    yield sample(s.real(2, 0, 3), axis=1)
    yield sample(s.real(0))


def _row_refusals(name: str) -> tuple[Any, ...]:
    return (
        refuse(AxisError, f"{name}: axis 2 is out of range", s.real(2, 3), axis=2),
        refuse(DtypeError, f"{name}: does not take int64", s.integers(3)),
    )


register(
    SOFTMAX,
    softmax,
    methods=("softmax",),
    by_itself=True,
    kinds="real float",
    reference="tests.support.references.basic:softmax",
    samples=_row_samples,
    refuses=_row_refusals("softmax"),
)
register(
    LOG_SOFTMAX,
    log_softmax,
    methods=("log_softmax",),
    by_itself=True,
    kinds="real float",
    reference="tests.support.references.basic:log_softmax",
    samples=_row_samples,
    refuses=_row_refusals("log_softmax"),
)
for _op in (SOFTMAX_VJP, LOG_SOFTMAX_VJP):
    register(
        _op,
        (lambda op: lambda g, out, axis: apply(op, g, out, axis=axis))(_op),
        reference=f"tests.support.references.basic:{_op.name}",
        namespace="internal",
        samples=lambda: iter((sample(s.real(2, 3), s.real(2, 3, seed=1), 1),)),
    )

# --- normalisation -------------------------------------------------------------------------------


def _standardize_portable(x: Tensor, axes: shapes.Shape, eps: float) -> Tensor:
    off = x - x.mean(axis=axes, keepdims=True)
    return off * rsqrt((off * off).mean(axis=axes, keepdims=True) + eps)


class _Standardize(Kernel):
    """(x - mean) / sqrt(variance + eps) along axes. Its Jacobian is symmetric."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        out, x = self.restore(node, create_graph)
        return [apply(STANDARDIZE_VJP, g, out, x, **node.params)]

    def jvp(self, out: Tensor, inputs: Any, tangents: Any, params: dict[str, Any]) -> Tensor | None:
        return (
            None
            if tangents[0] is None
            else apply(STANDARDIZE_VJP, tangents[0], out, inputs[0], **params)
        )


def _standardize_vjp_portable(
    g: Tensor, out: Tensor, x: Tensor, axes: shapes.Shape, eps: float
) -> Tensor:
    scale = rsqrt(x.var(axis=axes, keepdims=True) + eps)
    along = (g * out).mean(axis=axes, keepdims=True)
    return scale * (g - g.mean(axis=axes, keepdims=True) - out * along)


def _axes_batch(op: Callable[[], Kernel]) -> Any:
    return lambda xs, axes, eps: apply(op(), *xs, axes=tuple(a + 1 for a in axes), eps=eps)


STANDARDIZE: Kernel = _Standardize(
    "standardize",
    _standardize_portable,
    ("x",),
    (lambda g, out, x: g,),
    batch=_axes_batch(lambda: STANDARDIZE),
    precision="float32",
    splits=other_axes,
)
STANDARDIZE_VJP: Kernel = Kernel(
    "standardize_vjp",
    _standardize_vjp_portable,
    ("g", "out", "x"),
    batch=_axes_batch(lambda: STANDARDIZE_VJP),
    splits=other_axes,
)


def standardize(x: Tensor, axis: Any = -1, eps: float = 1e-5) -> Tensor:
    """x moved and scaled to mean 0 and variance 1 along the axes."""
    check_kind("standardize", x.dtype, "real float")
    axes = tuple(sorted(shapes.axis_tuple(axis, x.ndim, "standardize")))
    return apply(STANDARDIZE, x, axes=axes, eps=float(eps))


register(
    STANDARDIZE,
    standardize,
    scalar_rows="row",
    kinds="real float",
    reference="tests.support.references.basic:standardize",
    samples=lambda: iter((sample(s.real(2, 4)), sample(s.real(3, 2, 4), axis=(0, 2), eps=1e-3))),
    refuses=(refuse(AxisError, "standardize: axis 2", s.real(2, 3), axis=2),),
)
register(
    STANDARDIZE_VJP,
    lambda g, out, x, axes, eps: apply(STANDARDIZE_VJP, g, out, x, axes=axes, eps=eps),
    reference="tests.support.references.basic:standardize_vjp",
    namespace="internal",
    samples=lambda: iter(
        (sample(s.real(2, 4), s.real(2, 4, seed=1), s.real(2, 4, seed=2), (1,), 1e-5),)
    ),
)


class _ScaledStandardize(Kernel):
    """layer_norm. Recorded where `scales_at_once` says so; elsewhere its definition is."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        _, x, weight, _ = self.restore(node, create_graph)
        axes, eps = node.params["axes"], node.params["eps"]
        to_x, to_weight, to_bias = (parent is not None for parent in node.parents)
        arrays = all(t is None or type(t._data) is np.ndarray for t in (g, x, weight))
        plain = not create_graph and arrays and not intercepted()
        by_x = by_weight = by_bias = None
        if plain and to_x and to_weight and to_bias and axes == (x.ndim - 1,):
            found = CPU.norm_gradients(g._data, x._data, weight._data, eps)
            if found is not None:
                return [wrap(one) for one in found]
        if not plain and (to_x or to_weight):
            unit = apply(STANDARDIZE, x, axes=axes, eps=eps)
        if to_x:
            if plain:
                by_x = apply(SCALED_STANDARDIZE_VJP, g, x, weight, axes=axes, eps=eps)
            else:
                by_x = apply(STANDARDIZE_VJP, g * weight, unit, x, axes=axes, eps=eps)
        if to_weight:
            terms = apply(TIMES_STANDARDIZED, g, x, axes=axes, eps=eps) if plain else g * unit
            by_weight = over_rows(terms)
        if to_bias:
            by_bias = over_rows(g)
        return [by_x, by_weight, by_bias]


def over_rows(x: Tensor) -> Tensor:
    """The sum over all axes but the last."""
    return apply(REGISTRY["sum"], x, axes=tuple(range(x.ndim - 1)), keepdims=False)


# layer_norm over the last axis, in one kernel
SCALED_STANDARDIZE: Kernel = _ScaledStandardize(
    "scaled_standardize",
    lambda x, weight, bias, axes, eps: apply(STANDARDIZE, x, axes=axes, eps=eps) * weight + bias,
    ("x", "weight", "bias"),
    (lambda g, x, weight: g, lambda g, x: g, lambda g: g),
    precision="float32",
)
# its derivative by x, and the terms of that by the weight
SCALED_STANDARDIZE_VJP: Kernel = Kernel(
    "scaled_standardize_vjp",
    lambda g, x, weight, axes, eps: apply(
        STANDARDIZE_VJP,
        g * weight,
        apply(STANDARDIZE, x, axes=axes, eps=eps),
        x,
        axes=axes,
        eps=eps,
    ),
    ("g", "x", "weight"),
)
TIMES_STANDARDIZED: Kernel = Kernel(
    "times_standardized",
    lambda g, x, axes, eps: g * apply(STANDARDIZE, x, axes=axes, eps=eps),
    ("g", "x"),
)


def scales_at_once(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether layer_norm or rms_norm is one op: where nothing is differentiated, and on the CPU.
    Elsewhere the ops of its definition join those around them."""
    if x._node is weight._node is bias._node is None:
        return True
    if intercepted() and (tracing.get() is not None or policy() is not None):
        return False
    return type(x._data) is type(weight._data) is type(bias._data) is np.ndarray


register(
    SCALED_STANDARDIZE,
    lambda x, weight, bias, axes, eps: apply(
        SCALED_STANDARDIZE, x, weight, bias, axes=axes, eps=eps
    ),
    reference="tests.support.references.basic:scaled_standardize",
    namespace="internal",
    samples=lambda: iter((sample(s.real(2, 4), s.real(4, seed=1), s.real(4, seed=2), (1,), 1e-5),)),
)
register(
    SCALED_STANDARDIZE_VJP,
    lambda g, x, weight, axes, eps: apply(SCALED_STANDARDIZE_VJP, g, x, weight, axes=axes, eps=eps),
    reference="tests.support.references.basic:scaled_standardize_vjp",
    namespace="internal",
    samples=lambda: iter(
        (sample(s.real(2, 4, seed=3), s.real(2, 4), s.real(4, seed=1), (1,), 1e-5),)
    ),
)
register(
    TIMES_STANDARDIZED,
    lambda g, x, axes, eps: apply(TIMES_STANDARDIZED, g, x, axes=axes, eps=eps),
    reference="tests.support.references.basic:times_standardized",
    namespace="internal",
    samples=lambda: iter((sample(s.real(2, 4, seed=3), s.real(2, 4), (1,), 1e-5),)),
)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """x standardised over its last axes, then scaled by weight and shifted by bias."""
    last = shapes.as_shape(normalized_shape, "layer_norm")
    if not last or x.shape[-len(last) :] != last:
        raise ShapeError(f"layer_norm: {x.shape} does not end in {last}")
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and value.shape != last:
            raise ShapeError(f"layer_norm: {name} {value.shape} must have shape {last}")
    axes = tuple(range(x.ndim - len(last), x.ndim))
    if len(axes) == 1 and weight is not None and bias is not None:
        check_kind("layer_norm", x.dtype, "real float")
        if x.dtype is weight.dtype is bias.dtype and scales_at_once(x, weight, bias):
            return apply(SCALED_STANDARDIZE, x, weight, bias, axes=axes, eps=float(eps))
    out = standardize(x, axes, eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


layer_norm = scaled_rows(SCALED_STANDARDIZE, taking(whole("layer_norm", layer_norm)))
register(
    Op("layer_norm"),
    layer_norm,
    methods=("layer_norm",),
    by_itself=True,
    kinds="real float",
    reference="tests.support.references.basic:layer_norm",
    samples=lambda: iter(
        (
            sample(s.real(2, 4), (4,)),
            sample(s.real(2, 3, 4), (4,), s.real(4, seed=1), s.real(4, seed=2)),
            sample(s.real(2, 3, 4), (3, 4), s.real(3, 4, seed=1), None, 1e-3),
        )
    ),
    refuses=(
        refuse(ShapeError, r"layer_norm: \(2, 4\) does not end in \(3,\)", s.real(2, 4), (3,)),
        refuse(ShapeError, "layer_norm: weight .* must have shape", s.real(2, 4), (4,), s.real(3)),
    ),
    precision="float32",
)

# --- dropout and embedding -----------------------------------------------------------------------


@composite(reference=None)
def dropout(
    x: Tensor, p: float = 0.5, training: bool = True, generator: generators.Generator | None = None
) -> Tensor:
    """Each element 0 with probability p, else scaled by 1 / (1 - p); x itself if not training."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p must be between 0 and 1, got {p!r}")
    check_kind("dropout", x.dtype, "float")
    if not training or p == 0:
        return same(x)
    if p == 1:
        return x * 0.0
    keep = generators.bernoulli(1 - p, x.shape, generator=generator, device=x.device)
    return where(keep, x * (1 / (1 - p)), 0.0)


@composite(
    namespace="nn",  # users find nn.functional.embedding, which has options
    methods=(),
    reference="tests.support.references.basic:embedding",
    samples=lambda: iter(
        (
            sample(np.array([0, 2, 2]), s.real(4, 3)),
            sample(np.array([[1], [3]]), s.real(4, 2)),
            sample(np.array([[0, 1]], np.uint8), s.real(4, 2)),
        )
    ),
    refuses=(
        refuse(
            OutOfRangeError,
            "index 4 is out of range for an axis of size 4",
            np.array([4]),
            s.real(4, 3),
        ),
        refuse(
            DtypeError, "embedding: the index must be an integer tensor", s.real(2), s.real(4, 3)
        ),
        refuse(ShapeError, "embedding: the table must have 2 dimensions", np.array([0]), s.real(4)),
    ),
)
def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """The rows of the table `weight` that the indices name."""
    check_index("embedding", indices)
    if weight.ndim != 2:
        raise ShapeError(f"embedding: the table must have 2 dimensions, got {weight.shape}")
    return taken(weight, indices, axis=0)
