"""A rate that falls when a metric no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from everygrad.core.context import tracing
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, TraceError
from everygrad.optim.lr_scheduler.base import (
    LRScheduler,
    checked_optimizer,
    for_each_group,
    rate_of,
    set_rate,
)
from everygrad.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` once a metric has not improved for more than `patience` epochs.

    mode            "min" or "max": which way is better
    threshold       what counts as better, relative to the best ("rel") or by itself ("abs")
    cooldown        epochs to wait after the rate fell
    min_lr          the least rate, of all groups or of each
    eps             a smaller change of the rate is not made

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    >>> for loss in (3.0, 2.0, 2.0):
    ...     schedule.step(loss)
    >>> schedule.get_last_lr()
    [0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        self.optimizer = checked_optimizer(self, optimizer)
        if not factor < 1.0:
            raise ArgumentError(f"ReduceLROnPlateau: factor must be below 1, got {factor!r}")
        _check_modes(mode, threshold_mode)
        self.factor, self.patience, self.cooldown, self.eps = factor, patience, cooldown, eps
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.default_min_lr = None if isinstance(min_lr, list | tuple) else min_lr
        self.min_lrs = for_each_group(self, "min_lr", min_lr)
        self.last_epoch = 0
        self.best = self.mode_worse = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0
        self._last_lr = self._rates_now()

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Tell the metric of an epoch."""
        if tracing.get() is not None:
            raise TraceError(
                "jit: ReduceLROnPlateau.step looks at the metric's value; return the metric and "
                "call step outside"
            )
        current = float(metrics.item() if isinstance(metrics, Tensor) else metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._rates_now()

    @property
    def in_cooldown(self) -> bool:
        """Whether the rate fell a moment ago."""
        return self.cooldown_counter > 0

    def _is_better(self, value: float) -> bool:
        sign = 1.0 if self.mode == "min" else -1.0
        if self.threshold_mode == "abs":
            return sign * value < sign * self.best - self.threshold
        return sign * value < sign * (self.best * (1.0 - sign * self.threshold))

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):  # one was added since
            if self.default_min_lr is None:
                raise ArgumentError(
                    f"ReduceLROnPlateau: min_lr has {len(self.min_lrs)} values, the optimiser now "
                    f"{len(groups)} groups; append to min_lrs"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, least in zip(groups, self.min_lrs, strict=True):
            old = rate_of(group)
            new = max(old * self.factor, least)
            if old - new > self.eps:
                set_rate(group, new)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        modes = [state_dict.get(k, getattr(self, k)) for k in ("mode", "threshold_mode")]
        _check_modes(*modes)
        super().load_state_dict(state_dict)


def _check_modes(mode: Any, threshold_mode: Any) -> None:
    if mode not in ("min", "max"):
        raise ArgumentError(f'ReduceLROnPlateau: mode must be "min" or "max", got {mode!r}')
    if threshold_mode not in ("rel", "abs"):
        raise ArgumentError(
            f'ReduceLROnPlateau: threshold_mode must be "rel" or "abs", got {threshold_mode!r}'
        )
