"""Inverse trigonometric and hyperbolic functions in float32, as straight-line IR.

Their error is within two units in the last place, as in `vecmath`; float64 uses the C library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from everygrad.backends.cpu.llvm.compiler import Emitter, Value
from everygrad.backends.cpu.llvm.vecmath import Expansion, Real, log, log1p

# (f(x) - x) / x^3 as a polynomial in x^2, |x| <= 1/2, and for asinh |x| <= 1
_ASIN = (0.16666666, 0.075000986, 0.04459803, 0.031116156, 0.01707786, 0.033805747)
_ATANH = (0.33333334, 0.19999957, 0.14288385, 0.11049127, 0.0976519, 0.040442053, 0.15692733)
_ASINH = (
    -0.16666667,
    0.07499991,
    -0.04463984,
    0.030340875,
    -0.022082329,
    0.016139425,
    -0.01070314,
    0.0055914735,
    -0.001916043,
    0.0003099188,
)
# the same for atan, |x| <= 1, to the digits that a float32 needs of a double
_ATAN64 = (
    -0.333333333278,
    0.199999983607,
    -0.142856329387,
    0.111095151277,
    -0.0907451783931,
    0.0759108528748,
    -0.06259037799,
    0.0475297140504,
    -0.0301921319679,
    0.0142789387163,
    -0.00430770032104,
    0.000608574249077,
)
_HALF_PI = (math.pi / 2, -4.371139e-08)  # rounded, and the rounding error
_HUGE = 2.0**32  # from which on 1 is negligible beside the square


def _sqrt(m: Real, x: Value) -> Value:
    return m.e.intrinsic("sqrt", x)


def _near(m: Real, x: Value, coefficients: Sequence[float]) -> Value:
    """x + x^3 times a polynomial in x^2."""
    z = m.mul(x, x)
    return m.fma(m.mul(x, z), m.poly(z, coefficients), x)


def _of_complement(m: Real, a: Value) -> Value:
    """2 asin(sqrt((1 - a) / 2)), which is acos(a), for a >= 1/2."""
    half = m.mul(m.sub(m.const(1.0), a), m.const(0.5))
    near = _near(m, _sqrt(m, half), _ASIN)
    return m.add(near, near)


def asin(m: Real, x: Value) -> Value:
    a = m.abs(x)
    z = m.mul(m.sub(m.const(1.0), a), m.const(0.5))
    root = _sqrt(m, z)
    # pi / 2 - 2 asin(root), the difference of the large parts exact; `lost` is what 2 root lacks
    lost = m.div(m.fma(m.e.neg(root), root, z), m.at_least(root, 2.0**-60))
    tail = m.fma(m.mul(m.add(root, root), z), m.poly(z, _ASIN), lost)
    tail = m.sub(tail, m.const(_HALF_PI[1]))
    far = m.sub(m.sub(m.const(_HALF_PI[0]), m.add(root, root)), tail)
    return m.copysign(m.where_small(a, 0.5, _near(m, a, _ASIN), far), x)


def acos(m: Real, x: Value) -> Value:
    a = m.abs(x)
    near = m.sub(m.const(_HALF_PI[0]), m.sub(_near(m, x, _ASIN), m.const(_HALF_PI[1])))
    right = _of_complement(m, a)
    left = m.sub(m.const(math.pi), m.sub(right, m.const(2 * _HALF_PI[1])))
    far = m.e.select(m.e.compare("olt", x, m.const(0.0)), left, right)
    return m.where_small(a, 0.5, near, far)


def atanh(m: Real, x: Value) -> Value:
    a = m.abs(x)
    ratio = m.div(m.add(a, a), m.sub(m.const(1.0), a))
    far = m.mul(log1p(m, ratio), m.const(0.5))
    return m.copysign(m.where_small(a, 0.5, _near(m, a, _ATANH), far), x)


def _log_of_double(m: Real, a: Value) -> Value:
    """log(2 a)"""
    return m.add(log(m, a), m.const(math.log(2.0)))


def asinh(m: Real, x: Value) -> Value:
    a = m.abs(x)
    square = m.mul(a, a)
    rest = m.div(square, m.add(m.const(1.0), _sqrt(m, m.add(square, m.const(1.0)))))
    far = m.where_small(a, _HUGE, log1p(m, m.add(a, rest)), _log_of_double(m, a))
    return m.copysign(m.where_small(a, 1.0, _near(m, a, _ASINH), far), x)


def acosh(m: Real, x: Value) -> Value:
    beyond = m.sub(x, m.const(1.0))
    root = _sqrt(m, m.mul(beyond, m.add(beyond, m.const(2.0))))
    near = log1p(m, m.add(beyond, root))
    value = m.where_small(x, _HUGE, near, _log_of_double(m, x))
    return m.where_small(x, 1.0, m.const(math.nan), value)


def atan2(e: Emitter, y: Value, x: Value) -> Value:
    """The angle of (x, y) for float32, through double: signs and ends as C's atan2."""
    m = Real(e, "double")
    high, wide = e.cast("fpext", y, "double"), e.cast("fpext", x, "double")
    a, b = m.abs(high), m.abs(wide)
    steep = e.compare("ogt", a, b)
    small, large = e.select(steep, b, a), e.select(steep, a, b)
    ratio = m.div(small, large)
    ratio = e.select(e.compare("oeq", large, m.const(0.0)), m.const(0.0), ratio)
    ratio = e.select(e.compare("oeq", small, m.const(math.inf)), m.const(1.0), ratio)
    angle = _near(m, ratio, _ATAN64)
    angle = e.select(steep, m.sub(m.const(math.pi / 2), angle), angle)
    left = e.compare("slt", m.bits(wide), m.integer(0))
    angle = e.select(left, m.sub(m.const(math.pi), angle), angle)
    angle = e.select(e.compare("uno", y, x), m.const(math.nan), angle)
    # signs in float: for float16, LLVM would convert the double through a missing function
    return Real(e, "float").copysign(e.cast("fptrunc", angle, "float"), y)


INLINE32: dict[str, Expansion] = {
    "asin": asin,
    "acos": acos,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
}


def expand(emitter: Emitter, fn: str, x: Value) -> Value | None:
    """`fn` of a float as arithmetic, or None if only the C library has it."""
    found = INLINE32.get(fn) if x.type == "float" else None
    return None if found is None else found(Real(emitter, x.type), x)
