"""Activations as modules."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn import functional as F
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import full
from everygrad.ops.random.generators import Generator
from everygrad.ops.random.layers import check_slopes


class _InPlace(Module):
    """An activation that PyTorch can compute in place: `inplace` is taken and makes no difference,
    for values never change in place here."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class ReLU(_InPlace):
    """The larger of x and 0.

    >>> import everygrad as eg
    >>> eg.nn.ReLU(inplace=True)(eg.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.relu(x)
        return out


class LeakyReLU(_InPlace):
    """x where it is positive, negative_slope * x elsewhere."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return _shown(f"negative_slope={self.negative_slope}", self.inplace)


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


class SiLU(_InPlace):
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

    def __init__(self, axis: int = -1, dim: int | None = None) -> None:
        super().__init__()
        self.axis = axis if dim is None else dim

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class LogSoftmax(Softmax):
    """The logarithm of softmax, without going through it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(x, self.axis)


class Softmin(Softmax):
    """The softmax of -x: the smaller an element, the larger its share."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softmin(x, self.axis)


class Softmax2d(Module):
    """Softmax over the channels of (batch, channels, height, width), or without the batch."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: takes 3 or 4 dimensions, got {x.shape}")
        return F.softmax(x, -3)


class ReLU6(_InPlace):
    """x limited to [0, 6]."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.relu6(x)
        return out


class SELU(_InPlace):
    """The scaled elu that keeps mean 0 and variance 1 through many layers."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.selu(x)
        return out


class Mish(_InPlace):
    """x * tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.mish(x)
        return out


class Softsign(Module):
    """x / (1 + abs(x))."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.softsign(x)
        return out


class Hardsigmoid(_InPlace):
    """(x + 3) / 6 limited to [0, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.hardsigmoid(x)
        return out


class Hardswish(_InPlace):
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


class ELU(_InPlace):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return _shown(f"alpha={self.alpha}", self.inplace)


class CELU(_InPlace):
    """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.celu(x, self.alpha)

    def extra_repr(self) -> str:
        return _shown(f"alpha={self.alpha}", self.inplace)


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


class Hardtanh(_InPlace):
    """x limited to [min_val, max_val]; the derivative at the bounds is 0."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        if not min_val < max_val:
            raise ArgumentError(f"Hardtanh: min_val {min_val!r} must be below max_val {max_val!r}")
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return _shown(f"min_val={self.min_val}, max_val={self.max_val}", self.inplace)


class Threshold(_InPlace):
    """x where it is above the threshold, the value elsewhere."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold = threshold
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return F.threshold(x, self.threshold, self.value)

    def extra_repr(self) -> str:
        return _shown(f"threshold={self.threshold}, value={self.value}", self.inplace)


class RReLU(_InPlace):
    """x where it is positive; elsewhere x times a slope drawn uniformly from [lower, upper].

    In evaluation the slope is the middle of the two.

    >>> import everygrad as eg
    >>> eg.nn.RReLU(0.1, 0.3).eval()(eg.tensor([-1.0, 2.0]))
    tensor([-0.2,  2. ])
    """

    def __init__(
        self,
        lower: float = 1.0 / 8,
        upper: float = 1.0 / 3,
        inplace: bool = False,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(inplace)
        check_slopes("RReLU", lower, upper)
        self.lower = lower
        self.upper = upper
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        return F.rrelu(x, self.lower, self.upper, self.training, generator=self.generator)

    def extra_repr(self) -> str:
        return _shown(f"lower={self.lower}, upper={self.upper}", self.inplace)


class GLU(Module):
    """The first half of x along the axis times the sigmoid of the second."""

    def __init__(self, axis: int = -1, dim: int | None = None) -> None:
        super().__init__()
        self.axis = axis if dim is None else dim

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


def _shown(text: str, inplace: bool) -> str:
    return f"{text}, inplace=True" if inplace else text
