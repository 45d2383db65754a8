"""argsort and top-k along rows as native work.

Elements are mapped to unsigned integers of the same order, -0.0 as 0.0 and NaN above all. A small k
uses insertion; otherwise a stable radix sort goes byte by byte from the lowest.
"""

from __future__ import annotations

from functools import lru_cache

from everygrad import dtypes
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Value, literal
from everygrad.backends.cpu.llvm.vector_emitter import Int, VectorEmitter
from everygrad.backends.cpu.llvm.work import ArrayLayout, Work
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.dtypes import DType

OUT, X, SCRATCH = range(3)
_FEW = edge(__name__, "_FEW", 32, "size")  # k up to which insertion is used
_BLOCKS, _SCRATCH = 32, 1 << 25  # at most so many blocks, and scratch bytes of all blocks
_MIN_BLOCK = edge(__name__, "_MIN_BLOCK", 1 << 12, "elements")  # elements of a block
_DIGITS = 256


class _SortWriter:
    """Rows of n contiguous elements; the first k indices of each row's order are written."""

    def __init__(self, x: ArrayLayout, k: int, descending: bool) -> None:
        self.dtype, self.k, self.descending = x.dtype, k, descending
        self.n = x.shape[-1]
        self.rows = size_of(x.shape[:-1])
        halves = x.dtype.is_float and x.dtype.itemsize == 2
        self.wide: DType = dtypes.float32 if halves else x.dtype
        self.bits = self.wide.itemsize * 8
        self.key = f"i{self.bits}"
        self.code = VectorEmitter(dtypes.float64, 8)
        self.by_insertion = min(k, self.n) <= _FEW

    def number(self, value: int) -> Value:
        """An integer of the keys' type."""
        return literal(self.key, value - (1 << self.bits) if value >> (self.bits - 1) else value)

    def load(self, base: Value, at: Int, kind: str) -> Value:
        return self.code.emit(kind, f"load {kind}, ptr {self.code.at(base, at, kind).name}")

    def store(self, value: Value, base: Value, at: Int) -> None:
        where = self.code.at(base, at, value.type).name
        self.code.lines.append(f"  store {value.type} {value.name}, ptr {where}")

    def key_of(self, at: Int) -> Value:
        """Element `at` of the row as an integer whose unsigned order is the requested one."""
        c = self.code
        raw = self.load(self.row, at, intrinsics.memory_type(self.dtype))
        top = self.number(1 << (self.bits - 1))
        everything = self.number((1 << self.bits) - 1)
        if self.wide.is_float:
            x = intrinsics.cast(c, raw, self.dtype, self.wide)
            x = c.op("fadd", x, literal(x.type, 0.0))  # -0.0 is 0.0
            bits = c.cast("bitcast", x, self.key)
            sign = c.op("ashr", bits, self.number(self.bits - 1))
            made = c.op("xor", bits, c.op("or", sign, top))
            made = c.select(c.compare("uno", x, x), everything, made)
        else:
            made = c.op("xor", raw, top) if self.dtype.kind == "int" else raw
        return c.op("xor", made, everything) if self.descending else made

    # --- by insertion

    def insertion(self) -> None:
        """Insertion into the sorted best so far; those after the new element move up."""
        c, k = self.code, self.k
        with c.loop(0, self.n) as loop:
            j = c.i64(loop.index)
            key = self.key_of(j)
            held = c.least(j, k)
            last = self.load(self.keys[0], k - 1, self.key)  # undefined and unused at first
            fresh = c.compare_ints("slt", j, k)
            with c.when(c.op("or", fresh, c.compare("ult", key, last))):
                with c.loop(0, held, [Value("i64", "0")]) as count:
                    other = self.load(self.keys[0], count.index, self.key)
                    before = c.cast("zext", c.compare("ule", other, key), "i64")
                    count.next = [c.op("add", count.values[0], before)]
                position = count.values[0]
                end = c.least(j, k - 1)
                with c.loop(0, c.minus(end, position)) as step:
                    at = c.minus(end, step.index)
                    for held_at in (self.keys[0], self.indices[0]):
                        kind = self.key if held_at is self.keys[0] else "i32"
                        self.store(self.load(held_at, c.sub(at, 1), kind), held_at, at)
                self.store(key, self.keys[0], position)
                self.store(c.cast("trunc", j, "i32"), self.indices[0], position)
        self.write(self.indices[0])

    # --- by digits

    def digit(self, key: Value, number: int) -> Value:
        c = self.code
        low = c.op("lshr", key, self.number(8 * number)) if number else key
        byte = low if self.bits == 8 else c.cast("trunc", low, "i8")
        return c.cast("zext", byte, "i64")

    def radix(self) -> None:
        c = self.code
        digits = self.bits // 8
        with c.loop(0, digits * _DIGITS) as loop:
            self.store(Value("i32", "0"), self.counts, loop.index)
        with c.loop(0, self.n) as loop:
            key = self.key_of(loop.index)
            self.store(key, self.keys[0], loop.index)
            self.store(c.cast("trunc", c.i64(loop.index), "i32"), self.indices[0], loop.index)
            for d in range(digits):
                at = c.add(self.digit(key, d), d * _DIGITS)
                self.store(
                    c.op("add", self.load(self.counts, at, "i32"), Value("i32", "1")),
                    self.counts,
                    at,
                )
        keys, indices = self.keys, self.indices
        for d in range(digits):
            keys, indices = self.sweep(d, keys, indices)
        self.write(indices[0])

    def sweep(
        self, number: int, keys: tuple[Value, Value], indices: tuple[Value, Value]
    ) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
        """One digit: from the first buffers to the second, unless all elements share that digit."""
        c = self.code
        counts = c.at(self.counts, number * _DIGITS, "i32")
        first = self.digit(self.load(keys[0], 0, self.key), number)
        alike = c.compare("eq", self.load(counts, first, "i32"), Value("i32", str(self.n)))
        with c.loop(0, _DIGITS, [Value("i32", "0")]) as loop:
            count = self.load(counts, loop.index, "i32")
            self.store(loop.values[0], counts, loop.index)
            loop.next = [c.op("add", loop.values[0], count)]
        with c.loop(0, c.select(alike, Value("i64", "0"), Value("i64", str(self.n)))) as loop:
            key = self.load(keys[0], loop.index, self.key)
            at = self.digit(key, number)
            to = self.load(counts, at, "i32")
            self.store(c.op("add", to, Value("i32", "1")), counts, at)
            position = c.cast("zext", to, "i64")
            self.store(key, keys[1], position)
            self.store(self.load(indices[0], loop.index, "i32"), indices[1], position)
        (k0, k1), (p0, p1) = keys, indices
        return (
            (c.select(alike, k0, k1), c.select(alike, k1, k0)),
            (c.select(alike, p0, p1), c.select(alike, p1, p0)),
        )

    # --- the whole

    def write(self, indices: Value) -> None:
        c = self.code
        with c.loop(0, self.k) as loop:
            position = c.cast("zext", self.load(indices, loop.index, "i32"), "i64")
            self.store(position, self.target, loop.index)

    def work(self) -> Work:
        c = self.code
        held = -(-(self.k if self.by_insertion else self.n) // 16) * 16  # elements of a buffer
        buffers = 1 if self.by_insertion else 2
        sizes = [held * self.bits // 8] * buffers + [held * 4] * buffers
        sizes.append(0 if self.by_insertion else self.bits // 8 * _DIGITS * 4)
        own = -(-sum(sizes) // 64) * 64
        most = max(1, min(_BLOCKS, _SCRATCH // own, self.rows * self.n // _MIN_BLOCK))
        each = -(-self.rows // min(self.rows, most))
        blocks = -(-self.rows // each)
        x, out, scratch = c.argument(X), c.argument(OUT), c.argument(SCRATCH)
        with c.loop(*c.blocks) as block:
            at, parts = c.mul(block.index, own), []
            for size in sizes:
                parts.append(c.at(scratch, at, "i8"))
                at = c.add(at, size)
            self.keys = (parts[0], parts[buffers - 1])
            self.indices = (parts[buffers], parts[2 * buffers - 1])
            self.counts = parts[-1]
            start = c.mul(block.index, each)
            with c.loop(start, c.least(c.add(start, each), self.rows)) as row:
                memory = intrinsics.memory_type(self.dtype)
                self.row = c.at(x, c.mul(row.index, self.n), memory)
                self.target = c.at(out, c.mul(row.index, self.k), "i64")
                self.insertion() if self.by_insertion else self.radix()
        return Work((c.step(blocks)._replace(vectorise=True),), blocks * own)


@lru_cache(maxsize=1024)
def order(x: ArrayLayout, k: int, descending: bool) -> Work:
    """The indices, int64, of the first k elements of each row of fewer than 2**31 real elements;
    args: out, x, both contiguous."""
    return _SortWriter(x, k, descending).work()
