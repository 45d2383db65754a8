"""The ops this backend has a better way for than their portable definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad import dtypes
from everygrad.backends import base
from everygrad.backends.cuda import (
    attention,
    indexing,
    losses,
    moves,
    ordering,
    products,
    reducing,
    rows,
    scattering,
    solver,
)
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.elementwise import grid
from everygrad.backends.cuda.layout import LAYOUTS
from everygrad.backends.cuda.writer import Writer, Written, extent, is_wide
from everygrad.dtypes import FROM_NP
from everygrad.shapes import Shape, size_of


def transfer(dev: Any, x: CudaArray, device: str, source: str) -> Any:
    """To another GPU without the host, to any other device through it."""
    target = base.get(device)
    if target is dev:
        return x
    if not isinstance(target, type(dev)):
        return target.from_numpy(dev.to_numpy(x))
    x = moves.contiguous(dev, x)
    out: CudaArray = target.empty(x.shape, FROM_NP[x.dtype])
    if out.storage is not None:
        size = size_of(x.shape) * x.dtype.itemsize
        target.gpu.driver.copy_from(dev.gpu.driver, out.ptr, x.ptr, size)
    return out


# --- waiting -------------------------------------------------------------------------------------


def write_delay(cycles: int) -> Written:
    """A kernel that does nothing for a while."""
    w = Writer("delay", wide=True)
    w.add("const i64 start = clock64();", f"while (clock64() - start < {w.number(cycles)}) {{}}")
    return w.finish(1, block=1)


# --- random bits ---------------------------------------------------------------------------------


def _write_philox(count: int, step: int, multiprocessors: int) -> Written:
    """Philox 4x32-10: each thread makes four words of one counter."""
    w = Writer("philox", is_wide(count))
    w.pointer("u32", "state")
    w.pointer("u32", "out", written=True)
    w.thread()
    blocks = -(-count // 4)
    w.number(count, "count")
    s = [f"state[{w.address([str(i)], (step,)) if i else 0}]" for i in range(4)]
    w.add(
        f"const u32 s2 = {s[2]}, s3 = {s[3]};",
        f"for ({w.index} e = thread; e < {w.number(blocks, 'blocks')}; e += threads) {{",
        "  const u64 counter = ((u64)s3 << 32 | s2) + (u64)e;",
        "  u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0;",
        f"  u32 k0 = {s[0]}, k1 = {s[1]};",
        "#pragma unroll",
        "  for (int i = 0; i < 10; ++i) {",
        "    const u64 p = (u64)0xd2511f53u * c0, q = (u64)0xcd9e8d57u * c2;",
        "    const u32 a = (u32)(q >> 32) ^ c1 ^ k0, b = (u32)(p >> 32) ^ c3 ^ k1;",
        "    c0 = a; c1 = (u32)q; c2 = b; c3 = (u32)p;",
        "    k0 += 0x9e3779b9u; k1 += 0xbb67ae85u;",
        "  }",
        f"  const {w.index} at = 4 * e;",
        "  out[at] = c0;",
        "  if (at + 1 < count) out[at + 1] = c1;",
        "  if (at + 2 < count) out[at + 2] = c2;",
        "  if (at + 3 < count) out[at + 3] = c3;",
        "}",
    )
    return w.finish(grid(blocks, multiprocessors))


def philox(dev: Any, state: CudaArray, count: int) -> CudaArray:
    out: CudaArray = dev.empty((count,), dtypes.uint32)
    if count:
        step = state.strides[0]
        kernel = dev.planned(
            ("philox", count, step), lambda: _write_philox(count, step, dev.multiprocessors)
        )
        dev.gpu.launch(kernel, state.ptr, out.ptr)
    return out


# --- pooling -------------------------------------------------------------------------------------


def _write_pool(x: CudaArray, shape: Shape, window: Any, multiprocessors: int) -> Written:
    """The place of the largest element in each window; a NaN wins, a place in the image over one
    in the padding."""
    dtype = FROM_NP[x.dtype]
    lay = LAYOUTS[dtype]
    total = size_of(shape)
    w = Writer("max_pool2d_index", is_wide(total, extent(x.shape, x.strides)))
    w.pointer(lay.memory, "x")
    w.pointer("i64", "out", written=True)
    w.thread()
    w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
    lines, names = w.split("e", shape, "i")
    w.add(*(f"  {line}" for line in lines))
    names_of = ("h", "w_", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw")
    values = (*x.shape[2:], *window.size, *window.stride, *window.padding, *window.dilation)
    for name, value in zip(names_of, values, strict=True):
        w.number(value, name)
    place = w.address([*names[:2], "r", "c"], x.strides)
    nan = "|| (v != v && best == best)" if dtype.is_float else ""
    w.add(
        f"  {lay.register} best = 0;",
        "  i64 found = -1;",
        f"  for ({w.index} i = 0; i < kh; ++i)",
        f"    for ({w.index} j = 0; j < kw; ++j) {{",
        f"      const {w.index} r = i2 * sh + i * dh - ph, c = i3 * sw + j * dw - pw;",
        "      if (r < 0 || r >= h || c < 0 || c >= w_) continue;",
        f"      const {lay.register} v = {lay.load.format(f'x[{place}]')};",
        f"      if (found < 0 || v > best {nan}) {{ best = v; found = (i64)r * w_ + c; }}",
        "    }",
        "  out[e] = found;",
        "}",
    )
    return w.finish(grid(total, multiprocessors))


def max_pool2d_index(dev: Any, x: CudaArray, window: Any) -> CudaArray:
    shape = (*x.shape[:2], *window.out_size(x.shape))
    out: CudaArray = dev.empty(shape, dtypes.int64)
    if out.storage is None or x.storage is None:
        return out
    key = ("max_pool2d_index", x.shape, x.strides, x.dtype, window)
    kernel = dev.planned(key, lambda: _write_pool(x, shape, window, dev.multiprocessors))
    dev.gpu.launch(kernel, x.ptr, out.ptr)
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    "reshape": moves.reshape,
    "permute_dims": moves.permute_dims,
    "broadcast_to": moves.broadcast_to,
    "slice": moves.take_slices,
    "unslice": moves.unslice,
    "concat": moves.concat,
    "to": transfer,
    "identity": lambda dev, x: x,
    "matmul": products.matmul,
    "linear": products.linear,
    "linear_bias": products.linear_bias,
    "max_pool2d_index": max_pool2d_index,
    "take": indexing.take,
    "gather": indexing.gather,
    "index_add": scattering.index_add,
    "scatter_add": scattering.scatter_add,
    "last_write": indexing.last_write,
    "check_range": indexing.check_range,
    "class_loss": losses.class_loss,
    "class_spread": losses.class_spread,
    "prod": reducing.prod,
    "argmax": lambda dev, x, axis, keepdims: reducing.arg(dev, True, x, axis, keepdims),
    "argmin": lambda dev, x, axis, keepdims: reducing.arg(dev, False, x, axis, keepdims),
    **ordering.KERNELS,
    **rows.KERNELS,
    **attention.KERNELS,
    "philox": philox,
    **solver.KERNELS,
}
