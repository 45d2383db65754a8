"""AdamW without a schedule: the average of all points takes the place of a falling rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import maximum, minimum, sqrt, where
from everygrad.ops.elementwise.math import pow
from everygrad.ops.python.creation import zeros
from everygrad.optim.adamw import SQUARE, corrected_root
from everygrad.optim.group import Group, State, precise
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import Change, Rule, Shared, Update, copied, descent, put

RATE = Update("schedule_free.rate", lambda lr, count, *, warmup: lr * minimum(count / warmup, 1.0))
HIGHEST = Update("schedule_free.highest", lambda highest, rate: maximum(highest, rate))
WEIGHT = Update(
    "schedule_free.weight",
    lambda highest, count, *, r, power: pow(count, r) * pow(highest, power),
)
SUM = Update("schedule_free.sum", lambda total, weight: total + weight)
SHARE = Update("schedule_free.share", lambda weight, total: where(total > 0.0, weight / total, 0.0))


def _step(y: Any, g: Any, v: Any, root: Any, settings: dict[str, Any]) -> Any:
    """Adam's step at y, with its decay."""
    decay, eps = settings["decay"], settings["eps"]
    step = descent(g, y, 0.0, settings["maximize"]) / (sqrt(v) / root + eps)
    return step + y * decay if decay else step


# y moves towards z by its share in the average, and against the gradient; z then by the whole step
MOVE = Update(
    "schedule_free.move",
    lambda y, g, v, z, rate, root, share, beta1, **s: (
        y + (z - y) * share + _step(y, g, v, root, s) * (rate * (beta1 * (1.0 - share) - 1.0))
    ),
)
PLAIN = Update(
    "schedule_free.plain", lambda z, d, g, v, rate, root, **s: z - _step(d, g, v, root, s) * rate
)


class ScheduleFreeAdamW(Optimizer):
    """AdamW whose average of all points is what to evaluate (Defazio et al., 2024).

    Gradients are taken between the average and the last point: call `train()` before training, and
    `eval()` before a validation or a save; they give the parameters the values for each.

    warmup_steps     steps in which the rate rises to `lr`
    r                the power of the step by which later points weigh more
    weight_lr_power  the power of the largest rate so far by which points weigh

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.ScheduleFreeAdamW([x], lr=0.1)
    >>> for _ in range(50):
    ...     opt.zero_grad()
    ...     (x * x).sum().backward()
    ...     opt.step()
    >>> opt.eval()
    >>> abs(x.item()) < 0.5
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        *,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "warmup_steps": warmup_steps,
            "r": r,
            "weight_lr_power": weight_lr_power,
            "train_mode": True,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "eps", "warmup_steps", "r", "weight_lr_power")
        self.check_betas(group)
        if not group["betas"][0] > 0:
            raise ArgumentError(
                "ScheduleFreeAdamW: the first of betas must be above 0: between the average and "
                "the last point is where gradients are taken"
            )

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        if not self.begin(p, state, shared, "exp_avg_sq"):
            return
        kind = (precise(p), p.device)
        with shared.outside():
            for name in ("weight_sum", "lr_max"):
                zero = shared.once((name, *kind), lambda: zeros((), *kind))
                state[name] = zero.detach()
        state["z"] = shared.alias(p) if shared.differentiable else copied(p)

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        if not group["train_mode"]:
            raise ArgumentError(
                "ScheduleFreeAdamW.step: the parameters have their values for evaluation; call "
                "train() first"
            )
        step = shared.next_step(state)
        count, rate = shared.count(p, step), shared.lr(p)
        if warmup := group["warmup_steps"]:
            key = ("warm", id(step), p.dtype, p.device)
            rate = shared.once(key, lambda: apply(RATE, shared.lr(p), count, warmup=warmup))
        highest = shared.advance(state, "lr_max", lambda t: apply(HIGHEST, t, rate), rate)
        settings = {"r": float(group["r"]), "power": float(group["weight_lr_power"])}
        weight = shared.once(
            ("weight", id(highest), id(count)), lambda: apply(WEIGHT, highest, count, **settings)
        )
        total = shared.advance(state, "weight_sum", lambda t: apply(SUM, t, weight), weight)
        share = shared.once(("share", id(total)), lambda: apply(SHARE, weight, total))
        beta1 = shared.number(p, "beta1", lambda group: group["betas"][0])
        root = corrected_root(p, step, group, shared)
        tensors = [p, g, state["exp_avg_sq"], state["z"], rate, root, share, beta1, shared.alias(p)]
        shared.change(shared.once("rule", lambda: self._rule(group)), *tensors)

    def _rule(self, group: Group) -> Rule:
        p, g, v, z, rate, root, share, beta1, y = range(9)
        beta2, way = group["betas"][1], {"maximize": group["maximize"]}
        square = {"beta": beta2, "share": 1 - beta2, "weight_decay": 0.0, **way}
        step = {"eps": group["eps"], "decay": group["weight_decay"], **way}
        return Rule(
            Change(SQUARE, (v, p, g), square),
            Change(MOVE, (p, g, v, z, rate, root, share, beta1), step),
            Change(PLAIN, (z, y, g, v, rate, root), step),
        )

    def train(self) -> None:
        """Give the parameters the values to take gradients at."""
        self._switch(True)

    def eval(self) -> None:
        """Give the parameters the average of all points, to evaluate and to keep."""
        self._switch(False)

    @no_grad()
    def _switch(self, training: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] is training:
                continue
            beta1 = group["betas"][0]
            share = 1 - beta1 if training else 1 - 1 / beta1
            for p in group["params"]:
                held: dict[str, Any] = self.state.get(p) or {}
                if "z" in held:
                    weights = held.get("master", p)
                    new = weights + (held["z"] - weights) * share
                    put(weights, new)
                    if weights is not p:
                        put(p, new.astype(p.dtype))
            group["train_mode"] = training
