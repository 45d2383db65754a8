"""The settings of a Trainer, refused by name before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everygrad import dtypes
from everygrad.errors import ArgumentError, DtypeError
from everygrad.nn.module import Module
from everygrad.optim import GradScaler, Optimizer
from everygrad.training.callbacks import Callback
from everygrad.training.logs import Log
from everygrad.training.metrics import Metric

LOGS = ("csv", "jsonl", "tensorboard")


def check_kinds(model: Any, optimizer: Any, loss: Any, scheduler: Any) -> None:
    """Refuse what is no model, optimiser, loss or scheduler."""
    if not isinstance(model, Module):
        raise DtypeError(f"Trainer: model must be a Module, got {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise DtypeError(f"Trainer: optimizer must be an Optimizer, got {type(optimizer).__name__}")
    if loss is not None and not isinstance(loss, Callable):  # type: ignore[arg-type]
        raise DtypeError(
            f"Trainer: loss must be a function of (output, target), or None where the model gives "
            f"the loss itself, got {type(loss).__name__}"
        )
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise DtypeError(
            f"Trainer: scheduler must be of eg.optim.lr_scheduler, got {type(scheduler).__name__}"
        )


def count(name: str, value: Any, least: int = 1) -> int:
    """An integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError(
            f"Trainer: {name} must be an integer of at least {least}, got {value!r}"
        )
    return value


def positive(name: str, value: Any) -> float | None:
    """A number above 0, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ArgumentError(f"Trainer: {name} must be above 0, got {value!r}")
    return float(value)


def one_of(name: str, value: Any, choices: Sequence[Any]) -> Any:
    if value not in choices:
        raise ArgumentError(
            f"Trainer: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}"
        )
    return value


def ema_decay(value: Any) -> float | None:
    """A decay from 0 to below 1, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ArgumentError(f"Trainer: ema must be a decay from 0 to below 1, got {value!r}")
    return float(value)


def precision(value: Any, scaler: GradScaler | None) -> tuple[Any, GradScaler | None]:
    """The dtype of autocast, and the loss scaling that float16 needs."""
    if value is None:
        if scaler is not None:
            raise ArgumentError('Trainer: a scaler is for autocast="float16"')
        return None, None
    dtype = dtypes.as_dtype(value)
    one_of("autocast", dtype, (dtypes.bfloat16, dtypes.float16))
    if dtype is dtypes.float16 and scaler is None:
        scaler = GradScaler()
    return dtype, scaler


def metrics(given: Any) -> dict[str, Metric]:
    """Metrics by name: a dict of them, or a list, whose names are those of their classes."""
    if given is None:
        return {}
    named = given if isinstance(given, Mapping) else {_name(m): m for m in given}
    for name, metric in named.items():
        if not isinstance(metric, Metric):
            raise DtypeError(
                f"Trainer: metrics must be of eg.training.metrics, got {type(metric).__name__} for "
                f"{name!r}"
            )
    return dict(named)


def _name(metric: Any) -> str:
    return type(metric).__name__.lower()


def callbacks(given: Sequence[Any]) -> list[Callback]:
    found = list(given)
    for c in found:
        if not isinstance(c, Callback):
            raise DtypeError(f"Trainer: callbacks must be Callbacks, got {type(c).__name__}")
    return found


def logs(given: Any, folder: Any) -> list[Any]:
    """Names of logs, or logs; without a folder there is nowhere to put those with a name."""
    wanted = (("csv", "jsonl") if folder is not None else ()) if given is None else given
    wanted = [wanted] if isinstance(wanted, str | Log) else list(wanted)
    for log in wanted:
        if isinstance(log, Log):
            continue
        one_of("logs", log, LOGS)
        if folder is None:
            raise ArgumentError(f"Trainer: logs={log!r} needs a folder to write to")
    return wanted
