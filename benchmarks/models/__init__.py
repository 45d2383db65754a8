"""Training steps of whole networks, each written once and run by everygrad and by PyTorch.

A file here defines `MODELS`, a list of `Model`s. Networks are written against a `Library`, whose
`nn`, `F` and `lib` are PyTorch's or everygrad's: the names they use are the same in both. A new
network is one new file; `python -m benchmarks.models` finds it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Batch = dict[str, Any]


@dataclass(frozen=True)
class Library:
    """PyTorch or everygrad, and the device that its tensors are on."""

    name: str
    lib: Any
    nn: Any
    F: Any
    device: str

    def gradient(self, output: Any, x: Any) -> Any:
        """The derivative of sum(output) by x, which can be differentiated again."""
        return self.lib.autograd.grad(output.sum(), x, create_graph=True)[0]


@dataclass(frozen=True)
class Model:
    """One network, its batch, its loss and its optimiser.

    `precision`: "f32", "tf32" or "bf16" (autocast). A step does `units` of `unit`, for rates, and
    `flops` of matrix products, for shares of the peak. `asked` bounds figures by device and way,
    as text for the table.
    """

    name: str
    about: str
    network: Callable[[Library], Any]
    batch: Callable[[np.random.Generator], dict[str, Array]]
    loss: Callable[[Library, Any, Batch], Any]
    devices: tuple[str, ...]
    optimiser: str = "adamw"
    lr: float = 1e-4
    precision: str = "f32"
    units: int = 0
    unit: str = ""
    flops: float = 0.0
    asked: dict[str, str] = field(default_factory=dict)
    tolerance: float = 2e-3
    differentiates_inputs: tuple[str, ...] = ()


def all_models() -> dict[str, Model]:
    """Every model of this folder by name."""
    found: dict[str, Model] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name not in ("__main__", "run"):
            module = importlib.import_module(f"{__name__}.{info.name}")
            found |= {model.name: model for model in module.MODELS}
    return found
