"""A rise to the full rate, and what large models do then."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from everygrad.errors import ArgumentError
from everygrad.optim.lr_scheduler.base import LRScheduler, check_between, check_positive
from everygrad.optim.optimizer import Optimizer

# from 1 to 0, of what is done of a decay
_DECAYS: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: (1.0 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1.0 - done,
    "sqrt": lambda done: 1.0 - math.sqrt(done),
}


class _Warmup(LRScheduler):
    """A linear rise in `warmup_steps` steps, a plateau, then a decay down to `eta_min`."""

    warmup_steps: int
    start_factor: float
    eta_min: float
    decay: str
    decay_from: int
    decay_steps: int

    def _settle(self, stable: int, **named: float) -> None:
        """Check and keep the settings of all of them."""
        check_between(self, 0, 1, start_factor=named["start_factor"])
        for name, value in named.items():
            if not value >= 0:
                raise ArgumentError(f"{self._name}: {name} must be at least 0, got {value!r}")
        check_positive(self, decay_steps=self.decay_steps)
        vars(self).update(named)
        self.decay_from = self.warmup_steps + stable

    def get_lr(self) -> Sequence[float]:
        step = self.last_epoch
        if step < self.warmup_steps:
            share = self.start_factor + (1.0 - self.start_factor) * step / self.warmup_steps
            return [lr * share for lr in self.base_lrs]
        done = min(max(step - self.decay_from, 0) / self.decay_steps, 1.0)
        height = _DECAYS[self.decay](done)
        return [self.eta_min + (lr - self.eta_min) * height for lr in self.base_lrs]


class WarmupCosine(_Warmup):
    """The rate rises linearly in `warmup_steps` steps, then falls to `eta_min` along half a cosine
    until `total_steps`, and stays there.

    `start_factor`: the share of the rate that the first step has.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.WarmupCosine(opt, warmup_steps=2, total_steps=4)
    >>> rates = schedule.get_last_lr()
    >>> for _ in range(4):
    ...     schedule.step()
    ...     rates += schedule.get_last_lr()
    >>> rates
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        total_steps: int,
        eta_min: float = 0.0,
        start_factor: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.decay, self.decay_steps = "cosine", total_steps - warmup_steps
        if self.decay_steps < 1:
            raise ArgumentError(
                f"WarmupCosine: total_steps must be above warmup_steps, got {total_steps} and "
                f"{warmup_steps}"
            )
        self._settle(0, warmup_steps=warmup_steps, eta_min=eta_min, start_factor=start_factor)
        super().__init__(optimizer, last_epoch)


class WarmupStableDecay(_Warmup):
    """The rate rises linearly, stays for `stable_steps` steps, and falls to `eta_min` in
    `decay_steps`.

    decay         "linear", "cosine", or "sqrt": one minus the root of what is done
    start_factor  the share of the rate that the first step has

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.lr_scheduler.WarmupStableDecay(opt, 2, stable_steps=1, decay_steps=2)
    >>> rates = schedule.get_last_lr()
    >>> for _ in range(5):
    ...     schedule.step()
    ...     rates += schedule.get_last_lr()
    >>> rates
    [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        stable_steps: int,
        decay_steps: int,
        eta_min: float = 0.0,
        decay: str = "linear",
        start_factor: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if decay not in _DECAYS:
            raise ArgumentError(
                f"WarmupStableDecay: decay must be one of {', '.join(_DECAYS)}, got {decay!r}"
            )
        if not stable_steps >= 0:
            raise ArgumentError(
                f"WarmupStableDecay: stable_steps must be at least 0, got {stable_steps!r}"
            )
        self.decay, self.decay_steps = decay, decay_steps
        named = {"warmup_steps": warmup_steps, "eta_min": eta_min, "start_factor": start_factor}
        self._settle(stable_steps, **named)
        super().__init__(optimizer, last_epoch)
