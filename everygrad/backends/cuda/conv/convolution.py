"""Convolutions and their two derivatives by cuDNN, where the machine has it and it has an engine
with our guarantees; elsewhere the portable definition is used, which is made of matrix products.

Channels-last images stay channels-last, and so do results; compiled functions prefer that layout
(`graph/layouts`). Gradients of weights for which cuDNN has no good engine are products here too, in
fewer launches than by the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.driver.cudnn import (
    ALIGNMENT,
    DTYPES,
    ConvProblem,
    channels_last_strides,
    is_channels_last,
)
from everygrad.backends.cuda.gemm.matmul import matmul
from everygrad.backends.cuda.kernels.copy_kernels import contiguous, copied
from everygrad.backends.cuda.kernels.single_op import reduce
from everygrad.backends.cuda.source.c_types import RAW
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, extent, grid, is_wide
from everygrad.backends.strided_views import permute_dims, reshape
from everygrad.compiler import array_graph
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


def _to_last(dev: Cuda, a: CudaArray) -> CudaArray:
    """(batch, channels, spatial...) viewed as (batch, spatial..., channels)."""
    return permute_dims(dev, a, (0, *range(2, len(a.shape)), 1))


def _in_layout(dev: Cuda, a: CudaArray, channels_last: bool) -> CudaArray:
    """The array in the layout of the problem, aligned."""
    if not channels_last:
        made = contiguous(dev, a)
        return copied(dev, made) if made.ptr % ALIGNMENT else made
    last = contiguous(dev, _to_last(dev, a))
    last = copied(dev, last) if last.ptr % ALIGNMENT else last
    return last.view(a.shape, channels_last_strides(a.shape))


def _empty(dev: Cuda, shape: Shape, dtype: Any, channels_last: bool) -> CudaArray:
    out: CudaArray = dev.empty(shape, dtype)
    return out.view(shape, channels_last_strides(shape)) if channels_last else out


# by op: what is computed, and which tensors it is given
_ROLES = {
    "conv2d": ("forward", "xw"),
    "conv2d_input": ("input", "yw"),
    "conv2d_weight": ("weight", "xy"),
    "convolve3d": ("forward", "xw"),
    "convolve3d_input": ("input", "yw"),
    "convolve3d_weight": ("weight", "xy"),
}


def problem_of(
    op: str,
    given: Sequence[Shape],
    wanted: Shape,
    dtype: DType,
    window: Any,
    last: bool,
    tf32: bool,
) -> ConvProblem:
    """What cuDNN is asked for: a tensor of shape `wanted` from those given."""
    kind, names = _ROLES[op]
    shapes = dict(zip(names, given, strict=True))
    x, w, y = (shapes.get(name, wanted) for name in "xwy")
    how = (window.stride, window.padding, window.dilation, last, tf32)
    return ConvProblem(kind, dtype, x, w, y, *how)


def _convolve(
    dev: Cuda, op: str, arrays: Sequence[CudaArray], wanted: Shape, window: Any, last: bool | None
) -> Any:
    """The tensor that is not given; NotImplemented where cuDNN cannot. `last`: whether all are
    channels-last; None: as the images are."""
    names = _ROLES[op][1]
    given = dict(zip(names, arrays, strict=True))
    dtype = FROM_NP[arrays[0].dtype]
    if not size_of(wanted):
        return dev.empty(wanted, dtype)
    if any(a.storage is None for a in arrays):
        return dev.full(wanted, 0, dtype)
    dnn = dev.gpu.driver.cudnn
    if dnn is None or dtype not in DTYPES:
        return NotImplemented
    if last is None:
        images = [a for name, a in given.items() if name != "w"]
        last = all(is_channels_last(a.shape, a.strides) for a in images)
    shapes = [a.shape for a in arrays]
    plan = dnn.plan(problem_of(op, shapes, wanted, dtype, window, last, dev.tf32))
    if plan is None:
        return NotImplemented
    out = _empty(dev, wanted, dtype, last)
    placed = {name: _in_layout(dev, a, last) for name, a in given.items()}
    addresses = [placed[name].ptr if name in placed else out.ptr for name in "xwy"]
    space = dev.gpu.workspace(plan.workspace) if plan.workspace else 0
    dev.gpu.call(plan, *addresses, space)
    return out


def _forward(
    op: str, dev: Cuda, x: CudaArray, w: CudaArray, window: Any, last: bool | None = None
) -> Any:
    shape = (x.shape[0], w.shape[0], *window.out_size(x.shape))
    return _convolve(dev, op, [x, w], shape, window, last)


def _to_input(
    op: str, dev: Cuda, y: CudaArray, w: CudaArray, window: Any, image: Shape,
    last: bool | None = None,
) -> Any:  # fmt: skip
    return _convolve(dev, op, [y, w], image, window, last)


def _to_weight(
    op: str, dev: Cuda, x: CudaArray, y: CudaArray, window: Any, weight: Shape,
    last: bool | None = None,
) -> Any:  # fmt: skip
    found = _convolve(dev, op, [x, y], weight, window, last)
    if found is not NotImplemented or len(weight) != 4 or window.groups > 1:
        return found
    rows = reshape(dev, y, (*y.shape[:2], size_of(y.shape[2:])))
    columns = permute_dims(dev, _columns(dev, x, window), (0, 2, 1))
    parts = matmul(dev, rows, columns)  # of each image
    return reshape(dev, reduce(dev, array_graph.SUM, parts, (0,), False), weight)


def _columns(dev: Cuda, x: CudaArray, window: Any) -> CudaArray:
    """im2col: (batch, channels * taps, outputs), the inputs that each element of the weight is
    multiplied by, as rows of a matrix."""
    n, c = x.shape[:2]
    shape = (n, c, *window.size, *window.out_size(x.shape))
    out: CudaArray = dev.empty(shape, FROM_NP[x.dtype])
    key = ("columns", x.shape, x.strides, x.dtype, window)
    kernel = dev.planned(key, lambda: _write_columns(x, shape, window, dev.multiprocessors))
    dev.gpu.launch(kernel, x.ptr, out.ptr)
    return reshape(dev, out, (n, c * size_of(window.size), size_of(shape[4:])))


def _write_columns(x: CudaArray, shape: Shape, window: Any, multiprocessors: int) -> WrittenKernel:
    total = size_of(shape)
    w = KernelWriter("columns", is_wide(total, extent(x.shape, x.strides)))
    memory = RAW[x.dtype.itemsize]
    w.pointer(memory, "x")
    w.pointer(memory, "out", written=True)
    w.thread()
    w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
    lines, (n, c, i, j, r, q) = w.split("e", shape, "i")
    (sh, sw), (ph, pw), (dh, dw) = window.stride, window.padding, window.dilation
    place = w.address([n, c, "y", "z"], x.strides)
    w.add(
        *lines,
        f"const {w.index} y = {r} * {sh} + {i} * {dh} - {ph}, z = {q} * {sw} + {j} * {dw} - {pw};",
        f"const bool inside = y >= 0 && y < {w.number(x.shape[2])} && z >= 0 && "
        f"z < {w.number(x.shape[3])};",
        f"out[e] = inside ? x[{place}] : ({memory})0;",
        "}",
    )
    return w.finish(grid(total, multiprocessors))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "forward": _forward,
    "input": _to_input,
    "weight": _to_weight,
}


def _kernel(op: str) -> Callable[..., Any]:
    function = _FUNCTIONS[_ROLES[op][0]]

    def run(dev: Cuda, *arrays: CudaArray, **params: Any) -> Any:
        return function(op, dev, *arrays, **params)

    return run


KERNELS: dict[str, Callable[..., Any]] = {op: _kernel(op) for op in _ROLES}
