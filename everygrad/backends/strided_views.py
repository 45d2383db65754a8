"""View ops on strided arrays: views where strides can express them, else a device's kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from everygrad.backends.strided_array import StridedArray
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import broadcast_strides, reshape_strides
from everygrad.dtypes import FROM_NP

if TYPE_CHECKING:
    from everygrad.backends.gpu import GpuBackend

A = TypeVar("A", bound=StridedArray)
Slices = tuple[tuple[int, int, int], ...]  # by axis: start, count, step
_MAX_CONCAT = edge(__name__, "_MAX_CONCAT", 16, "count")  # inputs of one concat kernel


def without_elements(like: A, shape: Shape) -> A:
    """An array without elements, and without storage."""
    return type(like)(like.device, shape, like.dtype, None)


def reshape(dev: GpuBackend, x: A, shape: Shape) -> A:
    if size_of(shape) != size_of(x.shape):
        raise ValueError("element counts differ")
    if x.storage is None:
        return without_elements(x, shape)
    strides = reshape_strides(x.shape, x.strides, shape)
    if strides is None:
        x = dev.contiguous(x)
    return x.view(shape, strides)


def permute_dims(dev: GpuBackend, x: A, axes: Shape) -> A:
    return x.view(tuple(x.shape[a] for a in axes), tuple(x.strides[a] for a in axes))


def broadcast_to(dev: GpuBackend, x: A, shape: Shape) -> A:
    if not size_of(shape):
        return without_elements(x, shape)
    return x.view(shape, broadcast_strides(x.shape, x.strides, shape))


def take_slices(dev: GpuBackend, x: A, slices: Slices) -> A:
    shape = tuple(count for _, count, _ in slices)
    if not size_of(shape):
        return without_elements(x, shape)
    pairs = list(zip(slices, x.strides, strict=True))
    offset = x.offset + sum(start * stride for (start, _, _), stride in pairs)
    return x.view(shape, tuple(step * stride for (_, _, step), stride in pairs), offset)


def concat(dev: GpuBackend, *xs: A, axis: int, sizes: Shape) -> A:
    """Concatenated arrays, a few in each kernel; those without elements are skipped."""
    there = [x for x in xs if x.storage is not None]
    if len(there) == 1:
        return there[0]
    while len(there) > _MAX_CONCAT:
        there = [
            concat(dev, *some, axis=axis, sizes=tuple(x.shape[axis] for x in some))
            for some in (there[i : i + _MAX_CONCAT] for i in range(0, len(there), _MAX_CONCAT))
        ]
    shape = (*xs[0].shape[:axis], sum(sizes), *xs[0].shape[axis + 1 :])
    out: A = dev.empty(shape, FROM_NP[xs[0].dtype])
    if out.storage is not None:
        dev.concat_into(out, there, axis)
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    "reshape": reshape,
    "permute_dims": permute_dims,
    "broadcast_to": broadcast_to,
    "slice": take_slices,
    "concat": concat,
    "identity": lambda dev, x: x,
}
