"""The ops for which this backend has a better kernel than their portable definition."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from everygrad import dtypes
from everygrad.backends import base
from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.gemm import blas
from everygrad.backends.cpu.kernels import numpy_reduce, ordering, single_op
from everygrad.backends.cpu.kernels.half_conversions import converted, is_half, widened
from everygrad.backends.cpu.kernels.numpy_reduce import by_ufunc
from everygrad.backends.cpu.kernels.random_bits import advanced, philox
from everygrad.backends.cpu.runtime.pool import SMALLEST, empty
from everygrad.backends.cpu.solver import fourier, lapack, matrix_gradients
from everygrad.compiler import expr
from everygrad.compiler.expr import Expr
from everygrad.compiler.thresholds import edge
from everygrad.core.config import config
from everygrad.core.shapes import Shape, reduced, size_of
from everygrad.dtypes import FROM_NP
from everygrad.errors import OutOfRangeError

_ADDED = {
    d.np: expr.lower(operator.add(*Expr.inputs(2)), [d, d])
    for d in (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
}
# multiply-adds from which a matrix product is worth compiling a kernel
OWN_PRODUCTS = edge(__name__, "OWN_PRODUCTS", 1 << 22, "products")
# the same where the second matrix is transposed, as a layer's weight is: BLAS reads it slowly
OWN_TRANSPOSED = edge(__name__, "OWN_TRANSPOSED", 1 << 21, "products")
# the same for 16-bit floats, which BLAS takes only as float32
HALF_PRODUCTS = edge(__name__, "HALF_PRODUCTS", 1 << 18, "products")
_REAL = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
_BY_BLAS, _WIDE = 1 << 12, 8  # sizes from which converting integers for BLAS pays
Slices = tuple[tuple[int, int, int], ...]


def as_slices(slices: Slices) -> tuple[slice, ...]:
    """(start, count, step) triples as Python slices."""
    made = []
    for start, count, step in slices:
        stop = start + count * step
        made.append(slice(start, None if stop < 0 else stop, step) if count else slice(0, 0))
    return tuple(made)


def unslice(x: Any, shape: Shape, slices: Slices) -> Any:
    out = np.zeros(shape, x.dtype)
    out[as_slices(slices)] = x
    return out


def reshape(x: Any, shape: Shape) -> Any:
    if x.size >= single_op.LARGE and not x.flags.c_contiguous:
        copied = lazy_native.contiguous_copy(x)
        x = x if copied is None else copied
    if x.nbytes < SMALLEST or x.flags.c_contiguous:
        return x.reshape(shape)
    try:
        return x.reshape(shape, copy=False)
    except ValueError:  # no view has this shape: a copy, in memory of the pool
        out = empty(shape, x.dtype)
        np.copyto(out.reshape(x.shape), x)
        return out


def broadcast_to(x: Any, shape: Shape) -> Any:
    if x.ndim == 0 and 0 not in shape:  # np.broadcast_to takes 5 us, the constructor 0.5
        return np.ndarray(shape, x.dtype, x, 0, (0,) * len(shape))
    return np.broadcast_to(x, shape)


def transfer(x: Any, device: str, source: str) -> Any:
    return base.get(device).from_numpy(base.get(source).to_numpy(x))


# --- products ------------------------------------------------------------------------------------


def matmul(x: Any, y: Any) -> Any:
    """BLAS; a stack of matrices times one matrix is one tall product."""
    dtype = x.dtype
    if x.ndim == y.ndim == 2 and dtype in _REAL and x.size * y.shape[1] < OWN_PRODUCTS:
        return blas.matmul(x, y)  # the most common case
    if is_half(x) and x.size * y.shape[-1] >= HALF_PRODUCTS and _is_own(x, y):
        return lazy_native.eager_matmul().matmul(x, y)
    x, y = widened(x), widened(y)
    if x.dtype.kind in "iu":
        return _integer_product(x, y)
    if y.ndim == 2 and x.ndim > 2 and x.flags.c_contiguous:
        tall = _product(x.reshape(size_of(x.shape[:-1]), x.shape[-1]), y)
        out = tall.reshape(*x.shape[:-1], y.shape[-1])
    else:
        out = _product(x, y)
    return converted(out, dtype)


def _integer_product(x: Any, y: Any) -> Any:
    """Integer products: by BLAS in float64 if every sum is known to be exact there."""
    wide = min(x.shape[-2], y.shape[-1]) >= _WIDE  # each element is used several times
    if wide and x.size * y.shape[-1] >= _BY_BLAS:
        most = [max(-int(a.min()), int(a.max())) for a in (x, y)]
        if most[0] * most[1] * x.shape[-1] < 1 << 53:
            out = _product(x.astype(np.float64), y.astype(np.float64))
            return out.astype(np.int64).astype(x.dtype, copy=False)
    return np.matmul(x, y)


def _product(x: Any, y: Any) -> Any:
    """By a generated kernel if the product is large enough to pay for compiling it."""
    if x.size * y.shape[-1] >= OWN_PRODUCTS and x.dtype.kind == "f" and _is_own(x, y):
        return lazy_native.eager_matmul().matmul(x, y)
    return blas.matmul(x, y)


def _is_own(x: Any, y: Any) -> bool:
    """Whether generated kernels can multiply these arrays."""
    fits = x.flags.aligned and y.flags.aligned and x.shape[-1] == y.shape[-2]
    return fits and bool(x.dtype == y.dtype)


def linear_weight(v: Any, x: Any) -> Any:
    """v^T @ x over all rows."""
    if v.ndim > 2:
        rows = size_of(v.shape[:-1])
        v, x = v.reshape(rows, v.shape[-1]), x.reshape(rows, x.shape[-1])
    return matmul(v.T, x)


def linear(x: Any, w: Any) -> Any:
    """x @ w^T."""
    large = w.size * (x.size // max(1, w.shape[1])) >= OWN_TRANSPOSED
    if large and x.ndim == 2 and x.dtype in _REAL and w.flags.c_contiguous and _is_own(x, w.T):
        return lazy_native.eager_matmul().matmul(x, w.T)
    return matmul(x, w.T)


def linear_bias(x: Any, w: Any, b: Any) -> Any:
    """The bias is added in place, to the fresh result of the product."""
    out = linear(x, w)
    if out.size > config.native_threshold and out.dtype in _ADDED:
        lazy_native.run(_ADDED[out.dtype], [out, b], out)
    else:
        out += b
    return out


# --- indexing ------------------------------------------------------------------------------------


def check_range(op: str, index: Any, size: int) -> None:
    """Raises an error that names the first index outside [0, size)."""
    check_values(index, size, f"{op}: index")


def take(x: Any, index: Any, axis: int) -> Any:
    check_range("take", index, x.shape[axis])
    copied = index.size * (x.size // max(1, x.shape[axis]))
    if copied >= single_op.LARGE and single_op.serves((x, index)):
        return single_op.call("take", x, index, axis=axis)
    return np.take(x, index, axis=axis)


def _adds_natively(x: Any, source: Any) -> bool:
    """Whether compiled code supports these arrays, and they are large enough."""
    fits = x.dtype == source.dtype and x.dtype.itemsize > 2 and x.dtype.kind in "fiu"
    return fits and source.size >= single_op.LARGE >> 4


def index_add(x: Any, index: Any, source: Any, axis: int) -> Any:
    """Groups equal indices and sums each group first: far faster than one by one."""
    check_range("index_add", index, x.shape[axis])
    if _adds_natively(x, source):
        return single_op.call("index_add", *single_op.as_contiguous(x, index, source), axis=axis)
    out = x.copy()
    if index.size == 0 or source.size == 0:
        return out
    order = np.argsort(index, kind="stable")
    names = index[order]
    starts = np.flatnonzero(np.concatenate(([True], names[1:] != names[:-1])))
    moved = np.moveaxis(widened(source), axis, 0)[order]
    sums = np.add.reduceat(moved, starts, axis=0)
    view = np.moveaxis(out, axis, 0)
    view[names[starts]] += sums.astype(x.dtype, copy=False)
    return out


def _flat_index(shape: Shape, index: Any, axis: int) -> Any:
    """The flat index, in a C-ordered array of `shape`, of each element that gather reads."""
    rest: Any = 0  # the contribution of the other axes, summed while it is small
    for a in range(len(shape)):
        if a != axis:
            steps = np.arange(index.shape[a]) * size_of(shape[a + 1 :])
            rest = rest + steps.reshape((-1,) + (1,) * (index.ndim - a - 1))
    flat = index.astype(np.int64, copy=False)  # with uint64 NumPy would go to float64
    step = size_of(shape[axis + 1 :])
    return (flat if step == 1 else flat * step) + rest


def gather(x: Any, index: Any, axis: int) -> Any:
    check_range("gather", index, x.shape[axis])
    if index.size >= single_op.LARGE and x.dtype.kind != "c":
        return single_op.call("gather", *single_op.as_contiguous(x, index), axis=axis)
    flat = _flat_index(x.shape, index, axis)
    return np.ascontiguousarray(x).reshape(-1).take(flat, mode="clip")  # indices were checked


def scatter_add(x: Any, index: Any, source: Any, axis: int) -> Any:
    check_range("scatter_add", index, x.shape[axis])
    if index.size >= single_op.LARGE and _adds_natively(x, source):
        return single_op.call("scatter_add", *single_op.as_contiguous(x, index, source), axis=axis)
    flat = _flat_index(x.shape, index, axis).reshape(-1)
    start, values = widened(x).reshape(-1), widened(source).reshape(-1)
    if start.dtype.kind == "f" and 8 * flat.size > x.size:  # bincount sums in float64, rounded once
        total = np.bincount(flat, values.astype(np.float64, copy=False), x.size)
        out = start + total.astype(start.dtype)
    else:
        out = start.copy()
        np.add.at(out, flat, values)
    return out.astype(x.dtype, copy=False).reshape(x.shape)


def last_write(index: Any, size: int) -> Any:
    check_range("setitem", index, size)
    if size + index.size >= single_op.LARGE:
        return single_op.call("last_write", *single_op.as_contiguous(index), size=size)
    out = np.full(size, -1, index.dtype)
    out[index] = np.arange(index.size, dtype=index.dtype)  # NumPy: of equal indices the last wins
    return out


def index_put(x: Any, index: Any, values: Any) -> Any:
    check_range("setitem", index, x.shape[0])
    if values.size >= single_op.LARGE >> 4 and x.dtype.kind != "c":
        return single_op.call("index_put", *single_op.as_contiguous(x, index, values))
    out = empty(x.shape, x.dtype)
    out[...] = x
    out[index] = values  # NumPy: of equal indices the last wins
    return out


def check_values(x: Any, size: int, what: str) -> Any:
    if x.size:
        low, high = int(x.min()), int(x.max())
        if low < 0 or high >= size:
            bad = low if low < 0 else high
            raise OutOfRangeError(f"{what} {bad} is out of range for an axis of size {size}")
    return x


# --- labels --------------------------------------------------------------------------------------


def _labels(target: Any, classes: int, ignore_index: int) -> tuple[Any, Any]:
    """The labels, with 0 for ignored ones, and the mask of those that count: None if all do."""
    elsewhere = target.size and not 0 <= ignore_index < classes
    if elsewhere and target.min() >= 0 and target.max() < classes:
        return target, None
    counted = target != ignore_index
    labels = np.where(counted, target, 0)
    return check_values(labels, classes, "cross_entropy: label"), counted


def _at_labels(shape: Shape, labels: Any, axis: int) -> Any:
    """The flat indices, in a C-ordered array of `shape`, that labels along `axis` name."""
    if len(shape) == 2 and axis == 1:
        return np.arange(0, shape[0] * shape[1], shape[1]) + labels
    return _flat_index(shape, np.expand_dims(labels, axis), axis).reshape(-1)


def nll_gather(logs: Any, target: Any, axis: int, ignore_index: int) -> Any:
    labels, counted = _labels(target, logs.shape[axis], ignore_index)
    at = _at_labels(logs.shape, labels, axis)
    out = np.negative(logs.reshape(-1)[at]).reshape(target.shape)
    if counted is not None:
        out[~counted] = 0
    return out


def nll_scatter(v: Any, target: Any, axis: int, classes: int, ignore_index: int) -> Any:
    labels, counted = _labels(target, classes, ignore_index)
    shape = (*v.shape[:axis], classes, *v.shape[axis:])
    out = np.zeros(size_of(shape), v.dtype)
    values = np.asarray(np.negative(v))  # NumPy returns a scalar for a 0-d array
    if counted is not None:
        values[~counted] = 0
    out[_at_labels(shape, labels, axis)] = values.reshape(-1)
    return out.reshape(shape)


# --- convolution and pooling ---------------------------------------------------------------------

# multiply-adds, or elements read; below this NumPy is as fast
_NATIVE_FROM = edge(__name__, "_NATIVE_FROM", 1 << 16, "products")


def _is_native(work: int, *arrays: Any) -> bool:
    """Whether compiled kernels support these arrays, and pay."""
    return work > _NATIVE_FROM and all(
        a.dtype in (np.float32, np.float64) and a.flags.aligned for a in arrays
    )


def _padded(x: Any, padding: tuple[int, int], value: Any = 0) -> Any:
    ph, pw = padding
    if not ph and not pw:
        return x
    n, c, h, w = x.shape
    out = empty((n, c, h + 2 * ph, w + 2 * pw), x.dtype)
    out[...] = value
    out[:, :, ph : ph + h, pw : pw + w] = x
    return out


def columns(x: Any, window: Any) -> Any:
    """im2col: (batch, groups, channels / groups * taps, positions)."""
    (kh, kw), (sh, sw), padding, (dh, dw), groups = window
    n, c = x.shape[:2]
    oh, ow = window.out_size(x.shape)
    x = _padded(x, padding)
    seen = sliding_window_view(x, (dh * (kh - 1) + 1, dw * (kw - 1) + 1), axis=(2, 3))
    seen = seen[:, :, ::sh, ::sw, ::dh, ::dw][:, :, :oh, :ow]
    out = empty((n, c, kh, kw, oh, ow), x.dtype)
    out[...] = seen.transpose(0, 1, 4, 5, 2, 3)
    return out.reshape(n, groups, c // groups * kh * kw, oh * ow)


def _by_pairs(op: str, work: int, arrays: tuple[Any, ...], window: Any, shape: Shape) -> Any:
    """A convolution of bfloat16 by the processor's dot products; None if it has none, or they do
    not pay."""
    if work <= _NATIVE_FROM or any(FROM_NP[a.dtype] is not dtypes.bfloat16 for a in arrays):
        return None
    module = lazy_native.pair_convolution()
    if not module.serves(dtypes.bfloat16):
        return None
    return module.run(op, single_op.as_contiguous(*arrays), window, shape)


def conv2d(x: Any, w: Any, window: Any) -> Any:
    dtype = x.dtype
    shape = (x.shape[0], w.shape[0], *window.out_size(x.shape))
    made = _by_pairs("conv2d", size_of(shape) * size_of(w.shape[1:]), (x, w), window, shape)
    if made is not None:
        return made
    x, w = widened(x), widened(w)
    positions = size_of(window.out_size(x.shape))
    if _is_native(x.shape[0] * positions * w.size, x, w):
        return converted(lazy_native.convolution().run("conv2d", (x, w), window, shape), dtype)
    kernels = w.reshape(window.groups, w.shape[0] // window.groups, -1)
    out = blas.matmul(kernels, columns(x, window))
    return converted(out.reshape(shape), dtype)


def conv2d_input(y: Any, w: Any, window: Any, image: Shape) -> Any:
    (kh, kw), (sh, sw), (ph, pw), (dh, dw), groups = window
    dtype = y.dtype
    products = y.shape[0] * size_of(y.shape[2:]) * w.size
    if (made := _by_pairs("conv2d_input", products, (y, w), window, image)) is not None:
        return made
    y, w = widened(y), widened(w)
    n, c, height, width = image
    oh, ow = y.shape[2:]
    if _is_native(n * oh * ow * w.size, y, w):
        out = lazy_native.convolution().run("conv2d_input", (y, w), window, image)
        return converted(out, dtype)
    kernels = w.reshape(groups, w.shape[0] // groups, -1).transpose(0, 2, 1)
    cols = blas.matmul(kernels, y.reshape(n, groups, w.shape[0] // groups, oh * ow))
    cols = cols.reshape(n, c, kh, kw, oh, ow)
    out = np.zeros((n, c, height + 2 * ph, width + 2 * pw), y.dtype)
    for i in range(kh):
        for j in range(kw):
            down = slice(i * dh, i * dh + sh * oh, sh)
            out[:, :, down, j * dw : j * dw + sw * ow : sw] += cols[:, :, i, j]
    return converted(out[:, :, ph : ph + height, pw : pw + width], dtype)


def conv2d_weight(x: Any, y: Any, window: Any, weight: Shape) -> Any:
    dtype = x.dtype
    products = x.shape[0] * size_of(y.shape[2:]) * size_of(weight)
    if (made := _by_pairs("conv2d_weight", products, (x, y), window, weight)) is not None:
        return made
    x, y = widened(x), widened(y)
    n, groups = x.shape[0], window.groups
    if _is_native(n * size_of(y.shape[2:]) * size_of(weight), x, y):
        out = lazy_native.convolution().run("conv2d_weight", (x, y), window, weight)
        return converted(out, dtype)
    grads = y.reshape(n, groups, weight[0] // groups, y.shape[2] * y.shape[3])
    each = blas.matmul(grads, columns(x, window).transpose(0, 1, 3, 2))
    return converted(np.add.reduce(each, axis=0).reshape(weight), dtype)


def max_pool2d_index(x: Any, window: Any) -> Any:
    (kh, kw), (sh, sw), (ph, pw), (dh, dw), _ = window
    h, w = x.shape[2:]
    oh, ow = window.out_size(x.shape)
    if _is_native(x.shape[0] * x.shape[1] * oh * ow * kh * kw, x):
        shape = (*x.shape[:2], oh, ow)
        return lazy_native.convolution().run("max_pool2d_index", (x,), window, shape)
    rows_of = np.arange(oh)[:, None] * sh - ph
    cols_of = np.arange(ow)[None, :] * sw - pw
    low = -np.inf if x.dtype.kind not in "iub" else np.iinfo(x.dtype).min
    padded = _padded(x, (ph, pw), low)
    best: Any = None
    found: Any = None
    for i in range(kh):
        for j in range(kw):
            v = padded[:, :, i * dh : i * dh + sh * oh : sh, j * dw : j * dw + sw * ow : sw]
            r, c = rows_of + i * dh, cols_of + j * dw
            inside = (r >= 0) & (r < h) & (c >= 0) & (c < w)
            index = np.where(inside, r * w + c, -1)
            if best is None:
                best, found = v.copy(), np.broadcast_to(index, v.shape).copy()
                continue
            better = v > best
            if x.dtype.kind not in "iub":
                better |= (v != v) & (best == best)
            if ph or pw:
                better = (better | (found < 0)) & inside
            np.copyto(best, v, where=better)
            np.copyto(found, np.broadcast_to(index, v.shape), where=better)
    return found


def weighted_gather_sum(x: Any, index: Any, weights: Any, back: Any, shares: Any, axis: int) -> Any:
    """The sum of the terms times their weights; a weight of 0 adds nothing, even to NaN."""
    terms = x.size // max(1, x.shape[axis]) * index.size
    if terms >= single_op.LARGE >> 4 and x.dtype in _REAL:
        return lazy_native.sparse_interp().weighted_gather_sum(
            *single_op.as_contiguous(x, index, weights), axis
        )
    weights = widened(weights).reshape((*weights.shape, *(1,) * (x.ndim - axis - 1)))
    read = np.take(widened(x), index, axis=axis)
    terms = np.where(weights == 0, 0, read * weights)
    return np.add.reduce(terms, axis=axis).astype(x.dtype, copy=False)


_MULTIPLY: Any = np.multiply  # NumPy's types know no tuple of axes


def prod(x: Any, axes: Shape, keepdims: bool) -> Any:
    """Multiplies halves of large arrays first: NumPy vectorises that, but not one row."""
    wide = widened(x)
    axis = max(axes, key=lambda a: x.shape[a], default=0)
    while wide.size >= single_op.LARGE and wide.dtype.kind == "f" and axes:
        n = wide.shape[axis] // 2
        if n < 16:
            break
        first, second, last = np.split(wide, (n, 2 * n), axis)
        wide = np.concatenate((first * second, last), axis) if last.size else first * second
    return _MULTIPLY.reduce(wide, axis=axes, keepdims=keepdims).astype(x.dtype)


def _arg(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, axis: int, keepdims: bool) -> Any:
        shape = reduced(x.shape, (axis,), keepdims)
        return (
            fn(widened(x), axis=axis).reshape(shape)
            if size_of(shape)
            else np.zeros(shape, np.int64)
        )

    return run


def _loaded_later(module: str, *names: str) -> dict[str, Callable[..., Any]]:
    """Kernels of a module that is loaded, with LLVM, on first use."""

    def later(name: str) -> Callable[..., Any]:
        def run(*arrays: Any, **params: Any) -> Any:
            return lazy_native.kernel(module, name)(*arrays, **params)

        return run

    return {name: later(name) for name in names}


ROW_KERNELS = _loaded_later(
    "fused.row_kernels",
    "softmax",
    "softmax_vjp",
    "log_softmax",
    "log_softmax_vjp",
    "standardize",
    "standardize_vjp",
    "scaled_standardize",
    "scaled_standardize_vjp",
    "times_standardized",
    "scaled_rms",
)


def add(x: Any, axes: Shape, keepdims: bool) -> Any:
    """The sum over axes."""
    if x.size >= single_op.LARGE and single_op.reduces(x, axes):
        return single_op.call("sum", x, axes=axes, keepdims=keepdims)
    return numpy_reduce.add(x, axes, keepdims)


KERNELS: dict[str, Callable[..., Any]] = {
    "sum": add,  # REDUCERS would do; an entry by name saves two calls
    "reshape": reshape,
    "permute_dims": lambda x, axes: x.transpose(axes),
    "broadcast_to": broadcast_to,
    "slice": lambda x, slices: x[as_slices(slices)],
    "unslice": single_op.compiled("unslice", unslice),
    "to": transfer,
    "identity": lambda x: x,
    "concat": single_op.compiled("concat", lambda *xs, axis, sizes: np.concatenate(xs, axis=axis)),
    "matmul": matmul,
    "linear": linear,
    "linear_bias": linear_bias,
    "linear_weight": linear_weight,
    "take": take,
    "index_add": index_add,
    "gather": gather,
    "scatter_add": scatter_add,
    "last_write": last_write,
    "index_put": index_put,
    "check_range": check_values,
    "nll_gather": nll_gather,
    "nll_scatter": nll_scatter,
    "count_labels": lambda target, ignore_index, dtype: np.array(
        np.count_nonzero(target != ignore_index), dtype.np
    ),
    "conv2d": conv2d,
    "conv2d_input": conv2d_input,
    "conv2d_weight": conv2d_weight,
    "max_pool2d_index": max_pool2d_index,
    "weighted_gather_sum": weighted_gather_sum,
    "prod": prod,
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    **ordering.KERNELS,
    **_loaded_later("kernels.ctc", "ctc_states", "ctc_adjoint"),
    **_loaded_later("gemm.recurrent", "rnn_reserve", "rnn_sequence", "rnn_grads"),
    **_loaded_later("gemm.recurrent_step", "rnn_step", "rnn_step_grads"),
    **ROW_KERNELS,
    **_loaded_later("fused.channel_norm", "channel_moments", "channel_norm", "channel_norm_grads"),
    **_loaded_later(
        "attention.attention",
        "attention",
        "attention_masked",
        "attention_grads",
        "attention_masked_grads",
    ),
    "philox": philox,
    "philox_advance": advanced,
    **lapack.KERNELS,
    **matrix_gradients.KERNELS,
    **fourier.KERNELS,
}

REDUCERS: dict[str, Callable[..., Any]] = {
    "add": numpy_reduce.add,
    "max": numpy_reduce.extreme(np.maximum),
    "min": numpy_reduce.extreme(np.minimum),
    "and": by_ufunc(np.logical_and),
    "or": by_ufunc(np.logical_or),
}
