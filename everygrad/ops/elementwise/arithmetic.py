"""Elementwise ops around numbers themselves: signs, neighbours, remainders, lengths, limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.compiler.expr import call
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.dtypes import finfo, result_type
from everygrad.errors import DtypeError, ShapeError
from everygrad.ops.elementwise.basic import (
    MISFIT,
    NOT_BOOL,
    abs,
    clamp,
    imag,
    isinf,
    isnan,
    maximum,
    minimum,
    real,
    remainder,
    sign,
    sqrt,
    trunc,
    where,
    zero,
)
from everygrad.ops.elementwise.math import atan2
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Elementwise, Function, check_kind, elementwise
from everygrad.ops.record.spec import composite, refuse, register, same, sample

# --- signs and neighbours ------------------------------------------------------------------------


def _signbit(x: Any) -> Any:
    return call("lt", call("bits", x), 0)


def _signed(size: Any, like: Any) -> Any:
    """The absolute value of `size` with the sign of `like`."""
    absolute = call("abs", size)
    return where(_signbit(like), -absolute, absolute)


signbit: Function = elementwise(
    "signbit",
    _signbit,
    kinds="real",
    doc="Whether the sign is minus: of -0.0 and of a NaN with that bit as well.",
    reference=np.signbit,
    samples=s.unary(),
)
copysign: Function = elementwise(
    "copysign",
    lambda x, y: _signed(x, y),
    (lambda g, x, y: where(signbit(y), -g, g) * sign(x), lambda g: zero(g)),
    kinds="real float",
    doc="The size of x with the sign of y, which may be that of -0.0. 0 has derivative 0.",
    reference=np.copysign,
    torch="torch:copysign",
    samples=s.binary(),
    refuses=(MISFIT,),
)


def _neighbour(x: Any, y: Any, *, step: int) -> Any:
    """`step`: how many float32 or float64 numbers lie from one number of the dtype to the next."""
    up = x < y
    at = call("bits", x)
    outward = up == (x > 0)  # away from 0, where the bits grow
    near = call("unbits", where(outward, at + step, at - step))
    least = call("unbits", (at ^ at) + step)
    found = where(x == 0, where(up, least, -least), near)
    return where(x == y, y, where(call("isnan", x) | call("isnan", y), x + y, found))


def _neighbour_half(x: Any, y: Any) -> Any:
    """Of float16, in float32: a little more than half the distance, which rounding makes whole."""
    distance = call("max", call("abs", x) * (2.0**-11 * 1.01), 2.0**-25 * 1.5)
    largest = where(call("isinf", x), _signed(65504.0, x), x + where(x < y, distance, -distance))
    return where(x == y, y, where(call("isnan", x) | call("isnan", y), x + y, largest))


NEXTAFTER = Elementwise(
    "nextafter",
    lambda x, y, *, step: _neighbour(x, y, step=step) if step else _neighbour_half(x, y),
    (lambda g: g, lambda g: zero(g)),
    kinds="real float",
)
_STEPS = {dtypes.float16: 0, dtypes.bfloat16: 1 << 16}


def nextafter(x: Any, y: Any) -> Tensor:
    """The next number of the dtype after x towards y; y where they are equal. The derivative in x
    is 1."""
    pair = NEXTAFTER.promote(x, y)
    return apply(NEXTAFTER, *pair, step=_STEPS.get(pair[0].dtype, 1))


register(
    NEXTAFTER,
    nextafter,
    methods=("nextafter",),
    reference=np.nextafter,
    torch=None,
    samples=lambda: iter((sample(s.real(2, 3), s.real(3, seed=1)), sample(s.real(), s.real(2)))),
    refuses=(MISFIT,),
)

# --- lengths, remainders, what lies between ------------------------------------------------------


def _hypot(x: Any, y: Any) -> Any:
    large, small = maximum(abs(x), abs(y)), minimum(abs(x), abs(y))
    ratio = small / where(large == 0, 1.0, large)
    return where(isinf(x) | isinf(y), math.inf, large * sqrt(1 + ratio * ratio))


hypot: Function = elementwise(
    "hypot",
    _hypot,
    (
        lambda g, x, out: g * (x / where(out == 0, 1.0, out)),
        lambda g, y, out: g * (y / where(out == 0, 1.0, out)),
    ),
    kinds="real float",
    doc="sqrt(x * x + y * y), without overflow on the way. The derivative at (0, 0) is 0.",
    reference=np.hypot,
    torch="torch:hypot",
    samples=s.binary(),
    refuses=(MISFIT,),
)


def _fmod(x: Any, y: Any) -> Any:
    """By the remainder whose divisor has the sign of x: exact, since nothing is added to it."""
    divisor = where(signbit(x) == signbit(y), y, -y)
    # the smallest integer is its own negative, and larger than any x of the other sign
    return where((x >= 0) & (divisor < 0), x, remainder(x, divisor))


fmod: Function = elementwise(
    "fmod",
    _fmod,
    (lambda g: g, lambda g, x, y: -g * trunc(x / y)),
    kinds="real",
    doc="x - y * trunc(x / y): the remainder with the sign of x.",
    reference=np.fmod,
    torch="torch:fmod",
    samples=s.binary(low_y=0.5),
    refuses=(MISFIT, NOT_BOOL),
)
frac: Function = elementwise(
    "frac",
    lambda x: x - trunc(x),
    (lambda g: g,),
    kinds="real float",
    doc="x - trunc(x): what stands behind the point, with the sign of x.",
    reference=lambda x: x - np.trunc(x),
    torch="torch:frac",
    samples=s.unary(-5.0, 5.0),
)
deg2rad: Function = elementwise(
    "deg2rad",
    lambda x: x * (math.pi / 180),
    (lambda g: g * (math.pi / 180),),
    kinds="real float",
    linear_in=((0,),),
    doc="An angle in degrees as radians.",
    reference=np.deg2rad,
    torch="torch:deg2rad",
    samples=s.unary(-180.0, 180.0),
)
rad2deg: Function = elementwise(
    "rad2deg",
    lambda x: x * (180 / math.pi),
    (lambda g: g * (180 / math.pi),),
    kinds="real float",
    linear_in=((0,),),
    doc="An angle in radians as degrees.",
    reference=np.rad2deg,
    torch="torch:rad2deg",
    samples=s.unary(),
)


def _lerp(x: Any, end: Any, weight: Any) -> Any:
    """From the nearer end: exact at both."""
    way = end - x
    return where(abs(weight) < 0.5, x + weight * way, end - way * (1 - weight))


lerp: Function = elementwise(
    "lerp",
    _lerp,
    (
        lambda g, weight: g * (1 - weight),
        lambda g, weight: g * weight,
        lambda g, x, end: g * (end - x),
    ),
    kinds="float",
    linear_in=((0, 1),),
    doc="x + weight * (end - x): x at weight 0, end at weight 1, exactly.",
    reference=lambda x, end, weight: x + weight * (end - x),
    torch="torch:lerp",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(3, seed=1), s.real(2, 1, low=0.0, high=1.0)),
            sample(s.real(3), s.real(3, seed=1), 0.25),
        )
    ),
    refuses=(refuse(ShapeError, "lerp: cannot broadcast", s.real(2), s.real(3), s.real(3)),),
)


@composite(
    methods=("addcmul",),
    reference=lambda x, y, z, value=1: x + value * y * z,
    torch="torch:addcmul",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(3, seed=1), s.real(2, 1)),
            sample(s.real(3), s.real(3, seed=1), s.real(3, seed=2), value=0.5),
        )
    ),
    refuses=(refuse(ShapeError, "cannot broadcast", s.real(2), s.real(3), s.real(3)),),
)
def addcmul(x: Tensor, y: Any, z: Any, value: float = 1) -> Tensor:
    """x + value * y * z."""
    product = y * z
    return x + (product if value == 1 else product * value)


@composite(
    methods=("addcdiv",),
    kinds="float",
    reference=lambda x, y, z, value=1: x + value * (y / z),
    torch="torch:addcdiv",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(3, seed=1), s.real(2, 1, low=0.5)),
            sample(s.real(3), s.real(3, seed=1), s.real(3, low=0.5), value=0.5),
        )
    ),
    refuses=(
        refuse(ShapeError, "cannot broadcast", s.real(2), s.real(3), s.real(3)),
        refuse(DtypeError, "addcdiv: does not take int64", *[s.integers(2, low=1)] * 3),
    ),
)
def addcdiv(x: Tensor, y: Any, z: Any, value: float = 1) -> Tensor:
    """x + value * (y / z), of floating point alone."""
    check_kind("addcdiv", x.dtype, "float")
    quotient = y / z
    return x + (quotient if value == 1 else quotient * value)


_replaced: Function = elementwise(
    "replaced",
    lambda x, nan, above, below: where(
        isnan(x), nan, where(x == math.inf, above, where(x == -math.inf, below, x))
    ),
    (lambda g, x: where(isnan(x) | isinf(x), 0.0, g), None, None, None),
    kinds="real float",
    doc="x with NaN and the two infinities replaced.",
    methods=(),
    namespace="internal",
    reference=lambda x, nan, above, below: np.nan_to_num(x, nan=nan, posinf=above, neginf=below),
    samples=lambda: iter(
        (sample(s.real(2, 3), 0.0, 1.0, -1.0), sample(np.array([np.nan, np.inf, 2.0]), 3, 4, 5))
    ),
)


def _nan_to_num_samples() -> Any:
    yield sample(s.real(2, 3))
    yield sample(np.array([0.5, np.nan, np.inf, -np.inf]), 0.25, 2.0, -3.0)


@composite(
    kinds="real",
    reference=lambda x, nan=0.0, posinf=None, neginf=None: np.nan_to_num(
        x, nan=nan, posinf=posinf, neginf=neginf
    ),
    torch="torch:nan_to_num",
    samples=_nan_to_num_samples,
    refuses=(refuse(DtypeError, "nan_to_num: does not take complex", s.real(2) + 0j),),
)
def nan_to_num(
    x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """x with NaN and the infinities replaced, those by the dtype's largest and smallest number if
    nothing else is asked for. What is replaced has derivative 0; integers stay what they are."""
    check_kind("nan_to_num", x.dtype, "real")
    if not x.dtype.is_float:
        return same(x)
    limits = finfo(x.dtype)
    above = limits.max if posinf is None else float(posinf)
    below = limits.min if neginf is None else float(neginf)
    out: Tensor = _replaced(x, float(nan), above, below)
    return out


@composite(
    kinds="real",
    reference=lambda x, min=None, max=None: np.clip(x, min, max),
    torch="torch:clip",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), min=-1.0, max=1.0),
            sample(s.real(4), max=0.5),
            sample(s.real(2, 3), s.real(3, low=-1.0, high=-0.5), s.real(2, 1, low=0.5, high=1.0)),
        )
    ),
    refuses=(
        refuse(ShapeError, "cannot broadcast", s.real(2), s.real(3), s.real(3)),
        refuse(DtypeError, "clip: int64 does not hold bounds of float64", s.integers(2), s.real(2)),
    ),
)
def clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:  # the Array API's names
    """x limited to [min, max], in the dtype of x; the gradient is 1 at the bounds."""
    check_kind("clip", x.dtype, "real")
    given = [v for v in (min, max) if v is not None]
    wanted = result_type(x, *given)
    if wanted is not x.dtype:
        bounds = result_type(*given)
        raise DtypeError(f"clip: {x.dtype} does not hold bounds of {bounds}; cast x with astype()")
    return clamp(x, min, max)


@composite(
    kinds="float",
    reference=np.angle,
    torch="torch:angle",
    samples=s.unary(),
    refuses=(refuse(DtypeError, "angle: does not take int64", s.integers(3)),),
)
def angle(x: Tensor) -> Tensor:
    """The angle of a complex number, from -pi to pi; of a real one 0 or, where it is negative, pi.
    NaN stays NaN."""
    check_kind("angle", x.dtype, "float")
    if x.dtype.is_complex:
        return atan2(imag(x), real(x))
    return where(isnan(x), x, where(x < 0, math.pi, x * 0.0).astype(x.dtype))
