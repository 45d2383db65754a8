"""Kernels of the kernel language on arrays: the device's numbers, and how they are launched."""

from __future__ import annotations

from collections.abc import Sequence

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray, storage_of
from everygrad.backends.webgpu.source.kernel_render import render
from everygrad.codegen.copy import Layout, Lowered
from everygrad.codegen.machine import Machine
from everygrad.dtypes import FROM_NP

MACHINE = Machine(
    threads=256,
    wide_float=dtypes.float32,
    narrow_index=dtypes.uint32,
    narrow=1 << 31,
    wide_index=None,
    word=4,
    checks_apart=True,
    sorted_keys=1024,
    sorting_threads=256,
    atomic_sums=(dtypes.int32, dtypes.uint32),
)


def layout_of(x: WebGPUArray) -> Layout:
    return Layout(FROM_NP[x.dtype], x.shape, x.strides)


def launch(lowered: Lowered, arrays: Sequence[WebGPUArray]) -> None:
    """Launch a kernel; arrays stand for its buffers, those it reads before those it writes."""
    kernel = lowered.rendered(render)
    read, storages = kernel.read, [storage_of(a) for a in arrays]
    offsets = [a.offset + start for a, start in zip(arrays[:read], lowered.starts, strict=False)]
    gpu, written = storages[0].gpu, storages[read:]
    if kernel.faults:
        written.append(gpu.fault_storage())
    params = kernel.params(offsets)
    gpu.dispatch(kernel.name, kernel.source, storages[:read], written, params, kernel.groups)
