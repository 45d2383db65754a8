"""Orthogonal polynomials, by their recurrences; the degree is a number.

The derivative of each is a polynomial of the same kind: Legendre's and Chebyshev's are those of
Gegenbauer for one parameter, Laguerre's have one, and the derivative is that of the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import abs, where
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Elementwise, Function
from everygrad.ops.record.spec import refuse, register, sample
from everygrad.ops.special.erf import applied

MOST = 200  # terms unrolled into one kernel


def _recurrence(
    n: int, x: Any, one: Any, step: Callable[[int, Any, Any], Any], *, rises: bool = True
) -> Any:
    """Degree n from degree 0, which is 1, and degree 1; step(k, p(k), p(k - 1)) is p(k + 1).

    `rises` says that the first coefficients are positive, so that all end at infinity.
    """
    if n == 0:
        return where(x == x, 1.0, x)
    before: Any = 1.0
    for k in range(1, n):
        before, one = one, step(k, one, before)
    right, left = math.inf if rises or n % 2 == 0 else -math.inf, math.inf * (-1.0) ** n
    # both terms of a step overflowed; the last zeros are far below
    endless = (one != one) & (abs(x) > 4.0 * n + 100.0)
    return where(endless, where(x < 0, left if rises else math.inf, right), one)


def _gegenbauer(x: Any, *, n: int, alpha: float) -> Any:
    def step(k: int, p: Any, before: Any) -> Any:
        return (2 * (k + alpha) / (k + 1)) * (x * p) - ((k + 2 * alpha - 1) / (k + 1)) * before

    return _recurrence(n, x, (2 * alpha) * x, step)


def _chebyshev_t(x: Any, *, n: int) -> Any:
    return _recurrence(n, x, x, lambda k, p, before: 2.0 * x * p - before)


def _hermite(x: Any, n: int, scale: float) -> Any:
    """`scale` 2 gives the physicists' H, 1 the probabilists' He."""
    return _recurrence(n, x, scale * x, lambda k, p, before: scale * (x * p) - (scale * k) * before)


def _laguerre(x: Any, *, n: int, alpha: float) -> Any:
    def step(k: int, p: Any, before: Any) -> Any:
        return ((2 * k + 1 + alpha) - x) * p * (1 / (k + 1)) - ((k + alpha) / (k + 1)) * before

    return _recurrence(n, x, (1 + alpha) - x, step, rises=False)


def _times(g: Any, x: Any, factor: float, lower: Callable[[], Any]) -> Any:
    """g times a factor times a polynomial of lower degree, of which there is none if that is 0."""
    return g * (factor * lower()) if factor else g * where(x == x, 0.0, x)


def _of_gegenbauer(g: Any, x: Any, n: int, alpha: float, factor: float) -> Any:
    return _times(g, x, factor, lambda: applied(GEGENBAUER, x, n=n - 1, alpha=alpha))


def _of_laguerre(g: Any, x: Any, n: int, alpha: float) -> Any:
    factor = -1.0 if n else 0.0
    return _times(g, x, factor, lambda: applied(LAGUERRE, x, n=n - 1, alpha=alpha + 1))


GEGENBAUER: Elementwise = Elementwise(
    "gegenbauer",
    _gegenbauer,
    (lambda g, x, n, alpha: _of_gegenbauer(g, x, n, alpha + 1, 2 * alpha if n else 0.0),),
    kinds="real float",
)
LAGUERRE: Elementwise = Elementwise(
    "laguerre",
    _laguerre,
    (_of_laguerre,),
    kinds="real float",
)
for _op, _reference in ((GEGENBAUER, "gegenbauer"), (LAGUERRE, "laguerre")):
    register(
        _op,
        (lambda op: lambda x, n, alpha: applied(op, x, n=n, alpha=alpha))(_op),
        namespace="internal",
        reference=f"tests.support.references.special:{_reference}",
        samples=lambda: iter((sample(s.real(3), 3, 1.5),)),
    )


def _polynomial(
    name: str, doc: str, reference: str, body: Callable[..., Any], slope: Callable[..., Any]
) -> Callable[[Any, int], Tensor]:
    """Enter a polynomial; body(x, n=n), slope(g, x, n)."""
    op = Elementwise(
        name, lambda x, *, n: body(x, n=n), (lambda g, x, n: slope(g, x, n),), kinds="real float"
    )

    def call(x: Any, n: int) -> Tensor:
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= MOST:
            raise ArgumentError(f"{name}: n must be an integer from 0 to {MOST}, got {n!r}")
        out: Tensor = applied(op, x, n=n)
        return out

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{doc} n is a number, from 0 to {MOST}."
    register(
        op,
        call,
        namespace="special",
        reference=f"tests.support.references.special:{reference}",
        torch=None,
        samples=lambda: iter((sample(s.real(2, 3), 4), sample(s.real(3), 1), sample(s.real(), 0))),
        refuses=(
            refuse(ArgumentError, f"{name}: n must be an integer from 0 to", s.real(2), -1),
            refuse(ArgumentError, f"{name}: n must be an integer, got float 1.5", s.real(2), 1.5),
        ),
    )
    return call


chebyshev_polynomial_t: Function = _polynomial(
    "chebyshev_polynomial_t",
    "Chebyshev's polynomial of the first kind, of degree n: cos(n t) for x = cos(t).",
    "chebyshev_t",
    _chebyshev_t,
    lambda g, x, n: _of_gegenbauer(g, x, n, 1.0, float(n)),
)
chebyshev_polynomial_u: Function = _polynomial(
    "chebyshev_polynomial_u",
    "Chebyshev's polynomial of the second kind, of degree n: sin((n + 1) t) / sin(t).",
    "chebyshev_u",
    lambda x, n: _gegenbauer(x, n=n, alpha=1.0),
    lambda g, x, n: _of_gegenbauer(g, x, n, 2.0, 2.0 if n else 0.0),
)
legendre_polynomial_p: Function = _polynomial(
    "legendre_polynomial_p",
    "Legendre's polynomial of degree n.",
    "legendre_p",
    lambda x, n: _gegenbauer(x, n=n, alpha=0.5),
    lambda g, x, n: _of_gegenbauer(g, x, n, 1.5, 1.0 if n else 0.0),
)
hermite_polynomial_h: Function = _polynomial(
    "hermite_polynomial_h",
    "Hermite's polynomial of degree n, the physicists': orthogonal under exp(-x * x).",
    "hermite_h",
    lambda x, n: _hermite(x, n, 2.0),
    lambda g, x, n: _times(g, x, 2.0 * n, lambda: hermite_polynomial_h(x, n - 1)),
)
hermite_polynomial_he: Function = _polynomial(
    "hermite_polynomial_he",
    "Hermite's polynomial of degree n, the probabilists': orthogonal under exp(-x * x / 2).",
    "hermite_he",
    lambda x, n: _hermite(x, n, 1.0),
    lambda g, x, n: _times(g, x, float(n), lambda: hermite_polynomial_he(x, n - 1)),
)
laguerre_polynomial_l: Function = _polynomial(
    "laguerre_polynomial_l",
    "Laguerre's polynomial of degree n.",
    "laguerre_l",
    lambda x, n: _laguerre(x, n=n, alpha=0.0),
    lambda g, x, n: _of_laguerre(g, x, n, 0.0),
)
