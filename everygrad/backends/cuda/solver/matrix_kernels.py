"""Kernels around a library's factorisations: copies into its layout, lists of addresses, and what
is computed from factors and pivots."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.source.c_types import LAYOUTS, RAW
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, extent, grid, is_wide
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import collapse, row_major
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import ArgumentError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

THREADS = 128  # threads that share one matrix
_MAX_SHARED_ROWS = 8192  # rows up to which a permutation is kept in shared memory
_FAR = 5000  # an exponent that no float has


def _number(dtype: DType, value: str) -> str:
    """A whole number in a dtype's registers."""
    if dtype.is_complex:
        part = "double" if dtype is dtypes.complex128 else "float"
        return f"{LAYOUTS[dtype].register}(({part})({value}), ({part})0)"
    return f"({LAYOUTS[dtype].register})({value})"


# --- copies into its layout ----------------------------------------------------------------------


def copy_strided(dev: Cuda, x: CudaArray, address: int, strides: tuple[int, int, int]) -> None:
    """Copy matrices to an address: `strides` are those from one matrix to the next, from row to row
    and from column to column, in elements."""
    step, down, along = strides
    *batch, m, n = x.shape
    outer = tuple(step * s for s in row_major(tuple(batch)))
    shape, source, target = (*batch, m, n), x.strides, (*outer, down, along)
    if down < along:  # the contiguous axis of the target becomes the inner loop
        shape, source, target = (_last_two_swapped(t) for t in (shape, source, target))
    sizes, (read, written) = collapse(shape, [source, target])
    size = x.dtype.itemsize
    key = ("copy_strided", sizes, read, written, size)
    kernel = dev.planned(key, lambda: _write_copy(sizes, read, written, size, dev.multiprocessors))
    dev.gpu.launch(kernel, x.ptr, address)


def _last_two_swapped(t: Shape) -> Shape:
    return (*t[:-2], t[-1], t[-2])


def _write_copy(
    sizes: Shape, read: Shape, written: Shape, size: int, multiprocessors: int
) -> WrittenKernel:
    total = size_of(sizes)
    w = KernelWriter("copy_strided", is_wide(total, extent(sizes, read), extent(sizes, written)))
    w.pointer(RAW[size], "x")
    w.pointer(RAW[size], "out", written=True)
    w.thread()
    w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
    lines, names = w.split("e", sizes, "i")
    w.add(*lines, f"out[{w.address(names, written)}] = x[{w.address(names, read)}];", "}")
    return w.finish(grid(total, multiprocessors))


def addresses(dev: Cuda, count: int, *stretches: tuple[int, int]) -> CudaArray:
    """Lists of matrix addresses on the device; a stretch is a first address and the bytes from one
    matrix to the next."""
    steps = tuple(step for _, step in stretches)
    out: CudaArray = dev.empty((len(stretches), count), dtypes.uint64)
    key = ("addresses", count, steps)
    kernel = dev.planned(key, lambda: _write_addresses(count, steps, dev.multiprocessors))
    dev.gpu.launch(kernel, *(first for first, _ in stretches), out.ptr)
    return out


def _write_addresses(count: int, steps: Shape, multiprocessors: int) -> WrittenKernel:
    w = KernelWriter("addresses", wide=True)
    names = [w.pointer("char", f"a{k}") for k in range(len(steps))]
    w.pointer("u64", "out", written=True)
    w.thread()
    w.add(f"for (i64 e = thread; e < {w.number(count, 'count')}; e += threads) {{")
    for k, (name, step) in enumerate(zip(names, steps, strict=True)):
        w.add(f"out[{k} * count + e] = (u64)({name} + e * {w.number(step)});")
    w.add("}")
    return w.finish(grid(count, multiprocessors))


def unit_matrices(dev: Cuda, count: int, n: int, dtype: DType) -> CudaArray:
    """Unit matrices."""
    out: CudaArray = dev.empty((count, n, n), dtype)

    def write() -> WrittenKernel:
        total = count * n * n
        w = KernelWriter("unit", is_wide(total))
        w.pointer(LAYOUTS[dtype].memory, "out", written=True)
        w.thread()
        w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
        lines, (_, i, j) = w.split("e", (count, n, n), "i")
        w.add(*lines, f"out[e] = {_number(dtype, f'{i} == {j}')};", "}")
        return w.finish(grid(total, dev.multiprocessors))

    dev.gpu.launch(dev.planned(("unit", count, n, dtype), write), out.ptr)
    return out


# --- failures ------------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """Memory of several results at a constant stride."""

    address: int
    step: int  # elements from one to the next
    size: int  # elements of one


def mark_failures(dev: Cuda, x: CudaArray, info: CudaArray, out: Stretch, what: str | None) -> None:
    """Handle results whose `info` is not 0. For a matrix with a NaN or an infinity they become NaN:
    cuSOLVER takes a NaN for a pivot of 0. Any other is an ArgumentError at the next read, if there
    is a message."""
    number = -1 if what is None else dev.gpu.check_number(what, 1, ArgumentError)
    key = ("mark_failures", x.shape, x.strides, x.dtype, out.step, out.size, number)
    kernel = dev.planned(key, lambda: _write_failures(x, out, number))
    words = (dev.gpu.faults(),) if what is not None else ()
    dev.gpu.launch(kernel, x.ptr, info.ptr, out.address, *words)


def _write_failures(x: CudaArray, out: Stretch, number: int) -> WrittenKernel:
    """A block for each matrix; most have nothing to do."""
    *batch, m, n = x.shape
    count, dtype = size_of(tuple(batch)), FROM_NP[x.dtype]
    w = KernelWriter(
        "mark_failures", is_wide(count * max(out.step, m * n), extent(x.shape, x.strides))
    )
    w.pointer(LAYOUTS[dtype].memory, "x")
    w.pointer("i32", "info")
    w.pointer(LAYOUTS[dtype].memory, "out", written=True)
    if number >= 0:
        w.pointer("u64", "faults", written=True)
    refused = f"fault(faults, {w.number(number)}, b)" if number >= 0 else ""
    part = "double" if dtype in (dtypes.float64, dtypes.complex128) else "float"
    infinite = "v.re - v.re != 0 || v.im - v.im != 0" if dtype.is_complex else "v - v != 0"
    w.add(
        "__shared__ int strange;",
        f"for ({w.index} b = blockIdx.x; b < {w.number(count, 'count')}; b += gridDim.x) {{",
        "  if (!info[b]) continue;",
        "  if (threadIdx.x == 0) strange = 0;",
        "  __syncthreads();",
        f"  for ({w.index} e = threadIdx.x; e < {w.number(m * n, 'elements')}; e += {THREADS}) {{",
    )
    lines, names = w.split(f"(b * {w.number(m * n)} + e)", x.shape, "i")
    nan = f"({part})__longlong_as_double(0x7ff8000000000000ll)"
    value = f"{LAYOUTS[dtype].register}({nan}, {nan})" if dtype.is_complex else nan
    w.add(
        *lines,
        f"    const auto v = x[{w.address(names, x.strides)}];",
        f"    if ({infinite}) strange = 1;",
        "  }",
        "  __syncthreads();",
        f"  for ({w.index} e = threadIdx.x; strange && e < {w.number(out.size)}; e += {THREADS})",
        f"    out[b * {w.number(out.step)} + e] = {value};",
        f"  if (!strange && threadIdx.x == 0) {{ {refused}; }}",
        "  __syncthreads();",
        "}",
    )
    return w.finish(min(count, 65535), THREADS)


def refuse_zeros(dev: Cuda, a: CudaArray, what: str) -> None:
    """Raise an ArgumentError at the next read if there is a 0 on a diagonal."""
    number = dev.gpu.check_number(what, 1, ArgumentError)
    shape = a.shape[:-1]
    strides = (*a.strides[:-2], a.strides[-2] + a.strides[-1])
    sizes, (steps,) = collapse(shape, [strides])
    dtype = FROM_NP[a.dtype]

    def write() -> WrittenKernel:
        total = size_of(sizes)
        w = KernelWriter("check_diagonal", is_wide(total, extent(sizes, steps)))
        w.pointer(LAYOUTS[dtype].memory, "x")
        w.pointer("u64", "faults", written=True)
        w.thread()
        w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
        lines, names = w.split("e", sizes, "i")
        zero, which = _number(dtype, "0"), w.number(number, "number")
        w.add(*lines, f"if (x[{w.address(names, steps)}] == {zero}) fault(faults, {which}, e);")
        w.add("}")
        return w.finish(grid(total, dev.multiprocessors))

    kernel = dev.planned(("check_diagonal", sizes, steps, dtype, number), write)
    dev.gpu.launch(kernel, a.ptr, dev.gpu.faults())


def keep_lower(dev: Cuda, x: CudaArray, info: CudaArray, what: str) -> None:
    """Write zeros above the diagonals of x; an ArgumentError at the next read if an `info` is not
    0."""
    number = dev.gpu.check_number(what, 1, ArgumentError)
    (count,), n, size = info.shape, x.shape[-1], x.dtype.itemsize

    def write() -> WrittenKernel:
        total = count * n * n
        w = KernelWriter("keep_lower", is_wide(total))
        w.pointer(RAW[size], "x", written=True)
        w.pointer("i32", "info")
        w.pointer("u64", "faults", written=True)
        w.thread()
        which, many = w.number(number, "number"), w.number(count, "matrices")
        w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
        lines, (_, i, j) = w.split("e", (count, n, n), "i")
        w.add(
            *lines,
            f"if ({j} > {i}) x[e] = {RAW[size]}{{}};",
            f"if (e < {many} && info[e]) fault(faults, {which}, e);",
            "}",
        )
        return w.finish(grid(total, dev.multiprocessors))

    kernel = dev.planned(("keep_lower", count, n, size, number), write)
    dev.gpu.launch(kernel, x.ptr, info.ptr, dev.gpu.faults())


# --- from factors and pivots----------------------------------------------------------------------


def put_pivots(dev: Cuda, packed: CudaArray, pivots: CudaArray) -> None:
    """Write pivots, counted from 0, into the last column of column-major matrices; zeros where
    there are more rows than pivots."""
    count, columns, m = packed.shape
    few, dtype = pivots.shape[-1], FROM_NP[packed.dtype]

    def write() -> WrittenKernel:
        total = count * m
        w = KernelWriter("put_pivots", is_wide(count * columns * m))
        w.pointer("i32", "pivots")
        w.pointer(LAYOUTS[dtype].memory, "out", written=True)
        w.thread()
        some = w.number(few, "some")
        w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
        lines, (b, i) = w.split("e", (count, m), "i")
        place = f"{b} * {w.number(columns * m)} + {w.number((columns - 1) * m)} + {i}"
        value = f"{i} < {some} ? pivots[{b} * {some} + {i}] - 1 : 0"
        w.add(*lines, f"out[{place}] = {_number(dtype, value)};", "}")
        return w.finish(grid(total, dev.multiprocessors))

    kernel = dev.planned(("put_pivots", count, columns, m, few, dtype), write)
    dev.gpu.launch(kernel, pivots.ptr, packed.ptr)


# a product as (r + i s) 2^p, so that it does not overflow on the way
_REAL_PRODUCT = """\
auto times = [](double& r, double& s, i64& p, double a, double b, i64 q) {
  r *= a; p += q;
  if (r != 0 && !is_inf(r) && r == r) { const int k = ilogb(r); r = scalbn(r, -k); p += k; }
};"""
_COMPLEX_PRODUCT = """\
auto times = [](double& r, double& s, i64& p, double a, double b, i64 q) {
  const double x = r * a - s * b, y = r * b + s * a, big = fmax(fabs(x), fabs(y));
  r = x; s = y; p += q;
  if (big != 0 && !is_inf(big) && big == big) {
    const int k = ilogb(big); r = scalbn(r, -k); s = scalbn(s, -k); p += k;
  }
};"""


def determinants(
    dev: Cuda, factors: CudaArray, pivots: CudaArray, out: CudaArray, logs: bool
) -> None:
    """Determinants from factors: the values, or their signs and the logarithms of their magnitudes.
    Multiplied in double, whatever the dtype."""
    count, n = pivots.shape
    dtype = FROM_NP[factors.dtype]
    key = ("determinants", count, n, dtype, logs)
    kernel = dev.planned(key, lambda: _write_determinants(count, n, dtype, logs))
    dev.gpu.launch(kernel, factors.ptr, pivots.ptr, out.ptr)


def _write_determinants(count: int, n: int, dtype: DType, logs: bool) -> WrittenKernel:
    w = KernelWriter("determinants", is_wide(count * n * n))
    w.pointer(LAYOUTS[dtype].memory, "x")
    w.pointer("i32", "pivots")
    w.pointer(LAYOUTS[dtype].memory, "out", written=True)
    matrices, size = w.number(count, "count"), w.number(n, "size")
    parts = ("v.re", "v.im") if dtype.is_complex else ("v", "0")
    w.add(
        f"__shared__ double rs[{THREADS}], ss[{THREADS}];",
        f"__shared__ i64 ps[{THREADS}];",
        *(_COMPLEX_PRODUCT if dtype.is_complex else _REAL_PRODUCT).splitlines(),
        "const int t = threadIdx.x;",
        f"for ({w.index} b = blockIdx.x; b < {matrices}; b += gridDim.x) {{",
        "  double r = 1, s = 0;",
        "  i64 p = 0;",
        f"  for ({w.index} k = t; k < {size}; k += {THREADS}) {{",
        f"    const auto v = x[(b * {size} + k) * {size} + k];",
        f"    const double sign = pivots[b * {size} + k] == k + 1 ? 1 : -1;",
        f"    times(r, s, p, sign * (double){parts[0]}, sign * (double){parts[1]}, 0);",
        "  }",
        "  rs[t] = r; ss[t] = s; ps[t] = p;",
        "  __syncthreads();",
        f"  for (int h = {THREADS // 2}; h > 0; h /= 2) {{",
        "    if (t < h) times(rs[t], ss[t], ps[t], rs[t + h], ss[t + h], ps[t + h]);",
        "    __syncthreads();",
        "  }",
        f"  if (t == 0) {{ {' '.join(_results(dtype, logs))} }}",
        "  __syncthreads();",
        "}",
    )
    return w.finish(min(count, 65535), THREADS)


def _results(dtype: DType, logs: bool) -> list[str]:
    """The lines by which the first thread stores (r + i s) 2^p."""
    part = "double" if dtype in (dtypes.float64, dtypes.complex128) else "float"
    register = LAYOUTS[dtype].register
    head = ["const double r = rs[0], s = ss[0];", "i64 p = ps[0];"]
    if not logs:
        limits = f"const int q = (int)(p > {_FAR} ? {_FAR} : p < -{_FAR} ? -{_FAR} : p);"
        if dtype.is_complex:
            made = f"{register}(({part})scalbn(r, q), ({part})scalbn(s, q))"
        else:
            made = f"({part})scalbn(r, q)"
        return [*head, limits, f"out[b] = {made};"]
    if dtype.is_complex:
        size = "const double size = hypot(r, s), by = size == 0 ? 1 : size;"
        sign = f"{register}(({part})(r / by), ({part})(s / by))"
    else:
        size, sign = "const double size = fabs(r);", f"({part})sign_f(r)"
    log = "log(size) + (double)p * 0.69314718055994530942"
    return [
        *(*head, size, f"out[2 * b] = {sign};"),
        f"out[2 * b + 1] = {_number(dtype, log) if dtype.is_complex else f'({part})({log})'};",
    ]


def lexsort_rows(dev: Cuda, pivots: CudaArray, size: int) -> CudaArray:
    """The permutation of rows that applying the pivots in turn makes."""
    dtype = FROM_NP[pivots.dtype]
    out: CudaArray = dev.empty((*pivots.shape[:-1], size), dtype)
    if out.storage is None:
        return out
    if pivots.storage is None:
        pivots = dev.full(pivots.shape, 0, dtype)
    number = dev.gpu.check_number("lu_solve: pivot", size)
    key = ("lexsort_rows", pivots.shape, pivots.strides, size, dtype)
    kernel = dev.planned(key, lambda: _write_lexsort_rows(pivots, size, number))
    dev.gpu.launch(kernel, pivots.ptr, out.ptr, dev.gpu.faults())
    return out


def _write_lexsort_rows(pivots: CudaArray, size: int, number: int) -> WrittenKernel:
    """A block for each matrix: one thread swaps, all load the pivots into shared memory."""
    batch, few = pivots.shape[:-1] or (1,), pivots.shape[-1]
    steps = pivots.strides[:-1] or (0,)
    count = size_of(batch)
    dtype = FROM_NP[pivots.dtype]
    w = KernelWriter("lexsort_rows", is_wide(count * size, extent(pivots.shape, pivots.strides)))
    memory = LAYOUTS[dtype].memory
    w.pointer(memory, "pivots")
    w.pointer(memory, "out", written=True)
    w.pointer("u64", "faults", written=True)
    rows, some, which = (
        w.number(v, k) for v, k in ((size, "size"), (few, "few"), (number, "which"))
    )
    near = size <= _MAX_SHARED_ROWS
    w.add(
        f"__shared__ i32 shared[{_MAX_SHARED_ROWS if near else 1}];",
        f"__shared__ {memory} next[{THREADS}];",
        "const int t = threadIdx.x;",
        f"for ({w.index} b = blockIdx.x; b < {w.number(count, 'count')}; b += gridDim.x) {{",
    )
    lines, names = w.split("b", batch, "i")
    w.add(
        *lines,
        f"  {memory}* mine = out + b * {rows};",
        f"  auto* order = {'shared' if near else 'mine'};",
        f"  for ({w.index} k = t; k < {rows}; k += {THREADS}) order[k] = k;",
        f"  for ({w.index} k0 = 0; k0 < {some}; k0 += {THREADS}) {{",
        "    __syncthreads();",
        f"    if (k0 + t < {some}) next[t] = pivots[{w.address(names, steps)} + "
        f"(k0 + t) * {w.number(pivots.strides[-1])}];",
        "    __syncthreads();",
        f"    for (int k = 0; t == 0 && k < {THREADS} && k0 + k < {some}; ++k) {{",
        "      const i64 p = (i64)next[k];",
        f"      if (p < 0 || p >= {rows}) {{ fault(faults, {which}, p); continue; }}",
        "      const auto held = order[k0 + k];",
        "      order[k0 + k] = order[p];",
        "      order[p] = held;",
        "    }",
        "  }",
        "  __syncthreads();",
        *(
            [f"  for ({w.index} k = t; k < {rows}; k += {THREADS}) mine[k] = order[k];"]
            if near
            else []
        ),
        "  __syncthreads();",
        "}",
    )
    return w.finish(min(count, 65535), THREADS)


def take_triangle(dev: Cuda, memory: CudaArray, n: int, rows: int, offset: int) -> None:
    """Copy the upper triangles of the first n columns and `rows` rows of column-major matrices to
    `offset` elements further, with zeros below them."""
    count, columns, leading = memory.shape
    size = memory.dtype.itemsize

    def write() -> WrittenKernel:
        total = count * n * rows
        w = KernelWriter("take_triangle", is_wide(count * columns * leading))
        w.pointer(RAW[size], "x", written=True)
        w.thread()
        far = w.number(offset, "far")
        w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
        lines, (b, j, i) = w.split("e", (count, n, rows), "i")
        place_ = f"{b} * {w.number(columns * leading)} + {j} * {w.number(leading)} + {i}"
        w.add(
            *lines,
            f"const {w.index} at = {place_};",
            f"x[at + {far}] = {i} <= {j} ? x[at] : {RAW[size]}{{}};",
            "}",
        )
        return w.finish(grid(total, dev.multiprocessors))

    kernel = dev.planned(("take_triangle", memory.shape, n, rows, offset, size), write)
    dev.gpu.launch(kernel, memory.ptr)
