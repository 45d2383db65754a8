"""Tiles and panels of matrices that hold 16-bit floats; sums run in float32 and are rounded once.

Processors with dot products of bfloat16 (`VectorRegisters.has_bf16_dots`) multiply pairs: a step of
the sum is two neighbours along k, which a panel holds side by side. Elsewhere, and for float16,
packing widens elements to float32, and the tiles are those of float32.

A dot product of pairs treats subnormal numbers as 0, in its operands and in its sums, and rounds
the two products of a pair by itself (to nearest even, the second product first). Its error is that
of a float32 sum, far below the rounding of the result; numbers below 2**-126 are lost. The
libraries that other frameworks use do the same.
"""

from __future__ import annotations

from everygrad.backends.cpu.gemm.gemm_tile import TileEmitter, VectorRegisters
from everygrad.backends.cpu.llvm.bf16_vectors import rounded
from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType, bfloat16, float16, float32

HALVES = (float16, bfloat16)
PAIR = edge(__name__, "PAIR", 2, "size")  # terms of the sum in one dot product


class WideningEmitter(TileEmitter):
    """A and B hold 16-bit floats, which packing widens to float32."""

    def __init__(self, stored: DType, made: DType, target: VectorRegisters) -> None:
        super().__init__(float32, target)
        self.stored_size = stored.itemsize
        self.stored = "half" if stored is float16 else "i16"
        self.made = "float" if made is float32 else self.stored
        self.half_suffix = "f16" if stored is float16 else "i16"
        self.short_vector = f"<{self.lanes} x {self.stored}>"
        self.int_vector = f"<{self.lanes} x i32>"

    def load_stored(self, pointer: str, count: int) -> Value:
        """The first `count` lanes as they are stored, zeros in the others."""
        if count == self.lanes:
            text = f"load {self.short_vector}, ptr {pointer}, align 2"
            return self.emit(self.short_vector, text)
        return self.call(
            f"llvm.masked.load.v{self.lanes}{self.half_suffix}.p0",
            self.short_vector,
            Value("ptr", pointer),
            Value("i32", "2"),
            self.mask(count),
            Value(self.short_vector, "zeroinitializer"),
        )

    def widened(self, value: Value) -> Value:
        if self.stored == "half":
            return self.cast("fpext", value, self.vector)
        shift = Value(self.int_vector, f"<{', '.join(['i32 16'] * self.lanes)}>")
        high = self.op("shl", self.cast("zext", value, self.int_vector), shift)
        return self.cast("bitcast", high, self.vector)

    def step_of_row(self, pointer: str, along_k: int, count: int, half: bool) -> Value:
        return self.widened(self.load_stored(pointer, count))

    def step_of_one(self, pointer: str, along_k: int, half: bool) -> Value:
        one = self.emit(self.stored, f"load {self.stored}, ptr {pointer}, align 2")
        if self.stored == "half":
            return self.cast("fpext", one, "float")
        high = self.op("shl", self.cast("zext", one, "i32"), Value("i32", "16"))
        return self.cast("bitcast", high, "float")

    def few_steps(self, pointer: str, count: int) -> Value:
        part = f"<{count} x {self.stored}>"
        return self.emit(part, f"load {part}, ptr {pointer}, align 2")

    def store_result(self, value: Value, pointer: str, count: int) -> None:
        if self.made == "float":
            self.store(value, pointer, count)
            return
        short = self.narrowed(value)
        if count == self.lanes:
            self.lines.append(f"  store {short.type} {short.name}, ptr {pointer}, align 2")
            return
        name, mask = f"llvm.masked.store.v{self.lanes}{self.half_suffix}.p0", self.mask(count)
        self.declarations.add(f"declare void @{name}({short.type}, ptr, i32, {mask.type})")
        given = f"{short.type} {short.name}, ptr {pointer}, i32 2, {mask.type} {mask.name}"
        self.lines.append(f"  call void @{name}({given})")

    def narrowed(self, value: Value) -> Value:
        """Rounded to the nearest, ties to even; NaN stays NaN."""
        if self.stored == "half":
            return self.cast("fptrunc", value, self.short_vector)
        return rounded(self, value, self.lanes)


class PairEmitter(WideningEmitter):
    """A step is the dot product of a pair; a pair is written as a float, 32 bits of whatever."""

    terms = PAIR

    def __init__(self, made: DType, target: VectorRegisters, terms: int) -> None:
        super().__init__(bfloat16, made, target)
        self.odd = terms % PAIR == 1
        self.pairs = f"<{2 * self.lanes} x bfloat>"

    def step_of_row(self, pointer: str, along_k: int, count: int, half: bool) -> Value:
        first = self.load_stored(pointer, count)
        second = Value(self.short_vector, "zeroinitializer")
        if not half:
            second = self.load_stored(self.at(pointer, along_k, self.stored), count)
        order = [lane for pair in range(self.lanes) for lane in (pair, self.lanes + pair)]
        return self.cast("bitcast", self.shuffle(first, second, order), self.vector)

    def step_of_one(self, pointer: str, along_k: int, half: bool) -> Value:
        pair = self._stored_bits(pointer)
        if not half:
            second = self._stored_bits(self.at(pointer, along_k, self.stored))
            pair = self.op("or", pair, self.op("shl", second, Value("i32", "16")))
        return self.cast("bitcast", pair, "float")

    def _stored_bits(self, pointer: str) -> Value:
        one = self.emit(self.stored, f"load {self.stored}, ptr {pointer}, align 2")
        return self.cast("zext", one, "i32")

    def few_steps(self, pointer: str, count: int) -> Value:
        return TileEmitter.few_steps(self, pointer, count)

    def widened(self, value: Value) -> Value:
        return value

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        both = [self.cast("bitcast", v, self.pairs) for v in (a, b)]
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}"
        return self.call(name, self.vector, c, *both)
