"""What all transforms share: a function of batches of images, and its checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.data.sampler import positive
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.python.creation import asarray
from everygrad.ops.random.generators import Generator, rand


class Transform:
    """A function of images with settings; subclasses write `forward(x)`, of a batch."""

    generator: Generator | None = None

    def __call__(self, x: Any) -> Any:
        x = x if isinstance(x, Tensor) else asarray(x)
        if x.ndim < 3:
            raise ShapeError(
                f"{type(self).__name__}: takes (..., channels, height, width), got {x.shape}"
            )
        if x.ndim == 4:
            return self.forward(x)
        out = self.forward(x.reshape(-1, *x.shape[-3:]))
        return out.reshape(*x.shape[:-3], *out.shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__}: write forward(self, x)")

    def _uniform(self, x: Tensor, low: float, high: float) -> Tensor:
        """One number for each image."""
        return rand((x.shape[0],), drawn_dtype(x), x.device, self.generator) * (high - low) + low

    def _chance(self, x: Tensor, p: float) -> Tensor:
        """True with probability p for each image, as (n, 1, 1, 1)."""
        return (rand((x.shape[0],), dtypes.float32, x.device, self.generator) < p).reshape(
            -1, 1, 1, 1
        )

    def __repr__(self) -> str:
        shown = {k: v for k, v in vars(self).items() if not k.startswith("_") and v is not None}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"


def drawn_dtype(x: Tensor) -> dtypes.DType:
    """In which dtype parameters are drawn and images computed."""
    return dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32


def pair(size: Any, owner: str, what: str = "size") -> tuple[int, int]:
    if isinstance(size, Sequence):
        if len(size) != 2:
            raise ArgumentError(f"{owner}: {what} is a number or (height, width), got {size!r}")
        return positive(size[0], owner, what), positive(size[1], owner, what)
    return positive(size, owner, what), positive(size, owner, what)


def probability(p: Any, owner: str) -> float:
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise ArgumentError(f"{owner}: p must be between 0 and 1, got {p!r}")
    return float(p)


def number_range(given: Any, owner: str, what: str, low: float = -math.inf) -> tuple[float, float]:
    if not isinstance(given, Sequence) or len(given) != 2 or not low <= given[0] <= given[1]:
        raise ArgumentError(f"{owner}: {what} must be (low, high), from {low} on, got {given!r}")
    return float(given[0]), float(given[1])


def require_floating(x: Tensor, owner: str) -> None:
    if not x.dtype.is_float:
        raise DtypeError(f"{owner}: takes floating point, got {x.dtype}; put ToFloat() before it")


class Compose:
    """Transforms, one after the other.

    >>> import everygrad as eg
    >>> T = eg.data.transforms
    >>> T.Compose([T.CenterCrop(2), T.RandomVerticalFlip(p=1.0)])(eg.ones((3, 4, 4))).shape
    (3, 2, 2)
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: Any) -> Any:
        for t in self.transforms:
            x = t(x)
        return x

    def __repr__(self) -> str:
        return f"Compose({self.transforms!r})"


class Lambda(Transform):
    """Any function as a transform.

    >>> import everygrad as eg
    >>> eg.data.transforms.Lambda(lambda x: x * 2)(eg.ones((1, 1, 1))).item()
    2.0
    """

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        self.lambd = lambd

    def __call__(self, x: Any) -> Any:
        return self.lambd(x)
