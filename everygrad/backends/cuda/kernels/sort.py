"""Sorting by CuPy. It allocates while it runs, which no graph can hold: a compiled function calls
it between graphs (`graph/library_calls`), and sorts short rows by the portable network."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.cupy_interop import as_cupy, is_eager, on_our_stream
from everygrad.backends.cuda.kernels import copy_kernels
from everygrad.compiler import expr
from everygrad.compiler.expr import Expr, Program
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


@cache
def _cast(source: DType, target: DType) -> Program:
    return expr.lower(Expr.inputs(1)[0].cast(target), [source], target)


def sortable(dev: Cuda, x: CudaArray) -> CudaArray:
    """x contiguous, in a dtype that CuPy sorts, with the same order."""
    dtype = FROM_NP[x.dtype]
    wider = {
        dtypes.bool_: dtypes.uint8,
        dtypes.float16: dtypes.float32,
        dtypes.bfloat16: dtypes.float32,
    }.get(dtype)
    if wider is not None:
        x = dev.elementwise("astype", _cast(dtype, wider), [x], ordered=True)
    return copy_kernels.contiguous(dev, x)


def order(cupy: Any, keys: Any, axis: int, descending: bool) -> Any:
    """A stable argsort, NaN last; flipped for descending, so that equal elements keep their
    order."""
    if not descending:
        return cupy.argsort(keys, axis=axis, kind="stable")
    found = cupy.argsort(cupy.flip(keys, axis), axis=axis, kind="stable")
    return keys.shape[axis] - 1 - cupy.flip(found, axis)


def argsort(dev: Cuda, x: CudaArray, axis: int, descending: bool) -> Any:
    if not is_eager(dev) or x.storage is None:
        return NotImplemented
    x = sortable(dev, x)
    out: CudaArray = dev.empty(x.shape, dtypes.int64)
    with on_our_stream(dev) as cupy:
        as_cupy(cupy, out)[...] = order(cupy, as_cupy(cupy, x), axis, descending)
    return out


KERNELS: dict[str, Callable[..., Any]] = {"argsort": argsort}
