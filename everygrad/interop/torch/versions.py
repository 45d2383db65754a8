"""Which PyTorch this was tried with, and its names that may move."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from everygrad.errors import ArgumentError

TRIED = ("2.13.0",)


def torch_name(path: str) -> Any:
    """What a dotted name of PyTorch means; where it has moved, an error that says what was tried.

    >>> from everygrad.interop.torch.versions import torch_name
    >>> torch_name("torch.export.default_decompositions").__name__
    'default_decompositions'
    """
    try:
        found: Any = import_module("torch")
    except ImportError:
        raise ArgumentError("PyTorch is not installed: pip install torch") from None
    version = found.__version__
    done = "torch"
    for step in path.split(".")[1:]:
        if not hasattr(found, step):
            try:
                import_module(f"{done}.{step}")
            except ImportError:
                raise ArgumentError(
                    f"PyTorch {version} has no {path}; the versions that were tried are "
                    f"{', '.join(TRIED)}"
                ) from None
        found, done = getattr(found, step), f"{done}.{step}"
    return found
