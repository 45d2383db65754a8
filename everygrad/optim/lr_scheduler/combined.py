"""Schedules made of others: one after the other, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from everygrad.errors import ArgumentError
from everygrad.optim.lr_scheduler.base import LRScheduler, checked_optimizer, set_rate
from everygrad.optim.lr_scheduler.plateau import ReduceLROnPlateau
from everygrad.optim.optimizer import Optimizer


class _Several(LRScheduler):
    """Schedulers of one optimiser."""

    _apart = ("optimizer", "_schedulers")

    def _take(self, optimizer: Any, schedulers: Sequence[LRScheduler]) -> None:
        self._schedulers = list(schedulers)
        if not self._schedulers:
            raise ArgumentError(f"{self._name}: got no schedulers")
        for i, one in enumerate(self._schedulers):
            if not isinstance(one, LRScheduler):
                raise ArgumentError(f"{self._name}: scheduler {i} is a {type(one).__name__}")
            if isinstance(one, ReduceLROnPlateau):
                raise ArgumentError(
                    f"{self._name}: scheduler {i} is a ReduceLROnPlateau, whose step takes a "
                    f"metric; step it by itself"
                )
            if optimizer is None:
                optimizer = one.optimizer
            if one.optimizer is not optimizer:
                raise ArgumentError(f"{self._name}: scheduler {i} belongs to another optimiser")
        self.optimizer = checked_optimizer(self, optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Its own numbers, and the states of all schedulers."""
        held = [one.state_dict() for one in self._schedulers]
        return {**super().state_dict(), "_schedulers": held}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        held = state_dict.get("_schedulers", ())
        if len(held) != len(self._schedulers):
            raise ArgumentError(
                f"load_state_dict: states of {len(held)} schedulers do not fit {self._name}'s "
                f"{len(self._schedulers)}"
            )
        super().load_state_dict(state_dict)
        for one, state in zip(self._schedulers, held, strict=True):
            one.load_state_dict(state)


class ChainedScheduler(_Several):
    """All schedulers at each step, each on the rate that the one before left.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> lr_scheduler = eg.optim.lr_scheduler
    >>> halves = [lr_scheduler.ExponentialLR(opt, 0.5) for _ in range(2)]
    >>> schedule = lr_scheduler.ChainedScheduler(halves)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.25]
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        self._take(optimizer, schedulers)
        self._last_lr = self._rates_now()

    def _begin(self) -> None:
        for one in self._schedulers:
            one._begin()
        self._last_lr = self._rates_now()

    def _advance(self, epoch: int | None) -> None:
        for one in self._schedulers:
            one.step(epoch)
        self._last_lr = self._rates_now()


class SequentialLR(_Several):
    """One scheduler after the other; the next takes over at each milestone.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> lr_scheduler = eg.optim.lr_scheduler
    >>> warm = lr_scheduler.ConstantLR(opt, 0.5, total_iters=9)
    >>> fall = lr_scheduler.ExponentialLR(opt, 0.5)
    >>> schedule = lr_scheduler.SequentialLR(opt, [warm, fall], milestones=[1])
    >>> schedule.get_last_lr()
    [0.5]
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [1.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        self._take(optimizer, schedulers)
        if len(milestones) != len(self._schedulers) - 1:
            raise ArgumentError(
                f"SequentialLR: {len(self._schedulers)} schedulers need "
                f"{len(self._schedulers) - 1} milestones, got {len(milestones)}"
            )
        self._milestones = list(milestones)
        self.last_epoch = last_epoch
        # each scheduler has given the optimiser its first rates: back to where it was before
        for group in optimizer.param_groups:
            set_rate(group, group["initial_lr"])
        _undo(self)
        self._begin()

    def _begin(self) -> None:
        self.last_epoch += 1
        self._schedulers[bisect_right(self._milestones, 0)]._begin()
        self._last_lr = self._rates_now()

    def _advance(self, epoch: int | None) -> None:
        if epoch is not None:
            raise ArgumentError(
                "SequentialLR.step: takes no epoch; each scheduler counts its own from its "
                "milestone on"
            )
        self.last_epoch += 1
        i = bisect_right(self._milestones, self.last_epoch)
        one = self._schedulers[i]
        if i > 0 and self._milestones[i - 1] == self.last_epoch:
            if isinstance(one, _Several):
                _restart(one)
            else:
                one._go_to(0)
        else:
            one.step()
        self._last_lr = self._rates_now()


def _restart(several: _Several) -> None:
    """Begin with schedulers that are made of others, from the first rates."""
    for group in several.optimizer.param_groups:
        set_rate(group, group["initial_lr"])
    _rewind(several)
    several._begin()


def _rewind(scheduler: LRScheduler) -> None:
    """Back to before the first epoch, with all schedulers in one."""
    if not isinstance(scheduler, ChainedScheduler):  # which counts nothing itself
        scheduler.last_epoch = -1
    for one in scheduler._schedulers if isinstance(scheduler, _Several) else ():
        _rewind(one)


def _undo(scheduler: LRScheduler) -> None:
    """Take back the first step of all schedulers in one."""
    if isinstance(scheduler, _Several):
        for one in scheduler._schedulers:
            _undo(one)
    else:
        scheduler.last_epoch -= 1
