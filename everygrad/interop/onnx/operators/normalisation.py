"""Normalisations and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

import everygrad as eg
from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import np_dtype


def by_channel(v: Tensor, x: Tensor) -> Tensor:
    """A vector along x's axis 1."""
    return v.reshape((1, -1, *(1,) * (x.ndim - 2)))


@onnx_op("BatchNormalization", buffers=(3, 4))
def _batch_norm(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Any:
    eps = call("epsilon", 1e-5)
    training = bool(call("training_mode", 0)) if call.version >= 14 else call.wants(1)
    if not training:
        wide = dtypes.promote(x.dtype, mean.dtype)
        if x.ndim < 2 or mean.dtype is not x.dtype:
            shift = scale.astype(wide) * eg.rsqrt(var.astype(wide) + eps)
            centred = x.astype(wide) - by_channel(mean.astype(wide), x)
            out = centred * by_channel(shift, x) + by_channel(bias.astype(wide), x)
            return out.astype(x.dtype)
        return eg.batch_norm(x, mean, var, scale, bias, False, 0.1, eps)
    axes = tuple(i for i in range(x.ndim) if i != 1)
    now_mean, now_var = eg.mean(x, axis=axes), eg.var(x, axis=axes)
    out = (x - by_channel(now_mean, x)) * by_channel(scale * eg.rsqrt(now_var + eps), x)
    momentum = call("momentum", 0.9)
    kept_mean = mean * momentum + now_mean.astype(mean.dtype) * (1 - momentum)
    kept_var = var * momentum + now_var.astype(var.dtype) * (1 - momentum)
    return (out + by_channel(bias, x)).astype(x.dtype), kept_mean, kept_var, now_mean, now_var


@onnx_op("InstanceNormalization")
def _instance_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return eg.instance_norm(x, None, None, scale, bias, eps=call("epsilon", 1e-5))


def _stash(call: Call, x: Tensor) -> Any:
    """What statistics are computed in: `stash_type`, float32 if nothing is said."""
    said = dtypes.as_dtype(np_dtype(call("stash_type", 1)))
    return said if x.dtype.bits <= said.bits or x.dtype is not eg.float64 else x.dtype


@onnx_op("LayerNormalization")
@onnx_op("LayerNormalization", domain="com.microsoft")
def _layer_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    axis, eps = call("axis", -1) % x.ndim, call("epsilon", 1e-5)
    plain = tuple(x.shape[axis:])
    whole = scale.shape == plain and (bias is None or bias.shape == plain)
    if whole and not call.wants(1) and not call.wants(2) and x.dtype is scale.dtype:
        return eg.layer_norm(x, plain, scale, bias, eps)
    axes = tuple(range(axis, x.ndim))
    wide = x.astype(_stash(call, x))
    mean = eg.mean(wide, axis=axes, keepdims=True)
    centred = wide - mean
    inverse = eg.rsqrt(eg.mean(centred * centred, axis=axes, keepdims=True) + eps)
    out = (centred * inverse).astype(x.dtype) * scale
    return (out if bias is None else out + bias), mean, inverse


@onnx_op("RMSNormalization")
@onnx_op("SimplifiedLayerNormalization")
@onnx_op("SimplifiedLayerNormalization", domain="com.microsoft")
def _rms_norm(call: Call, x: Tensor, scale: Tensor) -> Any:
    axis, eps = call("axis", -1) % x.ndim, call("epsilon", 1e-5)
    axes = tuple(range(axis, x.ndim))
    if scale.shape == tuple(x.shape[axis:]) and not call.wants(1) and x.dtype is scale.dtype:
        return eg.rms_norm(x, scale.shape, scale, eps)
    wide = x.astype(_stash(call, x))
    inverse = eg.rsqrt(eg.mean(wide * wide, axis=axes, keepdims=True) + eps)
    return (wide * inverse).astype(x.dtype) * scale, inverse


@onnx_op("GroupNormalization", since=21)
def _group_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return eg.group_norm(x, call("num_groups"), scale, bias, call("epsilon", 1e-5))


@onnx_op("GroupNormalization", since=18)
def _group_norm_by_group(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = call("num_groups")
    each = x.shape[1] // groups
    w, b = (eg.repeat(v, each) if v.shape[0] == groups else v for v in (scale, bias))
    return eg.group_norm(x, groups, w, b, call("epsilon", 1e-5))


@onnx_op("LpNormalization")
def _lp_normalization(call: Call, x: Tensor) -> Tensor:
    axis = call("axis", -1)
    if call("p", 2) == 1:
        norm = eg.sum(eg.abs(x), axis=axis, keepdims=True)
    else:
        norm = eg.sqrt(eg.sum(x * x, axis=axis, keepdims=True))
    zero = norm == 0
    return eg.where(zero, eg.zeros_like(x), x / eg.where(zero, eg.ones_like(norm), norm))


@onnx_op("LRN")
def _lrn(call: Call, x: Tensor) -> Tensor:
    size = call("size")
    if not 0 < size <= 2 * x.shape[1] + 1:
        raise ArgumentError(f"LRN: size {size} for {x.shape[1]} channels")
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = x * x
    zeros = [eg.zeros((x.shape[0], n, *x.shape[2:]), x.dtype, x.device) for n in (before, after)]
    wide = eg.concat([zeros[0], squares, zeros[1]], axis=1)
    total = wide[:, : x.shape[1]]
    for k in range(1, size):
        total = total + wide[:, k : k + x.shape[1]]
    scale = call("bias", 1.0) + call("alpha", 1e-4) / size * total
    return x / eg.pow(scale, call("beta", 0.75))


def _dropped(call: Call, x: Tensor, ratio: Any) -> Any:
    """x with elements dropped, and which were kept. A seed in the file draws as ONNX's reference
    does, by NumPy; without one the draws are everygrad's."""
    if call("seed") is not None:
        draws = np.random.RandomState(int(call("seed"))).uniform(0, 1, x.shape)
        kept = eg.asarray(draws.astype(np.float32), device=x.device) >= ratio
    else:
        kept = eg.rand(x.shape, device=x.device) >= ratio
    # of a ratio of 1 nothing is kept, and there is nothing to scale
    share = eg.maximum(1.0 - ratio, 1e-30) if isinstance(ratio, Tensor) else max(1.0 - ratio, 1e-30)
    return (eg.where(kept, x, eg.zeros_like(x)) / share).astype(x.dtype), kept


@onnx_op("Dropout", fold=False)
def _dropout_by_attributes(call: Call, x: Tensor) -> Any:
    # before opset 12 nothing in the file says "training"; the module itself does
    test = bool(call("is_test", 0)) if call.version < 7 else not call.training
    if test or not call.training:
        return x, eg.ones(x.shape, x.dtype if call.version < 10 else eg.bool, x.device)
    return _dropped(call, x, call("ratio", 0.5))


@onnx_op("Dropout", since=12, static=(2,), fold=False)
def _dropout(call: Call, x: Tensor, ratio: Tensor | None = None, training: Any = None) -> Any:
    on = training is not None and bool(np.asarray(training).reshape(-1)[0])
    if not on:
        return x, eg.ones(x.shape, eg.bool, x.device)
    return _dropped(call, x, 0.5 if ratio is None else ratio.astype(eg.float32).reshape(()))
