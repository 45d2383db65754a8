"""Schedules that rise and fall: warm restarts, cycles, one cycle; the latter two move momentum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from everygrad.errors import ArgumentError
from everygrad.optim.lr_scheduler.base import (
    LRScheduler,
    check_between,
    check_positive,
    checked_optimizer,
    for_each_group,
    set_rate,
)
from everygrad.optim.optimizer import Optimizer


class CosineAnnealingWarmRestarts(LRScheduler):
    """The rate falls to `eta_min` along half a cosine in `T_0` epochs, then from the top again, in
    `T_mult` times as many.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=2)
    >>> rates = []
    >>> for _ in range(2):
    ...     schedule.step()
    ...     rates += schedule.get_last_lr()
    >>> rates
    [0.5, 1.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,  # noqa: N803  # PyTorch's names
        T_mult: int = 1,  # noqa: N803
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        check_positive(self, T_0=T_0, T_mult=T_mult)
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[float]:
        share = (1.0 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (lr - self.eta_min) * share for lr in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go on to the next epoch, or to this one, which may be 2.5: half through the third."""
        if not self._left_for_later(lambda: self.step(epoch)):
            self._advance(epoch)  # type: ignore[arg-type]  # the same

    def _go_to(self, epoch: float | None) -> None:
        if epoch is None and self.last_epoch >= 0:
            self.last_epoch += 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        else:
            self._find(epoch or 0)
        self._set_rates(self.get_lr())

    def _find(self, epoch: float) -> None:
        """Which cycle an epoch belongs to, and where it lies in it."""
        if epoch < 0:
            raise ArgumentError(f"{self._name}: epoch must be at least 0, got {epoch!r}")
        begin, length = 0, self.T_0
        if self.T_mult == 1:
            begin = int(epoch // length) * length
        else:
            while epoch >= begin + length:
                begin, length = begin + length, length * self.T_mult
        self.T_cur, self.T_i, self.last_epoch = epoch - begin, length, math.floor(epoch)


class _Momentum(LRScheduler):
    """Schedules that also move the momentum, or the first beta."""

    cycle_momentum: bool
    use_beta1: bool

    def _begin_momentum(self, low: Any, high: Any, last_epoch: int) -> tuple[list[Any], list[Any]]:
        """The least and the largest momentum of each group; at first it is the largest."""
        defaults = self.optimizer.defaults
        self.use_beta1 = "betas" in defaults
        if not self.use_beta1 and "momentum" not in defaults:
            raise ArgumentError(
                f"{self._name}: {type(self.optimizer).__name__} has no momentum and no betas; "
                f"give cycle_momentum=False"
            )
        lows = for_each_group(self, "base_momentum", low)
        highs = for_each_group(self, "max_momentum", high)
        for group, least, largest in zip(self.optimizer.param_groups, lows, highs, strict=True):
            check_between(self, 0, 1, base_momentum=least, max_momentum=largest)
            if last_epoch == -1:
                self._set_momentum(group, largest)
                group["max_momentum"], group["base_momentum"] = largest, least
        return lows, highs

    def _set_momentum(self, group: Any, momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


_SCALES: dict[str, tuple[str, Callable[[float, float], float]]] = {
    "triangular": ("cycle", lambda x, gamma: 1.0),
    "triangular2": ("cycle", lambda x, gamma: 0.5 ** (x - 1)),
    "exp_range": ("iterations", lambda x, gamma: gamma**x),
}


class CyclicLR(_Momentum):
    """The rate goes up and down between two bounds, and momentum the other way.

    mode        "triangular"; "triangular2", half as high each time; "exp_range", by gamma ** step
    scale_fn    a function in place of the mode's, of the cycle or of the step (`scale_mode`)

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0, momentum=0.9)
    >>> schedule = eg.optim.lr_scheduler.CyclicLR(opt, base_lr=0.0, max_lr=1.0, step_size_up=2)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    _apart = ("optimizer", "_scale_fn_custom")

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = checked_optimizer(self, optimizer)
        down = step_size_up if step_size_down is None else step_size_down
        check_positive(self, step_size_up=step_size_up, step_size_down=down)
        if scale_fn is None and mode not in _SCALES:
            raise ArgumentError(f"CyclicLR: mode must be one of {', '.join(_SCALES)}, got {mode!r}")
        if scale_mode not in ("cycle", "iterations"):
            raise ArgumentError(
                f'CyclicLR: scale_mode must be "cycle" or "iterations", got {scale_mode!r}'
            )
        lows = for_each_group(self, "base_lr", base_lr)
        self.max_lrs = for_each_group(self, "max_lr", max_lr)
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma = mode, gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else _SCALES[mode][0]
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            found = self._begin_momentum(base_momentum, max_momentum, last_epoch)
            self.base_momentums, self.max_momentums = found
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, lows, strict=True):
                set_rate(group, lr)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lows

    def scale_fn(self, x: float) -> float:
        """The height of a cycle."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        return _SCALES[self.mode][1](x, self.gamma)

    def get_lr(self) -> Sequence[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        up = self.step_ratio
        height = x / up if x <= up else (x - 1.0) / (up - 1.0)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            bounds = zip(self.base_momentums, self.max_momentums, strict=True)
            for group, (low, high) in zip(self.optimizer.param_groups, bounds, strict=True):
                self._set_momentum(group, high - (high - low) * height)
        pairs = zip(self.base_lrs, self.max_lrs, strict=True)
        return [low + (high - low) * height for low, high in pairs]

    def state_dict(self) -> dict[str, Any]:
        """Numbers; and the attributes of a `scale_fn` that is an object."""
        fn = self._scale_fn_custom
        held = None if fn is None or isinstance(fn, FunctionType) else dict(vars(fn))
        return {**super().state_dict(), "_scale_fn_custom": held}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state_dict)
        attributes = state_dict.get("_scale_fn_custom")
        if attributes is not None and self._scale_fn_custom is not None:
            vars(self._scale_fn_custom).update(attributes)


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1.0)


def _linear(start: float, end: float, done: float) -> float:
    return (end - start) * done + start


_ANNEALINGS = {"cos": _cosine, "linear": _linear}


class OneCycleLR(_Momentum):
    """One rise to `max_lr` and one long fall, momentum the other way.

    total_steps       or `epochs` times `steps_per_epoch`
    pct_start         the share of the steps in which the rate rises
    div_factor        max_lr over the first rate
    final_div_factor  the first rate over the last
    three_phase       fall to the first rate as fast as it rose, then to the last

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0, momentum=0.9)
    >>> schedule = eg.optim.lr_scheduler.OneCycleLR(opt, max_lr=1.0, total_steps=10, div_factor=4)
    >>> schedule.get_last_lr()
    [0.25]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = checked_optimizer(self, optimizer)
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ArgumentError("OneCycleLR: needs total_steps, or epochs and steps_per_epoch")
            check_positive(self, epochs=epochs, steps_per_epoch=steps_per_epoch)
            total_steps = epochs * steps_per_epoch
        check_positive(self, total_steps=total_steps)
        check_between(self, 0, 1, pct_start=pct_start)
        if anneal_strategy not in _ANNEALINGS:
            raise ArgumentError(
                f'OneCycleLR: anneal_strategy must be "cos" or "linear", got {anneal_strategy!r}'
            )
        for name, factor in (("div_factor", div_factor), ("final_div_factor", final_div_factor)):
            if not factor > 0:
                raise ArgumentError(f"OneCycleLR: {name} must be above 0, got {factor!r}")
        self.total_steps, self.cycle_momentum = total_steps, cycle_momentum
        self._anneal_func_type = anneal_strategy
        self._schedule_phases = _phases(total_steps, pct_start, three_phase)
        highest = for_each_group(self, "max_lr", max_lr)
        if not min(highest) >= 0:
            raise ArgumentError(f"OneCycleLR: max_lr must not be negative, got {max_lr!r}")
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, highest, strict=True):
                first = lr / div_factor
                group["initial_lr"], group["max_lr"] = first, lr
                group["min_lr"] = first / final_div_factor
        if cycle_momentum:
            self._begin_momentum(base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[float]:
        if self.last_epoch > self.total_steps:
            raise ArgumentError(
                f"OneCycleLR: step {self.last_epoch} is past the {self.total_steps} that the cycle "
                f"has; give it more total_steps"
            )
        begin, phase = 0.0, self._schedule_phases[-1]
        for one in self._schedule_phases[:-1]:
            if self.last_epoch <= one["end_step"]:
                phase = one
                break
            begin = one["end_step"]
        done = (self.last_epoch - begin) / (phase["end_step"] - begin)
        anneal = _ANNEALINGS[self._anneal_func_type]
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(anneal(group[phase["start_lr"]], group[phase["end_lr"]], done))
            if self.cycle_momentum:
                ends = group[phase["start_momentum"]], group[phase["end_momentum"]]
                self._set_momentum(group, anneal(*ends, done))
        return rates


def _phases(total: int, share: float, three: bool) -> list[dict[str, Any]]:
    """Where each phase ends, and between which of a group's entries it goes."""

    def phase(end: float, lrs: tuple[str, str], momentums: tuple[str, str]) -> dict[str, Any]:
        names = ("end_step", "start_lr", "end_lr", "start_momentum", "end_momentum")
        return dict(zip(names, (end, *lrs, *momentums), strict=True))

    low, high = "base_momentum", "max_momentum"
    rise = phase(share * total - 1.0, ("initial_lr", "max_lr"), (high, low))
    if not three:
        return [rise, phase(total - 1, ("max_lr", "min_lr"), (low, high))]
    return [
        rise,
        phase(2.0 * share * total - 2.0, ("max_lr", "initial_lr"), (low, high)),
        phase(total - 1, ("initial_lr", "min_lr"), (high, high)),
    ]
