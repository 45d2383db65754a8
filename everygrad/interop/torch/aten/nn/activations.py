"""Activations and softmaxes, with the backwards that PyTorch names.

16-bit floats are computed in float32 and rounded once, as PyTorch does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.dtypes import DType
from everygrad.interop.torch.aten.derivatives import pulled, wide
from everygrad.interop.torch.aten.registry import aten
from everygrad.nn import functional as F
from everygrad.ops.elementwise.basic import clamp, where
from everygrad.ops.elementwise.math import exp, expm1, sigmoid
from everygrad.ops.random.generators import uniform

# --- softmaxes -----------------------------------------------------------------------------------


def _rows(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """A softmax along an axis; a 0-d tensor is a row of one."""

    def run(x: Tensor, dim: int, how: Any = None) -> Tensor:
        x = wide(x.astype(how) if isinstance(how, DType) else x)
        if not x.ndim:
            return function(x.reshape((1,)), 0).reshape(())
        return function(x, dim)

    return run


aten("_softmax.default", "softmax.int")(_rows(F.softmax))
aten("_log_softmax.default", "log_softmax.int")(_rows(F.log_softmax))


@aten("_safe_softmax.default")
@_rows
def safe_softmax(x: Tensor, dim: int) -> Tensor:
    """Zeros along rows in which everything is minus infinity."""
    alive = (x != -math.inf).any(axis=dim, keepdims=True)
    out: Tensor = where(alive, F.softmax(where(alive, x, 0.0), dim), 0.0)
    return out


@aten("_softmax_backward_data.default")
def softmax_backward(g: Tensor, out: Tensor, dim: int, input_dtype: DType) -> Tensor:
    g, out = wide(g), wide(out)
    if not out.ndim:
        return g * out - out * (g * out)
    weighed = g * out
    return weighed - out * weighed.sum(axis=dim, keepdims=True)


@aten("_log_softmax_backward_data.default")
def log_softmax_backward(g: Tensor, out: Tensor, dim: int, input_dtype: DType) -> Tensor:
    g, out = wide(g), wide(out)
    if not out.ndim:
        return g - exp(out) * g
    return g - exp(out) * g.sum(axis=dim, keepdims=True)


# --- smooth ones, differentiated by our own rules ------------------------------------------------


def same(x: Tensor) -> Tensor:
    return x


def _smooth(name: str, function: Callable[..., Any]) -> None:
    """`name` and its backward, whose arguments behind the gradient are the forward's."""
    # one op of ours is computed in float32 and rounded once by itself, perhaps by the product
    # before it
    widened: Callable[[Tensor], Tensor] = same if name in ("gelu", "silu") else wide

    def forward(x: Tensor, *options: Any, **named: Any) -> Tensor:
        out: Tensor = function(widened(x), *options, **named)
        return out

    def backward(g: Tensor, x: Tensor, *options: Any, **named: Any) -> Tensor:
        (found,) = pulled(lambda x: function(x, *options, **named), widened(g), widened(x))
        return found

    aten(f"{name}.default")(forward)
    aten(f"{name}_backward.default")(backward)


for _name, _function in {
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "glu": F.glu,
}.items():
    _smooth(_name, _function)


def _plain(name: str, function: Callable[..., Any]) -> None:
    def forward(x: Tensor, *options: Any, **named: Any) -> Tensor:
        out: Tensor = function(wide(x), *options, **named)
        return out

    aten(f"{name}.default")(forward)


_plain("celu", F.celu)
_plain("selu", F.selu)
_plain("log_sigmoid", F.logsigmoid)


@aten("sigmoid_backward.default")
def sigmoid_backward(g: Tensor, out: Tensor) -> Tensor:
    g, out = wide(g), wide(out)
    return (
        g * (out.conj() * (1 - out.conj()))
        if out.dtype.kind == "complex"
        else (g * (out * (1 - out)))
    )


@aten("tanh_backward.default")
def tanh_backward(g: Tensor, out: Tensor) -> Tensor:
    g, out = wide(g), wide(out)
    out = out.conj() if out.dtype.kind == "complex" else out
    return g * (1 - out * out)


@aten("logit_backward.default")
def logit_backward(g: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    g, x = wide(g), wide(x)
    low = 0.0 if eps is None else eps
    inside = (x >= low) & (x <= 1 - low)
    found: Tensor = where(inside, g / (x * (1 - x)), math.nan if eps is None else 0.0)
    return found


@aten("log_sigmoid_forward.default")
def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """The second is what PyTorch's CPU kernel keeps: exp(-|x|)."""
    x = wide(x)
    return F.logsigmoid(x), exp(-x.abs())


@aten("log_sigmoid_backward.default")
def log_sigmoid_backward(g: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return wide(g) * sigmoid(-wide(x))


# --- those with corners, where PyTorch says which side counts ------------------------------------


@aten("relu6.default")
def relu6(x: Tensor) -> Tensor:
    return clamp(x, 0, 6)


@aten("threshold.default")
def threshold(x: Tensor, limit: float, value: float) -> Tensor:
    # a NaN is not below the limit, and stays
    found: Tensor = where(x <= limit, value, x)
    return found


@aten("threshold_backward.default")
def threshold_backward(g: Tensor, x: Tensor, limit: float) -> Tensor:
    found: Tensor = where(x <= limit, 0, g)
    return found


@aten("hardtanh.default")
def hardtanh(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return clamp(x, min_val, max_val)


@aten("hardtanh_backward.default")
def hardtanh_backward(g: Tensor, x: Tensor, min_val: float, max_val: float) -> Tensor:
    found: Tensor = where((x <= min_val) | (x >= max_val), 0, g)
    return found


@aten("hardsigmoid.default")
def hardsigmoid(x: Tensor) -> Tensor:
    return clamp(wide(x) + 3, 0, 6) / 6


@aten("hardsigmoid_backward.default")
def hardsigmoid_backward(g: Tensor, x: Tensor) -> Tensor:
    found: Tensor = where((x > -3) & (x < 3), wide(g) * (1 / 6), 0.0)
    return found


@aten("hardswish.default")
def hardswish(x: Tensor) -> Tensor:
    x = wide(x)
    return x * clamp(x + 3, 0, 6) / 6


@aten("hardswish_backward.default")
def hardswish_backward(g: Tensor, x: Tensor) -> Tensor:
    g, x = wide(g), wide(x)
    found: Tensor = where(x <= -3, 0.0, where(x < 3, g * (x / 3 + 0.5), g))
    return found


@aten("leaky_relu.default")
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    x = wide(x)
    found: Tensor = where(x > 0, x, x * negative_slope)
    return found


@aten("leaky_relu_backward.default")
def leaky_relu_backward(
    g: Tensor, x: Tensor, negative_slope: float, self_is_result: bool
) -> Tensor:
    g = wide(g)
    found: Tensor = where(x > 0, g, g * negative_slope)
    return found


@aten("prelu.default")
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = F.prelu(wide(x), wide(weight))
    return out


@aten("_prelu_kernel.default")
def prelu_kernel(x: Tensor, weight: Tensor) -> Tensor:
    """The weight is shaped to broadcast already."""
    x, weight = wide(x), wide(weight)
    found: Tensor = where(x > 0, x, x * weight)
    return found


@aten("_prelu_kernel_backward.default")
def prelu_kernel_backward(g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both have x's shape: what broadcast the weight sums its gradient up."""
    g, x, weight = wide(g), wide(x), wide(weight)
    return where(x > 0, g, g * weight), where(x > 0, 0.0, g * x)


@aten("elu.default")
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    x = wide(x)
    low = expm1(where(x > 0, 0.0, x) * input_scale) * (alpha * scale)
    found: Tensor = where(x > 0, x * scale, low)
    return found


@aten("elu_backward.default")
def elu_backward(
    g: Tensor,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    x: Tensor,
) -> Tensor:
    g, x = wide(g), wide(x)
    if is_result:
        low = (x + alpha * scale) * input_scale
    else:
        low = exp(where(x > 0, 0.0, x) * input_scale) * (input_scale * alpha * scale)
    found: Tensor = where(x > 0, g * scale, g * low)
    return found


# --- with random slopes --------------------------------------------------------------------------


@aten("rrelu_with_noise_functional.default")
def rrelu_functional(
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: None = None,
) -> tuple[Tensor, Tensor]:
    """The noise is the slope of each element."""
    if not training:
        return leaky_relu(x, (lower + upper) / 2), noise
    drawn = uniform(lower, upper, x.shape, x.dtype, x.device)
    slopes = where(x <= 0, drawn, 1.0)
    return x * slopes, slopes


@aten("rrelu_with_noise_backward.default")
def rrelu_backward(
    g: Tensor,
    x: Tensor,
    noise: Tensor,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> Tensor:
    if training and upper - lower > 1e-6:
        return g * noise
    return leaky_relu_backward(g, x, (lower + upper) / 2, self_is_result)
