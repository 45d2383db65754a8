"""Elementary functions as straight-line IR, so that LLVM vectorises loops over them.

A call would make the loop scalar; a branch would too. So every function here is arithmetic and
selects only: range reduction (Cody and Waite), one polynomial, reconstruction in the exponent
bits. Coefficients are interpolations at Chebyshev nodes, made with 60-digit arithmetic. Other
functions call the C library, element by element.

The largest errors seen against wider arithmetic, in units of the last place: below 1.75, except
tanh (2.4) and tan (3.4). tests/backends/cpu/test_elementwise_kernels.py holds the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from everygrad.backends.cpu.llvm.compiler import Emitter, Value, literal

Expansion = Callable[["Real", Value], Value]

# (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2
_EXP32 = (0.5, 0.16666578, 0.041666556, 0.008363173, 0.0013926176)
_EXP64 = (
    0.5,
    0.1666666666666667,
    0.04166666666666667,
    0.008333333333326141,
    0.0013888888888883752,
    0.00019841269874800493,
    2.4801587325533363e-05,
    2.7557255425746435e-06,
    2.7557273661348637e-07,
    2.510520637395701e-08,
    2.0914679376583935e-09,
)
# (log(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f < sqrt(2)
_LOG32 = (
    0.3333333,
    -0.25000307,
    0.20001045,
    -0.16641282,
    0.14214496,
    -0.12998183,
    0.12622319,
    -0.07902744,
)
# (2 atanh(s) / s - 2) / s^2 as a polynomial in s^2, s = f / (2 + f)
_LOG64 = (
    0.666666666666667,
    0.3999999999989889,
    0.28571428626253836,
    0.22222211089379493,
    0.18182892432537032,
    0.15331611722050653,
    0.14617807153462828,
)
# erf(x) / x - 1 as a polynomial in x^2, |x| <= 1
_ERF_SMALL32 = (
    0.12837917,
    -0.37612626,
    0.11283594,
    -0.026854211,
    0.0051890872,
    -0.00080168643,
    7.875875e-05,
)
_ERF_SMALL64 = (
    0.1283791670955126,
    -0.37612638903183754,
    0.1128379167095512,
    -0.02686617064512984,
    0.0052239776254232985,
    -0.000854832702193483,
    0.00012055332902888736,
    -1.4925647567519332e-05,
    1.6462045441468418e-06,
    -1.6364642158167608e-07,
    1.4792401209404742e-08,
    -1.2164560057283045e-09,
    8.70904512905176e-11,
    -4.2309458242933425e-12,
)
# log(1 - erf(x)) / x, 1 <= x <= 4 (float32) or 6 (float64)
_ERF_LARGE32 = (
    -1.1289573,
    -0.63397145,
    -0.10809191,
    0.025308602,
    -0.0043739225,
    0.00051574555,
    -3.659301e-05,
    1.1660325e-06,
)
_ERF_LARGE64 = (
    -1.1283793044656896,
    -0.6366183491875148,
    -0.10277957463886583,
    0.019149937678568926,
    0.0001623868730573206,
    -0.0016195704286371118,
    0.0004922076374812246,
    7.408571516012103e-05,
    -0.0001471846446775579,
    8.547042470756704e-05,
    -3.3914035620040684e-05,
    1.0454275995346777e-05,
    -2.6133247794976774e-06,
    5.384447544851499e-07,
    -9.181399695768587e-08,
    1.2912900325450717e-08,
    -1.4837643976454746e-09,
    1.370854028608121e-10,
    -9.9367641990622e-12,
    5.441143813214577e-13,
    -2.1154259506450822e-14,
    5.202095051124279e-16,
    -6.080719214521489e-18,
)
# (sinh(x) - x) / x^3 as a polynomial in x^2, |x| <= 1
_SINH32 = (0.16666667, 0.008333339, 0.00019838102, 2.8062802e-06)
_SINH64 = (
    0.16666666666666666,
    0.008333333333333333,
    0.0001984126984126984,
    2.7557319223985825e-06,
    2.505210838547607e-08,
    1.605904382690051e-10,
    7.647165414593487e-13,
    2.8112909646766327e-15,
)
# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2, |r| <= pi / 4
_SIN32 = (-0.16666667, 0.008333332, -0.00019840039, 2.7243782e-06)
_COS32 = (0.041666668, -0.0013888888, 2.480056e-05, -2.7295832e-07)
# (from which |x| on, exponent e, 2/pi * 2^e in two doubles): x beyond 2^50 is a multiple of 2^e,
# so whole turns (multiples of 4 quarters) can be taken out of the factor beforehand
_QUARTERS = (
    (0.0, 0, 0.6366197723675814, -3.935735335036497e-17),
    (2.0**50, 27, -0.5529460512772132, 3.808591801500832e-17),
    (2.0**77, 54, 1.2910009524680295, -3.862804515881076e-17),
    (2.0**104, 81, -1.3139050952781812, 9.395526559852902e-17),
)
# (atan(x) - x) / x^3 as a polynomial in x^2, |x| <= 1
_ATAN32 = (
    -0.3333333,
    0.1999974,
    -0.14278568,
    0.110337645,
    -0.0865688,
    0.06250169,
    -0.03587154,
    0.013507771,
    -0.0023869972,
)
# log2(m) / s in s^2, s = (m - 1) / (m + 1), and 2^r for |r| <= 1/2: enough for pow in float32
_POW_LOG2 = (
    2.885390081790048,
    0.9617966733682309,
    0.5770835830070097,
    0.411672687343722,
    0.3407329932431587,
)
_POW_EXP2 = (
    1.0,
    0.6931472067028326,
    0.24022650922288757,
    0.05550327226670302,
    0.009618056678524637,
    0.0013400428177615838,
    0.0001546144469856913,
)


class Real:
    """One float type: its bit layout, its constants, and short names for arithmetic."""

    def __init__(self, emitter: Emitter, type_: str) -> None:
        self.e = emitter
        self.type = type_
        self.wide = type_ == "double"
        self.int = "i64" if self.wide else "i32"
        self.mantissa = 52 if self.wide else 23
        self.bias = 1023 if self.wide else 127
        self.magic = 1.5 * 2.0**self.mantissa  # adding it rounds to an integer, in the low bits
        # ln(2) in two parts; the first short enough that n * hi is exact for any exponent n
        self.ln2 = (
            (0.6931471805582987, 1.6465949582897082e-12)
            if self.wide
            else (0.693115234375, 3.1946183e-05)
        )
        self.log2e = (
            (1.4426950408889634, 2.0355273740931033e-17)
            if self.wide
            else (1.4426950216293335, 1.925963e-08)
        )

    def const(self, value: float) -> Value:
        return literal(self.type, value)

    def integer(self, value: int) -> Value:
        return literal(self.int, value)

    def add(self, a: Value, b: Value) -> Value:
        return self.e.op("fadd", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.e.op("fsub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.e.op("fmul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.e.op("fdiv", a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.e.fma(a, b, c)

    def abs(self, a: Value) -> Value:
        return self.e.intrinsic("fabs", a)

    def copysign(self, a: Value, sign: Value) -> Value:
        return self.e.intrinsic("copysign", a, sign)

    def bits(self, a: Value) -> Value:
        return self.e.cast("bitcast", a, self.int)

    def float_of(self, bits: Value) -> Value:
        return self.e.cast("bitcast", bits, self.type)

    def at_most(self, a: Value, limit: float) -> Value:
        """min(a, limit); propagates NaN."""
        bound = self.const(limit)
        return self.e.select(self.e.compare("ogt", a, bound), bound, a)

    def at_least(self, a: Value, limit: float) -> Value:
        """max(a, limit); propagates NaN."""
        bound = self.const(limit)
        return self.e.select(self.e.compare("olt", a, bound), bound, a)

    def where_small(self, a: Value, limit: float, yes: Value, no: Value) -> Value:
        """`yes` where a < limit, else (NaN too) `no`."""
        return self.e.select(self.e.compare("olt", a, self.const(limit)), yes, no)

    def poly(self, x: Value, coefficients: Sequence[float]) -> Value:
        """c0 + c1 x + c2 x^2 + ... by Horner's rule, even and odd powers in parallel: half the
        latency, for one more product."""
        if len(coefficients) < 5:
            return self._horner(x, coefficients)
        square = self.mul(x, x)
        odd = self._horner(square, coefficients[1::2])
        return self.fma(odd, x, self._horner(square, coefficients[::2]))

    def _horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        result = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.const(c))
        return result

    def power_of_two(self, n: Value) -> Value:
        """2^n for an integer n in the range of normal numbers."""
        biased = self.e.op("add", n, self.integer(self.bias))
        return self.float_of(self.e.op("shl", biased, self.integer(self.mantissa)))


def _reduce_exp(m: Real, x: Value) -> tuple[Value, Value, Value]:
    """n (integer), r and q with exp(x) = 2^n (1 + r + r^2 q)."""
    # rounding by adding a large number, not by fptosi: that is undefined for NaN
    shifted = m.fma(x, m.const(m.log2e[0]), m.const(m.magic))
    n = m.e.op("sub", m.bits(shifted), m.bits(m.const(m.magic)))
    whole = m.sub(shifted, m.const(m.magic))
    minus = m.e.neg(whole)
    r = m.fma(minus, m.const(m.ln2[1]), m.fma(minus, m.const(m.ln2[0]), x))
    return n, r, m.poly(r, _EXP64 if m.wide else _EXP32)


def exp2(m: Real, x: Value) -> Value:
    x = m.at_least(m.at_most(x, 1025.0 if m.wide else 129.0), -1076.0 if m.wide else -151.0)
    shifted = m.add(x, m.const(m.magic))
    n = m.e.op("sub", m.bits(shifted), m.bits(m.const(m.magic)))
    r = m.mul(m.sub(x, m.sub(shifted, m.const(m.magic))), m.const(math.log(2.0)))
    return _scaled(m, n, r, m.poly(r, _EXP64 if m.wide else _EXP32))


def exp(m: Real, x: Value, halvings: int = 0) -> Value:
    """exp(x) / 2^halvings, without overflow on the way."""
    x = m.at_least(m.at_most(x, 711.0 if m.wide else 90.0), -746.0 if m.wide else -104.0)
    n, r, q = _reduce_exp(m, x)
    if halvings:
        n = m.e.op("sub", n, m.integer(halvings))
    return _scaled(m, n, r, q)


def _scaled(m: Real, n: Value, r: Value, q: Value) -> Value:
    """2^n (1 + r + r^2 q)."""
    value = m.add(m.fma(m.mul(r, r), q, r), m.const(1.0))
    # in two steps: 2^n itself may be subnormal or beyond the largest number
    half = m.e.op("ashr", n, m.integer(1))
    rest = m.e.op("sub", n, half)
    return m.mul(m.mul(value, m.power_of_two(half)), m.power_of_two(rest))


def expm1(m: Real, x: Value) -> Value:
    """exp(x) - 1, to full relative accuracy near 0."""
    y = m.at_least(m.at_most(x, 710.0 if m.wide else 89.0), -40.0 if m.wide else -18.0)
    n, r, q = _reduce_exp(m, y)
    p = m.fma(m.mul(r, r), q, r)
    # half of 2^n: 2^n overflows before the result does
    s = m.power_of_two(m.e.op("sub", n, m.integer(1)))
    value = m.fma(s, p, m.sub(s, m.const(0.5)))
    return m.where_small(m.abs(x), 2.0**-54 if m.wide else 2.0**-25, x, m.add(value, value))


def tanh(m: Real, x: Value) -> Value:
    a = m.at_most(m.abs(x), 20.0 if m.wide else 10.0)
    t = expm1(m, m.add(a, a))
    return m.copysign(m.div(t, m.add(t, m.const(2.0))), x)


def sinh(m: Real, x: Value) -> Value:
    a = m.abs(x)
    half = exp(m, a, halvings=1)
    large = m.sub(half, m.div(m.const(0.25), half))
    small = m.fma(m.mul(a, m.mul(a, a)), m.poly(m.mul(a, a), _SINH64 if m.wide else _SINH32), a)
    return m.copysign(m.where_small(a, 1.0, small, large), x)


def cosh(m: Real, x: Value) -> Value:
    half = exp(m, m.abs(x), halvings=1)
    return m.add(half, m.div(m.const(0.25), half))


def _split_log(m: Real, x: Value) -> tuple[Value, Value]:
    """Integers e and b, b the bits of x / 2^e in [sqrt(1/2), sqrt(2)), for normal x > 0."""
    bits = m.bits(x)
    root = m.bits(m.const(math.sqrt(0.5)))
    e = m.e.op("ashr", m.e.op("sub", bits, root), m.integer(m.mantissa))
    return e, m.e.op("sub", bits, m.e.op("shl", e, m.integer(m.mantissa)))


def _log_tail(m: Real, f: Value) -> Value:
    """log(1 + f) - f for 1 + f in [sqrt(1/2), sqrt(2))."""
    half_square = m.mul(m.mul(f, f), m.const(0.5))
    if not m.wide:
        cubic = m.mul(m.mul(f, m.mul(f, f)), m.poly(f, _LOG32))
        return m.sub(cubic, half_square)
    s = m.div(f, m.add(f, m.const(2.0)))
    z = m.mul(s, s)
    # log(1 + f) = 2 s + s z R(z), and 2 s = f - s f = f - f^2 / 2 + s f^2 / 2
    return m.sub(m.mul(s, m.fma(z, m.poly(z, _LOG64), half_square)), half_square)


def _float_of_int(m: Real, n: Value) -> Value:
    return m.e.cast("sitofp", m.e.cast("trunc", n, "i32"), m.type)


def _log_parts(m: Real, x: Value) -> tuple[Value, Value]:
    """e (as a float) and f with x = 2^e (1 + f), subnormal x included."""
    smallest = 2.0 ** (1 - m.bias)
    tiny = m.e.compare("olt", x, m.const(smallest))
    e, bits = _split_log(m, m.e.select(tiny, m.mul(x, m.const(2.0**m.mantissa)), x))
    shift = m.e.select(tiny, m.const(-float(m.mantissa)), m.const(0.0))
    return m.add(_float_of_int(m, e), shift), m.sub(m.float_of(bits), m.const(1.0))


def _log_ends(m: Real, x: Value, value: Value, zero: float) -> Value:
    """`value`, with log's values at x <= zero, +inf and NaN."""
    value = m.e.select(m.e.compare("ult", x, m.const(math.inf)), value, x)
    value = m.e.select(m.e.compare("oeq", x, m.const(zero)), m.const(-math.inf), value)
    # NaN falls through the first select as `value`, whose bits mean nothing: give NaN here
    return m.e.select(m.e.compare("ult", x, m.const(zero)), m.const(math.nan), value)


def log(m: Real, x: Value) -> Value:
    e, f = _log_parts(m, x)
    low = m.fma(e, m.const(m.ln2[1]), _log_tail(m, f))
    value = m.fma(e, m.const(m.ln2[0]), m.add(f, low))
    return _log_ends(m, x, value, 0.0)


def log2(m: Real, x: Value) -> Value:
    e, f = _log_parts(m, x)
    low = m.fma(_log_tail(m, f), m.const(m.log2e[0]), m.mul(f, m.const(m.log2e[1])))
    value = m.add(e, m.fma(f, m.const(m.log2e[0]), low))
    return _log_ends(m, x, value, 0.0)


def log1p(m: Real, x: Value) -> Value:
    e, _ = _split_log(m, m.add(x, m.const(1.0)))
    # 1 + f = (1 + x) / 2^e, from x itself to keep the bits that 1 + x rounds away; a quarter of x
    # and four times the factor, because 2^-e would be subnormal for the largest x
    quarter = m.mul(x, m.const(0.25))
    scale = m.power_of_two(m.e.op("sub", m.integer(2), e))
    f = m.fma(quarter, scale, m.fma(scale, m.const(0.25), m.const(-1.0)))
    exponent = _float_of_int(m, e)
    low = m.fma(exponent, m.const(m.ln2[1]), _log_tail(m, f))
    value = _log_ends(m, x, m.fma(exponent, m.const(m.ln2[0]), m.add(f, low)), -1.0)
    return m.where_small(m.abs(x), 2.0**-54 if m.wide else 2.0**-25, x, value)


def erf(m: Real, x: Value) -> Value:
    a = m.at_most(m.abs(x), 6.0 if m.wide else 4.0)
    small = m.fma(x, m.poly(m.mul(x, x), _ERF_SMALL64 if m.wide else _ERF_SMALL32), x)
    exponent = m.mul(a, m.poly(a, _ERF_LARGE64 if m.wide else _ERF_LARGE32))
    n, r, q = _reduce_exp(m, exponent)  # between -38 and 0, so there is no overflow or underflow
    s = m.power_of_two(n)
    # 1 - exp(...), as one rounding of 1 - s - s p
    complement = m.sub(m.sub(m.const(1.0), s), m.mul(s, m.fma(m.mul(r, r), q, r)))
    return m.where_small(m.abs(x), 1.0, small, m.copysign(complement, x))


def _sincos(m: Real, x: Value) -> tuple[Value, Value, Value]:
    """The quadrant (integer) of x, and sine and cosine of the remainder, |r| <= pi / 4.

    In double: the product with 2/pi then keeps 24 good bits even beside a multiple of pi / 2.
    """
    e = m.e
    wide = Real(e, "double")
    a = m.abs(x)
    _, _, first_hi, first_lo = _QUARTERS[0]
    scale, hi, lo = m.const(1.0), wide.const(first_hi), wide.const(first_lo)
    for start, exponent, band_hi, band_lo in _QUARTERS[1:]:
        beyond = e.compare("oge", a, m.const(start))
        scale = e.select(beyond, m.const(2.0**-exponent), scale)
        hi = e.select(beyond, wide.const(band_hi), hi)
        lo = e.select(beyond, wide.const(band_lo), lo)
    y = e.cast("fpext", m.mul(x, scale), "double")
    shifted = wide.fma(y, hi, wide.const(wide.magic))
    quadrant = e.cast("trunc", wide.bits(shifted), "i32")
    turns = wide.fma(y, lo, wide.fma(y, hi, e.neg(wide.sub(shifted, wide.const(wide.magic)))))
    r = e.cast("fptrunc", wide.mul(turns, wide.const(math.pi / 2)), m.type)
    z = m.mul(r, r)
    sine = m.fma(m.mul(r, z), m.poly(z, _SIN32), r)
    cosine = m.fma(m.mul(z, z), m.poly(z, _COS32), m.fma(z, m.const(-0.5), m.const(1.0)))
    return quadrant, sine, cosine


def _sine_in_quadrant(m: Real, quadrant: Value, sine: Value, cosine: Value) -> Value:
    """The sine of an angle in `quadrant` whose remainder has this sine and cosine."""
    odd = m.e.cast("trunc", quadrant, "i1")
    value = m.bits(m.e.select(odd, cosine, sine))
    sign = m.e.op("shl", m.e.op("lshr", quadrant, m.integer(1)), m.integer(31))
    return m.float_of(m.e.op("xor", value, sign))


def sin(m: Real, x: Value) -> Value:
    value = _sine_in_quadrant(m, *_sincos(m, x))
    return m.e.select(m.e.compare("oeq", x, m.const(0.0)), x, value)  # keeps -0


def cos(m: Real, x: Value) -> Value:
    quadrant, sine, cosine = _sincos(m, x)
    return _sine_in_quadrant(m, m.e.op("add", quadrant, m.integer(1)), sine, cosine)


def tan(m: Real, x: Value) -> Value:
    quadrant, sine, cosine = _sincos(m, x)
    odd = m.e.cast("trunc", quadrant, "i1")
    above = m.e.select(odd, m.e.neg(cosine), sine)
    value = m.div(above, m.e.select(odd, sine, cosine))
    return m.e.select(m.e.compare("oeq", x, m.const(0.0)), x, value)


def atan(m: Real, x: Value) -> Value:
    a = m.abs(x)
    steep = m.e.compare("ogt", a, m.const(1.0))
    t = m.e.select(steep, m.div(m.const(1.0), a), a)
    z = m.mul(t, t)
    tail = m.mul(m.mul(t, z), m.poly(z, _ATAN32))
    # pi / 2 - atan(1 / a), pi / 2 in two parts
    rest = m.sub(m.const(math.pi / 2), m.sub(m.add(t, tail), m.const(-4.371139e-08)))
    return m.copysign(m.e.select(steep, rest, m.add(t, tail)), x)


def pow_(m: Real, x: Value, y: Value) -> Value:
    """x ** y for float32, through double: 2^(y log2|x|), signs and ends as C's pow."""
    e, d = m.e, Real(m.e, "double")
    a = m.abs(x)
    exponent, f = _log_parts(d, e.cast("fpext", a, "double"))
    s = d.div(f, d.add(f, d.const(2.0)))
    logarithm = d.fma(s, d.poly(d.mul(s, s), _POW_LOG2), exponent)
    logarithm = e.select(e.compare("oeq", a, m.const(0.0)), d.const(-math.inf), logarithm)
    logarithm = e.select(e.compare("oeq", a, m.const(math.inf)), d.const(math.inf), logarithm)
    t = d.mul(e.cast("fpext", y, "double"), logarithm)
    t = d.at_least(d.at_most(t, 200.0), -200.0)
    shifted = d.add(t, d.const(d.magic))
    n = e.op("sub", d.bits(shifted), d.bits(d.const(d.magic)))
    fraction = d.sub(t, d.sub(shifted, d.const(d.magic)))
    power = d.mul(d.poly(fraction, _POW_EXP2), d.power_of_two(n))
    value = e.cast("fptrunc", power, m.type)
    floor = e.intrinsic("floor", y)
    whole = e.compare("oeq", floor, y)
    half = m.mul(y, m.const(0.5))
    odd = e.op("and", whole, e.compare("one", e.intrinsic("floor", half), half))
    value = e.select(odd, m.copysign(value, x), value)
    below = e.op("and", e.compare("olt", x, m.const(0.0)), e.compare("ogt", x, m.const(-math.inf)))
    wrong = e.op("and", below, e.op("xor", whole, literal("i1", True)))
    value = e.select(wrong, m.const(math.nan), value)
    value = e.select(e.compare("uno", x, y), m.const(math.nan), value)
    one = e.op("or", e.compare("oeq", x, m.const(1.0)), e.compare("oeq", y, m.const(0.0)))
    # (-1) ** +-inf is 1
    endless = e.compare("oeq", m.abs(y), m.const(math.inf))
    unit = e.op("and", endless, e.compare("oeq", a, m.const(1.0)))
    return e.select(e.op("or", one, unit), m.const(1.0), value)


def log10(m: Real, x: Value) -> Value:
    return m.div(log(m, x), m.const(math.log(10.0)))


INLINE: dict[str, Expansion] = {
    "exp": exp,
    "exp2": exp2,
    "log": log,
    "log1p": log1p,
    "log2": log2,
    "erf": erf,
    "tanh": tanh,
    "sinh": sinh,
    "cosh": cosh,
}
# in double precision these are off by up to two units, and the C library's by one
INLINE32: dict[str, Expansion] = {
    "expm1": expm1,
    "log10": log10,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "atan": atan,
}


def expand(emitter: Emitter, fn: str, x: Value) -> Value | None:
    """`fn` of `x` as arithmetic, or None if only the C library has it."""
    found = INLINE.get(fn)
    if found is None and x.type == "float":
        found = INLINE32.get(fn)
    return None if found is None else found(Real(emitter, x.type), x)
