"""Distributions made of distributions: transformed, independent axes as one event, mixtures."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.distributions import constraints
from everygrad.distributions.choices import Categorical
from everygrad.distributions.constraints import Constraint, dependent_property
from everygrad.distributions.distribution import Distribution, sum_rightmost
from everygrad.distributions.transforms import ComposeTransform, Transform
from everygrad.errors import ArgumentError, DtypeError, ShapeError

T = TypeVar("T", bound="TransformedDistribution")


class TransformedDistribution(Distribution):
    """What comes out of transforms whose input is drawn from `base_distribution`.

    >>> import everygrad as eg
    >>> d = eg.distributions
    >>> d.TransformedDistribution(d.Normal(0.0, 1.0), d.ExpTransform()).log_prob(eg.tensor(1.0))
    tensor(-0.9189)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        owner = type(self).__name__
        if not isinstance(base_distribution, Distribution):
            got = type(base_distribution).__name__
            raise DtypeError(f"{owner}: base_distribution must be a Distribution, got {got}")
        chain = [transforms] if isinstance(transforms, Transform) else list(transforms)
        if not all(isinstance(t, Transform) for t in chain):
            raise DtypeError(f"{owner}: transforms must be Transforms, got {transforms!r}"[:300])
        self.transforms = chain
        shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        event = len(base_distribution.event_shape)
        whole = ComposeTransform(chain)
        if len(shape) < whole.domain.event_dim:
            raise ShapeError(
                f"{owner}: transforms take events of {whole.domain.event_dim} axes, but the base "
                f"distribution has shape {shape}"
            )
        forward = whole.forward_shape(shape)
        expanded = whole.inverse_shape(forward)
        if shape != expanded:
            batch = expanded[: len(expanded) - event]
            base_distribution = base_distribution.expand(batch)
        more = whole.domain.event_dim - event
        self.base_dist = Independent(base_distribution, more) if more > 0 else base_distribution
        axes = whole.codomain.event_dim + max(event - whole.domain.event_dim, 0)
        cut = len(forward) - axes
        super().__init__(forward[:cut], forward[cut:], validate_args)

    def expand(self: T, batch_shape: Sequence[int]) -> T:
        sizes = self._expandable(batch_shape)
        made = copy.copy(self)
        made._batch_shape = sizes
        own = len(self.batch_shape)
        shape = (*sizes, *self.event_shape)
        for t in reversed(self.transforms):
            shape = t.inverse_shape(shape)
        base = len(self.base_dist.event_shape)
        made.base_dist = self.base_dist.expand(shape[: len(shape) - base])
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(made, name, value.broadcast_to((*sizes, *value.shape[own:])))
        return made

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @dependent_property
    def support(self) -> Constraint:
        if not self.transforms:
            return self.base_dist.support
        support = self.transforms[-1].codomain
        more = len(self.event_shape) - support.event_dim
        return constraints.independent(support, more) if more > 0 else support

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return self._forward(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._forward(self.base_dist.rsample(sample_shape))

    def _forward(self, x: Tensor) -> Tensor:
        for t in self.transforms:
            x = t(x)
        return x

    def log_prob(self, value: Any) -> Tensor:
        y = self._value(value, value if isinstance(value, Tensor) else self._like())
        axes = len(self.event_shape)
        total: Any = 0.0
        for t in reversed(self.transforms):
            x = t.inv(y)
            axes += t.domain.event_dim - t.codomain.event_dim
            slope = t.log_abs_det_jacobian(x, y)
            total = total - sum_rightmost(slope, axes - t.domain.event_dim)
            y = x
        own = self.base_dist.log_prob(y)
        result: Tensor = total + sum_rightmost(own, axes - len(self.base_dist.event_shape))
        return result

    def _like(self) -> Tensor:
        """A tensor of the dtype and device of the draws."""
        found = _tensors_of(self)
        return found[0]

    def _rises(self, value: Tensor) -> Tensor:
        """Shares of probability, counted from the other end where the transforms fall."""
        sign: Any = 1
        for t in self.transforms:
            sign = sign * t.sign
        if isinstance(sign, int | float) and sign == 1:
            return value
        return sign * (value - 0.5) + 0.5

    def cdf(self, value: Any) -> Tensor:
        y = self._value(value, value if isinstance(value, Tensor) else self._like(), "cdf")
        for t in reversed(self.transforms):
            y = t.inv(y)
        return self._rises(self.base_dist.cdf(y))

    def icdf(self, value: Any) -> Tensor:
        y = self._value(value, value if isinstance(value, Tensor) else self._like(), "icdf")
        return self._forward(self.base_dist.icdf(self._rises(y)))

    def __repr__(self) -> str:
        if type(self) is TransformedDistribution:
            return f"TransformedDistribution({self.base_dist!r}, {self.transforms!r})"
        return super().__repr__()


def _tensors_of(distribution: Distribution) -> list[Tensor]:
    """The tensors that a distribution is made of, its base's among them."""
    found: list[Tensor] = []
    for value in vars(distribution).values():
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, Distribution):
            found.extend(_tensors_of(value))
    return found


class Independent(Distribution):
    """The last `reinterpreted_batch_ndims` batch axes of a distribution as part of its event.

    >>> import everygrad as eg
    >>> d = eg.distributions
    >>> d.Independent(d.Normal(eg.zeros((3, 2)), 1.0), 1).log_prob(eg.zeros((3, 2))).shape
    (3,)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(base_distribution, Distribution):
            got = type(base_distribution).__name__
            raise DtypeError(f"Independent: base_distribution must be a Distribution, got {got}")
        batch = base_distribution.batch_shape
        count = reinterpreted_batch_ndims
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(batch):
            raise ArgumentError(
                f"Independent: reinterpreted_batch_ndims must be from 0 to {len(batch)}, the axes "
                f"of the batch shape {batch}, got {count!r}"
            )
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = count
        cut = len(batch) - count
        event = (*batch[cut:], *base_distribution.event_shape)
        super().__init__(batch[:cut], event, validate_args)

    def expand(self, batch_shape: Sequence[int]) -> Independent:
        sizes = self._expandable(batch_shape)
        inner = (*sizes, *self.event_shape[: self.reinterpreted_batch_ndims])
        return Independent(
            self.base_dist.expand(inner), self.reinterpreted_batch_ndims, self._validate_args
        )

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        return not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support

    @dependent_property
    def support(self) -> Constraint:
        inner = self.base_dist.support
        count = self.reinterpreted_batch_ndims
        return constraints.independent(inner, count) if count else inner

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Any) -> Tensor:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims:
            raise NotImplementedError("Independent.enumerate_support: over a batch of events")
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamily(Distribution):
    """One of several components of one family, chosen by a Categorical.

    The last batch axis of `component_distribution` counts the components.

    >>> import everygrad as eg
    >>> d = eg.distributions
    >>> parts = d.Normal(eg.tensor([-1.0, 1.0]), 0.1)
    >>> d.MixtureSameFamily(d.Categorical(eg.tensor([0.5, 0.5])), parts).mean
    tensor(0.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            got = type(mixture_distribution).__name__
            raise DtypeError(
                f"MixtureSameFamily: mixture_distribution must be a Categorical, got {got}"
            )
        if not isinstance(component_distribution, Distribution):
            got = type(component_distribution).__name__
            raise DtypeError(
                f"MixtureSameFamily: component_distribution must be a Distribution, got {got}"
            )
        outer, inner = mixture_distribution.batch_shape, component_distribution.batch_shape
        count = mixture_distribution.logits.shape[-1]
        if not inner or inner[-1] != count:
            raise ShapeError(
                f"MixtureSameFamily: {count} choices need components along the last batch axis, "
                f"got batch shape {inner}"
            )
        if outer and any(a not in (1, b) for a, b in zip(outer[::-1], inner[-2::-1], strict=False)):
            raise ShapeError(
                f"MixtureSameFamily: mixture batch shape {outer} and components' {inner[:-1]} "
                "differ"
            )
        self.mixture_distribution = mixture_distribution
        self.component_distribution = component_distribution
        self._components = count
        super().__init__(inner[:-1], component_distribution.event_shape, validate_args)

    def expand(self, batch_shape: Sequence[int]) -> MixtureSameFamily:
        sizes = self._expandable(batch_shape)
        return MixtureSameFamily(
            self.mixture_distribution.expand(sizes),
            self.component_distribution.expand((*sizes, self._components)),
            self._validate_args,
        )

    @dependent_property
    def support(self) -> Constraint:
        return constraints.MixtureSameFamilyConstraint(self.component_distribution.support)

    def _weights(self) -> Tensor:
        """Probabilities of components, with an axis of size 1 for each of the event's."""
        p = self.mixture_distribution.probs
        return p.reshape((*p.shape, *(1,) * len(self.event_shape)))

    def _axis(self) -> int:
        return -1 - len(self.event_shape)

    @property
    def mean(self) -> Tensor:
        return (self._weights() * self.component_distribution.mean).sum(axis=self._axis())

    @property
    def variance(self) -> Tensor:
        parts, weights, axis = self.component_distribution, self._weights(), self._axis()
        spread = (parts.mean - self.mean.expand_dims(axis)).square()
        return (weights * (parts.variance + spread)).sum(axis=axis)

    def _apart(self, value: Any, function: str) -> Tensor:
        """A value with an axis of size 1 for the components."""
        like = self.mixture_distribution.logits
        value = self._value(value, like, function)
        return value.expand_dims(value.ndim - len(self.event_shape))

    def cdf(self, value: Any) -> Tensor:
        inner = self.component_distribution.cdf(self._apart(value, "cdf"))
        return (inner * self.mixture_distribution.probs).sum(axis=-1)

    def log_prob(self, value: Any) -> Tensor:
        inner = self.component_distribution.log_prob(self._apart(value, "log_prob"))
        return (inner + self.mixture_distribution.logits.log_softmax(-1)).logsumexp(axis=-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            drawn = self.component_distribution.sample(sample_shape)
            cut = len(shape) - len(self.event_shape)
            mixture = self.mixture_distribution.expand(self.batch_shape)
            chosen = mixture.sample(sample_shape)
            index = chosen.reshape((*shape[:cut], 1, *(1,) * len(self.event_shape)))
            index = index.broadcast_to((*shape[:cut], 1, *self.event_shape))
            return drawn.gather(index, axis=cut).squeeze(cut)

    def __repr__(self) -> str:
        return f"MixtureSameFamily({self.mixture_distribution!r}, {self.component_distribution!r})"
