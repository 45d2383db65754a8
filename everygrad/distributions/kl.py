"""`kl_divergence` and the table it asks, by the types of both distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.distributions.distribution import Distribution
from everygrad.errors import DtypeError

Formula = Callable[[Any, Any], Tensor]
TABLE: dict[tuple[type, type], Formula] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """A decorator that makes a function of (p, q) the KL divergence of two classes.

    >>> import everygrad as eg
    >>> class Mine(eg.distributions.Normal): ...
    >>> @eg.distributions.register_kl(Mine, Mine)
    ... def kl_mine(p, q):
    ...     return (p.loc - q.loc).abs()
    >>> eg.distributions.kl_divergence(Mine(1.0, 1.0), Mine(3.0, 1.0))
    tensor(2.)
    """
    for name, given in (("type_p", type_p), ("type_q", type_q)):
        if not isinstance(given, type) or not issubclass(given, Distribution):
            raise DtypeError(f"register_kl: {name} must be a Distribution class, got {given!r}")

    def put(formula: Formula) -> Formula:
        TABLE[type_p, type_q] = formula
        return formula

    return put


def _formula(p: Distribution, q: Distribution) -> Formula | None:
    """The entry of the nearest classes: p's first, and q's among those equally near to p."""
    ranked = [
        (type(p).__mro__.index(a), type(q).__mro__.index(b), formula)
        for (a, b), formula in TABLE.items()
        if isinstance(p, a) and isinstance(q, b)
    ]
    return min(ranked, key=lambda entry: entry[:2])[2] if ranked else None


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The expected log ratio of densities, p's over q's, of what is drawn from p.

    >>> import everygrad as eg
    >>> d = eg.distributions
    >>> d.kl_divergence(d.Normal(1.0, 1.0), d.Normal(0.0, 1.0))
    tensor(0.5)
    """
    for name, given in (("p", p), ("q", q)):
        if not isinstance(given, Distribution):
            raise DtypeError(
                f"kl_divergence: {name} must be a Distribution, got {type(given).__name__}"
            )
    formula = _formula(p, q)
    if formula is None:
        raise NotImplementedError(
            f"kl_divergence: no formula for {type(p).__name__} and {type(q).__name__}; give one "
            "with register_kl, or estimate it: (p.log_prob(x) - q.log_prob(x)).mean(), "
            "x = p.sample((n,))"
        )
    return formula(p, q)
