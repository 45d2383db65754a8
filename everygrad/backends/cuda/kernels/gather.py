"""Gathers, and checks of values, by the lowerings that all devices share (`codegen.gather`).

Kernels check every index before they use it: a bad one reads nothing, and the next read raises.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.kernels.launch_kernel import launch, layout_of, machine
from everygrad.codegen import gather as gathers
from everygrad.codegen.copy import Lowered
from everygrad.compiler.expr import Inst, Program
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP
from everygrad.errors import EverygradError, OutOfRangeError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


def nothing_to_take(dev: Cuda, op: str, index: CudaArray, size: int) -> OutOfRangeError:
    first = int(dev.to_numpy(index).reshape(-1)[0])
    return OutOfRangeError(f"{op}: index {first} is out of range for an axis of size {size}")


# --- checks --------------------------------------------------------------------------------------


def check_range(dev: Cuda, x: CudaArray, size: int, what: str) -> CudaArray:
    return _checked(dev, x, size, dev.gpu.check_number(what, size))


def check_true(dev: Cuda, ok: CudaArray, what: str, error: type[EverygradError]) -> CudaArray:
    return _checked(dev, ok, 1, dev.gpu.check_number(what, 1, error))


def _checked(dev: Cuda, x: CudaArray, size: int, number: int) -> CudaArray:
    if x.storage is not None:
        key = ("check_range", x.shape, x.strides, x.dtype, size, number)
        at = machine(dev.multiprocessors)
        launch(dev, key, lambda: gathers.check(layout_of(x), size, number, at), [x])
    return x


# --- take and gather -----------------------------------------------------------------------------


def take(dev: Cuda, x: CudaArray, index: CudaArray, axis: int) -> CudaArray:
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if index.storage is not None and x.shape[axis] == 0:
        raise nothing_to_take(dev, "take", index, 0)
    if not size_of(shape):  # nothing is gathered, but the indices are checked
        check_range(dev, index, x.shape[axis], "take: index")
    out: CudaArray = dev.empty(shape, FROM_NP[x.dtype])
    if out.storage is None:
        return out
    number = dev.gpu.check_number("take: index", x.shape[axis])
    aligned = x.ptr % 16
    layouts = (x.shape, x.strides, aligned, index.shape, index.strides, index.dtype)

    def lower() -> Lowered:
        at = machine(dev.multiprocessors)
        return gathers.take(layout_of(x), layout_of(index), axis, at, number, aligned or 16)

    launch(dev, ("take", *layouts, x.dtype, axis), lower, [x, index, out])
    return out


def gather(dev: Cuda, x: CudaArray, index: CudaArray, axis: int) -> CudaArray:
    if index.storage is not None and x.storage is None:
        raise nothing_to_take(dev, "gather", index, x.shape[axis])
    out: CudaArray = dev.empty(index.shape, FROM_NP[x.dtype])
    if out.storage is None:
        return out
    number = dev.gpu.check_number("gather: index", x.shape[axis])

    def lower() -> Lowered:
        at = machine(dev.multiprocessors)
        return gathers.gather(layout_of(x), layout_of(index), axis, at, number)

    layouts = (x.shape, x.strides, index.shape, index.strides, index.dtype)
    launch(dev, ("gather", *layouts, x.dtype, axis), lower, [x, index, out])
    return out


# --- the last writer ------------------------------------------------------------------------------


@lru_cache
def _minus_one(source: Any, dtype: Any) -> Program:
    return Program(
        (
            Inst("input", source, (), 0),
            Inst("cast", dtype, (0,)),
            Inst("const", dtype, (), 1),
            Inst("sub", dtype, (1, 2)),
        )
    )


def last_write(dev: Cuda, index: CudaArray, size: int) -> CudaArray:
    """Positions count from 1, so that 0 means that nothing is written."""
    dtype = FROM_NP[index.dtype]
    if not size:
        if index.storage is not None:
            raise nothing_to_take(dev, "setitem", index, 0)
        return dev.empty((0,), dtype)
    at = machine(dev.multiprocessors)
    kind = gathers.positions(at, index.shape[0])
    found: CudaArray = dev.empty((size,), kind)
    dev.gpu.clear(found.ptr, kind.itemsize * size)
    if index.storage is not None:
        number = dev.gpu.check_number("setitem: index", size)
        key = ("last_write", index.shape, index.strides, dtype, size)
        launch(
            dev, key, lambda: gathers.last_write(layout_of(index), size, at, number), [index, found]
        )
    out: CudaArray = dev.elementwise("last_write", _minus_one(kind, dtype), [found])
    return out
