"""Gathers and scatters, by the lowerings that all devices share (`codegen.gather`, `.scatter`).

The GPU records an index out of range, and the next read raises it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.kernels.copy_kernels import as_dtype, fit_bindings
from everygrad.backends.webgpu.kernels.launch_kernel import MACHINE, launch, layout_of
from everygrad.codegen import gather as gathers, scatter as scatters, scatter_sorted
from everygrad.codegen.groups.group_sums import accumulator_dtype
from everygrad.compiler.expr import Inst, Program
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import EverygradError, OutOfRangeError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

CHECK = "check_range"  # a check's name, and the word of its uniform that numbers its message
MESSAGE = 2


# --- checks --------------------------------------------------------------------------------------


def check_range(dev: WebGPU, x: WebGPUArray, size: int, what: str) -> WebGPUArray:
    return _checked(dev, x, size, what, OutOfRangeError)


def check_true(dev: WebGPU, ok: WebGPUArray, what: str, error: type[EverygradError]) -> WebGPUArray:
    return _checked(dev, ok, 1, what, error)


def _checked(
    dev: WebGPU, x: WebGPUArray, size: int, what: str, error: type[EverygradError]
) -> WebGPUArray:
    if x.storage is not None:
        number = x.storage.gpu.check_number(what, size, error)
        launch(gathers.check(layout_of(x), size, number, MACHINE), [x])
    return x


def _empty_axis_error(dev: WebGPU, op: str, index: WebGPUArray, size: int) -> OutOfRangeError:
    first = int(dev.to_numpy(index).reshape(-1)[0])
    return OutOfRangeError(f"{op}: index {first} is out of range for an axis of size {size}")


# --- gathers -------------------------------------------------------------------------------------


def take(dev: WebGPU, x: WebGPUArray, index: WebGPUArray, axis: int) -> WebGPUArray:
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if index.storage is not None and x.shape[axis] == 0:
        raise _empty_axis_error(dev, "take", index, 0)
    check_range(dev, index, x.shape[axis], "take: index")
    out: WebGPUArray = dev.empty(shape, FROM_NP[x.dtype])
    if out.storage is not None:
        lowered = gathers.take(layout_of(x), layout_of(index), axis, MACHINE)
        launch(lowered, [x, index, out])
    return out


def gather(dev: WebGPU, x: WebGPUArray, index: WebGPUArray, axis: int) -> WebGPUArray:
    if index.storage is not None and x.storage is None:
        raise _empty_axis_error(dev, "gather", index, x.shape[axis])
    check_range(dev, index, x.shape[axis], "gather: index")
    out: WebGPUArray = dev.empty(index.shape, FROM_NP[x.dtype])
    if out.storage is not None:
        lowered = gathers.gather(layout_of(x), layout_of(index), axis, MACHINE)
        launch(lowered, [x, index, out])
    return out


# --- scatters ------------------------------------------------------------------------------------


def _scatter(
    dev: WebGPU,
    op: str,
    x: WebGPUArray,
    index: WebGPUArray,
    source: WebGPUArray,
    axis: int,
    whole: bool,
) -> WebGPUArray:
    if index.storage is not None and x.storage is None:
        if x.shape[axis] == 0:
            raise _empty_axis_error(dev, op, index, 0)
        return x
    check_range(dev, index, x.shape[axis], f"{op}: index")
    if source.storage is None or x.storage is None:
        return x
    dtype = FROM_NP[x.dtype]
    what = scatters.Scatter(layout_of(x), layout_of(index), layout_of(source), axis, whole)
    if what.terms <= scatters.FEW:
        x, index, source = fit_bindings(dev, [x, index, source])
        out: WebGPUArray = dev.empty(x.shape, dtype)
        launch(scatters.search(op, what, MACHINE), [x, index, source, out])
        return out
    total = accumulator_dtype(dtype)
    out = _copied(dev, as_dtype(dev, x, total))
    what = what._replace(x=what.x._replace(dtype=total))
    if total in MACHINE.atomic_sums:
        launch(scatters.add_integers(op, what, MACHINE), [index, source, out])
        return as_dtype(dev, out, dtype)
    capacity = scatter_sorted.capacity_for(size_of(index.shape), MACHINE)
    keys: WebGPUArray = dev.empty((capacity,), dtypes.uint64)
    launch(scatter_sorted.write_keys(what, capacity, MACHINE), [index, keys])
    for step in scatter_sorted.sorting(capacity, MACHINE):
        launch(step, [keys])
    summing = scatter_sorted.add_runs(op, what, total, capacity, MACHINE)
    launch(summing, [keys, source, out])
    return as_dtype(dev, out, dtype)


def _copied(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """A contiguous copy with no other owner, to be added to."""
    dtype = FROM_NP[x.dtype]
    out: WebGPUArray = dev.elementwise("copy", Program((Inst("input", dtype, (), 0),)), [x])
    return out


def index_add(
    dev: WebGPU, x: WebGPUArray, index: WebGPUArray, source: WebGPUArray, axis: int
) -> WebGPUArray:
    return _scatter(dev, "index_add", x, index, source, axis, whole=True)


def scatter_add(
    dev: WebGPU, x: WebGPUArray, index: WebGPUArray, source: WebGPUArray, axis: int
) -> WebGPUArray:
    return _scatter(dev, "scatter_add", x, index, source, axis, whole=False)


# --- the last write ------------------------------------------------------------------------------


@lru_cache
def _minus_one(dtype: DType) -> Program:
    return Program(
        (
            Inst("input", dtypes.uint32, (), 0),
            Inst("cast", dtype, (0,)),
            Inst("const", dtype, (), 1),
            Inst("sub", dtype, (1, 2)),
        )
    )


def last_write(dev: WebGPU, index: WebGPUArray, size: int) -> WebGPUArray:
    """Positions are counted from 1, so that 0 means that nothing is written there."""
    dtype = FROM_NP[index.dtype]
    if not size:
        if index.storage is not None:
            raise _empty_axis_error(dev, "setitem", index, 0)
        return dev.empty((0,), dtype)
    check_range(dev, index, size, "setitem: index")
    found = _copied(dev, dev.full((size,), 0, dtypes.uint32))
    if index.storage is not None:
        launch(gathers.last_write(layout_of(index), size, MACHINE), [index, found])
    out: WebGPUArray = dev.elementwise("last_write", _minus_one(dtype), [found])
    return out
