"""Where a run stands: what a checkpoint holds of the Trainer itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everygrad.errors import ArgumentError

_KEPT = ("step", "epoch", "batches", "seconds", "history")
_SUMS = ("window", "epoch_sum", "norms")


class RunState:
    """Steps and epochs done, the rows so far, and sums of which the next row is made.

    batches    how many were taken of the epoch that is under way
    window     the sum and number of losses since the last row
    epoch_sum  the same since the epoch began; norms of the gradients since the last row
    """

    def __init__(self) -> None:
        self.step = self.epoch = self.batches = 0
        self.seconds = 0.0
        self.history: list[dict[str, Any]] = []
        self.window: list[Any] = [0.0, 0]
        self.epoch_sum: list[Any] = [0.0, 0]
        self.norms: list[Any] = [0.0, 0]
        self.stop_reason: str | None = None

    def state_dict(self) -> dict[str, Any]:
        """Numbers and rows, to go on from."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return {
            **kept,
            "history": [dict(row) for row in self.history],
            **{name: list(getattr(self, name)) for name in _SUMS},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        missing = [name for name in (*_KEPT, *_SUMS) if name not in state_dict]
        if missing:
            raise ArgumentError(f"Trainer: the saved run has no {', '.join(missing)}")
        for name in (*_KEPT, *_SUMS):
            setattr(self, name, state_dict[name])
        self.history = [dict(row) for row in state_dict["history"]]
        for name in _SUMS:
            setattr(self, name, list(state_dict[name]))


def add(total: list[Any], value: float) -> None:
    """Count one more number in a sum."""
    total[0], total[1] = total[0] + value, total[1] + 1


def mean(total: list[Any]) -> float:
    """The mean of what was counted."""
    return float(total[0] / total[1])
