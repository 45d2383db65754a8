"""Maps with a known log-determinant: the base class, maps of single elements, and their joins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from everygrad import dtypes
from everygrad.core.nearest import answering as _answering
from everygrad.core.tensor import Tensor
from everygrad.distributions import constraints
from everygrad.distributions.constraints import Constraint
from everygrad.distributions.distribution import Distribution, Shape, sum_rightmost
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import abs as absolute
from everygrad.ops.elementwise.math import softplus
from everygrad.ops.python.creation import zeros


def same(x: Any, y: Any) -> bool:
    """Whether two parameters of transforms are equal: tensors by their values."""
    if x is y:
        return True
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        a, b = (v.shape if isinstance(v, Tensor) else () for v in (x, y))
        return a == b and bool((x == y).all())
    return bool(x == y)


class Transform:
    """A map y = f(x) with an inverse and the logarithm of |det df/dx|.

    Subclasses give `_call`, `_inverse`, `log_abs_det_jacobian`, `domain` and `codomain`.
    `cache_size=1` keeps the last pair: the inverse of a result is exactly what it came from.
    """

    bijective: bool = False
    domain: Constraint = constraints.real
    codomain: Constraint = constraints.real
    parameters: tuple[str, ...] = ()  # what two equal transforms agree in

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ArgumentError(
                f"{type(self).__name__}: cache_size must be 0 or 1, got {cache_size!r}"
            )
        self._cache_size = cache_size
        self._cached: tuple[Any, Any] = (None, None)

    @property
    def inv(self) -> Transform:
        """The inverse map."""
        return _InverseTransform(self)

    @property
    def sign(self) -> Any:
        """1 where the map rises, -1 where it falls."""
        raise NotImplementedError(f"{type(self).__name__} has no sign")

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The same map, with another cache size."""
        if self._cache_size == cache_size:
            return self
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        Transform.__init__(made, cache_size)
        return made

    def __call__(self, x: Tensor) -> Tensor:
        if not self._cache_size:
            return self._call(x)
        old_x, old_y = self._cached
        y: Tensor = old_y if x is old_x else self._call(x)
        self._cached = (x, y)
        return y

    def _inv_call(self, y: Tensor) -> Tensor:
        if not self._cache_size:
            return self._inverse(y)
        old_x, old_y = self._cached
        x: Tensor = old_x if y is old_y else self._inverse(y)
        self._cached = (x, y)
        return x

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no forward map")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |det dy/dx|, one number for each event."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """The shape of the result, of an input of `shape`."""
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        """The shape of the input, of a result of `shape`."""
        return tuple(shape)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return False
        return all(same(getattr(self, k), getattr(other, k)) for k in self.parameters)

    __hash__ = None  # type: ignore[assignment]  # equal by value, as PyTorch's

    def __repr__(self) -> str:
        given = ", ".join(f"{k}={getattr(self, k)!r}" for k in self.parameters)
        return f"{type(self).__name__}({given})"


class _InverseTransform(Transform):
    """A transform run backwards."""

    parameters = ("inv",)

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self._inv = transform

    @property
    def inv(self) -> Transform:
        return self._inv

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return self._inv.codomain

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return self._inv.domain

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return self._inv.bijective

    @property
    def sign(self) -> Any:
        return self._inv.sign

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self._inv.with_cache(cache_size).inv

    def __call__(self, x: Tensor) -> Tensor:
        return self._inv._inv_call(x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self._inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        return self._inv.forward_shape(shape)


class ComposeTransform(Transform):
    """Transforms one after the other.

    >>> import everygrad as eg
    >>> from everygrad.distributions import AffineTransform, ComposeTransform, ExpTransform
    >>> ComposeTransform([AffineTransform(1.0, 2.0), ExpTransform()]).inv(eg.exp(eg.tensor(5.0)))
    tensor(2.)
    """

    parameters = ("parts",)

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = [p.with_cache(cache_size) for p in parts] if cache_size else list(parts)

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        if not self.parts:
            return constraints.real
        domain = self.parts[0].domain
        dims = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            dims = max(
                dims + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim
            )
        return (
            constraints.independent(domain, dims - domain.event_dim)
            if (dims > domain.event_dim)
            else domain
        )

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        if not self.parts:
            return constraints.real
        codomain = self.parts[-1].codomain
        dims = self.parts[0].domain.event_dim
        for part in self.parts:
            dims = max(
                dims + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim
            )
        return (
            constraints.independent(codomain, dims - codomain.event_dim)
            if (dims > codomain.event_dim)
            else codomain
        )

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(p.bijective for p in self.parts)

    @property
    def sign(self) -> Any:
        out: Any = 1
        for p in self.parts:
            out = out * p.sign
        return out

    @property
    def inv(self) -> Transform:
        return ComposeTransform([p.inv for p in reversed(self.parts)])

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self if self._cache_size == cache_size else ComposeTransform(self.parts, cache_size)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inv_call(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return zeros(x.shape, x.dtype, x.device)
        points = [x]
        for part in self.parts[:-1]:
            points.append(part(points[-1]))
        points.append(y)
        dims = self.domain.event_dim
        total: Any = 0.0
        for part, before, after in zip(self.parts, points, points[1:], strict=False):
            own = part.log_abs_det_jacobian(before, after)
            total = total + sum_rightmost(own, dims - part.domain.event_dim)
            dims += part.codomain.event_dim - part.domain.event_dim
        made: Tensor = total
        return made

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """A transform whose last `reinterpreted_batch_ndims` batch axes belong to the event."""

    parameters = ("base_transform", "reinterpreted_batch_ndims")

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return self.base_transform.bijective

    @property
    def sign(self) -> Any:
        return self.base_transform.sign

    def _fits(self, x: Tensor, event_dim: int) -> None:
        if x.ndim < event_dim:
            raise ShapeError(
                f"IndependentTransform: needs {event_dim} axes or more, got shape {x.shape}"
            )

    def _call(self, x: Tensor) -> Tensor:
        self._fits(x, self.domain.event_dim)
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        self._fits(y, self.codomain.event_dim)
        return self.base_transform._inv_call(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        result = self.base_transform.log_abs_det_jacobian(x, y)
        return sum_rightmost(result, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        return self.base_transform.inverse_shape(shape)


# --- maps of single elements ---------------------------------------------------------------------


class _Rising(Transform):
    """A bijection of single elements that rises throughout."""

    bijective = True

    @property
    def sign(self) -> Any:
        return 1


class ExpTransform(_Rising):
    """y = exp(x)."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    """y = x ** exponent, of positive numbers."""

    domain = constraints.positive
    codomain = constraints.positive
    bijective = True
    parameters = ("exponent",)

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent

    @property
    def sign(self) -> Any:
        if isinstance(self.exponent, Tensor):
            return self.exponent.sign()
        return math.copysign(1, self.exponent)

    def _call(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1.0 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return absolute(self.exponent * y / x).log()

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return _joined(shape, self.exponent)

    inverse_shape = forward_shape


class SigmoidTransform(_Rising):
    """y = 1 / (1 + exp(-x))."""

    codomain = constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        limits = dtypes.finfo(x.dtype)
        return x.sigmoid().clamp(limits.smallest_normal, 1.0 - limits.eps)

    def _inverse(self, y: Tensor) -> Tensor:
        limits = dtypes.finfo(y.dtype)
        y = y.clamp(limits.smallest_normal, 1.0 - limits.eps)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class SoftplusTransform(_Rising):
    """y = log(1 + exp(x))."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        out: Tensor = softplus(x)
        return out

    def _inverse(self, y: Tensor) -> Tensor:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x)


class TanhTransform(_Rising):
    """y = tanh(x)."""

    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # log(1 - tanh(x)**2), which keeps its digits where tanh(x) rounds to 1
        return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


class AbsTransform(Transform):
    """y = |x|: no bijection; its inverse gives the positive one of both."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class AffineTransform(Transform):
    """y = loc + scale * x, elementwise; `event_dim` axes make up one event.

    >>> import everygrad as eg
    >>> eg.distributions.AffineTransform(1.0, 2.0)(eg.tensor([0.0, 3.0]))
    tensor([1., 7.])
    """

    bijective = True
    parameters = ("loc", "scale", "event_dim")

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self.event_dim = loc, scale, event_dim

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        if not self.event_dim:
            return constraints.real
        return constraints.independent(constraints.real, self.event_dim)

    codomain = domain

    @property
    def sign(self) -> Any:
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return math.copysign(1, self.scale) if self.scale else 0

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        one = x * 0.0
        size = (
            self.scale.abs().log() if isinstance(self.scale, Tensor) else math.log(abs(self.scale))
        )
        return sum_rightmost(one + size, self.event_dim)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return _joined(shape, self.loc, self.scale)

    inverse_shape = forward_shape


def _joined(shape: Sequence[int], *parameters: Any) -> Shape:
    """A shape broadcast with those of parameters."""
    from_tensors = [p.shape for p in parameters if isinstance(p, Tensor)]
    out = tuple(shape)
    for own in from_tensors:
        count = max(len(out), len(own))
        a = (1,) * (count - len(out)) + out
        b = (1,) * (count - len(own)) + tuple(own)
        if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
            raise ShapeError(f"transform: shape {out} does not broadcast with {tuple(own)}")
        out = tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))
    return out


class CumulativeDistributionTransform(Transform):
    """y = distribution.cdf(x), uniform where x is drawn from the distribution."""

    bijective = True
    codomain = constraints.unit_interval
    parameters = ("distribution",)

    def __init__(self, distribution: Distribution, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return self.distribution.support

    @property
    def sign(self) -> Any:
        return 1

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution.log_prob(x)


__getattr__ = _answering(__name__)
