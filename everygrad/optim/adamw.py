"""Adam, and AdamW: the same rule but for what weight decay means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Unpack

from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.ops.elementwise.basic import maximum, sqrt
from everygrad.ops.elementwise.math import expm1
from everygrad.optim.group import Group, State
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import Change, Rule, Shared, Update, descent, squared

# exp_avg and exp_avg_sq: moving averages of the gradient and of its square
AVERAGE = Update(
    "adam.average",
    lambda m, p, g, share, *, weight_decay, maximize: (
        m + (descent(g, p, weight_decay, maximize) - m) * share
    ),
)

SQUARE = Update(
    "adam.square",
    lambda v, p, g, *, beta, share, weight_decay, maximize: (
        v * beta + squared(descent(g, p, weight_decay, maximize)) * share
    ),
)
HIGHEST = Update("adam.highest", lambda highest, v: maximum(highest, v))
# bias corrections: of the learning rate (rate), and of the root of the squares (root); the power of
# a beta by its logarithm, as -expm1(step * log(beta)): exact to the last bits even in float32
RATE = Update("adam.rate", lambda lr, step, log: lr / -expm1(step * log))
ROOT = Update("adam.root", lambda step, *, log: sqrt(-expm1(step * log)))
MOVE = Update(
    "adam.move",
    lambda p, m, v, lr, rate, root, *, eps, decay: (
        (p - p * (lr * decay) if decay else p) - rate * m / (sqrt(v) / root + eps)
    ),
)
# places among an update's tensors
P, G, M, V, SHARE, LR, RATED, ROOTED, MOST = range(9)


class Adam(Optimizer):
    """Steps scaled by moving averages of the gradient and its square.

    `weight_decay` adds to the gradient (L2), or with `decoupled_weight_decay` shrinks the
    parameters themselves. `amsgrad` never lets the squares' average fall.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.Adam([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x
    tensor([0.5], requires_grad=True)
    """

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
        decoupled_weight_decay: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "decoupled_weight_decay": decoupled_weight_decay,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "eps")
        self.check_betas(group)

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        names = ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))
        self.begin(p, state, shared, *names)

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        step = shared.next_step(state)
        key = ("adam", id(step), p.dtype, p.device)
        scales = shared.once(key, lambda: _scales(p, step, group, shared))
        tensors = [p, g, state["exp_avg"], state["exp_avg_sq"], *scales]
        if group["amsgrad"]:
            tensors.append(state["max_exp_avg_sq"])
        shared.change(shared.once("rule", lambda: self._rule(group)), *tensors)

    def _rule(self, group: Group) -> Rule:
        decoupled, decay = group["decoupled_weight_decay"], group["weight_decay"]
        settings = {"eps": group["eps"], "decay": decay if decoupled else 0.0}
        averages = moments(group, 0.0 if decoupled else decay)
        if not group["amsgrad"]:
            return Rule(*averages, Change(MOVE, (P, M, V, LR, RATED, ROOTED), settings))
        return Rule(
            *averages,
            Change(HIGHEST, (MOST, V), {}),
            Change(MOVE, (P, M, MOST, LR, RATED, ROOTED), settings),
        )


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves and leaves the averages alone.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.AdamW([x], lr=0.5, weight_decay=0.5)
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x
    tensor([0.25], requires_grad=True)
    """

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
        **switches: Unpack[Switches],
    ) -> None:
        super().__init__(
            *(params, lr, betas, eps, weight_decay, amsgrad),
            maximize=maximize,
            decoupled_weight_decay=True,
            master_weights=master_weights,
            **switches,
        )


# --- what the relatives of Adam share ------------------------------------------------------------


def moments(group: Group, l2: float) -> tuple[Change, Change]:
    """Of the two averages, the tensors of a rule being p, g, exp_avg, exp_avg_sq and the share of
    the gradient in the first; `l2` is the weight decay that adds to the gradient."""
    beta2 = group["betas"][1]
    direction = {"weight_decay": l2, "maximize": group["maximize"]}
    return (
        Change(AVERAGE, (M, P, G, SHARE), direction),
        Change(SQUARE, (V, P, G), {"beta": beta2, "share": 1 - beta2, **direction}),
    )


def _scales(p: Tensor, step: Tensor, group: Group, shared: Shared) -> tuple[Tensor, ...]:
    """What stands behind the averages in Adam's rule."""
    rate, root = corrected_rate(p, step, shared), corrected_root(p, step, group, shared)
    return first_share(p, shared), shared.lr(p), rate, root


def first_share(p: Tensor, shared: Shared) -> Tensor:
    """1 - beta1."""
    return shared.number(p, "1 - beta1", lambda group: 1 - group["betas"][0])


def corrected_rate(p: Tensor, step: Tensor, shared: Shared) -> Tensor:
    """lr / (1 - beta1 ** step)."""
    log = shared.number(p, "log beta1", lambda group: log_of(group["betas"][0]))
    key = ("rate", id(step), p.dtype, p.device)
    return shared.once(key, lambda: apply(RATE, shared.lr(p), shared.count(p, step), log))


def corrected_root(p: Tensor, step: Tensor, group: Group, shared: Shared) -> Tensor:
    """sqrt(1 - beta2 ** step)."""
    log = log_of(group["betas"][1])
    key = ("root", id(step), p.dtype, p.device)
    return shared.once(key, lambda: apply(ROOT, shared.count(p, step), log=log))


def log_of(beta: float) -> float:
    return math.log(beta) if beta else -math.inf
