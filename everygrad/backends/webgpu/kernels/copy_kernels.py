"""Copies where a view is not possible: one kernel writes a contiguous result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad.backends.strided_views import Slices
from everygrad.backends.webgpu.array import WebGPUArray, distinct
from everygrad.backends.webgpu.kernels.launch_kernel import MACHINE, launch, layout_of
from everygrad.backends.webgpu.source.word_layout import raw
from everygrad.codegen import copy_parts
from everygrad.compiler.array_graph import cast_program
from everygrad.compiler.expr import Inst, Program
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU


@lru_cache
def identity(dtype: DType) -> Program:
    return Program((Inst("input", dtype, (), 0),))


def as_dtype(dev: WebGPU, x: WebGPUArray, dtype: DType) -> WebGPUArray:
    """Elements converted."""
    source = FROM_NP[x.dtype]
    if source is dtype:
        return x
    made: WebGPUArray = dev.elementwise("astype", cast_program(source, dtype), [x])
    return made


def contiguous(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """The same elements in C order."""
    if x.storage is None or x.is_contiguous:
        return x
    return copied(dev, x)


def copied(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """The same elements in C order, from the start of a storage of their own."""
    bits = raw(FROM_NP[x.dtype])
    copy: WebGPUArray = dev.elementwise("copy", identity(bits), [x.bitcast(bits.np)])
    return copy.bitcast(x.dtype)


def fit_bindings(dev: WebGPU, arrays: Sequence[WebGPUArray]) -> list[WebGPUArray]:
    """The arrays on no more buffers than one kernel may read: the last ones are packed into one."""
    most = dev.gpu.limits.storage_buffers - 1
    storages = list({id(a.storage): a.storage for a in arrays if a.storage is not None}.values())
    if len(storages) <= most:
        return list(arrays)
    packed = storages[most - 1 :]
    starts: dict[int, int] = {}
    total = 0
    for s in packed:
        starts[id(s)] = total
        total += -(-s.size // 16) * 16
    packed_storage = dev.gpu.pool.take(total)
    for s in packed:
        dev.gpu.copy(s, packed_storage, starts[id(s)], s.size)
    made = []
    for a in arrays:
        start = starts.get(id(a.storage))
        if start is None:
            made.append(a)
        else:
            offset = a.offset + start // a.dtype.itemsize
            made.append(WebGPUArray(a.device, a.shape, a.dtype, packed_storage, offset, a.strides))
    return made


# --- what strides cannot express ------------------------------------------------------------------


def unslice(dev: WebGPU, x: WebGPUArray, shape: Shape, slices: Slices) -> WebGPUArray:
    dtype = FROM_NP[x.dtype]
    if x.storage is None or not size_of(shape) or not shape:
        return x if not shape else dev.full(shape, 0, dtype)
    out: WebGPUArray = dev.empty(shape, dtype)
    launch(copy_parts.unslice(layout_of(x), shape, slices, MACHINE), [x, out])
    return out


def concat_into(dev: WebGPU, out: WebGPUArray, arrays: Sequence[WebGPUArray], axis: int) -> None:
    """Write arrays into `out`, one behind the other along an axis."""
    there = fit_bindings(dev, arrays)
    storages, bindings = distinct(there)
    layouts, offsets = tuple(map(layout_of, there)), tuple(a.offset for a in there)
    if len(storages) == len(there):
        launch(copy_parts.concat(layouts, axis, MACHINE), [*there, out])
        return
    lowered = copy_parts.concat(layouts, axis, MACHINE, 1, bindings, offsets)
    whole = [WebGPUArray(out.device, (), out.dtype, s) for s in storages]
    launch(lowered, [*whole, out])
