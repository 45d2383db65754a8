"""Sets of values that parameters and samples must lie in, in PyTorch's names.

A constraint answers `check(value)` with a bool tensor of one entry for each event; `event_dim` says
how many trailing axes make up one event. `str(constraint)` is how errors name it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from everygrad import dtypes
from everygrad.core.nearest import answering as _answering
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import abs as absolute, where
from everygrad.ops.linalg.checks import identity
from everygrad.ops.linalg.eigen import eigvalsh
from everygrad.ops.python.creation import full
from everygrad.ops.shape.joining import concat, stack as stacked, tril


class Constraint:
    """A set of values; subclasses give `check` and say in words which values pass."""

    is_discrete: bool = False
    event_dim: int = 0

    def __init__(self, says: str = "") -> None:
        self._says = says

    def check(self, value: Tensor) -> Tensor:
        """True for each event that lies in the set."""
        raise NotImplementedError(f"{type(self).__name__}.check")

    def closed(self) -> Constraint:
        """The same with the ends of its interval."""
        return self

    def __str__(self) -> str:
        return self._says

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._says!r})"


class _Check(Constraint):
    """A set given by a function of the value."""

    def __init__(
        self,
        says: str,
        check: Callable[[Tensor], Tensor],
        event_dim: int = 0,
        is_discrete: bool = False,
    ) -> None:
        super().__init__(says)
        self._check = check
        self.event_dim = event_dim
        self.is_discrete = is_discrete

    def check(self, value: Tensor) -> Tensor:
        return self._check(value)


class _Dependent(Constraint):
    """A set that depends on other parameters and is known for an instance alone."""

    def __init__(self, is_discrete: bool = False, event_dim: int = 0) -> None:
        super().__init__("dependent on other parameters")
        self.is_discrete = is_discrete
        self.event_dim = event_dim

    def __call__(self, *, is_discrete: bool = False, event_dim: int = 0) -> _Dependent:
        return _Dependent(is_discrete, event_dim)

    def check(self, value: Tensor) -> Tensor:
        raise ArgumentError("constraints.dependent: ask an instance for its constraint to check")


class dependent_property(property, _Dependent):  # noqa: N801  # PyTorch's name
    """A property that gives a constraint, and is one on the class itself.

    >>> from everygrad.distributions import Uniform, constraints
    >>> constraints.is_dependent(Uniform.support), str(Uniform(0.0, 1.0).support)
    (True, 'between tensor(0.) and tensor(1.)')
    """

    def __init__(
        self,
        fn: Callable[[Any], Constraint] | None = None,
        *,
        is_discrete: bool = False,
        event_dim: int = 0,
    ) -> None:
        property.__init__(self, fn)
        _Dependent.__init__(self, is_discrete, event_dim)

    def __call__(self, fn: Any) -> dependent_property:  # type: ignore[override]
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


def is_dependent(constraint: Any) -> bool:
    """Whether the constraint is known for an instance alone."""
    return isinstance(constraint, _Dependent)


# --- intervals -----------------------------------------------------------------------------------


class _GreaterThan(Constraint):
    def __init__(self, lower_bound: Any) -> None:
        super().__init__(f"above {lower_bound}")
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        return value > self.lower_bound

    def closed(self) -> Constraint:
        return _GreaterThanEq(self.lower_bound)


class _GreaterThanEq(_GreaterThan):
    def __init__(self, lower_bound: Any) -> None:
        super().__init__(lower_bound)
        self._says = f"at least {lower_bound}"

    def check(self, value: Tensor) -> Tensor:
        return value >= self.lower_bound

    def closed(self) -> Constraint:
        return self


class _LessThan(Constraint):
    def __init__(self, upper_bound: Any) -> None:
        super().__init__(f"below {upper_bound}")
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return value < self.upper_bound


class _Interval(Constraint):
    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        super().__init__(f"between {lower_bound} and {upper_bound}")
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value >= self.lower_bound) & (value <= self.upper_bound)


class _HalfOpenInterval(_Interval):
    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        super().__init__(lower_bound, upper_bound)
        self._says = f"at least {lower_bound} and below {upper_bound}"

    def check(self, value: Tensor) -> Tensor:
        return (value >= self.lower_bound) & (value < self.upper_bound)

    def closed(self) -> Constraint:
        return _Interval(self.lower_bound, self.upper_bound)


class _IntegerInterval(_Interval):
    is_discrete = True

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        super().__init__(lower_bound, upper_bound)
        self._says = f"an integer from {lower_bound} to {upper_bound}"

    def check(self, value: Tensor) -> Tensor:
        inside = super().check(value)
        return inside & (value.floor() == value) if value.dtype.is_float else inside


class _IntegerGreaterThan(_GreaterThanEq):
    is_discrete = True

    def __init__(self, lower_bound: Any) -> None:
        super().__init__(lower_bound)
        self._says = f"an integer of {lower_bound} or more"

    def check(self, value: Tensor) -> Tensor:
        inside = super().check(value)
        if not value.dtype.is_float:
            return inside
        return inside & (value.floor() == value) & (value < math.inf)


class _Multinomial(Constraint):
    """Counts along the last axis that sum to at most `upper_bound`."""

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: Any) -> None:
        super().__init__(f"counts along the last axis with a sum of at most {upper_bound}")
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(axis=-1) & (value.sum(axis=-1) <= self.upper_bound)


# --- vectors and matrices ------------------------------------------------------------------------


def _close(value: Tensor, wanted: Any, tolerance: float) -> Tensor:
    return absolute(value - wanted) < tolerance


def _simplex(value: Tensor) -> Tensor:
    return (value >= 0).all(axis=-1) & _close(value.sum(axis=-1), 1.0, 1e-6)


def _one_hot(value: Tensor) -> Tensor:
    binary = ((value == 0) | (value == 1)).all(axis=-1)
    return binary & (value.sum(axis=-1) == 1)


def _lower_triangular(value: Tensor) -> Tensor:
    return (tril(value) == value).all(axis=(-2, -1))


def _diagonal(value: Tensor) -> Tensor:
    return value.diagonal(0, -2, -1)


def _lower_cholesky(value: Tensor) -> Tensor:
    return _lower_triangular(value) & (_diagonal(value) > 0).all(axis=-1)


def _corr_cholesky(value: Tensor) -> Tensor:
    eps = dtypes.finfo(value.dtype).eps
    tolerance = eps * value.shape[-1] * 10  # a row's norm has that many roundings
    unit = _close((value * value).sum(axis=-1).sqrt(), 1.0, tolerance)
    return unit.all(axis=-1) & _lower_cholesky(value)


def _square(value: Tensor) -> Tensor:
    same = value.shape[-1] == value.shape[-2]
    return full(value.shape[:-2], same, dtypes.BY_NAME["bool"], value.device)


def _symmetric(value: Tensor) -> Tensor:
    if value.shape[-1] != value.shape[-2]:
        return _square(value)
    return _close(value, value.mT, 1e-6).all(axis=(-2, -1))


def _spectrum(value: Tensor) -> tuple[Tensor, Tensor]:
    """Which matrices are symmetric, and the smallest eigenvalue of each that is."""
    symmetric = _symmetric(value)
    kept = where(symmetric.expand_dims(-1).expand_dims(-1), value, identity(value.shape[-1], value))
    return symmetric, eigvalsh(kept.detach()).min(axis=-1)


def _positive_definite(value: Tensor) -> Tensor:
    if value.shape[-1] != value.shape[-2]:
        return _square(value)
    symmetric, least = _spectrum(value)
    return symmetric & (least > 0)


def _positive_semidefinite(value: Tensor) -> Tensor:
    if value.shape[-1] != value.shape[-2]:
        return _square(value)
    symmetric, least = _spectrum(value)
    scale = absolute(value.detach()).max(axis=(-2, -1)) * value.shape[-1]
    return symmetric & (least >= -dtypes.finfo(value.dtype).eps * scale)


# --- constraints made of constraints -------------------------------------------------------------


class _Independent(Constraint):
    """A constraint whose event has `reinterpreted_batch_ndims` more axes."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        super().__init__(str(base_constraint))
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        result = self.base_constraint.check(value)
        count = self.reinterpreted_batch_ndims
        if result.ndim < count:
            raise ArgumentError(
                f"constraints.independent: needs {self.event_dim} axes or more, got {value.shape}"
            )
        return result.all(axis=tuple(range(-count, 0))) if count else result


class MixtureSameFamilyConstraint(_Independent):
    """The support of a mixture: that of its components, without the axis they are counted along."""

    def __init__(self, base_constraint: Constraint) -> None:
        super().__init__(base_constraint, 0)

    def check(self, value: Tensor) -> Tensor:
        place = value.ndim - self.event_dim
        return self.base_constraint.check(value.expand_dims(place)).all(axis=-1)


class _Cat(Constraint):
    """Parts of `lengths` along an axis, each with a constraint of its own."""

    def __init__(
        self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        super().__init__("; ".join(str(c) for c in cseq))
        self.cseq = tuple(cseq)
        self.lengths = tuple(lengths) if lengths is not None else (1,) * len(self.cseq)
        self.dim = dim
        self.is_discrete = any(c.is_discrete for c in self.cseq)
        self.event_dim = max(c.event_dim for c in self.cseq)

    def check(self, value: Tensor) -> Tensor:
        parts = value.split(self.lengths, self.dim)
        return concat([c.check(v) for c, v in zip(self.cseq, parts, strict=True)], axis=self.dim)


class _Stack(Constraint):
    """Slices along an axis, each with a constraint of its own."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        super().__init__("; ".join(str(c) for c in cseq))
        self.cseq = tuple(cseq)
        self.dim = dim
        self.is_discrete = any(c.is_discrete for c in self.cseq)
        dims = max(c.event_dim for c in self.cseq)
        self.event_dim = dims + 1 if self.dim + dims < 0 else dims

    def check(self, value: Tensor) -> Tensor:
        parts = [value.moveaxis(self.dim, 0)[i] for i in range(len(self.cseq))]
        return stacked([c.check(v) for c, v in zip(self.cseq, parts, strict=True)], axis=self.dim)


# --- the names -----------------------------------------------------------------------------------

dependent = _Dependent()
independent = _Independent
cat = _Cat
stack = _Stack
multinomial = _Multinomial
greater_than = _GreaterThan
greater_than_eq = _GreaterThanEq
less_than = _LessThan
interval = _Interval
half_open_interval = _HalfOpenInterval
integer_interval = _IntegerInterval

boolean = _Check("0 or 1", lambda x: (x == 0) | (x == 1), is_discrete=True)
one_hot = _Check("one 1 among zeros along the last axis", _one_hot, 1, is_discrete=True)
nonnegative_integer = _IntegerGreaterThan(0)
positive_integer = _IntegerGreaterThan(1)
real = _Check("a real number", lambda x: x == x)
real_vector = _Independent(real, 1)
positive = _GreaterThan(0.0)
positive._says = "positive (above 0)"
nonnegative = _GreaterThanEq(0.0)
nonnegative._says = "nonnegative (at least 0)"
unit_interval = _Interval(0.0, 1.0)
simplex = _Check("a simplex: not negative, with a sum of 1 along the last axis", _simplex, 1)
lower_triangular = _Check("a lower-triangular matrix", _lower_triangular, 2)
lower_cholesky = _Check("a lower-triangular matrix with a positive diagonal", _lower_cholesky, 2)
corr_cholesky = _Check(
    "a lower-triangular matrix with a positive diagonal and rows of norm 1", _corr_cholesky, 2
)
square = _Check("a square matrix", _square, 2)
symmetric = _Check("a symmetric matrix", _symmetric, 2)
positive_semidefinite = _Check(
    "a symmetric positive-semidefinite matrix", _positive_semidefinite, 2
)
positive_definite = _Check("a symmetric positive-definite matrix", _positive_definite, 2)

__all__ = [
    "Constraint",
    "MixtureSameFamilyConstraint",
    "boolean",
    "cat",
    "corr_cholesky",
    "dependent",
    "dependent_property",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "independent",
    "integer_interval",
    "interval",
    "is_dependent",
    "less_than",
    "lower_cholesky",
    "lower_triangular",
    "multinomial",
    "nonnegative",
    "nonnegative_integer",
    "one_hot",
    "positive",
    "positive_definite",
    "positive_integer",
    "positive_semidefinite",
    "real",
    "real_vector",
    "simplex",
    "square",
    "stack",
    "symmetric",
    "unit_interval",
]

__getattr__ = _answering(__name__)
