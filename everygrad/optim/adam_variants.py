"""NAdam, RAdam and Adamax: what was made of Adam's two averages since."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Unpack

from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.ops.elementwise.basic import abs, maximum, sqrt, where
from everygrad.ops.elementwise.math import exp, expm1, tanh
from everygrad.ops.python.creation import ones
from everygrad.optim.adamw import (
    AVERAGE,
    LR,
    SHARE,
    G,
    M,
    P,
    V,
    corrected_rate,
    corrected_root,
    first_share,
    log_of,
    moments,
)
from everygrad.optim.group import Group, State, precise
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import Change, Rule, Shared, Update, descent


class _AdamLike(Optimizer):
    """The checks of everything that has betas and eps."""

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "eps")
        self.check_betas(group)


# --- NAdam ---------------------------------------------------------------------------------------


def _mu(count: Any, beta1: Any, log: float) -> Any:
    """The momentum at a step, which grows to beta1: beta1 * (1 - 0.96 ** (count * decay) / 2)."""
    return beta1 * (1.0 - 0.5 * exp(count * log))


NADAM_PRODUCT = Update(
    "nadam.product", lambda product, count, beta1, *, log: product * _mu(count, beta1, log)
)
NADAM_GRADIENT = Update(
    "nadam.gradient",
    lambda lr, product, count, beta1, *, log: lr * (1.0 - _mu(count, beta1, log)) / (1.0 - product),
)
NADAM_AVERAGE = Update(
    "nadam.average",
    lambda lr, product, count, beta1, *, log: (
        lr * _mu(count + 1.0, beta1, log) / (1.0 - product * _mu(count + 1.0, beta1, log))
    ),
)
NADAM_MOVE = Update(
    "nadam.move",
    lambda p, g, m, v, lr, of_g, of_m, root, *, eps, decay, weight_decay, maximize: (
        (p - p * (lr * decay) if decay else p)
        - (of_g * descent(g, p, weight_decay, maximize) + of_m * m) / (sqrt(v) / root + eps)
    ),
)


class NAdam(_AdamLike):
    """Adam with Nesterov's momentum.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.NAdam([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x.item() < 1.0
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
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
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "momentum_decay")

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        if self.begin(p, state, shared, "exp_avg", "exp_avg_sq"):
            with shared.outside():
                key = ("one", precise(p), p.device)
                one = shared.once(key, lambda: ones((), precise(p), p.device))
                state["mu_product"] = one.detach()

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        step, lr = shared.next_step(state), shared.lr(p)
        log = {"log": math.log(0.96) * group["momentum_decay"]}
        count = shared.count(p, step)
        beta1 = shared.number(p, "beta1", lambda group: group["betas"][0])
        product = shared.advance(
            state, "mu_product", lambda t: apply(NADAM_PRODUCT, t, count, beta1, **log), count
        )
        key = ("nadam", id(product), id(step), p.dtype, p.device)
        given = (lr, product, count, beta1)
        of_g, of_m = shared.once(
            key, lambda: (apply(NADAM_GRADIENT, *given, **log), apply(NADAM_AVERAGE, *given, **log))
        )
        rule = shared.once("rule", lambda: self._rule(group))
        tensors = [p, g, state["exp_avg"], state["exp_avg_sq"], first_share(p, shared), lr]
        root = corrected_root(p, step, group, shared)
        shared.change(rule, *tensors, of_g, of_m, root)

    def _rule(self, group: Group) -> Rule:
        of_g, of_m, root = range(6, 9)
        decoupled, decay = group["decoupled_weight_decay"], group["weight_decay"]
        l2 = 0.0 if decoupled else decay
        settings = {
            "eps": group["eps"],
            "decay": decay if decoupled else 0.0,
            "weight_decay": l2,
            "maximize": group["maximize"],
        }
        move = Change(NADAM_MOVE, (P, G, M, V, LR, of_g, of_m, root), settings)
        return Rule(*moments(group, l2), move)


# --- RAdam ---------------------------------------------------------------------------------------

# (x/2) coth(x/2) - 1 as a series in x^2, for x below 0.5: Bernoulli numbers over factorials
_COTH = (
    1 / 12,
    -1 / 720,
    1 / 30240,
    -1 / 1209600,
    1 / 47900160,
    -691 / 1307674368000,
    1 / 74724249600,
)


def _coth_less_one(x: Any) -> Any:
    """(x/2) coth(x/2) - 1, to the last bits for small x too."""
    y = x * x
    series: Any = 0.0
    for factor in reversed(_COTH):
        series = y * (series + factor)
    return where(x < 0.5, series, 0.5 * x / tanh(0.5 * x) - 1.0)


def _rectified(count: Any, log: float) -> Any:
    """The factor of the adaptive step: r * sqrt(1 - beta2 ** count), or 0 where the variance of the
    average of squares is not known yet.

    The length of the average, 2 / (1 - beta2) - 1 - 2 * count * beta2 ** count / (1 - beta2 **
    count), is a small difference of large numbers. With x = -log(beta2) it is
    coth(x/2) - 2/x + count - (2/x) * ((count*x/2) * coth(count*x/2) - 1), without any.
    """
    if log == -math.inf:  # beta2 is 0: the average is the last gradient's square, its length 1
        return count * 0.0
    x = -log
    longest = 1 / math.tanh(x / 2)
    begin = longest - 2 / x if x > 1e-2 else x / 6 - x**3 / 360
    length = begin + count - (2 / x) * _coth_less_one(count * x)
    r = (length - 4.0) * (length - 2.0) * longest / ((longest - 4) * (longest - 2) * length)
    known = length > 5.0
    root = sqrt(where(known, r, 0.0)) * sqrt(-expm1(count * log))
    return where(known, root, 0.0)


RADAM_FACTOR = Update("radam.factor", lambda count, *, log: _rectified(count, log))
RADAM_MOVE = Update(
    "radam.move",
    lambda p, m, v, lr, rate, factor, *, eps, decay: (
        (p - p * (lr * decay) if decay else p)
        - rate * m * where(factor > 0.0, factor / (sqrt(v) + eps), 1.0)
    ),
)


class RAdam(_AdamLike):
    """Adam that is plain momentum until the average of squares is worth dividing by.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.RAdam([x], lr=0.25)
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
        decoupled_weight_decay: bool = False,
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
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        self.begin(p, state, shared, "exp_avg", "exp_avg_sq")

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        step, lr = shared.next_step(state), shared.lr(p)
        log = log_of(group["betas"][1])
        key = ("radam", id(step), p.dtype, p.device)
        factor = shared.once(key, lambda: apply(RADAM_FACTOR, shared.count(p, step), log=log))
        tensors = [p, g, state["exp_avg"], state["exp_avg_sq"], first_share(p, shared), lr]
        rate = corrected_rate(p, step, shared)
        shared.change(shared.once("rule", lambda: self._rule(group)), *tensors, rate, factor)

    def _rule(self, group: Group) -> Rule:
        decoupled, decay = group["decoupled_weight_decay"], group["weight_decay"]
        settings = {"eps": group["eps"], "decay": decay if decoupled else 0.0}
        move = Change(RADAM_MOVE, (P, M, V, LR, 6, 7), settings)
        return Rule(*moments(group, 0.0 if decoupled else decay), move)


# --- Adamax --------------------------------------------------------------------------------------

ADAMAX_NORM = Update(
    "adamax.norm",
    lambda u, p, g, *, beta, eps, weight_decay, maximize: maximum(
        u * beta, abs(descent(g, p, weight_decay, maximize)) + eps
    ),
)
ADAMAX_MOVE = Update("adamax.move", lambda p, m, u, rate: p - rate * m / u)


class Adamax(_AdamLike):
    """Adam by the largest gradient, slowly forgotten, in place of the average square.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> opt = eg.optim.Adamax([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> opt.step()
    >>> x
    tensor([0.5], requires_grad=True)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
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
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        self.begin(p, state, shared, "exp_avg", "exp_inf")

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        rate = corrected_rate(p, shared.next_step(state), shared)
        tensors = [p, g, state["exp_avg"], state["exp_inf"], first_share(p, shared), rate]
        shared.change(shared.once("rule", lambda: self._rule(group)), *tensors)

    def _rule(self, group: Group) -> Rule:
        l2 = {"weight_decay": group["weight_decay"], "maximize": group["maximize"]}
        norm = {"beta": group["betas"][1], "eps": group["eps"], **l2}
        return Rule(
            Change(AVERAGE, (M, P, G, SHARE), l2),
            Change(ADAMAX_NORM, (V, P, G), norm),
            Change(ADAMAX_MOVE, (P, M, V, 5), {}),
        )
