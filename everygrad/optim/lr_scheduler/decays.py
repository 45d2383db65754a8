"""Schedules that fall, or rise once: factors of the rate that is, so that they can be chained.

Each also knows its rates at once (`step(epoch)`), without having gone through the epochs before.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

from everygrad.errors import ArgumentError
from everygrad.optim.lr_scheduler.base import LRScheduler, check_between, check_positive
from everygrad.optim.optimizer import Optimizer


class _Functions(LRScheduler):
    """A function of the epoch for each group."""

    _apart = ("optimizer", "lr_lambdas")

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        groups = getattr(optimizer, "param_groups", [])
        given = (
            list(lr_lambda) if isinstance(lr_lambda, list | tuple) else [lr_lambda] * len(groups)
        )
        if groups and len(given) != len(groups):
            raise ArgumentError(
                f"{self._name}: got {len(given)} functions for {len(groups)} groups"
            )
        for fn in given:
            if not callable(fn):
                raise ArgumentError(f"{self._name}: takes functions, got {type(fn).__name__}")
        self.lr_lambdas = given
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Numbers; and the attributes of functions that are objects."""
        held = [None if isinstance(f, FunctionType) else dict(vars(f)) for f in self.lr_lambdas]
        return {**super().state_dict(), "lr_lambdas": held}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        held = state_dict.get("lr_lambdas") or []
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for fn, attributes in zip(self.lr_lambdas, held, strict=False):
            if attributes is not None:
                vars(fn).update(attributes)


class LambdaLR(_Functions):
    """The first rate times a function of the epoch.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 0.5**epoch)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    def get_lr(self) -> list[float]:
        pairs = zip(self.lr_lambdas, self.base_lrs, strict=True)
        return [lr * fn(self.last_epoch) for fn, lr in pairs]


class MultiplicativeLR(_Functions):
    """The last rate times a function of the epoch.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.MultiplicativeLR(opt, lambda epoch: 0.5)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    def get_lr(self) -> list[float]:
        now = self._rates_now()
        if self._is_initial:
            return now
        return [lr * fn(self.last_epoch) for fn, lr in zip(self.lr_lambdas, now, strict=True)]


class _Factor(LRScheduler):
    """One factor for all groups: on the rate that is (`factor_now`), and on the first (`share`)."""

    def factor_now(self) -> float:
        raise NotImplementedError

    def share(self) -> float:
        raise NotImplementedError

    def get_lr(self) -> Sequence[float]:
        factor = self.factor_now()
        return [lr * factor for lr in self._rates_now()]

    def _rates_at_once(self) -> Sequence[float]:
        share = self.share()
        return [lr * share for lr in self.base_lrs]


class StepLR(_Factor):
    """The rate times `gamma` every `step_size` epochs.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        check_positive(self, step_size=step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def factor_now(self) -> float:
        at_step = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
        return self.gamma if at_step else 1.0

    def share(self) -> float:
        share: float = self.gamma ** (self.last_epoch // self.step_size)
        return share


class MultiStepLR(_Factor):
    """The rate times `gamma` at each of the milestones.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.MultiStepLR(opt, [1, 2], gamma=0.5)
    >>> for _ in range(3):
    ...     schedule.step()
    >>> schedule.get_last_lr()
    [0.25]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def factor_now(self) -> float:
        factor: float = self.gamma ** self.milestones.count(self.last_epoch)
        return factor

    def share(self) -> float:
        share: float = self.gamma ** bisect_right(self.milestones, self.last_epoch)
        return share

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off; PyTorch's counts its milestones in a dict."""
        held = state_dict.get("milestones", self.milestones)
        if isinstance(held, Mapping):
            held = sorted(int(epoch) for epoch, times in held.items() for _ in range(times))
        super().load_state_dict({**state_dict, "milestones": held})


class ConstantLR(_Factor):
    """The rate times `factor` for the first `total_iters` epochs.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.ConstantLR(opt, factor=0.5, total_iters=1)
    >>> schedule.get_last_lr()
    [0.5]
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [1.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        check_between(self, 0, 1, factor=factor)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def factor_now(self) -> float:
        if self.last_epoch == 0:
            return self.factor
        return 1.0 / self.factor if self.last_epoch == self.total_iters else 1.0

    def share(self) -> float:
        return 1.0 if self.last_epoch >= self.total_iters else self.factor


class LinearLR(_Factor):
    """The rate times what goes from `start_factor` to `end_factor` in `total_iters` epochs.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.LinearLR(opt, start_factor=0.5, total_iters=2)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.75]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        check_between(self, 0, 1, start_factor=start_factor, end_factor=end_factor)
        if not start_factor:
            raise ArgumentError("LinearLR: start_factor must be above 0, got 0")
        check_positive(self, total_iters=total_iters)
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def factor_now(self) -> float:
        if self.last_epoch == 0:
            return self.start_factor
        if self._is_initial or self.last_epoch > self.total_iters:
            return 1.0
        rise = self.end_factor - self.start_factor
        return 1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise)

    def share(self) -> float:
        done = min(self.total_iters, self.last_epoch) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * done


class ExponentialLR(_Factor):
    """The rate times `gamma` every epoch.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.ExponentialLR(opt, gamma=0.5)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        if not gamma >= 0:
            raise ArgumentError(f"ExponentialLR: gamma must not be negative, got {gamma!r}")
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def factor_now(self) -> float:
        return 1.0 if self._is_initial else self.gamma

    def share(self) -> float:
        share: float = self.gamma**self.last_epoch
        return share


class PolynomialLR(_Factor):
    """The rate falls to 0 in `total_iters` epochs, by a power of what is left of them.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.PolynomialLR(opt, total_iters=4)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.75]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        check_positive(self, total_iters=total_iters)
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def factor_now(self) -> float:
        if self._is_initial or self.last_epoch > self.total_iters:
            return 1.0
        left, before = (1.0 - (self.last_epoch - k) / self.total_iters for k in (0, 1))
        factor: float = (left / before) ** self.power
        return factor

    def share(self) -> float:
        done = min(self.total_iters, self.last_epoch) / self.total_iters
        share: float = (1.0 - done) ** self.power
        return share


class CosineAnnealingLR(LRScheduler):
    """The rate falls to `eta_min` in `T_max` epochs along half a cosine, and rises again.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=2)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int,  # noqa: N803  # PyTorch's name
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        check_positive(self, T_max=T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch: int) -> float:
        return 1.0 + math.cos(math.pi * epoch / self.T_max)

    def get_lr(self) -> Sequence[float]:
        now = self._rates_now()
        if self._is_initial:
            return now
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # just left the lowest point
            rise = (1.0 - math.cos(math.pi / self.T_max)) / 2
            pairs = zip(now, self.base_lrs, strict=True)
            return [lr + (first - self.eta_min) * rise for lr, first in pairs]
        factor = self._height(self.last_epoch) / self._height(self.last_epoch - 1)
        return [factor * (lr - self.eta_min) + self.eta_min for lr in now]

    def _rates_at_once(self) -> Sequence[float]:
        share = self._height(self.last_epoch) / 2
        return [self.eta_min + (lr - self.eta_min) * share for lr in self.base_lrs]
