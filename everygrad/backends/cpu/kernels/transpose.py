"""Copies between layouts whose fastest axes differ: square tiles transposed in registers.

Element by element, such a copy reads a cache line for each number. Here whole cache lines of a
tile are read, transposed by shuffles, and written; the remainder at the edges is copied one element
at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from everygrad.backends.cpu.llvm.compiler import Value as Reg, engine, literal
from everygrad.backends.cpu.llvm.loop_writer import LoopWriter
from everygrad.backends.cpu.llvm.work import Step
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of

GRAIN = edge(__name__, "GRAIN", 1 << 15, "elements")  # elements of a block
_LANES = {1: 16, 2: 16, 4: 16, 8: 8}  # of a tile's side, by the bytes of an element


def transposed_axis(
    sizes: Sequence[int], target: Sequence[int], source: Sequence[int]
) -> int | None:
    """The axis along which the source is contiguous, if it is not the target's and both are long
    enough for tiles; strides count elements."""
    last = len(sizes) - 1
    if last < 1 or target[last] != 1 or source[last] in (0, 1):
        return None
    for axis in range(last):
        if source[axis] == 1 and sizes[axis] >= 8 and sizes[last] >= 8:
            return axis
    return None


class _TransposeWriter:
    """Writes one copy. `across` is the source's contiguous axis, the last one the target's."""

    def __init__(
        self,
        sizes: Sequence[int],
        target: Sequence[int],
        source: Sequence[int],
        across: int,
        itemsize: int,
    ) -> None:
        self.lanes = _LANES[itemsize]
        self.kind = f"i{8 * itemsize}"
        self.itemsize = itemsize
        outer = [a for a in range(len(sizes) - 1) if a != across]
        self.width, self.length = sizes[across], sizes[-1]
        self.strips = -(-self.width // self.lanes)
        self.rows = (*(sizes[a] for a in outer), self.strips)
        self.target = (*(target[a] for a in outer), target[across] * self.lanes)
        self.source = (*(source[a] for a in outer), self.lanes)
        self.down, self.along = target[across], source[-1]
        self.w = LoopWriter()

    def step(self) -> Step:
        w = self.w
        count = size_of(self.rows)
        each = max(1, GRAIN // (self.lanes * self.length))
        w.lines.append("entry:")
        w.arguments(2)
        with w.counted("b", "%lo", "%hi") as block:
            first = w.e.op("mul", block, literal("i64", each))
            end = w.smallest(w.e.op("add", first, literal("i64", each)), count)
            with w.counted("r", first.name, end.name) as row:
                self.strip(row)
        w.lines.append("  ret void")
        return Step(w.module(engine().attributes), -(-count // each))

    def strip(self, row: Reg) -> None:
        """Copies one strip, as wide as a tile, along the whole axis."""
        w, lanes = self.w, self.lanes
        index = w.indices(row, self.rows)
        into = self.at("%p0", w.distance(0, self.target, index))
        out_of = self.at("%p1", w.distance(0, self.source, index))
        first = w.e.op("mul", index[-1], literal("i64", lanes))
        left = w.e.op("sub", literal("i64", self.width), first)
        is_whole = w.e.compare("sge", left, literal("i64", lanes))
        tiles = w.e.select(is_whole, literal("i64", self.length // lanes), literal("i64", 0))
        with w.counted("t", "0", tiles.name) as tile:
            start = w.e.op("mul", tile, literal("i64", lanes))
            self.tile(self.at(into, start), self.at(out_of, start, self.along))
        rest = w.e.op("mul", tiles, literal("i64", lanes))
        wide = w.smallest(left, lanes)
        with w.counted("i", "0", wide.name) as i:
            here = self.at(into, i, self.down)
            there = self.at(out_of, i)
            with w.counted("l", rest.name, str(self.length), parallel=True) as at:
                value = w.load_raw(self.at(there, at, self.along), self.kind, True)
                w.store_raw(value, self.at(here, at), True)

    def at(self, pointer: str, index: Reg, step: int = 1) -> str:
        """The address `index` times `step` elements on."""
        return self.w.moved(pointer, index, step * self.itemsize)

    def tile(self, into: str, out_of: str) -> None:
        w, lanes = self.w, self.lanes
        vector = f"<{lanes} x {self.kind}>"
        rows = []
        for i in range(lanes):
            at = w.at(out_of, i * self.along * self.itemsize)
            rows.append(w.e.emit(vector, f"load {vector}, ptr {at}, align {self.itemsize}"))
        step = 1
        while step < lanes:
            for i in range(lanes):
                if not i & step:
                    rows[i], rows[i + step] = self.exchanged(rows[i], rows[i + step], step)
            step *= 2
        for i, row in enumerate(rows):
            at = w.at(into, i * self.down * self.itemsize)
            w.lines.append(f"  store {vector} {row.name}, ptr {at}, align {self.itemsize}")

    def exchanged(self, a: Reg, b: Reg, step: int) -> tuple[Reg, Reg]:
        """Two rows with the off-diagonal squares of side `step` exchanged."""
        lanes = range(self.lanes)
        upper = [self.lanes + j - step if j & step else j for j in lanes]
        lower = [self.lanes + j if j & step else j + step for j in lanes]
        return self.shuffled(a, b, upper), self.shuffled(a, b, lower)

    def shuffled(self, a: Reg, b: Reg, lanes: Sequence[int]) -> Reg:
        chosen = ", ".join(f"i32 {p}" for p in lanes)
        pair = f"{a.type} {a.name}, {b.type} {b.name}"
        return self.w.e.emit(a.type, f"shufflevector {pair}, <{self.lanes} x i32> <{chosen}>")


def copy(
    sizes: Sequence[int],
    target: Sequence[int],
    source: Sequence[int],
    across: int,
    itemsize: int,
) -> Step:
    """target[...] = source[...]; args: target, source. See `transposed_axis` for `across`."""
    return _TransposeWriter(sizes, target, source, across, itemsize).step()
