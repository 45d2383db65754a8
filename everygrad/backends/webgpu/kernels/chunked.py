"""Elementwise kernels on tensors larger than one binding: chunks along the outermost axis.

A chunk binds only those bytes of each tensor that it touches. If even the smallest chunk touches
more of a tensor than a binding holds (a transposed matrix: each row is spread over all of it), that
tensor is bound as several windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad.backends.strided_array import span
from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.driver import binding_windows
from everygrad.backends.webgpu.driver.memory import Block, Storage
from everygrad.backends.webgpu.kernels import single_op
from everygrad.compiler.expr import Program
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.core.strides import broadcast_strides, collapse, row_major
from everygrad.errors import OutOfMemoryError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU
    from everygrad.backends.webgpu.driver.gpu import Gpu

_MANY = edge(__name__, "_MANY", 64, "count")  # chunks, from which windows are faster


class _StorageSlice(NamedTuple):
    """Some bytes of a storage, used like a storage: it keeps the whole one and its block alive."""

    of: Storage
    block: Block


def is_needed(gpu: Gpu, arrays: Sequence[WebGPUArray], out: WebGPUArray) -> bool:
    """Whether a tensor is larger than a binding, and slices of it can be bound: the commands of a
    compiled function bind whole blocks."""
    most = gpu.limits.binding_size
    large = any(a.storage is not None and a.storage.block.size > most for a in (*arrays, out))
    return large and gpu.log is None


def elementwise(
    dev: WebGPU, name: str, program: Program, arrays: Sequence[WebGPUArray], out: WebGPUArray
) -> None:
    """A scalar program over arrays that broadcast to `out`, which is in C order."""
    steps = [broadcast_strides(a.shape, a.strides, out.shape) for a in arrays]
    sizes, strides = collapse(out.shape, steps)
    flat = [a.view(sizes, s) for a, s in zip(arrays, strides, strict=True)]
    result = out.view(sizes, row_major(sizes))
    rows = _rows(dev, name, flat, result)
    for first in range(0, sizes[0], rows):
        count = min(rows, sizes[0] - first)
        *parts, made = [_slice_rows(dev, a, first, count) for a in (*flat, result)]
        single_op.elementwise(dev, name, program, parts, made)


def _rows(dev: WebGPU, name: str, arrays: list[WebGPUArray], out: WebGPUArray) -> int:
    """How many steps of the first axis a chunk takes: as many as touch one binding's worth of each
    array, unless that makes very small chunks; else as many as all bindings hold. Chunks of the
    result begin where a binding may."""
    limits, whole = dev.gpu.limits, out.shape[0]
    grain = binding_windows.ALIGNMENT // gcd(size_of(out.shape[1:]), binding_windows.ALIGNMENT)
    several = 0
    rows = whole
    while True:
        counts = [_windows(a, rows, limits.binding_size) for a in (*arrays, out)]
        if max(counts) == 1:
            return several if several and whole > _MANY * rows else rows
        if sum(counts) <= limits.storage_buffers:
            several = several or rows
        if rows <= grain:
            break
        rows = max(grain, rows // 2 // grain * grain)
    if several:
        return several
    raise OutOfMemoryError(
        f"webgpu: {name}: {rows} rows of its result, the fewest that can be made at once, touch "
        f"{sum(counts)} bindings of {limits.binding_size} bytes (max-storage-buffer-binding-size), "
        f"and this device binds {limits.storage_buffers} at once "
        f"(max-storage-buffers-per-shader-stage); split the tensors"
    )


def _windows(a: WebGPUArray, rows: int, most: int) -> int:
    """How many bindings hold what `rows` steps touch, wherever they begin."""
    low, high = span(a.view((rows, *a.shape[1:]), a.strides))
    nbytes = (high - low + 1) * a.dtype.itemsize + binding_windows.ALIGNMENT + 16
    return -(-nbytes // binding_windows.span(most))


def _slice_rows(dev: WebGPU, a: WebGPUArray, first: int, count: int) -> WebGPUArray:
    """`count` steps of an array, on the slice of its block that they touch."""
    assert a.storage is not None
    size = a.dtype.itemsize
    shown = a.view((count, *a.shape[1:]), a.strides, a.offset + first * a.strides[0])
    low, high = span(shown)
    start = low * size // binding_windows.ALIGNMENT * binding_windows.ALIGNMENT
    end = min(-(-(high + 1) * size // 16) * 16, a.storage.block.size)
    block = dev.gpu.slice(a.storage.block, start, end - start)
    storage: Any = _StorageSlice(a.storage, block)
    offset = shown.offset - start // size
    return WebGPUArray(a.device, shown.shape, a.dtype, storage, offset, a.strides)
