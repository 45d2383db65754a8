"""Elementwise functions of analysis and of neural networks: exponentials, angles, activations.

A rule that divides by what may be 0 divides by 1 there, and chooses the limit: `where` alone would
multiply an infinite slope by 0 when the rule is differentiated again.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from everygrad.compiler.expr import call
from everygrad.compiler.facts import Neutral
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import (
    MISFIT,
    NOT_BOOL,
    abs,
    intrinsic,
    is_complex,
    isinf,
    maximum,
    reflected,
    round,
    sign,
    sqrt,
    where,
)
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Elementwise, Function, elementwise
from everygrad.ops.record.spec import REGISTRY, refuse, with_options

# --- exponentials and logarithms -----------------------------------------------------------------

exp: Function = elementwise(
    "exp",
    intrinsic("exp"),
    (lambda g, out: g * out,),
    kinds="float",
    doc="e to the power x.",
    reference=np.exp,
    samples=s.unary(),
    precision="float32",
)
exp2: Function = elementwise(
    "exp2",
    intrinsic("exp2"),
    (lambda g, out: g * out * math.log(2.0),),
    kinds="float",
    doc="2 to the power x.",
    reference=np.exp2,
    samples=s.unary(),
    precision="float32",
)
expm1: Function = elementwise(
    "expm1",
    intrinsic("expm1"),
    (lambda g, out: g * (out + 1),),
    kinds="float",
    doc="exp(x) - 1, exact near 0.",
    reference=np.expm1,
    samples=s.unary(),
    precision="float32",
)
log: Function = elementwise(
    "log",
    intrinsic("log"),
    (lambda g, x: g / x,),
    kinds="float",
    doc="The natural logarithm.",
    reference=np.log,
    samples=s.unary(0.1),
    precision="float32",
)
log1p: Function = elementwise(
    "log1p",
    intrinsic("log1p"),
    (lambda g, x: g / (x + 1),),
    kinds="float",
    doc="log(1 + x), exact near 0.",
    reference=np.log1p,
    samples=s.unary(-0.9),
    precision="float32",
)
log2: Function = elementwise(
    "log2",
    intrinsic("log2"),
    (lambda g, x: g / (x * math.log(2.0)),),
    kinds="float",
    doc="The logarithm to base 2.",
    reference=np.log2,
    samples=s.unary(0.1),
    precision="float32",
)
log10: Function = elementwise(
    "log10",
    intrinsic("log10"),
    (lambda g, x: g / (x * math.log(10.0)),),
    kinds="float",
    doc="The logarithm to base 10.",
    reference=np.log10,
    samples=s.unary(0.1),
    precision="float32",
)


def _pow_dx(g: Any, x: Any, y: Any) -> Any:
    return where(y == 0, 0.0, g * y * x ** where(y == 0, 1.0, y - 1))


def _pow_dy(g: Any, x: Any, out: Any) -> Any:
    # 0 ** y is flat for y >= 0; below, and for negative x, the logarithm says what there is: as in
    # PyTorch an infinite slope, and NaN where powers exist at isolated exponents only
    flat = (x == 0) & ((out == 0) | (out == 1))
    return where(flat, 0.0, g * out * log(where(flat, 1.0, x)))


def _pow_dy_complex(g: Any, x: Any, out: Any) -> Any:
    return where(x == 0, 0.0, g * out * log(where(x == 0, 1.0, x)))


_NO_INTEGER = 'pow: an integer to a negative power is no integer; cast with astype("float64")'


def _powers(*values: Any) -> tuple[Tensor, ...]:
    """Operands, of which integers have no negative exponents."""
    x, y = Elementwise.promote(POW, *values)
    if x.dtype.kind == "int":
        given = values[1]
        if not isinstance(given, Tensor):
            if given < 0:
                raise ArgumentError(f"{_NO_INTEGER}: {x.dtype} to the power {given}")
        else:
            check = REGISTRY["check_true"]
            ok = apply(check, y >= 0, what=_NO_INTEGER, error=ArgumentError)
            y = where(ok, y, 0)
    return x, y


pow: Function = elementwise(  # the Array API's name
    "pow",
    lambda x, y: call("pow", x, y),
    (_pow_dx, lambda g, x, out: (_pow_dy_complex if is_complex(g) else _pow_dy)(g, x, out)),
    doc="""x to the power y. Integers have no negative powers.

    The derivative in y is PyTorch's: NaN where x is negative; where x is 0, 0 for y >= 0 and
    infinite below.""",
    methods=("pow", "__pow__"),
    reference=np.power,
    samples=s.binary(low=0.5, low_y=-2.0),
    refuses=(
        *(MISFIT, NOT_BOOL),
        refuse(ArgumentError, "pow: an integer to a negative power", s.integers(3), -2),
        refuse(ArgumentError, "pow: an integer to a neg", s.integers(2), np.array([2, -1])),
    ),
    neutral=Neutral(1, both=False),
    precision="float32",
)
POW: Any = REGISTRY["pow"]
POW.__dict__["promote"] = _powers
POW.checks_integers = POW.takes_exponent = True
reflected(pow, "__rpow__")


def _cbrt(x: Any) -> Any:
    size = abs(x)
    rough = exp2(log2(size) * (1 / 3))  # off by the size of the exponent: one step of Newton's
    better = rough - (rough - size / (rough * rough)) * (1 / 3)
    return where((size == 0) | isinf(size), x, sign(x) * better)


cbrt: Function = elementwise(
    "cbrt",
    _cbrt,
    (lambda g, out: g / (3 * out * out),),
    kinds="real float",
    doc="The cube root, negative of negative numbers. The derivative at 0 is infinite.",
    reference=np.cbrt,
    torch=lambda torch, x: torch.sign(x) * torch.abs(x) ** (1 / 3),
    samples=s.unary(),
)


def _log_gap(x: Any, y: Any) -> Any:
    """x - y, and 0 where both are the same infinity."""
    return where(isinf(x) & (x == y), 0.0, x - where(isinf(x) & (x == y), 0.0, y))


logaddexp: Function = elementwise(
    "logaddexp",
    lambda x, y: maximum(x, y) + log1p(exp(-abs(_log_gap(x, y)))),
    (lambda g, x, y: g * sigmoid(_log_gap(x, y)), lambda g, x, y: g * sigmoid(_log_gap(y, x))),
    kinds="real float",
    doc="log(exp(x) + exp(y)), without the overflow. Two equal infinities share the gradient.",
    reference=np.logaddexp,
    torch="torch:logaddexp",
    samples=s.binary(),
    refuses=(MISFIT,),
)


def _x_log(x: Any, y: Any, logarithm: Any) -> Any:
    """x * logarithm(y), and 0 for x = 0 unless y is NaN."""
    return where((x == 0) & (y == y), 0.0, x * logarithm(y))


def _over(x: Any, y: Any) -> Any:
    """x / y, and 0 for 0 / 0."""
    return x / where((x == 0) & (y == 0), 1.0, y)


xlogy: Function = elementwise(
    "xlogy",
    lambda x, y: _x_log(x, y, log),
    (
        lambda g, x, y: g * log(where((x == 0) & (y <= 0), 1.0, y)),
        lambda g, x, y: g * _over(x, y),
    ),
    kinds="real float",
    doc="x * log(y), and 0 where x is 0 and y not NaN; the derivative in x is 0 there if y <= 0.",
    reference="scipy.special:xlogy",
    torch="torch:xlogy",
    samples=s.binary(low_y=0.3),
    refuses=(MISFIT,),
)

# --- angles and their hyperbolic kin -------------------------------------------------------------

sin: Function = elementwise(
    "sin",
    intrinsic("sin"),
    (lambda g, x: g * cos(x),),
    kinds="float",
    doc="The sine.",
    reference=np.sin,
    samples=s.unary(),
)
cos: Function = elementwise(
    "cos",
    intrinsic("cos"),
    (lambda g, x: -g * sin(x),),
    kinds="float",
    doc="The cosine.",
    reference=np.cos,
    samples=s.unary(),
)
tan: Function = elementwise(
    "tan",
    intrinsic("tan"),
    (lambda g, out: g * (1 + out * out),),
    kinds="float",
    doc="The tangent.",
    reference=np.tan,
    samples=s.unary(-1.2, 1.2),
    precision="float32",
)
asin: Function = elementwise(
    "asin",
    intrinsic("asin"),
    (lambda g, x: g / sqrt(1 - x * x),),
    kinds="float",
    doc="The angle in [-pi/2, pi/2] whose sine is x.",
    reference=np.arcsin,
    samples=s.unary(-0.9, 0.9),
    precision="float32",
)
acos: Function = elementwise(
    "acos",
    intrinsic("acos"),
    (lambda g, x: -g / sqrt(1 - x * x),),
    kinds="float",
    doc="The angle in [0, pi] whose cosine is x.",
    reference=np.arccos,
    samples=s.unary(-0.9, 0.9),
    precision="float32",
)
atan: Function = elementwise(
    "atan",
    intrinsic("atan"),
    (lambda g, x: g / (1 + x * x),),
    kinds="float",
    doc="The angle in (-pi/2, pi/2) whose tangent is x.",
    reference=np.arctan,
    samples=s.unary(),
)
atan2: Function = elementwise(
    "atan2",
    lambda x, y: call("atan2", x, y),
    (lambda g, x, y: g * (y / (x * x + y * y)), lambda g, x, y: -g * (x / (x * x + y * y))),
    kinds="real float",
    doc="The angle of the point (y, x): the arc tangent of x / y in its quadrant.",
    reference=np.arctan2,
    samples=s.binary(0.3, 2.0),
    refuses=(MISFIT,),
)
sinh: Function = elementwise(
    "sinh",
    intrinsic("sinh"),
    (lambda g, x: g * cosh(x),),
    kinds="float",
    doc="The hyperbolic sine.",
    reference=np.sinh,
    samples=s.unary(),
    precision="float32",
)
cosh: Function = elementwise(
    "cosh",
    intrinsic("cosh"),
    (lambda g, x: g * sinh(x),),
    kinds="float",
    doc="The hyperbolic cosine.",
    reference=np.cosh,
    samples=s.unary(),
    precision="float32",
)
tanh: Function = elementwise(
    "tanh",
    intrinsic("tanh"),
    (lambda g, out: g * (1 - out * out),),
    kinds="float",
    doc="The hyperbolic tangent.",
    reference=np.tanh,
    samples=s.unary(),
    recompute="late",
)
asinh: Function = elementwise(
    "asinh",
    intrinsic("asinh"),
    (lambda g, x: g / sqrt(x * x + 1),),
    kinds="float",
    doc="The inverse of sinh.",
    reference=np.arcsinh,
    samples=s.unary(),
)
acosh: Function = elementwise(
    "acosh",
    intrinsic("acosh"),
    (lambda g, x: g / (sqrt(x - 1) * sqrt(x + 1)),),
    kinds="float",
    doc="The inverse of cosh on x >= 1.",
    reference=np.arccosh,
    samples=s.unary(1.2, 3.0),
    precision="float32",
)
atanh: Function = elementwise(
    "atanh",
    intrinsic("atanh"),
    (lambda g, x: g / (1 - x * x),),
    kinds="float",
    doc="The inverse of tanh.",
    reference=np.arctanh,
    samples=s.unary(-0.9, 0.9),
    precision="float32",
)


_SINC_TERMS = 12  # enough for |x| < 0.5, and for the derivatives of the polynomial


def _sinc_near(x: Any) -> Any:
    """The slope near 0 as a polynomial, for the formula divides by x."""
    z = x * x
    total: Any = 0.0
    for k in range(_SINC_TERMS, 0, -1):
        total = (total * z) + (-1) ** k * 2 * k * math.pi ** (2 * k) / math.factorial(2 * k + 1)
    return x * total


def _half_turns(x: Any) -> tuple[Any, Any]:
    """x less the nearest integer, and whether that is odd: sin(pi x) of it has all its digits."""
    whole = round(x)
    half = 0.5 * whole
    return x - whole, round(half) != half


def _sinc(x: Any) -> Any:
    off, odd = _half_turns(x)
    sine = sin(math.pi * off)
    found = where(odd, -sine, sine) / (math.pi * where(x == 0, 1.0, x))
    return where(x == 0, 1.0, found)


def _sinc_dx(g: Any, x: Any) -> Any:
    near = abs(x) < 0.5
    far = where(near, 1.0, x)
    off, odd = _half_turns(far)
    cosine = cos(math.pi * off)
    slope = (where(odd, -cosine, cosine) - sinc(far)) / far
    return g * where(near, _sinc_near(where(near, x, 0.0)), slope)


sinc: Function = elementwise(
    "sinc",
    _sinc,
    (_sinc_dx,),
    kinds="real float",
    doc="sin(pi x) / (pi x), and 1 at 0.",
    reference="tests.support.references.special:sinc",
    torch="torch:sinc",
    samples=s.unary(),
)

# --- activations ---------------------------------------------------------------------------------

_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)
_NORMAL_PEAK = 1.0 / math.sqrt(2.0 * math.pi)

erf: Function = elementwise(
    "erf",
    intrinsic("erf"),
    (lambda g, x: g * (exp(-x * x) * _TWO_OVER_SQRT_PI),),
    kinds="real float",
    doc="The error function.",
    reference="scipy.special:erf",
    samples=s.unary(),
)


def _sigmoid(x: Any) -> Any:
    small = call("exp", -call("abs", x))  # never overflows
    return where(x >= 0, 1.0, small) / (1.0 + small)


sigmoid: Function = elementwise(
    "sigmoid",
    _sigmoid,
    (lambda g, out: g * (out * (1 - out)),),
    kinds="real float",
    doc="1 / (1 + exp(-x)).",
    reference="scipy.special:expit",
    samples=s.unary(-5.0, 5.0),
    recompute="late",
)
relu: Function = elementwise(
    "relu",
    lambda x: call("max", x, 0.0),
    (lambda g, out: where(out <= 0, 0.0, g),),
    kinds="real float",
    doc="The larger of x and 0; NaN stays NaN. The derivative at 0 is 0.",
    reference=lambda x: np.maximum(x, 0),
    samples=s.unary(),
    recompute="late",
    epilogue="relu",
)
softplus: Function = elementwise(
    "softplus",
    lambda x: call("max", x, 0.0) + call("log1p", call("exp", -call("abs", x))),
    (lambda g, x: g * sigmoid(x),),
    kinds="real float",
    doc="log(1 + exp(x)).",
    reference=lambda x: np.logaddexp(0, x),
    samples=s.unary(-5.0, 5.0),
    precision="float32",
)


def _silu_dx(g: Any, x: Any) -> Any:
    slope = sigmoid(x)
    return g * (slope * (1 + x * (1 - slope)))


_FAR = -64.0  # below, 1 + exp(x) is 1


def _silu(x: Any) -> Any:
    """x times sigmoid(x), also where that is too small to be a normal number and this is not."""
    far = x < _FAR
    small = call("exp", where(far, x - _FAR, -call("abs", x)))  # never overflows
    part = where(x > 0, x, x * small)
    return where(far, part * math.exp(_FAR), part / (1.0 + small))


silu: Function = elementwise(
    "silu",
    _silu,
    (_silu_dx,),
    kinds="real float",
    doc="x * sigmoid(x).",
    reference=lambda x: x / (1 + np.exp(-x)),
    samples=s.unary(-5.0, 5.0),
    recompute="late",
)


normal_cdf: Function = elementwise(
    "normal_cdf",
    intrinsic("ndtr"),
    (lambda g, x: g * (_NORMAL_PEAK * exp(-0.5 * x * x)),),
    kinds="real float",
    doc="The share of a standard normal below x: special.ndtr, by what each device is quick at.",
    methods=(),
    namespace="internal",
    reference="scipy.special:ndtr",
    torch="torch.special:ndtr",
    samples=s.unary(),
)


def _gelu_dx(g: Any, x: Any) -> Any:
    return g * (normal_cdf(x) + x * (_NORMAL_PEAK * exp(-0.5 * (x * x))))


gelu: Function = elementwise(
    "gelu",
    lambda x: x * call("ndtr", x),
    (_gelu_dx,),
    kinds="real float",
    doc="x times the share of a standard normal below x.",
    reference="tests.support.references.basic:gelu",
    samples=s.unary(),
    recompute="late",
    coarse_halves=True,
)


def _gelu_or_tanh(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the share of a standard normal below x; "tanh" gives the older approximation."""
    if approximate == "none":
        out: Tensor = gelu(x)
        return out
    if approximate != "tanh":
        raise ArgumentError(f'gelu: approximate must be "none" or "tanh", got {approximate!r}')
    older: Tensor = REGISTRY["gelu_tanh"].function(x)
    return older


def _softplus_scaled(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold. With neither given
    the logarithm is computed everywhere: it does not overflow."""
    if beta == 1.0 and threshold == 20.0:
        plain: Tensor = softplus(x)
        return plain
    for name, number in (("beta", beta), ("threshold", threshold)):
        if not isinstance(number, int | float | Tensor):
            raise ArgumentError(f"softplus: {name} must be a number, got {number!r}")
    if not beta > 0:
        raise ArgumentError(f"softplus: beta must be positive, got {beta!r}")
    scaled = x * beta
    out: Tensor = where(scaled > threshold, x, softplus(scaled) / beta)
    return out


for _name, _function in (("gelu", _gelu_or_tanh), ("softplus", _softplus_scaled)):
    _function.__name__ = _function.__qualname__ = _name
    with_options(REGISTRY[_name], _function)

__all__ = [
    name
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__name__", "") == name and not name.startswith("_")
]


_ROUND: Any = REGISTRY["round"]
_round = _ROUND.function


@functools.wraps(_round)
def _rounded(*x: Any, decimals: int = 0, **names: Any) -> Any:
    """`round`, to PyTorch's `decimals` too: as a function alone, bodies of kernels use the op."""
    if not decimals:
        return _round(*x, **names)
    values = x[0] if x else names["input"]
    scale = 10.0 ** math.fabs(decimals)
    return _round(values * scale) / scale if decimals > 0 else _round(values / scale) * scale


_ROUND.function = _rounded
setattr(Tensor, "round", _rounded)  # noqa: B010  # to mypy it is a method
