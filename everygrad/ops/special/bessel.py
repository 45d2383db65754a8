"""Bessel functions of orders 0 and 1, and the spherical ones of the first kind.

Up to 8 a power series, or a polynomial with the zeros as factors; beyond, what is left when the
decay and the oscillation are taken out. Derivatives are functions of the neighbouring orders,
which come by recurrence: those of order 2 and above are ops inside the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import abs, sign, sqrt, where
from everygrad.ops.elementwise.math import cos, exp, log, sin
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Elementwise, Function, elementwise
from everygrad.ops.record.spec import refuse, register, sample
from everygrad.ops.special import tables as tables
from everygrad.ops.special.erf import applied, few, polynomial

_NEAR = 8.0  # where the tables meet


def _whole(x: Any, coefficients: Sequence[float], order: int) -> Any:
    """(x / 2) ** order times a polynomial in x^2 / 4."""
    total = polynomial(0.25 * x * x, coefficients)
    for _ in range(order):
        total = total * (0.5 * x)
    return total


def _series(order: int, terms: int, sign_of_square: float) -> list[float]:
    """The coefficients of a Bessel function's power series."""
    return [
        sign_of_square**k / (math.factorial(k) * math.factorial(k + order)) for k in range(terms)
    ]


# --- modified: they grow or decay ----------------------------------------------------------------


def _i_far(size: Any, order: int) -> Any:
    """exp(-x) times the function for x > 8; higher orders by recurrence."""
    t = 16.0 / size - 1.0
    root = sqrt(size)
    below, found = polynomial(t, tables.I0_FAR) / root, polynomial(t, tables.I1_FAR) / root
    if order == 0:
        return below
    for k in range(1, order):
        below, found = found, below - (2.0 * k) / size * found
    return found


def _bessel_i(x: Any, *, n: int, scaled: bool) -> Any:
    size = abs(x)
    near = _whole(size, _series(n, 23 + n, 1.0), n)
    far = _i_far(size, n)
    if scaled:
        found = where(size <= _NEAR, exp(-size) * near, far)
    else:
        half = exp(0.5 * size)  # exp(x) overflows before the result does
        found = where(size <= _NEAR, near, where(size == math.inf, size, half * (half * far)))
    return sign(x) * found if n % 2 else found


# the orders from 2 on
BESSEL_I = Elementwise(
    "bessel_i", _bessel_i, (lambda g, x, n, scaled: g * _i_slope(x, n, scaled),), kinds="real float"
)


def _i_of(x: Any, n: int, scaled: bool) -> Any:
    plain = ((i0, i0e), (i1, i1e))
    return plain[n][scaled](x) if n < 2 else applied(BESSEL_I, x, n=n, scaled=scaled)


def _i_slope(x: Any, n: int, scaled: bool) -> Any:
    if n == 0:
        slope = _i_of(x, 1, scaled)
    else:
        slope = 0.5 * (_i_of(x, n - 1, scaled) + _i_of(x, n + 1, scaled))
    return slope - sign(x) * _i_of(x, n, True) if scaled else slope


def _modified(name: str, n: int, scaled: bool) -> Function:
    scale = "exp(-abs(x)) times the" if scaled else "The"
    return elementwise(
        name,
        lambda x: _bessel_i(x, n=n, scaled=scaled),
        (lambda g, x: g * _i_slope(x, n, scaled),),
        kinds="real float",
        doc=f"{scale} modified Bessel function of the first kind, of order {n}.",
        methods=(),
        namespace="special",
        reference=f"{'scipy.special' if scaled else 'tests.support.references.special'}:{name}",
        torch=None,
        samples=few(-3.0, 9.5, shapes=((2, 3), (0,))),
    )


i0: Function = _modified("i0", 0, False)
i0e: Function = _modified("i0e", 0, True)
i1: Function = _modified("i1", 1, False)
i1e: Function = _modified("i1e", 1, True)
register(
    BESSEL_I,
    lambda x, n, scaled: applied(BESSEL_I, x, n=n, scaled=scaled),
    namespace="internal",
    reference="tests.support.references.special:bessel_i",
    samples=lambda: iter(
        (sample(s.real(3, low=-2.0, high=9.0), 2, False), sample(s.real(3), 3, True))
    ),
)


# --- of the first and second kind: they oscillate ------------------------------------------------

# the zeros up to 8 in two parts, of which the first is a number of float32 too
_ZEROS = (
    ((2.404825448989868, 1.0870590460455913e-07), (5.520078182220459, -7.19341483347784e-08)),
    ((3.8317060470581055, -7.685059315313556e-08), (7.015586853027344, -1.8321172499646294e-07)),
)
_J_NEAR = (tables.J0_NEAR, tables.J1_NEAR)
_Y_NEAR = (tables.Y0_NEAR, tables.Y1_NEAR)
_WAVES = ((tables.P0, tables.Q0), (tables.P1, tables.Q1))


def _j_near(size: Any, n: int) -> Any:
    found = polynomial(size * size * (1 / 32) - 1.0, _J_NEAR[n])
    for first, rest in _ZEROS[n]:
        found = found * (((size - first) - rest) * (size + (first + rest)))
    return found * size if n else found


def _wave(size: Any, n: int, second: bool) -> Any:
    """The function for x > 8: two slow factors, one for each of two waves a quarter apart."""
    p, q = (polynomial(128.0 / (size * size) - 1.0, table) for table in _WAVES[n])
    q = q * (8.0 / size)
    sine, cosine = sin(size), cos(size)
    ahead, behind = sine + cosine, sine - cosine
    if n == 0:
        found = p * behind + q * ahead if second else p * ahead - q * behind
    else:
        found = q * behind - p * ahead if second else p * behind + q * ahead
    return where(size == math.inf, 0.0, found * sqrt((1 / math.pi) / size))


def _j(x: Any, n: int) -> Any:
    size = abs(x)
    found = where(size <= _NEAR, _j_near(size, n), _wave(size, n, second=False))
    return sign(x) * found if n else found


def _y(x: Any, n: int) -> Any:
    slow = polynomial(x * x * (1 / 32) - 1.0, _Y_NEAR[n])
    steep = log(x) * _j_near(x, n)
    near = slow + (2 / math.pi) * steep
    if n:
        near = x * slow + (2 / math.pi) * (steep - 1.0 / x)
    found = where(x <= _NEAR, near, _wave(x, n, second=True))
    return where(x > 0, found, where(x == 0, -math.inf, math.nan))


def _upwards(x: Any, n: int, first: Any, second: Any) -> Any:
    """Order n from orders 0 and 1 of the first or second kind."""
    for k in range(1, n):
        first, second = second, (2.0 * k) / x * second - first
    return second


def _bessel_j(x: Any, *, n: int) -> Any:
    """By the series up to max(4, n), where the recurrence would lose digits."""
    near = _whole(x, _series(n, 16 + 2 * n, -1.0), n)
    far = where(abs(x) == math.inf, 0.0, _upwards(x, n, _j(x, 0), _j(x, 1)))
    return where(abs(x) <= max(4.0, float(n)), near, far)


def _bessel_y(x: Any, *, n: int) -> Any:
    return _upwards(x, n, _y(x, 0), _y(x, 1))


def _oscillating(letter: str) -> Callable[[Any, int], Any]:
    """d/dx of order n, by its neighbours."""

    def of(x: Any, n: int) -> Any:
        plain = (j0, j1) if letter == "j" else (y0, y1)
        op = BESSEL_J if letter == "j" else BESSEL_Y
        return plain[n](x) if n < 2 else applied(op, x, n=n)

    def slope(x: Any, n: int) -> Any:
        return -of(x, 1) if n == 0 else 0.5 * (of(x, n - 1) - of(x, n + 1))

    return slope


_j_slope, _y_slope = _oscillating("j"), _oscillating("y")
# the orders from 2 on
BESSEL_J = Elementwise(
    "bessel_j", _bessel_j, (lambda g, x, n: g * _j_slope(x, n),), kinds="real float"
)
BESSEL_Y = Elementwise(
    "bessel_y", _bessel_y, (lambda g, x, n: g * _y_slope(x, n),), kinds="real float"
)


def _plain(name: str, n: int, body: Any, slope: Any, doc: str, low: float) -> Function:
    return elementwise(
        name,
        lambda x: body(x, n),
        (lambda g, x: g * slope(x, n),),
        kinds="real float",
        doc=doc,
        methods=(),
        namespace="special",
        reference=f"tests.support.references.special:{name}",
        torch=None,
        samples=few(low, 12.0, shapes=((2, 3), (0,))),
    )


_FIRST = "The Bessel function of the first kind, of order {}."
_SECOND = "The Bessel function of the second kind, of order {}: -infinite at 0, NaN below."
j0: Function = _plain("j0", 0, _j, _j_slope, _FIRST.format(0), -4.0)
j1: Function = _plain("j1", 1, _j, _j_slope, _FIRST.format(1), -4.0)
y0: Function = _plain("y0", 0, _y, _y_slope, _SECOND.format(0), 0.5)
y1: Function = _plain("y1", 1, _y, _y_slope, _SECOND.format(1), 0.5)


for _op, _low in ((BESSEL_J, -2.0), (BESSEL_Y, 0.5)):
    register(
        _op,
        (lambda op: lambda x, n: applied(op, x, n=n))(_op),
        namespace="internal",
        reference=f"tests.support.references.special:{_op.name}",
        samples=(
            lambda low: (
                lambda: iter(
                    (
                        sample(s.real(3, low=low, high=9.0), 2),
                        sample(s.real(3, low=max(low, 0.5)), 3),
                    )
                )
            )
        )(_low),
    )


# --- spherical -----------------------------------------------------------------------------------


def _spherical(x: Any, *, n: int) -> Any:
    """The series up to n + 1, then upwards from sin(x) / x."""
    odd = math.prod(range(1, 2 * n + 2, 2))  # (2n + 1)!!
    terms, factor = [1.0 / odd], 1.0 / odd
    for k in range(1, 14 + n):
        factor /= -2.0 * k * (2 * n + 1 + 2 * k)
        terms.append(factor)
    near = polynomial(x * x, terms)
    for _ in range(n):
        near = near * x
    below = sin(x) / x
    found = (below - cos(x)) / x if n else below
    for k in range(1, n):
        below, found = found, (2.0 * k + 1.0) / x * found - below
    far = where(abs(x) == math.inf, 0.0, found)
    return where(abs(x) <= n + 1.0, near, far)


def _spherical_slope(x: Any, n: int) -> Any:
    if n == 0:
        return -spherical_jn(1, x)
    between = n * spherical_jn(n - 1, x) - (n + 1) * spherical_jn(n + 1, x)
    return between * (1 / (2 * n + 1))


SPHERICAL = Elementwise(
    "spherical_jn",
    _spherical,
    (lambda g, x, n: g * _spherical_slope(x, n),),
    kinds="real float",
)
_MOST = 60  # the series of higher orders begins below the smallest number of float32


def spherical_jn(n: int, x: Any) -> Tensor:
    """The spherical Bessel function of the first kind, of order n, a number."""
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= _MOST:
        raise ArgumentError(f"spherical_jn: n must be an integer from 0 to {_MOST}, got {n!r}")
    out: Tensor = applied(SPHERICAL, x, n=n)
    return out


register(
    SPHERICAL,
    spherical_jn,
    namespace="special",
    reference="scipy.special:spherical_jn",
    torch=None,
    samples=lambda: iter((sample(0, s.real(3)), sample(2, s.real(2, 3, low=-2.0, high=8.0)))),
    refuses=(
        refuse(ArgumentError, "spherical_jn: n must be .* from 0 to 60, got -1", -1, s.real(2)),
    ),
)
