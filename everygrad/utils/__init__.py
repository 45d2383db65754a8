"""PyTorch's `torch.utils` for programs that import it: its parts are found here under other names.

`utils.data` is `everygrad.data`, `utils.checkpoint` has `checkpoint`, and `utils.tensorboard` the
writer of an installed package.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from everygrad.core.nearest import no_attribute

_PARTS = ("checkpoint", "data", "tensorboard")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"everygrad.utils.{name}")
    raise no_attribute("everygrad.utils", name, _PARTS)


def __dir__() -> list[str]:
    return [*_PARTS]
