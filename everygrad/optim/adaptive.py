"""Adagrad, Adadelta and RMSprop: steps divided by the root of squares seen so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import sqrt
from everygrad.ops.python.creation import full_like
from everygrad.optim.group import Group, State
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import DIRECTION, Change, Rule, Shared, Update, descent, squared


def _l2(group: Group) -> dict[str, Any]:
    return {"weight_decay": group["weight_decay"], "maximize": group["maximize"]}


# --- Adagrad -------------------------------------------------------------------------------------

ADAGRAD_SUM = Update(
    "adagrad.sum",
    lambda total, p, g, *, weight_decay, maximize: (
        total + squared(descent(g, p, weight_decay, maximize))
    ),
)
ADAGRAD_RATE = Update(
    "adagrad.rate", lambda lr, count, *, lr_decay: lr / (1.0 + (count - 1.0) * lr_decay)
)
ADAGRAD_MOVE = Update(
    "adagrad.move",
    lambda p, g, total, rate, *, eps, weight_decay, maximize: (
        p - rate * descent(g, p, weight_decay, maximize) / (sqrt(total) + eps)
    ),
)


class Adagrad(Optimizer):
    """Steps divided by the root of the sum of all squared gradients.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.Adagrad([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x
    tensor([0.5], requires_grad=True)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "lr_decay", "initial_accumulator_value", "eps")

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        if self.begin(p, state, shared):
            with shared.outside():
                state["sum"] = full_like(p, group["initial_accumulator_value"])

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        step = shared.next_step(state)
        rate = shared.lr(p)
        if group["lr_decay"]:
            settings = {"lr_decay": group["lr_decay"]}
            key = ("rate", id(step), p.dtype, p.device)
            rate = shared.once(
                key,
                lambda: apply(ADAGRAD_RATE, shared.lr(p), shared.count(p, step), **settings),
            )
        shared.change(shared.once("rule", lambda: self._rule(group)), p, g, state["sum"], rate)

    def _rule(self, group: Group) -> Rule:
        p, g, total, rate = range(4)
        move = {"eps": group["eps"], **_l2(group)}
        return Rule(
            Change(ADAGRAD_SUM, (total, p, g), _l2(group)),
            Change(ADAGRAD_MOVE, (p, g, total, rate), move),
        )


# --- Adadelta ------------------------------------------------------------------------------------


def _delta(d: Any, v: Any, moved: Any, eps: float) -> Any:
    return sqrt(moved + eps) / sqrt(v + eps) * d


ADADELTA_SQUARE = Update("adadelta.square", lambda v, d, *, rho: v * rho + squared(d) * (1 - rho))
ADADELTA_MOVE = Update(
    "adadelta.move", lambda p, d, v, moved, lr, *, eps: p - _delta(d, v, moved, eps) * lr
)
ADADELTA_MOVED = Update(
    "adadelta.moved",
    lambda moved, d, v, *, rho, eps: moved * rho + squared(_delta(d, v, moved, eps)) * (1 - rho),
)


class Adadelta(Optimizer):
    """Steps in proportion to earlier steps, over the root of the average squared gradient.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.Adadelta([x])
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x.item() < 1.0
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "eps")
        if not 0 <= group["rho"] <= 1:
            raise ArgumentError(f"Adadelta: rho must lie between 0 and 1, got {group['rho']!r}")

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        self.begin(p, state, shared, "square_avg", "acc_delta")

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        shared.next_step(state)
        # the gradient, or a copy of it that becomes the direction: it is needed after p has moved
        changes = bool(group["weight_decay"]) or group["maximize"]
        d = g if not changes else shared.alias(g) if g.dtype is p.dtype else g.astype(p.dtype)
        tensors = [p, d, state["square_avg"], state["acc_delta"], shared.lr(p)]
        shared.change(shared.once("rule", lambda: self._rule(group, changes)), *tensors)

    def _rule(self, group: Group, changes: bool) -> Rule:
        p, d, v, moved, lr = range(5)
        rho, eps = {"rho": group["rho"]}, {"eps": group["eps"]}
        return Rule(
            *([Change(DIRECTION, (d, p), _l2(group))] if changes else []),
            Change(ADADELTA_SQUARE, (v, d), rho),
            Change(ADADELTA_MOVE, (p, d, v, moved, lr), eps),
            Change(ADADELTA_MOVED, (moved, d, v), {**rho, **eps}),
        )


# --- RMSprop -------------------------------------------------------------------------------------

RMSPROP_SQUARE = Update(
    "rmsprop.square",
    lambda v, p, g, *, alpha, weight_decay, maximize: (
        v * alpha + squared(descent(g, p, weight_decay, maximize)) * (1 - alpha)
    ),
)
RMSPROP_MEAN = Update(
    "rmsprop.mean",
    lambda m, p, g, *, alpha, weight_decay, maximize: (
        m + (descent(g, p, weight_decay, maximize) - m) * (1 - alpha)
    ),
)


def _scaled(g: Any, p: Any, v: Any, m: Any, settings: dict[str, Any]) -> Any:
    """The gradient over its standard deviation, or over its root mean square without `m`."""
    variance = v if m is None else v - m * m
    eps = settings.pop("eps")
    return descent(g, p, **settings) / (sqrt(variance) + eps)


RMSPROP_BUFFER = Update(
    "rmsprop.buffer",
    lambda buf, p, g, v, momentum, **s: buf * momentum + _scaled(g, p, v, None, s),
)
RMSPROP_CENTRED_BUFFER = Update(
    "rmsprop.centred_buffer",
    lambda buf, p, g, v, momentum, m, **s: buf * momentum + _scaled(g, p, v, m, s),
)
RMSPROP_ALONG = Update("rmsprop.along", lambda p, buf, lr: p - buf * lr)
RMSPROP_MOVE = Update("rmsprop.move", lambda p, g, v, lr, **s: p - _scaled(g, p, v, None, s) * lr)
RMSPROP_CENTRED = Update(
    "rmsprop.centred", lambda p, g, v, lr, m, **s: p - _scaled(g, p, v, m, s) * lr
)


class RMSprop(Optimizer):
    """Steps divided by the root of the average squared gradient; `centered` by the standard
    deviation.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.RMSprop([x], lr=0.05)
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x
    tensor([0.5], requires_grad=True)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "eps", "momentum", "alpha")

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        names = ["square_avg"]
        names += ["momentum_buffer"] if group["momentum"] else []
        names += ["grad_avg"] if group["centered"] else []
        self.begin(p, state, shared, *names)

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        shared.next_step(state)
        tensors = [p, g, state["square_avg"], shared.lr(p)]
        if group["momentum"]:
            momentum = shared.number(p, "momentum", lambda group: group["momentum"])
            tensors += [state["momentum_buffer"], momentum]
        if group["centered"]:
            tensors.append(state["grad_avg"])
        shared.change(shared.once("rule", lambda: self._rule(group)), *tensors)

    def _rule(self, group: Group) -> Rule:
        p, g, v, lr, buf, momentum = range(6)
        mean = 6 if group["momentum"] else 4
        share = {"alpha": group["alpha"], **_l2(group)}
        scaled = {"eps": group["eps"], **_l2(group)}
        changes = [Change(RMSPROP_SQUARE, (v, p, g), share)]
        centred: tuple[int, ...] = ()
        if group["centered"]:
            changes.append(Change(RMSPROP_MEAN, (mean, p, g), share))
            centred = (mean,)
        if group["momentum"]:
            op = RMSPROP_CENTRED_BUFFER if centred else RMSPROP_BUFFER
            changes.append(Change(op, (buf, p, g, v, momentum, *centred), scaled))
            changes.append(Change(RMSPROP_ALONG, (p, buf, lr), {}))
        else:
            op = RMSPROP_CENTRED if centred else RMSPROP_MOVE
            changes.append(Change(op, (p, g, v, lr, *centred), scaled))
        return Rule(*changes)
