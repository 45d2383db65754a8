"""Distributions over [0, 1] and simplices: Beta, Dirichlet and their kin, relaxed choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.distributions import constraints
from everygrad.distributions.choices import Choice
from everygrad.distributions.compound import TransformedDistribution
from everygrad.distributions.constraints import Constraint
from everygrad.distributions.discrete import Binary
from everygrad.distributions.distribution import (
    ExponentialFamily,
    as_tensors,
    broadcast,
    clamp_probs,
)
from everygrad.distributions.real_line import EULER, Normal, Uniform, noise, open_unit
from everygrad.distributions.transforms import (
    AffineTransform,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
)
from everygrad.distributions.vector_transforms import StickBreakingTransform
from everygrad.errors import ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import softplus, xlogy
from everygrad.ops.python.creation import arange
from everygrad.ops.random.continuous import beta, dirichlet
from everygrad.ops.random.generators import rand
from everygrad.ops.shape.joining import stack
from everygrad.ops.special.erf import xlog1py
from everygrad.ops.special.gamma import betaln, digamma, lgamma


def _mode(concentration: Tensor) -> Tensor:
    """The mode of Dirichlet distributions: a corner where all concentrations are below 1."""
    above = (concentration - 1.0).clamp(0.0)
    total = above.sum(axis=-1, keepdims=True)
    inside = above / where(total > 0.0, total, 1.0)
    places = arange(concentration.shape[-1], device=concentration.device)
    corner = (concentration.argmax(axis=-1, keepdims=True) == places).astype(concentration.dtype)
    flat = (concentration < 1.0).all(axis=-1, keepdims=True)
    return where(flat, corner, where(total > 0.0, inside, math.nan))


def _inside(x: Tensor) -> Tensor:
    """Draws kept from 0 and 1, where a density may be infinite."""
    limits = dtypes.finfo(x.dtype)
    return x.clamp(limits.smallest_normal, 1.0 - limits.eps)


class Beta(ExponentialFamily):
    """The beta distribution of mean concentration1 / (concentration1 + concentration0).

    >>> import everygrad as eg
    >>> eg.distributions.Beta(1.0, 3.0).mean
    tensor(0.25)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval
    has_rsample = True
    _mean_carrier_measure = 0.0

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        made = broadcast("Beta", concentration1=concentration1, concentration0=concentration0)
        self.concentration1, self.concentration0 = made
        super().__init__(self.concentration1.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        return _mode(stack([self.concentration1, self.concentration0], axis=-1))[..., 0]

    @property
    def variance(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        total = a + b
        return a * b / (total.square() * (total + 1.0))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return _inside(beta(self.concentration1, self.concentration0, shape))

    def log_prob(self, value: Any) -> Tensor:
        a, b = self.concentration1, self.concentration0
        value = self._value(value, a)
        out: Tensor = xlogy(a - 1.0, value) + xlog1py(b - 1.0, -value) - betaln(a, b)
        return out

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        total = a + b
        slopes = (a - 1.0) * digamma(a) + (b - 1.0) * digamma(b)
        return betaln(a, b) - slopes + (total - 2.0) * digamma(total)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration1 - 1.0, self.concentration0 - 1.0)

    def _log_normalizer(self, *natural: Tensor) -> Tensor:
        return betaln(natural[0] + 1.0, natural[1] + 1.0)


class Dirichlet(ExponentialFamily):
    """Probabilities along the last axis, of means in proportion to `concentration`.

    >>> import everygrad as eg
    >>> eg.distributions.Dirichlet(eg.tensor([1.0, 3.0])).mean
    tensor([0.25, 0.75])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.independent(constraints.positive, 1)
    }
    support = constraints.simplex
    has_rsample = True
    _mean_carrier_measure = 0.0

    def __init__(self, concentration: Any, validate_args: bool | None = None) -> None:
        (self.concentration,) = as_tensors("Dirichlet", {"concentration": concentration})
        if not self.concentration.ndim:
            raise ShapeError("Dirichlet: concentration needs an axis of choices, got shape ()")
        shape = self.concentration.shape
        super().__init__(shape[:-1], shape[-1:], validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(axis=-1, keepdims=True)

    @property
    def mode(self) -> Tensor:
        return _mode(self.concentration)

    @property
    def variance(self) -> Tensor:
        c = self.concentration
        total = c.sum(axis=-1, keepdims=True)
        return c * (total - c) / (total.square() * (total + 1.0))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return dirichlet(self.concentration, self._extended_shape(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        c = self.concentration
        value = self._value(value, c)
        powers = xlogy(c - 1.0, value).sum(axis=-1)
        out: Tensor = powers + lgamma(c.sum(axis=-1)) - lgamma(c).sum(axis=-1)
        return out

    def entropy(self) -> Tensor:
        c = self.concentration
        size, total = c.shape[-1], c.sum(axis=-1)
        norm = lgamma(c).sum(axis=-1) - lgamma(total)
        return norm - (size - total) * digamma(total) - ((c - 1.0) * digamma(c)).sum(axis=-1)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration - 1.0,)

    def _log_normalizer(self, *natural: Tensor) -> Tensor:
        c = natural[0] + 1.0
        return lgamma(c).sum(axis=-1) - lgamma(c.sum(axis=-1))


class Kumaraswamy(TransformedDistribution):
    """Over [0, 1], much like Beta, with a distribution function in closed form.

    >>> import everygrad as eg
    >>> eg.distributions.Kumaraswamy(1.0, 1.0).cdf(0.25)
    tensor(0.25)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        given = broadcast(
            "Kumaraswamy", concentration1=concentration1, concentration0=concentration0
        )
        self.concentration1, self.concentration0 = a, b = given
        base = Uniform(a * 0.0, a * 0.0 + 1.0, validate_args=False)
        chain = [
            PowerTransform(1.0 / b),
            AffineTransform(1.0, -1.0),
            PowerTransform(1.0 / a),
        ]
        super().__init__(base, chain, validate_args)

    def _moment(self, n: float) -> Tensor:
        b = self.concentration0
        return b * betaln(1.0 + n / self.concentration1, b).exp()

    @property
    def mean(self) -> Tensor:
        return self._moment(1.0)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        inside = (a >= 1.0) & (b >= 1.0) & (a * b > 1.0)
        top, bottom = where(inside, a - 1.0, 1.0), where(inside, a * b - 1.0, 1.0)
        return where(inside, (top / bottom) ** (1.0 / a), math.nan)

    @property
    def variance(self) -> Tensor:
        return self._moment(2.0) - self._moment(1.0).square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = open_unit(self._extended_shape(sample_shape), self.concentration1)
        rest = -(u.log() / self.concentration0).expm1()  # 1 - u ** (1 / b)
        return _inside(rest ** (1.0 / self.concentration1))

    def log_prob(self, value: Any) -> Tensor:
        a, b = self.concentration1, self.concentration0
        value = self._value(value, a)
        density = xlogy(a - 1.0, value) + xlog1py(b - 1.0, -(value**a))
        out: Tensor = a.log() + b.log() + density
        return out

    def cdf(self, value: Any) -> Tensor:
        a, b = self.concentration1, self.concentration0
        value = self._value(value, a, "cdf")
        return -(b * (-(value**a)).log1p()).expm1()

    def icdf(self, value: Any) -> Tensor:
        a, b = self.concentration1, self.concentration0
        left = (-self._value(value, a, "icdf")).log1p()
        return (-(left / b).expm1()) ** (1.0 / a)

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = digamma(b + 1.0) + EULER
        return (1.0 - 1.0 / b) + (1.0 - 1.0 / a) * harmonic - a.log() - b.log()


class ContinuousBernoulli(Binary, ExponentialFamily):
    """Density in proportion to probs**x (1 - probs)**(1 - x) over [0, 1].

    Between `lims`, where the closed forms cancel, by Taylor series around 1/2.

    >>> import everygrad as eg
    >>> eg.distributions.ContinuousBernoulli(0.5).mean
    tensor(0.5)
    """

    support = constraints.unit_interval
    has_rsample = True
    _mean_carrier_measure = 0.0

    def __init__(
        self,
        probs: Any = None,
        logits: Any = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        self._take(probs, logits)
        self._lims = lims
        super().__init__(self.param_shape, (), validate_args)
        if "probs" in vars(self):
            self.probs = clamp_probs(self.probs)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where to use the closed forms, a probability for them, its log odds, probs - 1/2."""
        probs = self.probs
        outside = (probs <= self._lims[0]) | (probs > self._lims[1])
        cut = where(outside, probs, self._lims[0])
        return outside, cut, cut.log() - (-cut).log1p(), probs - 0.5

    def _log_norm(self) -> Tensor:
        """The logarithm of the normalising constant."""
        outside, cut, odds, x = self._parts()
        low = cut <= 0.5
        below = (-2.0 * where(low, cut, 0.0)).log1p()
        above = (2.0 * where(low, 1.0, cut) - 1.0).log()
        closed = odds.abs().log() - where(low, below, above)
        square = x * x
        return where(outside, closed, math.log(2.0) + (4.0 / 3.0 + 104.0 / 45.0 * square) * square)

    @property
    def mean(self) -> Tensor:
        outside, cut, odds, x = self._parts()
        closed = cut / (2.0 * cut - 1.0) - 1.0 / odds
        return where(outside, closed, 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * x * x) * x)

    @property
    def variance(self) -> Tensor:
        outside, cut, odds, x = self._parts()
        closed = cut * (cut - 1.0) / (1.0 - 2.0 * cut).square() + 1.0 / odds.square()
        square = x * x
        return where(outside, closed, 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * square) * square)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._at(noise(rand, self._extended_shape(sample_shape), self._given))

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self._given)
        logits = self.logits
        return value * logits - softplus(logits) + self._log_norm()

    def cdf(self, value: Any) -> Tensor:
        value = self._value(value, self._given, "cdf")
        outside, cut, odds, _ = self._parts()
        # (cut**v (1 - cut)**(1 - v) + cut - 1) / (2 cut - 1)
        closed = (1.0 - cut) * (value * odds).expm1() / (2.0 * cut - 1.0)
        found = where(outside, closed, value)
        return where(value <= 0.0, 0.0, where(value >= 1.0, 1.0, found))

    def icdf(self, value: Any) -> Tensor:
        return self._at(self._value(value, self._given, "icdf"))

    def _at(self, share: Tensor) -> Tensor:
        outside, cut, odds, _ = self._parts()
        closed = ((-cut + share * (2.0 * cut - 1.0)).log1p() - (-cut).log1p()) / odds
        return where(outside, closed, share)

    def entropy(self) -> Tensor:
        return -self.mean * self.logits + softplus(self.logits) - self._log_norm()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.logits,)

    def _log_normalizer(self, *natural: Tensor) -> Tensor:
        x = natural[0]
        outside = (x <= self._lims[0] - 0.5) | (x > self._lims[1] - 0.5)
        cut = where(outside, x, self._lims[0] - 0.5)
        closed = cut.expm1().abs().log() - cut.abs().log()
        return where(outside, closed, 0.5 * x + x * x / 24.0 - x**4 / 2880.0)


class LogisticNormal(TransformedDistribution):
    """Stick breaking of a vector of independent normal variables: one more probability than those.

    >>> import everygrad as eg
    >>> eg.distributions.LogisticNormal(eg.zeros((2,)), eg.ones((2,))).sample().shape
    (3,)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.simplex

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args)
        base = base if base.batch_shape else base.expand((1,))
        super().__init__(base, StickBreakingTransform(), validate_args)

    @property
    def loc(self) -> Tensor:
        """The means of the normal variables."""
        return self._normal().loc

    @property
    def scale(self) -> Tensor:
        """The standard deviations of the normal variables."""
        return self._normal().scale

    def _normal(self) -> Normal:
        inner: Any = self.base_dist
        made: Normal = inner.base_dist
        return made


class LogitRelaxedBernoulli(Binary):
    """The log odds of a RelaxedBernoulli variable."""

    temperature: Tensor
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "temperature": constraints.positive,
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }
    support = constraints.real
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self._take(probs, logits, temperature=temperature)
        super().__init__(self.param_shape, (), validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = clamp_probs(open_unit(self._extended_shape(sample_shape), self._given))
        return (u.log() - (-u).log1p() + self.logits) / self.temperature

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self._given)
        gap = self.logits - value * self.temperature
        return self.temperature.log() + gap - 2.0 * softplus(gap)


class RelaxedBernoulli(TransformedDistribution):
    """Numbers in [0, 1], the nearer to 0 and 1 the lower the temperature, with a gradient.

    >>> import everygrad as eg
    >>> eg.distributions.RelaxedBernoulli(eg.tensor(0.5), 0.3).sample((4,)).shape
    (4,)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }
    support = constraints.unit_interval

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        base = LogitRelaxedBernoulli(temperature, probs, logits, validate_args)
        super().__init__(base, SigmoidTransform(), validate_args)

    @property
    def temperature(self) -> Tensor:
        """How soft the choices are."""
        base: Any = self.base_dist
        return base.temperature

    @property
    def logits(self) -> Tensor:
        """The log odds."""
        base: Any = self.base_dist
        return base.logits

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        base: Any = self.base_dist
        return base.probs


class ExpRelaxedCategorical(Choice):
    """The logarithm of a RelaxedOneHotCategorical variable."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "temperature": constraints.positive,
        "probs": constraints.simplex,
        "logits": constraints.real_vector,
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self._take(probs, logits)
        (made,) = as_tensors("RelaxedOneHotCategorical", {"temperature": temperature})
        shape = self.param_shape
        given = self._given
        if made.device != given.device or made.dtype is not given.dtype:
            made = made.to(given.device).astype(given.dtype)
        self.temperature = made.broadcast_to(shape[:-1])
        super().__init__(shape[:-1], shape[-1:], validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = clamp_probs(open_unit(self._extended_shape(sample_shape), self._given))
        noisy = (self.logits - (-u.log()).log()) / self.temperature.expand_dims(-1)
        return noisy - noisy.logsumexp(axis=-1, keepdims=True)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self._given)
        size = self.event_shape[0]
        log_scale = math.lgamma(size) + (size - 1) * self.temperature.log()
        score = self.logits - value * self.temperature.expand_dims(-1)
        score = score - score.logsumexp(axis=-1, keepdims=True)
        return score.sum(axis=-1) + log_scale


class RelaxedOneHotCategorical(TransformedDistribution):
    """Vectors on the simplex, the nearer to one-hot the lower the temperature, with a gradient.

    >>> import everygrad as eg
    >>> eg.distributions.RelaxedOneHotCategorical(eg.tensor(0.5), eg.ones((3,))).sample().shape
    (3,)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.simplex,
        "logits": constraints.real_vector,
    }
    support = constraints.simplex

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args)
        super().__init__(base, ExpTransform(), validate_args)

    @property
    def temperature(self) -> Tensor:
        """How soft the choices are."""
        base: Any = self.base_dist
        return base.temperature

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        base: Any = self.base_dist
        return base.logits

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        base: Any = self.base_dist
        return base.probs
