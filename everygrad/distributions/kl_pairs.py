"""KL divergences in closed form: both distributions of one family, then of different ones.

In every formula `p` is what is drawn from. Where p reaches outside q's support it is infinite.
"""

from __future__ import annotations

import math
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.distributions.choices import Categorical, OneHotCategorical
from everygrad.distributions.compound import Independent, TransformedDistribution
from everygrad.distributions.discrete import Bernoulli, Binomial, Geometric, Poisson
from everygrad.distributions.distribution import ExponentialFamily, sum_rightmost
from everygrad.distributions.kl import kl_divergence, register_kl
from everygrad.distributions.multivariate import (
    LowRankMultivariateNormal,
    MultivariateNormal,
    log_diagonal,
    mahalanobis,
)
from everygrad.distributions.positive import Exponential, Gamma, HalfNormal, Pareto
from everygrad.distributions.real_line import (
    EULER,
    HALF_LOG_TAU,
    Cauchy,
    Gumbel,
    Laplace,
    Normal,
    Uniform,
)
from everygrad.distributions.unit_interval import Beta, ContinuousBernoulli, Dirichlet
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import erf, softplus, xlogy
from everygrad.ops.linalg.checks import identity
from everygrad.ops.linalg.solve import solve_triangular
from everygrad.ops.python.creation import full
from everygrad.ops.special.gamma import betaln, digamma, lgamma


def _unless(outside: Tensor, value: Tensor) -> Tensor:
    """The value, infinite where p reaches outside q's support."""
    out: Tensor = where(outside, math.inf, value)
    return out


# --- general -------------------------------------------------------------------------------------


@register_kl(ExponentialFamily, ExponentialFamily)
def _exponential_family(p: ExponentialFamily, q: ExponentialFamily) -> Tensor:
    """By the Bregman divergence of the log normaliser."""
    if type(p) is not type(q):
        raise NotImplementedError(
            f"kl_divergence: no formula for {type(p).__name__} and {type(q).__name__}; give one "
            "with register_kl"
        )
    value, slopes = p._log_normalizer_and_gradients()
    result = q._log_normalizer(*q._natural_params) - value
    for a, b, slope in zip(p._natural_params, q._natural_params, slopes, strict=True):
        term = (b - a) * slope
        result = result - sum_rightmost(term, term.ndim - len(p.batch_shape))
    return result


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError(
            "kl_divergence: Independent distributions of "
            f"{p.reinterpreted_batch_ndims} and {q.reinterpreted_batch_ndims} axes"
        )
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError(
            "kl_divergence: transformed distributions need equal transforms and event shapes"
        )
    return kl_divergence(p.base_dist, q.base_dist)


# --- one family ----------------------------------------------------------------------------------


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    a, b = p.probs, q.probs
    one = a * (softplus(-q.logits) - softplus(-p.logits))
    one = where(a == 0.0, 0.0, _unless(b == 0.0, one))
    zero = (1.0 - a) * (softplus(q.logits) - softplus(p.logits))
    zero = where(a == 1.0, 0.0, _unless(b == 1.0, zero))
    out: Tensor = one + zero
    return out


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    slopes = (a - c) * digamma(a) + (b - d) * digamma(b) + (c + d - a - b) * digamma(a + b)
    return betaln(c, d) - betaln(a, b) + slopes


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Tensor:
    fewer = p.total_count < q.total_count
    if bool(fewer.any()):
        raise ArgumentError(
            "kl_divergence: Binomial distributions need total_count of q to be at most p's"
        )
    odds = p.probs * (p.logits - q.logits)
    value = p.total_count * (odds + (-p.probs).log1p() - (-q.probs).log1p())
    return _unless(p.total_count > q.total_count, value)


@register_kl(Categorical, Categorical)
def _categorical(p: Any, q: Any) -> Tensor:
    a, b = p.probs, q.probs
    terms = _unless(b == 0.0, a * (p.logits - q.logits))
    out: Tensor = where(a == 0.0, 0.0, terms).sum(axis=-1)
    return out


register_kl(OneHotCategorical, OneHotCategorical)(_categorical)


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    apart = (p.scale + q.scale).square() + (p.loc - q.loc).square()
    return apart.log() - (4.0 * p.scale * q.scale).log()


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoulli(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Tensor:
    own = p._log_norm() + (-p.probs).log1p()
    return p.mean * (p.logits - q.logits) + own - q._log_norm() - (-q.probs).log1p()


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(axis=-1)
    norms = lgamma(total) - lgamma(b.sum(axis=-1)) + (lgamma(b) - lgamma(a)).sum(axis=-1)
    slopes = (a - b) * (digamma(a) - digamma(total).expand_dims(-1))
    return norms + slopes.sum(axis=-1)


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1.0


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    norms = b * (p.rate / q.rate).log() + lgamma(b) - lgamma(a)
    return norms + (a - b) * digamma(a) + (q.rate - p.rate) * (a / p.rate)


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio = p.scale / q.scale
    apart = (q.loc - p.loc) / q.scale
    tail = (apart + lgamma(1.0 + ratio)).exp()
    return -ratio.log() - apart + ratio * EULER + tail - (1.0 + EULER)


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, apart = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + apart / q.scale + ratio * (-apart / p.scale).exp() - 1.0


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    apart = ((p.loc - q.loc) / q.scale).square()
    return 0.5 * (ratio + apart - 1.0 - ratio.log())


@register_kl(Pareto, Pareto)
def _pareto(p: Pareto, q: Pareto) -> Tensor:
    ratio = q.alpha / p.alpha
    value = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1.0
    return _unless(p.scale < q.scale, value)


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    value = ((q.high - q.low) / (p.high - p.low)).log()
    return _unless((q.low > p.low) | (q.high < p.high), value)


# --- multivariate normal -------------------------------------------------------------------------


def _same_events(p: Any, q: Any) -> int:
    if p.event_shape != q.event_shape:
        raise ShapeError(f"kl_divergence: event shapes {p.event_shape} and {q.event_shape} differ")
    size: int = p.event_shape[0]
    return size


def _trace(lower: Tensor, factor: Tensor) -> Tensor:
    """trace(inverse of (lower lower^T) @ factor factor^T)."""
    return solve_triangular(lower, factor, upper=False).square().sum(axis=(-2, -1))


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    size = _same_events(p, q)
    mine, other = p.scale_tril, q.scale_tril
    batch = (p.loc + q.loc).shape[:-1]
    other_wide = other.broadcast_to((*batch, size, size))
    spread = _trace(other_wide, mine.broadcast_to((*batch, size, size)))
    length = mahalanobis(other_wide, q.loc - p.loc)
    return log_diagonal(other) - log_diagonal(mine) + 0.5 * (spread + length - size)


@register_kl(MultivariateNormal, LowRankMultivariateNormal)
def _multivariate_low_rank(p: MultivariateNormal, q: LowRankMultivariateNormal) -> Tensor:
    return _to_low_rank(p, q, 2.0 * log_diagonal(p.scale_tril), [p.scale_tril])


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
def _low_rank(p: LowRankMultivariateNormal, q: LowRankMultivariateNormal) -> Tensor:
    from_diagonal = p.cov_diag.sqrt().expand_dims(-1) * identity(p.cov_diag.shape[-1], p.cov_diag)
    own = p.log_determinant(p.capacitance_tril())
    return _to_low_rank(p, q, own, [p.cov_factor, from_diagonal])


def _to_low_rank(p: Any, q: LowRankMultivariateNormal, own: Tensor, factors: Any) -> Tensor:
    """By Woodbury's formula for q's inverse: D^-1 - A^T A, A = L^-1 W^T D^-1."""
    size = _same_events(p, q)
    lower = q.capacitance_tril()
    reduced = solve_triangular(lower, q.cov_factor.mT / q.cov_diag.expand_dims(-2), upper=False)
    apart = q.loc - p.loc
    less = (reduced @ apart.expand_dims(-1)).square().sum(axis=(-2, -1))
    length = (apart.square() / q.cov_diag).sum(axis=-1) - less
    spread: Any = 0.0
    for factor in factors:
        whole = (factor.square() / q.cov_diag.expand_dims(-1)).sum(axis=(-2, -1))
        spread = spread + whole - (reduced @ factor).square().sum(axis=(-2, -1))
    out: Tensor = 0.5 * (q.log_determinant(lower) - own + length + spread - size)
    return out


@register_kl(LowRankMultivariateNormal, MultivariateNormal)
def _low_rank_multivariate(p: LowRankMultivariateNormal, q: MultivariateNormal) -> Tensor:
    size = _same_events(p, q)
    lower = q.scale_tril
    diagonal = p.cov_diag.sqrt().expand_dims(-1) * identity(p.cov_diag.shape[-1], p.cov_diag)
    spread = _trace(lower, p.cov_factor) + _trace(lower, diagonal)
    length = mahalanobis(lower, q.loc - p.loc)
    logs = 2.0 * log_diagonal(lower) - p.log_determinant(p.capacitance_tril())
    return 0.5 * (logs + spread + length - size)


# --- different families --------------------------------------------------------------------------


def _xlogx(x: Tensor) -> Tensor:
    out: Tensor = xlogy(x, x)
    return out


def _to_normal(p: Any, q: Normal) -> Tensor:
    """Of whatever has an entropy, a mean and a variance."""
    square = p.variance + (p.mean - q.loc).square()
    out: Tensor = -p.entropy() + HALF_LOG_TAU + q.scale.log() + 0.5 * square / q.scale.square()
    return out


_family: type
for _family in (Beta, ContinuousBernoulli, Exponential, Gamma, Gumbel, Laplace, Uniform):
    register_kl(_family, Normal)(_to_normal)


def _to_exponential(p: Any, q: Exponential) -> Tensor:
    out: Tensor = -p.entropy() - q.rate.log() + q.rate * p.mean
    return out


for _family in (Beta, ContinuousBernoulli, Gamma):
    register_kl(_family, Exponential)(_to_exponential)


@register_kl(Uniform, Exponential)
def _uniform_exponential(p: Uniform, q: Exponential) -> Tensor:
    return _unless(p.low < 0.0, _to_exponential(p, q))


@register_kl(Pareto, Exponential)
def _pareto_exponential(p: Pareto, q: Exponential) -> Tensor:
    return _unless(p.alpha <= 1.0, _to_exponential(p, q))


@register_kl(Pareto, Normal)
def _pareto_normal(p: Pareto, q: Normal) -> Tensor:
    return _unless(p.alpha <= 2.0, _to_normal(p, q))


def _to_gamma(p: Any, q: Gamma, mean_log: Tensor) -> Tensor:
    """Of whatever has an entropy, a mean and a known mean of the logarithm."""
    c = q.concentration
    density = c * q.rate.log() - lgamma(c) + (c - 1.0) * mean_log - q.rate * p.mean
    out: Tensor = -p.entropy() - density
    return out


@register_kl(Beta, Gamma)
def _beta_gamma(p: Beta, q: Gamma) -> Tensor:
    total = p.concentration1 + p.concentration0
    return _to_gamma(p, q, digamma(p.concentration1) - digamma(total))


@register_kl(Exponential, Gamma)
def _exponential_gamma(p: Exponential, q: Gamma) -> Tensor:
    return _to_gamma(p, q, -p.rate.log() - EULER)


@register_kl(Pareto, Gamma)
def _pareto_gamma(p: Pareto, q: Gamma) -> Tensor:
    return _unless(p.alpha <= 1.0, _to_gamma(p, q, p.scale.log() + 1.0 / p.alpha))


def _mean_log(low: Tensor, high: Tensor) -> Tensor:
    """The mean logarithm of uniform numbers between two."""
    return (_xlogx(high) - _xlogx(low)) / (high - low) - 1.0


@register_kl(Uniform, Gamma)
def _uniform_gamma(p: Uniform, q: Gamma) -> Tensor:
    return _unless(p.low < 0.0, _to_gamma(p, q, _mean_log(p.low, p.high)))


@register_kl(Uniform, Beta)
def _uniform_beta(p: Uniform, q: Beta) -> Tensor:
    a, b = q.concentration1, q.concentration0
    own, other = _mean_log(p.low, p.high), _mean_log(1.0 - p.high, 1.0 - p.low)
    value = betaln(a, b) - (a - 1.0) * own - (b - 1.0) * other - p.entropy()
    return _unless((p.high > 1.0) | (p.low < 0.0), value)


@register_kl(Uniform, Pareto)
def _uniform_pareto(p: Uniform, q: Pareto) -> Tensor:
    density = q.alpha.log() + q.alpha * q.scale.log()
    value = (q.alpha + 1.0) * _mean_log(p.low, p.high) - density - p.entropy()
    return _unless(p.low < q.scale, value)


def _to_continuous_bernoulli(p: Any, q: ContinuousBernoulli) -> Tensor:
    out: Tensor = -p.entropy() - p.mean * q.logits - (-q.probs).log1p() - q._log_norm()
    return out


register_kl(Beta, ContinuousBernoulli)(_to_continuous_bernoulli)


@register_kl(Uniform, ContinuousBernoulli)
def _uniform_continuous_bernoulli(p: Uniform, q: ContinuousBernoulli) -> Tensor:
    return _unless((p.high > 1.0) | (p.low < 0.0), _to_continuous_bernoulli(p, q))


def _unit_to_uniform(p: Any, q: Uniform) -> Tensor:
    value = -p.entropy() + (q.high - q.low).log()
    return _unless((q.low > 0.0) | (q.high < 1.0), value)


for _family in (Beta, ContinuousBernoulli):
    register_kl(_family, Uniform)(_unit_to_uniform)


def _to_gumbel(p: Any, q: Gumbel, mean_exp: Tensor) -> Tensor:
    """With the mean of exp(-(x - loc) / scale)."""
    z = (p.mean - q.loc) / q.scale
    out: Tensor = -p.entropy() + q.scale.log() + z + mean_exp
    return out


@register_kl(Exponential, Gumbel)
def _exponential_gumbel(p: Exponential, q: Gumbel) -> Tensor:
    product = p.rate * q.scale
    return _to_gumbel(p, q, (q.loc / q.scale).exp() * product / (product + 1.0))


@register_kl(Gamma, Gumbel)
def _gamma_gumbel(p: Gamma, q: Gumbel) -> Tensor:
    product = p.rate * q.scale
    return _to_gumbel(p, q, (q.loc / q.scale - p.concentration * (1.0 / product).log1p()).exp())


@register_kl(Normal, Gumbel)
def _normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return _to_gumbel(p, q, ((q.loc - p.loc) / q.scale + 0.5 * ratio).exp())


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    high, low = (p.high - q.loc) / q.scale, (p.low - q.loc) / q.scale
    return _to_gumbel(p, q, ((-low).exp() - (-high).exp()) / (high - low))


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Tensor:
    apart = p.loc - q.loc
    z = apart / p.scale
    mean = math.sqrt(2.0 / math.pi) * p.scale * (-0.5 * z.square()).exp()
    mean = mean + apart * erf(math.sqrt(0.5) * z)  # of |x - q.loc|
    return -p.entropy() + (2.0 * q.scale).log() + mean / q.scale


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    return -p.entropy() - (p.probs * q.rate.log() - q.rate)


# --- p reaches outside q's support ---------------------------------------------------------------


def _infinite(p: Any, q: Any) -> Tensor:
    """In the shape that both broadcast to."""
    like = p.mean + q.mean
    return full(like.shape, math.inf, like.dtype, like.device)


_BOUNDED: tuple[type, ...] = (Beta, ContinuousBernoulli, Uniform)
_POSITIVE: tuple[type, ...] = (*_BOUNDED, Exponential, Gamma, Pareto)
for _outer, _inner in (
    (Beta, (Pareto,)),
    (ContinuousBernoulli, (Pareto,)),
    (Exponential, (*_BOUNDED, Pareto)),
    (Gamma, (*_BOUNDED, Pareto)),
    (Gumbel, _POSITIVE),
    (Laplace, _POSITIVE),
    (Normal, _POSITIVE),
    (Pareto, _BOUNDED),
    (Poisson, (Bernoulli, Binomial)),
):
    for _kind in _inner:
        register_kl(_outer, _kind)(_infinite)
