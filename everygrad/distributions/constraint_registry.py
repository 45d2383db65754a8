"""`biject_to` and `transform_to`: from unconstrained numbers into a constraint's set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.distributions import constraints
from everygrad.distributions.constraints import Constraint
from everygrad.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    SigmoidTransform,
    Transform,
    identity_transform,
)
from everygrad.distributions.vector_transforms import (
    CatTransform,
    CorrCholeskyTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    SoftmaxTransform,
    StackTransform,
    StickBreakingTransform,
)
from everygrad.errors import DtypeError

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """Transforms from unconstrained numbers into sets, by constraint.

    >>> import everygrad as eg
    >>> d = eg.distributions
    >>> d.transform_to(d.constraints.positive)(eg.tensor(0.0))
    tensor(1.)
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._by_object: list[tuple[Constraint, Factory]] = []
        self._by_type: dict[type, Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Use `factory(constraint)` for a constraint or a class of them; also a decorator."""
        if factory is None:
            return lambda made: self.register(constraint, made)
        if isinstance(constraint, Constraint):
            self._by_object.append((constraint, factory))
        elif isinstance(constraint, type) and issubclass(constraint, Constraint):
            self._by_type[constraint] = factory
        else:
            raise DtypeError(
                f"{self._name}.register: takes a constraint or a class of them, got {constraint!r}"
            )
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        for known, factory in reversed(self._by_object):
            if known is constraint:
                return factory(constraint)
        for kind in type(constraint).__mro__:
            if kind in self._by_type:
                return self._by_type[kind](constraint)
        raise NotImplementedError(
            f"{self._name}: no transform into {constraint}; give one with {self._name}.register"
        )


biject_to = ConstraintRegistry("biject_to")
transform_to = ConstraintRegistry("transform_to")


def _both(constraint: Any, factory: Factory) -> None:
    biject_to.register(constraint, factory)
    transform_to.register(constraint, factory)


def _above(constraint: Any) -> Transform:
    return ComposeTransform([ExpTransform(), AffineTransform(constraint.lower_bound, 1.0)])


def _between(constraint: Any) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    numbers = not isinstance(low, Tensor) and not isinstance(high, Tensor)
    if numbers and low == 0 and high == 1:
        return SigmoidTransform()
    return ComposeTransform([SigmoidTransform(), AffineTransform(low, high - low)])


def _inside(registry: ConstraintRegistry) -> Factory:
    def make(constraint: Any) -> Transform:
        inner = registry(constraint.base_constraint)
        return IndependentTransform(inner, constraint.reinterpreted_batch_ndims)

    return make


def _by_parts(registry: ConstraintRegistry) -> Factory:
    def make(constraint: Any) -> Transform:
        return CatTransform(
            [registry(c) for c in constraint.cseq], constraint.dim, constraint.lengths
        )

    return make


def _by_slices(registry: ConstraintRegistry) -> Factory:
    return lambda c: StackTransform([registry(inner) for inner in c.cseq], c.dim)


_both(constraints.real, lambda c: identity_transform)
_both(constraints.positive, lambda c: ExpTransform())
_both(constraints.nonnegative, lambda c: ExpTransform())
_both(constraints.greater_than, _above)
_both(constraints.greater_than_eq, _above)
_both(
    constraints.less_than,
    lambda c: ComposeTransform([ExpTransform(), AffineTransform(c.upper_bound, -1.0)]),
)
_both(constraints.interval, _between)
_both(constraints.half_open_interval, _between)
_both(constraints.corr_cholesky, lambda c: CorrCholeskyTransform())
transform_to.register(constraints.lower_cholesky, lambda c: LowerCholeskyTransform())
transform_to.register(constraints.positive_definite, lambda c: PositiveDefiniteTransform())
transform_to.register(constraints.positive_semidefinite, lambda c: PositiveDefiniteTransform())
biject_to.register(constraints.simplex, lambda c: StickBreakingTransform())
transform_to.register(constraints.simplex, lambda c: SoftmaxTransform())
for _registry in (biject_to, transform_to):
    _registry.register(constraints.independent, _inside(_registry))
    _registry.register(constraints.cat, _by_parts(_registry))
    _registry.register(constraints.stack, _by_slices(_registry))
