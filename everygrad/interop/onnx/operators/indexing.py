"""Gathers, scatters, and what picks elements by their values."""

from __future__ import annotations

from typing import Any

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import array_of, checked_size, is_foreign, tensor_of


@onnx_op("Gather", raw=True)
def _gather(call: Call, x: Any, index: Any) -> Any:
    axis = call("axis", 0)
    if isinstance(x, np.ndarray) and (isinstance(index, np.ndarray) or is_foreign(x)):
        return np.take(x, array_of(index), axis)
    return eg.take(tensor_of(x, call.device), _index(call, index), axis=axis)


def _index(call: Call, index: Any) -> Tensor:
    return tensor_of(index, call.device).astype(eg.int64)


def _from_start(index: Tensor, size: int) -> Tensor:
    """Indices counted from the first element."""
    return eg.where(index < 0, index + size, index)


@onnx_op("GatherElements", raw=True)
def _gather_elements(call: Call, x: Any, index: Any) -> Any:
    axis = call("axis", 0)
    if is_foreign(x):
        return np.take_along_axis(x, array_of(index), axis)
    x = tensor_of(x, call.device)
    return eg.gather(x, _from_start(_index(call, index), x.shape[axis]), axis=axis)


def _nd_places(call: Call, x: Tensor, index: Tensor, batch: int) -> tuple[Tensor, ...]:
    """For each leading axis of x that an index names, the indices along it."""
    found = []
    for axis in range(batch):
        shape = [1] * (index.ndim - 1)
        shape[axis] = index.shape[axis]
        found.append(eg.arange(index.shape[axis], device=x.device).reshape(tuple(shape)))
    for k in range(index.shape[-1]):
        found.append(_from_start(index[..., k], x.shape[batch + k]))
    return tuple(eg.broadcast_arrays(*found)) if len(found) > 1 else tuple(found)


@onnx_op("GatherND")
def _gather_nd(call: Call, x: Tensor, index: Tensor) -> Tensor:
    index = index.astype(eg.int64)
    return x[_nd_places(call, x, index, call("batch_dims", 0))]


@onnx_op("ScatterND")
def _scatter_nd(call: Call, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    index = index.astype(eg.int64)
    count = index.shape[-1]
    rest = x.shape[count:]
    flat = eg.zeros(index.shape[:-1], eg.int64, x.device)
    for k in range(count):
        flat = flat * x.shape[k] + _from_start(index[..., k], x.shape[k])
    rows = x.reshape((-1, *rest))
    found = _scattered(call, rows, flat.reshape((-1,)), updates.reshape((-1, *rest)))
    return found.reshape(x.shape)


_REDUCE = {"add": "sum", "mul": "mul", "max": "amax", "min": "amin"}


def _scattered(call: Call, rows: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    """Rows replaced, or combined with, at the rows that the index names."""
    shape = (index.shape[0], *(1,) * (rows.ndim - 1))
    wide = eg.broadcast_to(index.reshape(shape), updates.shape)
    return _put(call, rows, wide, updates, 0)


def _put(call: Call, x: Tensor, index: Tensor, updates: Tensor, axis: int) -> Tensor:
    how = call("reduction", "none")
    if how == "none":
        return eg.scatter(x, index, updates, axis=axis)
    if how not in _REDUCE:
        raise ArgumentError(
            f"{call.op}: reduction {how!r} is not one of none, {', '.join(_REDUCE)}"
        )
    if how == "add":
        return eg.scatter_add(x, index, updates, axis=axis)
    return eg.scatter(x, index, updates, axis=axis, reduce=_REDUCE[how], include_self=True)


@onnx_op("Scatter", "ScatterElements")
def _scatter_elements(call: Call, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    axis = call("axis", 0) % x.ndim
    return _put(call, x, _from_start(index.astype(eg.int64), x.shape[axis]), updates, axis)


@onnx_op("TensorScatter")
def _tensor_scatter(
    call: Call, cache: Tensor, update: Tensor, start: Tensor | None = None
) -> Tensor:
    """New keys or values written into a cache, each example's from its own place on."""
    axis = call("axis", -2) % cache.ndim
    length, size = update.shape[axis], cache.shape[axis]
    places = eg.arange(length, device=cache.device).expand_dims(0)
    if start is not None:
        places = places + start.astype(eg.int64).expand_dims(1)
    if call("mode", "linear") == "circular":
        places = eg.remainder(places, size)
    shape = [1] * cache.ndim
    shape[0], shape[axis] = places.shape[0], length
    index = eg.broadcast_to(places.reshape(tuple(shape)), update.shape)
    return eg.scatter(cache, index, update, axis=axis)


@onnx_op("OneHot", static=(1,))
def _one_hot(call: Call, index: Tensor, depth: Any, off_on: Tensor) -> Tensor:
    count = int(np.asarray(depth).reshape(-1)[0])
    axis = call("axis", -1)
    axis += index.ndim + 1 if axis < 0 else 0
    places = index.astype(eg.int64)
    places = eg.where(places < 0, places + count, places).expand_dims(axis)
    checked_size("OneHot", (*index.shape, count))
    shape = [1] * (index.ndim + 1)
    shape[axis] = count
    hot = eg.arange(count, device=index.device).reshape(tuple(shape)) == places
    return eg.where(hot, off_on[1], off_on[0])


@onnx_op("NonZero", raw=True)
def _non_zero(call: Call, x: Any) -> Any:
    # how many there are is a shape: the values must be known
    known = array_of(x)
    return np.array(np.nonzero(np.atleast_1d(known)), np.int64)


@onnx_op("Compress", static=(1,), raw=True)
def _compress(call: Call, x: Any, condition: Any) -> Any:
    kept = np.nonzero(np.asarray(condition))[0]
    axis = call("axis")
    if isinstance(x, np.ndarray):
        return np.take(x.reshape(-1) if axis is None else x, kept, axis or 0)
    flat = x.reshape((-1,)) if axis is None else x
    return eg.take(flat, eg.asarray(kept, device=x.device), axis=axis or 0)


@onnx_op("Unique", raw=True)
def _unique(call: Call, x: Any) -> Any:
    known = array_of(x)  # how many there are is a shape
    axis = call("axis")
    found, first, inverse, counts = np.unique(
        known, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not call("sorted", 1):
        order = np.argsort(first)
        rank = np.argsort(order)
        found = np.take(found, order, 0 if axis is None else axis)
        first, inverse, counts = first[order], rank[inverse], counts[order]
    return (found, *(v.astype(np.int64) for v in (first, inverse, counts)))


@onnx_op("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _array_feature_extractor(call: Call, x: Tensor, index: Tensor) -> Tensor:
    flat = index.reshape((-1,)).astype(eg.int64)
    return eg.take(x.reshape((1, -1)) if x.ndim == 1 else x, flat, axis=-1)
