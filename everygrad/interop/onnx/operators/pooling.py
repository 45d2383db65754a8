"""Pooling: windows of any stride, dilation and padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.interop.onnx.operators.products import grown, window_pads
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import checked_size, sizes

_MAX = {1: eg.max_pool1d, 2: eg.max_pool2d, 3: eg.max_pool3d}
_AVG = {1: eg.avg_pool1d, 2: eg.avg_pool2d, 3: eg.avg_pool3d}


class Windows(NamedTuple):
    """The windows of a pooling: sizes, steps, and what stands before and after the input."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[tuple[int, int]]  # as the file says them
    extra: list[int]  # beyond that, so that a last window fits (ceil_mode)
    places: list[int]


def windows_of(call: Call, shape: Sequence[int]) -> Windows:
    count = len(shape)
    kernel = call("kernel_shape")
    strides = call("strides", [1] * count)
    dilations = call("dilations", [1] * count)
    pads = window_pads(call, shape, kernel, strides, dilations)
    extra, places = [], []
    for n, k, s, d, (a, b) in zip(shape, kernel, strides, dilations, pads, strict=True):
        reach = (k - 1) * d + 1
        over = n + a + b - reach
        found = (-(-over // s) if call("ceil_mode", 0) else over // s) + 1
        if call("ceil_mode", 0) and (found - 1) * s >= n + a:
            found -= 1  # a window that begins beyond the input is none
        places.append(found)
        extra.append(max(0, (found - 1) * s + reach - (n + a + b)))
    return Windows(kernel, strides, dilations, pads, extra, places)


def _with_margins(x: Tensor, w: Windows, value: Any) -> Tensor:
    return grown(x, [(a, b + e) for (a, b), e in zip(w.pads, w.extra, strict=True)], value)


def _over(x: Tensor, w: Windows, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Windows combined element by element, for what no op of ours serves: dilation, integers."""
    parts = []
    for at in itertools.product(*map(range, w.kernel)):
        taken = [slice(None)] * 2
        for o, d, s, p in zip(at, w.dilations, w.strides, w.places, strict=True):
            taken.append(slice(o * d, o * d + (p - 1) * s + 1, s))
        parts.append(x[tuple(taken)])
    return reduce(combine, parts)


def _sum_pool(x: Tensor, w: Windows) -> Tensor:
    if all(d == 1 for d in w.dilations) and len(w.kernel) in _AVG and x.dtype.is_float:
        pool = _AVG[len(w.kernel)]
        return pool(x, tuple(w.kernel), tuple(w.strides)) * int(np.prod(w.kernel))
    return _over(x, w, eg.add)


def _counts(call: Call, shape: Sequence[int], w: Windows) -> np.ndarray[Any, Any]:
    """How many elements of each window count: those of the input, perhaps of its padding, and
    never what ceil_mode adds."""
    total = np.ones(())
    for n, k, s, d, (a, b), p in zip(
        shape, w.kernel, w.strides, w.dilations, w.pads, w.places, strict=True
    ):
        at = np.arange(p)[:, None] * s + np.arange(k) * d
        if call("count_include_pad", 0):
            inside = at < n + a + b
        else:
            inside = (at >= a) & (at < a + n)
        total = total[..., None] * inside.sum(1)
    return total


@onnx_op("AveragePool")
def _average_pool(call: Call, x: Tensor) -> Tensor:
    w = windows_of(call, x.shape[2:])
    counts = _counts(call, x.shape[2:], w)
    wide = x.astype(eg.float32) if x.dtype.bits < 32 else x
    total = _sum_pool(_with_margins(wide, w, 0), w)
    return (total / eg.asarray(counts, device=x.device).astype(wide.dtype)).astype(x.dtype)


@onnx_op("LpPool")
def _lp_pool(call: Call, x: Tensor) -> Tensor:
    w, p = windows_of(call, x.shape[2:]), call("p", 2)
    powers = eg.pow(eg.abs(_with_margins(x, w, 0)), p)
    return eg.pow(_sum_pool(powers, w), 1.0 / p)


@onnx_op("MaxPool")
def _max_pool(call: Call, x: Tensor) -> Any:
    w = windows_of(call, x.shape[2:])
    if x.dtype.is_float:
        lowest: float = -np.inf
    else:
        lowest = eg.iinfo(x.dtype).min
    whole = _with_margins(x, w, lowest)
    if not x.dtype.is_float or len(w.kernel) not in _MAX:
        return _over(whole, w, eg.maximum)
    found = _MAX[len(w.kernel)](
        *(whole, tuple(w.kernel), tuple(w.strides)),
        dilation=tuple(w.dilations),
        return_indices=call.wants(1),
    )
    if not call.wants(1):
        return found
    return found[0], _flat_indices(call, found[1], x, whole, w)


def _flat_indices(call: Call, index: Tensor, x: Tensor, whole: Tensor, w: Windows) -> Tensor:
    """Places in the padded image as places in the whole unpadded tensor."""
    at: list[Tensor] = []
    rest = index.astype(eg.int64)
    for size, (before, _) in zip(reversed(whole.shape[2:]), reversed(w.pads), strict=True):
        at.insert(0, eg.remainder(rest, size) - before)
        rest = eg.floor_divide(rest, size)
    order = range(len(at)) if not call("storage_order", 0) else reversed(range(len(at)))
    flat = eg.zeros_like(rest)
    for axis in order:
        flat = flat * x.shape[2 + axis] + at[axis]
    n, c = x.shape[:2]
    image = int(np.prod(x.shape[2:]))
    channel = eg.arange(n * c, device=x.device).reshape((n, c, *(1,) * (x.ndim - 2)))
    return flat + channel * image


@onnx_op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: Call, x: Tensor) -> Tensor:
    axes = tuple(range(2, x.ndim))
    if call.op == "GlobalAveragePool":
        return eg.mean(x, axis=axes, keepdims=True)
    if call.op == "GlobalMaxPool":
        return eg.amax(x, axis=axes, keepdims=True)
    p = call("p", 2)
    return eg.pow(eg.sum(eg.pow(eg.abs(x), p), axis=axes, keepdims=True), 1.0 / p)


@onnx_op("MaxUnpool", static=(2,))
def _max_unpool(call: Call, x: Tensor, index: Tensor, shape: Any = None) -> Tensor:
    kernel = call("kernel_shape")
    count = len(kernel)
    strides, pads = call("strides", [1] * count), call("pads", [0] * 2 * count)
    spatial = [
        (n - 1) * s - pads[i] - pads[count + i] + k
        for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    inner = (*x.shape[:2], *spatial)
    flat = eg.zeros((math.prod(checked_size("MaxUnpool", inner)),), x.dtype, x.device)
    out = eg.scatter(flat, index.reshape((-1,)).astype(eg.int64), x.reshape((-1,)), axis=0)
    out = out.reshape(inner)
    if shape is None:
        return out
    wanted = sizes(shape)
    return grown(out, [(0, b - a) for a, b in zip(inner, wanted, strict=True)], 0)


def _roi_max(x: Tensor, roi: Sequence[float], pooled: Sequence[int]) -> Tensor:
    x1, y1, x2, y2 = roi
    height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
    rows = []
    for i, j in itertools.product(*map(range, pooled)):
        top, bottom = (
            int(f(y1 + k * height / pooled[0])) for f, k in ((np.floor, i), (np.ceil, i + 1))
        )
        left, right = (
            int(f(x1 + k * width / pooled[1])) for f, k in ((np.floor, j), (np.ceil, j + 1))
        )
        part = x[:, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
        empty = 0 in part.shape
        rows.append(eg.zeros(x.shape[:1], x.dtype) if empty else eg.amax(part, axis=(1, 2)))
    return eg.stack(rows, axis=1).reshape((x.shape[0], *pooled))


@onnx_op("MaxRoiPool", static=(1,))
def _max_roi_pool(call: Call, x: Tensor, rois: Any) -> Tensor:
    scale = call("spatial_scale", 1.0)
    found = []
    for image, *roi in np.asarray(rois):
        scaled = [float(np.round(v * scale)) for v in roi]
        found.append(_roi_max(x[int(image)], scaled, call("pooled_shape")))
    return eg.stack(found, axis=0)
