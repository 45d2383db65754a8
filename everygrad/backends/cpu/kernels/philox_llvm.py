"""Philox 4x32-10 as a kernel for any number of blocks: four words of each, side by side."""

from __future__ import annotations

from functools import cache
from typing import Any

from everygrad.backends.cpu.llvm.compiler import Emitter, Value, engine, literal
from everygrad.backends.cpu.runtime.addresses import address_of
from everygrad.backends.cpu.runtime.parallel_for import spread
from everygrad.compiler.thresholds import edge
from everygrad.core.context import records

GRAIN = edge(__name__, "GRAIN", 1 << 12, "elements")  # blocks per task


def _product(e: Emitter, a: Value, multiplier: int) -> tuple[Value, Value]:
    """The high and the low word of a product."""
    wide = e.op("mul", e.cast("zext", a, "i64"), literal("i64", multiplier))
    high = e.op("lshr", wide, literal("i64", 32))
    return e.cast("trunc", high, "i32"), e.cast("trunc", wide, "i32")


def _rounds(e: Emitter, counter: Value, k0: Value, k1: Value) -> list[Value]:
    c0 = e.cast("trunc", counter, "i32")
    c1 = e.cast("trunc", e.op("lshr", counter, literal("i64", 32)), "i32")
    c2 = c3 = literal("i32", 0)
    known = records.by_name["philox"].constants
    (m0, m1), (w0, w1) = known["multipliers"], known["weyl"]
    for _ in range(known["rounds"]):
        (h0, l0), (h1, l1) = _product(e, c0, m0), _product(e, c2, m1)
        c0, c2 = e.op("xor", e.op("xor", h1, c1), k0), e.op("xor", e.op("xor", h0, c3), k1)
        c1, c3 = l1, l0
        k0, k1 = e.op("add", k0, literal("i32", w0)), e.op("add", k1, literal("i32", w1))
    return [c0, c1, c2, c3]


def source() -> str:
    """kernel(lo, hi, out, key, first): blocks [lo, hi), where block 0 has the counter `first`."""
    e = Emitter()
    e.lines += ["entry:", "  %start = inttoptr i64 %out to ptr", "  br label %loop", "loop:"]
    e.lines.append("  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]")
    key = Value("i64", "%key")
    k0 = e.cast("trunc", key, "i32")
    k1 = e.cast("trunc", e.op("lshr", key, literal("i64", 32)), "i32")
    words = _rounds(e, e.op("add", Value("i64", "%first"), Value("i64", "%i")), k0, k1)
    for j, word in enumerate(words):
        at = e.emit("ptr", f"getelementptr inbounds [4 x i32], ptr %start, i64 %i, i64 {j}")
        e.lines.append(f"  store i32 {word.name}, ptr {at.name}")
    e.lines += [
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %hi",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  ret void",
    ]
    head = "define void @draw(i64 %lo, i64 %hi, i64 %out, i64 %key, i64 %first)"
    return "\n".join([*sorted(e.declarations), f"{head} {engine().attributes} {{", *e.lines, "}\n"])


@cache
def _kernel() -> int:
    return engine().compile(source(), "draw")


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def draw(out: Any, blocks: int, key: int, first: int) -> None:
    """Fill the array `out` with `blocks` blocks of four words; key and first are 64 bits each."""
    spread(_kernel(), blocks, GRAIN, [address_of(out), _signed(key), _signed(first)])
