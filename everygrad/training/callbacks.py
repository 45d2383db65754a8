"""Callbacks: what is called as a run goes on; and early stopping, which is one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from everygrad.errors import ArgumentError

if TYPE_CHECKING:
    from everygrad.training.trainer import Trainer


class Callback:
    """The base: override what is wanted. A state_dict, if there is one, is saved with the run.

    >>> import everygrad as eg
    >>> class Print(eg.training.Callback):
    ...     def on_epoch_end(self, trainer, row):
    ...         print(trainer.epoch, row)
    """

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Before the first step, behind a resume."""

    def on_epoch_begin(self, trainer: Trainer) -> None:
        """Before the first step of an epoch."""

    def on_step_end(self, trainer: Trainer, loss: Any) -> None:
        """After each step of the optimiser, with its loss, a 0-d tensor that is not read yet."""

    def on_validation_end(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        """After a validation, with its numbers."""

    def on_epoch_end(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        """After an epoch and its validation, with the numbers of both."""

    def on_checkpoint(self, trainer: Trainer) -> None:
        """After a checkpoint was saved."""

    def on_fit_end(self, trainer: Trainer) -> None:
        """At the end, however it came."""


def better(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Whether a value is better than the best so far by more than `min_delta`."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta


class EarlyStopping(Callback):
    """Stops a run whose `monitor` has not become better for `patience` validations.

    mode       "min" or "max": which way is better
    min_delta  what counts as better

    >>> import everygrad as eg
    >>> eg.training.EarlyStopping(monitor="accuracy", mode="max", patience=3).patience
    3
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 5,
        mode: str = "min",
        min_delta: float = 0.0,
    ) -> None:
        if mode not in ("min", "max"):
            raise ArgumentError(f'EarlyStopping: mode must be "min" or "max", got {mode!r}')
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 0:
            raise ArgumentError(
                f"EarlyStopping: patience must be an integer of at least 0, got {patience!r}"
            )
        if not min_delta >= 0:
            raise ArgumentError(f"EarlyStopping: min_delta must be at least 0, got {min_delta!r}")
        self.monitor, self.patience, self.mode = monitor, patience, mode
        self.min_delta = float(min_delta)
        self.best: float | None = None
        self.waited = 0

    def on_validation_end(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        if self.monitor not in row:
            raise ArgumentError(
                f"EarlyStopping: no {self.monitor!r} among the numbers of a validation: "
                f"{', '.join(row)}"
            )
        value = float(row[self.monitor])
        if better(value, self.best, self.mode, self.min_delta):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited > self.patience:
            trainer.stop(f"{self.monitor} has not become better for {self.waited} validations")

    def state_dict(self) -> dict[str, Any]:
        """The best value, and how long it is ago."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on waiting where `state_dict` left off."""
        self.best, self.waited = state_dict["best"], state_dict["waited"]
