"""Strided copies, zeros, and the check of indices."""

from __future__ import annotations

from functools import lru_cache

from everygrad import dtypes
from everygrad.backends.cpu.kernels import transpose
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Value as Reg, engine, literal
from everygrad.backends.cpu.llvm.loop_writer import LoopWriter
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import row_major

GRAIN = edge(__name__, "GRAIN", 1 << 15, "elements")
# elements from which it pays to copy a transposed operand to a contiguous one
TRANSPOSE_MIN = edge(__name__, "TRANSPOSE_MIN", 1 << 14, "elements")


def _merged(shape: Shape, tables: list[list[int]]) -> list[int]:
    """Axes of size 1 dropped, neighbours merged where every table allows."""
    sizes = list(shape)
    i = len(sizes) - 1
    while i >= 0:
        if sizes[i] == 1 and len(sizes) > 1:
            for t in (sizes, *tables):
                del t[i]
        i -= 1
    i = len(sizes) - 2
    while i >= 0:
        if all(t[i] == t[i + 1] * sizes[i + 1] for t in tables):
            sizes[i + 1] *= sizes[i]
            for t in (sizes, *tables):
                del t[i]
        i -= 1
    return sizes


class _Rows:
    """Rows of a shape split into blocks: the common part of the kernels here."""

    def __init__(self, sizes: list[int], arguments: int) -> None:
        if len(sizes) == 1:
            sizes = [1, *sizes]
        self.sizes = tuple(sizes)
        self.rows = size_of(self.sizes[:-1])
        self.a_block = max(1, GRAIN // max(1, self.sizes[-1]))
        self.blocks = -(-self.rows // self.a_block)
        self.w = LoopWriter()
        self.w.lines.append("entry:")
        self.w.arguments(arguments)

    def range(self, block: Reg) -> tuple[str, str]:
        w = self.w
        first = w.e.op("mul", block, literal("i64", self.a_block))
        end = w.smallest(w.e.op("add", first, literal("i64", self.a_block)), self.rows)
        return first.name, end.name

    def step(self) -> Step:
        self.w.lines.append("  ret void")
        return Step(self.w.module(engine().attributes), self.blocks)


def is_transposed(shape: Shape, strides: Shape) -> bool:
    """Whether reading an array of these strides in row-major order crosses a cache line with each
    element, so that a tiled copy to a contiguous array pays."""
    repeats = any(s == 0 and n > 1 for n, s in zip(shape, strides, strict=True))
    if repeats or size_of(shape) < TRANSPOSE_MIN:
        return False
    tables = [list(row_major(shape)), list(strides)]
    sizes = _merged(shape, tables)
    return transpose.transposed_axis(sizes, *tables) is not None


@lru_cache(maxsize=1024)
def copy(source: ArrayLayout, target: ArrayLayout) -> Step:
    """target[...] = source[...]; args: target, source, each where its layout begins."""
    tables = [list(target.strides), list(source.strides)]
    sizes = _merged(target.shape, tables) or [1]
    tables = [t or [0] for t in tables]
    across = transpose.transposed_axis(sizes, *tables)
    if across is not None:
        return transpose.copy(sizes, tables[0], tables[1], across, target.dtype.itemsize)
    if len(sizes) == 1:
        tables = [[0, *t] for t in tables]
    if len(sizes) == 1 and sizes[0] > GRAIN and sizes[0] % GRAIN == 0:
        tables = [[t[1] * GRAIN, t[1]] for t in tables]
        sizes = [sizes[0] // GRAIN, GRAIN]
    rows = _Rows(sizes, 2)
    w = rows.w
    dtype = target.dtype
    with w.counted("b", "%lo", "%hi") as block, w.counted("r", *rows.range(block)) as row:
        index = w.indices(row, rows.sizes[:-1])
        bases = [
            w.offset(p, 0, tuple(t[:-1]), index, dtype)
            for p, t in zip(("%p0", "%p1"), tables, strict=True)
        ]
        with w.counted("c", "0", str(rows.sizes[-1]), parallel=True) as c:
            value = w.load(w.element(bases[1], (tables[1][-1],), [c], dtype), dtype, True)
            w.store(value, w.element(bases[0], (tables[0][-1],), [c], dtype), dtype, True)
    return rows.step()


@lru_cache(maxsize=1024)
def zero(target: ArrayLayout) -> Step:
    """Zero-fills a contiguous target; args: target."""
    nbytes = target.size * target.dtype.itemsize
    rows = _Rows([-(-nbytes // GRAIN), GRAIN], 1)
    w = rows.w
    with w.counted("b", "%lo", "%hi") as block, w.counted("r", *rows.range(block)) as row:
        first = w.e.op("mul", row, literal("i64", GRAIN))
        end = w.smallest(w.e.op("add", first, literal("i64", GRAIN)), nbytes)
        with w.counted("i", first.name, end.name, parallel=True) as i:
            w.store_raw(literal("i8", 0), w.indexed("%p0", i, "i8"), grouped=True)
    return rows.step()


def _index(w: LoopWriter, pointer: str, at: Reg, index: ArrayLayout) -> Reg:
    """Element `at` of the index as an i64."""
    memory = intrinsics.memory_type(index.dtype)
    raw = w.load_raw(w.indexed(pointer, at, memory), memory, False)
    return intrinsics.cast(w.e, raw, index.dtype, dtypes.int64)


def check_range(x: ArrayLayout, size: int, number: int) -> Work:
    """Sets the error word to `number` if an index is outside [0, size).

    args: error word (three i64: number, index, size), x contiguous.
    """
    w = LoopWriter()
    w.lines.append("entry:")
    w.arguments(2)
    with w.counted("i", "0", str(x.size)) as i:
        value = _index(w, "%p1", i, x)
        bad = w.e.compare("uge", value, literal("i64", size))
        w.lines.append(f"  br i1 {bad.name}, label %bad, label %good")
        w.label("bad")
        w.store_raw(literal("i64", number), "%p0", False)
        w.store_raw(value, w.at("%p0", 8), False)
        w.store_raw(literal("i64", size), w.at("%p0", 16), False)
        w.lines.append("  ret void")
        w.label("good")
    w.lines.append("  ret void")
    return Work((Step(w.module(engine().attributes), 1, vectorise=False),))
