"""What all schedulers do: count, and give the optimiser's groups their rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everygrad.backends import base
from everygrad.core.context import tracing
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, TraceError
from everygrad.optim.optimizer import Optimizer


class LRScheduler:
    """The base of all schedulers: a subclass defines `get_lr`, the rates of `last_epoch`.

    `step()` inside a compiled function is done, in Python, at the end of each call: the new rate
    holds from the next call on, so the optimiser's step comes before it.

    >>> import everygrad as eg
    >>> class Halving(eg.optim.lr_scheduler.LRScheduler):
    ...     def get_lr(self):
    ...         return [lr / 2**self.last_epoch for lr in self.base_lrs]
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = Halving(opt)
    >>> schedule.step()
    >>> opt.param_groups[0]["lr"]
    0.5
    """

    _apart: tuple[str, ...] = ("optimizer",)  # attributes that a state does not hold

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = checked_optimizer(self, optimizer)
        if isinstance(last_epoch, bool) or not isinstance(last_epoch, int) or last_epoch < -1:
            raise ArgumentError(f"{self._name}: last_epoch must be -1 or more, got {last_epoch!r}")
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", rate_of(group))
            elif "initial_lr" not in group:
                raise ArgumentError(
                    f"{self._name}: last_epoch={last_epoch} takes up an earlier schedule, but "
                    f"group {i} has no initial_lr; load the optimiser's state first"
                )
        self.base_lrs = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._begin()

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _begin(self) -> None:
        """The rates of the first epoch."""
        self._step_count = 0
        self._is_initial = True
        try:
            self._advance(None)
        finally:
            self._is_initial = False

    # --- rates -----------------------------------------------------------------------------------

    def get_lr(self) -> Sequence[float]:
        """The rate of each group at `last_epoch`; a subclass defines it."""
        raise NotImplementedError(f"{self._name} defines no get_lr(); a scheduler needs one")

    def get_last_lr(self) -> list[float]:
        """The rate that each group was given last."""
        if tracing.get() is not None:
            raise TraceError(
                f"jit: {self._name}.get_last_lr() gives numbers, which a compiled function would "
                f"take for constants; ask for them outside"
            )
        return list(self._last_lr)

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch, or to this one."""
        if not self._left_for_later(lambda: self.step(epoch)):
            self._advance(epoch)

    def _left_for_later(self, act: Callable[[], None]) -> bool:
        """Inside a trace: have each call of the compiled function end with this."""
        tracer = tracing.get()
        if tracer is not None:
            tracer.after(self.optimizer, act)
        return tracer is not None

    def _advance(self, epoch: int | None) -> None:
        self._step_count += 1
        self._go_to(epoch)

    def _go_to(self, epoch: int | None) -> None:
        """The rates of an epoch, the next one if None, without counting a step."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._set_rates(self.get_lr() if epoch is None else self._rates_at_once())

    def _rates_at_once(self) -> Sequence[float]:
        """The rates of `last_epoch`, wherever the epoch before was."""
        return self.get_lr()

    def _rates_now(self) -> list[float]:
        return [rate_of(group) for group in self.optimizer.param_groups]

    def _set_rates(self, rates: Sequence[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            set_rate(group, lr)
        self._last_lr = self._rates_now()

    # --- saving and loading ----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser and functions, as numbers, strings and lists."""
        return {k: _copied(v) for k, v in vars(self).items() if k not in self._apart}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off; if it raises, nothing has changed."""
        own = vars(self)
        known = [k for k in state_dict if k in own and k not in self._apart]
        foreign = [k for k in state_dict if k not in own and not k.startswith("_")]
        if foreign:
            raise ArgumentError(
                f"load_state_dict: {self._name} has no {', '.join(sorted(foreign))}"
            )
        if "last_epoch" in own and "last_epoch" not in known:
            raise ArgumentError(f"load_state_dict: {self._name} needs last_epoch, got {known}")
        own.update({k: _copied(state_dict[k]) for k in known})


def checked_optimizer(scheduler: Any, optimizer: Any) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(
            f"{type(scheduler).__name__}: takes an optimiser, got {type(optimizer).__name__}"
        )
    return optimizer


def rate_of(group: Mapping[str, Any]) -> float:
    """The learning rate of a group as a number."""
    lr = group["lr"]
    return float(lr.item() if isinstance(lr, Tensor) else lr)


def set_rate(group: Any, lr: float) -> None:
    """Give a group a learning rate; a rate that is a tensor stays the tensor it is."""
    held = group["lr"]
    if isinstance(held, Tensor):
        held.rebind(base.get(held.device).full((), float(lr), held.dtype), None)
    else:
        group["lr"] = float(lr)


def for_each_group(scheduler: Any, name: str, value: Any) -> list[float]:
    """A setting for each group: one for all of them, or a list."""
    groups = scheduler.optimizer.param_groups
    if not isinstance(value, list | tuple):
        return [value] * len(groups)
    if len(value) != len(groups):
        raise ArgumentError(
            f"{type(scheduler).__name__}: {name} has {len(value)} values, "
            f"the optimiser {len(groups)} groups"
        )
    return list(value)


def check_positive(scheduler: Any, **named: Any) -> None:
    """Refuse what is no integer of at least 1."""
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(
                f"{type(scheduler).__name__}: {name} must be a positive integer, got {value!r}"
            )


def check_between(scheduler: Any, low: float, high: float, **named: Any) -> None:
    """Refuse what does not lie between two numbers."""
    for name, value in named.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise ArgumentError(
                f"{type(scheduler).__name__}: {name} must lie between {low} and {high}, "
                f"got {value!r}"
            )


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list | tuple) else value
