"""Special functions in PyTorch's spellings: Chebyshev's other polynomials, spherical_bessel_j0."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.ops.record.arguments import taking
from everygrad.ops.record.spec import REGISTRY


def _op(name: str, *args: Any, **kwargs: Any) -> Any:
    return REGISTRY[name].function(*args, **kwargs)


def _second(name: str, x: Any, n: int, sign: int) -> Tensor:
    """U(n) plus or minus U(n - 1)."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ArgumentError(f"{name}: n must be an integer, 0 or more, got {n!r}")
    out: Tensor = _op("chebyshev_polynomial_u", x, n)
    return out + sign * _op("chebyshev_polynomial_u", x, n - 1) if n else out


@taking
def chebyshev_polynomial_v(x: Tensor, n: int) -> Tensor:
    """Chebyshev's polynomial of the third kind, of degree n: cos((n + 1/2) t) / cos(t / 2)."""
    return _second("chebyshev_polynomial_v", x, n, -1)


@taking
def chebyshev_polynomial_w(x: Tensor, n: int) -> Tensor:
    """Chebyshev's polynomial of the fourth kind, of degree n: sin((n + 1/2) t) / sin(t / 2)."""
    return _second("chebyshev_polynomial_w", x, n, 1)


@taking
def shifted_chebyshev_polynomial_t(x: Tensor, n: int) -> Tensor:
    """Chebyshev's polynomial of the first kind of 2x - 1, for x from 0 to 1."""
    out: Tensor = _op("chebyshev_polynomial_t", x * 2.0 - 1.0, n)
    return out


@taking
def shifted_chebyshev_polynomial_u(x: Tensor, n: int) -> Tensor:
    """Chebyshev's polynomial of the second kind of 2x - 1, for x from 0 to 1."""
    out: Tensor = _op("chebyshev_polynomial_u", x * 2.0 - 1.0, n)
    return out


@taking
def shifted_chebyshev_polynomial_v(x: Tensor, n: int) -> Tensor:
    """Chebyshev's polynomial of the third kind of 2x - 1, for x from 0 to 1."""
    return chebyshev_polynomial_v(x * 2.0 - 1.0, n)


@taking
def shifted_chebyshev_polynomial_w(x: Tensor, n: int) -> Tensor:
    """Chebyshev's polynomial of the fourth kind of 2x - 1, for x from 0 to 1."""
    return chebyshev_polynomial_w(x * 2.0 - 1.0, n)


@taking
def spherical_bessel_j0(x: Tensor) -> Tensor:
    """sin(x) / x, which is 1 at 0: the spherical Bessel function of order 0."""
    out: Tensor = _op("spherical_jn", 0, x)
    return out
