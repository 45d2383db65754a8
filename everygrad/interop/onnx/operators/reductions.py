"""Reductions, scans, and what finds the largest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import sizes

Axes = tuple[int, ...]


def _extreme(function: Callable[..., Tensor], lowest: bool) -> Callable[..., Tensor]:
    def reduced(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
        if x.dtype is eg.bool:
            return reduced(x.astype(eg.uint8), axis, keepdims).astype(eg.bool)
        if all(x.shape[a] for a in axis):
            return function(x, axis=axis, keepdims=keepdims)
        # of nothing: the value that every other one replaces
        if x.dtype.is_float:
            value: float = -np.inf if lowest else np.inf
        else:
            limits = eg.iinfo(x.dtype)
            value = limits.min if lowest else limits.max
        shape = [1 if i in axis else s for i, s in enumerate(x.shape)]
        found = eg.full(tuple(shape), value, x.dtype, x.device)
        return found if keepdims else eg.squeeze(found, axis)

    return reduced


def _sum(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    return eg.sum(x, axis=axis, keepdims=keepdims).astype(x.dtype)


def _prod(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    return eg.prod(x, axis=axis, keepdims=keepdims).astype(x.dtype)


def _mean(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    if x.dtype.is_float:
        return eg.mean(x, axis=axis, keepdims=keepdims)
    count = int(np.prod([x.shape[a] for a in axis]))
    return eg.floor_divide(_sum(x, axis, keepdims), max(count, 1))


def _root(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    squares = _sum(x * x, axis, keepdims)
    if x.dtype.is_float:
        return eg.sqrt(squares)
    return eg.sqrt(squares.astype(eg.float32)).astype(x.dtype)


def _float_log(x: Tensor) -> Tensor:
    return eg.log(x) if x.dtype.is_float else eg.log(x.astype(eg.float32)).astype(x.dtype)


def _log_sum_exp(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    wide = x if x.dtype.is_float else x.astype(eg.float32)
    if not all(x.shape[a] for a in axis):
        return eg.log(_sum(eg.exp(wide), axis, keepdims)).astype(x.dtype)
    return eg.logsumexp(wide, axis=axis, keepdims=keepdims).astype(x.dtype)


_REDUCE: dict[str, Callable[..., Tensor]] = {
    "ReduceL1": lambda x, a, k: _sum(eg.abs(x), a, k),
    "ReduceL2": _root,
    "ReduceLogSum": lambda x, a, k: _float_log(_sum(x, a, k)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme(eg.amax, True),
    "ReduceMean": _mean,
    "ReduceMin": _extreme(eg.amin, False),
    "ReduceProd": _prod,
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, a, k: _sum(x * x, a, k),
}


@onnx_op(*_REDUCE)
def _reduce_by_attribute(call: Call, x: Tensor) -> Tensor:
    return _reduced(call, x, call("axes"))


@onnx_op(*(n for n in _REDUCE if n != "ReduceSum"), since=18, static=(1,))
@onnx_op("ReduceSum", since=13, static=(1,))
def _reduce(call: Call, x: Tensor, axes: Any = None) -> Tensor:
    return _reduced(call, x, None if axes is None else sizes(axes))


def _reduced(call: Call, x: Tensor, axes: Any) -> Tensor:
    if not axes:
        axes = () if call("noop_with_empty_axes", 0) else tuple(range(x.ndim))
    where = tuple(a % x.ndim for a in axes)
    if not where:  # what each operator does beside summing is still done
        wide = x.expand_dims(0)
        return _REDUCE[call.op](wide, (0,), False)
    return _REDUCE[call.op](x, where, bool(call("keepdims", 1)))


@onnx_op("ArgMax", "ArgMin")
def _arg(call: Call, x: Tensor) -> Tensor:
    axis, keep = call("axis", 0) % x.ndim, bool(call("keepdims", 1))
    find = eg.argmax if call.op == "ArgMax" else eg.argmin
    if not call("select_last_index", 0):
        return find(x, axis=axis, keepdims=keep).astype(eg.int64)
    return x.shape[axis] - 1 - find(eg.flip(x, axis), axis=axis, keepdims=keep).astype(eg.int64)


@onnx_op("CumSum", "CumProd", static=(1,))
def _scan(call: Call, x: Tensor, axis: Any) -> Tensor:
    at = int(np.asarray(axis).reshape(-1)[0]) % x.ndim
    if call("reverse", 0):
        x = eg.flip(x, at)
    product = call.op == "CumProd"
    found = (eg.cumulative_prod if product else eg.cumulative_sum)(x, axis=at).astype(x.dtype)
    if call("exclusive", 0):
        first = [slice(None)] * x.ndim
        first[at] = slice(0, -1)
        start_shape = (*x.shape[:at], min(1, x.shape[at]), *x.shape[at + 1 :])
        start = eg.full(start_shape, 1 if product else 0, x.dtype, x.device)
        found = eg.concat([start, found[tuple(first)]], axis=at)
    return eg.flip(found, at) if call("reverse", 0) else found


@onnx_op("TopK", fold=False)
def _top_k_by_attribute(call: Call, x: Tensor) -> Any:
    return _top_k(call, x, np.array(call("k")))


@onnx_op("TopK", since=10, static=(1,))
def _top_k(call: Call, x: Tensor, k: Any) -> Any:
    axis = call("axis", -1) % x.ndim
    count = int(np.asarray(k).reshape(-1)[0])
    if x.dtype is eg.bool or (x.dtype.is_integer and x.dtype.kind == "uint"):
        # unsigned numbers have no negatives to sort downwards by
        order = eg.argsort(x, axis=axis, descending=bool(call("largest", 1)))
        index = order[(*(slice(None),) * axis, slice(0, count))]
        return eg.take_along_axis(x, index, axis=axis), index.astype(eg.int64)
    found = eg.topk(x, count, axis=axis, largest=bool(call("largest", 1)))
    return found[0], found[1].astype(eg.int64)


@onnx_op("Hardmax")
def _hardmax(call: Call, x: Tensor) -> Tensor:
    return _rows(call, x, _one_at_largest)


@onnx_op("Softmax", "LogSoftmax")
def _softmax(call: Call, x: Tensor) -> Tensor:
    return _rows(call, x, eg.softmax if call.op == "Softmax" else eg.log_softmax)


def _one_at_largest(x: Tensor, axis: int) -> Tensor:
    largest = eg.argmax(x, axis=axis, keepdims=True)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return (eg.arange(x.shape[axis], device=x.device).reshape(tuple(shape)) == largest).astype(
        x.dtype
    )


def _rows(call: Call, x: Tensor, function: Callable[..., Tensor]) -> Tensor:
    """Along one axis; before opset 13 along all axes from there on, as one."""
    if call.version >= 13:
        return function(x, axis=call("axis", -1) % max(x.ndim, 1))
    axis = call("axis", 1) % x.ndim
    flat = x.reshape((int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))))
    return function(flat, axis=1).reshape(x.shape)
