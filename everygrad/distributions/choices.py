"""Choices among categories: Categorical, one-hot, counts of choices, and relaxed ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.distributions import constraints
from everygrad.distributions.constraints import Constraint, dependent_property
from everygrad.distributions.discrete import Binomial
from everygrad.distributions.distribution import (
    Distribution,
    as_tensors,
    one_of,
    probs_to_logits,
)
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import xlogy
from everygrad.ops.python.creation import arange, zeros
from everygrad.ops.random.discrete import categorical
from everygrad.ops.special.gamma import lgamma


class Choice(Distribution):
    """What is made of probabilities or logits along a last axis."""

    probs: Tensor
    logits: Tensor
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.simplex,
        "logits": constraints.real_vector,
    }

    def _take(self, probs: Any, logits: Any) -> None:
        """Keeps what was given, normalised along the last axis; the other one follows."""
        owner = type(self).__name__
        name, value = one_of(owner, probs=probs, logits=logits)
        (value,) = as_tensors(owner, {name: value})
        if not value.ndim:
            raise ShapeError(f"{owner}: {name} needs an axis of choices, got shape ()")
        if name == "probs":
            self.probs = value / value.sum(axis=-1, keepdims=True)
        else:
            self.logits = value - value.logsumexp(axis=-1, keepdims=True)

    def __getattr__(self, name: str) -> Tensor:
        own = vars(self)
        if name == "logits" and "probs" in own:
            return probs_to_logits(own["probs"])
        if name == "probs" and "logits" in own:
            return own["logits"].softmax(-1)
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

    def _draw(self, shape: Sequence[int]) -> Tensor:
        """Indices of choices."""
        own = vars(self)
        # not by the clamped logits: a probability of 0 is never chosen
        logits = own["probs"].log() if "probs" in own else own["logits"]
        return categorical(logits, tuple(shape))

    def _one_hot(self, index: Tensor) -> Tensor:
        size = self.param_shape[-1]
        places = arange(size, device=index.device)
        return (index.expand_dims(-1) == places).astype(self._given.dtype)


class Categorical(Choice):
    """Indices along the last axis of `probs` or `logits`.

    >>> import everygrad as eg
    >>> eg.distributions.Categorical(eg.tensor([0.25, 0.75])).log_prob(eg.tensor(1)).exp()
    tensor(0.75)
    """

    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._take(probs, logits)
        self._num_events = self.param_shape[-1]
        super().__init__(self.param_shape[:-1], (), validate_args)

    @dependent_property(is_discrete=True)
    def support(self) -> Constraint:
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def mean(self) -> Tensor:
        return _nan(self.batch_shape, self._given)

    @property
    def variance(self) -> Tensor:
        return _nan(self.batch_shape, self._given)

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(axis=-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return self._draw(self._extended_shape(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self._given).astype(dtypes.int64)
        logits = self.logits
        index = value.expand_dims(-1)
        shape = _broadcast(index.shape[:-1], logits.shape[:-1])
        logits = logits.broadcast_to((*shape, logits.shape[-1]))
        return logits.gather(index.broadcast_to((*shape, 1)), axis=len(shape)).squeeze(-1)

    def entropy(self) -> Tensor:
        lowest = dtypes.finfo(self._given.dtype).min
        return -(self.logits.clamp(lowest) * self.probs).sum(axis=-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(self._num_events, dtype=dtypes.int64, device=self._given.device)
        values = values.reshape((-1, *(1,) * len(self.batch_shape)))
        return values.broadcast_to((self._num_events, *self.batch_shape)) if expand else values


def _nan(shape: Sequence[int], like: Tensor) -> Tensor:
    return zeros(tuple(shape), like.dtype, like.device) + math.nan


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The common shape of two that fit together."""
    count = max(len(a), len(b))
    left = (1,) * (count - len(a)) + tuple(a)
    right = (1,) * (count - len(b)) + tuple(b)
    return tuple(n if m == 1 else m for m, n in zip(left, right, strict=True))


class OneHotCategorical(Choice):
    """Choices as vectors of one 1 among zeros.

    >>> import everygrad as eg
    >>> eg.distributions.OneHotCategorical(eg.tensor([0.0, 1.0])).sample()
    tensor([0., 1.])
    """

    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._take(probs, logits)
        super().__init__(self.param_shape[:-1], self.param_shape[-1:], validate_args)

    def _categorical(self) -> Categorical:
        own = vars(self)
        return Categorical(own.get("probs"), own.get("logits"), validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return self._one_hot(self.probs.argmax(axis=-1))

    @property
    def variance(self) -> Tensor:
        probs = self.probs
        return probs * (1.0 - probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return self._one_hot(self._draw(self._extended_shape(sample_shape)[:-1]))

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self._given)
        return self._categorical().log_prob(value.argmax(axis=-1))

    def entropy(self) -> Tensor:
        return self._categorical().entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        size = self.event_shape[0]
        values = self._one_hot(arange(size, device=self._given.device))
        values = values.reshape((size, *(1,) * len(self.batch_shape), size))
        return values.broadcast_to((size, *self.batch_shape, size)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """One-hot choices whose gradient is that of the probabilities."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        probs = self.probs
        return self.sample(sample_shape) + (probs - probs.detach())


class Multinomial(Choice):
    """How often each category is chosen in `total_count` draws.

    >>> import everygrad as eg
    >>> eg.distributions.Multinomial(10, eg.tensor([0.2, 0.8])).mean
    tensor([2., 8.])
    """

    def __init__(
        self,
        total_count: int = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        if isinstance(total_count, bool) or not isinstance(total_count, int) or total_count < 0:
            raise ArgumentError(
                f"Multinomial: total_count must be an integer of 0 or more, got {total_count!r}"
            )
        self.total_count = total_count
        self._take(probs, logits)
        super().__init__(self.param_shape[:-1], self.param_shape[-1:], validate_args)

    @dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Constraint:
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        probs = self.probs
        return self.total_count * probs * (1.0 - probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            index = self._draw((self.total_count, *shape[:-1])).moveaxis(0, -1)
            ones = zeros(index.shape, self._given.dtype, index.device) + 1.0
            counts = zeros(shape, self._given.dtype, index.device)
            return counts.scatter_add(index, ones, axis=len(shape) - 1)

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self._given)
        own = vars(self)
        if "probs" in own:
            powers = xlogy(value, own["probs"])
        else:
            never = (value == 0) & (own["logits"] == -math.inf)  # 0 choices of what cannot be
            powers = value * where(never, 0.0, own["logits"])
        counted = lgamma(value.sum(axis=-1) + 1.0) - lgamma(value + 1.0).sum(axis=-1)
        return counted + powers.sum(axis=-1)

    def entropy(self) -> Tensor:
        n = self.total_count
        probs = self.probs
        own = -(xlogy(probs, probs)).sum(axis=-1)
        single = Binomial(n, probs, validate_args=False)
        # the values 1 to n: the logarithm of 0! is 0
        values = single.enumerate_support(expand=False)[1:]
        weights = single.log_prob(values).exp()
        expected = (weights * lgamma(values + 1.0)).sum(axis=(0, -1))
        return n * own - math.lgamma(n + 1.0) + expected
