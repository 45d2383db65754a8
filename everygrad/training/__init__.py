"""Training runs: the Trainer, its metrics, callbacks, logs and learning-rate finder."""

from typing import Any as _Any

from everygrad.core.nearest import no_attribute as _no_attribute
from everygrad.training import metrics as metrics
from everygrad.training.callbacks import Callback as Callback, EarlyStopping as EarlyStopping
from everygrad.training.logs import (
    CSVLog as CSVLog,
    JSONLinesLog as JSONLinesLog,
    Log as Log,
    TensorBoardLog as TensorBoardLog,
)
from everygrad.training.lr_finder import Finding as Finding
from everygrad.training.plots import draw_history as draw_history
from everygrad.training.trainer import Trainer as Trainer

__all__ = [
    "CSVLog",
    "Callback",
    "EarlyStopping",
    "Finding",
    "JSONLinesLog",
    "Log",
    "TensorBoardLog",
    "Trainer",
    "draw_history",
    "metrics",
]


def __getattr__(name: str) -> _Any:
    raise _no_attribute("everygrad.training", name, __all__)
