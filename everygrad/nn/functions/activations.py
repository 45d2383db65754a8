"""Activations that take PyTorch's `inplace`, which makes no difference: values never change."""

from __future__ import annotations

from everygrad.core.tensor import Tensor
from everygrad.ops.elementwise import activations as op
from everygrad.ops.elementwise.math import relu as _relu, silu as _silu


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    """The larger of x and 0.

    >>> import everygrad as eg
    >>> eg.nn.functional.relu(eg.tensor([-1.0, 2.0]), inplace=True)
    tensor([0., 2.])
    """
    out: Tensor = _relu(x)
    return out


def relu6(x: Tensor, inplace: bool = False) -> Tensor:
    """x limited to [0, 6].

    >>> import everygrad as eg
    >>> eg.nn.functional.relu6(eg.tensor([-1.0, 9.0]))
    tensor([0., 6.])
    """
    out: Tensor = op.relu6(x)
    return out


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x).

    >>> import everygrad as eg
    >>> eg.nn.functional.silu(eg.tensor([0.0]))
    tensor([0.])
    """
    out: Tensor = _silu(x)
    return out


def selu(x: Tensor, inplace: bool = False) -> Tensor:
    """The scaled elu that keeps mean 0 and variance 1 through many layers.

    >>> import everygrad as eg
    >>> eg.nn.functional.selu(eg.tensor([0.0]))
    tensor([0.])
    """
    out: Tensor = op.selu(x)
    return out


def mish(x: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x)).

    >>> import everygrad as eg
    >>> eg.nn.functional.mish(eg.tensor([0.0]))
    tensor([0.])
    """
    out: Tensor = op.mish(x)
    return out


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """(x + 3) / 6 limited to [0, 1].

    >>> import everygrad as eg
    >>> eg.nn.functional.hardsigmoid(eg.tensor([0.0, 9.0]))
    tensor([0.5, 1. ])
    """
    out: Tensor = op.hardsigmoid(x)
    return out


def hardswish(x: Tensor, inplace: bool = False) -> Tensor:
    """x * hardsigmoid(x).

    >>> import everygrad as eg
    >>> eg.nn.functional.hardswish(eg.tensor([-3.0, 3.0]))
    tensor([-0.,  3.])
    """
    out: Tensor = op.hardswish(x)
    return out


def leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where it is positive, negative_slope * x elsewhere.

    >>> import everygrad as eg
    >>> eg.nn.functional.leaky_relu(eg.tensor([-1.0, 2.0]), 0.5)
    tensor([-0.5,  2. ])
    """
    return op.leaky_relu(x, negative_slope)


def elu(x: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere.

    >>> import everygrad as eg
    >>> eg.nn.functional.elu(eg.tensor([0.0, 2.0]))
    tensor([0., 2.])
    """
    return op.elu(x, alpha)


def celu(x: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere.

    >>> import everygrad as eg
    >>> eg.nn.functional.celu(eg.tensor([0.0, 2.0]))
    tensor([0., 2.])
    """
    return op.celu(x, alpha)


def hardtanh(
    x: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """x limited to [min_val, max_val]; the derivative at the bounds is 0.

    >>> import everygrad as eg
    >>> eg.nn.functional.hardtanh(eg.tensor([-3.0, 0.5]))
    tensor([-1. ,  0.5])
    """
    return op.hardtanh(x, min_val, max_val)


def threshold(x: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above the threshold (or NaN), the value elsewhere.

    >>> import everygrad as eg
    >>> eg.nn.functional.threshold(eg.tensor([0.0, 2.0]), 1.0, 7.0)
    tensor([7., 2.])
    """
    return op.threshold(x, threshold, value)
