"""Activations as modules."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.nn import functional as F
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import full


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


class ReLU6(Module):
    """x limited to [0, 6]."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.relu6(x)
        return out


class SELU(Module):
    """The scaled elu that keeps mean 0 and variance 1 through many layers."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.selu(x)
        return out


class Mish(Module):
    """x * tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.mish(x)
        return out


class Softsign(Module):
    """x / (1 + abs(x))."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.softsign(x)
        return out


class Hardsigmoid(Module):
    """(x + 3) / 6 limited to [0, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.hardsigmoid(x)
        return out


class Hardswish(Module):
    """x * hardsigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.hardswish(x)
        return out


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.tanhshrink(x)
        return out


class LogSigmoid(Module):
    """log(sigmoid(x)), without the underflow."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.logsigmoid(x)
        return out


class ELU(Module):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class CELU(Module):
    """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.celu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class Hardshrink(Module):
    """x, and 0 where abs(x) <= lambd."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return F.hardshrink(x, self.lambd)

    def extra_repr(self) -> str:
        return f"lambd={self.lambd}"


class Softshrink(Module):
    """x moved towards 0 by lambd, and 0 where that would cross it."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return F.softshrink(x, self.lambd)

    def extra_repr(self) -> str:
        return f"lambd={self.lambd}"


class Hardtanh(Module):
    """x limited to [min_val, max_val]; the derivative at the bounds is 0."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__()
        if not min_val < max_val:
            raise ArgumentError(f"Hardtanh: min_val {min_val!r} must be below max_val {max_val!r}")
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class Threshold(Module):
    """x where it is above the threshold, the value elsewhere."""

    def __init__(self, threshold: float, value: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return F.threshold(x, self.threshold, self.value)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, value={self.value}"


class GLU(Module):
    """The first half of x along the axis times the sigmoid of the second."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(x, self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class PReLU(Module):
    """x where it is positive, weight * x elsewhere; one weight, or one for each channel."""

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, dtype: Any = None, device: Any = None
    ) -> None:
        super().__init__()
        if num_parameters < 1:
            raise ArgumentError(f"PReLU: num_parameters must be positive, got {num_parameters!r}")
        self.num_parameters = num_parameters
        self.weight = Parameter(full((num_parameters,), float(init), dtype, device))

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
