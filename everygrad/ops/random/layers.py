"""Layers that draw random numbers, as functions: dropout of channels, alpha dropout, randomised
leaky relu, fractional max pooling."""

from __future__ import annotations

import math
from typing import Any

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import gather
from everygrad.ops.nn.conv2d import integers
from everygrad.ops.nn.softmax_and_norm import dropout
from everygrad.ops.python.creation import arange, ones
from everygrad.ops.random.generators import Generator, bernoulli, rand, uniform
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.spec import same
from everygrad.ops.reduce.reductions import argmax

_SATURATED = 1.7580993408473766  # minus what selu gives far below 0: its scale times its alpha


def _check(op: str, x: Tensor, p: float) -> None:
    if not 0 <= p <= 1:
        raise ArgumentError(f"{op}: p must be between 0 and 1, got {p!r}")
    check_kind(op, x.dtype, "float")


def _channels(
    op: str, x: Tensor, p: float, training: bool, ranks: tuple[int, ...], generator: Any
) -> Tensor:
    """Dropout of whole channels; the smallest of `ranks` has no batch."""
    _check(op, x, p)
    if x.ndim not in ranks:
        shown = " or ".join(str(n) for n in ranks)
        raise ShapeError(f"{op}: takes {shown} dimensions, got {x.shape}")
    if not training or p == 0:
        return same(x)
    lead = 1 if x.ndim == ranks[0] and len(ranks) == 2 else 2
    shape = x.shape[:lead] + (1,) * (x.ndim - lead)
    return x * dropout(ones(shape, x.dtype, x.device), p, True, generator)


def dropout1d(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Each channel of (batch, channels, length) or (channels, length) 0 with probability p.

    >>> import everygrad as eg
    >>> eg.nn.functional.dropout1d(eg.ones((1, 2, 3)), 0.0).shape
    (1, 2, 3)
    """
    return _channels("dropout1d", x, p, training, (2, 3), generator)


def dropout2d(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Each channel of (batch, channels, height, width) 0 with probability p; three axes are
    (batch, channels, length).

    >>> import everygrad as eg
    >>> eg.nn.functional.dropout2d(eg.ones((1, 2, 3, 3)), 1.0).sum().item()
    0.0
    """
    return _channels("dropout2d", x, p, training, (2, 3, 4), generator)


def dropout3d(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Each channel of (batch, channels, depth, height, width), or without the batch, 0 with
    probability p.

    >>> import everygrad as eg
    >>> eg.nn.functional.dropout3d(eg.ones((2, 3, 3, 3)), 1.0).sum().item()
    0.0
    """
    return _channels("dropout3d", x, p, training, (4, 5), generator)


def _alpha(x: Tensor, p: float, shape: Any, generator: Generator | None) -> Tensor:
    """Where dropped, what selu gives far below 0; then mean and variance as they were."""
    if p == 1:
        return x * 0.0
    scale = 1.0 / math.sqrt((_SATURATED**2 * p + 1) * (1 - p))
    keep = bernoulli(1 - p, shape, generator=generator, device=x.device)
    shift = _SATURATED * scale * p
    out: Tensor = where(keep, x * scale + shift, shift - _SATURATED * scale)
    return out


def alpha_dropout(
    x: Tensor,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Dropout that keeps mean 0 and variance 1, for networks of selu.

    >>> import everygrad as eg
    >>> eg.nn.functional.alpha_dropout(eg.ones((3,)), 0.5, training=False)
    tensor([1., 1., 1.])
    """
    _check("alpha_dropout", x, p)
    return _alpha(x, p, x.shape, generator) if training and p else same(x)


def feature_alpha_dropout(
    x: Tensor,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Alpha dropout of whole channels of (batch, channels, ...).

    >>> import everygrad as eg
    >>> eg.nn.functional.feature_alpha_dropout(eg.ones((1, 2, 3)), 0.5).shape
    (1, 2, 3)
    """
    _check("feature_alpha_dropout", x, p)
    if x.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout: takes 2 dimensions or more, got {x.shape}")
    shape = x.shape[:2] + (1,) * (x.ndim - 2)
    return _alpha(x, p, shape, generator) if training and p else same(x)


def check_slopes(op: str, lower: float, upper: float) -> None:
    """Refuse bounds that are no interval."""
    if not lower <= upper:
        raise ArgumentError(f"{op}: lower {lower!r} must not be above upper {upper!r}")


def rrelu(
    x: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """x where it is positive; elsewhere x times a slope from [lower, upper], or their mean.

    >>> import everygrad as eg
    >>> eg.nn.functional.rrelu(eg.tensor([-1.0, 1.0]), 0.1, 0.3)
    tensor([-0.2,  1. ])
    """
    check_slopes("rrelu", lower, upper)
    check_kind("rrelu", x.dtype, "real float")
    slope: Any = (lower + upper) / 2
    if training:
        slope = uniform(lower, upper, x.shape, x.dtype, x.device, generator)
    out: Tensor = where(x > 0, x, x * slope)
    return out


# --- fractional max pooling ----------------------------------------------------------------------


def _starts(sample: Tensor, size: int, out: int, kernel: int) -> Tensor:
    """Where the windows along one axis begin: (..., out) from a number in [0, 1)."""
    if out == 1:
        return (sample * 0.0).expand_dims(-1).astype(dtypes.int64) + (size - kernel)
    step = (size - kernel) / (out - 1)
    u = sample.expand_dims(-1)
    places = arange(out, device=sample.device)
    found = ((places + u) * step).floor() - (u * step).floor()
    last: Tensor = where(places == out - 1, float(size - kernel), found)
    return last.astype(dtypes.int64)


def _fractional(
    op: str,
    x: Tensor,
    kernel_size: Any,
    output_size: Any,
    output_ratio: Any,
    samples: Tensor | None,
    places: int,
    generator: Generator | None,
) -> tuple[Tensor, Tensor]:
    if x.ndim not in (places + 1, places + 2):
        raise ShapeError(f"{op}: takes {places + 1} or {places + 2} dimensions, got {x.shape}")
    if (output_size is None) == (output_ratio is None):
        raise ArgumentError(f"{op}: give output_size or output_ratio, one of them")
    batched = x.ndim == places + 2
    x = x if batched else x.expand_dims(0)
    sizes = x.shape[2:]
    kernel = integers(op, "kernel_size", kernel_size, 1, places)
    if output_size is not None:
        wanted = integers(op, "output_size", output_size, 1, places)
    else:
        ratios = (output_ratio,) * places if isinstance(output_ratio, float) else output_ratio
        if len(ratios) != places or any(not 0 < r < 1 for r in ratios):
            raise ArgumentError(f"{op}: output_ratio must be between 0 and 1, got {output_ratio!r}")
        wanted = tuple(int(n * r) for n, r in zip(sizes, ratios, strict=True))
    for size, k, out in zip(sizes, kernel, wanted, strict=True):
        if out < 1 or out + k - 1 > size:
            raise ShapeError(f"{op}: {out} windows of {k} do not fit an axis of {size}")
    drawn = (*x.shape[:2], places)
    if samples is None:
        samples = rand(drawn, x.dtype, x.device, generator)
    elif samples.ndim != 3 or samples.shape[0] < drawn[0] or samples.shape[1:] != drawn[1:]:
        raise ShapeError(
            f"{op}: _random_samples must have shape {drawn}, or more rows, got {samples.shape}"
        )
    else:
        samples = samples[: drawn[0]]
    found, index = _pooled(x, samples, kernel, wanted)
    return (found, index) if batched else (found.squeeze(0), index.squeeze(0))


def _pooled(x: Tensor, samples: Tensor, kernel: Any, wanted: Any) -> tuple[Tensor, Tensor]:
    """The largest element of each window, and its place in the flattened axes."""
    places, sizes = len(kernel), x.shape[2:]
    flat = arange(math.prod(sizes), device=x.device).reshape(sizes)
    flat = flat.broadcast_to(x.shape)
    for axis in range(places):
        # PyTorch draws for images the width first, for volumes the depth first
        which = axis if places == 3 else places - 1 - axis
        begin = _starts(samples[..., which], sizes[axis], wanted[axis], kernel[axis])
        inside = begin.expand_dims(-1) + arange(kernel[axis], device=x.device)
        rows = inside.reshape(*x.shape[:2], -1)
        shape = [*x.shape]
        shape[2 + axis] = rows.shape[2]
        lifted = rows.reshape(*x.shape[:2], *(-1 if k == axis else 1 for k in range(places)))
        lifted = lifted.broadcast_to(shape)
        x, flat = gather(x, lifted, axis=2 + axis), gather(flat, lifted, axis=2 + axis)
    split = [n for pair in zip(wanted, kernel, strict=True) for n in pair]
    order = [0, 1, *range(2, 2 + 2 * places, 2), *range(3, 3 + 2 * places, 2)]
    windows = (*x.shape[:2], *wanted, math.prod(kernel))
    x, flat = (
        t.reshape(*t.shape[:2], *split).permute_dims(order).reshape(windows) for t in (x, flat)
    )
    best = argmax(x, axis=-1, keepdims=True)
    return gather(x, best, axis=x.ndim - 1).squeeze(-1), gather(
        flat, best, axis=x.ndim - 1
    ).squeeze(-1)


def fractional_max_pool2d(
    x: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
    generator: Generator | None = None,
) -> Any:
    """The largest element of windows of one size that lie at random, evenly spread places.

    >>> import everygrad as eg
    >>> eg.nn.functional.fractional_max_pool2d(eg.ones((1, 1, 7, 7)), 2, output_size=3).shape
    (1, 1, 3, 3)
    """
    name = "fractional_max_pool2d"
    found = _fractional(
        name, x, kernel_size, output_size, output_ratio, _random_samples, 2, generator
    )
    return found if return_indices else found[0]


def fractional_max_pool3d(
    x: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
    generator: Generator | None = None,
) -> Any:
    """The largest element of windows of volumes; as `fractional_max_pool2d`.

    >>> import everygrad as eg
    >>> eg.nn.functional.fractional_max_pool3d(eg.ones((1, 5, 5, 5)), 2, output_size=2).shape
    (1, 2, 2, 2)
    """
    name = "fractional_max_pool3d"
    found = _fractional(
        name, x, kernel_size, output_size, output_ratio, _random_samples, 3, generator
    )
    return found if return_indices else found[0]
