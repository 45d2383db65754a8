"""The ops for which this backend has kernels better than their portable definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everygrad import dtypes
from everygrad.backends import base, strided_views
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.attention import attention
from everygrad.backends.cuda.conv import channels_last, convolution, pooling
from everygrad.backends.cuda.gemm import matmul
from everygrad.backends.cuda.kernels import (
    arg_reduce,
    copy_kernels,
    cross_entropy,
    gather,
    losses,
    recurrent,
    scan,
    scatter,
    single_op,
    sort,
)
from everygrad.backends.cuda.solver import solver
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, grid, is_wide
from everygrad.core.context import records
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


def transfer(dev: Cuda, x: CudaArray, device: str, source: str) -> Any:
    """Copy to another GPU directly, to any other device through the host."""
    target = base.get(device)
    if target is dev:
        return x
    if not isinstance(target, type(dev)):
        return target.from_numpy(dev.to_numpy(x))
    x = copy_kernels.contiguous(dev, x)
    out: CudaArray = target.empty(x.shape, FROM_NP[x.dtype])
    if out.storage is not None:
        size = size_of(x.shape) * x.dtype.itemsize
        target.gpu.driver.copy_from(dev.gpu.driver, out.ptr, x.ptr, size)
    return out


# --- waiting -------------------------------------------------------------------------------------


def write_delay(cycles: int) -> WrittenKernel:
    """A kernel that does nothing for a while."""
    w = KernelWriter("delay", wide=True)
    w.add("const i64 start = clock64();", f"while (clock64() - start < {w.number(cycles)}) {{}}")
    return w.finish(1, block=1)


# --- random bits ---------------------------------------------------------------------------------


def _write_philox(count: int, step: int, multiprocessors: int) -> WrittenKernel:
    """Philox 4x32-10: each thread computes the four words of one counter."""
    w = KernelWriter("philox", is_wide(count))
    w.pointer("u32", "state")
    w.pointer("u32", "out", written=True)
    w.thread()
    blocks = -(-count // 4)
    w.number(count, "count")
    known = records.by_name["philox"].constants
    (m0, m1), (w0, w1) = known["multipliers"], known["weyl"]
    s = [f"state[{w.address([str(i)], (step,)) if i else 0}]" for i in range(4)]
    w.add(
        f"const u32 s2 = {s[2]}, s3 = {s[3]};",
        f"for ({w.index} e = thread; e < {w.number(blocks, 'blocks')}; e += threads) {{",
        "  const u64 counter = ((u64)s3 << 32 | s2) + (u64)e;",
        "  u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0;",
        f"  u32 k0 = {s[0]}, k1 = {s[1]};",
        "#pragma unroll",
        f"  for (int i = 0; i < {known['rounds']}; ++i) {{",
        f"    const u64 p = (u64){m0:#x}u * c0, q = (u64){m1:#x}u * c2;",
        "    const u32 a = (u32)(q >> 32) ^ c1 ^ k0, b = (u32)(p >> 32) ^ c3 ^ k1;",
        "    c0 = a; c1 = (u32)q; c2 = b; c3 = (u32)p;",
        f"    k0 += {w0:#x}u; k1 += {w1:#x}u;",
        "  }",
        f"  const {w.index} at = 4 * e;",
        "  out[at] = c0;",
        "  if (at + 1 < count) out[at + 1] = c1;",
        "  if (at + 2 < count) out[at + 2] = c2;",
        "  if (at + 3 < count) out[at + 3] = c3;",
        "}",
    )
    return w.finish(grid(blocks, multiprocessors))


def philox(dev: Cuda, state: CudaArray, count: int) -> CudaArray:
    out: CudaArray = dev.empty((count,), dtypes.uint32)
    if count:
        step = state.strides[0]
        kernel = dev.planned(
            ("philox", count, step), lambda: _write_philox(count, step, dev.multiprocessors)
        )
        dev.gpu.launch(kernel, state.ptr, out.ptr)
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    **strided_views.KERNELS,
    "unslice": copy_kernels.unslice,
    "to": transfer,
    "matmul": matmul.matmul,
    "linear": matmul.linear,
    "linear_bias": matmul.linear_bias,
    "linear_weight": matmul.linear_weight,
    "matmul_epilogue": matmul.matmul_epilogue,
    "take": gather.take,
    "gather": gather.gather,
    "index_add": scatter.index_add,
    "scatter_add": scatter.scatter_add,
    "last_write": gather.last_write,
    "check_range": gather.check_range,
    "check_true": gather.check_true,
    "nll_gather": losses.nll_gather,
    "nll_scatter": losses.nll_scatter,
    "count_labels": cross_entropy.count_labels,
    "softmax_cross_entropy": cross_entropy.softmax_cross_entropy,
    "softmax_cross_entropy_vjp": cross_entropy.softmax_cross_entropy_vjp,
    "argmax": lambda dev, x, axis, keepdims: arg_reduce.arg_reduce(dev, True, x, axis, keepdims),
    "argmin": lambda dev, x, axis, keepdims: arg_reduce.arg_reduce(dev, False, x, axis, keepdims),
    **sort.KERNELS,
    **single_op.KERNELS,
    **scan.KERNELS,
    **recurrent.KERNELS,
    **attention.KERNELS,
    "philox": philox,
    **convolution.KERNELS,
    **pooling.KERNELS,
    **channels_last.KERNELS,
    **solver.KERNELS,
}
