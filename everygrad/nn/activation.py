"""Activations as modules."""

from __future__ import annotations

from everygrad.errors import ArgumentError
from everygrad.nn import functional as F
from everygrad.nn.module import Module
from everygrad.tensor import Tensor


class ReLU(Module):
    """The larger of x and 0."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.relu(x)
        return out


class LeakyReLU(Module):
    """x where it is positive, negative_slope * x elsewhere."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class GELU(Module):
    """x times the share of a standard normal below x; approximate="tanh" for the older formula."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ArgumentError(f'GELU: approximate must be "none" or "tanh", got {approximate!r}')
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.silu(x)
        return out


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.sigmoid(x)
        return out


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.tanh(x)
        return out


class Softplus(Module):
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        if not beta > 0:
            raise ArgumentError(f"Softplus: beta must be positive, got {beta!r}")
        self.beta = beta
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Softmax(Module):
    """exp(x) scaled to sum to 1 along the axis."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class LogSoftmax(Softmax):
    """The logarithm of softmax, without going through it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(x, self.axis)
