"""Copies and view ops that strides cannot express: one kernel writes the contiguous result.

Elements are copied as bits, several neighbours at once where alignment allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.kernels.launch_kernel import launch, layout_of, machine
from everygrad.backends.strided_views import Slices
from everygrad.codegen import copy_parts
from everygrad.codegen.copy import Lowered
from everygrad.compiler.expr import Inst, Program
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

# dtypes of each size, to copy bits unchanged
_BITS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


@lru_cache
def _copying(dtype: DType) -> Program:
    return Program((Inst("input", dtype, (), 0),))


def bits_of(dtype: DType) -> DType:
    """The dtype to copy elements as: a float register may change the bits of a NaN."""
    return _BITS.get(dtype.itemsize, dtype)


def contiguous(dev: Cuda, x: CudaArray) -> CudaArray:
    """The array, copied if it is not contiguous."""
    return x if x.storage is None or x.is_contiguous else copied(dev, x)


def copied(dev: Cuda, x: CudaArray) -> CudaArray:
    """A contiguous copy."""
    bits = bits_of(FROM_NP[x.dtype])
    copy: CudaArray = dev.elementwise("copy", _copying(bits), [x.bitcast(bits.np)], ordered=True)
    return CudaArray(x.device, x.shape, x.dtype, copy.storage)


# --- what strides cannot express ------------------------------------------------------------------


def unslice(dev: Cuda, x: CudaArray, shape: Shape, slices: Slices) -> CudaArray:
    """Zeros, except where a slice would read."""
    dtype = FROM_NP[x.dtype]
    if x.storage is None or not size_of(shape) or not shape:
        return x if not shape else dev.full(shape, 0, dtype)
    out: CudaArray = dev.empty(shape, dtype)
    aligned = x.ptr % 16

    def lower() -> Lowered:
        at = machine(dev.multiprocessors)
        return copy_parts.unslice(layout_of(x), shape, slices, at, aligned or 16)

    launch(dev, ("unslice", shape, slices, x.strides, dtype, aligned), lower, [x, out])
    return out


def concat_into(dev: Cuda, out: CudaArray, there: Sequence[CudaArray], axis: int) -> None:
    """Concatenate arrays along an axis into `out`."""
    places = tuple(x.ptr % 16 for x in there)
    layouts = tuple(map(layout_of, there))

    def lower() -> Lowered:
        return copy_parts.concat(layouts, axis, machine(dev.multiprocessors), gcd(16, *places))

    launch(dev, ("concat", axis, layouts, places), lower, [*there, out])
