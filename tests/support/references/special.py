"""What special functions are held against where SciPy's own has another domain: op records name
these as "tests.support.references.special:NAME"."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import torch
from scipy import special


def lgamma(x: Any) -> Any:
    """PyTorch's, which is C's: SciPy's is infinite for subnormal numbers."""
    return torch.lgamma(torch.tensor(np.asarray(x))).numpy()


def _with_ends(fn: Any, x: Any, y: Any, far: float) -> Any:
    """SciPy's, but where one is infinite, for pairs of poles, whose sign it takes from y, and for
    poles whose limit it finds only among integers of 32 bits; larger ones are taken as even."""
    x, y = np.broadcast_arrays(x, y)
    low, high = np.minimum(x, y), np.maximum(x, y)
    found = np.where((low > 0) & (high == np.inf), far, fn(x, y))
    large = (low < -(2.0**31)) & (low > -np.inf) & (high >= 2.0**31) & (low + high <= 0)
    found = np.where(large, fn(1 - (low + high), high), found)
    poles = (high <= 0) & (low == np.floor(low)) & (high == np.floor(high))
    found = np.where(poles, np.inf, found)
    return np.where(np.isnan(x) | np.isnan(y), np.nan, found).astype(np.result_type(x, y))


def beta(x: Any, y: Any) -> Any:
    return _with_ends(special.beta, x, y, 0.0)


def betaln(x: Any, y: Any) -> Any:
    found = _with_ends(special.betaln, x, y, -np.inf)
    low, high = np.minimum(x, y), np.maximum(x, y)
    with np.errstate(all="ignore"):  # SciPy's gammaln is infinite for subnormal numbers
        beside = np.log1p(low / high) - np.log(low)
    return np.where((low > 0) & (low < 1e-300) & (high < np.inf), beside, found).astype(found.dtype)


def sinc(x: Any) -> Any:
    """NumPy's, but 0 at integers, where it has what is left of pi."""
    return np.where((x == np.round(x)) & (x != 0) & np.isfinite(x), 0.0, np.sinc(x)).astype(x.dtype)


def _bessel(fn: Any, order: int, x: Any) -> Any:
    """By mpmath: SciPy's lose their digits in the subtraction of pi / 4 from a large x."""
    x = np.asarray(x)
    different, places = np.unique(x, return_inverse=True)
    found = [_at(fn, order, float(v)) for v in different]
    return np.array(found)[places].reshape(x.shape).astype(x.dtype)


def _at(fn: Any, order: int, x: float) -> float:
    if np.isnan(x) or (fn is mpmath.bessely and x <= 0):
        return -np.inf if x == 0 else np.nan
    return 0.0 if np.isinf(x) else float(fn(order, x))


def j0(x: Any) -> Any:
    return _bessel(mpmath.besselj, 0, x)


def j1(x: Any) -> Any:
    return _bessel(mpmath.besselj, 1, x)


def y0(x: Any) -> Any:
    return _bessel(mpmath.bessely, 0, x)


def y1(x: Any) -> Any:
    return _bessel(mpmath.bessely, 1, x)


def i0(x: Any) -> Any:
    """SciPy's, which is NaN at infinity."""
    return np.where(np.isinf(x), np.inf, special.i0(x)).astype(np.asarray(x).dtype)


def i1(x: Any) -> Any:
    return np.where(np.isinf(x), x, special.i1(x)).astype(np.asarray(x).dtype)


def bessel_i(x: Any, n: int, scaled: bool) -> Any:
    return special.ive(n, x) if scaled else special.iv(n, x)


def bessel_j(x: Any, n: int) -> Any:
    return special.jv(n, x)


def bessel_y(x: Any, n: int) -> Any:
    return special.yv(n, x)


def gegenbauer(x: Any, n: int, alpha: float) -> Any:
    return special.eval_gegenbauer(n, alpha, x)


def laguerre(x: Any, n: int, alpha: float) -> Any:
    return special.eval_genlaguerre(n, alpha, x)


def chebyshev_t(x: Any, n: int) -> Any:
    return special.eval_chebyt(n, x)


def chebyshev_u(x: Any, n: int) -> Any:
    return special.eval_chebyu(n, x)


def legendre_p(x: Any, n: int) -> Any:
    return special.eval_legendre(n, x)


def hermite_h(x: Any, n: int) -> Any:
    return special.eval_hermite(n, np.asarray(x, np.float64)).astype(np.asarray(x).dtype)


def hermite_he(x: Any, n: int) -> Any:
    return special.eval_hermitenorm(n, np.asarray(x, np.float64)).astype(np.asarray(x).dtype)


def laguerre_l(x: Any, n: int) -> Any:
    return special.eval_laguerre(n, x)


def gamma_log_density(x: Any, y: Any) -> Any:
    return special.xlogy(x, y) - y - special.gammaln(x)


def exp_gap(x: Any) -> Any:
    return np.expm1(x) - x


def lgamma1p(x: Any) -> Any:
    """SciPy's gammaln where it is wanted: of x >= 0, and NaN below."""
    return np.where(x < 0, np.nan, special.gammaln(1 + np.asarray(x)))
