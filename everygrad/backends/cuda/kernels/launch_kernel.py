"""Kernels of the kernel language on arrays: the device's numbers, and how they are launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.source.kernel_render import render
from everygrad.backends.cuda.source.writer import BLOCK, NARROW, grid
from everygrad.codegen.copy import Layout, Lowered
from everygrad.codegen.machine import Machine
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import FROM_NP

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

_THREADS = 2048  # of a multiprocessor, which keep it busy
_HELD = edge(__name__, "_HELD", 32, "size")  # elements of a row in one thread's registers
_SORTED = edge(__name__, "_SORTED", 2048, "size")  # keys that one block sorts in shared memory
_SORTING = edge(__name__, "_SORTING", 1024, "size")  # threads of such a block


@lru_cache
def machine(multiprocessors: int) -> Machine:
    return Machine(
        threads=BLOCK,
        wide_float=dtypes.float64,
        narrow_index=dtypes.uint32,
        narrow=NARROW,
        wide_index=dtypes.uint64,
        parallel=multiprocessors * _THREADS,
        most_groups=grid(NARROW, multiprocessors),
        warp=32,
        most_held=_HELD,
        shared_bytes=48 << 10,
        most_threads=1024,
        vector_bytes=16,
        sorted_keys=_SORTED,
        sorting_threads=_SORTING,
        run_threads=True,
    )


def layout_of(x: CudaArray) -> Layout:
    return Layout(FROM_NP[x.dtype], x.shape, x.strides)


def launch(dev: Cuda, key: Any, lower: Callable[[], Lowered], arrays: Sequence[CudaArray]) -> None:
    """Launch a kernel, lowered on first use; arrays stand for its buffers."""
    plan = dev.plans.get(key)
    if plan is None:
        lowered = lower()
        written = lowered.rendered(render)
        checks = written.pointers > len(lowered.kernel.buffers)
        pairs = zip(lowered.starts, arrays, strict=True)
        starts = tuple(start * a.dtype.itemsize for start, a in pairs)
        plan = dev.keep(key, (dev.gpu.prepare(written), starts, checks))
    kernel, starts, checks = plan
    pointers = [a.ptr + start for a, start in zip(arrays, starts, strict=True)]
    if checks:
        pointers.append(dev.gpu.faults())
    dev.gpu.launch(kernel, *pointers)
