"""Shapes and parts of tensors in PyTorch's spellings: transpose, narrow, select, hsplit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.core import shapes
from everygrad.core.tensor import Tensor, view
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.python.creation import asarray
from everygrad.ops.record.arguments import taking
from everygrad.ops.record.spec import REGISTRY
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import permute_dims, slice_axis


def _op(name: str, *args: Any, **kwargs: Any) -> Any:
    return REGISTRY[name].function(*args, **kwargs)


def _sizes(size: tuple[Any, ...]) -> Any:
    """Several sizes, or one sequence of them."""
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size


def transpose(x: Tensor, *axes: Any, dim0: int | None = None, dim1: int | None = None) -> Tensor:
    """Two axes exchanged, as in PyTorch; with none or with all of them NumPy's order of axes."""
    if dim0 is not None and dim1 is not None and not axes:
        axes = (dim0, dim1)
    elif dim1 is not None and len(axes) == 1:
        axes = (*axes, dim1)
    given = _sizes(axes)
    if len(axes) == 2:
        if not x.ndim:
            exchanged: Tensor = _op("swapaxes", x, *axes)
            return exchanged
        a, b = (shapes.axis_index(i, x.ndim, "transpose") for i in axes)
        order = list(range(x.ndim))
        order[a], order[b] = b, a
        return permute_dims(x, tuple(order))
    return permute_dims(x, tuple(given) if given else tuple(reversed(range(x.ndim))))


@taking
def t(x: Tensor) -> Tensor:
    """The two axes of a matrix exchanged; a vector stays what it is."""
    if x.ndim > 2:
        raise ShapeError(f"t: takes a matrix or a vector, got {x.shape}; use mT for the last two")
    return permute_dims(x, tuple(reversed(range(x.ndim))))


@taking
def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements from `start` on along an axis: x[:, start:start + length]."""
    at = shapes.axis_index(dim, x.ndim, "narrow")
    size = x.shape[at]
    first = start + size if start < 0 else start
    if not 0 <= first <= size or not 0 <= length <= size - first:
        raise ArgumentError(
            f"narrow: {length} elements from {start} do not lie within axis {at} of size {size}"
        )
    return slice_axis(x, at, first, length)


@taking
def select(x: Tensor, dim: int, index: int) -> Tensor:
    """One slice along an axis: x[:, index]."""
    at = shapes.axis_index(dim, x.ndim, "select")
    out: Tensor = x[(*(slice(None),) * at, index)]
    return out


def _split(op: str, x: Tensor, how: Any, axis: int, least: int) -> tuple[Tensor, ...]:
    if x.ndim < least:
        raise ShapeError(f"{op}: takes {least} axes or more, got {x.shape}")
    if isinstance(how, int) and x.shape[axis] % how:
        raise ArgumentError(f"{op}: axis {axis} of {x.shape} is not divided evenly by {how}")
    return tuple(_op("tensor_split", x, how, axis))


@taking
def hsplit(x: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Parts along the second axis; of a vector along its own."""
    return _split("hsplit", x, indices_or_sections, 1 if x.ndim > 1 else 0, 1)


@taking
def vsplit(x: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Parts along the first axis."""
    return _split("vsplit", x, indices_or_sections, 0, 2)


@taking
def dsplit(x: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Parts along the third axis."""
    return _split("dsplit", x, indices_or_sections, 2, 3)


@taking
def split_with_sizes(x: Tensor, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of the given sizes along an axis."""
    return tuple(_op("split", x, list(split_sizes), dim))


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors beside each other along the second axis, vectors as columns."""
    return concat([x.reshape((-1, 1)) if x.ndim < 2 else x for x in tensors], axis=1)


@taking
def fliplr(x: Tensor) -> Tensor:
    """The order along the second axis reversed."""
    if x.ndim < 2:
        raise ShapeError(f"fliplr: takes two axes or more, got {x.shape}")
    out: Tensor = _op("flip", x, 1)
    return out


@taking
def flipud(x: Tensor) -> Tensor:
    """The order along the first axis reversed."""
    if not x.ndim:
        raise ShapeError("flipud: takes one axis or more, got a 0-d tensor")
    out: Tensor = _op("flip", x, 0)
    return out


@taking
def diagflat(x: Tensor, offset: int = 0) -> Tensor:
    """A matrix with the elements of x on a diagonal."""
    out: Tensor = _op("diag", x.reshape(-1), offset)
    return out


@taking
def view_as_complex(x: Tensor) -> Tensor:
    """Complex numbers from pairs along the last axis."""
    if not x.ndim or x.shape[-1] != 2 or not x.dtype.is_float:
        raise ShapeError(
            f"view_as_complex: takes floats with a last axis of size 2, got {x.dtype}{[*x.shape]}"
        )
    return view(x[..., 0] + x[..., 1] * 1j, x)


@taking
def view_as_real(x: Tensor) -> Tensor:
    """The real and imaginary parts, as pairs along a new last axis."""
    if not x.dtype.is_complex:
        raise DtypeError(f"view_as_real: takes complex numbers, got {x.dtype}")
    return view(_op("stack", [_op("real", x), _op("imag", x)], axis=-1), x)


@taking
def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """The index along each axis of a shape that each flat index stands for."""
    sizes = shapes.as_shape(shape, "unravel_index")
    rest, found = indices, []
    for n in reversed(sizes):
        found.append(rest % n)
        rest = rest // n
    return tuple(reversed(found))


@taking
def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Every choice of r elements of a vector, a row for each."""
    if x.ndim != 1:
        raise ShapeError(f"combinations: takes a vector, got {x.shape}")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(choose(range(x.shape[0]), r)), np.int64).reshape(-1, r)
    return _op("take", x, asarray(rows.reshape(-1), device=x.device), axis=0).reshape(rows.shape)


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """x repeated to the shape of another tensor."""
    return x.broadcast_to(other.shape)


def reshape_as(x: Tensor, other: Tensor) -> Tensor:
    """The same elements in the shape of another tensor."""
    return x.reshape(other.shape)


def sum_to_size(x: Tensor, *size: Any) -> Tensor:
    """x summed down to a shape that broadcasts to its own."""
    out: Tensor = _op("sum_to", x, shapes.as_shape(_sizes(size), "sum_to_size"))
    return out


swapdims = transpose
narrow_copy = narrow
unsafe_split_with_sizes = split_with_sizes
view_as = reshape_as
