"""Medians and quantiles: elements of the sorted tensor, or points between two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, AxisError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import ceil, floor, isnan, round, where
from everygrad.ops.index.gather import gather
from everygrad.ops.index.sort import sort
from everygrad.ops.python.creation import tensor
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.keywords import torch_call
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.reduce.reductions import Axis, sum
from everygrad.ops.shape.movement import slice_axis

INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")


def _rows(op: str, x: Tensor, axis: Axis) -> tuple[Tensor, shapes.Shape]:
    """x sorted, with the given axes made one at the end; and those axes."""
    axes = tuple(sorted(shapes.reduction_axes(axis, x.ndim, op)))
    count = shapes.size_of(tuple(x.shape[a] for a in axes))
    if count == 0:
        raise ShapeError(f"{op}: shape {x.shape} has no elements along axis {axis} to choose from")
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    moved = x.permute_dims((*kept, *axes)) if axes else x
    return sort(moved.reshape((*(x.shape[a] for a in kept), count))), axes


def _count(rows: Tensor, skip: bool) -> Tensor | None:
    """How many elements of each row are not NaN, where NaN is to be skipped."""
    if not skip or not rows.dtype.is_float:
        return None
    return sum((~isnan(rows)).astype(dtypes.int64), axis=-1, keepdims=True)


def _spoiled(rows: Tensor, found: Tensor) -> Tensor:
    """NaN where the row has one: it stands last."""
    if not rows.dtype.is_float:
        return found
    last = slice_axis(rows, rows.ndim - 1, rows.shape[-1] - 1, 1)
    return where(isnan(last), math.nan, found)


# --- the middle ----------------------------------------------------------------------------------


def _median(op: str, x: Tensor, axis: Axis, keepdims: bool, skip: bool) -> Tensor:
    check_kind(op, x.dtype, "real")
    rows, axes = _rows(op, x, axis)
    count = _count(rows, skip)
    if count is None:
        found = slice_axis(rows, rows.ndim - 1, (rows.shape[-1] - 1) // 2, 1)
        found = found if skip else _spoiled(rows, found)
    else:  # a row of NaN alone has its first element, which is NaN
        found = gather(rows, where(count == 0, 0, (count - 1) // 2), -1)
    return found.reshape(shapes.reduced(x.shape, axes, keepdims))


def _middle(fn: Any) -> Any:
    def reference(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        lower = fn(x.astype(np.float64), 0.5, axis=axis, keepdims=keepdims, method="lower")
        return np.asarray(lower).astype(x.dtype)

    return reference


def _middle_samples() -> Any:
    yield sample(s.real(2, 4), axis=1, keepdims=True)
    yield sample(s.real(2, 1, 2), axis=(0, -1))


@composite(
    kinds="real",
    torch="tests.support.beside_torch:median",
    reference=_middle(np.quantile),
    samples=_middle_samples,
    refuses=(
        refuse(AxisError, "median: axis 2 is out of range", s.real(2, 3), axis=2),
        refuse(ShapeError, "median: shape .* has no elements", s.real(0)),
    ),
)
def median(x: Tensor, *dim: Any, axis: Axis = None, keepdims: bool = False, **names: Any) -> Any:
    """The element in the middle, of two the lower, as in PyTorch; NaN where there is a NaN.

    `quantile(x, 0.5)` is the mean of the two. An axis by position or as `dim=` is PyTorch's call,
    which gives the indices too: `values, indices = x.median(1)`.
    """
    if dim or names:
        return torch_call("middle", "median", x, dim, axis, keepdims, names)
    return _median("median", x, axis, keepdims, skip=False)


def _holey(*shape: int) -> Any:
    x = s.real(*shape)
    x[..., 0] = np.nan
    return x


@composite(
    kinds="real",
    torch="tests.support.beside_torch:nanmedian",
    reference=_middle(np.nanquantile),
    samples=lambda: iter((sample(_holey(2, 4), axis=1), sample(_holey(2, 2)))),
    refuses=(refuse(AxisError, "nanmedian: axis 2 is out of range", s.real(2, 3), axis=2),),
)
def nanmedian(x: Tensor, *dim: Any, axis: Axis = None, keepdims: bool = False, **names: Any) -> Any:
    """`median` of the elements that are not NaN; NaN where there are none."""
    if dim or names:
        return torch_call("middle", "nanmedian", x, dim, axis, keepdims, names)
    return _median("nanmedian", x, axis, keepdims, skip=True)


# --- any share -----------------------------------------------------------------------------------


def _shares(op: str, q: Any, x: Tensor) -> Tensor:
    """q as a tensor, a vector or 0-d; numbers are checked, those of a tensor cannot be."""
    wide = dtypes.accumulator(x.dtype)
    if not isinstance(q, Tensor):
        numbers = np.asarray(q, np.float64)
        if not np.all((numbers >= 0) & (numbers <= 1)):
            raise ArgumentError(f"{op}: q must be between 0 and 1, got {q!r}")
        q = tensor(numbers, dtype=wide, device=x.device)
    if q.ndim > 1:
        raise ShapeError(f"{op}: q must be a number or a vector, got shape {q.shape}")
    return q.astype(wide)


def _neighbours(position: Tensor, interpolation: str) -> tuple[Tensor, Tensor]:
    """The places below and above between which the result lies."""
    near = {"lower": floor, "higher": ceil, "nearest": round}.get(interpolation)
    below = (near or floor)(position).astype(dtypes.int64)
    return below, below if near else ceil(position).astype(dtypes.int64)


def _quantile(
    op: str, x: Tensor, q: Any, axis: Axis, keepdims: bool, interpolation: str, skip: bool
) -> Tensor:
    check_kind(op, x.dtype, "real float")
    if interpolation not in INTERPOLATIONS:
        raise ArgumentError(
            f"{op}: interpolation must be one of {', '.join(INTERPOLATIONS)}; got {interpolation!r}"
        )
    rows, axes = _rows(op, x, axis)
    shares = _shares(op, q, x)
    flat = shares.reshape(-1)
    count = _count(rows, skip)
    last = rows.shape[-1] - 1 if count is None else where(count == 0, 0, count - 1)
    position = flat * (last if isinstance(last, int) else last.astype(flat.dtype))
    position = position.broadcast_to((*rows.shape[:-1], flat.shape[0]))
    outside = (position < 0) | (position > last) | isnan(position)
    position = where(outside, 0.0, position)
    found = _between(rows, position, interpolation)
    found = where(outside, math.nan, found if skip else _spoiled(rows, found))
    kept = shapes.reduced(x.shape, axes, keepdims)
    return found.moveaxis(-1, 0).reshape((*shares.shape, *kept)).astype(x.dtype)


def _between(rows: Tensor, position: Tensor, interpolation: str) -> Tensor:
    below, above = _neighbours(position, interpolation)
    low = gather(rows, below, -1).astype(position.dtype)
    if below is above:
        return low
    high = gather(rows, above, -1).astype(position.dtype)
    if interpolation == "midpoint":
        return (low + high) * 0.5
    return low + (high - low) * (position - below.astype(position.dtype))


def _refusals(name: str) -> tuple[Any, ...]:
    return (
        refuse(ArgumentError, f"{name}: q must be between 0 and 1, got 1.5", s.real(3), 1.5),
        refuse(
            ArgumentError,
            f"{name}: interpolation must be one of.*got 'cubic'",
            s.real(3),
            0.5,
            interpolation="cubic",
        ),
        refuse(DtypeError, f"{name}: does not take int64", s.integers(3), 0.5),
        refuse(AxisError, f"{name}: axis 2 is out of range", s.real(2, 3), 0.5, axis=2),
        refuse(ShapeError, f"{name}: q must be a number or a vector", s.real(3), s.real(1, 1)),
    )


def _reference(fn: Any) -> Any:
    def reference(
        x: Any, q: Any, axis: Any = None, keepdims: bool = False, interpolation: str = "linear"
    ) -> Any:
        axis = tuple(axis) if isinstance(axis, Sequence) else axis
        q = np.asarray(q, np.float64)
        return fn(x, q, axis=axis, keepdims=keepdims, method=interpolation)

    return reference


@composite(
    kinds="real float",
    torch="tests.support.beside_torch:quantile",
    reference=_reference(np.quantile),
    samples=lambda: iter(
        (
            sample(s.real(2, 4), 0.3, axis=1, keepdims=True),
            sample(s.real(2, 1, 2), [0.2, 0.9], axis=(0, -1), interpolation="midpoint"),
        )
    ),
    refuses=_refusals("quantile"),
)
def quantile(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    interpolation: str = "linear",
) -> Tensor:
    """The value below which the share q of the elements lies; NaN where there is a NaN.

    q              a number from 0 to 1, or several, which become the result's first axis; NaN is
                   the result for what lies outside
    interpolation  between two elements: "linear", "lower", "higher", "nearest" or "midpoint"
    """
    return _quantile("quantile", x, q, axis, keepdims, interpolation, skip=False)


@composite(
    kinds="real float",
    torch="tests.support.beside_torch:nanquantile",
    reference=_reference(np.nanquantile),
    samples=lambda: iter((sample(_holey(2, 4), 0.3, axis=1),)),
    refuses=_refusals("nanquantile"),
)
def nanquantile(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    interpolation: str = "linear",
) -> Tensor:
    """`quantile` of the elements that are not NaN; NaN where there are none."""
    return _quantile("nanquantile", x, q, axis, keepdims, interpolation, skip=True)
