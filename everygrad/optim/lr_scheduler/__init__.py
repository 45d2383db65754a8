"""Schedules of learning rates, in PyTorch's names.

A scheduler gives its optimiser's groups new rates at each `step()`. A compiled training step reads
rates as tensors, so none of this makes it trace again; `step()` may also stand inside it, last.
"""

from __future__ import annotations

from typing import Any

from everygrad.core.torch_optim_names import missing as _missing
from everygrad.optim.lr_scheduler.base import LRScheduler as LRScheduler
from everygrad.optim.lr_scheduler.combined import (
    ChainedScheduler as ChainedScheduler,
    SequentialLR as SequentialLR,
)
from everygrad.optim.lr_scheduler.cycles import (
    CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts,
    CyclicLR as CyclicLR,
    OneCycleLR as OneCycleLR,
)
from everygrad.optim.lr_scheduler.decays import (
    ConstantLR as ConstantLR,
    CosineAnnealingLR as CosineAnnealingLR,
    ExponentialLR as ExponentialLR,
    LambdaLR as LambdaLR,
    LinearLR as LinearLR,
    MultiplicativeLR as MultiplicativeLR,
    MultiStepLR as MultiStepLR,
    PolynomialLR as PolynomialLR,
    StepLR as StepLR,
)
from everygrad.optim.lr_scheduler.plateau import ReduceLROnPlateau as ReduceLROnPlateau
from everygrad.optim.lr_scheduler.warmup import (
    WarmupCosine as WarmupCosine,
    WarmupStableDecay as WarmupStableDecay,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "WarmupCosine",
    "WarmupStableDecay",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python asks for these itself
        raise AttributeError(name)
    raise _missing("optim.lr_scheduler", name, __all__)
