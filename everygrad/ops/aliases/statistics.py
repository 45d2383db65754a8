"""Counts, runs and slopes in PyTorch's spellings: mode, unique_consecutive, histc, gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import operands
from everygrad.errors import ArgumentError, AxisError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import arange, asarray, zeros
from everygrad.ops.record.arguments import taking
from everygrad.ops.record.spec import REGISTRY
from everygrad.ops.record.torch_calls import ValuesAndIndices
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import slice_axis


def _op(name: str, *args: Any, **kwargs: Any) -> Any:
    return REGISTRY[name].function(*args, **kwargs)


@taking
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The commonest element along an axis, the smallest of several, and where one stands."""
    row = x if x.ndim else x.reshape(1)
    at = shapes.axis_index(dim, row.ndim, "mode")
    if not row.shape[at]:
        raise ShapeError(f"mode: shape {x.shape} has no elements along axis {at} to choose from")
    along = row.moveaxis(at, -1)
    n = along.shape[-1]
    places = _op("argsort", along.detach(), axis=-1)
    ordered = _op("take_along_axis", along.detach(), places, axis=-1)
    step = arange(n, device=x.device)
    same_as_before = ordered[..., 1:] == ordered[..., :-1]
    first = zeros((*along.shape[:-1], 1), dtypes.bool_, x.device)
    start = where(concat([first, same_as_before], axis=-1), 0, step.broadcast_to(along.shape))
    length = step - _op("cummax", start, -1).values
    last = _op("argmax", length, axis=-1, keepdims=True)
    indices = _op("take_along_axis", places, last, axis=-1).moveaxis(-1, at)
    values = _op("take_along_axis", row, indices, axis=at)
    if keepdim and x.ndim:
        return ValuesAndIndices(values, indices)
    return ValuesAndIndices(values.squeeze(at), indices.squeeze(at))


@taking
def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """One element, or slice along an axis, of each run of equal ones. Reads values: eager only."""
    values = x.detach().numpy()
    if dim is None:
        flat = values.reshape(-1)
    else:
        flat = np.moveaxis(values, shapes.axis_index(dim, x.ndim, "unique_consecutive"), 0)
    rows = flat.reshape(len(flat), -1)
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    starts = np.flatnonzero(new)
    source = x.reshape(-1) if dim is None else x
    kept = _op("take", source, asarray(starts, device=x.device), axis=0 if dim is None else dim)
    inverse = np.cumsum(new) - 1
    inverse = inverse.reshape(x.shape) if dim is None else inverse
    parts = [kept]
    parts += [asarray(inverse, device=x.device)] if return_inverse else []
    counts = np.diff(np.append(starts, len(rows)))
    parts += [asarray(counts, device=x.device)] if return_counts else []
    return tuple(parts) if len(parts) > 1 else kept


@taking
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` bins from min to max, or from the least to the
    largest element if both are 0."""
    if min == max == 0:
        low, high = float(x.min()), float(x.max())
    else:
        low, high = float(min), float(max)
    if low > high:
        raise ArgumentError(f"histc: min must not be above max, got {min} and {max}")
    low, high = (low - 1, high + 1) if low == high else (low, high)
    counts: Tensor = _op("histogram", x, bins, range=(low, high))[0]
    return counts.astype(x.dtype)


@taking
def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1
) -> Tensor:
    """The integrals, from the first sample to each other one, of the lines between samples y."""
    at = shapes.axis_index(dim, y.ndim, "cumulative_trapezoid")
    n = y.shape[at]
    pairs = slice_axis(y, at, 0, n - 1) + slice_axis(y, at, 1, n - 1)
    if x is None:
        widths: Any = dx
    else:
        widths = _op("diff", x, axis=-1 if x.ndim == 1 else at)
        widths = widths.reshape((-1,) + (1,) * (y.ndim - at - 1)) if x.ndim == 1 else widths
    out: Tensor = _op("cumulative_sum", pairs * widths * 0.5, axis=at)
    return out


@taking
def gradient(
    x: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1
) -> tuple[Tensor, ...]:
    """The derivative along each axis, from differences of neighbours.

    spacing  how far apart they are: a number, or one for each axis
    """
    axes = shapes.axis_tuple(dim, x.ndim, "gradient")
    steps = spacing if isinstance(spacing, tuple | list) else [spacing] * len(axes)
    if edge_order not in (1, 2) or len(steps) != len(axes):
        raise ArgumentError(
            f"gradient: edge_order is 1 or 2 and spacing one number for each axis, "
            f"got {edge_order} and {spacing!r}"
        )
    if any(isinstance(step, Tensor) for step in steps):
        raise ArgumentError("gradient: takes even spacing, a number for each axis")
    (floating,) = operands("gradient", x, floating=True)
    return tuple(
        _slope(floating, a, float(h), edge_order) for a, h in zip(axes, steps, strict=True)
    )


def _slope(x: Tensor, at: int, step: float, edge_order: int) -> Tensor:
    n = x.shape[at]
    if n < edge_order + 1:
        raise AxisError(f"gradient: axis {at} of {x.shape} needs {edge_order + 1} elements")

    def part(i: int) -> Tensor:
        return slice_axis(x, at, i % n, 1)

    inner = (slice_axis(x, at, 2, n - 2) - slice_axis(x, at, 0, n - 2)) / (2 * step)
    if edge_order == 1:
        ends = [(part(1) - part(0)) / step, (part(-1) - part(-2)) / step]
    else:
        ends = [
            (part(1) * 4 - part(0) * 3 - part(2)) / (2 * step),
            (part(-1) * 3 - part(-2) * 4 + part(-3)) / (2 * step),
        ]
    return concat([ends[0], inner, ends[1]], axis=at)
