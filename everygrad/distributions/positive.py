"""Distributions over positive numbers: Gamma and its kin, Exponential, half-normal, Pareto, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.distributions import constraints
from everygrad.distributions.compound import TransformedDistribution
from everygrad.distributions.constraints import Constraint, dependent_property
from everygrad.distributions.distribution import Distribution, ExponentialFamily, broadcast
from everygrad.distributions.real_line import EULER, Cauchy, Normal, noise, open_unit
from everygrad.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ExpTransform,
    PowerTransform,
)
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import xlogy
from everygrad.ops.random.continuous import gamma
from everygrad.ops.random.generators import rand
from everygrad.ops.special.gamma import digamma, lgamma
from everygrad.ops.special.gammainc import gammainc, gammaincc


def tiny_of(x: Tensor) -> float:
    """The smallest normal number of a tensor's dtype, which draws are kept above."""
    return dtypes.finfo(x.dtype).smallest_normal


class Gamma(ExponentialFamily):
    """The gamma distribution of mean concentration / rate.

    >>> import everygrad as eg
    >>> eg.distributions.Gamma(3.0, 2.0).mean
    tensor(1.5)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support: Constraint = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0.0

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        made = broadcast(type(self).__name__, concentration=concentration, rate=rate)
        self.concentration, self.rate = made
        super().__init__(self.rate.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1.0) / self.rate).clamp(0.0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return gamma(self.concentration, self.rate, shape).clamp(tiny_of(self.rate))

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.rate)
        c, rate = self.concentration, self.rate
        out: Tensor = xlogy(c, rate) + xlogy(c - 1.0, value) - rate * value - lgamma(c)
        return out

    def cdf(self, value: Any) -> Tensor:
        value = self._value(value, self.rate, "cdf")
        return gammainc(self.concentration, self.rate * value)

    def entropy(self) -> Tensor:
        c = self.concentration
        return c - self.rate.log() + lgamma(c) + (1.0 - c) * digamma(c)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration - 1.0, -self.rate)

    def _log_normalizer(self, *natural: Tensor) -> Tensor:
        x, y = natural
        out: Tensor = lgamma(x + 1.0) + (x + 1.0) * (-1.0 / y).log()
        return out


class Chi2(Gamma):
    """The sum of the squares of `df` standard normal variables.

    >>> import everygrad as eg
    >>> eg.distributions.Chi2(3.0).variance
    tensor(6.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (given,) = broadcast("Chi2", df=df)
        self.df = given
        super().__init__(0.5 * given, 0.5, validate_args)
        self.concentration = 0.5 * self.df  # of the checked value


class Exponential(ExponentialFamily):
    """Waiting times of events that come `rate` times in a unit of time.

    >>> import everygrad as eg
    >>> eg.distributions.Exponential(2.0).mean
    tensor(0.5)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0.0

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast("Exponential", rate=rate)
        super().__init__(self.rate.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return 1.0 / self.rate

    @property
    def mode(self) -> Tensor:
        return self.rate * 0.0

    @property
    def stddev(self) -> Tensor:
        return 1.0 / self.rate

    @property
    def variance(self) -> Tensor:
        return 1.0 / self.rate.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return -open_unit(self._extended_shape(sample_shape), self.rate).log() / self.rate

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.rate)
        return self.rate.log() - self.rate * value

    def cdf(self, value: Any) -> Tensor:
        return -(-self.rate * self._value(value, self.rate, "cdf")).expm1()

    def icdf(self, value: Any) -> Tensor:
        return -(-self._value(value, self.rate, "icdf")).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1.0 - self.rate.log()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (-self.rate,)

    def _log_normalizer(self, *natural: Tensor) -> Tensor:
        return -(-natural[0]).log()


class InverseGamma(TransformedDistribution):
    """1 / x for x from Gamma(concentration, rate).

    >>> import everygrad as eg
    >>> eg.distributions.InverseGamma(3.0, 4.0).mean
    tensor(2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support = constraints.positive

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        given = broadcast("InverseGamma", concentration=concentration, rate=rate)
        self.concentration, self.rate = given
        base = Gamma(self.concentration, self.rate, validate_args=False)
        super().__init__(base, PowerTransform(-1.0), validate_args)

    @property
    def mean(self) -> Tensor:
        c = self.concentration
        finite = c > 1.0
        return where(finite, self.rate / (where(finite, c, 2.0) - 1.0), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1.0)

    @property
    def variance(self) -> Tensor:
        finite = self.concentration > 2.0
        c = where(finite, self.concentration, 3.0)
        value = self.rate.square() / ((c - 1.0).square() * (c - 2.0))
        return where(finite, value, math.inf)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.rate)
        c, rate = self.concentration, self.rate
        return c * rate.log() - lgamma(c) - (c + 1.0) * value.log() - rate / value

    def cdf(self, value: Any) -> Tensor:
        return gammaincc(self.concentration, self.rate / self._value(value, self.rate, "cdf"))

    def entropy(self) -> Tensor:
        c = self.concentration
        return c + self.rate.log() + lgamma(c) - (1.0 + c) * digamma(c)


class FisherSnedecor(Distribution):
    """The ratio of two chi-square variables, each over its degrees of freedom.

    >>> import everygrad as eg
    >>> eg.distributions.FisherSnedecor(3.0, 4.0).mean
    tensor(2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "df1": constraints.positive,
        "df2": constraints.positive,
    }
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast("FisherSnedecor", df1=df1, df2=df2)
        super().__init__(self.df1.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        finite = self.df2 > 2.0
        df2 = where(finite, self.df2, 3.0)
        return where(finite, df2 / (df2 - 2.0), math.nan)

    @property
    def mode(self) -> Tensor:
        inside = self.df1 > 2.0
        value = (self.df1 - 2.0) / self.df1 * self.df2 / (self.df2 + 2.0)
        return where(inside, value, math.nan)

    @property
    def variance(self) -> Tensor:
        finite = self.df2 > 4.0
        df1, df2 = self.df1, where(finite, self.df2, 5.0)
        value = 2.0 * df2.square() * (df1 + df2 - 2.0)
        value = value / (df1 * (df2 - 2.0).square() * (df2 - 4.0))
        return where(finite, value, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape, tiny = self._extended_shape(sample_shape), tiny_of(self.df1)
        x, y = (gamma(0.5 * df, 0.5 * df, shape) for df in (self.df1, self.df2))
        return (x / y.clamp(tiny)).clamp(tiny)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.df1)
        a, b, ratio = 0.5 * self.df1, 0.5 * self.df2, self.df1 / self.df2
        norm = lgamma(a + b) - lgamma(a) - lgamma(b)
        powers = a * ratio.log() + (a - 1.0) * value.log()
        return norm + powers - (a + b) * (ratio * value).log1p()


class LogNormal(TransformedDistribution):
    """exp of a normal variable of mean `loc` and standard deviation `scale`.

    >>> import everygrad as eg
    >>> eg.distributions.LogNormal(0.0, 1.0).mode
    tensor(0.3679)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.positive

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast("LogNormal", loc=loc, scale=scale)
        base = Normal(self.loc, self.scale, validate_args=False)
        super().__init__(base, ExpTransform(), validate_args)

    @property
    def mean(self) -> Tensor:
        return (self.loc + 0.5 * self.scale.square()).exp()

    @property
    def mode(self) -> Tensor:
        return (self.loc - self.scale.square()).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale.square()
        return square.expm1() * (2.0 * self.loc + square).exp()

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class _Half(TransformedDistribution):
    """The absolute value of a variable that is symmetric around 0."""

    scale: Tensor
    arg_constraints: ClassVar[dict[str, Constraint]] = {"scale": constraints.positive}
    support = constraints.nonnegative

    @property
    def mode(self) -> Tensor:
        return self.scale * 0.0

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.scale)
        both = self.base_dist.log_prob(value) + math.log(2.0)
        return where(value >= 0.0, both, -math.inf)

    def cdf(self, value: Any) -> Tensor:
        return 2.0 * self.base_dist.cdf(self._value(value, self.scale, "cdf")) - 1.0

    def icdf(self, value: Any) -> Tensor:
        return self.base_dist.icdf((self._value(value, self.scale, "icdf") + 1.0) / 2.0)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2.0)


class HalfNormal(_Half):
    """|x| for a normal x of mean 0 and standard deviation `scale`.

    >>> import everygrad as eg
    >>> eg.distributions.HalfNormal(1.0).mean
    tensor(0.7979)
    """

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        (self.scale,) = broadcast("HalfNormal", scale=scale)
        base = Normal(self.scale * 0.0, self.scale, validate_args=False)
        super().__init__(base, AbsTransform(), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2.0 / math.pi)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (1.0 - 2.0 / math.pi)


class HalfCauchy(_Half):
    """|x| for x from Cauchy(0, scale).

    >>> import everygrad as eg
    >>> eg.distributions.HalfCauchy(1.0).cdf(1.0)
    tensor(0.5)
    """

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        (self.scale,) = broadcast("HalfCauchy", scale=scale)
        base = Cauchy(self.scale * 0.0, self.scale, validate_args=False)
        super().__init__(base, AbsTransform(), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * math.inf

    @property
    def variance(self) -> Tensor:
        return self.scale * math.inf


class Weibull(TransformedDistribution):
    """scale * x ** (1 / concentration) for x from Exponential(1).

    >>> import everygrad as eg
    >>> eg.distributions.Weibull(2.0, 1.0).mean
    tensor(2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "scale": constraints.positive,
        "concentration": constraints.positive,
    }
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        given = broadcast("Weibull", scale=scale, concentration=concentration)
        self.scale, self.concentration = given
        base = Exponential(self.scale * 0.0 + 1.0, validate_args=False)
        power = PowerTransform(1.0 / self.concentration)
        super().__init__(base, [power, AffineTransform(0.0, self.scale)], validate_args)

    @property
    def concentration_reciprocal(self) -> Tensor:
        return 1.0 / self.concentration

    def _moment(self, n: float) -> Tensor:
        """E[(x / scale) ** n]."""
        return lgamma(1.0 + n / self.concentration).exp()

    @property
    def mean(self) -> Tensor:
        return self.scale * self._moment(1.0)

    @property
    def mode(self) -> Tensor:
        k = self.concentration
        return self.scale * ((k - 1.0) / k) ** (1.0 / k)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (self._moment(2.0) - self._moment(1.0).square())

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.scale)
        k, log_z = self.concentration, (value / self.scale).log()
        return k.log() - self.scale.log() + (k - 1.0) * log_z - (k * log_z).exp()

    def cdf(self, value: Any) -> Tensor:
        z = self._value(value, self.scale, "cdf") / self.scale
        return -(-(z**self.concentration)).expm1()

    def icdf(self, value: Any) -> Tensor:
        waiting = -(-self._value(value, self.scale, "icdf")).log1p()
        return self.scale * waiting ** (1.0 / self.concentration)

    def entropy(self) -> Tensor:
        k = self.concentration
        return EULER * (1.0 - 1.0 / k) + (self.scale / k).log() + 1.0


class Pareto(TransformedDistribution):
    """Numbers above `scale` whose tail falls with the power `alpha`.

    >>> import everygrad as eg
    >>> eg.distributions.Pareto(1.0, 3.0).mean
    tensor(1.5)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "alpha": constraints.positive,
        "scale": constraints.positive,
    }

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast("Pareto", scale=scale, alpha=alpha)
        base = Exponential(self.alpha, validate_args=False)
        super().__init__(base, [ExpTransform(), AffineTransform(0.0, self.scale)], validate_args)

    @dependent_property
    def support(self) -> Constraint:
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        finite = self.alpha > 1.0
        a = where(finite, self.alpha, 2.0)
        return where(finite, a * self.scale / (a - 1.0), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        finite = self.alpha > 2.0
        a = where(finite, self.alpha, 3.0)
        value = self.scale.square() * a / ((a - 1.0).square() * (a - 2.0))
        return where(finite, value, math.inf)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.scale)
        a = self.alpha
        return a.log() + a * self.scale.log() - (a + 1.0) * value.log()

    def cdf(self, value: Any) -> Tensor:
        value = self._value(value, self.scale, "cdf")
        return -(self.alpha * (self.scale / value).log()).expm1()

    def icdf(self, value: Any) -> Tensor:
        left = (-self._value(value, self.scale, "icdf")).log1p()
        return self.scale * (-left / self.alpha).exp()

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + (1.0 + 1.0 / self.alpha)


class GeneralizedPareto(Distribution):
    """What lies above a high threshold `loc`: the tail that `concentration` decides.

    >>> import everygrad as eg
    >>> eg.distributions.GeneralizedPareto(0.0, 1.0, 0.5).mean
    tensor(2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }
    has_rsample = True

    def __init__(
        self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None
    ) -> None:
        given = broadcast("GeneralizedPareto", loc=loc, scale=scale, concentration=concentration)
        self.loc, self.scale, self.concentration = given
        super().__init__(self.loc.shape, (), validate_args)

    @dependent_property
    def support(self) -> Constraint:
        bounded = self.concentration < 0.0
        c = where(bounded, self.concentration, -1.0)
        return constraints.interval(self.loc, where(bounded, self.loc - self.scale / c, math.inf))

    def _exponential(self) -> tuple[Tensor, Tensor]:
        """Where the tail is exponential, and concentrations that may be divided by."""
        flat = self.concentration.abs() <= 1e-8
        return flat, where(flat, 1.0, self.concentration)

    @property
    def mean(self) -> Tensor:
        finite = self.concentration < 1.0
        c = where(finite, self.concentration, 0.5)
        return where(finite, self.loc + self.scale / (1.0 - c), math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        finite = self.concentration < 0.5
        c = where(finite, self.concentration, 0.25)
        value = self.scale.square() / ((1.0 - c).square() * (1.0 - 2.0 * c))
        return where(finite, value, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._at(noise(rand, self._extended_shape(sample_shape), self.loc))

    def log_prob(self, value: Any) -> Tensor:
        z = (self._value(value, self.loc) - self.loc) / self.scale
        flat, c = self._exponential()
        power = 1.0 / c + 1.0
        tail = where(power == 0.0, 0.0, power * (where(power == 0.0, 0.0, c) * z).log1p())
        return -self.scale.log() - where(flat, z, tail)

    def log_survival_function(self, value: Any) -> Tensor:
        """The logarithm of the probability of more than `value`."""
        z = (self._value(value, self.loc, "cdf") - self.loc) / self.scale
        flat, c = self._exponential()
        return where(flat, -z, -(c * z).log1p() / c)

    def log_cdf(self, value: Any) -> Tensor:
        return self.cdf(value).log()

    def cdf(self, value: Any) -> Tensor:
        return -self.log_survival_function(value).expm1()

    def icdf(self, value: Any) -> Tensor:
        return self._at(self._value(value, self.loc, "icdf"))

    def _at(self, share: Tensor) -> Tensor:
        left = (-share).log1p()
        flat, c = self._exponential()
        return self.loc + self.scale * where(flat, -left, (-c * left).expm1() / c)

    def entropy(self) -> Tensor:
        return self.scale.log() + self.concentration + 1.0
