"""Devices: buffers and programs."""

from importlib import import_module as _import_module
from typing import Any

from everygrad.core.nearest import no_attribute as _no_attribute

# What PyTorch's programs set, or ask for, in `torch.backends`.
_SWITCHES = ("cuda", "cudnn", "mps")


def __getattr__(name: str) -> Any:
    if name in _SWITCHES:
        return _import_module(f"everygrad.backends.{name}")
    cure = f"; {name} is none of {', '.join(_SWITCHES)}: kernels are chosen by measuring"
    raise _no_attribute("everygrad.backends", name, _SWITCHES, cure)
