"""Operators on each element: arithmetic, comparisons, logic, functions, activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import is_foreign, tensor_of

_UNARY: dict[str, Callable[..., Any]] = {
    "Abs": eg.abs,
    "Acos": eg.acos,
    "Acosh": eg.acosh,
    "Asin": eg.asin,
    "Asinh": eg.asinh,
    "Atan": eg.atan,
    "Atanh": eg.atanh,
    "BitwiseNot": eg.bitwise_invert,
    "Ceil": eg.ceil,
    "Cos": eg.cos,
    "Cosh": eg.cosh,
    "Erf": eg.erf,
    "Exp": eg.exp,
    "Floor": eg.floor,
    "HardSwish": eg.hardswish,
    "IsNaN": eg.isnan,
    "Log": eg.log,
    "Mish": eg.mish,
    "Neg": eg.negative,
    "Not": eg.logical_not,
    "Reciprocal": eg.reciprocal,
    "Relu": eg.relu,
    "Round": eg.round,
    "Sigmoid": eg.sigmoid,
    "Sign": eg.sign,
    "Sin": eg.sin,
    "Sinh": eg.sinh,
    "Softplus": eg.softplus,
    "Softsign": eg.softsign,
    "Sqrt": eg.sqrt,
    "Tan": eg.tan,
    "Tanh": eg.tanh,
}
_BINARY: dict[str, Callable[..., Any]] = {
    "Add": eg.add,
    "And": eg.logical_and,
    "BitwiseAnd": eg.bitwise_and,
    "BitwiseOr": eg.bitwise_or,
    "BitwiseXor": eg.bitwise_xor,
    "Greater": eg.greater,
    "GreaterOrEqual": eg.greater_equal,
    "Less": eg.less,
    "LessOrEqual": eg.less_equal,
    "Mul": eg.multiply,
    "Or": eg.logical_or,
    "Sub": eg.subtract,
    "Xor": eg.logical_xor,
}


@onnx_op(*_UNARY)
def _unary(call: Call, x: Tensor) -> Tensor:
    return _UNARY[call.op](x)


def aligned(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """y as opsets before 7 broadcast it: its axes stand where the attribute `axis` says."""
    if call.version >= 7 or call("axis") is None or y.ndim == x.ndim:
        return y
    axis = call("axis") % x.ndim
    return y.reshape((*y.shape, *(1,) * (x.ndim - axis - y.ndim)))


@onnx_op(*_BINARY)
def _binary(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return _BINARY[call.op](x, aligned(call, x, y))


@onnx_op("Div")
def _div(call: Call, x: Tensor, y: Tensor) -> Tensor:
    y = aligned(call, x, y)
    if x.dtype.is_integer:
        quotient = eg.floor_divide(x, y)
        if x.dtype.kind == "uint":
            return quotient
        # C's division goes towards 0
        inexact = (eg.remainder(x, y) != 0) & ((x < 0) != (y < 0))
        return quotient + inexact.astype(x.dtype)
    return eg.divide(x, y)


@onnx_op("Mod")
def _mod(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return eg.fmod(x, y) if call("fmod", 0) else eg.remainder(x, y)


@onnx_op("Pow")
def _pow(call: Call, x: Tensor, y: Tensor) -> Tensor:
    y = aligned(call, x, y)
    if x.dtype is y.dtype and x.dtype.is_float:
        return eg.pow(x, y)
    if x.dtype.is_integer and y.dtype.is_integer:
        wide = eg.result_type(x.dtype, y.dtype) if x.dtype.kind == y.dtype.kind else eg.int64
        return eg.pow(x.astype(wide), y.astype(wide)).astype(x.dtype)
    wide = eg.float32 if x.device.startswith("webgpu") else eg.float64
    if x.dtype.is_float:
        return eg.pow(x, y.astype(x.dtype))
    return eg.pow(x.astype(wide), y.astype(wide)).astype(x.dtype)


@onnx_op("BitShift")
def _bit_shift(call: Call, x: Tensor, y: Tensor) -> Tensor:
    left = call("direction") == "LEFT"
    bits = x.dtype.bits
    shift = eg.minimum(y, eg.full_like(y, bits - 1))
    done = (eg.bitwise_left_shift if left else eg.bitwise_right_shift)(x, shift)
    # a shift by all bits or more, which C leaves open, leaves nothing, or the sign
    if left or x.dtype.kind == "uint":
        return eg.where(y >= bits, eg.zeros_like(x), done)
    return done


@onnx_op("Equal", raw=True)
def _equal(call: Call, x: Any, y: Any) -> Any:
    if is_foreign(x) or (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        return np.asarray(x == y, bool)
    x, y = tensor_of(x, call.device), tensor_of(y, call.device)
    return eg.equal(x, aligned(call, x, y))


@onnx_op("Where", raw=True)
def _where(call: Call, condition: Any, x: Any, y: Any) -> Any:
    if is_foreign(x) or all(isinstance(v, np.ndarray) for v in (condition, x, y)):
        known = np.asarray(condition.numpy() if isinstance(condition, Tensor) else condition)
        return np.where(known, x, y)
    return eg.where(*(tensor_of(v, call.device) for v in (condition, x, y)))


_VARIADIC: dict[str, Callable[..., Any]] = {
    "Max": eg.maximum,
    "Min": eg.minimum,
    "Sum": eg.add,
    "Mean": eg.add,
}


@onnx_op(*_VARIADIC)
def _variadic(call: Call, *inputs: Tensor) -> Tensor:
    found = reduce(_VARIADIC[call.op], inputs)
    return found / len(inputs) if call.op == "Mean" else found


@onnx_op("Clip")
def _clip_by_attributes(call: Call, x: Tensor) -> Tensor:
    return eg.clip(x, call("min"), call("max"))


@onnx_op("Clip", since=11)
def _clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    # the upper bound counts where the bounds are the wrong way round
    found = x if low is None else eg.maximum(x, low)
    return found if high is None else eg.minimum(found, high)


@onnx_op("IsInf")
def _is_inf(call: Call, x: Tensor) -> Tensor:
    found = eg.isinf(x)
    if not call("detect_negative", 1):
        found = found & (x > 0)
    if not call("detect_positive", 1):
        found = found & (x < 0)
    return found


# --- activations ---------------------------------------------------------------------------------


@onnx_op("Elu")
def _elu(call: Call, x: Tensor) -> Tensor:
    return eg.elu(x, call("alpha", 1.0))


@onnx_op("Celu")
def _celu(call: Call, x: Tensor) -> Tensor:
    return eg.celu(x, call("alpha", 1.0))


@onnx_op("Selu")
def _selu(call: Call, x: Tensor) -> Tensor:
    alpha, gamma = (
        call("alpha", 1.67326319217681884765625),
        call("gamma", 1.05070102214813232421875),
    )
    return gamma * eg.elu(x, alpha)


@onnx_op("LeakyRelu")
def _leaky_relu(call: Call, x: Tensor) -> Tensor:
    return eg.leaky_relu(x, call("alpha", 0.01))


@onnx_op("ThresholdedRelu")
def _thresholded_relu(call: Call, x: Tensor) -> Tensor:
    return eg.where(x > call("alpha", 1.0), x, eg.zeros_like(x))


@onnx_op("PRelu")
def _prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    if call.version < 7 and slope.ndim == 1 and x.ndim > 2 and slope.shape[0] != 1:
        slope = slope.reshape((-1, *(1,) * (x.ndim - 2)))  # one slope a channel
    return eg.where(x < 0, slope * x, x)


@onnx_op("HardSigmoid")
def _hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    return eg.clip(call("alpha", 0.2) * x + call("beta", 0.5), 0.0, 1.0)


@onnx_op("Gelu")
@onnx_op("Gelu", "QuickGelu", domain="com.microsoft")
def _gelu(call: Call, x: Tensor) -> Tensor:
    if call.op == "QuickGelu":
        return x * eg.sigmoid(call("alpha", 1.702) * x)
    approximate = call("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"Gelu: approximate is 'none' or 'tanh', got {approximate!r}")
    return eg.gelu(x, approximate)


@onnx_op("Swish")
def _swish(call: Call, x: Tensor) -> Tensor:
    return x * eg.sigmoid(call("alpha", 1.0) * x)


@onnx_op("Shrink")
def _shrink(call: Call, x: Tensor) -> Tensor:
    bias, limit = call("bias", 0.0), call("lambd", 0.5)
    wide = x.astype(eg.float32) if x.dtype.is_integer else x
    found = eg.where(wide < -limit, wide + bias, eg.where(wide > limit, wide - bias, wide * 0))
    return found.astype(x.dtype)


@onnx_op("Affine")
def _affine(call: Call, x: Tensor) -> Tensor:
    return call("alpha", 1.0) * x + call("beta", 0.0)


@onnx_op("ParametricSoftplus")
def _parametric_softplus(call: Call, x: Tensor) -> Tensor:
    return call("alpha", 1.0) * eg.softplus(call("beta", 1.0) * x)


@onnx_op("ScaledTanh")
def _scaled_tanh(call: Call, x: Tensor) -> Tensor:
    return call("alpha", 1.0) * eg.tanh(call("beta", 1.0) * x)
