"""Transforms of whole batches with their labels."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.data.sampler import positive
from everygrad.data.transforms.base import (
    drawn_dtype,
    require_floating,
)
from everygrad.data.transforms.colour import box
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.arithmetic import clip
from everygrad.ops.elementwise.basic import floor, sqrt, where
from everygrad.ops.python.creation import asarray
from everygrad.ops.random.continuous import beta
from everygrad.ops.random.generators import Generator, rand
from everygrad.ops.shape.builders import one_hot
from everygrad.ops.shape.joining import roll


class MixUp:
    """Each image blended with the one before it in the batch, and the labels with them, as rows of
    `num_classes`; the share is drawn from Beta(alpha, alpha), once for a batch.

    >>> import everygrad as eg
    >>> x, y = eg.data.transforms.MixUp(num_classes=2)(eg.ones((2, 1, 1, 1)), eg.tensor([0, 1]))
    >>> x.shape, y.shape
    ((2, 1, 1, 1), (2, 2))
    """

    def __init__(
        self, alpha: float = 1.0, num_classes: int | None = None, generator: Generator | None = None
    ) -> None:
        name = type(self).__name__
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha > 0:
            raise ArgumentError(f"{name}: alpha must be above 0, got {alpha!r}")
        self.alpha, self.generator = float(alpha), generator
        self.num_classes = (
            None if num_classes is None else positive(num_classes, name, "num_classes")
        )

    def __call__(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        x, y = (v if isinstance(v, Tensor) else asarray(v) for v in (x, y))
        name = type(self).__name__
        require_floating(x, name)
        if x.ndim != 4 or y.ndim < 1 or y.shape[0] != x.shape[0]:
            raise ShapeError(
                f"{name}: takes a batch (n, channels, height, width) and n labels, got {x.shape} "
                f"and {y.shape}"
            )
        if y.ndim == 1:
            if self.num_classes is None:
                raise ArgumentError(f"{name}: labels as numbers need num_classes")
            y = one_hot(y, self.num_classes).astype(x.dtype)
        share = beta(self.alpha, self.alpha, (), drawn_dtype(x), x.device, self.generator)
        x, share = self._mixed(x, share)
        share = share.astype(y.dtype)
        return x, y * share + roll(y, 1, 0) * (1.0 - share)

    def _mixed(self, x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        own = share.astype(x.dtype)
        return x * own + roll(x, 1, 0) * (1.0 - own), share


class CutMix(MixUp):
    """A rectangle of each image replaced by that of the image before it in the batch, and the
    labels blended by its area.

    >>> import everygrad as eg
    >>> x, y = eg.data.transforms.CutMix(num_classes=2)(eg.ones((2, 1, 4, 4)), eg.tensor([0, 1]))
    >>> x.shape, y.shape
    ((2, 1, 4, 4), (2, 2))
    """

    def _mixed(self, x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        height, width = x.shape[-2:]
        half = sqrt(1.0 - share) * 0.5
        places = rand((2,), drawn_dtype(x), x.device, self.generator)
        line, column = floor(places[0] * float(height)), floor(places[1] * float(width))
        top = clip(floor(line - half * float(height)), 0.0, float(height))
        left = clip(floor(column - half * float(width)), 0.0, float(width))
        h = clip(floor(line + half * float(height)), 0.0, float(height)) - top
        w = clip(floor(column + half * float(width)), 0.0, float(width)) - left
        inside = box(x, top, left, h, w)
        return where(inside, roll(x, 1, 0), x), 1.0 - h * w / float(height * width)
