"""Overloads about PyTorch's memory: what writes into it, and how it lies there."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.registry import Result, aten
from everygrad.ops.elementwise.math import atan2
from everygrad.ops.python.creation import zeros
from everygrad.ops.python.inplace import assign


@aten("atan2.out", promotes=True)
def atan2_out(x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    return assign(out, atan2(x, y), "atan2")


@aten(
    "resize_.default",
    refused="it gives memory another size, which no functional graph does",
)
def resize(x: Tensor, *_: Any) -> Tensor:
    return x


@aten("zero.default")
def zero(x: Tensor) -> Tensor:
    return zeros(x.shape, x.dtype, x.device)


def row_major(tensor: Result) -> bool:
    """Whether PyTorch's tensor lies in memory row by row; ours may lie in any other way."""
    expected = 1
    for size, stride in zip(tensor.shape[::-1], tensor.strides[::-1], strict=True):
        if size != 1 and stride != expected:
            return 0 in tensor.shape
        expected *= size
    return True
