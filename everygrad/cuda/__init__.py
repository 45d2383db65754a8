"""NVIDIA GPUs in PyTorch's spellings; a device is a string everywhere: `x.to("cuda:0")`."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from everygrad.backends import base
from everygrad.core.nearest import answering as _answering
from everygrad.errors import DeviceError
from everygrad.ops.random.generators import manual_seed as _seed


def is_available() -> bool:
    """Whether there is an NVIDIA GPU that can be used.

    >>> import everygrad as eg
    >>> eg.cuda.is_available() in (True, False)
    True
    """
    try:
        base.get("cuda")
    except DeviceError:
        return False
    return True


def synchronize(device: str | None = None) -> None:
    """Wait until everything that was launched on a GPU is done."""
    base.get(device or "cuda").synchronize()


def is_bf16_supported() -> bool:
    """Whether bfloat16 can be used: everywhere."""
    return True


def empty_cache() -> None:
    """Nothing to do: memory that is not used is given to whoever asks next."""


def manual_seed(seed: int) -> None:
    """Seed the default generator, which serves every device."""
    _seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the default generator, which serves every device."""
    _seed(seed)


def __getattr__(name: str) -> _Any:
    if name == "amp":  # it knows loss scaling, and is loaded after this
        return _import_module("everygrad.cuda.amp")
    return _missing(name)


_missing = _answering(__name__)
