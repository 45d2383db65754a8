"""Arithmetic in PyTorch's spellings: div, rsub, float_power, gcd, logaddexp2 and others."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import operands
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import isinf, logical_not, maximum, sign, where
from everygrad.ops.elementwise.math import exp2, log2
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.python.creation import arange, tensor
from everygrad.ops.record.arguments import taking
from everygrad.ops.record.spec import REGISTRY


class FrexpResult(NamedTuple):
    """Numbers as mantissa * 2**exponent, mantissas from 0.5 to 1."""

    mantissa: Tensor
    exponent: Tensor


def _op(name: str, *args: Any, **kwargs: Any) -> Any:
    return REGISTRY[name].function(*args, **kwargs)


@taking
def div(x: Tensor, other: Any, rounding_mode: str | None = None) -> Tensor:
    """x / other, rounded towards zero ("trunc") or down ("floor") if said."""
    if rounding_mode is None:
        return x / other
    if rounding_mode == "floor":
        return x // other
    if rounding_mode != "trunc":
        raise ArgumentError(
            f'div: rounding_mode must be None, "trunc" or "floor", got {rounding_mode!r}'
        )
    a, b = operands("div", x, other)
    if a.dtype.is_differentiable:
        out: Tensor = _op("trunc", a / b)
        return out
    down = a // b
    uneven = logical_not(down * b == a)
    return where(uneven & ((a < 0) ^ (b < 0)), down + 1, down)


@taking
def sub(x: Tensor, other: Any, alpha: float = 1) -> Tensor:
    """x - alpha * other."""
    return x - other if alpha == 1 else x - other * alpha


@taking
def rsub(x: Tensor, other: Any, alpha: float = 1) -> Tensor:
    """other - alpha * x."""
    return other - (x if alpha == 1 else x * alpha)


@taking
def clamp_min(x: Tensor, min: Any) -> Tensor:
    """The larger of each element and `min`."""
    out: Tensor = _op("clamp", x, min=min)
    return out


@taking
def clamp_max(x: Tensor, max: Any) -> Tensor:
    """The smaller of each element and `max`."""
    out: Tensor = _op("clamp", x, max=max)
    return out


@taking
def sgn(x: Tensor) -> Tensor:
    """The sign; of a complex number the number of length 1 in its direction."""
    return sign(x)


@taking
def float_power(x: Any, exponent: Any) -> Tensor:
    """x to the power of `exponent` in float64, or complex128."""
    device = next((v.device for v in (x, exponent) if isinstance(v, Tensor)), None)
    a, b = (v if isinstance(v, Tensor) else tensor(v, device=device) for v in (x, exponent))
    wide = dtypes.complex128 if a.dtype.is_complex or b.dtype.is_complex else dtypes.float64
    return a.astype(wide) ** b.astype(wide)


@taking
def frexp(x: Tensor) -> FrexpResult:
    """x as mantissa * 2**exponent, the mantissa from 0.5 to 1 (0 of 0) and the exponent an int32.

    The derivative of the mantissa is 2**-exponent.
    """
    if not x.dtype.is_float:
        raise DtypeError(f"frexp: takes floating-point numbers, got {x.dtype}")
    size = x.detach().abs()
    odd = logical_not(_op("isfinite", size)) | (size == 0)
    tiny = size < float(dtypes.finfo(x.dtype).smallest_normal)
    lifted = where(tiny, size * 2.0**64, size)  # log2 of a subnormal number loses digits
    power = _op("floor", log2(where(odd, 1.0, lifted))) + 1
    share = lifted * exp2(-power)
    # log2 may round up to, or stay below, the power that holds the number
    power = where(share >= 1, power + 1, where((share < 0.5) & logical_not(odd), power - 1, power))
    power = where(odd, 0.0, where(tiny, power - 64, power)).detach()
    half = where(power > 0, power // 2, -((-power) // 2))  # 2**-power alone may overflow
    return FrexpResult(x * exp2(-half) * exp2(half - power), power.astype(dtypes.int32))


@taking
def ldexp(x: Tensor, other: Any) -> Tensor:
    """x * 2**other."""
    power = other if isinstance(other, Tensor) else tensor(other, device=x.device)
    floating = power if power.dtype.is_differentiable else power.astype(dtypes.DEFAULT_FLOAT)
    return x * exp2(floating)


@taking
def logaddexp2(x: Tensor, other: Tensor) -> Tensor:
    """log2(2**x + 2**other) without overflow."""
    a, b = operands("logaddexp2", x, other, floating=True)
    top = maximum(a, b).detach()
    top = where(isinf(top), 0.0, top)
    return log2(exp2(a - top) + exp2(b - top)) + top


def _euclid(op: str, x: Any, other: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The absolute values of two integer tensors, and the greatest number that divides both."""
    a, b = operands(op, x, other)
    if not a.dtype.is_integer:
        raise DtypeError(f"{op}: takes integers, got {a.dtype}")
    a, b = a.abs(), b.abs()
    shape = shapes.broadcast(op, a.shape, b.shape)
    small, large = a.broadcast_to(shape), b.broadcast_to(shape)
    # each two steps halve the remainder: one and a half steps a bit (Lame)
    for _ in range(1 + a.dtype.bits * 3 // 2):
        stop = small == 0
        rest = large % where(stop, 1, small)
        small, large = where(stop, small, rest), where(stop, large, small)
    return a, b, large


@taking
def gcd(x: Tensor, other: Any) -> Tensor:
    """The greatest common divisor of integers; gcd(0, n) is n."""
    return _euclid("gcd", x, other)[2]


@taking
def lcm(x: Tensor, other: Any) -> Tensor:
    """The least common multiple of integers; 0 if one of them is."""
    a, b, common = _euclid("lcm", x, other)
    return a // where(common == 0, 1, common) * b


@taking
def isposinf(x: Tensor) -> Tensor:
    """Whether each element is positive infinity."""
    return x == math.inf


@taking
def isneginf(x: Tensor) -> Tensor:
    """Whether each element is negative infinity."""
    return x == -math.inf


@taking
def isreal(x: Tensor) -> Tensor:
    """Whether the imaginary part of each element is 0."""
    if not x.dtype.is_complex:
        return x.detach().reshape(x.shape).astype(dtypes.bool_) | True
    return _op("imag", x) == 0


@taking
def dot(x: Tensor, other: Tensor) -> Tensor:
    """The product of two vectors, or of matrices as NumPy has it."""
    if x.ndim > 2 or other.ndim > 2:
        raise ShapeError(
            f"dot: takes vectors and matrices, got {x.shape} and {other.shape}; "
            f"use x @ y for batches of matrices, tensordot for other sums"
        )
    return matmul(x, other) if x.ndim and other.ndim else x * other


@taking
def inner(x: Tensor, other: Tensor) -> Tensor:
    """The sums of products along the last axis of both, for each pair of rows."""
    if not x.ndim or not other.ndim:
        return x * other
    out: Tensor = _op("tensordot", x, other, axes=((-1,), (-1,)))
    return out


@taking
def vdot(x: Tensor, other: Tensor) -> Tensor:
    """The product of two vectors, the first one conjugated."""
    if x.ndim != 1 or other.ndim != 1:
        raise ShapeError(f"vdot: takes vectors, got {x.shape} and {other.shape}")
    out: Tensor = _op("vecdot", x, other)
    return out


@taking
def dist(x: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm of x - other."""
    out: Tensor = _op("norm", x - other, p)
    return out


@taking
def renorm(x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """The slices along `dim` whose p-norm is above `maxnorm` scaled down to it."""
    at = shapes.axis_index(dim, x.ndim, "renorm")
    others = tuple(a for a in range(x.ndim) if a != at)
    size = _op("norm", x, p, axis=others, keepdims=True)
    return x * where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)


@taking
def mvlgamma(x: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p."""
    if p < 1:
        raise ArgumentError(f"mvlgamma: p must be at least 1, got {p}")
    (a,) = operands("mvlgamma", x, floating=True)
    halves = arange(p, dtype=a.dtype, device=a.device) * 0.5
    terms: Tensor = _op("lgamma", a.expand_dims(-1) - halves)
    return terms.sum(axis=-1) + p * (p - 1) / 4 * math.log(math.pi)


@taking
def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Complex numbers of these lengths and angles."""
    return complex(abs * _op("cos", angle), abs * _op("sin", angle))


@taking
def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Complex numbers of these real and imaginary parts."""
    a, b = operands("complex", real, imag, floating=True)
    wide = dtypes.complex128 if a.dtype is dtypes.float64 else dtypes.complex64
    return a.astype(wide) + b.astype(wide) * 1j


def polygamma(x: Tensor, n: int) -> Tensor:
    """The n-th derivative of digamma: `eg.special.polygamma(n, x)`."""
    out: Tensor = _op("polygamma", n, x)
    return out
