"""Numbers rounded as if they were stored in a few bits, for training that is aware of it.

The nearest of the numbers (q - zero_point) * scale, q from `least` to `most`. Scales are float32,
as PyTorch's are, whatever x is.
"""

from __future__ import annotations

from typing import Any

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.derivatives import wide
from everygrad.interop.torch.aten.registry import aten
from everygrad.ops.elementwise.basic import clamp, round as nearest, trunc, where
from everygrad.ops.python.creation import asarray, ones_like

Pair = tuple[Tensor, Tensor]


def _along(per: Tensor, x: Tensor, axis: int) -> Tensor:
    """One number for each place of an axis of x, as an array that broadcasts along the others."""
    return per.reshape(tuple(-1 if i == axis % x.ndim else 1 for i in range(x.ndim)))


def _levels(x: Tensor, scale: Tensor, zero: Tensor, rounded_last: bool) -> Tensor:
    """The number of the level that each element is nearest to, before it is kept in bounds."""
    scaled = wide(x) * (1.0 / scale)
    return nearest(scaled + zero) if rounded_last else nearest(scaled) + zero


def _quantised(
    x: Tensor, scale: Tensor, zero: Tensor, least: int, most: int, rounded_last: bool = False
) -> Pair:
    """The values, and where they were in bounds: the gradient passes there alone. Of one scale for
    all PyTorch's values are float32's, of one for each channel float64's of such elements."""
    scale, zero = scale.astype(dtypes.float32), zero.astype(dtypes.float32)
    levels = _levels(x, scale, zero, rounded_last)
    kept = clamp(levels, least, most)
    values = ((kept if scale.ndim else kept.astype(dtypes.float32)) - zero) * scale
    inside = (levels >= least) & (levels <= most)
    return _sloped(values.astype(x.dtype), where(inside, x, 0.0)), inside


def _sloped(value: Tensor, like: Tensor) -> Tensor:
    """A value with the derivatives of another: rounding has none of its own. Programs that hold
    the backward as nodes do not ask for them."""
    return value.detach() + (like - like.detach()).astype(value.dtype)


def _number(value: Any, x: Tensor) -> Tensor:
    return asarray(value, dtype=dtypes.float32, device=x.device)


@aten("fake_quantize_per_tensor_affine_cachemask.default")
def per_tensor(x: Tensor, scale: float, zero: int, least: int, most: int) -> Pair:
    return _quantised(x, _number(scale, x), _number(zero, x), least, most)


@aten("fake_quantize_per_tensor_affine.default")
def per_tensor_values(x: Tensor, scale: float, zero: int, least: int, most: int) -> Tensor:
    return per_tensor(x, scale, zero, least, most)[0]


@aten("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def by_tensors(
    x: Tensor, scale: Tensor, zero: Tensor, enabled: Tensor, least: int, most: int
) -> Pair:
    values, inside = _quantised(x, scale.reshape(()), zero.reshape(()), least, most)
    on = enabled.reshape(()) != 0
    return where(on, values, x), inside | ~on


@aten("fake_quantize_per_channel_affine_cachemask.default")
def per_channel(x: Tensor, scale: Tensor, zero: Tensor, axis: int, least: int, most: int) -> Pair:
    whole = zero.dtype.is_float  # of that kind the zero is rounded together with the number
    return _quantised(x, _along(scale, x, axis), _along(zero, x, axis), least, most, whole)


@aten("fake_quantize_per_channel_affine.default")
def per_channel_values(
    x: Tensor, scale: Tensor, zero: Tensor, axis: int, least: int, most: int
) -> Tensor:
    return per_channel(x, scale, zero, axis, least, most)[0]


@aten(
    "fake_quantize_per_tensor_affine_cachemask_backward.default",
    "fake_quantize_per_channel_affine_cachemask_backward.default",
)
def passed_inside(g: Tensor, mask: Tensor) -> Tensor:
    return g * mask.astype(g.dtype)


# --- scales and zeros that are learned -----------------------------------------------------------


def _nearest_zero(zero: Tensor, least: int, most: int) -> Tensor:
    return clamp(nearest(zero.astype(dtypes.float32)), least, most)


def _zero_backward(zero: Tensor, least: int, most: int) -> Tensor:
    """Of one for a whole tensor PyTorch's derivative has another rule: half more, and cut off."""
    return trunc(clamp(zero.astype(dtypes.float32) + 0.5, least, most))


@aten("_fake_quantize_learnable_per_tensor_affine.default")
def learned(
    x: Tensor, scale: Tensor, zero: Tensor, least: int, most: int, factor: float = 1.0
) -> Tensor:
    one, whole = scale.reshape(()), zero.reshape(())
    values, _ = _quantised(x, one, _nearest_zero(whole, least, most), least, most)
    again = _zero_backward(whole, least, most)
    return _learned(values, x, one, whole, again, (least, most, factor))


@aten("_fake_quantize_learnable_per_channel_affine.default")
def learned_per_channel(
    x: Tensor,
    scale: Tensor,
    zero: Tensor,
    axis: int,
    least: int,
    most: int,
    factor: float = 1.0,
) -> Tensor:
    nearest_one = _nearest_zero(zero, least, most)
    values, _ = per_channel(x, scale, nearest_one.astype(dtypes.int32), axis, least, most)
    each, whole, again = (_along(t, x, axis) for t in (scale, zero, nearest_one))
    return _learned(values, x, each, whole, again, (least, most, factor))


def _learned(
    values: Tensor,
    x: Tensor,
    scale: Tensor,
    zero: Tensor,
    whole: Tensor,
    rest: tuple[int, int, float],
) -> Tensor:
    """The values with derivatives by x, the scale and the zero; `whole`: what they read of it."""
    given = (x.detach(), scale.detach(), whole.detach())
    by_x, by_scale, by_zero = _slopes(ones_like(x), *given, *rest)
    return _sloped(values, where(by_x != 0, x, 0.0) + by_scale * scale + by_zero * zero)


def _slopes(
    g: Tensor, x: Tensor, scale: Tensor, zero: Tensor, least: int, most: int, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """By x, and elementwise by the scale and the zero."""
    scale = scale.astype(dtypes.float32)
    levels = _levels(x, scale, zero, False)
    values = (clamp(levels, least, most) - zero) * scale
    below, above = levels < least, levels > most
    outside = below | above
    at_ends = where(below, least - zero, most - zero)
    by_scale = where(outside, g * at_ends, g * (values - x) * (1.0 / scale)) * factor
    by_zero = where(outside, -g * scale, 0.0) * factor
    return where(outside, 0.0, g), by_scale, by_zero


@aten("_fake_quantize_learnable_per_tensor_affine_backward.default")
def learned_backward(
    g: Tensor,
    x: Tensor,
    scale: Tensor,
    zero: Tensor,
    least: int,
    most: int,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    whole = _zero_backward(zero.reshape(()), least, most)
    by_x, *others = _slopes(g, x, scale.reshape(()), whole, least, most, factor)
    by_scale, by_zero = (d.sum().reshape((1,)) for d in others)
    return by_x, by_scale.astype(scale.dtype), by_zero.astype(zero.dtype)


@aten("_fake_quantize_learnable_per_channel_affine_backward.default")
def learned_per_channel_backward(
    g: Tensor,
    x: Tensor,
    scale: Tensor,
    zero: Tensor,
    axis: int,
    least: int,
    most: int,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    whole = _along(_nearest_zero(zero, least, most), x, axis)
    by_x, *others = _slopes(g, x, _along(scale, x, axis), whole, least, most, factor)
    rest = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    by_scale, by_zero = (d.sum(axis=rest) for d in others)
    return by_x, by_scale.astype(scale.dtype), by_zero.astype(zero.dtype)
