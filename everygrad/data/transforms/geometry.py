"""Where pixels are: sizes, crops, turns and flips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from everygrad import dtypes
from everygrad.core.shapes import as_int
from everygrad.core.tensor import Tensor
from everygrad.data.sampler import positive
from everygrad.data.transforms.base import (
    Transform,
    drawn_dtype,
    number_range,
    pair,
    probability,
    require_floating,
)
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.arithmetic import clip
from everygrad.ops.elementwise.basic import floor, minimum, sqrt, where
from everygrad.ops.elementwise.math import cos, exp, sin
from everygrad.ops.index.gather import take_along_axis
from everygrad.ops.nn.resampling import affine_grid, grid_sample, interpolate
from everygrad.ops.python.creation import arange
from everygrad.ops.random.generators import Generator
from everygrad.ops.shape.joining import pad, stack
from everygrad.ops.shape.movement import broadcast_to, flip

_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")


class Resize(Transform):
    """Images of another size; a single number is the length of the shorter side.

    >>> import everygrad as eg
    >>> eg.data.transforms.Resize(2)(eg.ones((3, 4, 8))).shape
    (3, 2, 4)
    """

    def __init__(self, size: Any, interpolation: str = "bilinear", antialias: bool = True) -> None:
        self.size = (
            pair(size, "Resize") if isinstance(size, Sequence) else positive(size, "Resize", "size")
        )
        if interpolation not in _MODES:
            raise ArgumentError(
                f"Resize: interpolation must be one of {_MODES}, got {interpolation!r}"
            )
        self.interpolation, self.antialias = interpolation, antialias

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if isinstance(self.size, int):
            short = min(height, width)
            size = (self.size * height // short, self.size * width // short)
        else:
            size = self.size
        smooth = self.interpolation in ("bilinear", "bicubic")
        antialias = self.antialias and smooth
        if x.dtype.is_float:
            return interpolate(x, size, mode=self.interpolation, antialias=antialias)
        made = interpolate(
            x.astype(dtypes.float32), size, mode=self.interpolation, antialias=antialias
        )
        limits = dtypes.iinfo(x.dtype)
        return clip(made.round(), limits.min, limits.max).astype(x.dtype)


class Pad(Transform):
    """More around an image: a number, (left and right, top and bottom), or (left, top, right,
    bottom).

    >>> import everygrad as eg
    >>> eg.data.transforms.Pad((1, 2))(eg.ones((1, 4, 4))).shape
    (1, 8, 6)
    """

    def __init__(self, padding: Any, fill: float = 0, padding_mode: str = "constant") -> None:
        sides = list(padding) if isinstance(padding, Sequence) else [padding]
        self.padding = [as_int(n, "Pad", "padding") for n in sides]
        if len(sides) not in (1, 2, 4) or min(self.padding) < 0:
            raise ArgumentError(f"Pad: padding is 1, 2 or 4 numbers from 0 on, got {padding!r}")
        self.fill, self.padding_mode = fill, padding_mode

    def forward(self, x: Tensor) -> Tensor:
        left, top, right, bottom = (self.padding * (4 // len(self.padding)))[:4]
        mode = "replicate" if self.padding_mode == "edge" else self.padding_mode
        return pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), self.fill, mode)


class CenterCrop(Transform):
    """The middle of an image, with 0 around it where it is smaller.

    >>> import everygrad as eg
    >>> eg.data.transforms.CenterCrop((2, 3))(eg.ones((1, 4, 4))).shape
    (1, 2, 3)
    """

    def __init__(self, size: Any) -> None:
        self.size = pair(size, "CenterCrop")

    def forward(self, x: Tensor) -> Tensor:
        (h, w), (height, width) = self.size, x.shape[-2:]
        if h > height or w > width:
            lines, columns = (max(h - height, 0), max(w - width, 0))
            around = ((lines // 2, (lines + 1) // 2), (columns // 2, (columns + 1) // 2))
            x = pad(x, ((0, 0), (0, 0), *around))
            height, width = x.shape[-2:]
        top, left = round((height - h) / 2.0), round((width - w) / 2.0)
        return x[:, :, top : top + h, left : left + w]


class RandomCrop(Transform):
    """A window of each image, from anywhere in it, after `padding` on all sides.

    >>> import everygrad as eg
    >>> eg.data.transforms.RandomCrop(3, padding=1)(eg.ones((2, 1, 4, 4))).shape
    (2, 1, 3, 3)
    """

    def __init__(
        self,
        size: Any,
        padding: Any = None,
        fill: float = 0,
        padding_mode: str = "constant",
        generator: Generator | None = None,
    ) -> None:
        self.size = pair(size, "RandomCrop")
        self.padding = None if padding is None else Pad(padding, fill, padding_mode)
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.padding is None else self.padding.forward(x)
        (h, w), (n, c, height, width) = self.size, x.shape
        if h > height or w > width:
            raise ShapeError(f"RandomCrop: no {(h, w)} in an image of {(height, width)}; pad it")
        top = _place(self._uniform(x, 0.0, height - h + 1.0), height - h)
        left = _place(self._uniform(x, 0.0, width - w + 1.0), width - w)
        lines = top.reshape(-1, 1, 1) + arange(h, device=x.device).reshape(1, -1, 1)
        columns = left.reshape(-1, 1, 1) + arange(w, device=x.device).reshape(1, 1, -1)
        places = broadcast_to((lines * width + columns).reshape(n, 1, h * w), (n, c, h * w))
        return take_along_axis(x.reshape(n, c, height * width), places, 2).reshape(n, c, h, w)


def _place(drawn: Tensor, last: int) -> Tensor:
    """A whole number from 0 to `last`, of a uniform number from 0 to last + 1."""
    return minimum(floor(drawn), float(last)).astype(dtypes.int64)


class RandomResizedCrop(Transform):
    """A part of each image, of random area and shape, resized to `size`.

    >>> import everygrad as eg
    >>> eg.data.transforms.RandomResizedCrop(2)(eg.ones((2, 3, 8, 8))).shape
    (2, 3, 2, 2)
    """

    def __init__(
        self,
        size: Any,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        generator: Generator | None = None,
    ) -> None:
        self.size = pair(size, "RandomResizedCrop")
        self.scale = number_range(scale, "RandomResizedCrop", "scale", 0.0)
        self.ratio = number_range(ratio, "RandomResizedCrop", "ratio", 1e-6)
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        require_floating(x, "RandomResizedCrop")
        height, width = x.shape[-2:]
        area = self._uniform(x, *self.scale) * float(height * width)
        shape = exp(self._uniform(x, math.log(self.ratio[0]), math.log(self.ratio[1])))
        w = minimum(sqrt(area * shape), float(width)) / float(width)
        h = minimum(sqrt(area / shape), float(height)) / float(height)
        # in a grid from -1 to 1: how large the part is, and where its centre lies
        shift_x = (self._uniform(x, 0.0, 2.0) - 1.0) * (1.0 - w)
        shift_y = (self._uniform(x, 0.0, 2.0) - 1.0) * (1.0 - h)
        zero = w * 0.0
        theta = stack([stack([w, zero, shift_x], 1), stack([zero, h, shift_y], 1)], 1)
        return _sampled(x, theta, self.size, "border")


def _sampled(x: Tensor, theta: Tensor, size: tuple[int, int], outside: str) -> Tensor:
    grid = affine_grid(theta, (x.shape[0], x.shape[1], *size))
    return grid_sample(x.astype(drawn_dtype(x)), grid, padding_mode=outside).astype(x.dtype)


class RandomRotation(Transform):
    """Each image turned by an angle of its own, in degrees; outside of it is 0.

    >>> import everygrad as eg
    >>> eg.data.transforms.RandomRotation(10)(eg.ones((3, 4, 4))).shape
    (3, 4, 4)
    """

    def __init__(self, degrees: Any, generator: Generator | None = None) -> None:
        given = degrees if isinstance(degrees, Sequence) else (-degrees, degrees)
        self.degrees = number_range(given, "RandomRotation", "degrees")
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        require_floating(x, "RandomRotation")
        height, width = x.shape[-2:]
        angle = self._uniform(x, *self.degrees) * (math.pi / 180.0)
        zero, aspect = angle * 0.0, height / width
        # the grid's axes have their own units: an image that is not square is turned in pixels
        across = stack([cos(angle), -sin(angle) * aspect, zero], 1)
        down = stack([sin(angle) / aspect, cos(angle), zero], 1)
        return _sampled(x, stack([across, down], 1), (height, width), "zeros")


class RandomHorizontalFlip(Transform):
    """Each image mirrored left to right, with probability p.

    >>> import everygrad as eg
    >>> eg.data.transforms.RandomHorizontalFlip(1.0)(eg.tensor([[[1.0, 2.0]]])).tolist()
    [[[2.0, 1.0]]]
    """

    _axis = -1

    def __init__(self, p: float = 0.5, generator: Generator | None = None) -> None:
        self.p, self.generator = probability(p, type(self).__name__), generator

    def forward(self, x: Tensor) -> Tensor:
        return where(self._chance(x, self.p), flip(x, self._axis), x)


class RandomVerticalFlip(RandomHorizontalFlip):
    """Each image mirrored top to bottom, with probability p.

    >>> import everygrad as eg
    >>> eg.data.transforms.RandomVerticalFlip(1.0)(eg.tensor([[[1.0], [2.0]]])).tolist()
    [[[2.0], [1.0]]]
    """

    _axis = -2
