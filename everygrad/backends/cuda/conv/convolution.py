"""Convolutions and their two derivatives by cuDNN, where the machine has it and it has an engine
with our guarantees; elsewhere the portable definition is used, which is made of matrix products.

Channels-last images stay channels-last, and so do results. Gradients of weights for which cuDNN has
no good engine are products here too, in fewer launches than by the definition.
"""

from __future__ import annotations

from collections.abc import Callable
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
from everygrad.backends.cuda.kernels.elementwise import grid
from everygrad.backends.cuda.kernels.reduction import reduce
from everygrad.backends.cuda.source.c_types import RAW
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, extent, is_wide
from everygrad.backends.strided_views import permute_dims, reshape
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP

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


def _convolve(dev: Cuda, kind: str, given: dict[str, CudaArray], wanted: Shape, window: Any) -> Any:
    """The tensor that is not among those given by name; NotImplemented where cuDNN cannot."""
    arrays = [*given.values()]
    dtype = FROM_NP[arrays[0].dtype]
    if not size_of(wanted):
        return dev.empty(wanted, dtype)
    if any(a.storage is None for a in arrays):
        return dev.full(wanted, 0, dtype)
    dnn = dev.gpu.driver.cudnn
    if dnn is None or dtype not in DTYPES:
        return NotImplemented
    images = [a for name, a in given.items() if name != "w"]
    last = all(is_channels_last(a.shape, a.strides) for a in images)
    shapes = {name: given[name].shape if name in given else wanted for name in "xwy"}
    how = (window.stride, window.padding, window.dilation, last, dev.tf32)
    problem = ConvProblem(kind, dtype, shapes["x"], shapes["w"], shapes["y"], *how)
    plan = dnn.plan(problem)
    if plan is None:
        return NotImplemented
    out = _empty(dev, wanted, dtype, last)
    placed = {name: _in_layout(dev, a, last) for name, a in given.items()}
    addresses = [placed[name].ptr if name in placed else out.ptr for name in "xwy"]
    space = dev.gpu.workspace(plan.workspace) if plan.workspace else 0
    dev.gpu.call(plan, *addresses, space)
    return out


def forward(dev: Cuda, x: CudaArray, w: CudaArray, window: Any) -> Any:
    shape = (x.shape[0], w.shape[0], *window.out_size(x.shape))
    return _convolve(dev, "forward", {"x": x, "w": w}, shape, window)


def to_input(dev: Cuda, y: CudaArray, w: CudaArray, window: Any, image: Shape) -> Any:
    return _convolve(dev, "input", {"y": y, "w": w}, image, window)


def to_weight(dev: Cuda, x: CudaArray, y: CudaArray, window: Any, weight: Shape) -> Any:
    found = _convolve(dev, "weight", {"x": x, "y": y}, weight, window)
    if found is not NotImplemented or len(weight) != 4 or window.groups > 1:
        return found
    rows = reshape(dev, y, (*y.shape[:2], size_of(y.shape[2:])))
    columns = permute_dims(dev, _columns(dev, x, window), (0, 2, 1))
    parts = matmul(dev, rows, columns)  # of each image
    return reshape(dev, reduce(dev, "sum", "add", parts, (0,), False), weight)


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


KERNELS: dict[str, Callable[..., Any]] = {
    "conv2d": forward,
    "conv2d_input": to_input,
    "conv2d_weight": to_weight,
    "convolve3d": forward,
    "convolve3d_input": to_input,
    "convolve3d_weight": to_weight,
}
