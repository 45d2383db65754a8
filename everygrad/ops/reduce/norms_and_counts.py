"""Reductions made of the plain ones: norms, counts, and those that skip NaN."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, AxisError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import abs, imag, intrinsic, isnan, real, sign, where
from everygrad.ops.elementwise.math import pow
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Function, check_kind, elementwise
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.reduce.reductions import Axis, in_pieces, max, min, sum


def _samples() -> Any:
    yield sample(s.real(2, 3), axis=-1, keepdims=True)
    yield sample(s.real(2, 2, 2), axis=(0, -1))


def _refusals(by: str) -> tuple[Any, ...]:
    return (
        refuse(AxisError, f"{by}: axis 2 is out of range", s.real(2, 3), axis=2),
        refuse(ShapeError, f"{by}: shape .* has no elements", s.real(0, 3), axis=0),
    )


@composite(
    torch="torch:amax",
    kinds="ordered",
    reference=np.max,
    samples=_samples,
    refuses=_refusals("max"),
)
def amax(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """`max` under PyTorch's name: NaN wins, equal elements share the gradient evenly."""
    axis = shapes.reduction_axes(axis, x.ndim, "amax")
    return max(x, axis, keepdims)


@composite(
    torch="torch:amin",
    kinds="ordered",
    reference=np.min,
    samples=_samples,
    refuses=_refusals("min"),
)
def amin(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """`min` under PyTorch's name: NaN wins, equal elements share the gradient evenly."""
    axis = shapes.reduction_axes(axis, x.ndim, "amin")
    return min(x, axis, keepdims)


@composite(
    gives="index",
    flat=True,
    reference=np.count_nonzero,
    samples=lambda: iter(
        (
            sample(np.array([[0.0, 1.0, np.nan], [0.0, 0.0, -2.0]]), axis=1, keepdims=True),
            sample(s.booleans(2, 3)),
        )
    ),
    refuses=(refuse(AxisError, "count_nonzero: axis 2 is out of range", s.real(2, 3), axis=2),),
)
def count_nonzero(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements are not 0; NaN is not."""
    axis = shapes.reduction_axes(axis, x.ndim, "count_nonzero")

    def of(part: Tensor) -> Tensor:
        there = part if part.dtype is dtypes.bool_ else part != 0
        return sum(there.astype(dtypes.int64), axis=axis, keepdims=keepdims)

    return in_pieces(x, axis, keepdims, of, lambda a, b: a + b)


# --- without NaN ---------------------------------------------------------------------------------


def _holey() -> Any:
    """Some NaN, not at the same places in each row."""
    x = s.real(2, 3)
    x[0, 1] = x[1, 2] = np.nan
    return x


def _nan_samples() -> Any:
    yield sample(_holey())
    yield sample(_holey(), axis=1, keepdims=True)


@composite(
    kinds="any",
    gives="accumulated",
    torch="torch:nansum",
    reference=np.nansum,
    samples=_nan_samples,
    refuses=(refuse(AxisError, "nansum: axis 2 is out of range", s.real(2, 3), axis=2),),
)
def nansum(x: Tensor, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum of all elements that are not NaN."""
    axis = shapes.reduction_axes(axis, x.ndim, "nansum")
    if x.dtype.is_differentiable:
        x = where(isnan(x), 0.0, x)
    return sum(x, axis, dtype, keepdims)


@composite(
    kinds="float",
    torch="torch:nanmean",
    reference=np.nanmean,
    samples=_nan_samples,
    refuses=(
        refuse(AxisError, "nanmean: axis 2 is out of range", s.real(2, 3), axis=2),
        refuse(DtypeError, "nanmean: does not take int64", s.integers(3)),
    ),
)
def nanmean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean of all elements that are not NaN; NaN where there are none."""
    axis = shapes.reduction_axes(axis, x.ndim, "nanmean")
    check_kind("nanmean", x.dtype, "float")
    half = x.dtype in (dtypes.float16, dtypes.bfloat16)
    wide = x.astype(dtypes.float32) if half else x
    there = ~isnan(wide)
    count = sum(there.astype(dtypes.real_of(wide.dtype)), axis, keepdims=keepdims)
    return (sum(where(there, wide, 0.0), axis, keepdims=keepdims) / count).astype(x.dtype)


def _without_nan(extreme: Any, worst: float, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    if not x.dtype.is_float:
        return extreme(x, axis, keepdims)
    odd = isnan(x)
    found = extreme(where(odd, worst, x), axis, keepdims)
    return where(odd.all(axis=axis, keepdims=keepdims), math.nan, found)


@composite(
    kinds="ordered",
    torch="tests.support.beside_torch:nanmax",
    reference=np.nanmax,
    samples=_nan_samples,
    refuses=_refusals("max"),
)
def nanmax(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element that is not NaN; NaN where there is none."""
    axis = shapes.reduction_axes(axis, x.ndim, "nanmax")
    return _without_nan(max, -math.inf, x, axis, keepdims)


@composite(
    kinds="ordered",
    torch="tests.support.beside_torch:nanmin",
    reference=np.nanmin,
    samples=_nan_samples,
    refuses=_refusals("min"),
)
def nanmin(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element that is not NaN; NaN where there is none."""
    axis = shapes.reduction_axes(axis, x.ndim, "nanmin")
    return _without_nan(min, math.inf, x, axis, keepdims)


# --- norms ---------------------------------------------------------------------------------------


def _root_dx(g: Any, out: Any) -> Any:
    flat = out == 0
    return where(flat, 0.0, 0.5 * g / where(flat, 1.0, out))


root: Function = elementwise(
    "root",
    intrinsic("sqrt"),
    (_root_dx,),
    kinds="real float",
    doc="The square root, whose slope at 0 is taken as 0 instead of infinity.",
    methods=(),
    namespace="internal",
    reference=np.sqrt,
    samples=s.unary(0.1),
)


def _norm_reference(x: Any, p: float = 2.0, axis: Any = None, keepdims: bool = False) -> Any:
    axes = tuple(range(x.ndim)) if axis is None else axis
    return np.linalg.vector_norm(x, axis=axes, keepdims=keepdims, ord=p)


@composite(
    kinds="float",
    torch="torch.linalg:vector_norm",
    reference=_norm_reference,
    samples=lambda: iter(
        (
            sample(s.real(2, 3)),
            sample(s.real(2, 3), 3.0, axis=1, keepdims=True),
            sample(s.real(2, 1, 2), math.inf, axis=(0, 2)),
            sample(s.real(3), -1.5),
        )
    ),
    refuses=(
        refuse(AxisError, "norm: axis 2 is out of range", s.real(2, 3), axis=2),
        refuse(DtypeError, "norm: does not take int64", s.integers(3)),
        refuse(ArgumentError, "norm: p must be a number, got 'nuc'.*linalg", s.real(2, 2), "nuc"),
        refuse(ShapeError, "norm: shape .* has no elements", s.real(0), math.inf),
    ),
)
def norm(x: Tensor, p: Any = 2.0, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The p-norm of the elements along the axes as one vector: sum(|x|^p)^(1/p).

    p may be any number: inf and -inf are the largest and the smallest |x|, 0 counts what is not 0.
    The derivative is 0 at 0.
    """
    check_kind("norm", x.dtype, "float")
    p = 2.0 if p is None or (isinstance(p, str) and p == "fro") else p  # of all elements: the same
    if isinstance(p, bool) or not isinstance(p, int | float):
        raise ArgumentError(f"norm: p must be a number, got {p!r}; see eg.linalg for matrix norms")
    axes = tuple(sorted(shapes.reduction_axes(axis, x.ndim, "norm")))
    if math.isinf(p) and 0 in [x.shape[a] for a in axes]:
        raise ShapeError(f"norm: shape {x.shape} has no elements along axis {axis} to choose from")
    half = x.dtype in (dtypes.float16, dtypes.bfloat16)
    wide = x.astype(dtypes.float32) if half else x
    return _norm(wide, float(p), axes, keepdims).astype(dtypes.real_of(x.dtype))


def _norm(x: Tensor, p: float, axes: shapes.Shape, keepdims: bool) -> Tensor:
    if p == 2:
        parts = real(x) * real(x) + imag(x) * imag(x) if x.dtype.is_complex else x * x
        return root(sum(parts, axes, keepdims=keepdims))
    size = abs(x)
    if p == math.inf:
        return max(size, axes, keepdims)
    if p == -math.inf:
        return min(size, axes, keepdims)
    if p == 0:
        return sum(sign(size), axes, keepdims=keepdims)
    if p == 1:
        return sum(size, axes, keepdims=keepdims)
    nothing = size == 0  # powers below 1 have no slope there
    powers = where(nothing, 0.0 if p > 0 else math.inf, pow(where(nothing, 1.0, size), p))
    total = sum(powers, axes, keepdims=keepdims)
    flat = (total == 0) | (total == math.inf)
    end = where(total == 0, 0.0 if p > 0 else math.inf, math.inf if p > 0 else 0.0)
    return where(flat, end, pow(where(flat, 1.0, total), 1.0 / p)).astype(size.dtype)
