"""Operators that move elements or tell shapes: reshape, transpose, slice, concat, split, pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import (
    array_of,
    checked_size,
    dtype_of,
    is_foreign,
    np_dtype,
    outside,
    sizes,
    tensor_of,
)


def on_arrays(function: Any, x: Any) -> Any:
    """A movement of elements done to an array: one that tensors hold by their op, so that both
    ways agree, and text or packed dtypes by moving places instead."""
    if not is_foreign(x):
        return outside(lambda: array_of(function(eg.asarray(x))))
    places = eg.asarray(np.arange(x.size).reshape(x.shape))
    found = outside(lambda: array_of(function(places)))
    return x.reshape(-1)[found]


def moved(call: Call, function: Any, x: Any) -> Any:
    """`function`, a movement, of a value of whatever kind."""
    return on_arrays(function, x) if isinstance(x, np.ndarray) else function(x)


@onnx_op("Identity", raw=True)
def _identity(call: Call, x: Any) -> Any:
    return x


@onnx_op("Constant", raw=True)
def _constant(call: Call) -> Any:
    for name in ("value", "sparse_value"):
        if name in call.attributes:
            return call(name)
    kinds = {"int": np.int64, "float": np.float32, "string": object}
    for name, kind in kinds.items():
        for attribute in (f"value_{name}", f"value_{name}s"):
            if attribute in call.attributes:
                return np.array(call(attribute), kind)
    raise ArgumentError("Constant: it has no value")


@onnx_op("Shape", raw=True)
def _shape(call: Call, x: Any) -> Any:
    return np.array(x.shape[slice(call("start", 0), call("end"))], np.int64)


@onnx_op("Size", raw=True)
def _size(call: Call, x: Any) -> Any:
    return np.array(np.prod(x.shape, dtype=np.int64))


@onnx_op("Reshape", raw=True)
def _reshape_by_attribute(call: Call, x: Any) -> Any:
    return _reshaped(call, x, call("shape"))


@onnx_op("Reshape", since=5, static=(1,), raw=True)
def _reshape(call: Call, x: Any, shape: Any) -> Any:
    return _reshaped(call, x, sizes(shape))


def _reshaped(call: Call, x: Any, shape: Sequence[int]) -> Any:
    wanted = list(shape)
    if not call("allowzero", 0):
        for i, size in enumerate(wanted):
            if size == 0:
                if i >= len(x.shape):
                    raise ShapeError(f"Reshape: 0 at place {i}, but x has shape {tuple(x.shape)}")
                wanted[i] = x.shape[i]
    return moved(call, lambda v: eg.reshape(v, tuple(wanted)), x)


@onnx_op("Flatten", raw=True)
def _flatten(call: Call, x: Any) -> Any:
    axis = call("axis", 1)
    axis += len(x.shape) if axis < 0 else 0
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    columns = int(np.prod(x.shape[axis:], dtype=np.int64))
    return moved(call, lambda v: eg.reshape(v, (rows, columns)), x)


@onnx_op("Transpose", raw=True)
def _transpose(call: Call, x: Any) -> Any:
    perm = call("perm", list(range(len(x.shape)))[::-1])
    return moved(call, lambda v: eg.permute_dims(v, tuple(perm)), x)


@onnx_op("Squeeze", raw=True)
def _squeeze_by_attribute(call: Call, x: Any) -> Any:
    return _squeezed(call, x, call("axes"))


@onnx_op("Squeeze", since=13, static=(1,), raw=True)
def _squeeze(call: Call, x: Any, axes: Any = None) -> Any:
    return _squeezed(call, x, None if axes is None else sizes(axes))


def _squeezed(call: Call, x: Any, axes: Any) -> Any:
    where = [i for i, s in enumerate(x.shape) if s == 1] if axes is None else axes
    return moved(call, lambda v: eg.squeeze(v, tuple(where)), x) if len(where) else x


@onnx_op("Unsqueeze", raw=True)
def _unsqueeze_by_attribute(call: Call, x: Any) -> Any:
    return moved(call, lambda v: eg.expand_dims(v, tuple(call("axes"))), x)


@onnx_op("Unsqueeze", since=13, static=(1,), raw=True)
def _unsqueeze(call: Call, x: Any, axes: Any) -> Any:
    where = sizes(axes)
    return moved(call, lambda v: eg.expand_dims(v, where), x) if where else x


@onnx_op("Concat", raw=True)
def _concat(call: Call, *parts: Any) -> Any:
    axis = call("axis", 1)
    return joined(call, parts, axis)


def joined(call: Call, parts: Sequence[Any], axis: int) -> Any:
    """Values along one axis: an array if all of them are."""
    if all(isinstance(p, np.ndarray) for p in parts):
        return np.concatenate(parts, axis)
    return eg.concat([tensor_of(p, call.device) for p in parts], axis=axis)


@onnx_op("Split", raw=True)
def _split_by_attribute(call: Call, x: Any) -> Any:
    return _parts(call, x, call("split"))


@onnx_op("Split", since=13, static=(1,), raw=True)
def _split(call: Call, x: Any, split: Any = None) -> Any:
    return _parts(call, x, None if split is None else sizes(split))


def _parts(call: Call, x: Any, split: Any) -> Any:
    axis = call("axis", 0)
    if split is None:
        if call("num_outputs", len(call.outputs)) != len(call.outputs):
            raise ArgumentError(
                f"Split: num_outputs {call('num_outputs')}, but {len(call.outputs)}"
            )
        split = equal_parts(x.shape[axis], len(call.outputs))
    return tuple(cut(call, x, axis, split))


def equal_parts(size: int, count: int) -> list[int]:
    """Sizes of `count` parts, the last one smaller where it must be."""
    each = -(-size // count)
    return [max(0, min(each, size - k * each)) for k in range(count)]


def cut(call: Call, x: Any, axis: int, split: Sequence[int]) -> list[Any]:
    """Parts of these sizes along an axis."""
    ends = [int(e) for e in np.cumsum(split)]
    axis %= len(x.shape)
    before = (slice(None),) * axis
    return [
        moved(call, lambda v, a=a, b=b: v[(*before, slice(a, b))], x)
        for a, b in zip([0, *ends[:-1]], ends, strict=True)
    ]


@onnx_op("Slice", raw=True)
def _slice_by_attributes(call: Call, x: Any) -> Any:
    return _sliced(call, x, call("starts"), call("ends"), call("axes"), None)


@onnx_op("Slice", since=10, static=(1, 2, 3, 4), raw=True)
def _slice(call: Call, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    return _sliced(
        call,
        x,
        sizes(starts),
        sizes(ends),
        None if axes is None else sizes(axes),
        None if steps is None else sizes(steps),
    )


def _sliced(call: Call, x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    taken = [slice(None)] * len(x.shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # Python's slices clip as ONNX does, but for an end before the first element
        size = x.shape[axis]
        stop = None if step < 0 and end < -size else end
        taken[axis] = slice(start, stop, step)
    return moved(call, lambda v: v[tuple(taken)], x)


@onnx_op("Expand", static=(1,), raw=True)
def _expand(call: Call, x: Any, shape: Any) -> Any:
    wanted = np.broadcast_shapes(tuple(x.shape), sizes(shape))
    checked_size("Expand", wanted)
    return moved(call, lambda v: eg.broadcast_to(v, wanted), x)


@onnx_op("Tile", static=(1,), raw=True)
def _tile(call: Call, x: Any, repeats: Any, axis: Any = None) -> Any:
    counts = list(sizes(repeats))
    if axis is not None:  # opset 1
        where, counts = int(array_of(axis)), [1] * len(x.shape)
        counts[where] = int(array_of(repeats))
    checked_size("Tile", [s * r for s, r in zip(x.shape, counts, strict=True)])
    return moved(call, lambda v: eg.tile(v, tuple(counts)), x)


@onnx_op("ConstantOfShape", static=(0,), raw=True)
def _constant_of_shape(call: Call, shape: Any) -> Any:
    value = call("value", np.zeros(1, np.float32))
    return np.full(checked_size("ConstantOfShape", sizes(shape)), value.reshape(-1)[0], value.dtype)


@onnx_op("Range", static=(0, 1, 2), raw=True)
def _range(call: Call, start: Any, limit: Any, delta: Any) -> Any:
    first, last, step = (v.reshape(-1)[0] for v in (start, limit, delta))
    if not step:
        raise ArgumentError("Range: the step is 0")
    count = max(0, int(np.ceil((float(last) - float(first)) / float(step))))
    checked_size("Range", (count,))
    if start.dtype.kind in "iu":
        return (int(first) + np.arange(count, dtype=np.int64) * int(step)).astype(start.dtype)
    return (float(first) + np.arange(count) * float(step)).astype(start.dtype)


@onnx_op("EyeLike")
def _eye_like(call: Call, x: Tensor) -> Tensor:
    dtype = x.dtype if call("dtype") is None else eg.dtypes.as_dtype(np_dtype(call("dtype")))
    rows, columns = x.shape
    i, j = eg.arange(rows, device=x.device), eg.arange(columns, device=x.device)
    return (j.expand_dims(0) - i.expand_dims(1) == call("k", 0)).astype(dtype)


@onnx_op("Trilu", static=(1,), raw=True)
def _trilu(call: Call, x: Any, k: Any = None) -> Any:
    offset = 0 if k is None else int(k.reshape(-1)[0])
    keep = np.triu if call("upper", 1) else np.tril
    mask = keep(np.ones(x.shape[-2:], bool), offset)
    if isinstance(x, np.ndarray):
        return np.where(mask, x, np.zeros((), x.dtype))
    return eg.where(eg.asarray(mask, device=x.device), x, eg.zeros_like(x))


@onnx_op("DepthToSpace")
def _depth_to_space(call: Call, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = call("blocksize")
    if call("mode", "DCR") == "DCR":
        parts = x.reshape((n, b, b, c // (b * b), h, w)).permute_dims((0, 3, 4, 1, 5, 2))
    else:
        parts = x.reshape((n, c // (b * b), b, b, h, w)).permute_dims((0, 1, 4, 2, 5, 3))
    return parts.reshape((n, c // (b * b), h * b, w * b))


@onnx_op("SpaceToDepth")
def _space_to_depth(call: Call, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = call("blocksize")
    parts = x.reshape((n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if call("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute_dims(order).reshape((n, c * b * b, h // b, w // b))


# --- padding -------------------------------------------------------------------------------------


@onnx_op("Pad", raw=True)
def _pad_by_attributes(call: Call, x: Any) -> Any:
    pads = call("pads") or call("paddings")
    return _padded(call, x, pads, np.array(call("value", 0.0), dtype_of(x)), None)


@onnx_op("Pad", since=11, static=(1, 2, 3), raw=True)
def _pad(call: Call, x: Any, pads: Any, value: Any = None, axes: Any = None) -> Any:
    fill = np.zeros((), dtype_of(x)) if value is None else value.reshape(-1)[0]
    return _padded(call, x, sizes(pads), fill, None if axes is None else sizes(axes))


def _padded(call: Call, x: Any, pads: Any, fill: Any, axes: Any) -> Any:
    rank = len(x.shape)
    where = range(rank) if axes is None else [a % rank for a in axes]
    pairs = [(0, 0)] * rank
    for i, axis in enumerate(where):
        pairs[axis] = (pads[i], pads[len(pads) // 2 + i])
    checked_size("Pad", [s + a + b for s, (a, b) in zip(x.shape, pairs, strict=True)])
    mode = call("mode", "constant")
    # negative pads cut away
    cuts = tuple(
        slice(max(0, -a), s - max(0, -b)) for s, (a, b) in zip(x.shape, pairs, strict=True)
    )
    grow = [(max(0, a), max(0, b)) for a, b in pairs]
    if isinstance(x, np.ndarray):
        if mode == "constant":
            return np.pad(x[cuts], grow, constant_values=fill)
        return np.pad(x[cuts], grow, _way(mode))
    found = x[cuts]
    for axis, (before, after) in enumerate(grow):
        if before or after:
            found = _grown(found, axis, before, after, mode, fill)
    return found


def _way(mode: str) -> Any:
    """NumPy's name for a way to pad, which is ONNX's."""
    if mode not in ("reflect", "edge", "wrap"):
        raise ArgumentError(f"Pad: mode is 'constant', 'reflect', 'edge' or 'wrap', got {mode!r}")
    return mode


def _grown(x: Tensor, axis: int, before: int, after: int, mode: str, fill: Any) -> Tensor:
    """x with elements before and after it along one axis."""
    if mode == "constant":
        parts = [
            eg.full((*x.shape[:axis], n, *x.shape[axis + 1 :]), fill.item(), x.dtype, x.device)
            for n in (before, after)
        ]
        return eg.concat([parts[0], x, parts[1]], axis=axis)
    index = np.pad(np.arange(x.shape[axis]), (before, after), _way(mode))
    return eg.take(x, eg.asarray(index, device=x.device), axis=axis)


@onnx_op("ReverseSequence", static=(1,))
def _reverse_sequence(call: Call, x: Tensor, lengths: Any) -> Tensor:
    batch, time = call("batch_axis", 1), call("time_axis", 0)
    moved_x = eg.moveaxis(x, (batch, time), (0, 1))
    steps = np.arange(moved_x.shape[1])
    length = np.asarray(lengths)[:, None]
    index = np.where(steps < length, length - 1 - steps, steps)
    rows = np.arange(moved_x.shape[0])[:, None]
    at = (eg.asarray(v, device=x.device) for v in (np.broadcast_to(rows, index.shape), index))
    return eg.moveaxis(moved_x[tuple(at)], (0, 1), (batch, time))
