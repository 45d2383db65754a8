"""Copies where a view is not possible: one kernel writes a contiguous result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad.backends.strided_views import Slices
from everygrad.backends.webgpu.array import WebGPUArray, distinct
from everygrad.backends.webgpu.source.render import (
    address,
    constant,
    element_kernel,
    slot,
    split_index,
)
from everygrad.backends.webgpu.source.word_layout import layout, load, raw, thread_count
from everygrad.compiler.expr import Inst, Program
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU


@lru_cache
def identity(dtype: DType) -> Program:
    return Program((Inst("input", dtype, (), 0),))


def contiguous(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """The same elements in C order."""
    if x.storage is None or x.is_contiguous:
        return x
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


# --- unslice: zeros except where a slice would read -----------------------------------------------


@lru_cache(maxsize=512)
def _unslice_source(dtype: DType, rank: int) -> str:
    """Uniform: the count, rank - 1 sizes; offset and strides; start, step, count of each axis."""
    lines, names = split_index(rank, 1)
    first = rank + 1 + rank
    inside = []
    for k in range(rank):
        start, step, count = (slot(first + 3 * k + j) for j in range(3))
        lines.append(f"  let d{k} = bitcast<i32>(i{k}) - bitcast<i32>({start});")
        lines.append(f"  let q{k} = d{k} / bitcast<i32>({step});")
        inside.append(f"q{k} * bitcast<i32>({step}) == d{k} && q{k} >= 0 && u32(q{k}) < {count}")
        names[k] = f"u32(q{k})"
    register = layout(dtype).register
    zero = constant(0, dtype)
    text = (
        f"fn element(e: u32) -> {register} {{\n" + "\n".join(lines) + "\n"
        f"  if (!({' && '.join(inside)})) {{ return {zero}; }}\n"
        f"  let p = {address(rank, names)};\n  return {load(dtype, 'a0', 'p')};\n}}\n"
    )
    return element_kernel(1, first + 3 * rank, dtype, text, slot(0))


def unslice(dev: WebGPU, x: WebGPUArray, shape: Shape, slices: Slices) -> WebGPUArray:
    dtype = FROM_NP[x.dtype]
    if x.storage is None or not size_of(shape) or not shape:
        return x if not shape else dev.full(shape, 0, dtype)
    out: WebGPUArray = dev.empty(shape, dtype)
    dtype = raw(dtype)
    count = size_of(shape)
    params = [count, *shape[1:], x.offset, *x.strides]
    for start, n, step in slices:
        params += (start, step, n)
    source = _unslice_source(dtype, len(shape))
    dev.launch("unslice", source, [x.storage], out, params, thread_count(dtype, count))
    return out


# --- concat --------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _concat_source(dtype: DType, rank: int, axis: int, bindings: tuple[int, ...]) -> str:
    """Uniform: the count, rank - 1 sizes; where each input ends; their offsets and strides."""
    lines, names = split_index(rank, 1)
    first = rank + len(bindings)
    for k, binding in enumerate(bindings):
        at = address(first + k * (rank + 1), names)
        lines.append(
            f"  if (i{axis} < {slot(rank + k)}) {{\n    let p = {at};\n"
            f"    return {load(dtype, f'a{binding}', 'p')};\n  }}"
        )
    register = layout(dtype).register
    text = (
        f"fn element(e: u32) -> {register} {{\n" + "\n".join(lines) + "\n"
        f"  return {constant(0, dtype)};\n}}\n"
    )
    params = first + len(bindings) * (rank + 1)
    return element_kernel(max(bindings) + 1, params, dtype, text, slot(0))


def concat_into(dev: WebGPU, out: WebGPUArray, arrays: Sequence[WebGPUArray], axis: int) -> None:
    """Write arrays into `out`, one behind the other along an axis."""
    shape, count = out.shape, size_of(out.shape)
    dtype = raw(FROM_NP[out.dtype])
    there = fit_bindings(dev, arrays)
    storages, bindings = distinct(there)
    params, ends, end = [count, *shape[1:]], [], 0
    tail: list[int] = []
    for x in there:
        tail += (x.offset - end * x.strides[axis], *x.strides)
        end += x.shape[axis]
        ends.append(end)
    source = _concat_source(dtype, len(shape), axis, bindings)
    params += (*ends, *tail)
    dev.launch("concat", source, storages, out, params, thread_count(dtype, count))
