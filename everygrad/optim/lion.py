"""Lion: steps by the sign of a momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from everygrad.core.tensor import Tensor
from everygrad.ops.elementwise.basic import sign
from everygrad.optim.group import Group, State
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import Change, Rule, Shared, Update, descent

MOVE = Update(
    "lion.move",
    lambda p, g, m, lr, share, *, decay, maximize: (
        (p - p * (lr * decay) if decay else p)
        - lr * sign(m + (descent(g, p, 0.0, maximize) - m) * share)
    ),
)
MOMENTUM = Update(
    "lion.momentum",
    lambda m, g, *, share, maximize: m + (descent(g, None, 0.0, maximize) - m) * share,
)


class Lion(Optimizer):
    """Steps of one length, whose direction is the sign of a momentum (Chen et al., 2023).

    `betas`: how much of the momentum goes into the step, and how much is kept. Weight decay is
    decoupled. Rates are a third to a tenth of AdamW's, decays as much larger.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0, -3.0], requires_grad=True)
    >>> opt = eg.optim.Lion([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x
    tensor([ 0.5, -2.5], requires_grad=True)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_betas(group)

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        self.begin(p, state, shared, "exp_avg")

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        shared.next_step(state)
        share = shared.number(p, "1 - beta1", lambda group: 1 - group["betas"][0])
        rule = shared.once("rule", lambda: self._rule(group))
        shared.change(rule, p, g, state["exp_avg"], shared.lr(p), share)

    def _rule(self, group: Group) -> Rule:
        p, g, m, lr, share = range(5)
        way = {"maximize": group["maximize"]}
        return Rule(
            Change(MOVE, (p, g, m, lr, share), {"decay": group["weight_decay"], **way}),
            Change(MOMENTUM, (m, g), {"share": 1 - group["betas"][1], **way}),
        )
