"""Eager ops as graphs of one op: lowered as fused groups are, behind one cache of launches.

What an op launches on arrays of these layouts is looked up by its key. Sizes are arguments of the
launch: arrays of other sizes mostly have the same kernels, which are looked up by their form.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from everygrad import dtypes
from everygrad.backends.strided_array import span
from everygrad.backends.webgpu.array import WebGPUArray, distinct, storage_of
from everygrad.backends.webgpu.driver.gpu import Gpu, Kernel
from everygrad.backends.webgpu.driver.memory import Storage
from everygrad.backends.webgpu.kernels import copy_kernels
from everygrad.backends.webgpu.source.kernel_render import render
from everygrad.backends.webgpu.source.machine import machine_of
from everygrad.backends.webgpu.source.word_layout import byte_size
from everygrad.codegen.groups.kernel_texts import KernelTexts
from everygrad.compiler import array_graph
from everygrad.compiler.accumulate import of_nothing
from everygrad.compiler.array_graph import ArrayView, OpGraph
from everygrad.compiler.expr import Program
from everygrad.compiler.facts import OpFacts
from everygrad.compiler.row_ops import ROW_OPS
from everygrad.core.shapes import Shape, reduced, size_of
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import DtypeError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

_MOST = 1 << 14  # launches cached with their layouts


class Launch(NamedTuple):
    """A kernel, and the memory it binds: inputs first, then the result, then what is between."""

    kernel: Kernel
    places: tuple[int, ...]


class Planned(NamedTuple):
    """What an op launches, and its result. `storages`: which ones its inputs are; `between`: bytes
    of the memory between its kernels; `keep`: what the key of a cache has the id of."""

    launches: tuple[Launch, ...]
    storages: tuple[int, ...]
    between: tuple[int, ...]
    shape: Shape
    dtype: DType
    nbytes: int
    keep: object

    def run(
        self, dev: WebGPU, storages: Sequence[Storage], out: WebGPUArray | None = None
    ) -> WebGPUArray:
        """Record the launches on the storages of an op's arrays, into `out` if that is given."""
        gpu = dev.gpu
        pool = gpu.pool
        if out is None:
            out = WebGPUArray(dev.device, self.shape, self.dtype.np, pool.take(self.nbytes))
        blocks = [storages[k].block for k in self.storages]
        blocks.append(storage_of(out).block)
        if self.between:
            between = [pool.take(nbytes) for nbytes in self.between]
            blocks += [s.block for s in between]
        for kernel, places in self.launches:
            gpu.record(kernel, [blocks[k] for k in places])
        return out


class LaunchCache:
    """The launches of one device's eager ops."""

    def __init__(self) -> None:
        self.plans: dict[Hashable, Planned] = {}
        self.texts = KernelTexts("webgpu", lambda kernel: render(kernel, offsets=False))

    def clear(self) -> None:
        self.plans.clear()
        self.texts.known.clear()

    def add(self, key: Hashable, gpu: Gpu, op: OpGraph, name: str, shape: Shape) -> Planned:
        """What an op launches whose result has this shape, kept by its key."""
        if len(self.plans) >= _MOST:
            self.plans.clear()
        found = self.plans[key] = self.planned(gpu, op, name, shape)
        return found

    def planned(self, gpu: Gpu, op: OpGraph, name: str, shape: Shape) -> Planned:
        limits = gpu.limits
        self.texts.buffers = limits.storage_buffers
        machine = machine_of(limits.shared_bytes, gpu.is_software)
        lowered = self.texts.single_op(op, name, machine)
        launches = []
        for text, sizes, groups, places, reads in lowered.launches:
            params, writes = [groups, *sizes], len(places) - reads
            kernel = gpu.prepare(text.name, text.source, reads, writes, params, groups)
            launches.append(Launch(kernel, places))
        (out,) = op.graph.outputs
        return Planned(
            tuple(launches), op.storages, tuple(byte_size(*part) for part in lowered.between),
            shape, out.dtype, byte_size(out.dtype, out.size),
            tuple(v.op for v in op.graph.values),
        )  # fmt: skip


# --- ops on arrays -------------------------------------------------------------------------------


def _views(arrays: Sequence[WebGPUArray], bindings: Sequence[int]) -> list[ArrayView]:
    return [
        ArrayView(FROM_NP[a.dtype], a.shape, a.strides, a.offset, at, span(a)[1] + 1)
        for a, at in zip(arrays, bindings, strict=True)
    ]


def elementwise(
    dev: WebGPU,
    name: str,
    program: Program,
    arrays: Sequence[WebGPUArray],
    out: WebGPUArray | None = None,
) -> WebGPUArray:
    """A scalar program over arrays that have elements and broadcast; into `out` if given."""
    storages, bindings = distinct(arrays)
    key = (id(program), bindings, *[(a.shape, a.strides, a.offset) for a in arrays])
    planned = dev.launch_cache.plans.get(key)
    if planned is None:
        op = array_graph.elementwise(name, program, _views(arrays, bindings))
        (made,) = op.graph.outputs
        out = out or dev.empty(made.shape, made.dtype)
        planned = dev.launch_cache.add(key, dev.gpu, op, name, made.shape)
    return planned.run(dev, storages, out)


def prod(dev: WebGPU, x: WebGPUArray, axes: Shape, keepdims: bool) -> WebGPUArray:
    return reduce(dev, array_graph.PRODUCT, x, axes, keepdims)


def reduce(dev: WebGPU, op: OpFacts, x: WebGPUArray, axes: Shape, keepdims: bool) -> WebGPUArray:
    key = (op, axes, keepdims, x.dtype, x.shape, x.strides, x.offset)
    planned = dev.launch_cache.plans.get(key)
    if planned is None:
        shape = reduced(x.shape, axes, keepdims)
        dtype = dtypes.bool_ if op.combine in ("and", "or") else FROM_NP[x.dtype]
        if not size_of(shape):
            return WebGPUArray(dev.device, shape, dtype.np, None)
        if x.storage is None:
            made: WebGPUArray = dev.full(shape, of_nothing(op.combine, dtype, op.mean), dtype)
            return made
        graph = array_graph.reduction(op, _views([x], [0])[0], axes, dev.gpu.is_software)
        planned = dev.launch_cache.add(key, dev.gpu, graph, op.name, shape)
    return planned.run(dev, [storage_of(x)])


def floating(name: str, array: WebGPUArray) -> DType:
    """The dtype of an array, which must be a float."""
    dtype = FROM_NP[array.dtype]
    if not dtype.is_float:
        raise DtypeError(f"{name}: takes floating dtypes, got {dtype}; cast it with astype()")
    return dtype


def rows(
    name: str, dev: WebGPU, *given: WebGPUArray, axis: int | None = None, axes: Shape = (),
    eps: float = 0.0,
) -> WebGPUArray:  # fmt: skip
    """An op along an axis, or along the rows that some make, of arrays of one shape."""
    arrays: Sequence[WebGPUArray] = given
    axes = axes if axis is None else (axis,)
    dtype = floating(name, arrays[0])
    if arrays[0].storage is None:
        return arrays[0]
    arrays = copy_kernels.fit_bindings(dev, arrays)
    storages, bindings = distinct(arrays)
    layouts = [(a.strides, a.offset) for a in arrays]
    key = (name, axes, eps, dtype, bindings, arrays[0].shape, *layouts)
    planned = dev.launch_cache.plans.get(key)
    if planned is None:
        op = array_graph.along_rows(name, _views(arrays, bindings), axes, eps, True)
        planned = dev.launch_cache.add(key, dev.gpu, op, name, arrays[0].shape)
    return copy_kernels.as_dtype(dev, planned.run(dev, storages), dtype)


ROWS: dict[str, Callable[..., WebGPUArray]] = {name: partial(rows, name) for name in ROW_OPS}
