"""Scans along an axis, by the lowering that all devices share (`codegen.scan`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray, storage_of
from everygrad.backends.webgpu.kernels.copy_kernels import contiguous
from everygrad.backends.webgpu.source.kernel_render import RenderedKernel, render
from everygrad.codegen import scan as lowering
from everygrad.codegen.machine import Machine
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

# 16 KB of workgroup memory hold two numbers of 8 bytes for each of the 256 threads
_MACHINE = Machine(
    threads=256,
    wide_float=dtypes.float32,
    narrow_index=dtypes.uint32,
    narrow=1 << 31,
    wide_index=None,
    parallel=1 << 16,
)


@lru_cache(maxsize=512)
def _planned(
    op: str, dtype: DType, shape: Shape, axis: int, reverse: bool
) -> tuple[list[tuple[RenderedKernel, tuple[int, ...], int]], tuple[tuple[DType, int], ...]]:
    """Kernels with their arrays and how many of those are read; and the temporaries."""
    plan = lowering.plan(op, dtype, shape, axis, _MACHINE, reverse)
    made = []
    for kernel, arrays in plan.launches:
        written = [b.written for b in kernel.buffers]
        ordered = [a for a, w in zip(arrays, written, strict=True) if not w]
        ordered += [a for a, w in zip(arrays, written, strict=True) if w]
        made.append((render(kernel), tuple(ordered), len(arrays) - sum(written)))
    return made, plan.temporaries


def serves(dev: WebGPU, dtype: DType, shape: Shape) -> bool:
    """Whether there is a kernel; the definition goes over more than a binding in windows."""
    return lowering.serves(dtype) and size_of(shape) * 8 <= dev.gpu.limits.binding_size


def _scan(
    op: str, dev: WebGPU, *arrays: WebGPUArray, axis: int, reverse: bool = False
) -> WebGPUArray | Any:
    dtype, shape = FROM_NP[arrays[0].dtype], arrays[0].shape
    if not serves(dev, dtype, shape):
        return NotImplemented
    given = [contiguous(dev, a) for a in arrays]
    out: WebGPUArray = dev.empty(shape, lowering.result_dtype(op, dtype))
    if not size_of(shape):
        return out
    kernels, temporaries = _planned(op, dtype, shape, axis, reverse)
    held = [*given, out, *(dev.empty((count,), d) for d, count in temporaries)]
    for kernel, places, read in kernels:
        storages = [storage_of(held[p]) for p in places]
        params = kernel.params([held[p].offset for p in places[:read]])
        dev.gpu.dispatch(
            kernel.name, kernel.source, storages[:read], storages[read:], params, kernel.groups
        )
    return out


def _kernel(op: str) -> Callable[..., Any]:
    def run(dev: WebGPU, *arrays: WebGPUArray, **params: Any) -> Any:
        return _scan(op, dev, *arrays, **params)

    return run


KERNELS: dict[str, Callable[..., Any]] = {op: _kernel(op) for op in lowering.OPS}
