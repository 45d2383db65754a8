"""Starting values: each function gives its tensor new values, in place, and returns it.

Nothing is recorded. Without a generator the numbers come from the default one (`eg.manual_seed`).
"""

from __future__ import annotations

import math
from typing import Any

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor, refuse_lost_write
from everygrad.errors import ArgumentError, GradientError, ShapeError
from everygrad.ops.python.creation import eye, full_like
from everygrad.ops.python.inplace import assign
from everygrad.ops.random import generators
from everygrad.ops.random.generators import Generator

_GAINS = {
    "linear": 1.0,
    "conv2d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


def _fill(t: Tensor, new: Tensor, op: str) -> Tensor:
    if not t.is_leaf:
        raise GradientError(f"{op}: this tensor is the result of an op; fill a leaf, or detach()")
    refuse_lost_write(t, op, "fill that one, and then write its part: x[i] = v")
    with no_grad():
        return assign(t, new, op)


def uniform_(
    t: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Uniform numbers in [a, b)."""
    return _fill(t, generators.uniform(a, b, t.shape, t.dtype, t.device, generator), "uniform_")


def normal_(
    t: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Normal numbers."""
    return _fill(t, generators.normal(mean, std, t.shape, t.dtype, t.device, generator), "normal_")


def constant_(t: Tensor, val: float) -> Tensor:
    """Every element `val`."""
    return _fill(t, full_like(t, val), "constant_")


def zeros_(t: Tensor) -> Tensor:
    """Every element 0."""
    return _fill(t, full_like(t, 0), "zeros_")


def ones_(t: Tensor) -> Tensor:
    """Every element 1."""
    return _fill(t, full_like(t, 1), "ones_")


def eye_(t: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix, zeros elsewhere."""
    if t.ndim != 2:
        raise ShapeError(f"eye_: takes a matrix, got shape {t.shape}")
    rows, columns = t.shape
    return _fill(t, eye(rows, columns, dtype=t.dtype, device=t.device), "eye_")


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much a layer must spread its weights so that what follows keeps the variance.

    >>> calculate_gain("leaky_relu", 1.0)
    1.0
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1.0 + slope**2))
    if nonlinearity not in _GAINS:
        known = ", ".join((*_GAINS, "leaky_relu"))
        raise ArgumentError(f"calculate_gain: no gain for {nonlinearity!r}; there is {known}")
    return _GAINS[nonlinearity]


def fans(t: Tensor) -> tuple[int, int]:
    """How many inputs each output of this weight has, and how many outputs each input."""
    if t.ndim < 2:
        raise ShapeError(f"fans: a weight of shape {t.shape} has no fan; it needs 2 dimensions")
    taps = math.prod(t.shape[2:])
    return t.shape[1] * taps, t.shape[0] * taps


def xavier_uniform_(t: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform within gain * sqrt(6 / (fan in + fan out))."""
    bound = gain * math.sqrt(6.0 / max(1, sum(fans(t))))
    return uniform_(t, -bound, bound, generator)


def xavier_normal_(t: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with standard deviation gain * sqrt(2 / (fan in + fan out))."""
    return normal_(t, 0.0, gain * math.sqrt(2.0 / max(1, sum(fans(t)))), generator)


def _kaiming_std(t: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f'kaiming: mode must be "fan_in" or "fan_out", got {mode!r}')
    fan = fans(t)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(1, fan))


def kaiming_uniform_(
    t: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform within gain * sqrt(3 / fan); `a` is the slope of a leaky_relu below 0."""
    bound = math.sqrt(3.0) * _kaiming_std(t, a, mode, nonlinearity)
    return uniform_(t, -bound, bound, generator)


def kaiming_normal_(
    t: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal with standard deviation gain / sqrt(fan)."""
    return normal_(t, 0.0, _kaiming_std(t, a, mode, nonlinearity), generator)


def linear_defaults(weight: Tensor, bias: Any) -> None:
    """PyTorch's start for Linear and Conv2d: both uniform within 1 / sqrt(fan in)."""
    kaiming_uniform_(weight, a=math.sqrt(5.0))
    if bias is not None:
        fan_in, _ = fans(weight)
        bound = 1.0 / math.sqrt(fan_in) if fan_in else 0.0
        uniform_(bias, -bound, bound)
