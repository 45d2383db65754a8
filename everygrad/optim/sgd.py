"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError
from everygrad.optim.group import Group, State
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import Change, Rule, Shared, Update, descent

PLAIN = Update(
    "sgd",
    lambda p, g, lr, *, weight_decay, maximize: p - descent(g, p, weight_decay, maximize) * lr,
)
FIRST = Update(
    "sgd.first",
    lambda p, g, *, weight_decay, maximize: descent(g, p, weight_decay, maximize),
)
MOMENTUM = Update(
    "sgd.momentum",
    lambda buf, p, g, momentum, *, share, weight_decay, maximize: (
        buf * momentum + descent(g, p, weight_decay, maximize) * share
    ),
)
ALONG = Update("sgd.along", lambda p, buf, lr: p - buf * lr)
NESTEROV = Update(
    "sgd.nesterov",
    lambda p, g, buf, lr, momentum, *, weight_decay, maximize: (
        p - (descent(g, p, weight_decay, maximize) + buf * momentum) * lr
    ),
)
P, G, LR, BUF, MU = range(5)  # places among an update's tensors


class SGD(Optimizer):
    """Steps against the gradient, with momentum if given.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> eg.optim.SGD([x], lr=0.25).step()
    >>> x
    tensor([0.5], requires_grad=True)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "momentum")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ArgumentError(
                f"SGD: nesterov needs momentum above 0 and no dampening, got "
                f"momentum={group['momentum']} and dampening={group['dampening']}"
            )
        if group["dampening"] and not group["momentum"]:
            raise ArgumentError("SGD: dampening does nothing without momentum; give momentum too")

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        lr = shared.lr(p)
        buf = state.get("momentum_buffer")
        if not group["momentum"]:
            shared.change(shared.once("rule", lambda: self._rule(group)), p, g, lr)
            return
        momentum = shared.number(p, "momentum", lambda group: group["momentum"])
        if buf is not None:
            shared.change(shared.once("rule", lambda: self._rule(group)), p, g, lr, buf, momentum)
        else:  # PyTorch's first step is not dampened
            buf = state["momentum_buffer"] = apply(FIRST, p, g, **_direction(group))
            shared.change(Rule(_move(group)), p, g, lr, buf, momentum)

    def _rule(self, group: Group) -> Rule:
        direction = _direction(group)
        if not group["momentum"]:
            return Rule(Change(PLAIN, (P, G, LR), direction))
        settings = {"share": 1 - group["dampening"], **direction}
        return Rule(Change(MOMENTUM, (BUF, P, G, MU), settings), _move(group))


def _direction(group: Group) -> dict[str, Any]:
    return {"weight_decay": group["weight_decay"], "maximize": group["maximize"]}


def _move(group: Group) -> Change:
    """Of the parameter, by the momentum as it is now."""
    if not group["nesterov"]:
        return Change(ALONG, (P, BUF, LR), {})
    return Change(NESTEROV, (P, G, BUF, LR, MU), _direction(group))
