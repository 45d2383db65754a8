"""The gamma function's kin: lgamma, digamma, polygamma, zeta, beta.

Between 1 and 2 a polynomial, with the zeros of lgamma and digamma as factors, so that their digits
are kept there; up to 3 and down to 0 by one step of the recurrence; from 3 on Stirling's series,
as a polynomial; below 0 by reflection.
"""

from __future__ import annotations

import math
from typing import Any

from everygrad import dtypes
from everygrad.dispatch import operands
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops import samples as s, special_tables as tables
from everygrad.ops.creation import arange
from everygrad.ops.elementwise import (
    MISFIT,
    abs,
    floor,
    maximum,
    minimum,
    round,
    where,
)
from everygrad.ops.families import Elementwise, Function, check_kind, elementwise
from everygrad.ops.functions import exp, log, log1p, sin, tan
from everygrad.ops.spec import composite, refuse, register, sample
from everygrad.ops.special_error import applied, few, polynomial
from everygrad.tensor import Tensor

HALF_LOG_2PI = 0.9189385332046727
# where digamma is 0, less 1, in two parts; the first is a number of float32 too
_ROOT = (0.4616321325302124, 1.2438149938918909e-08)
_POSITIVE = few(0.3, 4.5)


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
    return where(x < 0, where(x == -math.inf, math.inf, below), above)


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
    below = above + 1.0 / size + math.pi / tan(math.pi * off)
    ends = where(x == 0, -1.0 / x, where(off == 0, math.nan, below))
    return where(x > 0, above, where(x <= 0, ends, x))


lgamma: Function = elementwise(
    "lgamma",
    lgamma_body,
    (lambda g, x: g * digamma(x),),
    kinds="real float",
    doc="log(abs(gamma(x))): infinite at 0 and the negative integers.",
    methods=(),
    namespace="special",
    reference="tests.references_special:lgamma",
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
    """The sum of (end + k) ** -exponent over k = 0, 1, ... over the first of them, by Euler and
    Maclaurin; the more terms, the smaller `end` may be."""
    one = 1.0 / end
    total: Any = 0.0
    for j in range(terms - 1, -1, -1):
        total = total + _BERNOULLI[j]
        if j:
            total = total * ((exponent + (2 * j - 1.0)) * one) * ((exponent + 2.0 * j) * one)
    return end / (exponent - 1.0) + 0.5 + total * (exponent * one)


_LONG = 24  # powers that zeta adds one by one, an axis of their own
_SHORT = 8  # and polygamma, one after the other: the rest needs more terms


def _zeta_samples() -> Any:
    yield sample(s.real(2, 3, low=1.3, high=4.0), s.real(3, low=0.3, high=3.0, seed=1))
    yield sample(2.5, s.real(2, low=0.3))


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
def zeta(x: Any, q: Any = 1.0) -> Tensor:
    """Hurwitz' zeta function, the sum of (q + k) ** -x over k = 0, 1, ...; Riemann's for q = 1.

    Infinite at x = 1 and for q = 0, -1, ...; NaN for x < 1 and for other q < 0.
    """
    x, q = operands("zeta", x, q)
    check_kind("zeta", x.dtype, "real float")
    if x.dtype.bits == 16:
        wide: Tensor = zeta(x.astype(dtypes.float32), q.astype(dtypes.float32)).astype(x.dtype)
        return wide
    inside = (x > 1) & (q > 0)
    power, start = where(inside, x, 2.0), where(inside, q, 1.0)
    places = start.expand_dims(-1) + arange(_LONG, dtype=x.dtype, device=x.device)
    end = start + float(_LONG)
    rest = end**-power * _rest_of_powers(power, end, 5)
    total = (places ** -power.expand_dims(-1)).sum(axis=-1) + rest
    outside = where(x == 1, math.inf, where((x > 1) & (q == floor(q)), math.inf, math.nan))
    known = (x == x) & (q == q)
    out: Tensor = where(known, where(inside, total, outside), math.nan)
    return out


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

    def power(base: Any) -> Any:
        one = 1.0 / base
        total = one
        for _ in range(n):
            total = total * one
        return total

    total = power(x)
    for k in range(1, _SHORT):
        total = total + power(x + float(k))
    end = x + float(_SHORT)
    total = total + power(end) * _rest_of_powers(n + 1.0, end, len(_BERNOULLI))
    return (-1.0) ** (n + 1) * float(math.factorial(n)) * total


def _polygamma(x: Any, *, n: int) -> Any:
    off = _off_integer(x)
    cot = 1.0 / tan(math.pi * off)
    slope = math.pi ** (n + 1) * polynomial(cot, [float(c) for c in _slopes_of_cot(n)])
    # one evaluation for both sides: of x, or of 1 - x
    above = _polygamma_above(where(x < 0, 1.0 - x, x), n)
    below = where(off == 0, (-1.0) ** (n + 1) * math.inf, (-1.0) ** n * above - slope)
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
        refuse(ArgumentError, "polygamma: n must be an integer .* got 1.5", 1.5, s.real(2)),
    ),
)

# --- beta ----------------------------------------------------------------------------------------


def _lifted(x: Any, total: Any) -> tuple[Any, Any]:
    """x, or x + 3 where it is below 3; and what that adds to betaln, `total` being a + b."""
    low = x < 3
    ratios = [where(low, (total + k) / (x + k), 1.0) for k in (0.0, 1.0, 2.0)]
    # two logarithms: the product of all three may overflow
    return where(low, x + 3.0, x), log(ratios[0] * ratios[1]) + log(ratios[2])


def _betaln(x: Any, y: Any) -> Any:
    total = x + y
    a, first = _lifted(x, total)
    b, second = _lifted(y, where(x < 3, total + 3.0, total))
    small, large = minimum(a, b), maximum(a, b)
    end = a + b
    powers = (small - 0.5) * log(small / end) - large * log1p(small / large) - 0.5 * log(large)
    rest = stirling(small) + (stirling(large) - stirling(end))
    found = (powers + HALF_LOG_2PI) + rest + (first + second)
    found = where(minimum(x, y) == 1, -log(maximum(x, y)), found)  # where it is small, exactly
    ends = where(minimum(x, y) == 0, math.inf, where(large == math.inf, -math.inf, found))
    return where((x >= 0) & (y >= 0), ends, math.nan)


betaln: Function = elementwise(
    "betaln",
    _betaln,
    (
        lambda g, x, y: g * (digamma(x) - digamma(x + y)),
        lambda g, x, y: g * (digamma(y) - digamma(x + y)),
    ),
    kinds="real float",
    doc="The logarithm of beta.",
    methods=(),
    namespace="special",
    reference="tests.references_special:betaln",
    torch=lambda torch, x, y: torch.lgamma(x) + torch.lgamma(y) - torch.lgamma(x + y),
    samples=few(0.3, 4.0, 0.3, 4.0),
    refuses=(MISFIT,),
)
beta: Function = elementwise(
    "beta",
    lambda x, y: exp(_betaln(x, y)),
    (
        lambda g, x, y, out: g * out * (digamma(x) - digamma(x + y)),
        lambda g, x, y, out: g * out * (digamma(y) - digamma(x + y)),
    ),
    kinds="real float",
    doc="gamma(x) gamma(y) / gamma(x + y) for x and y >= 0: infinite at 0, NaN below.",
    methods=(),
    namespace="special",
    reference="tests.references_special:beta",
    torch=lambda torch, x, y: (torch.lgamma(x) + torch.lgamma(y) - torch.lgamma(x + y)).exp(),
    samples=few(0.3, 4.0, 0.3, 4.0, shapes=((2, 3),)),
    refuses=(MISFIT,),
)
