"""What an optimiser holds: groups of parameters with their settings, and a state for each
parameter. All of them count their changes, for a compiled step to look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

from everygrad import dtypes
from everygrad.backends import base
from everygrad.core.context import tracing
from everygrad.core.scopes import untraced
from everygrad.core.tensor import Tensor
from everygrad.dispatch import as_tensor
from everygrad.dtypes import DType

# Settings that a schedule changes. A rule reads them as 0-d tensors, so a new number is no reason
# to trace a compiled step again, unless what is given here for the old and the new one differs.
_MISSING = object()
LIVE: dict[str, Callable[[Any], Any]] = {
    "lr": lambda lr: id(lr) if isinstance(lr, Tensor) else None,
    "momentum": lambda momentum: momentum != 0,
    "betas": lambda betas: tuple(betas[1:]),  # the first one is what schedules move
}
# What schedulers keep in a group: no rule reads it.
NOTES = frozenset(
    ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr", "swa_momentum")
)


class State(dict[str, Any]):
    """What an optimiser remembers of one parameter; `changes` counts what was put there."""

    changes = 0


class Counted(list[Any]):
    """A list that counts its changes, for a compiled step to look at."""

    changes = 0


def _counting(change: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.changes += 1
        return change(self, *args, **kwargs)

    return method


for _name in (
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
):
    setattr(Counted, _name, _counting(getattr(list, _name)))
for _name in (
    *("clear", "pop", "popitem", "setdefault", "update"),
    *("__setitem__", "__delitem__", "__ior__"),
):
    setattr(State, _name, _counting(getattr(dict, _name)))


class _Number:
    """A function of a group's settings, its value, and the 0-d tensor that has it."""

    def __init__(self, of: Callable[[Group], float], value: float, p: Tensor) -> None:
        self.of, self.value, self.tensor = of, value, beside(p, value)


class Group(dict[str, Any]):
    """The settings of a group of parameters.

    The learning rate, and whatever a rule computes from settings that schedules change, are 0-d
    tensors besides, which follow the settings: a compiled step reads the tensors at each call,
    where a Python number would be a constant.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.changes = 0  # that a compiled step does not see by itself
        self._numbers: dict[tuple[str, DType, str], _Number] = {}

    def rate(self, p: Tensor) -> Tensor:
        """The learning rate as a 0-d tensor beside `p`."""
        lr = self["lr"]
        if isinstance(lr, Tensor):
            return beside(p, lr)
        return self.number(p, "lr", lambda group: group["lr"])

    def number(self, p: Tensor, name: str, of: Callable[[Group], float]) -> Tensor:
        """What `of` makes of the settings, as a 0-d tensor beside `p`; `name` says which."""
        key = (name, precise(p), p.device)
        if key not in self._numbers:
            with untraced():
                self._numbers[key] = _Number(of, float(of(self)), p)
        return self._numbers[key].tensor

    def __setitem__(self, name: str, value: Any) -> None:
        if self._counts(name, value):
            self.changes += 1
        super().__setitem__(name, value)
        if name in LIVE:
            self._follow()

    def _counts(self, name: str, value: Any) -> bool:
        """Whether a compiled step does something else once this setting has this value."""
        if name in NOTES:
            return False
        old = self.get(name, _MISSING)
        if name not in LIVE or old is _MISSING:
            return True
        return bool(LIVE[name](old) != LIVE[name](value))

    def _follow(self) -> None:
        """Give the tensors the values that belong to the settings."""
        traced = tracing.get() is not None
        for (name, dtype, device), number in self._numbers.items():
            if name == "lr" and isinstance(self["lr"], Tensor):
                continue
            value = float(number.of(self))
            if traced or value != number.value:
                number.value = math.nan if traced else value  # a trace may come to nothing
                number.tensor.rebind(base.get(device).full((), value, dtype), None)

    def update(self, settings: Any = (), /, **more: Any) -> None:
        for name, value in dict(settings, **more).items():
            if self.get(name, _MISSING) is not value:
                self[name] = value

    def setdefault(self, name: str, value: Any = None) -> Any:
        if name not in self:
            self[name] = value
        return self[name]

    def __delitem__(self, name: str) -> None:
        self.changes += 1
        super().__delitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        self.changes += 1
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        self.changes += 1
        return super().popitem()

    def clear(self) -> None:
        self.changes += 1
        super().clear()

    def __ior__(self, settings: Any) -> Self:  # type: ignore[override,misc]  # as update
        self.update(settings)
        return self


def precise(p: Tensor) -> DType:
    """The dtype of scalars beside `p`: half floats are computed in float32."""
    return dtypes.float64 if p.dtype is dtypes.float64 else dtypes.float32


def beside(p: Tensor, value: float | Tensor) -> Tensor:
    """A number or 0-d tensor as a 0-d tensor on p's device, precise enough for p."""
    if isinstance(value, Tensor):
        moved: Tensor = value.detach().to(p.device).astype(precise(p))
        return moved
    return as_tensor(float(value), p, precise(p))
