"""Adaptive pooling, whose windows follow from the size of the result, and what undoes pooling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from everygrad.core import shapes
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, OutOfRangeError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import CHECK_RANGE, check_index, gather, last_write, taken
from everygrad.ops.nn.conv2d import integers, named
from everygrad.ops.nn.pooling import SMALL, max_index, picked, tiled
from everygrad.ops.nn.sparse_interp import Table, weighted_gather_sum
from everygrad.ops.nn.window_geometry import check_ndim, lowest, places_of
from everygrad.ops.python.creation import arange, asarray
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Function, check_kind
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.reduce.reductions import argmax


class _Bins(NamedTuple):
    """The elements of an axis that each result is made of, all bins as long as the longest."""

    index: Any  # (out, longest): what each bin reads; what is too much reads its last element
    length: Any  # (out,)

    @property
    def inside(self) -> Any:
        """Which of what is read belongs to the bin."""
        return np.arange(self.index.shape[1]) < self.length[:, None]


def _bins(n: int, out: int) -> _Bins:
    place = np.arange(out)
    start, end = place * n // out, -(-(place + 1) * n // out)
    length = end - start
    steps = np.arange(int(length.max()))
    return _Bins(np.minimum(start[:, None] + steps, end[:, None] - 1), length)


@lru_cache(maxsize=256)
def _means(n: int, out: int) -> Table:
    """The mean of each bin."""
    bins = _bins(n, out)
    return Table(n, bins.index.T, bins.inside.T / bins.length)


def _wanted(op: str, x: Tensor, output_size: Any, count: int) -> Shape:
    """The sizes of the result; None keeps that of x."""
    check_ndim(op, x, count)
    given = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,) * count
    if len(given) == count:
        given = tuple(n if v is None else v for v, n in zip(given, x.shape[2:], strict=True))
    sizes = integers(op, "the output size", given, 1, count)
    if 0 in x.shape[2:]:
        raise ShapeError(f"{op}: {x.shape} has no places to choose from")
    return sizes


def _is_even(x: Tensor, out: Shape) -> bool:
    """Whether all bins are alike."""
    return all(n % m == 0 for n, m in zip(x.shape[2:], out, strict=True))


def _beside(table: Any, x: Tensor, axis: int, dtype: Any) -> Tensor:
    """A table (out, longest) as a tensor that fits the bins at an axis and the next."""
    made = asarray(table, dtype=dtype, device=x.device)
    return made.reshape((*made.shape, *(1,) * (x.ndim - axis - 1)))


def _along(x: Tensor, bins: _Bins, axis: int) -> Tensor:
    """x with an axis split into bins and what they read."""
    return taken(x, asarray(bins.index, dtype="int64", device=x.device), axis)


def _samples(count: int) -> Any:
    def make() -> Any:
        x = s.real(*SMALL[count])
        yield sample(x, 2)
        yield sample(x, (None,) * (count - 1) + (SMALL[count][-1] - 1,))

    return make


def _refusals(name: str, count: int) -> tuple[Any, ...]:
    x = s.real(*SMALL[count])
    return (
        refuse(ArgumentError, f"{name}: the output size must be", x, 0),
        refuse(ShapeError, f"{name}: takes", x[0, 0], 2),
        refuse(ShapeError, f"{name}: .* has no places", x[..., :0], 2),
    )


def _adaptive_avg_pool_of(count: int) -> Function:
    name = f"adaptive_avg_pool{count}d"

    def adaptive_avg_pool(x: Tensor, output_size: Any) -> Tensor:
        check_kind(name, x.dtype, "float")
        sizes = _wanted(name, x, output_size, count)
        if _is_even(x, sizes):
            each = [n // m for n, m in zip(x.shape[2:], sizes, strict=True)]
            blocks, axes = tiled(x, each)
            return blocks.mean(axis=axes)
        for axis, out in enumerate(sizes, 2):
            if out != x.shape[axis]:
                x = weighted_gather_sum(x, axis, _means(x.shape[axis], out))
        return x

    doc = """The mean of each of `output_size` windows that cover every axis about evenly.

    Window i of an axis of n elements goes from floor(i n / out) to ceil((i + 1) n / out); a size of
    None keeps the axis as it is.
    """
    return composite(
        kinds="float",
        methods=(),
        reference=f"tests.support.references.neural:{name}",
        torch=f"torch.nn.functional:{name}",
        samples=_samples(count),
        refuses=_refusals(name, count),
    )(named(adaptive_avg_pool, name, doc))


adaptive_avg_pool1d = _adaptive_avg_pool_of(1)
adaptive_avg_pool2d = _adaptive_avg_pool_of(2)
adaptive_avg_pool3d = _adaptive_avg_pool_of(3)


def _adaptive_index(op: str, x: Tensor, sizes: Shape) -> Tensor:
    """For each window, the flat index of its first largest element."""
    if _is_even(x, sizes):
        each = tuple(n // m for n, m in zip(x.shape[2:], sizes, strict=True))
        return max_index(x, places_of(op, x, len(sizes), each, None, 0))
    index: Tensor | None = None
    values = x
    # the last axis first: among equals the one that comes first along the rows
    for axis in reversed(range(2, x.ndim)):
        bins = _bins(x.shape[axis], sizes[axis - 2])
        inside = _beside(bins.inside, x, axis, "bool")
        found = argmax(where(inside, _along(values, bins, axis), lowest(x)), axis=axis + 1)
        place = found + _beside(bins.index[:, 0], x, axis, "int64")
        values = gather(values, place, axis)
        step = shapes.size_of(x.shape[axis + 1 :])
        index = place if index is None else place * step + gather(index, place, axis)
    assert index is not None
    return index


def _adaptive_max_pool_of(count: int) -> Function:
    name = f"adaptive_max_pool{count}d"

    def adaptive_max_pool(x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        check_kind(name, x.dtype, "real")
        index = _adaptive_index(name, x.detach(), _wanted(name, x, output_size, count))
        out = picked(x, index)
        return (out, index) if return_indices else out

    doc = """The largest element of each of `output_size` windows that cover an axis about evenly.

    The windows are those of the adaptive mean. NaN wins; the gradient goes to the first largest.
    """
    return composite(
        kinds="ordered",
        methods=(),
        reference=f"tests.support.references.neural:{name}",
        torch=f"torch.nn.functional:{name}",
        samples=_samples(count),
        refuses=_refusals(name, count),
    )(named(adaptive_max_pool, name, doc))


adaptive_max_pool1d = _adaptive_max_pool_of(1)
adaptive_max_pool2d = _adaptive_max_pool_of(2)
adaptive_max_pool3d = _adaptive_max_pool_of(3)

# --- unpooling -----------------------------------------------------------------------------------


def _unpooled_size(
    op: str, x: Tensor, size: Any, stride: Any, padding: Any, output_size: Any, count: int
) -> Shape:
    k = integers(op, "the kernel size", size, 1, count)
    st = k if stride is None else integers(op, "stride", stride, 1, count)
    p = integers(op, "padding", padding, 0, count)
    usual = tuple((n - 1) * b - 2 * c + a for n, a, b, c in zip(x.shape[2:], k, st, p, strict=True))
    if output_size is None:
        return usual
    last = tuple(output_size)[-count:]
    sizes = integers(op, "output_size", last, 1, count)
    if any(abs(a - b) >= c for a, b, c in zip(sizes, usual, st, strict=True)):
        raise ArgumentError(
            f"{op}: output_size {sizes} must be within the stride {st} of {usual}, what pooling "
            f"with these parameters undoes"
        )
    return sizes


def _max_unpool_of(count: int) -> Function:
    name = f"max_unpool{count}d"

    def max_unpool(
        x: Tensor,
        indices: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        output_size: Any = None,
    ) -> Tensor:
        check_ndim(name, x, count)
        check_index(name, indices)
        if indices.shape != x.shape:
            raise ShapeError(f"{name}: indices {indices.shape} and x {x.shape} must be alike")
        sizes = _unpooled_size(name, x, kernel_size, stride, padding, output_size, count)
        if not x.size:  # zeros, still connected to x
            nothing = x.sum(axis=tuple(range(2, x.ndim)), keepdims=True).astype(x.dtype)
            return nothing.broadcast_to((*x.shape[:2], *sizes))
        rows, plane = shapes.size_of(x.shape[:2]), shapes.size_of(sizes)
        index = apply(CHECK_RANGE, indices.astype("int64"), size=plane, what=f"{name}: index")
        start = arange(rows, device=x.device).reshape(-1, 1) * plane
        flat = (index.reshape(rows, -1) + start).reshape(-1)
        winner = last_write(flat, rows * plane)
        written = winner >= 0
        out = where(written, taken(x.reshape(-1), where(written, winner, 0)), _nothing(x))
        return out.reshape((*x.shape[:2], *sizes))

    doc = """Zeros, with each element of x where `indices` says: what max pooling lost is undone.

    The indices are those that pooling returns. Where one place is named twice, the last wins.
    """

    def samples() -> Any:
        shape = (1, 2, *(2,) * (count - 1), 1)
        index = np.arange(shapes.size_of(shape)).reshape(shape)[:, ::-1] % 2**count
        yield sample(s.real(*shape), np.ascontiguousarray(index), 2)

    x, index = s.real(1, 1, *(1,) * count), np.zeros((1, 1, *(1,) * count), np.int64)
    return composite(
        kinds="any",
        methods=(),
        reference=f"tests.support.references.neural:{name}",
        torch=f"torch.nn.functional:{name}",
        samples=samples,
        refuses=(
            refuse(OutOfRangeError, f"{name}: index 99 is out of range", x, index + 99, 2),
            refuse(ShapeError, f"{name}: indices .* must be alike", x, index[0], 2),
            refuse(DtypeError, f"{name}: the index must be", x, x, 2),
            refuse(
                ArgumentError,
                f"{name}: output_size .* must be within",
                x,
                index,
                2,
                output_size=(9,) * count,
            ),
        ),
    )(named(max_unpool, name, doc))


def _nothing(x: Tensor) -> Tensor:
    return asarray(np.zeros(()), dtype=x.dtype, device=x.device)


max_unpool1d = _max_unpool_of(1)
max_unpool2d = _max_unpool_of(2)
max_unpool3d = _max_unpool_of(3)
