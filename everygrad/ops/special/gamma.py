"""The gamma function's kin: lgamma, digamma, polygamma, zeta, beta.

Between 1 and 2 a polynomial, with the zeros of lgamma and digamma as factors, so that their digits
are kept there; up to 3 and down to 0 by one step of the recurrence; from 3 on Stirling's series,
as a polynomial; below 0 by reflection.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import operands
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import MISFIT, abs, floor, maximum, minimum, round, where
from everygrad.ops.elementwise.math import exp, log, log1p, sin, tan
from everygrad.ops.python.creation import arange, full_like
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Elementwise, Function, check_kind, elementwise
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.special import tables as tables
from everygrad.ops.special.erf import applied, few, polynomial

HALF_LOG_2PI = 0.9189385332046727
# where digamma is 0, less 1, in two parts; the first is a number of float32 too
_ROOT = (0.4616321325302124, 1.2438149938918909e-08)
_POSITIVE = few(0.3, 4.5)
_BESIDE_0 = 1e-17  # nearer to 0 than float64 can tell from the pole alone


def _step(x: Any) -> Any:
    """How far beyond 1 the argument lies after a step of the recurrence, exactly."""
    return where(x < 1, x, where(x > 2, x - 2.0, x - 1.0))


def stirling(x: Any) -> Any:
    """log(gamma(x)) - (x - 1/2) log(x) + x - log(2 pi) / 2 for x >= 3."""
    return polynomial(18.0 / (x * x) - 1.0, tables.STIRLING) / x


def lgamma_above(x: Any) -> Any:
    """Of x >= 0."""
    beyond = _step(x)
    near = x < 3
    inside = where(x < 1, x, where(x > 2, x - 1.0, 1.0))
    logarithm = log(where(near, inside, x))
    middle = beyond * (beyond - 1.0) * polynomial(2.0 * beyond - 1.0, tables.LGAMMA)
    far = (x - 0.5) * (logarithm - 1.0) + (HALF_LOG_2PI - 0.5) + stirling(x)
    return where(near, middle + where(x < 1, -logarithm, logarithm), far)


def _off_integer(size: Any) -> Any:
    """The distance to the nearest integer, with its sign; exact."""
    return size - round(size)


def lgamma_body(x: Any) -> Any:
    size = abs(x)
    above = lgamma_above(size)
    turn = abs(sin(math.pi * _off_integer(size)))
    below = log(math.pi / turn) - (above + log(size))
    # beside 0 both sides are -log(size), which does not overflow on the way
    below = where(size < _BESIDE_0, above, below)
    return where(x < 0, where(x == -math.inf, math.inf, below), above)


def _cot(off: Any) -> Any:
    """cot(pi off) for off up to 1/2 in size, where it is 0: a tangent from the nearer end."""
    size = abs(off)
    steep = size < 0.25
    tangent = tan(math.pi * where(steep, size, 0.5 - size))
    found = where(steep, 1.0 / tangent, tangent)
    return where(off < 0, -found, found)


def _digamma_above(x: Any) -> Any:
    """Of x > 0."""
    beyond = _step(x)
    middle = ((beyond - _ROOT[0]) - _ROOT[1]) * polynomial(2.0 * beyond - 1.0, tables.DIGAMMA)
    step = where(x < 1, -1.0, where(x > 2, 1.0, 0.0)) / where(x > 2, x - 1.0, x)
    square = x * x
    far = log(x) - (0.5 / x + polynomial(18.0 / square - 1.0, tables.DIGAMMA_FAR) / square)
    return where(x < 3, middle + step, far)


def _digamma(x: Any) -> Any:
    size = abs(x)
    above = _digamma_above(size)
    off = _off_integer(size)
    below = above + 1.0 / size + math.pi * _cot(off)
    ends = where(size < _BESIDE_0, -1.0 / x, where(off == 0, math.nan, below))
    return where(x > 0, above, where(x <= 0, ends, x))


lgamma: Function = elementwise(
    "lgamma",
    lgamma_body,
    (lambda g, x: g * digamma(x),),
    kinds="real float",
    doc="log(abs(gamma(x))): infinite at 0 and the negative integers.",
    methods=(),
    namespace="special",
    reference="tests.support.references.special:lgamma",
    torch="torch:lgamma",
    samples=few(-2.4, 4.5),
)
digamma: Function = elementwise(
    "digamma",
    _digamma,
    (lambda g, x: g * polygamma(1, x),),
    kinds="real float",
    doc="The derivative of lgamma; infinite at 0, NaN at the negative integers.",
    methods=(),
    namespace="special",
    reference="scipy.special:digamma",
    torch=None,  # its derivative has nine digits there
    samples=_POSITIVE,
)

# --- sums of powers ------------------------------------------------------------------------------

# B(2j) / (2j)!, B the numbers of Bernoulli
_BERNOULLI = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000,
    1 / 74724249600, -3617 / 10670622842880000, 43867 / 5109094217170944000,
    -174611 / 802857662698291200000, 77683 / 14101100039391805440000,
)  # fmt: skip


def _rest_of_powers(exponent: Any, end: Any, terms: int) -> Any:
    """The sum of (end + k) ** -exponent over k = 0, 1, ... over end ** (1 - exponent), by Euler and
    Maclaurin; the more terms, the smaller `end` may be."""
    one = 1.0 / end
    total: Any = 0.0
    for j in range(terms - 1, -1, -1):
        total = total + _BERNOULLI[j]
        if j:
            total = total * ((exponent + (2 * j - 1.0)) * one) * ((exponent + 2.0 * j) * one)
    return 1.0 / (exponent - 1.0) + one * (0.5 + total * (exponent * one))


_LONG = 24  # powers that zeta adds one by one, an axis of their own
_SHORT = 8  # and polygamma, one after the other: the rest needs more terms


def _zeta_above(x: Tensor, q: Tensor) -> Tensor:
    """Of q > 0, and x > 1 or a little below it, which the sum itself does not reach."""
    places = q.expand_dims(-1) + arange(_LONG, dtype=x.dtype, device=x.device)
    end = q + float(_LONG)
    low = minimum(x, 1000.0)  # above, the rest is 0 beside any number
    rest = end ** (1.0 - low) * _rest_of_powers(low, end, 5)
    out: Tensor = (places ** -x.expand_dims(-1)).sum(axis=-1) + rest
    return out


def _is_even(x: Any) -> Any:
    """Of integers."""
    return _off_integer(0.5 * x) == 0


def _hurwitz(x: Tensor, q: Tensor, may_be_below: bool) -> Tensor:
    """Below 0 the powers before the first of a positive number are those of positive numbers too,
    with the sign of (-1) ** x, which exists for integers x."""
    whole = x == floor(x)
    below = (q < 0) & whole & (x < math.inf)
    inside = (x > 1) & ((q > 0) | below)
    power = where(inside, x, 2.0)
    start = where(inside & (q > 0), q, 1.0)
    if may_be_below:
        between = below & (q > floor(q))
        first = _zeta_above(power, where(between, q - floor(q), start))
        mirrored = where(between, -q - floor(-q), 1.0)
        # where both are the same their difference is 0, and what is left has all its digits
        before, after = _zeta_above(power, mirrored), _zeta_above(power, where(below, 1.0 - q, 1.0))
        both = where(_is_even(power), (first + before) - after, (first - before) + after)
        total = where(below, both, first)
    else:
        total = _zeta_above(power, start)
    pole = (x == 1) | ((x > 1) & (q <= 0) & (q == floor(q)))
    known = (x == x) & (q == q)
    out: Tensor = where(known & pole, math.inf, where(known & inside, total, math.nan))
    return out


_REFLECTED = -0.1  # from here down; at 0 itself the formula is 0 times infinity


def _riemann(x: Tensor) -> Tensor:
    """zeta(x) = 2 (2 pi)^(x - 1) sin(pi x / 2) gamma(1 - x) zeta(1 - x), where x is negative."""
    low = x < _REFLECTED
    above = _zeta_above(where(low, 1.0 - x, where(x == 1, 2.0, x)), full_like(x, 1.0))
    off = _off_integer(0.5 * x)
    turn = sin(math.pi * where(low, off, 0.5))
    turn = where(_is_even(round(0.5 * x)), turn, -turn)
    size = where(low & (off != 0), 1.0 - x, 2.0)
    factor = 2.0 * exp(lgamma(size) - size * math.log(2 * math.pi))
    below = where(off == 0, 0.0, factor * turn * above)
    known = (x == x) & (x > -math.inf)
    found = where(low, below, where(x == 1, math.inf, above))
    out: Tensor = where(known, found, math.nan)
    return out


def _zeta_samples() -> Any:
    yield sample(s.real(2, 3, low=1.3, high=4.0), s.real(3, low=0.3, high=3.0, seed=1))
    yield sample(2.5, s.real(2, low=0.3))
    yield sample(s.real(3, low=-3.0, high=0.9))


@composite(
    methods=(),
    namespace="special",
    kinds="real float",
    reference="scipy.special:zeta",
    torch=None,  # no derivative in x there
    samples=_zeta_samples,
    refuses=(
        refuse(ShapeError, "cannot broadcast", s.real(2, low=2.0, high=3.0), s.real(3, low=1.0)),
        refuse(DtypeError, "zeta: does not take int64", *[s.integers(2, low=2)] * 2),
    ),
)
def zeta(x: Any, q: Any = None) -> Tensor:
    """Hurwitz' zeta function, the sum of (q + k) ** -x over k = 0, 1, ...; without q Riemann's.

    Infinite at x = 1 and for q = 0, -1, ...; NaN for other q < 0 unless x is an integer, and for
    x < 1, where Riemann's is continued.
    """
    given, number = (x,) if q is None else (x, q), isinstance(q, int | float)
    tensors = operands("zeta", *given)
    check_kind("zeta", tensors[0].dtype, "real float")
    dtype = tensors[0].dtype
    if dtype.bits == 16:
        wide: Tensor = zeta(*(t.astype(dtypes.float32) for t in tensors)).astype(dtype)
        return wide
    if q is None:
        return _riemann(tensors[0])
    return _hurwitz(tensors[0], tensors[1], may_be_below=not (number and q > 0))


def _slopes_of_cot(n: int) -> list[int]:
    """The n-th derivative of cot as a polynomial in cot: its coefficients, the constant first."""
    found = [0, 1]
    for _ in range(n):
        slope = [i * c for i, c in enumerate(found)][1:]
        found = [0] * (len(slope) + 2)
        for i, c in enumerate(slope):  # times -(1 + cot^2)
            found[i] -= c
            found[i + 2] -= c
    return found


def _polygamma_above(x: Any, n: int) -> Any:
    """Of x >= 0."""

    def power(base: Any, count: int) -> Any:
        one = 1.0 / base
        total = one
        for _ in range(count - 1):
            total = total * one
        return total

    total = power(x, n + 1)
    for k in range(1, _SHORT):
        total = total + power(x + float(k), n + 1)
    end = x + float(_SHORT)
    total = total + power(end, n) * _rest_of_powers(n + 1.0, end, len(_BERNOULLI))
    return (-1.0) ** (n + 1) * float(math.factorial(n)) * total


def _polygamma(x: Any, *, n: int) -> Any:
    off = _off_integer(x)
    slope = math.pi ** (n + 1) * polynomial(_cot(off), [float(c) for c in _slopes_of_cot(n)])
    # one evaluation for both sides: of x, or of 1 - x
    above = _polygamma_above(where(x < 0, 1.0 - x, where(x == 0, 0.0, x)), n)  # -0.0 too is 0
    pole = (off == 0) | (x == -math.inf)
    below = where(pole, (-1.0) ** (n + 1) * math.inf, (-1.0) ** n * above - slope)
    return where(x < 0, below, above)


POLYGAMMA = Elementwise(
    "polygamma", _polygamma, (lambda g, x, n: g * polygamma(n + 1, x),), kinds="real float"
)
_MOST = 100  # beyond, the factorial leaves few numbers of float64 that are not infinite


def polygamma(n: int, x: Any) -> Tensor:
    """The n-th derivative of digamma, n a number; infinite at 0 and the negative integers."""
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= _MOST:
        raise ArgumentError(f"polygamma: n must be an integer from 0 to {_MOST}, got {n!r}")
    out: Tensor = applied(POLYGAMMA, x, n=n) if n else digamma(x)
    return out


register(
    POLYGAMMA,
    polygamma,
    namespace="special",
    reference="scipy.special:polygamma",
    torch=None,  # which has nine digits
    samples=lambda: iter(
        (sample(1, s.real(2, 3, low=0.5, high=4.0)), sample(2, s.real(3, low=0.5, high=4.0)))
    ),
    refuses=(
        refuse(
            ArgumentError, "polygamma: n must be an integer from 0 to 100, got -1", -1, s.real(2)
        ),
        refuse(ArgumentError, "polygamma: n must be an integer, got float 1.5", 1.5, s.real(2)),
    ),
)

# --- beta ----------------------------------------------------------------------------------------


def _lifted(x: Any, total: Any) -> tuple[Any, Any]:
    """x, or x + 3 where it is below 3; and what that adds to betaln, `total` being a + b."""
    low = x < 3
    first, *others = [log(where(low, (total + k) / (x + k), 1.0)) for k in (0.0, 1.0, 2.0)]
    # three logarithms: the product of two ratios may overflow
    return where(low, x + 3.0, x), first + (others[0] + others[1])


def _betaln_above(x: Any, y: Any) -> Any:
    """Of x and y >= 0."""
    total = x + y
    a, first = _lifted(x, total)
    b, second = _lifted(y, where(x < 3, total + 3.0, total))
    small, large = minimum(a, b), maximum(a, b)
    end = a + b
    powers = (small - 0.5) * log(small / end) - large * log1p(small / large) - 0.5 * log(large)
    rest = stirling(small) + (stirling(large) - stirling(end))
    found = (powers + HALF_LOG_2PI) + rest + (first + second)
    found = where(minimum(x, y) == 1, -log(maximum(x, y)), found)  # where it is small, exactly
    low, high = minimum(x, y), maximum(x, y)
    # beside 0, where ratios overflow, it is (x + y) / (x y)
    beside = where(low == 0, math.inf, log1p(low / high) - log(low))
    found = where(low < 1e-18, beside, found)
    return where((large == math.inf) & (low > 0), -math.inf, found)


class _Turns(NamedTuple):
    """sin(pi x): its size, and whether it is negative."""

    size: Any
    negative: Any


def _turns(x: Any, beside: Any = 0.0) -> _Turns:
    """`beside` is what rounding took from x."""
    off = _off_integer(x) + beside
    odd = _off_integer(0.5 * round(x)) != 0
    return _Turns(abs(sin(math.pi * off)), odd ^ (off < 0))


def _beta_parts(x: Any, y: Any) -> tuple[Any, Any]:
    """betaln, and whether beta is negative.

    Where one of them is below 0, gamma's reflection leaves betaln of positive numbers: with a the
    lower one, b the other and s their sum, of (1 - a, s) where b and s are positive, of (1 - s, b)
    where only b is, else of (1 - a, 1 - b).
    """
    a, b = minimum(x, y), maximum(x, y)
    s = a + b
    above, over, both = a >= 0, (b >= 0) & (s > 0), b < 0
    found = _betaln_above(
        where(above, a, where(over | both, 1.0 - a, 1.0 - s)),
        where(above | ~(over | both), b, where(over, s, 1.0 - b)),
    )
    most = s - a
    of_a, of_b, of_s = _turns(a), _turns(b), _turns(s, (a - (s - most)) + (b - most))
    # integers: b steps away from a pole there is another, and their quotient is 1
    quotient = where((of_a.size == 0) & (of_s.size == 0) & ~both, 1.0, of_s.size / of_a.size)
    negative = where(over, of_a.negative, of_a.negative ^ of_s.negative)
    beside = log(math.pi / (of_b.size * (1.0 - s)))
    below = where(over, log(math.pi / b) - log(of_a.size) - found, log(quotient) + found)
    below = where(both, beside + log(quotient) - found, below)
    poles = ((of_a.size == 0) & ((s > 0) | (of_s.size != 0))) | (both & (of_b.size == 0))
    endless = poles | (a == -math.inf) | (b == math.inf)
    below = where((a < 0) & endless, math.inf, below)
    known = (x == x) & (y == y)
    negative = where(both, negative ^ of_b.negative, negative) & (a < 0) & ~poles
    return where(known, where(above, found, below), math.nan), negative & (a > -math.inf)


def _beta(x: Any, y: Any) -> Any:
    logarithm, negative = _beta_parts(x, y)
    size = exp(logarithm)
    return where(negative, -size, size)


betaln: Function = elementwise(
    "betaln",
    lambda x, y: _beta_parts(x, y)[0],
    (
        lambda g, x, y: g * (digamma(x) - digamma(x + y)),
        lambda g, x, y: g * (digamma(y) - digamma(x + y)),
    ),
    kinds="real float",
    doc="The logarithm of beta's size.",
    methods=(),
    namespace="special",
    reference="tests.support.references.special:betaln",
    torch=lambda torch, x, y: torch.lgamma(x) + torch.lgamma(y) - torch.lgamma(x + y),
    samples=few(0.3, 4.0, 0.3, 4.0),
    refuses=(MISFIT,),
)
beta: Function = elementwise(
    "beta",
    _beta,
    (
        lambda g, x, y, out: g * out * (digamma(x) - digamma(x + y)),
        lambda g, x, y, out: g * out * (digamma(y) - digamma(x + y)),
    ),
    kinds="real float",
    doc="gamma(x) gamma(y) / gamma(x + y). Infinite at 0, -1, ... unless x + y is one of these and "
    "the other argument is not, where a limit exists.",
    methods=(),
    namespace="special",
    reference="tests.support.references.special:beta",
    torch=lambda torch, x, y: (torch.lgamma(x) + torch.lgamma(y) - torch.lgamma(x + y)).exp(),
    samples=few(0.3, 4.0, 0.3, 4.0, shapes=((2, 3),)),
    refuses=(MISFIT,),
)
