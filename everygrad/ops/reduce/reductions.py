"""Reductions: values combined along axes. Sums are pairwise or blocked on every device."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor, Wrapped
from everygrad.dispatch import apply
from everygrad.dtypes import DType
from everygrad.errors import AxisError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import conj, isinf, isnan, real, sqrt, where
from everygrad.ops.elementwise.math import exp, log
from everygrad.ops.python.creation import arange
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel, Reduction, check_kind
from everygrad.ops.record.keywords import cast_first, torch_call, unbiased, with_names
from everygrad.ops.record.spec import composite, refuse, register, same, sample
from everygrad.ops.record.splits import other_axes
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import slice_axis

Axis = int | tuple[int, ...] | None


def _reduction_samples() -> Any:
    yield sample(s.real(2, 3))
    yield sample(s.real(2, 3), axis=0)
    yield sample(s.real(2, 3), axis=-1, keepdims=True)
    yield sample(s.real(2, 3, 4), axis=(0, -1))
    yield sample(s.real(3, 3), axis=1)
    yield sample(s.real())
    yield sample(s.real(5), axis=0)


def _bad_axis(name: str) -> tuple[Any, ...]:
    return (
        refuse(AxisError, f"{name}: axis 2 is out of range for 2 dimensions", s.real(2, 3), axis=2),
        refuse(AxisError, f"{name}: .*names a dimension twice", s.real(2, 3), axis=(0, -2)),
    )


def _reduce(op: Reduction, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    check_kind(op.name, x.dtype, op.kinds)
    ndim = len(x.shape)
    axes = (
        tuple(range(ndim))
        if axis is None
        else tuple(sorted(shapes.reduction_axes(axis, ndim, op.name)))
    )
    if keepdims is not False and keepdims is not True:
        keepdims = shapes.as_bool(keepdims, op.name, "keepdims")
    return apply(op, x, axes=axes, keepdims=keepdims)


def _accumulated(x: Tensor, dtype: Any) -> Tensor:
    if dtype is not None:
        return x.astype(dtype)
    return x if x.dtype.is_differentiable else x.astype(dtypes.accumulator(x.dtype))


_LARGE = 1 << 22  # elements from which conversions to wider integers are made in pieces
_PIECES = 64


def in_pieces(
    x: Tensor,
    axis: Axis,
    keepdims: bool,
    of: Callable[[Tensor], Tensor],
    both: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """of(x), a reduction over the axis; of what is large, slices of x one after the other, `both`
    of whose results are brought together: a whole copy in a wider dtype would take eight times
    the memory of small integers. Compiled functions make none."""
    if x.size < 2 * _LARGE or isinstance(x._data, Wrapped):
        return of(x)
    axes = shapes.axis_tuple(axis, x.ndim, "reduction")
    along = builtins.max(range(x.ndim), key=lambda a: x.shape[a])
    n = x.shape[along]
    step = -(-n // builtins.min(_PIECES, x.size // _LARGE))
    parts = [
        of(slice_axis(x, along, first, builtins.min(step, n - first)))
        for first in range(0, n, step)
    ]
    if along in axes:
        return functools.reduce(both, parts)
    gone = 0 if keepdims else len([a for a in axes if a < along])
    return concat(parts, axis=along - gone)


SUM: Reduction = Reduction("sum", "add", precision="float32")
_SUMMED_AS_THEY_ARE = frozenset(d.np for d in (*dtypes.FLOATS, *dtypes.COMPLEX))


def sum(
    x: Tensor, axis: Axis = None, dtype: Any = None, keepdims: bool = False, **names: Any
) -> Tensor:
    """The sum along the axes, or of all elements; integers are summed in 64 bits. It begins with
    0.0: of -0.0 alone it is 0.0."""
    if names:
        return with_names(sum, names, x, axis, dtype, keepdims)
    if axis is dtype is None and keepdims is False and x._data.dtype in _SUMMED_AS_THEY_ARE:
        return apply(SUM, x, axes=tuple(range(len(x._data.shape))), keepdims=False)  # the commonest
    if dtype is True or dtype is False:  # sum(x, dim, keepdim)
        dtype, keepdims = None, dtype
    if dtype is None and x.dtype.itemsize < 8 and not x.dtype.is_differentiable:
        wide = dtypes.accumulator(x.dtype)
        of = lambda part: _reduce(SUM, part.astype(wide), axis, keepdims)  # noqa: E731
        return in_pieces(x, axis, keepdims, of, lambda a, b: a + b)
    return _reduce(SUM, _accumulated(x, dtype), axis, keepdims)


register(
    SUM,
    sum,
    methods=("sum",),
    gives="accumulated",
    reference=np.sum,
    refuses=_bad_axis("sum"),
    samples=lambda: iter((*_reduction_samples(), sample(s.real(0, 3), axis=0), sample(s.real(0)))),
)

MEAN: Reduction = Reduction("mean", "add", kinds="float", mean=True, precision="float32")


def mean(x: Tensor, axis: Axis = None, keepdims: bool = False, **names: Any) -> Tensor:
    """The arithmetic mean along the axes, or of all elements."""
    if names:
        return with_names(mean, *cast_first(x, names), axis, keepdims)
    return _reduce(MEAN, x, axis, keepdims)


register(
    MEAN,
    mean,
    methods=("mean",),
    reference=np.mean,
    samples=_reduction_samples,
    refuses=(
        *_bad_axis("mean"),
        refuse(DtypeError, "mean: does not take int64; cast", s.integers(3)),
    ),
)


def _extreme(x: Tensor, out: Tensor, axes: shapes.Shape) -> Tensor:
    """Ties share the gradient evenly; a NaN is the result and takes the gradient."""
    hit = ((x == out) | ~(x == x)).astype(x.dtype)
    return hit / hit.sum(axis=axes, keepdims=True)


def _nonempty(op: str, x: Tensor, axis: Axis) -> None:
    axes = shapes.reduction_axes(axis, len(x.shape), op)
    if 0 in [x.shape[a] for a in axes]:
        raise ShapeError(f"{op}: shape {x.shape} has no elements along axis {axis} to choose from")


MAX: Reduction = Reduction("max", "max", _extreme, kinds="ordered")
MIN: Reduction = Reduction("min", "min", _extreme, kinds="ordered")


def max(x: Tensor, *dim: Any, axis: Axis = None, keepdims: bool = False, **names: Any) -> Any:
    """The largest element. NaN wins, 0.0 is above -0.0; equal largest elements share the gradient
    evenly.

    An axis by position or as `dim=` is PyTorch's call, which gives the indices too:
    `values, indices = x.max(1)`. With another tensor by position it is `maximum`.
    """
    if dim or names:
        return torch_call("extreme", "max", x, dim, axis, keepdims, names)
    _nonempty("max", x, axis)
    return _reduce(MAX, x, axis, keepdims)


def min(x: Tensor, *dim: Any, axis: Axis = None, keepdims: bool = False, **names: Any) -> Any:
    """The smallest element. NaN wins, -0.0 is below 0.0; equal smallest elements share the gradient
    evenly.

    An axis by position or as `dim=` is PyTorch's call, which gives the indices too:
    `values, indices = x.min(1)`. With another tensor by position it is `minimum`.
    """
    if dim or names:
        return torch_call("extreme", "min", x, dim, axis, keepdims, names)
    _nonempty("min", x, axis)
    return _reduce(MIN, x, axis, keepdims)


def _empty(name: str) -> Any:
    return refuse(ShapeError, f"{name}: shape .* has no elements", s.real(0, 3), axis=0)


register(
    MAX,
    max,
    methods=("max",),
    reference=np.max,
    samples=_reduction_samples,
    refuses=(*_bad_axis("max"), _empty("max")),
)
register(
    MIN,
    min,
    methods=("min",),
    reference=np.min,
    samples=_reduction_samples,
    refuses=(*_bad_axis("min"), _empty("min")),
)


def _prod_portable(x: Tensor, axes: shapes.Shape, keepdims: bool) -> Tensor:
    """Halves multiplied together again and again: right for zeros, to every order."""
    out_shape = shapes.reduced(x.shape, axes, keepdims)
    kept = [a for a in range(x.ndim) if a not in axes]
    count = shapes.size_of(tuple(x.shape[a] for a in axes))
    x = x.permute_dims((*kept, *axes)).reshape((*(x.shape[a] for a in kept), count))
    last = x.ndim - 1
    if count == 0:
        return (x.sum(axis=last) + 1).reshape(out_shape)
    while (n := x.shape[last]) > 1:
        half = n // 2
        pairs = slice_axis(x, last, 0, half) * slice_axis(x, last, half, half)
        x = concat([pairs, slice_axis(x, last, n - 1, 1)], axis=last) if n % 2 else pairs
    return x.reshape(out_shape)


PROD: Kernel = Kernel("prod", _prod_portable, ("x",), precision="float32", splits=other_axes)


def prod(x: Tensor, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product along the axes, or of all elements."""
    if dtype is True or dtype is False:  # prod(x, dim, keepdim)
        dtype, keepdims = None, dtype
    axes = tuple(sorted(shapes.reduction_axes(axis, len(x.shape), "prod")))

    def of(part: Tensor) -> Tensor:
        return apply(PROD, _accumulated(part, dtype), axes=axes, keepdims=bool(keepdims))

    if dtype is None and x.dtype.itemsize < 8 and not x.dtype.is_differentiable:
        return in_pieces(x, axes, keepdims, of, lambda a, b: a * b)
    return of(x)


register(
    PROD,
    prod,
    methods=("prod",),
    gives="accumulated",
    reference=np.prod,
    refuses=_bad_axis("prod"),
    samples=lambda: iter(
        (
            *_reduction_samples(),
            sample(np.array([2.0, 0.0, 3.0])),
            sample(np.array([0.0, 0.0, 3.0])),
            sample(s.real(0)),
        )
    ),
)

ANY: Reduction = Reduction("any", "or", constant=True, kinds="bool")
ALL: Reduction = Reduction("all", "and", constant=True, kinds="bool")


def any(x: Tensor, axis: Axis = None, keepdims: bool = False, **names: Any) -> Tensor:
    """Whether some element is true (not 0)."""
    if names:
        return with_names(any, names, x, axis, keepdims)
    return _reduce(ANY, _truth(x), axis, keepdims)


def all(x: Tensor, axis: Axis = None, keepdims: bool = False, **names: Any) -> Tensor:
    """Whether every element is true (not 0)."""
    if names:
        return with_names(all, names, x, axis, keepdims)
    return _reduce(ALL, _truth(x), axis, keepdims)


def _truth(x: Tensor) -> Tensor:
    return x if x.dtype is dtypes.bool_ else x != 0


def _bool_samples() -> Any:
    yield sample(s.booleans(2, 3))
    yield sample(s.booleans(2, 3), axis=0)
    yield sample(s.booleans(2, 3), axis=(0, 1), keepdims=True)
    yield sample(s.booleans(0))
    yield sample(s.real(3))


register(
    ANY, any, methods=("any",), reference=np.any, samples=_bool_samples, refuses=_bad_axis("any")
)
register(
    ALL, all, methods=("all",), reference=np.all, samples=_bool_samples, refuses=_bad_axis("all")
)


def _arg_portable(extreme: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def portable(x: Tensor, axis: int, keepdims: bool) -> Tensor:
        best = extreme(x, axis=axis, keepdims=True)
        hit = (x == best) | ~(x == x) if x.dtype.is_float else x == best
        n = x.shape[axis]
        place = arange(n, device=x.device).reshape((-1,) + (1,) * (x.ndim - axis - 1))
        return min(where(hit, place, n), axis=axis, keepdims=keepdims)

    return portable


def _arg_kernel(name: str, extreme: Callable[..., Tensor]) -> Kernel:
    def batch(xs: list[Tensor], axis: int, keepdims: bool) -> Tensor:
        return apply(op, xs[0], axis=axis + 1, keepdims=keepdims)

    op = Kernel(name, _arg_portable(extreme), ("x",), constant=True, batch=batch, splits=other_axes)
    return op


ARGMAX = _arg_kernel("argmax", max)
ARGMIN = _arg_kernel("argmin", min)


def _arg(op: Kernel, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    check_kind(op.name, x.dtype, "ordered")
    if axis is None:
        found = _arg(op, x.reshape(-1), 0, False)
        return found.reshape((1,) * x.ndim) if keepdims else found
    if x.ndim == 0 and not shapes.reduction_axes(axis, 0, op.name):
        return _arg(op, x.reshape(1), 0, False)
    at = shapes.axis_index(axis, x.ndim, op.name)
    _nonempty(op.name, x, at)
    return apply(op, x, axis=at, keepdims=bool(keepdims))


def argmax(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first largest element; of the first NaN if there is one."""
    return _arg(ARGMAX, x, axis, keepdims)


def argmin(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element; of the first NaN if there is one."""
    return _arg(ARGMIN, x, axis, keepdims)


def _arg_samples() -> Any:
    yield sample(s.real(2, 3))
    yield sample(s.real(2, 3), axis=0)
    yield sample(s.real(2, 3, 4), axis=-2, keepdims=True)
    yield sample(np.array([1.0, 3.0, 3.0, 0.0]), axis=0)
    yield sample(s.integers(6))


for _op, _function, _ref in ((ARGMAX, argmax, np.argmax), (ARGMIN, argmin, np.argmin)):
    register(
        _op,
        _function,
        kinds="ordered",
        gives="index",
        methods=(_op.name,),
        reference=_ref,
        samples=_arg_samples,
        refuses=(refuse(AxisError, f"{_op.name}: axis 2", s.real(2, 3), axis=2), _empty(_op.name)),
    )

# --- made of the above ---------------------------------------------------------------------------


def _wide(x: Tensor) -> tuple[Tensor, DType]:
    """Half floats widened for a computation of several steps, and the dtype to go back to."""
    half = x.dtype in (dtypes.float16, dtypes.bfloat16)
    return (x.astype(dtypes.float32) if half else x), x.dtype


def _variance_samples() -> Any:
    for one in _reduction_samples():
        if one.args[0].ndim:
            yield one
    yield sample(s.real(4, 3), axis=0, correction=1)


def _reference(fn: Any) -> Any:
    return lambda x, axis=None, correction=0, keepdims=False: fn(
        x, axis=axis, ddof=correction, keepdims=keepdims
    )


@composite(
    kinds="float",
    reference=_reference(np.var),
    samples=_variance_samples,
    refuses=(
        *_bad_axis("var"),
        refuse(DtypeError, "var: does not take int64", s.integers(3)),
    ),
    precision="float32",
)
def var(
    x: Tensor,
    axis: Axis = None,
    correction: float = 0.0,
    keepdims: bool = False,
    **names: Any,
) -> Tensor:
    """The variance: squares of the distances from the mean, summed, over (count - correction).

    That of complex elements is real. Where the correction leaves nothing to divide by, infinity, or
    NaN if there is no distance, as in NumPy and PyTorch. With `dim=` it is PyTorch's call, whose
    correction is 1 where none is given.
    """
    if names:
        return with_names(var, unbiased(names, correction), x, axis, keepdims=keepdims)
    check_kind("var", x.dtype, "float")
    axes = shapes.reduction_axes(axis, x.ndim, "var")
    x, dtype = _wide(x)
    off = x - mean(x, axis=axes, keepdims=True)
    count = shapes.size_of(tuple(x.shape[a] for a in axes))
    squares = real(off * conj(off)) if dtype.is_complex else off * off
    total = sum(squares, axis=axes, keepdims=keepdims)
    left = count - correction
    return (total / (float(left) if left > 0 else 0.0)).astype(dtypes.real_of(dtype))


@composite(
    kinds="float",
    reference=_reference(np.std),
    samples=_variance_samples,
    refuses=_bad_axis("std"),
    precision="float32",
)
def std(
    x: Tensor,
    axis: Axis = None,
    correction: float = 0.0,
    keepdims: bool = False,
    **names: Any,
) -> Tensor:
    """The standard deviation, the square root of `var`."""
    if names:
        return with_names(std, unbiased(names, correction), x, axis, keepdims=keepdims)
    check_kind("std", x.dtype, "float")
    axis = shapes.reduction_axes(axis, x.ndim, "std")
    v = var(x, axis, correction, keepdims)
    flat = v == 0  # the slope of sqrt at 0 is infinite; that of equal elements is taken as 0
    return where(flat, v, sqrt(where(flat, 1.0, v)))


@composite(
    kinds="real float",
    reference="scipy.special:logsumexp",
    samples=_reduction_samples,
    refuses=(
        *_bad_axis("logsumexp"),
        refuse(DtypeError, "logsumexp: does not take int64", s.integers(3)),
    ),
    precision="float32",
)
def logsumexp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) without overflow."""
    check_kind("logsumexp", x.dtype, "real float")
    axes = shapes.reduction_axes(axis, x.ndim, "logsumexp")
    if not axes:
        return same(x)
    x, dtype = _wide(x)
    top = max(x, axis=axes, keepdims=True).detach()
    top = where(isinf(top) | isnan(top), 0.0, top)  # inf - inf would be NaN
    total = log(sum(exp(x - top), axis=axes, keepdims=True)) + top
    return total.reshape(shapes.reduced(x.shape, axes, keepdims)).astype(dtype)
