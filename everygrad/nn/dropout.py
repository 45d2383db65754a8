"""Dropout of elements and of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.nn import functional as F
from everygrad.nn.module import Module
from everygrad.ops.random.generators import Generator


def check_probability(layer: str, name: str, p: float) -> None:
    """Refuse what is no probability."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"{layer}: {name} must be between 0 and 1, got {p!r}")


class _Dropout(Module):
    """What the layers share; `inplace` is taken and makes no difference."""

    function: ClassVar[Callable[..., Any]]

    def __init__(
        self, p: float = 0.5, inplace: Any = False, generator: Generator | None = None
    ) -> None:
        super().__init__()
        if isinstance(inplace, Generator):
            inplace, generator = False, inplace
        check_probability(type(self).__name__, "p", p)
        self.p = p
        self.inplace = inplace
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = type(self).function(x, self.p, self.training, generator=self.generator)
        return out

    def extra_repr(self) -> str:
        return f"p={self.p}" + (", inplace=True" if self.inplace else "")


class Dropout(_Dropout):
    """In training each element is 0 with probability p, else scaled by 1 / (1 - p).

    >>> import everygrad as eg
    >>> eg.nn.Dropout(0.5).eval()(eg.ones((2,)))
    tensor([1., 1.])
    """

    function = staticmethod(F.dropout)


class Dropout1d(_Dropout):
    """In training each channel of (batch, channels, length) is 0 with probability p.

    >>> import everygrad as eg
    >>> eg.nn.Dropout1d(1.0)(eg.ones((1, 2, 3))).sum().item()
    0.0
    """

    function = staticmethod(F.dropout1d)


class Dropout2d(_Dropout):
    """In training each channel of a batch of images is 0 with probability p.

    >>> import everygrad as eg
    >>> eg.nn.Dropout2d(1.0)(eg.ones((1, 2, 3, 3))).sum().item()
    0.0
    """

    function = staticmethod(F.dropout2d)


class Dropout3d(_Dropout):
    """In training each channel of a batch of volumes is 0 with probability p.

    >>> import everygrad as eg
    >>> eg.nn.Dropout3d(1.0)(eg.ones((1, 2, 3, 3, 3))).sum().item()
    0.0
    """

    function = staticmethod(F.dropout3d)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean 0 and variance 1, for networks of SELU.

    >>> import everygrad as eg
    >>> eg.nn.AlphaDropout(0.5).eval()(eg.ones((2,)))
    tensor([1., 1.])
    """

    function = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """Alpha dropout of whole channels of (batch, channels, ...).

    >>> import everygrad as eg
    >>> eg.nn.FeatureAlphaDropout(0.5).eval()(eg.ones((1, 2))).shape
    (1, 2)
    """

    function = staticmethod(F.feature_alpha_dropout)
