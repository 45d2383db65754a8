"""Sorting by CuPy where an op runs at once. A compiled function has the portable network instead:
CuPy's sort takes memory while it runs, which cannot be recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends.cuda import moves
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.guest import is_eager, on_our_stream
from everygrad.compile import expr
from everygrad.compile.expr import Expr, Program
from everygrad.dtypes import FROM_NP, DType
from everygrad.shapes import size_of


def borrowed(cupy: Any, x: CudaArray) -> Any:
    """An array in C order as CuPy's, on the same memory."""
    memory = cupy.cuda.UnownedMemory(x.ptr, size_of(x.shape) * x.dtype.itemsize, x.storage)
    return cupy.ndarray(x.shape, x.dtype, cupy.cuda.MemoryPointer(memory, 0))


@cache
def _cast(source: DType, target: DType) -> Program:
    return expr.lower(Expr.inputs(1)[0].cast(target), [source], target)


def _sortable(dev: Any, x: CudaArray) -> CudaArray:
    """x in C order, in a dtype of the same order that CuPy sorts."""
    dtype = FROM_NP[x.dtype]
    wider = {
        dtypes.bool_: dtypes.uint8,
        dtypes.float16: dtypes.float32,
        dtypes.bfloat16: dtypes.float32,
    }.get(dtype)
    if wider is not None:
        x = dev.elementwise("astype", _cast(dtype, wider), [x], ordered=True)
    return moves.contiguous(dev, x)


def argsort(dev: Any, x: CudaArray, axis: int, descending: bool) -> Any:
    """Stable, NaN as the largest; flipped for descending, so that equal elements keep order."""
    if not is_eager(dev) or x.storage is None:
        return NotImplemented
    x = _sortable(dev, x)
    out: CudaArray = dev.empty(x.shape, dtypes.int64)
    with on_our_stream(dev) as cupy:
        keys = borrowed(cupy, x)
        if descending:
            order = cupy.argsort(cupy.flip(keys, axis), axis=axis, kind="stable")
            order = x.shape[axis] - 1 - cupy.flip(order, axis)
        else:
            order = cupy.argsort(keys, axis=axis, kind="stable")
        borrowed(cupy, out)[...] = order.astype(np.int64, copy=False)
    return out


KERNELS: dict[str, Callable[..., Any]] = {"argsort": argsort}
