"""The incomplete gamma functions, with derivatives in both arguments.

Up to x = 2 a power series. Beyond, the part of the integral that is not nearly 1 (below x where
x <= a, above it elsewhere), with t = x exp(s), is

    density(a, x) * integral of exp(a s - x (exp(s) - 1)) over s from 0 to -infinity or infinity

whose integrand falls from 1 without a bend. Gauss' rule takes it at 32 points, an axis of its own;
its ends move with a and x, but the value does not depend on them, so they carry no derivative.
"""

from __future__ import annotations

import math
from typing import Any

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import operands
from everygrad.errors import ShapeError
from everygrad.ops.elementwise.basic import abs, maximum, minimum, sqrt, where
from everygrad.ops.elementwise.math import exp, expm1, log, log1p
from everygrad.ops.python.creation import arange, tensor
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Function, check_kind, elementwise
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.special import tables as tables
from everygrad.ops.special.erf import few, polynomial
from everygrad.ops.special.gamma import HALF_LOG_2PI, digamma, lgamma_above, lgamma_body, stirling

_NEAR = 2.0  # up to here by the series
_TERMS = 26
_DEPTH = 38.0  # exp(-38) of the integrand is beyond the last digit of float64


# --- the density ---------------------------------------------------------------------------------


def _gap(m: Any) -> Any:
    """m - log(1 + m), without the cancellation near 0."""
    return where(abs(m) < 0.5, m * m * polynomial(2.0 * m, tables.LOG_GAP), m - log1p(m))


def _log_density(x: Any, y: Any) -> Any:
    by_stirling = 0.5 * log(x) - HALF_LOG_2PI - x * _gap((y - x) / x) - stirling(x)
    return where(x >= 3, by_stirling, x * log(y) - y - lgamma_body(x))


log_density: Function = elementwise(
    "gamma_log_density",
    _log_density,
    (lambda g, x, y: g * (log(y) - digamma(x)), lambda g, x, y: g * ((x - y) / y)),
    kinds="real float",
    doc="x log(y) - y - log(gamma(x)).",
    methods=(),
    namespace="internal",
    reference="tests.support.references.special:gamma_log_density",
    samples=few(0.5, 6.0, 0.5, 6.0, shapes=((2, 3), ())),
)

# --- near 0 --------------------------------------------------------------------------------------


def _lgamma1p(x: Any) -> Any:
    """log(gamma(1 + x)), with the digits of x that 1 + x drops."""
    return where(
        x < 1, x * (x - 1.0) * polynomial(2.0 * x - 1.0, tables.LGAMMA), lgamma_above(x + 1.0)
    )


lgamma1p: Function = elementwise(
    "lgamma1p",
    _lgamma1p,
    (lambda g, x: g * digamma(x + 1),),
    kinds="real float",
    doc="log(gamma(1 + x)) for x >= 0.",
    methods=(),
    namespace="internal",
    reference="tests.support.references.special:lgamma1p",
    samples=few(0.1, 3.0, shapes=((2, 3),)),
)


def _near_sum(a: Tensor, x: Tensor) -> Tensor:
    """The sum of (-x)^n / (n! (a + n)) over n = 1, 2, ..., an axis of their own."""
    count = arange(1, _TERMS + 1, dtype=a.dtype, device=a.device)
    factors = [(-1.0) ** n / math.factorial(n) for n in range(1, _TERMS + 1)]
    # by exp: as exact as pow where the factor is not small, and much faster
    powers = tensor(factors, a.dtype, a.device) * exp(count * log(x).expand_dims(-1))
    out: Tensor = (powers / (a.expand_dims(-1) + count)).sum(axis=-1)
    return out


def _near(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Both functions for x <= 2: neither is 1 less the other, so that both keep their digits."""
    logarithm = a * log(x) - lgamma1p(a)
    rest = a * _near_sum(a, x)
    whole = exp(logarithm)
    return whole * (1 + rest), -expm1(logarithm) - whole * rest


# --- far from 0 ----------------------------------------------------------------------------------


def _exp_gap(x: Any) -> Any:
    """exp(x) - 1 - x, without the cancellation near 0."""
    near = x * x * polynomial(x, [1 / math.factorial(k + 2) for k in range(14)])
    return where(abs(x) < 0.5, near, exp(x) - 1.0 - x)


exp_gap: Function = elementwise(
    "exp_gap",
    _exp_gap,
    (lambda g, x: g * expm1(x),),
    kinds="real float",
    doc="exp(x) - 1 - x.",
    methods=(),
    namespace="internal",
    reference="tests.support.references.special:exp_gap",
    samples=few(-2.0, 2.0, shapes=((2, 3),)),
)


def _reach(a: Tensor, x: Tensor) -> Tensor:
    """Where the integrand has fallen to exp(-38), or a little further, with its sign."""
    low = x <= a
    slope = abs(a - x)
    curve = where(low, x * (2 / 3), x)
    short = (sqrt(slope * slope + (2 * _DEPTH) * curve) - slope) / curve
    long = where(low, (_DEPTH + x) / a, maximum(log1p((2 * _DEPTH) / x), 1.26))
    # below x the curve is as steep as that up to 1 only
    found = where(low & (short > 1), long, minimum(short, long))
    end: Tensor = where(low, -found, found)
    return end


def _far(a: Tensor, x: Tensor) -> Tensor:
    """The share of the side of x that does not hold the bulk: below it where x <= a."""
    end = _reach(a.detach(), x.detach()).expand_dims(-1)
    places = end * tensor(tables.GAUSS_PLACES, a.dtype, a.device)
    weights = tensor(tables.GAUSS_WEIGHTS, a.dtype, a.device) * abs(end)
    high, wide = x.expand_dims(-1), a.expand_dims(-1)
    fallen = (high - wide) * places + high * exp_gap(places)
    out: Tensor = exp(log_density(a, x)) * (weights * exp(-fallen)).sum(axis=-1)
    return out


def _both(name: str, a: Any, x: Any, upper: bool) -> Tensor:
    a, x = operands(name, a, x)
    check_kind(name, a.dtype, "real float")
    if a.dtype.bits == 16:
        pair = (a.astype(dtypes.float32), x.astype(dtypes.float32))
        out: Tensor = _both(name, pair[0], pair[1], upper).astype(a.dtype)
        return out
    inside = (a > 0) & (x > 0) & (a < math.inf) & (x < math.inf)
    near = x <= _NEAR
    # each formula gets arguments it can take; what it makes of them is not looked at elsewhere
    below, above = _near(where(inside & near, a, 1.0), where(inside & near, x, 1.0))
    a_far, x_far = where(inside & ~near, a, 4.0), where(inside & ~near, x, 4.0)
    part = _far(a_far, x_far)
    low = x_far <= a_far
    if upper:
        found = where(near, above, where(low, 1 - part, part))
    else:
        found = where(near, below, where(low, part, 1 - part))
    return _with_ends(found, a, x, upper)


def _with_ends(found: Tensor, a: Tensor, x: Tensor, upper: bool) -> Tensor:
    """The values at 0 and at infinity; NaN below 0, and where both are 0 or both infinite."""
    lower_is_1 = ((a == 0) & (x > 0)) | ((x == math.inf) & (a < math.inf))
    lower_is_0 = ((x == 0) & (a > 0)) | ((a == math.inf) & (x < math.inf))
    one, zero = (0.0, 1.0) if upper else (1.0, 0.0)
    valid = (a >= 0) & (x >= 0) & ~((a == x) & ((a == 0) | (a == math.inf)))
    out: Tensor = where(lower_is_1, one, where(lower_is_0, zero, found))
    kept: Tensor = where(valid, out, math.nan)
    return kept


def _samples() -> Any:
    yield sample(s.real(2, 3, low=0.5, high=4.0), s.real(3, low=0.3, high=6.0, seed=1))


def _facts(name: str) -> dict[str, Any]:
    return {
        "methods": (),
        "namespace": "special",
        "kinds": "real float",
        "reference": f"scipy.special:{name}",
        "torch": None,
        "tolerance": 1e-12,
        "samples": _samples,
        "refuses": (refuse(ShapeError, "cannot broadcast", s.real(2), s.real(3)),),
    }


@composite(**_facts("gammainc"))
def gammainc(a: Any, x: Any) -> Tensor:
    """The share of a gamma distribution of shape a > 0 below x >= 0, with derivatives in both."""
    return _both("gammainc", a, x, upper=False)


@composite(**_facts("gammaincc"))
def gammaincc(a: Any, x: Any) -> Tensor:
    """The share of a gamma distribution of shape a > 0 above x >= 0, with derivatives in both."""
    return _both("gammaincc", a, x, upper=True)
