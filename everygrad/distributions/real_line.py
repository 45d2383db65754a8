"""Distributions over all real numbers or an interval: Normal, Uniform, Laplace, Cauchy, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.compiler.expr import call
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.distributions import constraints
from everygrad.distributions.compound import TransformedDistribution
from everygrad.distributions.constraints import Constraint, dependent_property
from everygrad.distributions.distribution import (
    Distribution,
    ExponentialFamily,
    Shape,
    broadcast,
    ensure_in,
)
from everygrad.distributions.transforms import AffineTransform, ExpTransform
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import erf
from everygrad.ops.random.continuous import gamma
from everygrad.ops.random.generators import fine_unit, rand, randn
from everygrad.ops.record.families import Elementwise
from everygrad.ops.special.bessel import i0e, i1e
from everygrad.ops.special.erf import erfinv
from everygrad.ops.special.gamma import digamma, lgamma

EULER = 0.57721566490153286061  # Euler and Mascheroni's constant
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


def wide(dtype: dtypes.DType) -> dtypes.DType:
    """The dtype that draws are computed in: halves in float32."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def noise(draw: Any, shape: Shape, like: Tensor) -> Tensor:
    """`rand` or `randn` in the dtype and on the device of a parameter."""
    made: Tensor = draw(shape, wide(like.dtype), like.device)
    return made.astype(like.dtype)


def open_unit(shape: Shape, like: Tensor) -> Tensor:
    """Uniform numbers in (0, 1], fine near 0, in the dtype of a parameter."""
    return fine_unit(shape, wide(like.dtype), like.device, None).astype(like.dtype)


class _LocScale(Distribution):
    """What is made of a location and a positive scale."""

    loc: Tensor
    scale: Tensor
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(type(self).__name__, loc=loc, scale=scale)
        super().__init__(self.loc.shape, (), validate_args)

    def _standard(self, value: Any, function: str = "log_prob") -> Tensor:
        return (self._value(value, self.loc, function) - self.loc) / self.scale


class Normal(_LocScale, ExponentialFamily):
    """The normal distribution of mean `loc` and standard deviation `scale`.

    >>> import everygrad as eg
    >>> eg.distributions.Normal(0.0, 1.0).log_prob(0.0)
    tensor(-0.9189)
    """

    _mean_carrier_measure = 0.0

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self.loc + self.scale * noise(randn, shape, self.loc)

    def log_prob(self, value: Any) -> Tensor:
        z = self._standard(value)
        return -0.5 * z * z - self.scale.log() - HALF_LOG_TAU

    def cdf(self, value: Any) -> Tensor:
        z = self._standard(value, "cdf")
        return 0.5 * (1.0 + erf(z * math.sqrt(0.5)))

    def icdf(self, value: Any) -> Tensor:
        value = self._value(value, self.loc, "icdf")
        return self.loc + self.scale * erfinv(2.0 * value - 1.0) * math.sqrt(2.0)

    def entropy(self) -> Tensor:
        return 0.5 + HALF_LOG_TAU + self.scale.log()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        precision = 1.0 / self.scale.square()
        return (self.loc * precision, -0.5 * precision)

    def _log_normalizer(self, *natural: Tensor) -> Tensor:
        x, y = natural
        return -0.25 * x * x / y + 0.5 * (-math.pi / y).log()


class Uniform(Distribution):
    """The uniform distribution over [low, high).

    >>> import everygrad as eg
    >>> eg.distributions.Uniform(0.0, 4.0).variance
    tensor(1.3333)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "low": constraints.dependent,
        "high": constraints.dependent,
    }
    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast("Uniform", low=low, high=high)
        super().__init__(self.low.shape, (), validate_args)

    def _check_parameters(self) -> None:
        what = "Uniform: low must be below high"
        self.low = ensure_in(self.low, self.low < self.high, what)

    @dependent_property
    def support(self) -> Constraint:
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        return (self.high + self.low) / 2.0

    @property
    def mode(self) -> Tensor:
        return self.high * math.nan

    @property
    def stddev(self) -> Tensor:
        return (self.high - self.low) / math.sqrt(12.0)

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low).square() / 12.0

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = noise(rand, self._extended_shape(sample_shape), self.low)
        return self.low + u * (self.high - self.low)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.low)
        inside = (self.low <= value) & (value < self.high)
        return where(inside, -(self.high - self.low).log(), -math.inf)

    def cdf(self, value: Any) -> Tensor:
        value = self._value(value, self.low, "cdf")
        return ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)

    def icdf(self, value: Any) -> Tensor:
        value = self._value(value, self.low, "icdf")
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        return (self.high - self.low).log()


class Laplace(_LocScale):
    """Two exponential distributions back to back at `loc`.

    >>> import everygrad as eg
    >>> eg.distributions.Laplace(0.0, 2.0).variance
    tensor(8.)
    """

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return math.sqrt(2.0) * self.scale

    @property
    def variance(self) -> Tensor:
        return 2.0 * self.scale.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        side = where(noise(rand, shape, self.loc) < 0.5, -1.0, 1.0).astype(self.loc.dtype)
        return self.loc - self.scale * side * open_unit(shape, self.loc).log()

    def log_prob(self, value: Any) -> Tensor:
        return -self._standard(value).abs() - (2.0 * self.scale).log()

    def cdf(self, value: Any) -> Tensor:
        z = self._standard(value, "cdf")
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    def icdf(self, value: Any) -> Tensor:
        term = self._value(value, self.loc, "icdf") - 0.5
        return self.loc - self.scale * term.sign() * (-2.0 * term.abs()).log1p()

    def entropy(self) -> Tensor:
        return 1.0 + (2.0 * self.scale).log()


class Cauchy(_LocScale):
    """The ratio of two normal variables: of median `loc`, without a mean.

    >>> import everygrad as eg
    >>> eg.distributions.Cauchy(0.0, 1.0).cdf(1.0)
    tensor(0.75)
    """

    @property
    def mean(self) -> Tensor:
        return self.loc * math.nan

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale * math.inf

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = noise(rand, self._extended_shape(sample_shape), self.loc)
        return self.loc + self.scale * ((u - 0.5) * math.pi).tan()

    def log_prob(self, value: Any) -> Tensor:
        return -math.log(math.pi) - self.scale.log() - self._standard(value).square().log1p()

    def cdf(self, value: Any) -> Tensor:
        return self._standard(value, "cdf").atan() / math.pi + 0.5

    def icdf(self, value: Any) -> Tensor:
        value = self._value(value, self.loc, "icdf")
        return ((value - 0.5) * math.pi).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        return math.log(4.0 * math.pi) + self.scale.log()


class Gumbel(TransformedDistribution):
    """The largest of many: exp(-exp(-z)) is its distribution function.

    >>> import everygrad as eg
    >>> eg.distributions.Gumbel(1.0, 2.0).mode
    tensor(1.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast("Gumbel", loc=loc, scale=scale)
        zero = self.loc * 0.0
        base = Uniform(zero, zero + 1.0, validate_args=False)
        chain = [
            ExpTransform().inv,
            AffineTransform(0.0, -1.0),
            ExpTransform().inv,
            AffineTransform(self.loc, -self.scale),
        ]
        super().__init__(base, chain, validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * EULER

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return (math.pi / math.sqrt(6.0)) * self.scale

    @property
    def variance(self) -> Tensor:
        return self.stddev.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = open_unit(self._extended_shape(sample_shape), self.loc)
        # -log of u in (0, 1], kept from 0, whose logarithm would be infinite
        waiting = (-u.log()).clamp(dtypes.finfo(self.loc.dtype).smallest_normal)
        return self.loc - self.scale * waiting.log()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return self.rsample(sample_shape)

    def log_prob(self, value: Any) -> Tensor:
        y = (self.loc - self._value(value, self.loc)) / self.scale
        return y - y.exp() - self.scale.log()

    def cdf(self, value: Any) -> Tensor:
        y = (self.loc - self._value(value, self.loc, "cdf")) / self.scale
        return (-y.exp()).exp()

    def icdf(self, value: Any) -> Tensor:
        value = self._value(value, self.loc, "icdf")
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1.0 + EULER)


class StudentT(Distribution):
    """A normal variable over the root of an independent chi-square one of `df` degrees.

    >>> import everygrad as eg
    >>> eg.distributions.StudentT(4.0).variance
    tensor(2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = broadcast("StudentT", df=df, loc=loc, scale=scale)
        super().__init__(self.df.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return where(self.df <= 1.0, math.nan, self.loc)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        finite = self.df > 2.0
        df = where(finite, self.df, 3.0)
        value = where(finite, self.scale.square() * df / (df - 2.0), math.inf)
        return where(self.df <= 1.0, math.nan, value)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        z = noise(randn, shape, self.df)
        half = 0.5 * self.df
        spread = gamma(half, half, shape)  # chi-square over its degrees
        tiny = dtypes.finfo(self.df.dtype).smallest_normal
        return self.loc + self.scale * z * spread.clamp(tiny).rsqrt()

    def log_prob(self, value: Any) -> Tensor:
        y = (self._value(value, self.loc) - self.loc) / self.scale
        more = 0.5 * (self.df + 1.0)
        norm = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi)
        norm = norm + lgamma(0.5 * self.df) - lgamma(more)
        return -more * (y.square() / self.df).log1p() - norm

    def entropy(self) -> Tensor:
        half, more = 0.5 * self.df, 0.5 * (self.df + 1.0)
        log_beta = lgamma(half) + math.lgamma(0.5) - lgamma(more)
        spread = more * (digamma(more) - digamma(half))
        return self.scale.log() + spread + 0.5 * self.df.log() + log_beta


def _von_mises_round(chosen: Any, k: Any, excess: Any, half: Any, u: Any) -> Any:
    """1 - cos of the angle, where it is still below 0 the next candidate if it is accepted."""
    angle = half * (0.5 * math.pi)
    sine, cosine = call("sin", angle), call("cos", angle)
    fresh = excess * 2.0 * sine * sine / (excess + 2.0 * cosine * cosine)
    c = k * (excess + fresh)
    accepted = (c * (2.0 - c) > u) | (call("log", c / u) + 1.0 >= c)
    return call("select", chosen >= 0.0, chosen, call("select", accepted, fresh, -1.0 + 0.0 * c))


VON_MISES_ROUND = Elementwise("von_mises_round", _von_mises_round, kinds="real float")


class VonMises(Distribution):
    """A direction in radians, around `loc`, the nearer to it the larger `concentration`.

    >>> import everygrad as eg
    >>> eg.distributions.VonMises(eg.tensor(0.0), eg.tensor(4.0)).mean
    tensor(0.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "concentration": constraints.positive,
    }
    support = constraints.real
    ROUNDS = 20  # each refuses at most 34 in 100: one in 10**9 is left after all, and given loc

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast("VonMises", loc=loc, concentration=concentration)
        super().__init__(self.loc.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        """The direction of the mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The circular variance."""
        return 1.0 - i1e(self.concentration) / i0e(self.concentration)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.loc)
        # concentration * (cos - 1): i0e has the factor exp(-concentration)
        away = -2.0 * (0.5 * (value - self.loc)).sin().square()
        return self.concentration * away - 2.0 * HALF_LOG_TAU - i0e(self.concentration).log()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """By rejection from a wrapped Cauchy distribution (Best and Fisher 1979).

        Written in 1 - cos rather than cos, so that float32 serves for large concentrations too.
        """
        with no_grad():
            shape = self._extended_shape(sample_shape)
            k = self.concentration.astype(wide(self.concentration.dtype)).broadcast_to(shape)
            root = (1.0 + 4.0 * k * k).sqrt()
            tau = 1.0 + root
            rho = tau.sqrt() / (tau.sqrt() + math.sqrt(2.0)) * 2.0 * k / (root + 1.0)
            far = (2.0 * tau).sqrt() - 1.0 - 1.0 / (root + 2.0 * k)
            gap = where(k > 1.0, far / (2.0 * k), 1.0 - rho)  # 1 - rho
            excess = gap * gap / (2.0 * rho)  # r - 1
            chosen = k * 0.0 - 1.0  # 1 - cos of the angle, below 0 until a round accepts
            for _ in range(self.ROUNDS):
                half = rand(shape, k.dtype, k.device)
                u = fine_unit(shape, k.dtype, k.device, None)
                chosen = apply(VON_MISES_ROUND, chosen, k, excess, half, u)
            angle = 2.0 * (0.5 * chosen.clamp(0.0, 2.0)).sqrt().clamp(0.0, 1.0).asin()
            side = where(noise(rand, shape, k) < 0.5, -1.0, 1.0).astype(k.dtype)
            turned = side * angle + self.loc.astype(k.dtype) + math.pi
            wrapped = turned - (turned / (2.0 * math.pi)).floor() * (2.0 * math.pi) - math.pi
            return wrapped.astype(self.loc.dtype)
