"""Adam, and AdamW: the same rule but for what weight decay means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from everygrad.backends.base import untraced
from everygrad.compile.expr import call
from everygrad.dispatch import update
from everygrad.errors import ArgumentError
from everygrad.ops.creation import zeros, zeros_like
from everygrad.ops.elementwise import maximum, sqrt
from everygrad.ops.functions import expm1
from everygrad.optim.optimizer import (
    Group,
    Optimizer,
    Shared,
    State,
    Update,
    beside,
    descent,
    put,
)
from everygrad.tensor import Tensor


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
# bias corrections: of the learning rate (rate), and of the root of the squares (root)
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
        (beta1, beta2), decay = group["betas"], group["weight_decay"]
        l2 = 0.0 if self.decoupled else decay
        m, v = state["exp_avg"], state["exp_avg_sq"]
        rule = {"weight_decay": l2, "maximize": group["maximize"]}
        update(AVERAGE, m, p, g, share=1 - beta1, **rule)
        update(SQUARE, v, p, g, beta=beta2, share=1 - beta2, **rule)
        if group["amsgrad"]:
            highest = state["max_exp_avg_sq"]
            put(highest, maximum(highest, v))
            v = highest
        step = shared.next_step(state)
        key = ("scales", id(step), p.dtype, p.device)
        rate, root = shared.once(key, lambda: _corrections(p, step, shared.lr(p), beta1, beta2))
        decoupled = decay if self.decoupled else 0.0
        lr = shared.lr(p)
        update(MOVE, p, m, v, lr, rate, root, eps=group["eps"], decay=decoupled)


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
    first, second = (-expm1(count * _log(beta)) for beta in (beta1, beta2))
    return lr / first, sqrt(second)


def _log(beta: float) -> float:
    # 1 - beta ** step as -expm1(step * log(beta)): exact to the last bits even in float32
    return math.log(beta) if beta else -math.inf
