"""The CDF of the standard normal distribution as straight-line IR; gelu(x) is x times it.

From erf it would be (1 + erf) / 2, which loses all digits far below 0. Here the tail beyond abs(x)
is exp(-x^2 / 2) times a function so smooth that one polynomial serves from 0 to where the tail
underflows. The error is within seven units in the last place, one on average, down to the smallest
normal numbers.
"""

from __future__ import annotations

from everygrad.backends.cpu.llvm.compiler import Emitter, Value
from everygrad.backends.cpu.llvm.vecmath import Real, exp

# tail(t) exp(t^2 / 2) / v as a polynomial in v = 1 / (t + shift), 0 <= t <= limit
_SHIFT32, _LIMIT32 = 4.0, 14.5
_TAIL32 = (
    0.39899904,
    1.5912571,
    6.135257,
    17.989859,
    94.138466,
    9.831869,
    677.7702,
    2725.5955,
    -15301.603,
    16506.52,
)
_SHIFT64, _LIMIT64 = 6.0, 39.0
_TAIL64 = (
    0.39894228031950335,
    2.3936537109199327,
    13.962975235646429,
    78.9910221349338,
    432.0240462287266,
    2277.8623334395425,
    11442.42058950081,
    56907.18090012358,
    216836.94139654556,
    1650036.1598765915,
    -3176114.625420851,
    75730146.33783147,
    -159047377.1788195,
    -3227895702.6176243,
    67236465450.03971,
    -689897423142.4604,
    4725428516914.143,
    -22998027939018.34,
    77476848352895.45,
    -170019985293349.4,
    218166382915364.84,
    -124464536191781.14,
)


def ndtr(m: Real, x: Value) -> Value:
    # of x itself: a kernel that needs the density of x too, as gelu's derivative, shares this exp
    decay = exp(m, m.mul(m.mul(x, x), m.const(-0.5)))
    t = m.at_most(m.abs(x), _LIMIT64 if m.wide else _LIMIT32)
    left = m.fma(t, t, m.e.neg(m.mul(t, t)))  # the error of the square counts a hundredfold
    v = m.div(m.const(1.0), m.add(t, m.const(_SHIFT64 if m.wide else _SHIFT32)))
    smooth = m.mul(v, m.poly(v, _TAIL64 if m.wide else _TAIL32))
    tail = m.mul(m.fma(m.mul(smooth, left), m.const(-0.5), smooth), decay)
    return m.e.select(m.e.compare("ogt", x, m.const(0.0)), m.sub(m.const(1.0), tail), tail)


def expand(emitter: Emitter, fn: str, x: Value) -> Value | None:
    """`fn` of `x` as arithmetic, or None if it is another function."""
    return ndtr(Real(emitter, x.type), x) if fn == "ndtr" else None
