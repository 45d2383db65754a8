"""Eager elementwise ops, reductions and ops along rows: graphs of one op, lowered as on every GPU.

What an op launches on arrays of these layouts is a `PlannedOp`, which the device keeps by the op,
its parameters and the layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.array import ALIGNED, CudaArray, Layout, layout, layout_of
from everygrad.backends.cuda.driver.gpu import Kernel
from everygrad.backends.cuda.kernels.launch_kernel import machine
from everygrad.compiler import array_graph
from everygrad.compiler.accumulate import of_nothing
from everygrad.compiler.array_graph import ArrayView, OpGraph
from everygrad.compiler.expr import Program
from everygrad.compiler.facts import OpFacts
from everygrad.compiler.row_ops import ROW_OPS
from everygrad.core.shapes import Shape, broadcast, reduced, size_of
from everygrad.core.strides import row_major
from everygrad.dtypes import FROM_NP

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


class PlannedOp(NamedTuple):
    """What an op launches, and its result. Each kernel has the numbers of its addresses: the op's
    arrays, each moved by its `shifts`, the result, then memory of `between` bytes. `keep`: what the
    keys of caches have the id of."""

    launches: tuple[tuple[Kernel, tuple[int, ...]], ...]
    shifts: tuple[int, ...]
    between: tuple[int, ...]
    shape: Shape
    strides: Shape
    dtype: Any
    size: int  # bytes of the result
    layout: Layout
    keep: Any
    is_plain: bool  # one kernel, of all its arrays in their order, where they are

    def run(self, dev: Cuda, arrays: Sequence[CudaArray]) -> CudaArray:
        launches, shifts, between, shape, strides, dtype, size, result_layout, _, is_plain = self
        gpu = dev.gpu
        storage = gpu.memory.take(size) if size else None
        made = CudaArray(dev.device, shape, dtype, storage, 0, strides)
        made.layout = result_layout
        if is_plain:
            gpu.launch(launches[0][0], *[a.ptr for a in arrays], made.ptr)
            return made
        at = [a.ptr + shift for a, shift in zip(arrays, shifts, strict=True)]
        at.append(made.ptr)
        if between:
            held = [gpu.memory.take(nbytes) for nbytes in between]
            at += [s.ptr for s in held]
        for kernel, places in launches:
            gpu.launch(kernel, *[at[k] for k in places])
        return made


def _view(a: CudaArray, number: int) -> tuple[ArrayView, int]:
    """An array as a view of memory that begins with the first of its elements, and how far that is
    from the array's address."""
    dtype, pairs = FROM_NP[a.dtype], list(zip(a.shape, a.strides, strict=True))
    low, high = (sum(f((n - 1) * s, 0) for n, s in pairs) for f in (min, max))
    shift = low * dtype.itemsize
    first, odd = divmod((a.ptr + shift) % ALIGNED, dtype.itemsize)
    if odd:  # no element is where 16 bytes begin, and none is read as part of a vector
        first = 1
    view = ArrayView(dtype, a.shape, a.strides, -low, number, high - low + 1, first)
    return view, shift


def planned(
    dev: Cuda, name: str, arrays: Sequence[CudaArray], graph_of: Callable[..., OpGraph],
    shape: Shape | None = None,
) -> PlannedOp:  # fmt: skip
    """What the graph of an op on these views launches; the result has this shape, or the graph's
    own."""
    views = [_view(a, k) for k, a in enumerate(arrays)]
    op = graph_of([view for view, _ in views])
    lowered = dev.texts.single_op(op, name, machine(dev.multiprocessors))
    launches = tuple(
        (dev.gpu.prepare(text.resized(sizes, groups)), places)
        for text, sizes, groups, places, _ in lowered.launches
    )
    (out,) = op.graph.outputs
    seen = out.shape if shape is None else shape
    shape, strides = (seen, row_major(seen)) if op.seen is None else op.seen
    between = tuple(dtype.itemsize * count for dtype, count in lowered.between)
    shifts = tuple(shift for _, shift in views)
    in_order = [places for _, places in launches] == [tuple(range(len(arrays) + 1))]
    return PlannedOp(
        launches, shifts, between, shape, strides, out.dtype.np, out.nbytes,
        layout(dev.device, shape, strides, out.dtype.np), tuple(v.op for v in op.graph.values),
        in_order and not any(shifts),
    )  # fmt: skip


def elementwise(
    dev: Cuda, name: str, program: Program, arrays: Sequence[CudaArray], ordered: bool = False
) -> PlannedOp:
    """A scalar program over arrays that broadcast; `ordered`: the result is contiguous."""
    shape = broadcast(name, *(a.shape for a in arrays))
    if not size_of(shape):
        dtype, steps = program.dtype.np, row_major(shape)
        made = layout(dev.device, shape, steps, dtype)
        return PlannedOp((), (0,) * len(arrays), (), shape, steps, dtype, 0, made, program, False)
    return planned(
        dev, name, arrays, lambda views: array_graph.elementwise(name, program, views, ordered)
    )


def reduce(dev: Cuda, op: OpFacts, x: CudaArray, axes: Shape, keepdims: bool) -> CudaArray:
    key = (op, axes, keepdims, x.layout or layout_of(x))
    found: PlannedOp | None = dev.plans.get(key)
    if found is None:
        dtype = dtypes.bool_ if op.combine in ("and", "or") else FROM_NP[x.dtype]
        shape = reduced(x.shape, axes, keepdims)
        if not size_of(shape):
            return dev.empty(shape, dtype)
        if x.storage is None:
            return dev.full(shape, of_nothing(op.combine, dtype, op.mean), dtype)
        found = dev.keep(key, planned(
            dev, op.name, [x], lambda views: array_graph.reduction(op, views[0], axes), shape
        ))  # fmt: skip
    return found.run(dev, [x])


def prod(dev: Cuda, x: CudaArray, axes: Shape, keepdims: bool) -> CudaArray:
    return reduce(dev, array_graph.PRODUCT, x, axes, keepdims)


def rows(
    name: str, dev: Cuda, *arrays: CudaArray, axis: int | None = None, axes: Shape = (),
    eps: float = 0.0,
) -> Any:  # fmt: skip
    """An op along an axis, or along the rows that some make, of arrays of one shape; NotImplemented
    for dtypes that are not real floats."""
    axes = axes if axis is None else (axis,)
    key = (name, axes, eps, *[a.layout or layout_of(a) for a in arrays])
    found: PlannedOp | None = dev.plans.get(key)
    if found is None:
        x = arrays[0]
        if not FROM_NP[x.dtype].is_float:
            return NotImplemented
        if x.storage is None:
            return x
        found = dev.keep(key, planned(
            dev, name, arrays, lambda views: array_graph.along_rows(name, views, axes, eps), x.shape
        ))  # fmt: skip
    return found.run(dev, arrays)


KERNELS: dict[str, Callable[..., Any]] = {
    **{name: partial(rows, name) for name in ROW_OPS},
    "prod": prod,
}
