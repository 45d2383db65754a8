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
    scan,
    single_op,
)
from everygrad.backends.webgpu.solver import cholesky, jacobi, lu, qr, triangular
from everygrad.backends.webgpu.source.render import (
    address,
    cast,
    constant,
    element_kernel,
    slot,
    split_index,
)
from everygrad.backends.webgpu.source.word_layout import layout, load, thread_count
from everygrad.codegen.group_sums import accumulator_dtype
from everygrad.core.context import records
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP, DType

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


# --- pooling -------------------------------------------------------------------------------------


@lru_cache
def _pool_text(dtype: DType) -> str:
    """The index of the largest element in each window; a NaN wins, and padding never does.
    Uniform: count, sizes, offset and strides, then the window."""
    lines, _ = split_index(4, 1)
    first = 4 + 5
    h, w, kh, kw, sh, sw, ph, pw, dh, dw = (slot(first + i) for i in range(10))
    register = layout(dtype).register
    total = accumulator_dtype(dtype)
    value = cast("x", dtype, total)
    nan = " || (is_nan(v) && !is_nan(best))" if layout(dtype).kind == "f" else ""
    compare = "lt_l(best, v)" if layout(dtype).words == 2 else "v > best"
    if dtype is dtypes.uint64:
        compare = "lt_ul(best, v)"
    text = (
        "fn element(e: u32) -> vec2<u32> {\n" + "\n".join(lines) + "\n"
        f"  var best: {layout(total).register} = {constant(0, total)};\n  var found = 0u;\n"
        f"  for (var i = 0u; i < {kh}; i = i + 1u) {{\n"
        f"  for (var j = 0u; j < {kw}; j = j + 1u) {{\n"
        f"    let row = i2 * {sh} + i * {dh} - {ph};\n    let col = i3 * {sw} + j * {dw} - {pw};\n"
        f"    if (row < {h} && col < {w}) {{\n"
        f"      let p = {address(4, ['i0', 'i1', 'row', 'col'])};\n"
        f"      let x: {register} = {load(dtype, 'a0', 'p')};\n"
        f"      let v: {layout(total).register} = {value};\n"
        f"      if (found == 0u || {compare}{nan}) {{\n"
        f"        best = v;\n        found = row * {w} + col + 1u;\n      }}\n    }}\n  }}\n  }}\n"
        "  return sub_l(vec2<u32>(found, 0u), vec2<u32>(1u, 0u));\n}\n"
    )
    return element_kernel(1, first + 10, dtypes.int64, text, slot(0))


def max_pool2d_index(dev: WebGPU, x: WebGPUArray, window: Any) -> WebGPUArray:
    shape = (*x.shape[:2], *window.out_size(x.shape))
    out: WebGPUArray = dev.empty(shape, dtypes.int64)
    if out.storage is None or x.storage is None:
        return out
    count = size_of(shape)
    params = [count, *shape[1:], x.offset, *x.strides, *x.shape[2:], *window.size, *window.stride]
    params += (*window.padding, *window.dilation)
    source = _pool_text(FROM_NP[x.dtype])
    threads = thread_count(dtypes.int64, count)
    dev.launch("max_pool2d_index", source, [x.storage], out, params, threads)
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
    "max_pool2d_index": max_pool2d_index,
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
