"""The ops for which this backend has a kernel that is better than their portable definition."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from everygrad import dtypes
from everygrad.backends import base, strided_views
from everygrad.backends.webgpu.array import WebGPUArray, storage_of
from everygrad.backends.webgpu.attention import attention
from everygrad.backends.webgpu.conv import convolution
from everygrad.backends.webgpu.gemm import operand_reads
from everygrad.backends.webgpu.kernels import (
    arg_reduce,
    copy_kernels,
    gather_scatter,
    pooling,
    scan,
    single_op,
)
from everygrad.backends.webgpu.solver import cholesky, jacobi, lu, qr, triangular
from everygrad.backends.webgpu.source.render import (
    element_kernel,
    slot,
)
from everygrad.core.context import records

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU


def transfer(dev: WebGPU, x: WebGPUArray, device: str, source: str) -> Any:
    return base.get(device).from_numpy(dev.to_numpy(x))


# --- random bits ---------------------------------------------------------------------------------


@lru_cache
def _philox_text() -> str:
    """Uniform: the count, the state's offset and stride."""
    words = "".join(
        f"  let p{i} = {slot(1)} + {i}u * {slot(2)};\n  let s{i} = a0[p{i}];\n" for i in range(4)
    )
    known = records.by_name["philox"].constants
    (m0, m1), (w0, w1) = known["multipliers"], known["weyl"]
    text = (
        "fn element(e: u32) -> u32 {\n" + words + "  let block = e >> 2u;\n"
        "  let low = s2 + block;\n"
        "  var c = vec4<u32>(low, s3 + select(0u, 1u, low < s2), 0u, 0u);\n"
        "  var key = vec2<u32>(s0, s1);\n"
        f"  for (var i = 0u; i < {known['rounds']}u; i = i + 1u) {{\n"
        f"    c = vec4<u32>(mulhi_u({m1:#x}u, c.z) ^ c.y ^ key.x, {m1:#x}u * c.z,\n"
        f"                  mulhi_u({m0:#x}u, c.x) ^ c.w ^ key.y, {m0:#x}u * c.x);\n"
        f"    key = key + vec2<u32>({w0:#x}u, {w1:#x}u);\n  }}\n"
        "  return c[e & 3u];\n}\n"
    )
    return element_kernel(1, 3, dtypes.uint32, text, slot(0))


def philox(dev: WebGPU, state: WebGPUArray, count: int) -> WebGPUArray:
    out: WebGPUArray = dev.empty((count,), dtypes.uint32)
    if count:
        params = [count, state.offset, state.strides[0]]
        dev.launch("philox", _philox_text(), [storage_of(state)], out, params, count)
    return out


_SOLVER: dict[str, Callable[..., Any]] = {
    "cholesky": cholesky.cholesky,
    "solve_triangular": triangular.solve_triangular,
    "lu_factor": lu.lu_factor,
    "qr": qr.qr,
    "qr_complete": qr.qr_complete,
    "eigh": jacobi.eigh,
    "svd": jacobi.svd,
}
# kernels that take real numbers only: of complex ones the definition is computed
OF_REALS = frozenset(_SOLVER)

KERNELS: dict[str, Callable[..., Any]] = {
    **strided_views.KERNELS,
    "unslice": copy_kernels.unslice,
    "to": transfer,
    "matmul": operand_reads.matmul,
    "linear": operand_reads.linear,
    "linear_bias": operand_reads.linear_bias,
    "conv2d": convolution.conv2d,
    "conv2d_input": convolution.conv2d_input,
    "conv2d_weight": convolution.conv2d_weight,
    **pooling.KERNELS,
    "take": gather_scatter.take,
    "gather": gather_scatter.gather,
    "index_add": gather_scatter.index_add,
    "scatter_add": gather_scatter.scatter_add,
    "last_write": gather_scatter.last_write,
    "check_range": gather_scatter.check_range,
    "check_true": gather_scatter.check_true,
    "prod": single_op.prod,
    "argmax": lambda dev, x, axis, keepdims: arg_reduce.arg_reduce(dev, True, x, axis, keepdims),
    "argmin": lambda dev, x, axis, keepdims: arg_reduce.arg_reduce(dev, False, x, axis, keepdims),
    "philox": philox,
    "lexsort_rows": lu.row_order,
    **_SOLVER,
    **single_op.ROWS,
    **scan.KERNELS,
    **attention.KERNELS,
}
