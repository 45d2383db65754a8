"""Kernels that move elements: strided copies, gathers, scatters, and the check of their indices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
    """target[...] = source[...]; args: target, source."""
    tables = [list(target.strides), list(source.strides)]
    sizes = _merged(target.shape, tables) or [1]
    tables = [t or [0] for t in tables]
    across = None
    if not source.offset and not target.offset:
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
            w.offset(p, o.offset, tuple(t[:-1]), index, dtype)
            for p, o, t in zip(("%p0", "%p1"), (target, source), tables, strict=True)
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


def index_add(x: ArrayLayout, index: ArrayLayout, axis: int) -> Work:
    """out = x with slices of source added; args: out, x, index, source, all contiguous."""
    return _by_slices(x, index, axis, adds=True)


def index_put(x: ArrayLayout, index: ArrayLayout) -> Work:
    """out = x with slices of axis 0 replaced; args: out, x, index, values, all contiguous."""
    return _by_slices(x, index, 0, adds=False)


@lru_cache(maxsize=1024)
def _by_slices(x: ArrayLayout, index: ArrayLayout, axis: int, adds: bool) -> Work:
    """Adds slices of a source to the slices of x that an index names, or writes them there.

    Each block owns a part of the inner axis and goes through all indices in order: no two blocks
    write one element, and the result is the same for any number of threads.
    """
    outer, inner = size_of(x.shape[:axis]), size_of(x.shape[axis + 1 :])
    count, n = index.size, x.shape[axis]
    memory = intrinsics.memory_type(x.dtype)
    pieces = max(1, min(inner // 16, 16))
    piece = -(-inner // pieces)
    w = LoopWriter()
    w.lines.append("entry:")
    w.arguments(4)
    with w.counted("b", "%lo", "%hi") as block:
        before, part = w.indices(block, (outer, pieces))
        start = w.smallest(w.e.op("mul", part, literal("i64", piece)), inner)
        end = w.smallest(w.e.op("add", start, literal("i64", piece)), inner)
        top = w.e.op("mul", before, literal("i64", n * inner))
        with w.counted("n", "0", str(n)) as row:
            line = w.e.op("add", top, w.e.op("mul", row, literal("i64", inner)))
            with w.counted("c", start.name, end.name, parallel=True) as c:
                at = w.e.op("add", line, c)
                held = w.load_raw(w.indexed("%p1", at, memory), memory, True)
                w.store_raw(held, w.indexed("%p0", at, memory), True)
        with w.counted("i", "0", str(count)) as i:
            row = _index(w, "%p2", i, index)
            line = w.e.op("add", top, w.e.op("mul", row, literal("i64", inner)))
            far = w.e.op("add", w.e.op("mul", before, literal("i64", count)), i)
            source = w.e.op("mul", far, literal("i64", inner))
            with w.counted("c", start.name, end.name, parallel=True) as c:
                to = w.indexed("%p0", w.e.op("add", line, c), memory)
                new = w.load_raw(w.indexed("%p3", w.e.op("add", source, c), memory), memory, True)
                if adds:
                    new = _add(w, x, w.load_raw(to, memory, True), new)
                w.store_raw(new, to, True)
    w.lines.append("  ret void")
    return Work((Step(w.module(engine().attributes), outer * pieces),))


def _add(w: LoopWriter, x: ArrayLayout, a: Reg, b: Reg) -> Reg:
    return intrinsics.apply(w.e, "add", x.dtype, [a, b])


@lru_cache(maxsize=1024)
def gather(x: ArrayLayout, index: ArrayLayout, axis: int) -> Work:
    """One element for each index; args: out, x, index, all contiguous."""
    w, blocks, where = _along(x, index, axis, 3)
    memory = intrinsics.memory_type(x.dtype)
    with where as (i, offset):
        value = w.load_raw(w.indexed("%p1", offset, memory), memory, False)
        w.store_raw(value, w.indexed("%p0", i, memory), False)
    w.lines.append("  ret void")
    return Work((Step(w.module(engine().attributes), blocks),))


@lru_cache(maxsize=1024)
def scatter_add(x: ArrayLayout, index: ArrayLayout, axis: int) -> Work:
    """out = x with each source element added; args: out, x, index, source, all contiguous.

    Blocks own whole parts of the axes before `axis` where x and index agree on those axes.
    """
    w, blocks, where = _along(x, index, axis, 4, owns=True)
    memory = intrinsics.memory_type(x.dtype)
    with where as (i, offset):
        to = w.indexed("%p0", offset, memory)
        new = w.load_raw(w.indexed("%p3", i, memory), memory, False)
        w.store_raw(_add(w, x, w.load_raw(to, memory, False), new), to, False)
    w.lines.append("  ret void")
    first = copy(ArrayLayout(x.dtype, (x.size,), (1,)), ArrayLayout(x.dtype, (x.size,), (1,)))
    return Work((first, Step(w.module(engine().attributes), blocks)))


IndexLoop = AbstractContextManager[tuple[Reg, Reg]]


def _along(
    x: ArrayLayout, index: ArrayLayout, axis: int, arguments: int, owns: bool = False
) -> tuple[LoopWriter, int, IndexLoop]:
    """Loops over the elements of an index: (its flat position, the offset in x that it names)."""
    w = LoopWriter()
    w.lines.append("entry:")
    w.arguments(arguments)
    outer = size_of(index.shape[:axis])
    alike = x.shape[:axis] == index.shape[:axis]
    inner = size_of(index.shape[axis:])
    if owns and not alike:
        outer, inner = 1, index.size
    elif not owns:
        inner = max(1, min(index.size, GRAIN))
        while index.size % inner:
            inner -= 1
        outer = index.size // max(1, inner)
    blocks = max(1, min(outer, 64))
    each = -(-outer // blocks)
    blocks = -(-outer // each)

    @contextmanager
    def where() -> Iterator[tuple[Reg, Reg]]:
        with w.counted("b", "%lo", "%hi") as block:
            first = w.e.op("mul", block, literal("i64", each * inner))
            end = w.smallest(w.e.op("add", first, literal("i64", each * inner)), index.size)
            with w.counted("i", first.name, end.name) as i:
                indices = w.indices(i, index.shape)
                indices[axis] = _index(w, "%p2", i, index)
                yield i, w.distance(0, x.strides, indices)

    return w, blocks, where()


@lru_cache(maxsize=1024)
def last_write(index: ArrayLayout, size: int) -> Work:
    """For each of `size` indices the last position at which it occurs, or -1.

    args: out, index, contiguous, of one integer dtype. One thread visits them in order.
    """
    memory = intrinsics.memory_type(index.dtype)
    rows = _Rows([-(-size // GRAIN), GRAIN], 2)
    w = rows.w
    with w.counted("b", "%lo", "%hi") as block, w.counted("r", *rows.range(block)) as row:
        first = w.e.op("mul", row, literal("i64", GRAIN))
        end = w.smallest(w.e.op("add", first, literal("i64", GRAIN)), size)
        with w.counted("i", first.name, end.name, parallel=True) as i:
            w.store_raw(literal(memory, -1), w.indexed("%p0", i, memory), grouped=True)
    w = LoopWriter()
    w.lines.append("entry:")
    w.arguments(2)
    with w.counted("i", "0", str(index.size)) as i:
        position = intrinsics.cast(w.e, i, dtypes.int64, index.dtype)
        w.store_raw(position, w.indexed("%p0", _index(w, "%p1", i, index), memory), False)
    w.lines.append("  ret void")
    return Work((rows.step(), Step(w.module(engine().attributes), 1, vectorise=False)))


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
