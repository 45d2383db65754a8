"""Deterministic scatter-add.

Where indices are few, each result scans them all. Otherwise pairs of (target, position) are sorted;
equal targets are then neighbours, and the block at the first of them sums them in order. Atomic
additions would change their order, and with it the last digits, from run to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.kernels.copy_kernels import copied
from everygrad.backends.cuda.kernels.elementwise import grid
from everygrad.backends.cuda.kernels.gather import check_range, index_line, nothing_to_take
from everygrad.backends.cuda.source.c_types import LAYOUTS, accumulator_dtype
from everygrad.backends.cuda.source.render import cast, constant, instruction
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, extent, is_wide
from everygrad.compiler.expr import Inst
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import DeviceError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

FEW = edge(__name__, "FEW", 64, "size")  # indices that each result may scan
CHUNK = edge(__name__, "CHUNK", 2048, "size")  # pairs that one block sorts in shared memory
_SORTING = edge(__name__, "_SORTING", 1024, "size")  # threads of such a block
_COLUMNS = edge(__name__, "_COLUMNS", 32, "size")  # of a block that sums


class ScatterLayout(NamedTuple):
    """What a kernel depends on. `whole`: an index selects a whole slice, not one element."""

    dtype: DType
    index_dtype: DType
    axis: int
    whole: bool
    x_shape: Shape
    index_shape: Shape
    source_shape: Shape
    x: Shape
    index_steps: Shape
    source: Shape

    @property
    def wide(self) -> bool:
        pairs = (
            *((self.x_shape, self.x), (self.index_shape, self.index_steps)),
            (self.source_shape, self.source),
        )
        return is_wide(size_of(self.x_shape), size_of(self.source_shape),
                       *(extent(a, b) for a, b in pairs))  # fmt: skip


def _plus(dtype: DType, a: str, b: str) -> str:
    return instruction(Inst("add", dtype, (0, 1)), [a, b], [dtype, dtype])


# --- few indices ---------------------------------------------------------------------------------


def _write_looking(name: str, at: ScatterLayout, multiprocessors: int) -> WrittenKernel:
    lay, total = LAYOUTS[at.dtype], accumulator_dtype(at.dtype)
    register = LAYOUTS[total].register
    w = KernelWriter(name, at.wide)
    w.pointer(lay.memory, "x")
    w.pointer(LAYOUTS[at.index_dtype].memory, "index")
    w.pointer(lay.memory, "source")
    w.pointer(lay.memory, "out", written=True)
    w.thread()
    count = size_of(at.x_shape)
    w.add(f"for ({w.index} e = thread; e < {w.number(count, 'count')}; e += threads) {{")
    lines, names = w.split("e", at.x_shape, "i")
    w.add(*(f"  {line}" for line in lines), f"  {register} sum = {constant(0, total)};")
    moving = ["j" if a == at.axis else n for a, n in enumerate(names)]
    fits = []
    if not at.whole:
        others = [a for a in range(len(names)) if a != at.axis]
        fits = [f"{names[a]} < {w.number(at.index_shape[a])}" for a in others
                if at.index_shape[a] != at.x_shape[a]]  # fmt: skip
    terms = w.number(at.source_shape[at.axis], "terms")
    place = w.address(["j"] if at.whole else moving, at.index_steps)
    value = lay.load.format(f"source[{w.address(moving, at.source)}]")
    value = cast(value, at.dtype, total)
    start = cast(lay.load.format(f"x[{w.address(names, at.x)}]"), at.dtype, total)
    made = cast("all", total, at.dtype, rounds=False)
    w.add(
        f"  if ({' && '.join(fits) or 'true'})",
        f"    for ({w.index} j = 0; j < {terms}; ++j)",
        f"      if ((i64)index[{place}] == {names[at.axis]}) {{",
        f"        const {register} v = {value};",
        f"        sum = {_plus(total, 'sum', 'v')};",
        "      }",
        f"  const {register} was = {start};",
        f"  const {register} all = {_plus(total, 'was', 'sum')};",
        f"  out[e] = {lay.store.format(made)};",
        "}",
    )
    return w.finish(grid(count, multiprocessors))


# --- sorting -------------------------------------------------------------------------------------


def _write_keys(
    at: ScatterLayout, number: int, capacity: int, multiprocessors: int
) -> WrittenKernel:
    """The pairs as 64-bit keys: the target in the upper half, the position in the lower. Padding
    and bad indices sort last."""
    w = KernelWriter("scatter_keys", is_wide(capacity) or at.wide)
    w.pointer(LAYOUTS[at.index_dtype].memory, "index")
    w.pointer("u64", "faults", written=True)
    w.pointer("u64", "keys", written=True)
    w.thread()
    total = at.index_shape[0] if at.whole else size_of(at.index_shape)
    w.add(
        f"for ({w.index} e = thread; e < {w.number(capacity, 'capacity')}; e += threads) {{",
        "  keys[e] = ~0ull;",
        f"  if (e >= {w.number(total, 'count')}) continue;",
    )
    lines, names = w.split("e", at.index_shape, "i")
    w.add(*(f"  {line}" for line in lines))
    size = w.number(at.x_shape[at.axis], "size")
    index_line(w, w.address(names, at.index_steps), size, w.number(number, "number"), "continue;")
    place = "(u64)k"
    if not at.whole:
        place = "0ull"
        for a, n in enumerate(at.x_shape):
            where = "(u64)k" if a == at.axis else f"(u64){names[a]}"
            place = f"({place} * (u64){w.number(n)} + {where})" if a else where
    w.add(f"  keys[e] = {place} << 32 | (u64)e;", "}")
    return w.finish(grid(capacity, multiprocessors))


def _write_sort(capacity: int, first: bool) -> WrittenKernel:
    """Blocks sort (`first`) or merge their keys in shared memory (a bitonic network)."""
    w = KernelWriter("scatter_sort", is_wide(capacity))
    w.pointer("u64", "keys", written=True)
    chunk = min(CHUNK, capacity)
    if first:
        sizes = f"for ({w.index} size = 2; size <= {chunk}; size *= 2)"
    else:
        w.number(0, "size")
        sizes = ""
    w.add(
        f"__shared__ u64 held[{chunk}];",
        f"const {w.index} start = ({w.index})blockIdx.x * {chunk};",
        f"for (int i = threadIdx.x; i < {chunk}; i += {_SORTING}) held[i] = keys[start + i];",
        sizes,
        f"  for (int d = (int)(size < {chunk} ? size : {chunk}) / 2; d > 0; d /= 2) {{",
        "    __syncthreads();",
        f"    for (int t = threadIdx.x; t < {chunk // 2}; t += {_SORTING}) {{",
        "      const int i = 2 * t - (t & (d - 1)), j = i + d;",
        "      const bool up = ((start + i) & size) == 0;",
        "      const u64 a = held[i], b = held[j];",
        "      if ((a > b) == up) { held[i] = b; held[j] = a; }",
        "    }",
        "  }",
        "__syncthreads();",
        f"for (int i = threadIdx.x; i < {chunk}; i += {_SORTING}) keys[start + i] = held[i];",
    )
    return w.finish(capacity // chunk, _SORTING)


def _write_step(capacity: int, multiprocessors: int) -> WrittenKernel:
    """One step of the network between keys that are further apart than a block holds."""
    w = KernelWriter("scatter_step", is_wide(capacity))
    w.pointer("u64", "keys", written=True)
    w.thread()
    w.number(0, "size")
    w.number(0, "d")
    w.add(
        f"for ({w.index} t = thread; t < {w.number(capacity // 2, 'half')}; t += threads) {{",
        f"  const {w.index} i = 2 * t - (t & (d - 1)), j = i + d;",
        "  const bool up = (i & size) == 0;",
        "  const u64 a = keys[i], b = keys[j];",
        "  if ((a > b) == up) { keys[i] = b; keys[j] = a; }",
        "}",
    )
    return w.finish(grid(capacity // 2, multiprocessors))


def sort_keys(dev: Cuda, keys: CudaArray) -> None:
    """Sort in place; the number of keys is a power of two."""
    capacity = keys.shape[0]
    launch = dev.gpu.launch
    launch(dev.planned(("sort", capacity), lambda: _write_sort(capacity, True)), keys.ptr)
    size = 2 * CHUNK
    while size <= capacity:
        d = size // 2
        while d >= CHUNK:

            def step(size: int = size, d: int = d) -> WrittenKernel:
                made = _write_step(capacity, dev.multiprocessors)
                return made._replace(numbers=(size, d, *made.numbers[2:]))

            launch(dev.planned(("sort step", capacity, size, d), step), keys.ptr)
            d //= 2

        def merge(size: int = size) -> WrittenKernel:
            return _write_sort(capacity, False)._replace(numbers=(size,))

        launch(dev.planned(("sort merge", capacity, size), merge), keys.ptr)
        size *= 2


# --- summing -------------------------------------------------------------------------------------


def _write_sums(name: str, at: ScatterLayout) -> WrittenKernel:
    """A block for each pair and some columns; the block at the first pair of a target sums the
    values of all its pairs. The result already holds x."""
    lay, total = LAYOUTS[at.dtype], accumulator_dtype(at.dtype)
    register = LAYOUTS[total].register
    w = KernelWriter(name, True)
    w.pointer("u64", "keys")
    w.pointer(lay.memory, "source")
    w.pointer(lay.memory, "out", written=True)
    pairs = at.index_shape[0] if at.whole else size_of(at.index_shape)
    beside = _threads_per_target(at, pairs)
    rest = tuple(n for a, n in enumerate(at.x_shape) if a != at.axis) if at.whole else ()
    columns = size_of(rest)
    across = _COLUMNS if at.whole else 1
    w.number(pairs, "pairs")
    w.number(columns, "columns")
    w.add(
        f"const int tx = threadIdx.x % {across}, ty = threadIdx.x / {across};",
        "const i64 p = blockIdx.x;",
        "const u64 place = keys[p] >> 32;",
        "if (place == 0xffffffffull || (p > 0 && keys[p - 1] >> 32 == place)) return;",
        f"for (i64 c = (i64)blockIdx.y * {across}; c < columns; c += (i64)gridDim.y * {across}) {{",
        "const i64 column = c + tx;",
        "const bool there = column < columns;",
        f"{register} sum = {constant(0, total)};",
    )
    lines, names = w.split("column", rest or (1,), "i")
    w.add(
        *lines,
        f"for (i64 q = p + ty; q < pairs && keys[q] >> 32 == place; q += {beside}) {{",
        "  const i64 at = (i64)(keys[q] & 0xffffffffull);",
    )
    if at.whole:
        steps = tuple(s for a, s in enumerate(at.source) if a != at.axis)
        inner = w.address(names if rest else [], steps)
        where = f"({inner}) + at * {w.number(at.source[at.axis], 'step')}"
    else:
        lines, names = w.split("at", at.source_shape, "s")
        w.add(*(f"  {line}" for line in lines))
        where = w.address(names, at.source)
    value = cast(lay.load.format(f"source[{where}]"), at.dtype, total)
    w.add(
        f"  if (there) {{ const {register} v = {value}; sum = {_plus(total, 'sum', 'v')}; }}",
        "}",
    )
    _block_reduce(w, register, total, across, beside)
    _add_to_result(w, at, total, register)
    w.add("__syncthreads();", "}")
    return w.finish((pairs, min(65535, -(-columns // across)), 1), across * beside)


def _threads_per_target(at: ScatterLayout, pairs: int) -> int:
    """How many threads share the pairs of one target: more where targets are few."""
    places = at.x_shape[at.axis] if at.whole else size_of(at.x_shape)
    crowded = pairs > 4 * places
    if at.whole:
        return 32 if crowded else 4
    return 256 if crowded else 32


def _block_reduce(w: KernelWriter, register: str, total: DType, across: int, beside: int) -> None:
    w.add(
        f"__shared__ alignas(16) char shared[{across * beside * total.itemsize}];",
        f"{register}* part = ({register}*)shared;",
        "part[threadIdx.x] = sum;",
        f"for (int d = {beside // 2}; d > 0; d /= 2) {{",
        "  __syncthreads();",
        f"  if (ty < d) {{ const {register} v = part[threadIdx.x + d * {across}];",
        f"    part[threadIdx.x] = {_plus(total, 'part[threadIdx.x]', 'v')}; }}",
        "}",
    )


def _add_to_result(w: KernelWriter, at: ScatterLayout, total: DType, register: str) -> None:
    lay = LAYOUTS[at.dtype]
    if at.whole:
        inner = size_of(at.x_shape[at.axis + 1 :])
        n, i = w.number(at.x_shape[at.axis], "slices"), w.number(inner, "inner")
        w.add(f"const i64 o = (column / {i} * {n} + (i64)place) * {i} + column % {i};")
    else:
        w.add("const i64 o = (i64)place;")
    made = cast("all", total, at.dtype, rounds=False)
    w.add(
        "if (there && ty == 0) {",
        f"  const {register} was = {cast(lay.load.format('out[o]'), at.dtype, total)};",
        f"  const {register} all = {_plus(total, 'was', 'part[tx]')};",
        f"  out[o] = {lay.store.format(made)};",
        "}",
    )


# --- the ops -------------------------------------------------------------------------------------


def _scatter(
    dev: Cuda,
    op: str,
    x: CudaArray,
    index: CudaArray,
    source: CudaArray,
    axis: int,
    whole: bool,
) -> CudaArray:
    if index.storage is not None and x.shape[axis] == 0:
        raise nothing_to_take(dev, op, index, 0)
    what = f"{op}: index"
    if source.storage is None or x.storage is None:
        check_range(dev, index, x.shape[axis], what)
        return x
    dtype = FROM_NP[x.dtype]
    at = ScatterLayout(
        dtype, FROM_NP[index.dtype], axis, whole, x.shape, index.shape, source.shape, x.strides,
        index.strides, source.strides,
    )  # fmt: skip
    number = dev.gpu.check_number(what, x.shape[axis])
    if at.source_shape[axis] <= FEW:
        check_range(dev, index, x.shape[axis], what)
        out: CudaArray = dev.empty(x.shape, dtype)
        kernel = dev.planned(
            ("looking", op, at), lambda: _write_looking(op, at, dev.multiprocessors)
        )
        dev.gpu.launch(kernel, x.ptr, index.ptr, source.ptr, out.ptr)
        return out
    return _by_sorting(dev, op, x, index, source, at, number)


def _by_sorting(
    dev: Cuda,
    op: str,
    x: CudaArray,
    index: CudaArray,
    source: CudaArray,
    at: ScatterLayout,
    number: int,
) -> CudaArray:
    pairs = size_of(index.shape)
    places = x.shape[at.axis] if at.whole else size_of(x.shape)
    if pairs >= 1 << 31 or places >= (1 << 32) - 1:  # a block for each, and 32 bits of a key
        raise DeviceError(
            f"{op}: {pairs} indices into {places} places; the cuda backend sorts fewer than 2**31 "
            f"indices into fewer than 2**32 - 1 places; split the index"
        )
    capacity = 1 << max(1, (pairs - 1).bit_length())
    keys: CudaArray = dev.empty((capacity,), dtypes.uint64)
    kernel = dev.planned(
        ("keys", op, at, capacity), lambda: _write_keys(at, number, capacity, dev.multiprocessors)
    )
    dev.gpu.launch(kernel, index.ptr, dev.gpu.faults(), keys.ptr)
    sort_keys(dev, keys)
    out = copied(dev, x)
    kernel = dev.planned(("sums", op, at, capacity), lambda: _write_sums(op, at))
    dev.gpu.launch(kernel, keys.ptr, source.ptr, out.ptr)
    return out


def index_add(dev: Cuda, x: CudaArray, index: CudaArray, source: CudaArray, axis: int) -> CudaArray:
    return _scatter(dev, "index_add", x, index, source, axis, whole=True)


def scatter_add(
    dev: Cuda, x: CudaArray, index: CudaArray, source: CudaArray, axis: int
) -> CudaArray:
    return _scatter(dev, "scatter_add", x, index, source, axis, whole=False)
