"""Quantised operators: integers with a scale and a zero point."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

import everygrad as eg
from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.onnx.operators.casts import to_foreign
from everygrad.interop.onnx.operators.products import convolve, grown, window_pads
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import array_of, is_foreign, np_dtype, tensor_of


def _limits(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """The smallest and largest number of an integer dtype, packed ones too."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if "int" in dtype.name:
        info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        return int(info.min), int(info.max)
    return None


def spread(v: Any, shape: tuple[int, ...], axis: int, block: int) -> Any:
    """A scale or zero point in a shape that broadcasts with x: one number, one for each place
    along an axis, or one for each block of places."""
    if v is None or v.ndim == 0 or (v.ndim == 1 and v.shape[0] == 1):
        return v if v is None or v.ndim == 0 else v.reshape(())
    axis %= len(shape)
    if v.ndim == 1 and not block:
        return v.reshape((-1, *(1,) * (len(shape) - axis - 1)))
    if not block:
        return v
    if not 0 < block <= max(shape[axis], 1):
        raise ArgumentError(f"block_size {block} on an axis of {shape[axis]}")
    wide = eg.repeat(v, block, axis=axis) if isinstance(v, Tensor) else np.repeat(v, block, axis)
    cut = (slice(None),) * axis + (slice(0, shape[axis]),)
    return wide[cut]


def quantise(
    x: Tensor, scale: Tensor, zero: Any, to: np.dtype[Any], axis: int, block: int, precision: Any
) -> Tensor:
    """x / scale rounded, shifted and limited, as integers wide enough to hold them."""
    limits = _limits(to)
    assert limits is not None
    kind = scale.dtype if precision is None else precision
    ratio = x.astype(kind) / spread(scale, x.shape, axis, block).astype(kind)
    wide = eg.round(ratio)
    if wide.dtype.bits < 32:  # 16-bit floats do not hold every sum with a zero point
        wide = wide.astype(eg.float32)
    if zero is not None:
        wide = wide + spread(zero, x.shape, axis, block).astype(wide.dtype)
    return eg.clip(wide, *limits)


@onnx_op("QuantizeLinear", raw=True)
@onnx_op("QuantizeLinear", domain="com.microsoft", raw=True)
def _quantize_linear(call: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    said = call("output_dtype", 0)
    to = np_dtype(said) if said else np.dtype(np.uint8)
    if zero is not None:
        to = zero.dtype.np if isinstance(zero, Tensor) else zero.dtype
    x, scale = tensor_of(x, call.device), tensor_of(scale, call.device)
    axis, block = call("axis", 1), call("block_size", 0)
    precision = call("precision", 0)
    kind = dtypes.as_dtype(np_dtype(precision)) if precision else None
    if _limits(to) is None:  # float8, float4: no tensor holds the result
        ratio = array_of(x / spread(scale, x.shape, axis, block))
        if zero is not None:
            shift = spread(array_of(zero), x.shape, axis, block)
            ratio = ratio + shift.astype(np.float32)
        return to_foreign(
            ratio, helper.np_dtype_to_tensor_dtype(to), bool(call("saturate", 1)), "up"
        )
    if zero is not None:
        zero = tensor_of(zero.astype(np.int8) if is_foreign(zero) else zero, call.device)
    found = quantise(x, scale, zero, to, axis, block, kind)
    ours = dtypes.FROM_NP.get(to)
    return found.astype(ours) if ours is not None else array_of(found).astype(np.int8).astype(to)


def dequantise(x: Any, scale: Tensor, zero: Any, axis: int, block: int, to: Any) -> Tensor:
    """(x - zero) * scale."""
    wide = eg.float64 if to is eg.float64 else eg.float32
    found = _as_float(x, scale.device, wide)
    if zero is not None:
        found = found - spread(_as_float(zero, scale.device, wide), x.shape, axis, block)
    return (found * spread(scale, x.shape, axis, block).astype(wide)).astype(to)


def _as_float(x: Any, device: str, wide: Any) -> Tensor:
    if is_foreign(x):
        return eg.asarray(x.astype(np.float32), device=device).astype(wide)
    return tensor_of(x, device).astype(wide)


@onnx_op("DequantizeLinear", raw=True)
@onnx_op("DequantizeLinear", domain="com.microsoft", raw=True)
def _dequantize_linear(call: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    scale = tensor_of(scale, call.device)
    said = call("output_dtype", 0)
    to = dtypes.as_dtype(np_dtype(said)) if said else scale.dtype
    return dequantise(x, scale, zero, call("axis", 1), call("block_size", 0), to)


@onnx_op("DynamicQuantizeLinear")
def _dynamic_quantize_linear(call: Call, x: Tensor) -> Any:
    low = eg.minimum(eg.amin(x), 0.0)
    high = eg.maximum(eg.amax(x), 0.0)
    scale = (high - low) / 255.0
    safe = eg.where(scale == 0, eg.ones_like(scale), scale)
    zero = eg.clip(eg.round(-low / safe), 0, 255)
    found = eg.clip(eg.round(x / safe) + zero, 0, 255)
    return found.astype(eg.uint8), scale, zero.astype(eg.uint8)


# --- products ------------------------------------------------------------------------------------


def shifted(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """x less its zero point, as 32-bit integers; several zero points stand along an axis."""
    wide = x.astype(eg.int32)
    if zero is None:
        return wide
    z = zero.astype(eg.int32)
    if z.ndim == 1 and z.shape[0] > 1:
        axis %= x.ndim
        z = z.reshape((-1, *(1,) * (x.ndim - axis - 1)))
    return wide - (z.reshape(()) if z.ndim == 1 and z.shape[0] == 1 else z)


@onnx_op("MatMulInteger")
def _matmul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return eg.matmul(shifted(a, a_zero, -2), shifted(b, b_zero, -1))


@onnx_op("ConvInteger")
def _conv_integer(
    call: Call, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    return _whole_convolution(call, shifted(x, x_zero, 1), shifted(w, w_zero, 0))


def _whole_convolution(call: Call, x: Tensor, w: Tensor) -> Tensor:
    """A convolution of integers: exact in float64, whose 53 bits hold such sums; as products of
    matrices of integers where a device has none."""
    if x.device.startswith("webgpu"):
        return _by_taps(call, x, w)
    return convolve(call, x.astype(eg.float64), w.astype(eg.float64), None).astype(eg.int32)


def _by_taps(call: Call, x: Tensor, w: Tensor) -> Tensor:
    count = x.ndim - 2
    kernel, groups = list(w.shape[2:]), call("group", 1)
    strides, dilations = call("strides", [1] * count), call("dilations", [1] * count)
    pads = window_pads(call, x.shape[2:], kernel, strides, dilations)
    whole = grown(x, pads, 0)
    places = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(whole.shape[2:], kernel, dilations, strides, strict=True)
    ]
    taps = []
    for at in itertools.product(*map(range, kernel)):
        steps = zip(at, dilations, strides, places, strict=True)
        taken = [slice(o * d, o * d + (p - 1) * s + 1, s) for o, d, s, p in steps]
        taps.append(whole[(slice(None), slice(None), *taken)])
    n, c = x.shape[:2]
    columns = eg.stack(taps, axis=2).reshape((n, groups, c // groups * len(taps), -1))
    rows = w.reshape((groups, w.shape[0] // groups, -1))
    return eg.matmul(rows, columns).reshape((n, w.shape[0], *places))


def _requantised(
    total: Tensor, scale: Tensor, y_scale: Tensor, y_zero: Tensor, axis: int
) -> Tensor:
    """Sums of products of integers as integers of the result's scale."""
    kind = eg.float32 if total.device.startswith("webgpu") else eg.float64
    ratio = total.astype(kind) * scale.astype(kind) / y_scale.astype(kind)
    low, high = _limits(y_zero.dtype.np) or (0, 0)
    found = eg.round(ratio) + y_zero.astype(kind)
    return eg.clip(found, low, high).astype(y_zero.dtype)


def _along(v: Tensor, rank: int, axis: int) -> Tensor:
    if v.ndim == 0 or v.shape == (1,):
        return v.reshape(())
    return v.reshape((-1, *(1,) * (rank - axis % rank - 1))) if v.ndim == 1 else v


@onnx_op("QLinearMatMul")
def _qlinear_matmul(
    call: Call,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    total = eg.matmul(shifted(a, a_zero, -2), shifted(b, b_zero, -1))
    scale = _along(a_scale, total.ndim, -2) * _along(b_scale, total.ndim, -1)
    return _requantised(total, scale, y_scale.reshape(()), y_zero.reshape(()), 1)


@onnx_op("QLinearConv")
def _qlinear_conv(
    call: Call,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    total = _whole_convolution(call, shifted(x, x_zero, 1), shifted(w, w_zero, 0))
    if bias is not None:
        total = total + bias.reshape((-1, *(1,) * (x.ndim - 2)))
    scale = x_scale.reshape(()) * _along(w_scale, x.ndim, 1)
    return _requantised(total, scale, y_scale.reshape(()), y_zero.reshape(()), 1)


def _qlinear_pair(call: Call, function: Any, values: tuple[Any, ...]) -> Tensor:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, *rest = values
    zero = rest[0] if rest and rest[0] is not None else eg.zeros((), a.dtype, a.device)
    left = dequantise(a, a_scale, a_zero, 1, 0, eg.float32)
    right = dequantise(b, b_scale, b_zero, 1, 0, eg.float32)
    to = zero.dtype
    return quantise(function(left, right), y_scale, zero, to.np, 1, 0, None).astype(to)


@onnx_op("QLinearAdd", "QLinearMul", domain="com.microsoft")
def _qlinear_binary(call: Call, *values: Any) -> Tensor:
    return _qlinear_pair(call, eg.add if call.op == "QLinearAdd" else eg.multiply, values)


@onnx_op("QLinearSigmoid", "QLinearLeakyRelu", domain="com.microsoft")
def _qlinear_unary(
    call: Call, x: Tensor, x_scale: Tensor, x_zero: Any, y_scale: Tensor, y_zero: Any = None
) -> Tensor:
    wide = dequantise(x, x_scale, x_zero, 1, 0, eg.float32)
    if call.op == "QLinearSigmoid":
        found = eg.sigmoid(wide)
    else:
        found = eg.leaky_relu(wide, call("alpha", 0.01))
    return quantise(found, y_scale, y_zero, x.dtype.np, 1, 0, None).astype(x.dtype)


@onnx_op("QLinearGlobalAveragePool", domain="com.microsoft")
def _qlinear_global_pool(
    call: Call, x: Tensor, x_scale: Tensor, x_zero: Any, y_scale: Tensor, y_zero: Any = None
) -> Tensor:
    last = bool(call("channels_last", 0))
    axes = tuple(range(1, x.ndim - 1)) if last else tuple(range(2, x.ndim))
    wide = dequantise(x, x_scale, x_zero, 1, 0, eg.float32)
    mean = eg.mean(wide, axis=axes, keepdims=True)
    return quantise(mean, y_scale, y_zero, x.dtype.np, 1, 0, None).astype(x.dtype)


@onnx_op("DynamicQuantizeMatMul", domain="com.microsoft")
def _dynamic_quantize_matmul(
    call: Call, a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Any = None, bias: Any = None
) -> Tensor:
    whole, scale, zero = _dynamic_quantize_linear(call, a)
    return _integer_product(whole, b, scale, b_scale, zero, b_zero, bias)


@onnx_op("MatMulIntegerToFloat", domain="com.microsoft")
def _matmul_integer_to_float(
    call: Call,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero: Any = None,
    b_zero: Any = None,
    bias: Any = None,
) -> Tensor:
    return _integer_product(a, b, a_scale, b_scale, a_zero, b_zero, bias)


def _integer_product(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_zero: Any, b_zero: Any, bias: Any
) -> Tensor:
    total = eg.matmul(shifted(a, a_zero, -2), shifted(b, b_zero, -1)).astype(eg.float32)
    out = total * (a_scale.reshape(()) * _along(b_scale, total.ndim, -1))
    return out if bias is None else out + bias
