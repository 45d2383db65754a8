"""Eager ops as graphs of one op: lowered as fused groups are, behind one cache of launches.

What an op launches on arrays of these layouts is looked up by its key. Sizes are arguments of the
launch: arrays of other sizes mostly have the same kernels, which are looked up by their form.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.strided_array import span
from everygrad.backends.webgpu.array import WebGPUArray, distinct, storage_of
from everygrad.backends.webgpu.driver.gpu import Gpu, Kernel
from everygrad.backends.webgpu.driver.memory import Storage
from everygrad.backends.webgpu.kernels import copy_kernels
from everygrad.backends.webgpu.source.kernel_render import render
from everygrad.backends.webgpu.source.machine import machine_of, splits_rows
from everygrad.backends.webgpu.source.word_layout import byte_size
from everygrad.codegen import verify
from everygrad.codegen.group import GroupWriter, write_kernel
from everygrad.codegen.group_plan import task_of
from everygrad.codegen.group_sizes import form_of, sizes_of
from everygrad.codegen.group_sums import GroupKernel, PartialSums, second_stage, stage_bounds
from everygrad.compiler import array_graph
from everygrad.compiler.accumulate import of_nothing
from everygrad.compiler.array_graph import ArrayView, OpGraph
from everygrad.compiler.expr import Program
from everygrad.compiler.facts import OpFacts
from everygrad.compiler.fuse import fuse
from everygrad.compiler.groups import used_outside
from everygrad.compiler.ir import Value
from everygrad.compiler.row_ops import ROW_OPS
from everygrad.compiler.schedule import by_loop_nest, fusable
from everygrad.core.shapes import Shape, reduced, size_of
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import CompileError, DtypeError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

_MOST = 1 << 14  # launches cached with their layouts, and texts


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


class _Text(NamedTuple):
    """A kernel's source, and the names of the sizes that it takes."""

    name: str
    source: str
    sizes: tuple[Hashable, ...]


class _Stage(NamedTuple):
    """One kernel of a group: what it reads and writes, its groups, its sizes by name, and how it
    is written."""

    reads: list[Value | DType]
    writes: list[Value | DType]
    groups: int
    sizes: dict[Hashable, int]
    write: Callable[[], GroupKernel]


class SingleOps:
    """The launches of one device's eager ops."""

    def __init__(self) -> None:
        self.plans: dict[Hashable, Planned] = {}
        self.texts: dict[Hashable, tuple[_Text, ...]] = {}

    def clear(self) -> None:
        self.plans.clear()
        self.texts.clear()

    def add(self, key: Hashable, gpu: Gpu, op: OpGraph, name: str, shape: Shape) -> Planned:
        """What an op launches whose result has this shape, kept by its key."""
        if len(self.plans) >= _MOST:
            self.plans.clear()
        found = self.plans[key] = self.planned(gpu, op, name, shape)
        return found

    def planned(self, gpu: Gpu, op: OpGraph, name: str, shape: Shape) -> Planned:
        graph, limits = op.graph, gpu.limits
        machine = machine_of(limits.shared_bytes, gpu.is_software)
        groups = fuse(graph, fusable, is_split=splits_rows(machine, True))
        stored = used_outside(groups, graph.outputs)
        places: dict[Any, int] = {v: k for k, v in enumerate((*graph.inputs, *graph.outputs))}
        between: list[int] = []
        launches: list[Launch] = []

        def place(buffer: Any, nbytes: int) -> None:
            if buffer not in places:
                places[buffer] = len(places)
                between.append(nbytes)

        for group in groups:
            if op.strides is not None:
                group.stores = {v: op.strides for v in graph.outputs if v in group.members}
            for wanted in by_loop_nest(group, [v for v in group.members if v in stored]):
                writer = GroupWriter(task_of(group, wanted, machine), machine)
                for v in writer.task.wanted:
                    place(v, byte_size(v.dtype, v.size))
                for dtype, count in writer.scratch.items():
                    place((writer, dtype), byte_size(dtype, count))
                stages = self.stages(writer, limits.storage_buffers, name)
                for stage, text in zip(stages, self.text(writer, stages, name), strict=True):
                    params = [stage.groups, *(stage.sizes[size] for size in text.sizes)]
                    reads, writes = len(stage.reads), len(stage.writes)
                    kernel = gpu.prepare(
                        text.name, text.source, reads, writes, params, stage.groups
                    )
                    buffers = [
                        (writer, b) if isinstance(b, DType) else b
                        for b in (*stage.reads, *stage.writes)
                    ]
                    launches.append(Launch(kernel, tuple(places[b] for b in buffers)))
        (out,) = graph.outputs
        nbytes = byte_size(out.dtype, out.size)
        return Planned(
            tuple(launches), op.storages, tuple(between), shape, out.dtype, nbytes,
            tuple(v.op for v in graph.values),
        )  # fmt: skip

    def stages(self, writer: GroupWriter, buffers: int, name: str) -> list[_Stage]:
        """The kernel of a task, and those that combine its partial sums."""
        machine, scratch, sizes = writer.machine, writer.scratch, sizes_of(writer)
        made = [
            _Stage(
                [*writer.inputs()], [*writer.outputs(), *scratch], writer.mapping.workgroups, sizes,
                lambda: write_kernel([(writer, {})], machine, name),
            )
        ]  # fmt: skip
        sums = list(writer.partial_sums.values())
        most = max(1, buffers - len(scratch))
        for at in range(0, len(sums), most):
            made.append(_second(sums[at : at + most], writer, sizes, name))
        return made

    def text(self, writer: GroupWriter, stages: Sequence[_Stage], name: str) -> tuple[_Text, ...]:
        """The text of each stage."""
        form = (name, form_of(writer))
        found = self.texts.get(form)
        if found is None or verify.VERIFY_GROUPS:
            made = tuple(_written(stage.write()) for stage in stages)
            if found is not None and found != made:
                raise CompileError(f"webgpu: {name}: a form has two texts; please report it")
            if len(self.texts) >= _MOST:
                self.texts.clear()
            found = self.texts[form] = made
        return found


def _second(
    sums: Sequence[PartialSums], writer: GroupWriter, sizes: dict[Hashable, int], name: str
) -> _Stage:
    machine, scratch = writer.machine, writer.scratch
    used, bounds = {p.dtype for p in sums}, stage_bounds(sums, machine)
    return _Stage(
        [d for d in scratch if d in used], [p.value for p in sums], max(bounds.values()),
        sizes | bounds,
        lambda: second_stage(sums, scratch, machine, name, open_sizes=True),
    )  # fmt: skip


def _written(made: GroupKernel) -> _Text:
    rendered = render(made.kernel, offsets=False)
    return _Text(rendered.name, rendered.source, made.kernel.names)


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
    planned = dev.single_ops.plans.get(key)
    if planned is None:
        op = array_graph.elementwise(name, program, _views(arrays, bindings))
        (made,) = op.graph.outputs
        out = out or dev.empty(made.shape, made.dtype)
        planned = dev.single_ops.add(key, dev.gpu, op, name, made.shape)
    return planned.run(dev, storages, out)


def prod(dev: WebGPU, x: WebGPUArray, axes: Shape, keepdims: bool) -> WebGPUArray:
    return reduce(dev, array_graph.PRODUCT, x, axes, keepdims)


def reduce(dev: WebGPU, op: OpFacts, x: WebGPUArray, axes: Shape, keepdims: bool) -> WebGPUArray:
    key = (op, axes, keepdims, x.dtype, x.shape, x.strides, x.offset)
    planned = dev.single_ops.plans.get(key)
    if planned is None:
        shape = reduced(x.shape, axes, keepdims)
        dtype = dtypes.bool_ if op.combine in ("and", "or") else FROM_NP[x.dtype]
        if not size_of(shape):
            return WebGPUArray(dev.device, shape, dtype.np, None)
        if x.storage is None:
            made: WebGPUArray = dev.full(shape, of_nothing(op.combine, dtype, op.mean), dtype)
            return made
        graph = array_graph.reduction(op, _views([x], [0])[0], axes)
        planned = dev.single_ops.add(key, dev.gpu, graph, op.name, shape)
    return planned.run(dev, [storage_of(x)])


def floating(name: str, array: WebGPUArray) -> DType:
    """The dtype of an array, which must be a float."""
    dtype = FROM_NP[array.dtype]
    if not dtype.is_float:
        raise DtypeError(f"{name}: takes floating dtypes, got {dtype}; cast it with astype()")
    return dtype


def rows(
    dev: WebGPU, name: str, arrays: Sequence[WebGPUArray], axes: Shape, eps: float = 0.0
) -> WebGPUArray:
    """An op along the rows that these axes make; every array has the shape of the first."""
    dtype = floating(name, arrays[0])
    if arrays[0].storage is None:
        return arrays[0]
    arrays = copy_kernels.fit_bindings(dev, arrays)
    storages, bindings = distinct(arrays)
    layouts = [(a.strides, a.offset) for a in arrays]
    key = (name, axes, eps, dtype, bindings, arrays[0].shape, *layouts)
    planned = dev.single_ops.plans.get(key)
    if planned is None:
        op = array_graph.along_rows(name, _views(arrays, bindings), axes, eps)
        planned = dev.single_ops.add(key, dev.gpu, op, name, arrays[0].shape)
    return copy_kernels.as_dtype(dev, planned.run(dev, storages), dtype)


def _along(name: str) -> Callable[..., WebGPUArray]:
    """A kernel along one axis."""
    return lambda dev, *arrays, axis: rows(dev, name, arrays, (axis,))


def _over(name: str) -> Callable[..., WebGPUArray]:
    """A kernel over several axes."""
    return lambda dev, *arrays, axes, eps: rows(dev, name, arrays, axes, eps)


ROWS: dict[str, Callable[..., WebGPUArray]] = {
    name: _along(name) if "softmax" in name else _over(name) for name in ROW_OPS
}
