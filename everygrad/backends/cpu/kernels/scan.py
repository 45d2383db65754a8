"""Scans as native work: each element combined with all before it along an axis.

Sums and products of floats accumulate in float64 and are rounded when they are stored. Along the
last axis several rows are scanned at once, to hide the latency of additions. Along another axis the
elements behind it are scanned by vectors, with their states in the scratch memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from everygrad import dtypes
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import Int, VectorEmitter
from everygrad.backends.cpu.llvm.work import ArrayLayout, Work
from everygrad.compiler.accumulate import identity
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.dtypes import DType

OUT, X = range(2)
_ROWS_AT_ONCE = edge(__name__, "_ROWS_AT_ONCE", 4, "size")  # rows
_PIECE = edge(__name__, "_PIECE", 512, "size")  # elements behind the axis per block
_MIN_BLOCK = edge(__name__, "_MIN_BLOCK", 1 << 12, "elements")  # elements of a block
State = list[Value]


class _ScanOp(NamedTuple):
    """How a scan combines its state with an element, and whether it gives the index of the best."""

    combine: str
    is_index: bool = False
    inputs: int = 1


_OPS = {
    "cumulative_sum": _ScanOp("add"),
    "cumulative_prod": _ScanOp("mul"),
    "cummax_index": _ScanOp("max", is_index=True),
    "cummin_index": _ScanOp("min", is_index=True),
    "recurrence": _ScanOp("add", inputs=2),
}
OPS = tuple(_OPS)


class Scan:
    """The state of a scan: the dtypes (`kinds`) of its numbers, their start (`begin`), and the
    update by an element and its index (`move`). The last number of the state is the result."""

    def __init__(self, op: str, dtype: DType) -> None:
        self.dtype = dtype
        self.combine, self.is_index, self.inputs = _OPS[op]
        wide = dtypes.float64 if dtype.is_float else dtype
        own = dtypes.float32 if dtype.itemsize == 2 and dtype.is_float else dtype
        self.wide = own if self.is_index else wide
        self.kinds = (self.wide, dtypes.int64) if self.is_index else (self.wide,)
        self.out = dtypes.int64 if self.is_index else dtype

    def begin(self, c: VectorEmitter) -> State:
        if not self.is_index:
            return [intrinsics.constant(self.wide, identity(self.combine, self.wide))]
        worst = identity(self.combine, self.wide)
        return [intrinsics.constant(self.wide, worst), Value("i64", "0")]

    def move(self, c: VectorEmitter, state: State, given: Sequence[Value], position: Int) -> State:
        x, *rest = (intrinsics.cast(c, v, self.dtype, self.wide) for v in given)
        if rest:  # y = b + a y, except the first, which is b whatever a is
            product = intrinsics.apply(c, "mul", self.wide, [x, state[0]])
            y = intrinsics.apply(c, "add", self.wide, [rest[0], product])
            return [c.select(c.compare_ints("eq", position, 0), rest[0], y)]
        if not self.is_index:
            return [intrinsics.apply(c, self.combine, self.wide, [state[0], x])]
        best, found = state
        better = self.better(c, x, best)
        return [c.select(better, x, best), c.select(better, c.i64(position), found)]

    def better(self, c: VectorEmitter, x: Value, best: Value) -> Value:
        """As good or better; NaN always is, and after a NaN only another NaN is."""
        if not self.wide.is_float:
            sign = "s" if self.wide.kind == "int" else "u"
            return c.compare(sign + ("ge" if self.combine == "max" else "le"), x, best)
        good = c.compare("oge" if self.combine == "max" else "ole", x, best)
        return c.op("or", good, c.compare("uno", x, x))


class _ScanWriter:
    """Writes one scan of a contiguous array, viewed as (outer, n, inner)."""

    def __init__(self, x: ArrayLayout, axis: int, scan: Scan, reverse: bool) -> None:
        self.scan, self.reverse = scan, reverse
        self.outer, self.n = size_of(x.shape[:axis]), x.shape[axis]
        self.inner = size_of(x.shape[axis + 1 :])
        self.code = VectorEmitter(dtypes.float64, 8)
        self.p_out = self.code.argument(OUT)
        self.p_in = [self.code.argument(X + j) for j in range(scan.inputs)]

    def position(self, i: Int) -> Int:
        """The index along the axis in iteration i."""
        return self.code.minus(self.n - 1, i) if self.reverse else i

    def load(self, at: Int) -> list[Value]:
        c, dtype = self.code, self.scan.dtype
        kind = intrinsics.memory_type(dtype)
        addresses = [c.at(pointer, at, kind) for pointer in self.p_in]
        return [c.emit(kind, f"load {kind}, ptr {a.name}") for a in addresses]

    def store(self, state: State, at: Int) -> None:
        c, out = self.code, self.scan.out
        value = intrinsics.cast(c, state[-1], self.scan.kinds[-1], out)
        kind = intrinsics.memory_type(out)
        c.lines.append(f"  store {kind} {value.name}, ptr {c.at(self.p_out, at, kind).name}")

    def rows(self, first: Int, count: int) -> None:
        """Scans of `count` neighbouring rows at once."""
        c, width = self.code, len(self.scan.kinds)
        begin = [v for _ in range(count) for v in self.scan.begin(c)]
        with c.loop(0, self.n, begin) as loop:
            position = self.position(loop.index)
            made: State = []
            for k in range(count):
                at = c.add(c.mul(c.add(first, k), self.n), position)
                held = loop.values[k * width : (k + 1) * width]
                made += self.scan.move(c, held, self.load(at), position)
                self.store(made[-width:], at)
            loop.next = made

    def along_last(self) -> Work:
        c = self.code
        rows_at_once = min(_ROWS_AT_ONCE, self.outer)
        groups = self.outer // rows_at_once
        each = max(1, _MIN_BLOCK // (rows_at_once * self.n))
        blocks = -(-groups // each)
        rest = self.outer - groups * rows_at_once
        with c.loop(*c.blocks) as block:
            start = c.mul(block.index, each)
            end = c.least(c.add(start, each), groups)
            with c.loop(start, end) as group:
                self.rows(c.mul(group.index, rows_at_once), rows_at_once)
            if rest:  # the last block has the remaining rows
                first = c.add(c.mul(end, rows_at_once), 0)
                last = c.compare_ints("eq", end, groups)
                many = c.select(last, c.i64(rest), c.i64(0))
                with c.loop(0, many) as row:
                    self.rows(c.add(first, row.index), 1)
        return Work((c.step(blocks),))

    def across(self) -> Work:
        """Scans elements behind the axis by vectors, with their states in the scratch memory."""
        c, kinds = self.code, self.scan.kinds
        pieces = -(-self.inner // _PIECE)
        blocks = self.outer * pieces
        stride = 8 * _PIECE * len(kinds)
        scratch = c.argument(X + self.scan.inputs)
        with c.loop(*c.blocks) as block:
            before, piece = c.divmod(block.index, pieces)
            start = c.mul(piece, _PIECE)
            count = c.least(c.minus(self.inner, start), _PIECE)
            own = c.at(scratch, c.mul(block.index, stride), "i8")
            held = [c.at(own, 8 * _PIECE * j, "i8") for j in range(len(kinds))]
            with c.loop(0, count) as column:
                self.keep(self.scan.begin(c), held, column.index)
            with c.loop(0, self.n) as row:
                position = self.position(row.index)
                line = c.add(c.mul(c.add(c.mul(before, self.n), position), self.inner), start)
                with c.loop(0, count) as column:
                    at = c.add(line, column.index)
                    state = self.scan.move(
                        c, self.held(held, column.index), self.load(at), position
                    )
                    self.keep(state, held, column.index)
                    self.store(state, at)
        return Work((c.step(blocks)._replace(vectorise=True),), blocks * stride)

    def held(self, pointers: Sequence[Value], at: Int) -> State:
        c = self.code
        made = []
        for kind, pointer in zip(self.scan.kinds, pointers, strict=True):
            type_ = intrinsics.memory_type(kind)
            made.append(c.emit(type_, f"load {type_}, ptr {c.at(pointer, at, type_).name}"))
        return made

    def keep(self, state: State, pointers: Sequence[Value], at: Int) -> None:
        c = self.code
        for value, kind, pointer in zip(state, self.scan.kinds, pointers, strict=True):
            type_ = intrinsics.memory_type(kind)
            c.lines.append(f"  store {type_} {value.name}, ptr {c.at(pointer, at, type_).name}")


def serves(dtype: DType) -> bool:
    """Whether there are kernels for this dtype."""
    return not dtype.is_complex and dtype is not dtypes.bool_


@lru_cache(maxsize=1024)
def scan(op: str, x: ArrayLayout, axis: int, reverse: bool = False) -> Work:
    """args: out, x (a and b of a recurrence), all contiguous, not empty."""
    writer = _ScanWriter(x, axis, Scan(op, x.dtype), reverse)
    return writer.along_last() if writer.inner == 1 else writer.across()
