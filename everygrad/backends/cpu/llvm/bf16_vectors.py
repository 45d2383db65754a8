"""Vectors of float32 whose products are dot products of bfloat16 pairs, where a processor has them.

`gemm/half_tile` says what such a dot product rounds and what it takes for 0.
"""

from __future__ import annotations

from everygrad.backends.cpu.llvm.compiler import Emitter, Value
from everygrad.backends.cpu.llvm.vector_emitter import VectorEmitter, has_bf16_dots
from everygrad.dtypes import bfloat16, float32


class PairVectors(VectorEmitter):
    """Sums are float32; what is multiplied are pairs, twice as many elements in as many bits."""

    def __init__(self, lanes: int) -> None:
        super().__init__(float32, lanes)
        self.pairs = f"<{2 * lanes} x bfloat>"
        self.short = VectorEmitter(bfloat16, lanes)  # vectors of single elements, one a lane

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        both = [self.cast("bitcast", v, self.pairs) for v in (a, b)]
        return self.call(f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}", self.vector, c, *both)

    def interleaved(self, first: Value, second: Value) -> Value:
        """Two vectors of single elements as a vector of pairs."""
        order = [lane for k in range(self.lanes) for lane in (k, self.lanes + k)]
        picked = ", ".join(f"i32 {lane}" for lane in order)
        wide = f"<{2 * self.lanes} x i16>"
        both = f"{first.type} {first.name}, {second.type} {second.name}"
        mixed = self.emit(wide, f"shufflevector {both}, <{2 * self.lanes} x i32> <{picked}>")
        return self.cast("bitcast", mixed, self.vector)


def rounded(e: Emitter, value: Value, lanes: int) -> Value:
    """A vector of float32 as bfloat16, to the nearest, ties to even; NaN stays NaN.

    By one instruction where the processor has dot products, which takes subnormal numbers for 0 as
    they do."""
    if lanes == 16 and has_bf16_dots():
        made = e.call("llvm.x86.avx512bf16.cvtneps2bf16.512", "<16 x bfloat>", value)
        return e.cast("bitcast", made, "<16 x i16>")
    kind, mask = f"<{lanes} x i32>", f"<{lanes} x i1>"

    def many(number: int) -> Value:
        return Value(kind, f"<{', '.join([f'i32 {number}'] * lanes)}>")

    bits = e.cast("bitcast", value, kind)
    odd = e.op("and", e.op("lshr", bits, many(16)), many(1))
    high = e.op("lshr", e.op("add", e.op("add", bits, many(0x7FFF)), odd), many(16))
    number = e.emit(mask, f"fcmp ord {value.type} {value.name}, {value.name}")
    chosen = f"{kind} {high.name}, {kind} {many(0x7FC0).name}"
    picked = e.emit(kind, f"select {mask} {number.name}, {chosen}")
    return e.cast("trunc", picked, f"<{lanes} x i16>")
