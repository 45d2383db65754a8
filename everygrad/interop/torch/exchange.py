"""Tensors of PyTorch's as ours, on the same memory where that is possible."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from everygrad.core.tensor import Tensor
from everygrad.errors import DtypeError
from everygrad.interop.torch.graph import DTYPES
from everygrad.ops.python.creation import asarray
from everygrad.ops.python.dlpack import from_dlpack


def from_tensor(value: torch.Tensor, copy: bool = False) -> Tensor:
    """A tensor on the memory of PyTorch's, which must not be written to afterwards unless `copy`.

    Conjugated and negated views are computed; layouts other than strided are refused.

    >>> import torch
    >>> from everygrad.interop.torch.exchange import from_tensor
    >>> from_tensor(torch.ones(2, dtype=torch.bfloat16))
    tensor([1., 1.], dtype=bfloat16)
    """
    if value.dtype not in DTYPES:
        raise DtypeError(f"from_torch: PyTorch's {value.dtype} has no dtype here; cast it first")
    if value.layout is not torch.strided:
        raise DtypeError(f"from_torch: takes dense tensors, got {value.layout}; use to_dense()")
    plain = value.detach().resolve_conj().resolve_neg()
    if plain.device.type != "cpu":
        return from_dlpack(plain, copy=copy)
    return asarray(array_of(plain), copy=copy)


def array_of(value: torch.Tensor) -> Any:
    """A dense tensor on the CPU as a NumPy array on the same memory."""
    if value.dtype is torch.bfloat16:  # NumPy knows it by another package: the bits are the same
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(value.numpy())
