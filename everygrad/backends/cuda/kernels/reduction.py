"""Reductions: threads share a row, or have neighbouring columns; long ones are split into pieces.

The partial results of pieces are reduced again: no running sum is long enough to lose digits, and
few rows keep the GPU busy. All depends on the shape alone, so a sum has the same bits every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.source.c_types import LAYOUTS, accumulator_dtype
from everygrad.backends.cuda.source.render import cast, constant, instruction
from everygrad.backends.cuda.source.writer import (
    BLOCK,
    KernelWriter,
    WrittenKernel,
    extent,
    is_wide,
)
from everygrad.compiler.accumulate import COMBINATIONS, identity, of_nothing
from everygrad.compiler.expr import Inst
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, reduced, size_of
from everygrad.core.strides import collapse
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

ROW_PIECE = edge(__name__, "ROW_PIECE", 1 << 14, "size")  # elements of a row that one block reduces
# of one block; its other threads share their rows
_COLUMNS = edge(__name__, "_COLUMNS", 32, "size")
_BLOCKS = edge(__name__, "_BLOCKS", 2048, "count")  # enough to keep any GPU busy
_SHORTEST, _LONGEST = 64, 1024  # rows of one piece of a column


def combined(combine: str, dtype: DType, a: str, b: str) -> str:
    assert combine in COMBINATIONS
    return instruction(Inst(combine, dtype, (0, 1)), [a, b], [dtype, dtype])


class ReductionLayout(NamedTuple):
    """Where the elements are: sizes and strides of the axes that remain (outer) and of those that
    are reduced (inner)."""

    outer: Shape
    outer_strides: Shape
    inner: Shape
    inner_strides: Shape

    @property
    def rows(self) -> int:
        return size_of(self.outer)

    @property
    def terms(self) -> int:
        return size_of(self.inner)

    @property
    def extent(self) -> int:
        return extent((*self.outer, *self.inner), (*self.outer_strides, *self.inner_strides))


class ReductionStage(NamedTuple):
    """One kernel: the dtypes it reads, accumulates in and writes; `divisor` divides at the end, if
    any."""

    combine: str
    source: DType
    total: DType
    out: DType
    pieces: int
    length: int  # terms of a piece
    divisor: int


def reduction_layout(x: CudaArray, axes: Shape) -> ReductionLayout:
    stay = [a for a in range(len(x.shape)) if a not in axes]
    outer, (outer_strides,) = collapse(
        tuple(x.shape[a] for a in stay), [tuple(x.strides[a] for a in stay)]
    )
    inner, (inner_strides,) = collapse(
        tuple(x.shape[a] for a in axes), [tuple(x.strides[a] for a in axes)]
    )
    return ReductionLayout(outer, outer_strides, inner, inner_strides)


def goes_by_rows(layout: ReductionLayout) -> bool:
    """Whether threads share a row: where a row's elements are neighbours, or rows are few."""
    along = min((abs(s) for s in layout.inner_strides if s), default=0)
    across = min((abs(s) for s in layout.outer_strides if s), default=1 << 62)
    return along <= across or layout.rows < _COLUMNS


def _begin(w: KernelWriter, stage: ReductionStage) -> str:
    """Declare the pointers and the lambda that combines; returns the accumulator's type."""
    w.pointer(LAYOUTS[stage.source].memory, "x")
    w.pointer(LAYOUTS[stage.out].memory, "out", written=True)
    kind = LAYOUTS[stage.total].register
    text = combined(stage.combine, stage.total, "a", "b")
    w.add(f"auto combine = [&]({kind} a, {kind} b) -> {kind} {{ return {text}; }};")
    return kind


def _value(stage: ReductionStage, place: str) -> str:
    """An element as the accumulator takes it."""
    return cast(LAYOUTS[stage.source].load.format(place), stage.source, stage.total)


def _store(w: KernelWriter, stage: ReductionStage, value: str, place: str) -> str:
    if stage.divisor:
        part = LAYOUTS[dtypes.real_of(stage.total)].register
        count = w.number(stage.divisor, "divisor")
        whole = f"({part}){count}"
        value = f"{value} * ({part})(1 / {whole})" if stage.total.is_complex else (
            f"{value} / {whole}"
        )  # fmt: skip
    made = cast(value, stage.total, stage.out, rounds=False)
    return f"out[{place}] = {LAYOUTS[stage.out].store.format(made)};"


# --- rows ----------------------------------------------------------------------------------------


def _sharing(length: int) -> int:
    """How many threads share a row of so many elements."""
    return 1 if length <= 4 else 8 if length <= 64 else 32 if length <= 1024 else BLOCK


def _vector(layout: ReductionLayout, stage: ReductionStage, place: int) -> int:
    """How many elements of a row are read at once."""
    size = stage.source.itemsize
    count = 16 // size
    if len(layout.inner) != 1 or layout.inner_strides != (1,):
        return 1
    while count > 1:
        starts = all(s % count == 0 for s, n in zip(layout.outer_strides, layout.outer, strict=True)
                     if n != 1)  # fmt: skip
        if starts and place % (count * size) == 0 and stage.length % count == 0:
            break
        count //= 2
    return count


def write_rows(
    name: str, stage: ReductionStage, layout: ReductionLayout, place: int
) -> WrittenKernel:
    """Each piece of a row is reduced to one result: out[row * pieces + piece]."""
    total = layout.rows * stage.pieces
    w = KernelWriter(name, is_wide(layout.extent, total * BLOCK))
    kind = _begin(w, stage)
    share = _sharing(stage.length)
    vector = _vector(layout, stage, place) if share > 1 else 1
    start = constant(identity(stage.combine, stage.total), stage.total)
    wide = "(i64)" if w.wide else ""
    w.add(
        f"const {w.index} k = {wide}blockIdx.x * {BLOCK // share} + threadIdx.x / {share};",
        f"const int lane = threadIdx.x % {share};",
        f"const bool there = k < {w.number(total, 'total')};",
        f"const {w.index} row = there ? k / {w.number(stage.pieces, 'pieces')} : 0;",
        f"const {w.index} first = there ? (k - row * pieces) * {w.number(stage.length, 'length')} "
        f": 0;",
        f"const {w.index} left = {w.number(layout.terms, 'terms')} - first;",
        f"const {w.index} n = there ? (left < length ? left : length) : 0;",
    )
    lines, names = w.split("row", layout.outer, "i")
    w.add(*lines, f"const auto* base = x + ({w.address(names, layout.outer_strides)});")
    w.add(f"{kind} acc = {start};")
    if vector > 1:
        _row_vectors(w, stage, kind, share, vector, start)
    else:
        _row_scalars(w, stage, layout, share)
    if share > 1:
        if share > 32:
            w.add(f"__shared__ u32 shared[{32 * max(1, stage.total.itemsize // 4)}];")
        shared = "shared" if share > 32 else "(u32*)nullptr"
        w.add(f"acc = block_reduce<{share}>(acc, combine, ({kind}){start}, {shared});")
    w.add(f"if (there && lane == 0) {_store(w, stage, 'acc', 'k')}")
    return w.finish(-(-total // (BLOCK // share)))


def _row_vectors(
    w: KernelWriter, stage: ReductionStage, kind: str, share: int, vector: int, start: str
) -> None:
    """One accumulator for each element of a vector load, so that they are independent."""
    pack = f"Pack<{LAYOUTS[stage.source].memory}, {vector}>"
    w.add(
        f"{kind} part[{vector}];",
        "#pragma unroll",
        f"for (int v = 0; v < {vector}; ++v) part[v] = {start};",
        f"const {pack}* packs = (const {pack}*)(base + first);",
        f"const {w.index} whole = n / {vector};",
        "#pragma unroll 4",
        f"for ({w.index} j = lane; j < whole; j += {share}) {{",
        f"  const {pack} p = packs[j];",
        "#pragma unroll",
        f"  for (int v = 0; v < {vector}; ++v) part[v] = combine(part[v], "
        f"{_value(stage, 'p.v[v]')});",
        "}",
        f"for ({w.index} j = first + whole * {vector} + lane; j < first + n; j += {share})",
        f"  acc = combine(acc, {_value(stage, 'base[j]')});",
        "#pragma unroll",
        f"for (int v = 0; v < {vector}; ++v) acc = combine(acc, part[v]);",
    )


def _row_scalars(
    w: KernelWriter, stage: ReductionStage, layout: ReductionLayout, share: int
) -> None:
    w.add("#pragma unroll 4", f"for ({w.index} t = lane; t < n; t += {share}) {{")
    w.add(f"  const {w.index} j = first + t;")
    lines, names = w.split("j", layout.inner, "g")
    place = f"base[{w.address(names, layout.inner_strides)}]"
    w.add(*(f"  {line}" for line in lines), f"  acc = combine(acc, {_value(stage, place)});", "}")


# --- columns -------------------------------------------------------------------------------------


def write_columns(name: str, stage: ReductionStage, layout: ReductionLayout) -> WrittenKernel:
    """A thread for each column and some rows of a piece: out[piece * rows + row]."""
    rows = layout.rows
    w = KernelWriter(name, is_wide(layout.extent, rows * stage.pieces))
    kind = _begin(w, stage)
    start = constant(identity(stage.combine, stage.total), stage.total)
    beside = _beside(stage.length)
    columns = BLOCK // beside
    w.add(
        f"const int tx = threadIdx.x % {columns}, ty = threadIdx.x / {columns};",
        f"const {w.index} row = ({w.index})blockIdx.x * {columns} + tx;",
        f"const bool there = row < {w.number(rows, 'rows')};",
        f"const {w.index} first = ({w.index})blockIdx.y * {w.number(stage.length, 'length')};",
        f"const {w.index} left = {w.number(layout.terms, 'terms')} - first;",
        f"const {w.index} end = first + (left < length ? left : length);",
        f"{kind} acc = {start};",
        "if (there) {",
    )
    lines, names = w.split("row", layout.outer, "i")
    w.add(*(f"  {line}" for line in lines))
    w.add(
        f"  const auto* base = x + ({w.address(names, layout.outer_strides)});", "#pragma unroll 8"
    )
    w.add(f"  for ({w.index} j = first + ty; j < end; j += {beside}) {{")
    lines, names = w.split("j", layout.inner, "g")
    place = f"base[{w.address(names, layout.inner_strides)}]"
    w.add(
        *(f"    {line}" for line in lines),
        f"    acc = combine(acc, {_value(stage, place)});",
        "  }",
        "}",
        f"__shared__ alignas(16) char shared[{BLOCK * stage.total.itemsize}];",
        f"{kind}* part = ({kind}*)shared;",
        "part[threadIdx.x] = acc;",
        f"for (int d = {beside // 2}; d > 0; d /= 2) {{",
        "  __syncthreads();",
        f"  if (ty < d) part[threadIdx.x] = combine(part[threadIdx.x], "
        f"part[threadIdx.x + d * {columns}]);",
        "}",
        f"if (there && ty == 0) "
        f"{_store(w, stage, 'part[tx]', f'({w.index})blockIdx.y * rows + row')}",
    )
    return w.finish((-(-rows // columns), stage.pieces, 1))


def _beside(length: int) -> int:
    """How many threads share a column of so many terms: each has four, where there are as many."""
    most = BLOCK // _COLUMNS
    return min(most, 1 << max(0, (length // 4).bit_length() - 1))


def _pieces(layout: ReductionLayout, by_rows: bool) -> tuple[int, int]:
    """Into how many pieces rows are split, and their length."""
    terms = layout.terms
    if by_rows:
        # several blocks for a row only where there are too few rows
        wanted = -(-_BLOCKS // layout.rows)
        length = min(ROW_PIECE, max(1024, -(-terms // wanted)))
        length = -(-length // 64) * 64
    else:
        wanted = -(-_BLOCKS // -(-layout.rows // _COLUMNS))
        length = min(_LONGEST, max(_SHORTEST, -(-terms // wanted)))
        length = max(-(-length // 8) * 8, -(-terms // 65535))  # a grid's second axis has 16 bits
    length = min(length, terms)
    return -(-terms // length), length


def accumulate(
    dev: Cuda, name: str, combine: str, x: CudaArray, axes: Shape, out: DType, mean: bool = False
) -> CudaArray:
    """The reduction of a non-empty array; one long axis of results."""
    source = FROM_NP[x.dtype]
    total = accumulator_dtype(source)
    layout = reduction_layout(x, axes)
    count = layout.terms if mean else 0
    ptr = x.ptr
    while True:
        by_rows = goes_by_rows(layout)
        pieces, length = _pieces(layout, by_rows)
        last = pieces == 1
        stage = ReductionStage(
            combine, source, total, out if last else total, pieces, length, count if last else 0
        )
        made: CudaArray = dev.empty((layout.rows * pieces,), stage.out)
        key = ("reduce", name, stage, layout, by_rows, ptr % 16)

        def write(
            stage: ReductionStage = stage,
            layout: ReductionLayout = layout,
            by_rows: bool = by_rows,
            ptr: int = ptr,
        ) -> WrittenKernel:
            if by_rows:
                return write_rows(name, stage, layout, ptr % 16)
            return write_columns(name, stage, layout)

        dev.gpu.launch(dev.planned(key, write), ptr, made.ptr)
        if last:
            return made
        rows = layout.rows
        steps = (pieces, 1) if by_rows else (1, rows)
        layout = ReductionLayout((rows,), steps[:1], (pieces,), steps[1:])
        source, ptr, x = total, made.ptr, made  # x: holds the memory until the next launch


def reduce(
    dev: Cuda,
    name: str,
    combine: str,
    x: CudaArray,
    axes: Shape,
    keepdims: bool,
    mean: bool = False,
) -> CudaArray:
    dtype = dtypes.bool_ if combine in ("and", "or") else FROM_NP[x.dtype]
    shape = reduced(x.shape, axes, keepdims)
    if not size_of(shape):
        return dev.empty(shape, dtype)
    if x.storage is None:
        return dev.full(shape, of_nothing(combine, dtype, mean), dtype)
    out = accumulate(dev, name, combine, x, axes, dtype, mean)
    return CudaArray(dev.device, shape, dtype.np, out.storage)


def prod(dev: Cuda, x: CudaArray, axes: Shape, keepdims: bool) -> CudaArray:
    return reduce(dev, "prod", "mul", x, axes, keepdims)


# --- argmax and argmin ---------------------------------------------------------------------------


def _swapped(text: str) -> str:
    """A comparison of a and b as one of b and a."""
    return text.replace("a.v", "c.v").replace("b.v", "a.v").replace("c.v", "b.v")


def _write_arg(
    name: str, dtype: DType, largest: bool, layout: ReductionLayout, pieces: int, again: bool
) -> WrittenKernel:
    """A block for each piece of a row: the best value and its index. `again`: the inputs are
    the bests of pieces, whose indices are in `given`."""
    total = layout.rows * pieces
    w = KernelWriter(name, is_wide(layout.extent, total * BLOCK))
    lay = LAYOUTS[dtype]
    w.pointer(lay.memory, "x")
    if again:
        w.pointer("i64", "given")
    w.pointer(lay.memory, "best", written=True)
    w.pointer("i64", "out", written=True)
    fn = "gt" if largest else "lt"
    better = instruction(Inst(fn, dtypes.bool_, (0, 1)), ["a.v", "b.v"], [dtype, dtype])
    nan = "(a.v != a.v) != (b.v != b.v) ? a.v != a.v : " if dtype.is_float else ""
    w.add(
        f"struct Best {{ {lay.register} v; i64 at; }};",  # at < 0: nothing yet
        "auto combine = [&](Best a, Best b) -> Best {",
        "  if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;",
        f"  const bool first = {nan}{better};",
        f"  const bool later = {_swapped(nan + better)};",
        "  return first ? a : later ? b : a.at < b.at ? a : b;",
        "};",
    )
    w.number(pieces, "pieces")
    w.number(-(-layout.terms // pieces), "length")
    w.number(layout.terms, "terms")
    w.add(
        f"const {w.index} k = blockIdx.x;",
        f"const {w.index} row = k / pieces, first = (k - row * pieces) * length;",
        f"const {w.index} end = first + length < terms ? first + length : terms;",
    )
    lines, names = w.split("row", layout.outer, "i")
    w.add(*lines, f"const {w.index} base = {w.address(names, layout.outer_strides)};")
    value = lay.load.format(f"x[base + j * {w.number(layout.inner_strides[0], 'step')}]")
    at = "given[base + j]" if again else "j"
    w.add(
        "Best acc; acc.at = -1;",
        f"for ({w.index} j = first + threadIdx.x; j < end; j += {BLOCK}) {{",
        f"  Best b; b.v = {value}; b.at = {at};",
        "  acc = combine(acc, b);",
        "}",
        "__shared__ alignas(16) u32 shared[32 * 8];",
        "Best none; none.at = -1;",
        f"acc = block_reduce<{BLOCK}>(acc, combine, none, shared);",
        f"if (threadIdx.x == 0) {{ best[k] = {lay.store.format('acc.v')}; out[k] = acc.at; }}",
    )
    return w.finish(total)


def arg(dev: Cuda, largest: bool, x: CudaArray, axis: int, keepdims: bool) -> CudaArray:
    """The first largest (or smallest) element's index; a NaN wins."""
    shape = reduced(x.shape, (axis,), keepdims)
    if not size_of(shape) or x.storage is None:
        return dev.empty(shape, dtypes.int64)
    dtype, name = FROM_NP[x.dtype], "argmax" if largest else "argmin"
    layout = reduction_layout(x, (axis,))
    ptrs: tuple[int, ...] = (x.ptr,)
    held: tuple[CudaArray, ...] = (x,)
    while True:
        pieces = -(-layout.terms // ROW_PIECE)
        best: CudaArray = dev.empty((layout.rows * pieces,), dtype)
        out: CudaArray = dev.empty((layout.rows * pieces,), dtypes.int64)
        again = len(ptrs) > 1
        key = ("arg", largest, dtype, layout, pieces, again)

        def write(
            layout: ReductionLayout = layout, pieces: int = pieces, again: bool = again
        ) -> WrittenKernel:
            return _write_arg(name, dtype, largest, layout, pieces, again)

        dev.gpu.launch(dev.planned(key, write), *ptrs, best.ptr, out.ptr)
        if pieces == 1:
            return CudaArray(dev.device, shape, dtypes.int64.np, out.storage)
        layout = ReductionLayout((layout.rows,), (pieces,), (pieces,), (1,))
        ptrs, held = (best.ptr, out.ptr), (best, out)
        assert held  # their memory is in use until the next launch
