"""Parts of tensors replaced, in PyTorch's spellings: select_scatter, index_put, scatter_reduce."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import where as choose
from everygrad.ops.python.creation import arange, asarray
from everygrad.ops.record.arguments import taking
from everygrad.ops.record.spec import REGISTRY


def _op(name: str, *args: Any, **kwargs: Any) -> Any:
    return REGISTRY[name].function(*args, **kwargs)


def _written(op: str, x: Tensor, at: int, where_to: Any, source: Tensor) -> Tensor:
    """x with the places of an axis, given as a NumPy vector, replaced by the slices of source."""
    wanted = (*x.shape[:at], len(where_to), *x.shape[at + 1 :])
    if source.shape != wanted:
        raise ShapeError(f"{op}: src has shape {source.shape}, and {wanted} is needed")
    back = np.full(x.shape[at], -1)
    back[where_to] = np.arange(len(where_to))
    if not len(where_to):
        return x * 1 if x.dtype.is_differentiable else x
    chosen = asarray(np.maximum(back, 0), device=x.device)
    spread = _op("take", source.astype(x.dtype), chosen, axis=at)
    mask = asarray(back >= 0, device=x.device).reshape((-1,) + (1,) * (x.ndim - at - 1))
    return choose(mask, spread, x)


@taking
def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """x with one slice along an axis replaced by src."""
    at = shapes.axis_index(dim, x.ndim, "select_scatter")
    place = shapes.axis_index(index, x.shape[at], "select_scatter")
    return _written("select_scatter", x, at, np.array([place]), src.expand_dims(at))


@taking
def slice_scatter(
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """x with the slice start:end:step of an axis replaced by src."""
    at = shapes.axis_index(dim, x.ndim, "slice_scatter")
    places = np.arange(x.shape[at])[start:end:step]
    return _written("slice_scatter", x, at, places, src)


@taking
def diagonal_scatter(
    x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """x with a diagonal replaced by src."""
    a, b = (shapes.axis_index(d, x.ndim, "diagonal_scatter") for d in (dim1, dim2))
    wanted = _op("diagonal", x.detach(), offset, a, b).shape
    if src.shape != wanted:
        raise ShapeError(f"diagonal_scatter: src has shape {src.shape}, and {wanted} is needed")
    rows, columns = x.shape[a], x.shape[b]
    mask = asarray(np.eye(rows, columns, offset, dtype=bool), device=x.device)
    count = src.shape[-1]
    # each place of the diagonal, for the axis whose place it is counted along
    along = np.zeros((rows, columns), np.int64)
    i = np.arange(count)
    along[i + max(0, -offset), i + max(0, offset)] = i
    flat = _op("take", src.astype(x.dtype), asarray(along.reshape(-1), device=x.device), axis=-1)
    spread = flat.reshape((*src.shape[:-1], rows, columns)).moveaxis((-2, -1), (a, b))
    shape = [1] * x.ndim
    shape[a], shape[b] = rows, columns
    mask = mask if a < b else mask.mT
    return choose(mask.reshape(tuple(shape)), spread, x)


@taking
def take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The elements at `indices` along an axis; of the flattened tensor if none is given."""
    if dim is None:
        x, indices, dim = x.reshape(-1), indices.reshape(-1), 0
    out: Tensor = _op("take_along_axis", x, indices, axis=dim)
    return out


@taking
def index_put(x: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    """x with x[indices] replaced by values, or with values added there."""
    place = tuple(slice(None) if i is None else i for i in indices)
    flat = arange(shapes.size_of(x.shape), device=x.device).reshape(x.shape)[place]
    given = values if isinstance(values, Tensor) else _numbers(values, x)
    source = given.astype(x.dtype).broadcast_to(flat.shape).reshape(-1)
    out: Tensor = _op("put", x, flat.reshape(-1), source, accumulate)
    return out


def _numbers(value: Any, x: Tensor) -> Tensor:
    return asarray(np.asarray(value, x.dtype.np), device=x.device)


@taking
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """x with src[i][j] combined into [index[i][j]][j] for dim 0, and likewise for the others."""
    names = {"sum": "add", "prod": "mul", "mean": "mean", "amax": "amax", "amin": "amin"}
    if reduce not in names:
        raise ArgumentError(
            f"scatter_reduce: reduce must be one of {', '.join(names)}, got {reduce!r}"
        )
    out: Tensor = _op(
        "scatter", x, index, src, dim, reduce=names[reduce], include_self=include_self
    )
    return out


@partial(taking, scalar_rows="row")
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """x with the slices of source combined into the slices that index names along an axis."""
    at = shapes.axis_index(dim, x.ndim, "index_reduce")
    spread = index.reshape((-1,) + (1,) * (x.ndim - at - 1)).broadcast_to(source.shape)
    return scatter_reduce(x, at, spread, source, reduce, include_self=include_self)


def where(x: Tensor, condition: Any, other: Any) -> Tensor:
    """x where the condition holds, else other: `eg.where(condition, x, other)`."""
    out: Tensor = choose(condition, x, other)
    return out
