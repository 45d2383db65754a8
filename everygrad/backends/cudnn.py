"""PyTorch's switches of cuDNN. They can be set, and choose nothing: which kernel serves is
measured, and sums are taken in an order that shapes alone decide. For TF32 there is
`eg.set_matmul_precision`."""

from __future__ import annotations

from everygrad.backends import base
from everygrad.core.nearest import answering
from everygrad.errors import DeviceError

enabled = True
benchmark = True
deterministic = True


def is_available() -> bool:
    """Whether there is a GPU that it would serve."""
    try:
        base.get("cuda")
    except DeviceError:
        return False
    return True


__getattr__ = answering(__name__)
