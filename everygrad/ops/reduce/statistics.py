"""Means with variances, covariances and correlations."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import clamp, sqrt
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.keywords import with_names
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.reduce.reductions import Axis, mean, std, var
from everygrad.ops.shape.diagonals import diagonal


def _pair(fn: Any) -> Any:
    """NumPy's mean beside another of its functions."""

    def of(x: Any, axis: Any = None, correction: float = 1.0, keepdims: bool = False) -> Any:
        found = fn(x, axis=axis, ddof=correction, keepdims=keepdims)
        return found, np.mean(x, axis=axis, keepdims=keepdims)

    return of


def _samples() -> Any:
    yield sample(s.real(2, 3))
    yield sample(s.real(2, 3), axis=1, correction=1.0, keepdims=True)


@composite(
    kinds="float",
    methods=(),
    torch=None,
    reference=_pair(np.var),
    samples=_samples,
)
def var_mean(
    x: Tensor,
    axis: Axis = None,
    correction: float = 1.0,
    keepdims: bool = False,
    **names: Any,
) -> tuple[Tensor, Tensor]:
    """The variance and the mean along the axes. Only PyTorch has this: the sum of squares is
    over n - 1, where that of `var`, as NumPy and the Array API have it, is over n."""
    if names:
        pair: tuple[Tensor, Tensor] = with_names(var_mean, names, x, axis, correction, keepdims)
        return pair
    axis = shapes.reduction_axes(axis, x.ndim, "var_mean")
    return var(x, axis, correction, keepdims), mean(x, axis, keepdims)


@composite(
    kinds="float",
    methods=(),
    torch=None,
    reference=_pair(np.std),
    samples=_samples,
)
def std_mean(
    x: Tensor,
    axis: Axis = None,
    correction: float = 1.0,
    keepdims: bool = False,
    **names: Any,
) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean along the axes. Only PyTorch has this: the sum of squares
    is over n - 1, where that of `std`, as NumPy and the Array API have it, is over n."""
    if names:
        pair: tuple[Tensor, Tensor] = with_names(std_mean, names, x, axis, correction, keepdims)
        return pair
    axis = shapes.reduction_axes(axis, x.ndim, "std_mean")
    return std(x, axis, correction, keepdims), mean(x, axis, keepdims)


def _products(op: str, x: Tensor, correction: float) -> Tensor:
    """Sums of products of what variables are off their means, over (count - correction)."""
    check_kind(op, x.dtype, "float")
    if x.ndim not in (1, 2):
        raise ShapeError(f"{op}: takes (variables, observations) or one variable, got {x.shape}")
    rows = x.reshape((1, -1)) if x.ndim == 1 else x
    left = rows.shape[1] - correction
    if left <= 0:
        raise ArgumentError(
            f"{op}: {rows.shape[1]} observations less a correction of {correction} leave none"
        )
    off = rows - mean(rows, axis=1, keepdims=True)
    return (off @ off.conj().matrix_transpose()) / float(left)


@composite(
    kinds="float",
    torch="torch:cov",
    reference=lambda x, correction=1: np.cov(x, ddof=correction),
    samples=lambda: iter(
        (sample(s.real(2, 3)), sample(s.real(4), correction=0), sample(s.real(1, 3)))
    ),
    refuses=(
        refuse(ShapeError, "cov: takes .* got", s.real(2, 2, 2)),
        refuse(ArgumentError, "cov: 1 observations less", s.real(2, 1)),
    ),
)
def cov(x: Tensor, correction: int = 1) -> Tensor:
    """The covariances of variables, the rows of x, as a matrix; of one variable its variance."""
    out = _products("cov", x, shapes.as_int(correction, "cov", "correction"))
    return out.reshape(()) if out.size == 1 else out


@composite(
    kinds="float",
    torch="torch:corrcoef",
    reference=np.corrcoef,
    samples=lambda: iter((sample(s.real(2, 4)), sample(s.real(3)), sample(s.real(1, 3)))),
    refuses=(refuse(ShapeError, "corrcoef: takes .* got", s.real(2, 2, 2)),),
)
def corrcoef(x: Tensor) -> Tensor:
    """The correlations of variables, the rows of x, as a matrix; real ones within -1 and 1."""
    found = _products("corrcoef", x, 0)
    size = sqrt(diagonal(found).real() if found.dtype.is_complex else diagonal(found))
    out = found / size.expand_dims(-1) / size
    if not out.dtype.is_complex:
        out = clamp(out, -1.0, 1.0)
    return out.reshape(()) if out.size == 1 else out
