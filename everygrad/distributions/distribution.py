"""What every distribution is: shapes, checks by name, and the answers that follow from others.

No tensor that follows from the parameters is kept on the object: inside jit or vmap it would
outlive the trace that made it. Properties compute it each time, and a compiler shares the work.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.autograd.transforms.functional import grad
from everygrad.core import shapes
from everygrad.core.tensor import Tensor, Wrapped
from everygrad.dispatch import apply
from everygrad.distributions import constraints
from everygrad.distributions.constraints import Constraint
from everygrad.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from everygrad.ops.linalg.checks import CHECK_TRUE, ensure
from everygrad.ops.python.creation import tensor

Shape = tuple[int, ...]
D = TypeVar("D", bound="Distribution")


# --- parameters ----------------------------------------------------------------------------------


def as_tensors(owner: str, given: Mapping[str, Any]) -> list[Tensor]:
    """Parameters, tensors or numbers, as tensors of one floating dtype on one device."""
    tensors = [v for v in given.values() if isinstance(v, Tensor)]
    for name, v in given.items():
        if not isinstance(v, Tensor) and (isinstance(v, bool) or not isinstance(v, int | float)):
            raise DtypeError(
                f"{owner}: {name} must be a tensor or a number, got {type(v).__name__} {v!r}"[:300]
            )
    places = {t.device for t in tensors}
    if len(places) > 1:
        raise DeviceError(f"{owner}: parameters lie on different devices: {sorted(places)}")
    dtype = dtypes.result_type(*tensors) if tensors else dtypes.DEFAULT_FLOAT
    if dtype.is_complex:
        raise DtypeError(f"{owner}: parameters must be real, got {dtype}")
    dtype = dtype if dtype.is_float else dtypes.DEFAULT_FLOAT
    device = tensors[0].device if tensors else "cpu"
    return [
        v.astype(dtype) if isinstance(v, Tensor) else tensor(float(v), dtype, device)
        for v in given.values()
    ]


def broadcast(owner: str, **given: Any) -> list[Tensor]:
    """Parameters as tensors of one shape: `loc, scale = broadcast("Normal", loc=0.0, scale=s)`."""
    tensors = as_tensors(owner, given)
    try:
        shape = shapes.broadcast(owner, *(t.shape for t in tensors))
    except ShapeError as error:
        sizes = ", ".join(f"{n} {t.shape}" for n, t in zip(given, tensors, strict=True))
        raise ShapeError(f"{owner}: parameters do not broadcast: {sizes}") from error
    return [t.broadcast_to(shape) for t in tensors]


def one_of(owner: str, **given: Any) -> tuple[str, Any]:
    """The one parameter among several that was given."""
    named = [(k, v) for k, v in given.items() if v is not None]
    if len(named) != 1:
        got = " and ".join(k for k, _ in named) or "none"
        raise ArgumentError(f"{owner}: give exactly one of {', '.join(given)}, got {got}")
    return named[0]


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities kept from 0 and 1 by the dtype's eps, so that their logarithms are finite."""
    eps = dtypes.finfo(probs.dtype).eps
    return probs.clamp(eps, 1.0 - eps)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Log odds of binary probabilities; else logarithms of probabilities."""
    kept = clamp_probs(probs)
    return kept.log() - (-kept).log1p() if is_binary else kept.log()


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Probabilities from log odds; else from unnormalised logarithms along the last axis."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def sum_rightmost(x: Tensor, count: int) -> Tensor:
    """x summed over its last `count` axes."""
    return x.sum(axis=tuple(range(-count, 0))) if count else x


def beside(value: Any, like: Tensor) -> Tensor:
    """A value as a tensor of the parameters' dtype; numbers and integer tensors are taken too."""
    if not isinstance(value, Tensor):
        return tensor(value, like.dtype, like.device)
    return value if value.dtype.is_float else value.astype(like.dtype)


# --- checks --------------------------------------------------------------------------------------


def ensure_in(value: Tensor, ok: Tensor, what: str, event_dim: int = 0) -> Tensor:
    """The value, if `ok` (one entry for each event) holds throughout; else an ArgumentError that
    says `what` and shows an event that fails. Where a value is not known yet (in jit, on a GPU)
    the error comes when it is, without the event."""
    wide = ok.reshape((*ok.shape, *(1,) * event_dim)) if event_dim else ok
    wide = wide.broadcast_to((*ok.shape, *value.shape[value.ndim - event_dim :]))
    value = value if value.shape == wide.shape else value.broadcast_to(wide.shape)
    try:
        if value.dtype.is_float:
            return ensure(value, wide, what, ArgumentError)
        kept = apply(CHECK_TRUE, wide, what=what, error=ArgumentError)
        return value * kept.astype(value.dtype)  # uses the check, which would be dropped otherwise
    except ArgumentError:
        shown = _failing(value, ok)
        if shown is None:
            raise
        raise ArgumentError(f"{what}, got {shown}") from None


def _failing(value: Tensor, ok: Tensor) -> Any:
    """The first event for which `ok` does not hold; None inside a transformation."""
    if isinstance(value._data, Wrapped) or isinstance(ok._data, Wrapped):
        return None
    bad = value.detach().numpy()[~ok.numpy()]
    return bad[0].tolist() if len(bad) else None


class Distribution:
    """A probability distribution over events of `event_shape`, one for each place of `batch_shape`.

    Subclasses name their parameters and what these must satisfy in `arg_constraints`; with
    `validate_args` (the default) parameters and values are checked against it, by name.
    """

    has_rsample: bool = False
    has_enumerate_support: bool = False
    arg_constraints: ClassVar[dict[str, Constraint]]
    _default_validate_args: ClassVar[bool] = True

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape, self._event_shape = tuple(batch_shape), tuple(event_shape)
        chosen = Distribution._default_validate_args if validate_args is None else validate_args
        self._validate_args = bool(chosen)
        if self._validate_args:
            self._check_parameters()

    def _check_parameters(self) -> None:
        for name, constraint in type(self).arg_constraints.items():
            if constraints.is_dependent(constraint) or name not in vars(self):
                continue  # it follows from another parameter
            value = vars(self)[name]
            if isinstance(value, Tensor):
                what = f"{type(self).__name__}: {name} must be {constraint}"
                setattr(
                    self,
                    name,
                    ensure_in(value, constraint.check(value), what, constraint.event_dim),
                )

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions that are not told check their parameters and values."""
        if not isinstance(value, bool):
            raise ArgumentError(f"set_default_validate_args: takes True or False, got {value!r}")
        Distribution._default_validate_args = value

    @property
    def batch_shape(self) -> Shape:
        """The shape of the batch of distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> Shape:
        """The shape of one event."""
        return self._event_shape

    @property
    def support(self) -> Constraint:
        """The set of values that may be drawn."""
        raise self._missing("support")

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        raise self._missing("mean")

    @property
    def mode(self) -> Tensor:
        """A value of the largest probability."""
        raise self._missing("mode")

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        raise self._missing("variance")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each element."""
        return self.variance.sqrt()

    def _missing(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} has no {what}")

    def expand(self: D, batch_shape: Sequence[int]) -> D:
        """The distribution with its parameters broadcast to another batch shape."""
        sizes = self._expandable(batch_shape)
        made = copy.copy(self)
        made._batch_shape = sizes
        own = len(self.batch_shape)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(made, name, value.broadcast_to((*sizes, *value.shape[own:])))
        return made

    def _expandable(self, batch_shape: Sequence[int]) -> Shape:
        sizes = shapes.as_shape(batch_shape, f"{type(self).__name__}.expand")
        try:
            fits = shapes.broadcast("expand", self.batch_shape, sizes) == sizes
        except ShapeError:
            fits = False
        if not fits:
            raise ShapeError(
                f"{type(self).__name__}.expand: batch shape {self.batch_shape} does not broadcast "
                f"to {sizes}"
            )
        return sizes

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape + event_shape, without a gradient."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient in the parameters is that of the sampled values."""
        name = type(self).__name__
        raise NotImplementedError(
            f"{name}.rsample: draws of {name} have no gradient in its parameters; use sample(), "
            "and log_prob() for a score-function estimate"
        )

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density or probability of each event."""
        raise self._missing("log_prob")

    def cdf(self, value: Any) -> Tensor:
        """The probability of a value at most as large."""
        raise self._missing("cdf")

    def icdf(self, value: Any) -> Tensor:
        """The value below which the given share of the probability lies."""
        raise self._missing("icdf")

    def entropy(self) -> Tensor:
        """The expected negative log_prob, in nats."""
        raise self._missing("entropy")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of a discrete distribution, along a new first axis."""
        raise self._missing("enumerate_support")

    def perplexity(self) -> Tensor:
        """exp(entropy)."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Shape:
        sizes = shapes.as_shape(sample_shape, f"{type(self).__name__}.sample: sample_shape")
        if any(n < 0 for n in sizes):
            raise ArgumentError(
                f"{type(self).__name__}.sample: sample_shape must not be negative, got {sizes}"
            )
        return (*sizes, *self.batch_shape, *self.event_shape)

    def _value(self, value: Any, like: Tensor, function: str = "log_prob") -> Tensor:
        """A value to judge: as a tensor that fits the shapes and, if asked for, the support."""
        owner = f"{type(self).__name__}.{function}"
        if not isinstance(value, Tensor):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise DtypeError(f"{owner}: takes a tensor, got {type(value).__name__} {value!r}")
            value = tensor(value, like.dtype, like.device)
        elif value.device != like.device:
            raise DeviceError(f"{owner}: the value lies on {value.device}, not {like.device}")
        event = len(self.event_shape)
        own = value.shape[value.ndim - event :]
        if value.ndim < event or own != self.event_shape:
            raise ShapeError(
                f"{owner}: events have shape {self.event_shape}, got a value of shape {value.shape}"
            )
        shapes.broadcast(owner, value.shape[: value.ndim - event], self.batch_shape)
        if function != "icdf" and self._validate_args:
            support = self.support
            if function == "cdf":
                support = support.closed()  # it is 0 or 1 where the support ends
            what = f"{owner}: the value must be {support}"
            value = ensure_in(value, support.check(value), what, support.event_dim)
        return value if value.dtype.is_float else value.astype(like.dtype)

    def __dir__(self) -> list[str]:
        """Parameters that follow from those given are made when they are asked for."""
        return [*{*super().__dir__(), *type(self).arg_constraints}]

    def __repr__(self) -> str:
        names = [k for k in type(self).arg_constraints if k in vars(self)]
        parts = []
        for k in names:
            v = vars(self)[k]
            plain = isinstance(v, Tensor) and v.size == 1 and not isinstance(v._data, Wrapped)
            parts.append(f"{k}: {v.detach().reshape(()).item() if plain else v.shape}")
        return f"{type(self).__name__}({', '.join(parts)})"


class ExponentialFamily(Distribution):
    """Distributions with density exp(<t(x), natural> - log_normalizer(natural) + carrier(x)).

    `_natural_params`, `_log_normalizer` and `_mean_carrier_measure` give entropy and KL divergence
    of whoever has no closed form of their own, by the gradient of the log normaliser.
    """

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        raise self._missing("_natural_params")

    def _log_normalizer(self, *natural: Tensor) -> Tensor:
        raise self._missing("_log_normalizer")

    @property
    def _mean_carrier_measure(self) -> Any:
        raise self._missing("_mean_carrier_measure")

    def _log_normalizer_and_gradients(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        natural = self._natural_params
        places = tuple(range(len(natural)))
        slopes = grad(lambda *given: self._log_normalizer(*given).sum(), argnums=places)(*natural)
        return self._log_normalizer(*natural), slopes

    def entropy(self) -> Tensor:
        value, slopes = self._log_normalizer_and_gradients()
        result = value - self._mean_carrier_measure
        for natural, slope in zip(self._natural_params, slopes, strict=True):
            product = natural * slope
            result = result - sum_rightmost(product, product.ndim - len(self.batch_shape))
        return result
