"""Special functions around the normal distribution and the logarithm: erfc, ndtr, logit, entr.

Bodies take scalar expressions alone and rules take tensors too, so helpers of bodies may evaluate
every branch and choose; helpers of rules keep away from infinite slopes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from everygrad.compiler.expr import ByPrecision, Expr, call
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import MISFIT, abs, clamp, minimum, sqrt, trunc, where
from everygrad.ops.elementwise.math import atanh, exp, log, log1p
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Elementwise, Function, check_kind, elementwise
from everygrad.ops.record.spec import Sample, composite, refuse, sample
from everygrad.ops.special import tables as tables

SQRT_2 = math.sqrt(2.0)
SQRT_PI = math.sqrt(math.pi)


def polynomial(t: Any, coefficients: Sequence[float]) -> Any:
    """c0 + c1 t + c2 t^2 + ..., by Horner's rule."""
    total: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = total * t + c
    return total


def applied(op: Elementwise, *values: Any, **params: Any) -> Any:
    """The op of tensors and numbers, or of scalar expressions as rules have them."""
    if any(isinstance(v, Expr) for v in values):
        return op.body(*values, **params)
    return apply(op, *op.promote(*values), **params)


def few(*ranges: float, shapes: Sequence[tuple[int, ...]] = ((2, 3), (), (0,))) -> Any:
    """Samples of one input for each pair (low, high) of the ranges, which broadcast."""
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))

    def make() -> Iterator[Sample]:
        for shape in shapes:
            cut = [shape[i:] if len(shape) > i else shape for i in range(len(pairs))]
            yield Sample(
                tuple(
                    s.real(*own, low=low, high=high, seed=i)
                    for i, (own, (low, high)) in enumerate(zip(cut, pairs, strict=True))
                )
            )

    return make


# how finely a number is cut so that the square of its first part is exact, and the largest number
# whose first part has no more digits; beyond, results are 0 or infinite
_CUT, _STEP, _LARGEST = ByPrecision(256, 2**20), ByPrecision(2**-8, 2**-20), ByPrecision(15, 50)


def _exp_square(size: Any, factor: float) -> tuple[Any, Any]:
    """exp(factor * size^2) of a size up to _LARGEST as `first * (1 + more)`, which is left to the
    caller to round once: the square of a number of few bits is exact, and what is left small."""
    short = trunc(size * _CUT) * _STEP
    low = factor * ((size - short) * (size + short))
    more = low * polynomial(low, (1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120))  # expm1, up to 0.12
    return exp(factor * (short * short)), more


def _erfcx_of(size: Any) -> Any:
    """exp(x^2) erfc(x) of a size >= 0."""
    return polynomial(1.0 - 8.0 / (size + 4.0), tables.ERFCX) / (1.0 + 2.0 * size)


def _tail_of(size: Any, scale: float, factor: float) -> Any:
    """exp(factor * size^2) erfcx(scale * size), with what the two sums of erfcx round away."""
    size = minimum(size, _LARGEST)
    first, more = _exp_square(size, factor)
    size = size if scale == 1 else size * scale
    t, (c, *others) = 1.0 - 8.0 / (size + 4.0), tables.ERFCX
    rest = polynomial(t, others) * t
    above, below = c + rest, 1.0 + 2.0 * size
    far = above / below
    # beside `above`, which is from 1.13 to 1.28: lost / below is lost * far / above
    more = more + 0.83 * ((rest - (above - c)) - (1.0 - (below - 2.0 * size)) * far)
    out = first * far
    return out + out * more


def _erfc(x: Any) -> Any:
    size = abs(x)
    tail = _tail_of(size, 1.0, -1.0)
    # below, the digits are those of 1, of which erf takes less than it keeps
    return where(size < 0.68, 1.0 - call("erf", x), where(x < 0, 2.0 - tail, tail))


def _erfcx(x: Any) -> Any:
    size = abs(x)
    far = _erfcx_of(size)
    first, more = _exp_square(minimum(size, _LARGEST), 1.0)
    return where(x < 0, 2.0 * (first * (1.0 + more)) - far, far)


erfc: Function = elementwise(
    "erfc",
    _erfc,
    (lambda g, x: g * (exp(-x * x) * (-2 / SQRT_PI)),),
    kinds="real float",
    doc="1 - erf(x), with all its digits where that is small.",
    methods=(),
    namespace="special",
    reference="scipy.special:erfc",
    torch="torch.special:erfc",
    samples=few(-2.0, 3.0),
)
erfcx: Function = elementwise(
    "erfcx",
    _erfcx,
    (lambda g, x, out: g * (2 * x * out - 2 / SQRT_PI),),
    kinds="real float",
    doc="exp(x * x) * erfc(x): what is left of erfc when its decay is taken out.",
    methods=(),
    namespace="special",
    reference="scipy.special:erfcx",
    torch="torch.special:erfcx",
    samples=few(-1.0, 3.0),
)

# --- the normal distribution ---------------------------------------------------------------------


def _below(x: Any) -> Any:
    """The share of a standard normal beyond abs(x)."""
    return 0.5 * _tail_of(abs(x), 1 / SQRT_2, -0.5)


def _ndtr(x: Any) -> Any:
    tail = _below(x)
    near = 0.5 + 0.5 * call("erf", x * (1 / SQRT_2))
    return where(abs(x) < 0.7, near, where(x > 0, 1.0 - tail, tail))


def _log_ndtr(x: Any) -> Any:
    size = abs(x)
    left = log(0.5 * _erfcx_of(size * (1 / SQRT_2))) - (0.5 * size) * size
    return where(x < 0, left, log1p(-_below(x)))


def _log_ndtr_dx(g: Any, x: Any, out: Any) -> Any:
    """Density over share; on the left both vanish, and their ratio is that of erfcx."""
    left = math.sqrt(2 / math.pi) / erfcx(where(x < 0, -x, 0.0) * (1 / SQRT_2))
    right = exp(-0.5 * x * x - where(x < 0, 0.0, out)) * (1 / math.sqrt(2 * math.pi))
    return g * where(x < 0, left, right)


ndtr: Function = elementwise(
    "ndtr",
    _ndtr,
    (lambda g, x: g * (exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))),),
    kinds="real float",
    doc="The share of a standard normal below x.",
    methods=(),
    namespace="special",
    reference="scipy.special:ndtr",
    torch="torch.special:ndtr",
    samples=few(-4.0, 3.0),
)
log_ndtr: Function = elementwise(
    "log_ndtr",
    _log_ndtr,
    (_log_ndtr_dx,),
    kinds="real float",
    doc="The logarithm of ndtr, far beyond where that is 0.",
    methods=(),
    namespace="special",
    reference="scipy.special:log_ndtr",
    torch="torch.special:log_ndtr",
    samples=few(-4.0, 3.0),
)


def _normal_middle(q: Any) -> Any:
    """ndtri(q + 1/2) for |q| <= 0.4."""
    return q * polynomial(12.5 * (q * q) - 1.0, tables.NORMAL_MIDDLE)


def _normal_tail(share: Any) -> Any:
    """-ndtri(share) for a share <= 0.1; infinite for 0, NaN below."""
    r = sqrt(-2.0 * log(share))
    t = -14.358620419912862 / (r + 4.0) + 1.3362674571408164
    return where(share == 0, math.inf, r * polynomial(t, tables.NORMAL_TAIL))


def _ndtri(x: Any) -> Any:
    q = x - 0.5
    tail = _normal_tail(minimum(x, 1.0 - x))
    return where(abs(q) <= 0.4, _normal_middle(q), where(q < 0, -tail, tail))


def _erfinv(x: Any) -> Any:
    size = abs(x)
    tail = _normal_tail(0.5 * (1.0 - size))
    far = where(x < 0, -tail, tail)
    return where(size <= 0.8, _normal_middle(0.5 * x), far) * (1 / SQRT_2)


ndtri: Function = elementwise(
    "ndtri",
    _ndtri,
    (lambda g, out: g * (exp(0.5 * out * out) * math.sqrt(2 * math.pi)),),
    kinds="real float",
    doc="The inverse of ndtr: infinite at 0 and 1, NaN outside.",
    methods=(),
    namespace="special",
    reference="scipy.special:ndtri",
    torch="torch.special:ndtri",
    samples=few(0.02, 0.98),
)
erfinv: Function = elementwise(
    "erfinv",
    _erfinv,
    (lambda g, out: g * (exp(out * out) * (0.5 * SQRT_PI)),),
    kinds="real float",
    doc="The inverse of erf: infinite at -1 and 1, NaN outside.",
    methods=(),
    namespace="special",
    reference="scipy.special:erfinv",
    torch="torch.special:erfinv",
    samples=few(-0.95, 0.95),
)

# --- logarithms ----------------------------------------------------------------------------------


def _logit(x: Any) -> Any:
    middle = 2.0 * atanh(2.0 * x - 1.0)  # near 1/2 the logarithm of a ratio near 1 has no digits
    return where(abs(x - 0.5) < 0.25, middle, log(x / (1.0 - x)))


LOGIT: Function = elementwise(
    "logit_of",
    _logit,
    (lambda g, x: g / (x * (1 - x)),),
    kinds="real float",
    doc="log(x / (1 - x)).",
    methods=(),
    namespace="internal",
    reference="scipy.special:logit",
    samples=few(0.05, 0.95),
)


@composite(
    methods=(),
    namespace="special",
    kinds="real float",
    reference=lambda x, eps=None: np.log(
        (np.clip(x, eps, 1 - eps) if eps else x) / (1 - (np.clip(x, eps, 1 - eps) if eps else x))
    ),
    torch="torch.special:logit",
    samples=lambda: iter(
        (sample(s.real(2, 3, low=0.05, high=0.95)), sample(s.real(4, low=0.0, high=1.0), 0.2))
    ),
    refuses=(
        refuse(ArgumentError, "logit: eps must be between 0 and 1/2, got 0.6", s.real(2), 0.6),
    ),
)
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of expit: infinite at 0 and 1, NaN outside. With `eps`, x is
    limited to [eps, 1 - eps] first."""
    check_kind("logit", x.dtype, "real float")
    if eps is not None and not 0 <= eps <= 0.5:
        raise ArgumentError(f"logit: eps must be between 0 and 1/2, got {eps!r}")
    out: Tensor = LOGIT(x if eps is None else clamp(x, float(eps), 1.0 - float(eps)))
    return out


def _entr(x: Any) -> Any:
    return where(x == 0, 0.0, where(x < 0, -math.inf, -x * log(abs(x))))


entr: Function = elementwise(
    "entr",
    _entr,
    (lambda g, x: -g * (log(x) + 1),),
    kinds="real float",
    doc="-x * log(x), 0 at 0, and minus infinity below.",
    methods=(),
    namespace="special",
    reference="scipy.special:entr",
    torch="torch.special:entr",
    samples=few(0.1, 3.0),
)
xlog1py: Function = elementwise(
    "xlog1py",
    lambda x, y: where((x == 0) & (y == y), 0.0, x * log1p(y)),
    (
        lambda g, x, y: g * log1p(where((x == 0) & (y <= -1), 0.0, y)),
        lambda g, x, y: g * (x / where((x == 0) & (y == -1), 1.0, y + 1)),
    ),
    kinds="real float",
    doc="x * log(1 + y), and 0 where x is 0 and y not NaN.",
    methods=(),
    namespace="special",
    reference="scipy.special:xlog1py",
    torch="torch.special:xlog1py",
    samples=few(-2.0, 2.0, -0.7, 2.0),
    refuses=(MISFIT,),
)
