"""Counts: Bernoulli, Binomial, NegativeBinomial, Geometric, Poisson."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.distributions import constraints
from everygrad.distributions.constraints import Constraint, dependent_property
from everygrad.distributions.distribution import (
    Distribution,
    ExponentialFamily,
    broadcast,
    ensure_in,
    one_of,
    probs_to_logits,
)
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import softplus, xlogy
from everygrad.ops.python.creation import arange
from everygrad.ops.random.continuous import gamma
from everygrad.ops.random.discrete import binomial, poisson
from everygrad.ops.random.generators import fine_unit, rand
from everygrad.ops.special.gamma import lgamma


class Binary(Distribution):
    """What is made of `probs` or of their log odds `logits`; the other one follows."""

    probs: Tensor
    logits: Tensor
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }

    def _take(self, probs: Any, logits: Any, **more: Any) -> None:
        """Keeps the one that was given, broadcast with other parameters, which are kept too."""
        owner = type(self).__name__
        name, value = one_of(owner, probs=probs, logits=logits)
        values = broadcast(owner, **{name: value}, **more)
        for key, made in zip((name, *more), values, strict=True):
            setattr(self, key, made)

    def __getattr__(self, name: str) -> Tensor:
        own = vars(self)
        if name == "logits" and "probs" in own:
            return probs_to_logits(own["probs"], is_binary=True)
        if name == "probs" and "logits" in own:
            made: Tensor = own["logits"].sigmoid()
            return made
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    @property
    def _given(self) -> Tensor:
        """The parameter that was given."""
        own = vars(self)
        made: Tensor = own["probs"] if "probs" in own else own["logits"]
        return made

    @property
    def param_shape(self) -> tuple[int, ...]:
        """The shape of the probabilities."""
        return self._given.shape


class Bernoulli(Binary, ExponentialFamily):
    """1 with probability `probs`, else 0.

    >>> import everygrad as eg
    >>> eg.distributions.Bernoulli(0.25).log_prob(1.0).exp()
    tensor(0.25)
    """

    support = constraints.boolean
    has_enumerate_support = True
    _mean_carrier_measure = 0.0

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._take(probs, logits)
        super().__init__(self.param_shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        probs = self.probs
        larger = (probs >= 0.5).astype(probs.dtype)
        return where(probs == 0.5, math.nan, larger)

    @property
    def variance(self) -> Tensor:
        probs = self.probs
        return probs * (1.0 - probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            given, shape = self._given, self._extended_shape(sample_shape)
            wide = dtypes.float64 if given.dtype is dtypes.float64 else dtypes.float32
            u = rand(shape, wide, given.device)
            return (u < self.probs.astype(wide)).astype(given.dtype)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self._given)
        logits = self.logits
        return value * logits - softplus(logits)

    def entropy(self) -> Tensor:
        logits = self.logits
        return softplus(logits) - logits * self.probs

    def enumerate_support(self, expand: bool = True) -> Tensor:
        given = self._given
        values = arange(2, dtype=given.dtype, device=given.device)
        values = values.reshape((2, *(1,) * len(self.batch_shape)))
        return values.broadcast_to((2, *self.batch_shape)) if expand else values

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.logits,)

    def _log_normalizer(self, *natural: Tensor) -> Tensor:
        out: Tensor = softplus(natural[0])
        return out


class Binomial(Binary):
    """How many of `total_count` trials succeed, each with probability `probs`.

    >>> import everygrad as eg
    >>> eg.distributions.Binomial(10, 0.5).mean
    tensor(5.)
    """

    total_count: Tensor
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "total_count": constraints.nonnegative_integer,
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }
    has_enumerate_support = True

    def __init__(
        self,
        total_count: Any = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        # a number is known even where values are not, inside jit
        self._number = total_count if isinstance(total_count, int) else None
        self._take(probs, logits, total_count=total_count)
        super().__init__(self.param_shape, (), validate_args)

    @dependent_property(is_discrete=True)
    def support(self) -> Constraint:
        most = self.total_count if self._number is None else self._number
        return constraints.integer_interval(0, most)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return ((self.total_count + 1.0) * self.probs).floor().minimum(self.total_count)

    @property
    def variance(self) -> Tensor:
        probs = self.probs
        return self.total_count * probs * (1.0 - probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            return binomial(self.total_count, self.probs, shape)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self._given)
        n, logits = self.total_count, self.logits
        ways = lgamma(n + 1.0) - lgamma(value + 1.0) - lgamma(n - value + 1.0)
        return ways + value * logits - n * softplus(logits)

    def _trials(self, function: str) -> int:
        if self._number is not None:
            return self._number
        counts = self.total_count.detach()
        most = int(counts.max().item())
        if int(counts.min().item()) != most:
            raise ArgumentError(
                f"Binomial.{function}: needs one total_count for the whole batch, got from "
                f"{int(counts.min().item())} to {most}"
            )
        return most

    def entropy(self) -> Tensor:
        logs = self.log_prob(self._values("entropy", expand=False))
        return -(logs.exp() * logs).sum(axis=0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._values("enumerate_support", expand)

    def _values(self, function: str, expand: bool) -> Tensor:
        size = 1 + self._trials(function)
        given = self._given
        values = arange(size, dtype=given.dtype, device=given.device)
        values = values.reshape((size, *(1,) * len(self.batch_shape)))
        return values.broadcast_to((size, *self.batch_shape)) if expand else values


class NegativeBinomial(Binary):
    """How many trials succeed before `total_count` have failed.

    >>> import everygrad as eg
    >>> eg.distributions.NegativeBinomial(3.0, 0.5).mean
    tensor(3.)
    """

    total_count: Tensor
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "total_count": constraints.nonnegative,
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer

    def __init__(
        self,
        total_count: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self._take(probs, logits, total_count=total_count)
        super().__init__(self.param_shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        return ((self.total_count - 1.0) * self.logits.exp()).floor().clamp(0.0)

    @property
    def variance(self) -> Tensor:
        return self.mean / (-self.logits).sigmoid()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            rate = gamma(self.total_count, (-self.logits).exp(), shape)
            return poisson(rate)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self._given)
        n, logits = self.total_count, self.logits
        chance = -n * softplus(logits) - value * softplus(-logits)
        together = n + value
        some = together != 0.0
        ways = lgamma(where(some, together, 1.0)) - lgamma(value + 1.0)
        ways = ways - lgamma(where(n == 0.0, 1.0, n))
        nothing = (n == 0.0) & (value != 0.0)  # no trial at all: a success cannot be
        return where(nothing, -math.inf, chance + ways)


class Geometric(Binary):
    """How many trials fail before the first succeeds.

    >>> import everygrad as eg
    >>> eg.distributions.Geometric(0.25).mean
    tensor(3.)
    """

    support = constraints.nonnegative_integer

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._take(probs, logits)
        super().__init__(self.param_shape, (), validate_args)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        own = vars(self)
        if "probs" in own:
            ok = own["probs"] > 0.0
            self.probs = ensure_in(own["probs"], ok, "Geometric: probs must be positive (above 0)")

    @property
    def mean(self) -> Tensor:
        return 1.0 / self.probs - 1.0

    @property
    def mode(self) -> Tensor:
        return self._given * 0.0

    @property
    def variance(self) -> Tensor:
        probs = self.probs
        return (1.0 / probs - 1.0) / probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            shape, given = self._extended_shape(sample_shape), self._given
            wide = dtypes.float64 if given.dtype is dtypes.float64 else dtypes.float32
            u = fine_unit(shape, wide, given.device, None)
            log_failure = (-self.probs.astype(wide)).log1p()
            return (u.log() / log_failure).abs().floor().astype(given.dtype)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self._given)
        probs = self.probs
        sure = (probs == 1.0) & (value == 0.0)  # where log(0) is not to be multiplied by 0
        return value * (-where(sure, 0.0, probs)).log1p() + probs.log()

    def entropy(self) -> Tensor:
        logits, probs = self.logits, self.probs
        return (softplus(logits) - logits * probs) / probs


class Poisson(ExponentialFamily):
    """How many events happen of which `rate` are expected.

    >>> import everygrad as eg
    >>> eg.distributions.Poisson(2.0).log_prob(0.0)
    tensor(-2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast("Poisson", rate=rate)
        super().__init__(self.rate.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        return self.rate

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return poisson(self.rate, self._extended_shape(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.rate)
        out: Tensor = xlogy(value, self.rate) - self.rate - lgamma(value + 1.0)
        return out

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.rate.log(),)

    def _log_normalizer(self, *natural: Tensor) -> Tensor:
        return natural[0].exp()
