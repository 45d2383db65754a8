"""Products of matrices and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import checked_size

_CONV = {1: eg.conv1d, 2: eg.conv2d, 3: eg.conv3d}
_CONV_TRANSPOSE = {1: eg.conv_transpose1d, 2: eg.conv_transpose2d, 3: eg.conv_transpose3d}


@onnx_op("MatMul")
def _matmul(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return eg.matmul(x, y)


@onnx_op("Gemm")
def _gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    alpha, beta = call("alpha", 1.0), call("beta", 1.0)
    out = eg.matmul(a.mT if call("transA", 0) else a, b.mT if call("transB", 0) else b)
    if alpha != 1.0:
        out = (out * alpha).astype(a.dtype)
    if c is None:
        return out
    return out + (c if beta == 1.0 else (c * beta).astype(a.dtype))


@onnx_op("Einsum")
def _einsum(call: Call, *operands: Tensor) -> Tensor:
    return eg.einsum(call("equation").replace(" ", ""), *operands)


@onnx_op("Det")
def _det(call: Call, x: Tensor) -> Tensor:
    return eg.linalg.det(x)


# --- windows -------------------------------------------------------------------------------------


def window_pads(
    call: Call,
    shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """Before and after each spatial axis: `pads`, or what `auto_pad` makes of the sizes."""
    count = len(kernel)
    mode = call("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for size, k, s, d in zip(shape, kernel, strides, dilations, strict=True):
            total = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            small, large = total // 2, total - total // 2
            pads.append((small, large) if mode == "SAME_UPPER" else (large, small))
        return pads
    if mode == "VALID":
        return [(0, 0)] * count
    if mode != "NOTSET":
        raise ArgumentError(f"{call.op}: auto_pad {mode!r} is not one of ONNX's")
    given = call("pads", [0] * 2 * count)
    if len(given) != 2 * count:
        raise ShapeError(f"{call.op}: pads {given} are not two for each of {count} axes")
    return [(given[i], given[count + i]) for i in range(count)]


def grown(x: Tensor, pads: Sequence[tuple[int, int]], value: Any) -> Tensor:
    """x with constants around its last axes; negative pads cut."""
    if not any(a or b for a, b in pads):
        return x
    first = x.ndim - len(pads)
    cut = (slice(None),) * first + tuple(
        slice(max(0, -a), s - max(0, -b)) for s, (a, b) in zip(x.shape[first:], pads, strict=True)
    )
    if any(a < 0 or b < 0 for a, b in pads):
        x = x[cut]
    checked_size(
        "padding",
        [s + max(0, a) + max(0, b) for s, (a, b) in zip(x.shape[first:], pads, strict=True)],
    )
    around = [(0, 0)] * first + [(max(0, a), max(0, b)) for a, b in pads]
    flat = [n for pair in reversed(around) for n in pair]
    return eg.nn.functional.pad(x, flat, value=value) if any(flat) else x


def convolve(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution that a node's attributes say."""
    count = x.ndim - 2
    if count not in _CONV:
        raise ShapeError(f"{call.op}: 1 to 3 spatial axes, got x of shape {x.shape}")
    strides, dilations = call("strides", [1] * count), call("dilations", [1] * count)
    kernel = weight.shape[2:]
    pads = window_pads(call, x.shape[2:], kernel, strides, dilations)
    even = all(a == b and a >= 0 for a, b in pads)
    padding = tuple(a for a, _ in pads) if even else 0
    if not even:
        x = grown(x, pads, 0)
    return _CONV[count](
        *(x, weight, bias, tuple(strides), padding, tuple(dilations)), groups=call("group", 1)
    )


@onnx_op("Conv")
@onnx_op("FusedConv", domain="com.microsoft")
def _conv(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, z: Tensor | None = None
) -> Tensor:
    out = convolve(call, x, weight, bias)
    if z is not None:
        out = out + z
    activation = call("activation")
    if activation is None:
        return out
    if activation not in ("Relu", "Sigmoid", "Tanh"):
        raise ArgumentError(f"FusedConv: activation {activation!r} is not known here")
    return {"Relu": eg.relu, "Sigmoid": eg.sigmoid, "Tanh": eg.tanh}[activation](out)


def _halves(total: int, upper: bool) -> tuple[int, int]:
    """Padding that makes a result of a given size; what is missing is added at the end."""
    if total < 0:
        return 0, total
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


@onnx_op("ConvTranspose")
def _conv_transpose(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    count = x.ndim - 2
    if count not in _CONV_TRANSPOSE:
        raise ShapeError(f"ConvTranspose: 1 to 3 spatial axes, got x of shape {x.shape}")
    strides, dilations = call("strides", [1] * count), call("dilations", [1] * count)
    extra = call("output_padding", [0] * count)
    whole = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(x.shape[2:], strides, weight.shape[2:], dilations, strict=True)
    ]
    mode = call("auto_pad", "NOTSET")
    wanted = call("output_shape")
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if wanted is not None:
        totals = [w + e - n for w, e, n in zip(whole, extra, wanted[-count:], strict=True)]
        pads = [_halves(t, mode == "SAME_UPPER") for t in totals]
    else:
        pads = window_pads(call, x.shape[2:], weight.shape[2:], strides, dilations)
    out = _CONV_TRANSPOSE[count](
        x, weight, None, tuple(strides), 0, 0, call("group", 1), tuple(dilations)
    )
    out = grown(out, [(-a, e - b) for (a, b), e in zip(pads, extra, strict=True)], 0)
    return out if bias is None else out + bias.reshape((-1, *(1,) * count))


@onnx_op("Col2Im", static=(1, 2))
def _col2im(call: Call, x: Tensor, image: Any, block: Any) -> Tensor:
    """Columns added up where they come from, along any number of axes."""
    count = len(image)
    strides, dilations = call("strides", [1] * count), call("dilations", [1] * count)
    pads = call("pads", [0] * 2 * count)
    kernel = [int(b) for b in block]
    whole = [int(s) + pads[i] + pads[count + i] for i, s in enumerate(image)]
    checked_size("Col2Im", whole)
    places = [
        (w - (k - 1) * d - 1) // s + 1
        for w, k, d, s in zip(whole, kernel, dilations, strides, strict=True)
    ]
    # the flat place in the padded image of each element of a column
    index = np.zeros((), np.int64)
    for w, k, d, s, p in zip(whole, kernel, dilations, strides, places, strict=True):
        along = np.arange(k)[:, None] * d + np.arange(p) * s
        index = index[..., None, None] * w + along
    order = [*range(0, 2 * count, 2), *range(1, 2 * count, 2)]
    flat = index.transpose(order).reshape(-1)
    n = x.shape[0]
    channels = x.shape[1] // int(np.prod(kernel))
    columns = x.reshape((n, channels, flat.size))
    zero = eg.zeros((n, channels, int(np.prod(whole))), x.dtype, x.device)
    out = eg.index_add(zero, eg.asarray(flat, device=x.device), columns, axis=2)
    out = out.reshape((n, channels, *whole))
    return out[
        (slice(None),) * 2 + tuple(slice(pads[i], w - pads[count + i]) for i, w in enumerate(whole))
    ]
