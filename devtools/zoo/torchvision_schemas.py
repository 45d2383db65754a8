"""Lets torchvision, and what imports it, be imported where its C library does not load.

The library belongs to another build of PyTorch than the CPU's. It brings a few ops for boxes, which
no network of the zoo uses; torchvision only wants them to have a schema.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

_SCHEMAS = ("nms", "qnms")
_kept: list[Any] = []  # a Library's schemas go with it


def define() -> None:
    """Define the schemas that torchvision gives fake kernels to, unless its library has loaded."""
    if _kept or find_spec("torchvision") is None:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _SCHEMAS:
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
