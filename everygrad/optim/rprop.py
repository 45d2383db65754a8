"""Rprop: steps by the sign of the gradient, longer where it stays and shorter where it turns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import maximum, minimum, sign, where
from everygrad.ops.python.creation import full_like
from everygrad.ops.shape.movement import broadcast_to
from everygrad.optim.group import Group, State
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import Change, Rule, Shared, Update, descent


def _agreement(g: Any, prev: Any, maximize: bool) -> Any:
    return descent(g, None, 0.0, maximize) * prev


def _resized(size: Any, agreement: Any, etas: tuple[float, float]) -> Any:
    """A step, longer where the gradient's sign stayed, shorter where it turned."""
    return where(agreement > 0.0, size * etas[1], where(agreement < 0.0, size * etas[0], size))


SIZE = Update(
    "rprop.size",
    lambda size, g, prev, *, etas, sizes, maximize: minimum(
        maximum(_resized(size, _agreement(g, prev, maximize), etas), sizes[0]),
        sizes[1],
    ),
)
MOVE = Update(
    "rprop.move",
    lambda p, g, prev, size, *, maximize: (
        p
        - size
        * where(
            _agreement(g, prev, maximize) < 0.0,
            0.0,
            sign(descent(g, None, 0.0, maximize)),
        )
    ),
)
PREVIOUS = Update(
    "rprop.previous",
    lambda prev, g, *, maximize: where(
        _agreement(g, prev, maximize) < 0.0, 0.0, descent(g, None, 0.0, maximize)
    ),
)


class Rprop(Optimizer):
    """Resilient propagation, for gradients of all the data.

    etas        factors of a step after a turn of the gradient's sign, and after none
    step_sizes  the smallest and the largest step

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.Rprop([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x
    tensor([0.5], requires_grad=True)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        etas, sizes = group["etas"], group["step_sizes"]
        if len(etas) != 2 or not 0 < etas[0] < 1 < etas[1]:
            raise ArgumentError(
                f"Rprop: etas must be one number between 0 and 1, and one above 1, got {etas}"
            )
        if len(sizes) != 2 or not 0 <= sizes[0] <= sizes[1]:
            raise ArgumentError(
                f"Rprop: step_sizes must be the smallest and the largest step, got {sizes}"
            )

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        if self.begin(p, state, shared, "prev"):
            lr = group["lr"]
            with shared.outside():
                if isinstance(lr, Tensor):
                    rate = shared.alias(lr).to(p.device).astype(p.dtype)
                    state["step_size"] = broadcast_to(rate, p.shape)
                else:
                    state["step_size"] = full_like(p, lr)

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        shared.next_step(state)
        rule = shared.once("rule", lambda: self._rule(group))
        shared.change(rule, p, g, state["prev"], state["step_size"])

    def _rule(self, group: Group) -> Rule:
        p, g, prev, size = range(4)
        way = {"maximize": group["maximize"]}
        sizes = {"etas": tuple(group["etas"]), "sizes": tuple(group["step_sizes"]), **way}
        return Rule(
            Change(SIZE, (size, g, prev), sizes),
            Change(MOVE, (p, g, prev, size), way),
            Change(PREVIOUS, (prev, g), way),
        )
