"""Averaged stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.ops.elementwise.basic import maximum
from everygrad.ops.elementwise.math import pow
from everygrad.ops.python.creation import full, ones
from everygrad.optim.group import Group, State, precise
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import Change, Rule, Shared, Update, descent

MOVE = Update(
    "asgd.move",
    lambda p, g, eta, *, lambd, weight_decay, maximize: (
        p * (1.0 - lambd * eta) - descent(g, p, weight_decay, maximize) * eta
    ),
)
AVERAGE = Update("asgd.average", lambda ax, p, mu: ax + (p - ax) * mu)
ETA = Update(
    "asgd.eta",
    lambda eta, lr, count, *, lambd, alpha: lr / pow(1.0 + lambd * lr * count, alpha),
)
MU = Update("asgd.mu", lambda mu, count, *, t0: 1.0 / maximum(count - t0, 1.0))


class ASGD(Optimizer):
    """Steps of a falling length; `state[p]["ax"]` is the average of the parameter from step `t0`.

    lambd  decay of the parameters
    alpha  the power by which the step length falls

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.ASGD([x], lr=0.25, lambd=0.0)
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x
    tensor([0.5], requires_grad=True)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        if not self.begin(p, state, shared, "ax"):
            return
        lr, kind = group["lr"], (precise(p), p.device)
        with shared.outside():
            if isinstance(lr, Tensor):
                eta = shared.once(("eta", *kind), lambda: shared.beside(p, lr))
            else:
                eta = shared.once(("eta", *kind), lambda: full((), lr, *kind))
            state["eta"] = shared.alias(eta)
            state["mu"] = shared.once(("one", *kind), lambda: ones((), *kind)).detach()

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        step = shared.next_step(state)
        eta, mu = shared.alias(state["eta"]), shared.alias(state["mu"])  # of this step
        rule = shared.once("rule", lambda: self._rule(group))
        shared.change(rule, p, g, state["ax"], eta, mu)
        count, lr = shared.count(p, step), shared.lr(p)
        fall = {"lambd": group["lambd"], "alpha": group["alpha"]}
        begin = {"t0": group["t0"]}
        shared.advance(state, "eta", lambda t: apply(ETA, t, lr, count, **fall), count)
        shared.advance(state, "mu", lambda t: apply(MU, t, count, **begin), count)

    def _rule(self, group: Group) -> Rule:
        p, g, ax, eta, mu = range(5)
        move = {"weight_decay": group["weight_decay"], "maximize": group["maximize"]}
        return Rule(
            Change(MOVE, (p, g, eta), {"lambd": group["lambd"], **move}),
            Change(AVERAGE, (ax, p, mu), {}),
        )
