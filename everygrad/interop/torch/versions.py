"""Which PyTorch this was tried with, and its names that may move."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import torch

from everygrad.errors import ArgumentError

TRIED = ("2.13.0",)


def torch_name(path: str) -> Any:
    """What a dotted name of PyTorch means; where it has moved, an error that says what was tried.

    >>> from everygrad.interop.torch.versions import torch_name
    >>> torch_name("torch.export.default_decompositions").__name__
    'default_decompositions'
    """
    try:
        return resolve_name(path)
    except (ImportError, AttributeError):
        raise ArgumentError(
            f"PyTorch {torch.__version__} has no {path}; the versions that were tried are "
            f"{', '.join(TRIED)}"
        ) from None
