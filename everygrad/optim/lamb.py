"""LAMB: Adam's steps, each layer's as long as the layer's weights say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import maximum, minimum, sqrt, where
from everygrad.ops.elementwise.math import expm1
from everygrad.ops.reduce.norms_and_counts import norm
from everygrad.optim.adamw import (
    SHARE,
    M,
    V,
    corrected_root,
    first_share,
    log_of,
    moments,
)
from everygrad.optim.group import Group, State, precise
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import Change, Rule, Shared, Update

FIRST = Update("lamb.first", lambda step, log: -expm1(step * log))
# Adam's step with its decay, into a copy of the parameter
STEP = Update(
    "lamb.step",
    lambda d, m, v, first, root, *, eps, decay: (
        (m / first) / (sqrt(v) / root + eps) + (d * decay if decay else 0.0)
    ),
)


def _trusted(lr: Any, weights: Any, step: Any, bounds: tuple[float, float] | None) -> Any:
    """The learning rate times |weights| / |step|, where both are there."""
    size = weights
    if bounds is not None:
        size = minimum(maximum(weights, bounds[0]), bounds[1])
    return lr * where((weights > 0.0) & (step > 0.0), size / step, 1.0)


TRUST = Update(
    "lamb.trust", lambda lr, weights, step, *, bounds: _trusted(lr, weights, step, bounds)
)
MOVE = Update("lamb.move", lambda p, d, rate: p - d * rate)


class LAMB(Optimizer):
    """Adam for large batches: each parameter's step has the norm lr * |p| (You et al., 2019).

    `bounds` limit the norm of the parameter that the step is measured by. Weight decay is part of
    the step.

    >>> import everygrad as eg
    >>> x = eg.tensor([3.0, 4.0], requires_grad=True)
    >>> opt = eg.optim.LAMB([x], lr=0.1, weight_decay=0.0)
    >>> (x * x).sum().backward()
    >>> before = x.detach()
    >>> opt.step()
    >>> round(eg.norm(x.detach() - before).item(), 4)
    0.5
    """

    elementwise = False
    reduces = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        bounds: tuple[float, float] | None = None,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bounds": bounds,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "eps")
        self.check_betas(group)
        bounds = group["bounds"]
        if bounds is not None and (len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1]):
            raise ArgumentError(f"LAMB: bounds must be None or (low, high), got {bounds!r}")

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        self.begin(p, state, shared, "exp_avg", "exp_avg_sq")

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        step = shared.next_step(state)
        log = shared.number(p, "log beta1", lambda group: log_of(group["betas"][0]))
        key = ("first", id(step), p.dtype, p.device)
        first = shared.once(key, lambda: apply(FIRST, shared.count(p, step), log))
        d = shared.alias(p)
        tensors = [p, g, state["exp_avg"], state["exp_avg_sq"], first_share(p, shared), d, first]
        root = corrected_root(p, step, group, shared)
        shared.change(shared.once("rule", lambda: self._rule(group)), *tensors, root)
        bounds = group["bounds"] and tuple(group["bounds"])

        def move() -> None:
            sizes = [norm(t.astype(precise(p))) for t in (p, d)]
            rate = apply(TRUST, shared.lr(p), *sizes, bounds=bounds)
            shared.change(_ALONG, p, d, rate)

        shared.then(move)

    def _rule(self, group: Group) -> Rule:
        d, first, root = range(SHARE + 1, SHARE + 4)
        settings = {"eps": group["eps"], "decay": group["weight_decay"]}
        return Rule(*moments(group, 0.0), Change(STEP, (d, M, V, first, root), settings))


_ALONG = Rule(Change(MOVE, (0, 1, 2), {}))
