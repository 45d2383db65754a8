"""Branch-free binary search in sorted rows, as native work."""

from __future__ import annotations

from functools import lru_cache

from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Emitter, Value, engine, literal
from everygrad.backends.cpu.llvm.loop_writer import LoopWriter
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work
from everygrad.compiler.thresholds import edge

_GRAIN = edge(__name__, "_GRAIN", 1 << 13, "elements")  # values of a block


def _before(e: Emitter, x: ArrayLayout, there: Value, value: Value, right: bool) -> Value:
    """Whether an element sorts before a value; NaN counts as the largest."""
    if not x.dtype.is_float:
        sign = "s" if x.dtype.kind == "int" else "u"
        return e.compare(sign + ("le" if right else "lt"), there, value)
    odd = e.compare("uno", value, value)
    smaller = e.compare("ole" if right else "olt", there, value)
    if not right:
        odd = e.op("and", odd, e.compare("ord", there, there))
    return e.op("or", smaller, odd)


def _count_before(w: LoopWriter, x: ArrayLayout, line: str, value: Value, right: bool) -> Value:
    """How many elements of a row sort before a value, found bit by bit from the highest."""
    e, n = w.e, x.shape[1]
    kind = intrinsics.memory_type(x.dtype)
    count = literal("i64", 0)
    for bit in reversed(range(n.bit_length())):
        tried = e.op("add", count, literal("i64", 1 << bit))
        last = e.op("sub", w.smallest(tried, n), literal("i64", 1))
        there = w.load_raw(w.indexed(line, last, kind), kind, True)
        fits = e.compare("sle", tried, literal("i64", n))
        better = e.op("and", fits, _before(e, x, there, value, right))
        count = e.select(better, tried, count)
    return count


@lru_cache(maxsize=1024)
def searchsorted(x: ArrayLayout, values: ArrayLayout, right: bool) -> Work:
    """Insertion indices (count, m), int64, of values (count, m) in rows (count, n); args: out, x,
    values, all contiguous, of one dtype that is not a half float."""
    (rows, n), m = x.shape, values.shape[1]
    kind = intrinsics.memory_type(x.dtype)
    pieces = -(-m // _GRAIN)
    w = LoopWriter()
    w.lines.append("entry:")
    w.arguments(3)
    with w.counted("b", "%lo", "%hi") as block:
        row, piece = w.indices(block, (rows, pieces))
        start = w.e.op("mul", piece, literal("i64", _GRAIN))
        end = w.smallest(w.e.op("add", start, literal("i64", _GRAIN)), m)
        line = w.indexed("%p1", w.e.op("mul", row, literal("i64", n)), kind)
        own = w.e.op("mul", row, literal("i64", m))
        with w.counted("i", start.name, end.name, parallel=True) as i:
            at = w.e.op("add", own, i)
            value = w.load_raw(w.indexed("%p2", at, kind), kind, True)
            count = _count_before(w, x, line, value, right)
            w.store_raw(count, w.indexed("%p0", at, "i64"), True)
    w.lines.append("  ret void")
    return Work((Step(w.module(engine().attributes), rows * pieces),))
