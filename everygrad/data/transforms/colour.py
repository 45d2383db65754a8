"""What pixels hold: scales, colours, rectangles that are erased."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.data.transforms.base import (
    Transform,
    number_range,
    probability,
    require_floating,
)
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.arithmetic import clip
from everygrad.ops.elementwise.basic import floor, maximum, minimum, sqrt, where
from everygrad.ops.elementwise.math import exp
from everygrad.ops.python.creation import arange, tensor
from everygrad.ops.random.generators import Generator
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import broadcast_to

_GREY = (0.2989, 0.587, 0.114)  # ITU-R BT.601: how bright red, green and blue look


class ToFloat(Transform):
    """Integers as float32 from 0 to 1: 255 of a uint8 is 1.

    >>> import everygrad as eg
    >>> eg.data.transforms.ToFloat()(eg.full((1, 1, 1), 255, eg.uint8)).item()
    1.0
    """

    def __init__(self, dtype: Any = dtypes.float32) -> None:
        self.dtype = dtypes.as_dtype(dtype)

    def forward(self, x: Tensor) -> Tensor:
        if not x.dtype.is_integer:
            return x.astype(self.dtype)
        return x.astype(self.dtype) * (1.0 / dtypes.iinfo(x.dtype).max)


class Normalize(Transform):
    """(x - mean) / std, one number for each channel.

    >>> import everygrad as eg
    >>> eg.data.transforms.Normalize([0.5], [0.25])(eg.ones((1, 1, 1))).item()
    2.0
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = [float(v) for v in mean], [float(v) for v in std]
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ArgumentError(
                f"Normalize: takes a mean and a std above 0 for each channel, got {mean}, {std}"
            )

    def forward(self, x: Tensor) -> Tensor:
        require_floating(x, "Normalize")
        if len(self.mean) not in (1, x.shape[1]):
            raise ShapeError(f"Normalize: {len(self.mean)} means for {x.shape[1]} channels")
        mean, std = (
            tensor(v, x.dtype, x.device).reshape(1, -1, 1, 1) for v in (self.mean, self.std)
        )
        return (x - mean) / std


def _grey(x: Tensor) -> Tensor:
    """How bright each place is, as one channel."""
    if x.shape[1] == 1:
        return x
    if x.shape[1] != 3:
        raise ShapeError(f"colours: takes 1 or 3 channels, got {x.shape[1]}")
    return _GREY[0] * x[:, 0:1] + _GREY[1] * x[:, 1:2] + _GREY[2] * x[:, 2:3]


def _hue_turned(x: Tensor, turn: Tensor) -> Tensor:
    """Images in RGB with their hue moved by a part of the circle."""
    r, g, b = x[:, 0:1], x[:, 1:2], x[:, 2:3]
    high, low = maximum(maximum(r, g), b), minimum(minimum(r, g), b)
    spread = high - low
    grey = spread == 0
    safe = where(grey, 1.0, spread)
    hue = where(
        high == r, (g - b) / safe, where(high == g, 2.0 + (b - r) / safe, 4.0 + (r - g) / safe)
    )
    hue = hue / 6.0 + turn
    parts = []
    for start in (5.0, 3.0, 1.0):  # each channel falls and rises at another part of the circle
        k = (hue * 6.0 + start) % 6.0
        parts.append(high - spread * clip(minimum(k, 4.0 - k), 0.0, 1.0))
    return where(grey, x, concat(parts, axis=1))


class ColorJitter(Transform):
    """Brightness, contrast, saturation and hue changed at random, in this order, for each image.

    A number v means a factor from max(0, 1 - v) to 1 + v; for the hue a turn of at most v <= 0.5 of
    the circle. A pair is the range itself. Images are floating point from 0 to 1.

    >>> import everygrad as eg
    >>> eg.data.transforms.ColorJitter(brightness=(2.0, 2.0))(eg.full((3, 1, 1), 0.25))[0].item()
    0.5
    """

    def __init__(
        self,
        brightness: Any = 0,
        contrast: Any = 0,
        saturation: Any = 0,
        hue: Any = 0,
        generator: Generator | None = None,
    ) -> None:
        self.brightness = _factors(brightness, "brightness")
        self.contrast = _factors(contrast, "contrast")
        self.saturation = _factors(saturation, "saturation")
        turns = hue if isinstance(hue, Sequence) else (-hue, hue)
        self.hue = number_range(turns, "ColorJitter", "hue", -0.5)
        if self.hue[1] > 0.5:
            raise ArgumentError(f"ColorJitter: hue must not exceed 0.5, got {hue!r}")
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        require_floating(x, "ColorJitter")
        if self.brightness != (1.0, 1.0):
            x = clip(x * self._factor(x, self.brightness), 0.0, 1.0)
        if self.contrast != (1.0, 1.0):
            x = _blended(
                x, _grey(x).mean(axis=(1, 2, 3), keepdims=True), self._factor(x, self.contrast)
            )
        if self.saturation != (1.0, 1.0):
            x = _blended(x, _grey(x), self._factor(x, self.saturation))
        if self.hue != (0.0, 0.0) and x.shape[1] == 3:
            x = _hue_turned(x, self._factor(x, self.hue))
        return x

    def _factor(self, x: Tensor, limits: tuple[float, float]) -> Tensor:
        return self._uniform(x, *limits).astype(x.dtype).reshape(-1, 1, 1, 1)


def _factors(given: Any, what: str) -> tuple[float, float]:
    if not isinstance(given, Sequence):
        if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
            raise ArgumentError(f"ColorJitter: {what} must be 0 or more, got {given!r}")
        given = (max(0.0, 1.0 - given), 1.0 + given)
    return number_range(given, "ColorJitter", what, 0.0)


def _blended(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return clip(x * factor + other * (1.0 - factor), 0.0, 1.0)


class Grayscale(Transform):
    """Images in grey, with one channel or the same in three.

    >>> import everygrad as eg
    >>> eg.data.transforms.Grayscale()(eg.ones((3, 2, 2))).shape
    (1, 2, 2)
    """

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels not in (1, 3):
            raise ArgumentError(f"Grayscale: 1 or 3 channels, got {num_output_channels!r}")
        self.num_output_channels = num_output_channels

    def forward(self, x: Tensor) -> Tensor:
        require_floating(x, "Grayscale")
        grey = _grey(x)
        return broadcast_to(grey, (x.shape[0], self.num_output_channels, *x.shape[2:]))


class RandomGrayscale(Transform):
    """Each image in grey with probability p; the channels stay.

    >>> import everygrad as eg
    >>> eg.data.transforms.RandomGrayscale(0.0)(eg.ones((3, 1, 1))).tolist()
    [[[1.0]], [[1.0]], [[1.0]]]
    """

    def __init__(self, p: float = 0.1, generator: Generator | None = None) -> None:
        self.p, self.generator = probability(p, "RandomGrayscale"), generator

    def forward(self, x: Tensor) -> Tensor:
        require_floating(x, "RandomGrayscale")
        return where(self._chance(x, self.p), _grey(x), x)


class RandomErasing(Transform):
    """A rectangle of each image replaced by `value`, with probability p.

    >>> import everygrad as eg
    >>> eg.data.transforms.RandomErasing(p=0.0)(eg.ones((1, 1, 2))).tolist()
    [[[1.0, 1.0]]]
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float = 0.0,
        generator: Generator | None = None,
    ) -> None:
        self.p = probability(p, "RandomErasing")
        self.scale = number_range(scale, "RandomErasing", "scale", 0.0)
        if self.scale[1] > 1:
            raise ArgumentError(f"RandomErasing: scale must not exceed 1, got {scale!r}")
        self.ratio = number_range(ratio, "RandomErasing", "ratio", 1e-6)
        self.value, self.generator = value, generator

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        area = self._uniform(x, *self.scale) * float(height * width)
        shape = exp(self._uniform(x, math.log(self.ratio[0]), math.log(self.ratio[1])))
        h = clip(floor(sqrt(area * shape) + 0.5), 1.0, float(height))
        w = clip(floor(sqrt(area / shape) + 0.5), 1.0, float(width))
        top = floor(self._uniform(x, 0.0, 1.0) * (float(height) - h + 1.0))
        left = floor(self._uniform(x, 0.0, 1.0) * (float(width) - w + 1.0))
        inside = box(x, top, left, h, w) & self._chance(x, self.p)
        return where(inside, tensor(self.value, x.dtype, x.device), x)


def box(x: Tensor, top: Tensor, left: Tensor, h: Tensor, w: Tensor) -> Tensor:
    """True inside a rectangle of each image, as (n, 1, height, width)."""
    lines = arange(x.shape[-2], dtype=top.dtype, device=x.device).reshape(1, 1, -1, 1)
    columns = arange(x.shape[-1], dtype=top.dtype, device=x.device).reshape(1, 1, 1, -1)
    top, left, h, w = (v.reshape(-1, 1, 1, 1) for v in (top, left, h, w))
    return (lines >= top) & (lines < top + h) & (columns >= left) & (columns < left + w)
