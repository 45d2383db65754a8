"""Activations of neural networks, in the names and conventions of PyTorch's functional interface.

Those with a parameter take it as a number. It reaches the kernel as a second input, so that one
kernel serves every value and the derivative is one kernel too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad.compiler.expr import call
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply, binary
from everygrad.errors import ArgumentError, AxisError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import abs, isnan, where
from everygrad.ops.elementwise.math import exp, expm1, log1p, sigmoid, softplus, tanh
from everygrad.ops.nn.softmax_and_norm import softmax
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Elementwise, Function, check_kind, elementwise
from everygrad.ops.record.keywords import cast_first, with_names
from everygrad.ops.record.partials import fast_vjp
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.shape.joining import split

F = "torch.nn.functional:"


def _number(op: str, name: str, value: Any) -> float:
    """A parameter as a float; a tensor would ask for a derivative that there is none of."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentError(f"{op}: {name} must be a number, got {type(value).__name__}")
    return float(value)


# --- without parameters --------------------------------------------------------------------------

relu6: Function = elementwise(
    "relu6",
    lambda x: call("min", call("max", x, 0.0), 6.0),
    (lambda g, out: where((out <= 0) | (out >= 6), 0.0, g),),
    kinds="real float",
    doc="x limited to [0, 6]; NaN stays NaN. The derivative at 0 and at 6 is 0.",
    reference=lambda x: np.clip(x, 0, 6),
    torch=F + "relu6",
    samples=s.unary(-3.0, 9.0),
)
_SELU_SCALE = 1.0507009873554805
_SELU_ALPHA = 1.6732632423543772


def _selu_dx(g: Any, x: Any) -> Any:
    return g * where(x > 0, _SELU_SCALE, _SELU_SCALE * _SELU_ALPHA * exp(where(x > 0, 0.0, x)))


selu: Function = elementwise(
    "selu",
    lambda x: _SELU_SCALE * where(x > 0, x, _SELU_ALPHA * expm1(x)),
    (_selu_dx,),
    kinds="real float",
    doc="The scaled elu that keeps mean 0 and variance 1 through many layers.",
    reference=lambda x: _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(x)),
    torch=F + "selu",
    samples=s.unary(),
)


def _mish_dx(g: Any, x: Any) -> Any:
    bent = tanh(softplus(x))
    return g * (bent + x * (1 - bent * bent) * sigmoid(x))


mish: Function = elementwise(
    "mish",
    lambda x: x * tanh(softplus(x)),
    (_mish_dx,),
    kinds="real float",
    doc="x * tanh(softplus(x)).",
    reference=lambda x: x * np.tanh(np.logaddexp(0, x)),
    torch=F + "mish",
    samples=s.unary(-5.0, 5.0),
)


def _softsign_dx(g: Any, x: Any) -> Any:
    below = 1 + abs(x)
    return g / below / below  # the square would overflow before the slope is 0


softsign: Function = elementwise(
    "softsign",
    lambda x: x / (1 + abs(x)),
    (_softsign_dx,),
    kinds="real float",
    doc="x / (1 + abs(x)).",
    reference=lambda x: x / (1 + np.abs(x)),
    torch=F + "softsign",
    samples=s.unary(),
)
hardsigmoid: Function = elementwise(
    "hardsigmoid",
    lambda x: call("min", call("max", x + 3.0, 0.0), 6.0) / 6.0,
    (lambda g, x: where((x > -3) & (x < 3), g * (1 / 6), 0.0),),
    kinds="real float",
    doc="(x + 3) / 6 limited to [0, 1]. The derivative at -3 and at 3 is 0.",
    reference=lambda x: np.clip(x + 3, 0, 6) / 6,
    torch=lambda torch, x: torch.nn.functional.relu6(x + 3) / 6,  # its own has no second order
    samples=s.unary(-5.0, 5.0),
)
hardswish: Function = elementwise(
    "hardswish",
    lambda x: x * (call("min", call("max", x + 3.0, 0.0), 6.0) / 6.0),
    (lambda g, x: where(x <= -3, 0.0, where(x < 3, g * (x * (1 / 3) + 0.5), g)),),
    kinds="real float",
    doc="x * hardsigmoid(x).",
    reference=lambda x: x * (np.clip(x + 3, 0, 6) / 6),
    torch=F + "hardswish",
    samples=s.unary(-5.0, 5.0),
)


def _tanhshrink_dx(g: Any, x: Any) -> Any:
    bent = tanh(x)
    return g * (bent * bent)


tanhshrink: Function = elementwise(
    "tanhshrink",
    lambda x: x - tanh(x),
    (_tanhshrink_dx,),
    kinds="real float",
    doc="x - tanh(x).",
    reference=lambda x: x - np.tanh(x),
    torch=F + "tanhshrink",
    samples=s.unary(),
)
logsigmoid: Function = elementwise(
    "logsigmoid",
    lambda x: call("min", x, 0.0) - log1p(exp(-abs(x))),
    (lambda g, x: g * sigmoid(-x),),
    kinds="real float",
    doc="log(sigmoid(x)), without the underflow.",
    reference="scipy.special:log_expit",
    torch=F + "logsigmoid",
    samples=s.unary(-5.0, 5.0),
)
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


def _twice_inside(x: Any) -> Any:
    return (2 * _TANH_SCALE) * (x + _TANH_CUBE * x * x * x)


def _gelu_tanh_dx(g: Any, x: Any) -> Any:
    share = sigmoid(_twice_inside(x))
    near = where(abs(x) < 40, x, 0.0)  # further out the share is 0 or 1, and x * x may overflow
    slope = (2 * _TANH_SCALE) * (1 + 3 * _TANH_CUBE * near * near)
    return g * (share * (1 + near * (1 - share) * slope))


gelu_tanh: Function = elementwise(
    "gelu_tanh",
    lambda x: x * sigmoid(_twice_inside(x)),  # (1 + tanh(u)) / 2, which cancels far below 0
    (_gelu_tanh_dx,),
    kinds="real float",
    doc="gelu by its older approximation with tanh.",
    reference=lambda x: 0.5 * x * (1 + np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x**3))),
    torch=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    samples=s.unary(),
    recompute="late",
    epilogue="gelu",
)

# --- with one parameter --------------------------------------------------------------------------


def _fast(op: Elementwise) -> Callable[..., Any]:
    """The function of (x, number), by the shortest way for small tensors."""
    op.__dict__["vjp"] = fast_vjp(op)
    return binary(op)


LEAKY = Elementwise(
    "leaky_relu",
    lambda x, slope: where(x > 0, x, x * slope),
    (
        lambda g, x, slope: where(x > 0, g, g * slope),
        lambda g, x: where(x > 0, 0.0, g * x),
    ),
    kinds="real float",
)
_leaky = _fast(LEAKY)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, negative_slope * x elsewhere; at 0 the derivative is the slope."""
    out: Tensor = _leaky(x, _number("leaky_relu", "negative_slope", negative_slope))
    return out


def _two(*options: float, low: float = -2.0) -> Any:
    """Samples: with the defaults, and with other numbers."""

    def make() -> Any:
        yield sample(s.real(2, 3, low=low))
        yield sample(s.real(4, low=low, seed=1), *options)

    return make


def _tensor_refused(name: str, parameter: str) -> Any:
    return refuse(ArgumentError, f"{name}: {parameter} must be a number", s.real(2), s.real(2))


register(
    LEAKY,
    leaky_relu,
    methods=("leaky_relu",),
    reference=lambda x, slope=0.01: np.where(x > 0, x, x * slope),
    torch=F + "leaky_relu",
    samples=_two(0.2),
    refuses=(_tensor_refused("leaky_relu", "negative_slope"),),
)


@composite(
    kinds="real float",
    reference=lambda x, w: np.where(
        x > 0, x, x * np.reshape(w, np.shape(w) + (1,) * (np.ndim(x) - 2))
    ),
    torch=F + "prelu",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(3, low=0.1, high=0.5)),
            sample(s.real(1, 2, 3), s.real(2, low=0.1, high=0.5)),
        )
    ),
    refuses=(
        refuse(
            ShapeError,
            r"prelu: weight \(2,\) must hold one number, or one for each of 3 channels",
            s.real(2, 3),
            s.real(2),
        ),
        refuse(DtypeError, "prelu: does not take int64", s.integers(2, 3), s.integers(3)),
    ),
)
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, weight * x elsewhere: one weight, or one for each place on axis 1."""
    check_kind("prelu", x.dtype, "real float")
    channels = x.shape[1] if x.ndim > 1 else 1
    if weight.ndim > 1 or weight.size not in (1, channels):
        raise ShapeError(
            f"prelu: weight {weight.shape} must hold one number, or one for each of {channels} "
            f"channels of x {x.shape}"
        )
    shaped = weight.reshape((-1,) + (1,) * max(0, x.ndim - 2)) if x.ndim > 1 else weight.reshape(())
    out: Tensor = _leaky(x, shaped)
    return out


ELU = Elementwise(
    "elu",
    lambda x, alpha: where(x > 0, x, alpha * expm1(x)),
    (lambda g, x, alpha: g * where(x > 0, 1.0, alpha * exp(where(x > 0, 0.0, x))), None),
    kinds="real float",
)
_elu = _fast(ELU)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
    out: Tensor = _elu(x, _number("elu", "alpha", alpha))
    return out


register(
    ELU,
    elu,
    methods=("elu",),
    reference=lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x)),
    torch=F + "elu",
    samples=_two(0.5),
    refuses=(_tensor_refused("elu", "alpha"),),
)
CELU = Elementwise(
    "celu",
    lambda x, alpha: where(x > 0, x, alpha * expm1(x / alpha)),
    (lambda g, x, alpha: g * where(x > 0, 1.0, exp(where(x > 0, 0.0, x) / alpha)), None),
    kinds="real float",
)
_celu = _fast(CELU)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere: smooth for every alpha."""
    if not _number("celu", "alpha", alpha) > 0:
        raise ArgumentError(f"celu: alpha must be positive, got {alpha!r}")
    out: Tensor = _celu(x, float(alpha))
    return out


register(
    CELU,
    celu,
    methods=("celu",),
    reference=lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x / alpha)),
    torch=F + "celu",
    samples=_two(0.5),
    refuses=(
        _tensor_refused("celu", "alpha"),
        refuse(ArgumentError, "celu: alpha must be positive, got 0", s.real(2), 0),
    ),
)
HARDSHRINK = Elementwise(
    "hardshrink",
    lambda x, bound: where(abs(x) <= bound, 0.0, x),
    (lambda g, x, bound: where(abs(x) <= bound, 0.0, g), None),
    kinds="real float",
)
_hardshrink = _fast(HARDSHRINK)


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, and 0 where abs(x) <= lambd; NaN stays NaN."""
    out: Tensor = _hardshrink(x, _number("hardshrink", "lambd", lambd))
    return out


register(
    HARDSHRINK,
    hardshrink,
    methods=("hardshrink",),
    reference=lambda x, lambd=0.5: np.where(np.abs(x) <= lambd, 0, x),
    torch=F + "hardshrink",
    samples=_two(1.0),
    refuses=(_tensor_refused("hardshrink", "lambd"),),
)
SOFTSHRINK = Elementwise(
    "softshrink",
    lambda x, bound: where(
        x > bound, x - bound, where(x < -bound, x + bound, where(isnan(x), x, 0.0))
    ),
    (lambda g, x, bound: where(abs(x) <= bound, 0.0, g), None),
    kinds="real float",
)
_softshrink = _fast(SOFTSHRINK)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 where that would cross it; NaN stays NaN."""
    if not _number("softshrink", "lambd", lambd) >= 0:
        raise ArgumentError(f"softshrink: lambd must not be negative, got {lambd!r}")
    out: Tensor = _softshrink(x, float(lambd))
    return out


register(
    SOFTSHRINK,
    softshrink,
    methods=("softshrink",),
    reference=lambda x, lambd=0.5: np.sign(x) * np.maximum(np.abs(x) - lambd, 0),
    torch=F + "softshrink",
    samples=_two(1.0),
    refuses=(
        _tensor_refused("softshrink", "lambd"),
        refuse(ArgumentError, "softshrink: lambd must not be negative, got -1", s.real(2), -1),
    ),
)

# --- with two ------------------------------------------------------------------------------------

HARDTANH = Elementwise(
    "hardtanh",
    lambda x, low, high: call("min", call("max", x, low), high),
    (lambda g, x, low, high: where((x <= low) | (x >= high), 0.0, g), None, None),
    kinds="real float",
)


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x limited to [min_val, max_val]; unlike that of clamp, the derivative at the bounds is 0."""
    low, high = _number("hardtanh", "min_val", min_val), _number("hardtanh", "max_val", max_val)
    if not low <= high:
        raise ArgumentError(f"hardtanh: min_val {min_val!r} is larger than max_val {max_val!r}")
    return apply(HARDTANH, *HARDTANH.promote(x, low, high))


register(
    HARDTANH,
    hardtanh,
    methods=("hardtanh",),
    reference=lambda x, low=-1.0, high=1.0: np.clip(x, low, high),
    torch=F + "hardtanh",
    samples=_two(-0.5, 0.8),
    refuses=(
        _tensor_refused("hardtanh", "min_val"),
        refuse(ArgumentError, "hardtanh: min_val 1 is larger than max_val 0", s.real(2), 1, 0),
    ),
)
THRESHOLD = Elementwise(
    "threshold",
    lambda x, bound, value: where(x <= bound, value, x),
    (lambda g, x, bound: where(x <= bound, 0.0, g), None, None),
    kinds="real float",
)


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:  # PyTorch's names
    """x where it is above the threshold (or NaN), the value elsewhere."""
    bound, other = (
        _number("threshold", "threshold", threshold),
        _number("threshold", "value", value),
    )
    return apply(THRESHOLD, *THRESHOLD.promote(x, bound, other))


register(
    THRESHOLD,
    threshold,
    methods=("threshold",),
    reference=lambda x, threshold, value: np.where(x <= threshold, value, x),
    torch=F + "threshold",
    samples=lambda: iter((sample(s.real(2, 3), 0.1, 20.0), sample(s.real(4), -1.0, 0.5))),
    refuses=(
        refuse(ArgumentError, "threshold: value must be a number", s.real(2), 0.1, s.real(2)),
    ),
)

# --- of more than one element --------------------------------------------------------------------


def _halves(x: Any, axis: int) -> Any:
    """The reference's gate."""
    a, b = np.split(x, 2, axis)
    return a / (1 + np.exp(-b))


def _gated_dgate(g: Any, x: Any, gate: Any) -> Any:
    share = sigmoid(gate)
    return g * x * (share * (1 - share))


gated: Function = elementwise(
    "gated",
    lambda x, gate: x * sigmoid(gate),
    (lambda g, gate: g * sigmoid(gate), _gated_dgate),
    kinds="real float",
    doc="x * sigmoid(gate).",
    methods=(),
    namespace="internal",
    reference=lambda x, gate: x / (1 + np.exp(-gate)),
    torch=lambda torch, x, gate: x * torch.sigmoid(gate),
    samples=s.binary(),
)


@composite(
    kinds="real float",
    reference=lambda x, axis=-1: _halves(x, axis),
    torch=F + "glu",
    samples=lambda: iter((sample(s.real(2, 4)), sample(s.real(4, 2), axis=0))),
    refuses=(
        refuse(ShapeError, r"glu: axis 1 of \(2, 3\) has no two halves", s.real(2, 3)),
        refuse(AxisError, "glu: axis 2 is out of range", s.real(2, 4), axis=2),
        refuse(DtypeError, "glu: does not take int64", s.integers(4)),
    ),
)
def glu(x: Tensor, axis: int = -1, **names: Any) -> Tensor:
    """The first half of x along the axis times the sigmoid of the second."""
    if names:
        return with_names(glu, names, x, axis)
    check_kind("glu", x.dtype, "real float")
    at = shapes.axis_index(axis, x.ndim, "glu")
    size = x.shape[at]
    if size % 2:
        raise ShapeError(f"glu: axis {at} of {x.shape} has no two halves of equal size")
    out: Tensor = gated(*split(x, [size // 2] * 2, at))
    return out


@composite(
    scalar_rows="row",
    kinds="real float",
    reference=lambda x, axis=-1: np.exp(-x) / np.exp(-x).sum(axis=axis, keepdims=True),
    torch=lambda torch, x, axis=-1: torch.softmax(-x, axis),
    samples=lambda: iter((sample(s.real(2, 3)), sample(s.real(3, 2), axis=0))),
    refuses=(
        refuse(AxisError, "axis 2 is out of range", s.real(2, 4), axis=2),
        refuse(DtypeError, "softmin: does not take int64", s.integers(4)),
    ),
)
def softmin(x: Tensor, axis: int = -1, **names: Any) -> Tensor:
    """exp(-x) scaled to sum to 1 along the axis."""
    if names:
        return with_names(softmin, *cast_first(x, names), axis)
    axis = shapes.axis_index(axis, x.ndim, "softmin")
    check_kind("softmin", x.dtype, "real float")
    return softmax(-x, axis)
