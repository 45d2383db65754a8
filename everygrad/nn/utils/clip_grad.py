"""What training loops do to gradients between `backward` and `step`."""

from __future__ import annotations

import math
from collections.abc import Iterable

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, GradientError
from everygrad.nn.parameter import other_ranks
from everygrad.ops.elementwise.basic import clamp, isfinite
from everygrad.ops.python.creation import zeros
from everygrad.ops.reduce.norms_and_counts import norm
from everygrad.ops.shape.joining import stack


def _with_grads(parameters: Tensor | Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each parameter that has a gradient, with it."""
    given = [parameters] if isinstance(parameters, Tensor) else parameters
    return [(p, g) for p in given if (g := p.grad) is not None]


@no_grad()
def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all tensors as if they were one vector; `foreach` makes no difference.

    >>> import everygrad as eg
    >>> eg.nn.utils.get_total_norm([eg.tensor([3.0]), eg.tensor([4.0])])
    tensor(5.)
    """
    return _total(
        "get_total_norm",
        [tensors] if isinstance(tensors, Tensor) else list(tensors),
        norm_type,
        error_if_nonfinite,
    )


def _total(fn: str, tensors: list[Tensor], norm_type: float, check: bool) -> Tensor:
    if not tensors:
        return zeros(())
    total: Tensor = norm(stack([norm(g, norm_type) for g in tensors]), norm_type)
    if check and not isfinite(total):
        raise GradientError(
            f"{fn}: the norm of the gradients is {total.item()}; look for its origin "
            f"with eg.detect_anomaly(), or pass error_if_nonfinite=False"
        )
    return total


@no_grad()
def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    total_norm: Tensor,
    foreach: bool | None = None,
) -> None:
    """Scale all gradients by max_norm / total_norm where that is below 1.

    >>> import everygrad as eg
    >>> p = eg.nn.Parameter(eg.tensor([1.0]))
    >>> p.grad = eg.tensor([4.0])
    >>> eg.nn.utils.clip_grads_with_norm_([p], 1.0, eg.tensor(8.0))
    >>> p.grad
    tensor([0.5])
    """
    if not max_norm >= 0:
        raise ArgumentError(f"clip_grads_with_norm_: max_norm must not be negative, got {max_norm}")
    _scale(_with_grads(parameters), max_norm, total_norm)


def _scale(clipped: list[tuple[Tensor, Tensor]], max_norm: float, total: Tensor) -> None:
    share = clamp(max_norm / (total + 1e-6), max=1.0)
    for p, g in clipped:
        p.grad = g * share.astype(g.dtype)


@no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients by one number, so that the norm of them all is at most `max_norm`.

    Returns the norm that they had. Works inside `jit`, but for `error_if_nonfinite`, which looks at
    a value. Where a parameter is a part whose rest other ranks have, it is the norm over all of
    them, and all must call it (`eg.distributed.clip_grad_norm_`).

    >>> import everygrad as eg
    >>> p = eg.nn.Parameter(eg.tensor([3.0, 4.0]))
    >>> (p * p).sum().backward()
    >>> eg.nn.utils.clip_grad_norm_([p], 1.0)
    tensor(10.)
    >>> p.grad
    tensor([0.6, 0.8])
    """
    if not max_norm >= 0:
        raise ArgumentError(f"clip_grad_norm_: max_norm must not be negative, got {max_norm}")
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if (others := other_ranks(given)) is not None:
        return others.clip_grad_norm(given, max_norm, norm_type, error_if_nonfinite)
    clipped = _with_grads(given)
    total = _total("clip_grad_norm_", [g for _, g in clipped], norm_type, error_if_nonfinite)
    _scale(clipped, max_norm, total)
    return total


clip_grad_norm = clip_grad_norm_  # its older name


@no_grad()
def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Limit every element of every gradient to [-clip_value, clip_value].

    >>> import everygrad as eg
    >>> p = eg.nn.Parameter(eg.tensor([1.0]))
    >>> p.grad = eg.tensor([4.0])
    >>> eg.nn.utils.clip_grad_value_([p], 0.5)
    >>> p.grad
    tensor([0.5])
    """
    if not 0 <= clip_value < math.inf:
        raise ArgumentError(
            f"clip_grad_value_: clip_value must be finite, and not negative, got {clip_value}"
        )
    for p, g in _with_grads(parameters):
        p.grad = clamp(g, -clip_value, clip_value)
