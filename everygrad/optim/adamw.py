"""Adam, and AdamW: the same rule but for what weight decay means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from everygrad.compile.expr import call
from everygrad.core.scopes import untraced
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import maximum
from everygrad.ops.python.creation import zeros, zeros_like
from everygrad.optim.optimizer import (
    Change,
    Group,
    Optimizer,
    Rule,
    Shared,
    State,
    Update,
    beside,
    descent,
)


def _squared(x: Any) -> Any:
    return x * x


# exp_avg and exp_avg_sq: moving averages of the gradient and of its square
AVERAGE = Update(
    "adam.average",
    lambda m, p, g, *, share, weight_decay, maximize: (
        m + (descent(g, p, weight_decay, maximize) - m) * share
    ),
)

SQUARE = Update(
    "adam.square",
    lambda v, p, g, *, beta, share, weight_decay, maximize: (
        v * beta + _squared(descent(g, p, weight_decay, maximize)) * share
    ),
)
HIGHEST = Update("adam.highest", lambda highest, v: maximum(highest, v))
# bias corrections: of the learning rate (rate), and of the root of the squares (root); the power of
# a beta by its logarithm, as -expm1(step * log(beta)): exact to the last bits even in float32
RATE = Update("adam.rate", lambda lr, step, *, log: lr / -call("expm1", step * log))
ROOT = Update("adam.root", lambda step, *, log: call("sqrt", -call("expm1", step * log)))
MOVE = Update(
    "adam.move",
    lambda p, m, v, lr, rate, root, *, eps, decay: (
        (p - p * (lr * decay) if decay else p) - rate * m / (call("sqrt", v) / root + eps)
    ),
)


class Adam(Optimizer):
    """Steps scaled by moving averages of the gradient and its square.

    `weight_decay` adds to the gradient (L2). `amsgrad` never lets the squares' average fall.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.Adam([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x
    tensor([0.5], requires_grad=True)
    """

    decoupled = False  # whether weight decay shrinks the parameter itself

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        master_weights: bool = True,
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "eps")
        betas = group["betas"]
        if len(betas) != 2 or not all(0 <= b < 1 for b in betas):
            raise ArgumentError(
                f"{type(self).__name__}: betas must be two numbers from 0 to below 1, got {betas}"
            )

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        if "step" in state:
            return
        names = ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))
        with untraced():  # not part of a compiled step, which would make it again and again
            zero = shared.once(("zero", p.device), lambda: zeros((), "float32", p.device))
            state["step"] = zero.detach()
            state.update({name: zeros_like(p) for name in names})

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        beta1, beta2 = group["betas"]
        step, lr = shared.next_step(state), shared.lr(p)
        key = ("scales", id(step), p.dtype, p.device)
        rate, root = shared.once(key, lambda: _corrections(p, step, lr, beta1, beta2))
        tensors = [p, g, state["exp_avg"], state["exp_avg_sq"], lr, rate, root]
        if group["amsgrad"]:
            tensors.append(state["max_exp_avg_sq"])
        shared.change(shared.once("rule", lambda: self._rule(group)), *tensors)

    def _rule(self, group: Group) -> Rule:
        p, g, m, v, lr, rate, root, highest = range(8)  # places among an update's tensors
        (beta1, beta2), decay = group["betas"], group["weight_decay"]
        l2 = {"weight_decay": 0.0 if self.decoupled else decay, "maximize": group["maximize"]}
        settings = {"eps": group["eps"], "decay": decay if self.decoupled else 0.0}
        averages = (
            Change(AVERAGE, (m, p, g), {"share": 1 - beta1, **l2}),
            Change(SQUARE, (v, p, g), {"beta": beta2, "share": 1 - beta2, **l2}),
        )
        if not group["amsgrad"]:
            return Rule(*averages, Change(MOVE, (p, m, v, lr, rate, root), settings))
        return Rule(
            *averages,
            Change(HIGHEST, (highest, v), {}),
            Change(MOVE, (p, m, highest, lr, rate, root), settings),
        )


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves and leaves the averages alone."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        master_weights: bool = True,
    ) -> None:
        super().__init__(
            *(params, lr, betas, eps, weight_decay, amsgrad),
            maximize=maximize,
            master_weights=master_weights,
        )


def _corrections(
    p: Tensor, step: Tensor, lr: Tensor, beta1: float, beta2: float
) -> tuple[Tensor, Tensor]:
    """lr / (1 - beta1 ** step), and sqrt(1 - beta2 ** step)."""
    count = beside(p, step)
    return apply(RATE, lr, count, log=_log(beta1)), apply(ROOT, count, log=_log(beta2))


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf
