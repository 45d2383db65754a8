"""com.microsoft: normalisations with skips, embeddings, packed weights, activations with biases."""

from __future__ import annotations

from typing import Any

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.interop.onnx.operators.registry import MICROSOFT, Call, onnx_op


@onnx_op("FastGelu", domain=MICROSOFT)
def _fast_gelu(call: Call, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return eg.gelu(x if bias is None else x + bias, "tanh")


@onnx_op("BiasGelu", domain=MICROSOFT)
def _bias_gelu(call: Call, x: Tensor, bias: Tensor) -> Tensor:
    return eg.gelu(x + bias)


@onnx_op("SkipLayerNormalization", domain=MICROSOFT)
def _skip_layer_norm(
    call: Call,
    x: Tensor,
    skip: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    bias: Tensor | None = None,
) -> Any:
    total = x + skip if bias is None else x + bias + skip
    out = eg.layer_norm(total, scale.shape, scale, shift, call("epsilon", 1e-12))
    return out, *_statistics(call, total, True), total


def _statistics(call: Call, x: Tensor, centred: bool) -> tuple[Any, Any]:
    """The mean and the inverse deviation, where a graph asks for them."""
    if not (call.wants(1) or call.wants(2)):
        return None, None
    wide = x.astype(eg.float32)
    mean = eg.mean(wide, axis=-1, keepdims=True)
    rest = wide - mean if centred else wide
    spread = eg.mean(rest * rest, axis=-1, keepdims=True)
    return mean, eg.rsqrt(spread + call("epsilon", 1e-12))


@onnx_op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_rms_norm(
    call: Call, x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Any:
    total = x + skip if bias is None else x + bias + skip
    out = eg.rms_norm(total, scale.shape, scale, call("epsilon", 1e-12))
    return out, *_statistics(call, total, False), total


@onnx_op("EmbedLayerNormalization", domain=MICROSOFT)
def _embed_layer_norm(
    call: Call,
    words: Tensor,
    segments: Tensor | None,
    word_table: Tensor,
    position_table: Tensor,
    segment_table: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
) -> Any:
    if positions is None:
        at = position_table[: words.shape[1]].expand_dims(0)
    else:
        at = eg.take(position_table, positions.astype(eg.int64), axis=0)
    total = eg.take(word_table, words.astype(eg.int64), axis=0) + at
    if segments is not None and segment_table is not None:
        total = total + eg.take(segment_table, segments.astype(eg.int64), axis=0)
    out = eg.layer_norm(total, scale.shape, scale, shift, call("epsilon", 1e-12))
    if mask is None:
        lengths = eg.zeros((words.shape[0],), eg.int32, words.device)
    else:
        lengths = eg.sum(mask.astype(eg.int32), axis=1).astype(eg.int32)
    return out, lengths, total


def unpacked(packed: Tensor, bits: int) -> Tensor:
    """Numbers of 2, 4 or 8 bits out of bytes along the last axis, the lowest bits first."""
    if bits == 8:
        return packed
    if bits not in (2, 4):
        raise ArgumentError(f"MatMulNBits: bits is 2, 4 or 8, got {bits}")
    mask = (1 << bits) - 1
    wide = packed.astype(eg.int32).expand_dims(-1)
    shifts = eg.asarray(np.arange(0, 8, bits, dtype=np.int32), device=packed.device)
    parts = eg.bitwise_and(eg.bitwise_right_shift(wide, shifts), mask)
    return parts.reshape((*packed.shape[:-1], packed.shape[-1] * (8 // bits)))


@onnx_op("MatMulNBits", domain=MICROSOFT)
def _matmul_n_bits(
    call: Call,
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zero: Tensor | None = None,
    groups: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    if call("weight_prepacked", 0):
        raise ArgumentError("MatMulNBits: the weight is prepacked for one GPU; export it without")
    rows, columns, block = call("N"), call("K"), call("block_size")
    bits = call("bits", 4)
    blocks = -(-columns // block)
    if packed.shape[0] != rows or packed.size * 8 != rows * blocks * block * bits:
        raise ShapeError(
            f"MatMulNBits: weight {packed.shape} does not hold {rows} x {columns} numbers of "
            f"{bits} bits in blocks of {block}"
        )
    whole = unpacked(packed.reshape((rows, blocks, -1)), bits).astype(scales.dtype)
    scales = scales.reshape((rows, blocks, 1))
    shift: Any = float(1 << (bits - 1))
    if zero is not None:
        flat = zero.reshape((rows, -1))
        if zero.dtype.is_integer:
            flat = unpacked(flat, bits)[:, :blocks]
        shift = flat.reshape((rows, blocks, 1)).astype(scales.dtype)
    if groups is not None:
        weight = _by_groups(whole.reshape((rows, -1))[:, :columns], scales, shift, groups)
    else:
        weight = ((whole - shift) * scales).reshape((rows, -1))[:, :columns]
    out = eg.matmul(x, weight.astype(x.dtype).mT)
    return out if bias is None else out + bias


def _by_groups(whole: Tensor, scales: Tensor, shift: Any, groups: Tensor) -> Tensor:
    index = groups.astype(eg.int64)[: whole.shape[1]]
    zero = eg.take(shift[:, :, 0], index, axis=1) if isinstance(shift, Tensor) else shift
    return (whole - zero) * eg.take(scales[:, :, 0], index, axis=1)


@onnx_op("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def _fused_matmul(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if call("transBatchA", 0) or call("transBatchB", 0):
        raise ArgumentError("FusedMatMul: transBatchA and transBatchB are not known here")
    left = x.mT if call("transA", 0) and x.ndim > 1 else x
    right = y.mT if call("transB", 0) and y.ndim > 1 else y
    return eg.matmul(left, right) * call("alpha", 1.0)


_ACTIVATIONS = {"Relu": eg.relu, "Sigmoid": eg.sigmoid, "Tanh": eg.tanh}


@onnx_op("FusedGemm", domain=MICROSOFT)
def _fused_gemm(call: Call, x: Tensor, y: Tensor, c: Tensor | None = None) -> Tensor:
    out = eg.matmul(x.mT if call("transA", 0) else x, y.mT if call("transB", 0) else y)
    out = out * call("alpha", 1.0)
    if c is not None:
        out = out + c * call("beta", 1.0)
    name = call("activation", "")
    if name and name not in _ACTIVATIONS:
        raise ArgumentError(f"FusedGemm: activation {name!r} is not known here")
    return _ACTIVATIONS[name](out) if name else out
