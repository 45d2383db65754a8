"""Ops with a kernel of their own that ONNX has too: products, convolutions, rows, indices, sorts.

What is not here is written as its portable definition, in other ops: the tracer takes it apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.compiler.ir import Value
from everygrad.core import shapes
from everygrad.dtypes import DType
from everygrad.interop.onnx.exporting import recurrent
from everygrad.interop.onnx.exporting.writer import Write, Writer, in_float32, static

Result = Callable[..., tuple[Any, DType]]


def _always(*args: Any, **params: Any) -> bool:
    return True


class Form(NamedTuple):
    """How a kernel is written; `accepts` says of which calls, as (inputs' values, parameters).

    `result` is its shape and dtype, for ops whose records leave that to their definition.
    """

    write: Write
    accepts: Callable[..., bool] = _always
    result: Result | None = None


def _like_first(x: Any, *more: Any, **params: Any) -> tuple[Any, DType]:
    return x.shape, x.dtype


def _floats(*args: Any, **params: Any) -> bool:
    return all(a.dtype.kind == "float" for a in args)


# --- products ------------------------------------------------------------------------------------


def _matmul(w: Writer, v: Value) -> str:
    return w.node("MatMul", *map(w.name, v.args))


def _transposed(w: Writer, v: Value) -> str:
    return w.node("Transpose", w.name(v), perm=[1, 0])


def _linear(w: Writer, v: Value) -> str:
    x, weight = v.args
    if len(x.shape) == 2:
        return w.node("Gemm", w.name(x), w.name(weight), transB=1)
    return w.node("MatMul", w.name(x), _transposed(w, weight))


def _linear_bias(w: Writer, v: Value) -> str:
    x, weight, bias = v.args
    if len(x.shape) == 2:
        return w.node("Gemm", *map(w.name, v.args), transB=1)
    return w.node("Add", w.node("MatMul", w.name(x), _transposed(w, weight)), w.name(bias))


def _of_matrix(x: Any, weight: Any, *bias: Any) -> bool:
    """A weight that is one matrix; products of integers are left to the definition."""
    return _floats(x, weight, *bias) and len(weight.shape) == 2 and len(x.shape) >= 2


def _linear_result(x: Any, weight: Any, bias: Any) -> tuple[Any, DType]:
    return (*x.shape[:-1], weight.shape[0]), x.dtype


def _is_product(x: Any, y: Any) -> bool:
    kinds = (dtypes.int32, dtypes.int64)
    return all(a.dtype.kind == "float" or a.dtype in kinds for a in (x, y))


# --- convolutions and windows --------------------------------------------------------------------


def _places(window: Any) -> dict[str, Any]:
    size, stride, padding, dilation = (list(static("a window", part)) for part in (*window[:4],))
    return {
        "kernel_shape": size,
        "strides": stride,
        "pads": [*padding, *padding],
        "dilations": dilation,
    }


def convolution(w: Writer, v: Value, *bias: str) -> str:
    window = v.params["window"]
    groups = static("groups", window.groups)
    return w.node("Conv", *map(w.name, v.args), *bias, group=groups, **_places(window))


def _conv_input(w: Writer, v: Value) -> str:
    """The transposed convolution, whose result has the size that is asked for."""
    y = v.args[0]
    window, image = v.params["window"], v.params["image"]
    groups = static("groups", window.groups)
    spatial = len(window.size)
    # what the window gives without output_padding; the rest is added at the end of each axis
    plain = [
        (n - 1) * st - 2 * p + d * (k - 1) + 1
        for n, k, st, p, d in zip(y.shape[-spatial:], *window[:4], strict=True)
    ]
    more = [n - m for n, m in zip(image[-spatial:], plain, strict=True)]
    rest = list(static("the size of the result", tuple(more)))
    names = map(w.name, v.args)
    return w.node("ConvTranspose", *names, group=groups, output_padding=rest, **_places(window))


def _fits(y: Any, weight: Any, window: Any, image: Any) -> bool:
    """ONNX adds less than one stride at the end of each axis."""
    spatial = len(window.size)
    sizes = zip(y.shape[-spatial:], image[-spatial:], *window[:4], strict=True)
    rest = [m - ((n - 1) * st - 2 * p + d * (k - 1) + 1) for n, m, k, st, p, d in sizes]
    steps = zip(rest, window.stride, window.dilation, strict=True)
    return _floats(y, weight) and all(0 <= r < max(st, d) for r, st, d in steps)


def _max_pool(w: Writer, v: Value) -> str:
    return w.node("MaxPool", w.name(v.args[0]), **_places(v.params["window"]))


def _inside(x: Any, window: Any) -> bool:
    """ONNX pads by less than the window."""
    reach = zip(window.padding, window.size, strict=True)
    return _floats(x) and all(p < k for p, k in reach) and not window.misses(x.shape)


def _pool_index(w: Writer, v: Value) -> str:
    """ONNX counts the places through all images, here each begins at 0."""
    (x,) = v.args
    height, width = x.shape[-2:]
    _, index = w.nodes_of("MaxPool", [w.name(x)], 2, **_places(v.params["window"]))
    size = height * width
    return w.node("Mod", index, w.ints([size], (x,)))


def _sum_pool(w: Writer, v: Value) -> str:
    """The mean with the padding counted, times the number of places."""
    window = v.params["window"]
    taps = window.size[0] * window.size[1]
    name = w.name(v.args[0])
    mean = w.node("AveragePool", name, count_include_pad=1, **_places(window))
    return w.node("Mul", mean, w.scalar(taps, v.dtype))


def _sums(x: Any, window: Any) -> bool:
    return _inside(x, window) and all(d == 1 for d in window.dilation)


# --- rows ----------------------------------------------------------------------------------------


def _along(kind: str) -> Write:
    def write(w: Writer, v: Value) -> str:
        return w.node(kind, w.name(v.args[0]), axis=v.params["axis"])

    return write


def _prod(w: Writer, v: Value) -> str:
    if not v.params["axes"]:
        return w.name(v.args[0])
    kept = 1 if v.params["keepdims"] else 0
    return w.node("ReduceProd", w.name(v.args[0]), w.ints(v.params["axes"]), keepdims=kept)


def _prod_result(x: Any, axes: Any, keepdims: bool) -> tuple[Any, DType]:
    return shapes.reduced(x.shape, axes, keepdims), x.dtype


def _wide_enough(x: Any, *more: Any, **params: Any) -> bool:
    return x.dtype in (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64)


def _cumulative_sum(w: Writer, v: Value) -> str:
    axis = w.scalar(v.params["axis"], dtypes.int64)
    return w.node("CumSum", w.name(v.args[0]), axis, reverse=1 if v.params["reverse"] else 0)


def layer_norm(w: Writer, v: Value, weight: str = "", *bias: str) -> str:
    """Rows standardized, with what they are scaled and moved by; runtimes have a kernel for it."""
    (x,) = v.args
    first = min(v.params["axes"])
    if not weight:
        weight = w.node("Expand", w.scalar(1, v.dtype), w.ints(x.shape[first:]))
    given = (w.name(x), weight, *bias)
    return w.node("LayerNormalization", *given, axis=first, epsilon=v.params["eps"])


def _last_axes(x: Any, axes: Any, eps: float) -> bool:
    """ONNX has eps as a float32: not enough for float64."""
    narrow = _floats(x) and x.dtype is not dtypes.float64
    return narrow and tuple(axes) == tuple(range(len(x.shape) - len(axes), len(x.shape)))


# --- indices -------------------------------------------------------------------------------------


def _index(w: Writer, v: Value) -> str:
    """An index as ONNX takes it."""
    name = w.name(v)
    return name if v.dtype in (dtypes.int32, dtypes.int64) else w.cast(name, dtypes.int64)


def _picking(kind: str) -> Write:
    def write(w: Writer, v: Value) -> str:
        x, index = v.args
        return w.node(kind, w.name(x), _index(w, index), axis=v.params["axis"])

    return write


def _scatter(reduction: str) -> Write:
    def write(w: Writer, v: Value) -> str:
        x, index, source = v.args
        names = (w.name(x), _index(w, index), w.name(source))
        axis = v.params.get("axis", 0)
        return w.node("ScatterElements", *names, axis=axis, reduction=reduction)

    return write


def _with_self(x: Any, index: Any, source: Any, include_self: bool = True) -> bool:
    return include_self and _wide_enough(x)


def _index_add(w: Writer, v: Value) -> str:
    """The index of a slice is the index of each of its elements."""
    x, index, source = v.args
    axis = v.params["axis"]
    column = [1] * len(source.shape)
    column[axis] = -1
    spread = w.node("Reshape", _index(w, index), w.ints(column))
    shape = w.node("Shape", w.name(source))
    spread = w.node("Expand", spread, shape)
    names = (w.name(x), spread, w.name(source))
    return w.node("ScatterElements", *names, axis=axis, reduction="add")


def _concat(w: Writer, v: Value) -> str:
    return w.node("Concat", *map(w.name, v.args), axis=v.params["axis"])


# --- order ---------------------------------------------------------------------------------------


def _without_nan(w: Writer, x: Value) -> tuple[str, str | None]:
    """Keys to sort by: runtimes leave the place of a NaN open, here it counts as the largest."""
    name = w.name(x)
    if not x.dtype.is_float:
        return name, None
    odd = w.node("IsNaN", name)
    return w.node("Where", odd, w.scalar(math.inf, x.dtype), name), odd


def _argsort(w: Writer, v: Value) -> str:
    """ONNX gives the first of equal elements first, as a stable sort. A second one, by whether an
    element is NaN, puts those behind infinity."""
    (x,) = v.args
    axis, descending = v.params["axis"], 1 if v.params["descending"] else 0
    count = w.ints([x.shape[axis]], (x,))
    keys, odd = _without_nan(w, x)
    _, order = w.nodes_of("TopK", (keys, count), 2, axis=axis, largest=descending)
    if odd is None:
        return order
    flags = w.node("GatherElements", w.cast(odd, dtypes.int32), order, axis=axis)
    _, again = w.nodes_of("TopK", (flags, count), 2, axis=axis, largest=descending)
    return w.node("GatherElements", order, again, axis=axis)


def _sort(w: Writer, v: Value) -> str:
    return w.node("GatherElements", w.name(v.args[0]), _argsort(w, v), axis=v.params["axis"])


def _top_index(w: Writer, v: Value) -> str:
    (x,) = v.args
    keys, _ = _without_nan(w, x)
    count, largest = w.ints([v.params["k"]], (x,)), 1 if v.params["largest"] else 0
    return w.nodes_of("TopK", (keys, count), 2, axis=v.params["axis"], largest=largest)[1]


def _orders(x: Any, axis: int, **params: Any) -> bool:
    return _wide_enough(x) and len(x.shape) > 0 and x.shape[axis] > 0


def _extreme(kind: str, odd: float) -> Write:
    """The first of the largest or smallest elements; a NaN, which wins, is one of them."""

    def write(w: Writer, v: Value) -> str:
        (x,) = v.args
        kept, name = 1 if v.params["keepdims"] else 0, w.name(x)
        if x.dtype.is_float:
            # where there is a NaN, the first of them; where not, all flags are alike
            flags = w.cast(w.node("IsNaN", name), x.dtype)
            some = w.node("ReduceMax", flags, w.ints([v.params["axis"]]), keepdims=1)
            flags = w.node("Mul", flags, w.scalar(odd, x.dtype))
            name = w.node("Where", w.node("Greater", some, w.scalar(0.5, x.dtype)), flags, name)
        return w.node(kind, name, axis=v.params["axis"], keepdims=kept)

    return write


def _extreme_result(x: Any, axis: int, keepdims: bool) -> tuple[Any, DType]:
    return shapes.reduced(x.shape, (axis,), keepdims), dtypes.int64


# --- what only checks, or only matters here ------------------------------------------------------


def _first(w: Writer, v: Value) -> str:
    return w.name(v.args[0])


KERNELS: dict[str, Form] = {
    "matmul": Form(_matmul, _is_product),
    "linear": Form(_linear, _of_matrix),
    "linear_bias": Form(_linear_bias, _of_matrix, _linear_result),
    "conv2d": Form(in_float32(convolution), _floats),
    "convolve3d": Form(in_float32(convolution), _floats),
    "conv2d_input": Form(in_float32(_conv_input), _fits),
    "convolve3d_input": Form(in_float32(_conv_input), _fits),
    "max_pool2d_value": Form(in_float32(_max_pool), _inside),
    "max_pool2d_index": Form(in_float32(_pool_index), _inside),
    "sum_pool2d": Form(in_float32(_sum_pool), _sums),
    "softmax": Form(_along("Softmax"), _floats, _like_first),
    "log_softmax": Form(_along("LogSoftmax"), _floats, _like_first),
    "standardize": Form(layer_norm, _last_axes, _like_first),
    "prod": Form(_prod, _wide_enough, _prod_result),
    "cumulative_sum": Form(_cumulative_sum, _wide_enough),
    "take": Form(_picking("Gather")),
    "gather": Form(_picking("GatherElements")),
    "scatter_add": Form(_scatter("add"), _wide_enough),
    "scatter_max": Form(_scatter("max"), _with_self),
    "scatter_min": Form(_scatter("min"), _with_self),
    "scatter_prod": Form(_scatter("mul"), _with_self),
    "index_add": Form(_index_add, _wide_enough),
    "concat": Form(_concat),
    "rnn_reserve": Form(recurrent.reserve, _floats),
    "rnn_sequence": Form(recurrent.sequence, _floats),
    "argsort": Form(_argsort, _orders),
    "sort": Form(_sort, _orders),
    "top_index": Form(_top_index, _orders),
    "argmax": Form(_extreme("ArgMax", 1.0), _wide_enough, _extreme_result),
    "argmin": Form(_extreme("ArgMin", -1.0), _wide_enough, _extreme_result),
    "check_range": Form(_first),
    "check_true": Form(_first),
    "ensure": Form(_first),
    "to": Form(_first),
    "identity": Form(_first),
}
