"""Accumulators of reductions: their dtype, how they load an element, combine and are finalized."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from everygrad import dtypes
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Emitter, Value as Reg, literal
from everygrad.compiler import accumulate
from everygrad.compiler.ir import Value
from everygrad.core.shapes import size_of
from everygrad.dtypes import DType

_HALVES = (dtypes.float16, dtypes.bfloat16)


class Accumulator:
    """The accumulator of a sum, float32 for half floats. `dtype` is the accumulator's."""

    def __init__(self, combine: str, source: DType) -> None:
        self.reduction = combine  # "add", "max", "min", "and" or "or"
        self.source = source
        self.wide = dtypes.float32 if source in _HALVES else source
        self.dtype = self.accumulator_dtype()
        self.type = intrinsics.register_type(self.dtype)
        self.itemsize = self.dtype.itemsize
        self.start = self.identity()

    def accumulator_dtype(self) -> DType:
        return self.wide

    def identity(self) -> str:
        """The identity of the reduction, as a literal."""
        kind = self.source if self.source is dtypes.bool_ else self.dtype
        return literal(self.type, accumulate.identity(self.reduction, kind)).name

    def load(self, e: Emitter, x: Reg) -> Reg:
        """An element converted to what `step` adds."""
        return intrinsics.cast(e, x, self.source, self.wide)

    def step(self, e: Emitter, held: Reg, new: Reg) -> Reg:
        # reassoc: many partial sums, one a vector lane, which is also more accurate
        return e.op("fadd reassoc" if self.wide.is_float else "add", held, new)

    @property
    def is_widened(self) -> bool:
        """Whether accumulators are combined in a wider one."""
        return self.reduction == "add" and self.type == "float"

    @property
    def outer(self) -> tuple[str, str]:
        """Type and identity of the state that combines the accumulators of one long row."""
        if not self.is_widened:
            return self.type, self.start
        return "double", literal("double", accumulate.identity("add", dtypes.float64)).name

    def combine(self, e: Emitter, held: Reg, total: Reg) -> Reg:
        """The combined state with one more accumulator."""
        if not self.is_widened:
            return self.step(e, held, total)
        return e.op("fadd", held, e.cast("fpext", total, "double"))

    def narrow(self, e: Emitter, held: Reg) -> Reg:
        """The combined state rounded to the accumulator's type."""
        return e.cast("fptrunc", held, self.type) if self.is_widened else held

    def finalize(self, e: Emitter, total: Reg, v: Value) -> Reg:
        """The result of the reduction v: divided by the count for a mean, cast to its dtype."""
        if v.op.mean:
            shape = v.args[0].shape
            count = size_of(tuple(shape[a] for a in v.params["axes"]))
            total = e.op("fdiv", total, literal(self.type, float(count)))
        return intrinsics.cast(e, total, self.wide, v.dtype)


class LongSum(Accumulator):
    """Sums of many float32 numbers in float64, since float32 would lose digits."""

    def __init__(self, combine: str, source: DType) -> None:
        super().__init__(combine, source)
        self.wide = self.dtype = dtypes.float64
        self.type, self.itemsize = "double", 8
        self.start = self.identity()


class Extreme(Accumulator):
    """max and min. Floats are mapped to integers of the same order, NaN to the winning end: LLVM
    vectorises reductions of integers, but not those of floats that must propagate NaN."""

    def accumulator_dtype(self) -> DType:
        if not self.wide.is_float:
            return self.wide
        return dtypes.int64 if self.wide.bits == 64 else dtypes.int32

    @property
    def winner(self) -> int:
        top = 2 ** (self.dtype.bits - 1)
        return top - 1 if self.reduction == "max" else -top

    def flipped(self, e: Emitter, word: Reg) -> Reg:
        """Bits of floats to integers in the same order, and back."""
        bits = self.dtype.bits
        sign = e.op("ashr", word, literal(word.type, bits - 1))
        mask = e.op("and", sign, literal(word.type, 2 ** (bits - 1) - 1))
        return e.op("xor", word, mask)

    def load(self, e: Emitter, x: Reg) -> Reg:
        x = super().load(e, x)
        if not self.wide.is_float:
            return x
        word = self.flipped(e, e.cast("bitcast", x, self.type))
        return e.select(e.compare("uno", x, x), literal(self.type, self.winner), word)

    def step(self, e: Emitter, held: Reg, new: Reg) -> Reg:
        prefix = "u" if self.dtype.kind == "uint" else "s"
        return e.intrinsic(prefix + self.reduction, held, new)

    def finalize(self, e: Emitter, total: Reg, v: Value) -> Reg:
        if self.wide.is_float:
            register = intrinsics.register_type(self.wide)
            total = e.cast("bitcast", self.flipped(e, total), register)
        return intrinsics.cast(e, total, self.wide, v.dtype)


class Logical(Accumulator):
    """all and any, and max and min of bools, in bytes."""

    def accumulator_dtype(self) -> DType:
        return dtypes.uint8

    def load(self, e: Emitter, x: Reg) -> Reg:
        return e.cast("zext", x, "i8")

    def step(self, e: Emitter, held: Reg, new: Reg) -> Reg:
        return e.op("and" if self.reduction in ("and", "min") else "or", held, new)

    def finalize(self, e: Emitter, total: Reg, v: Value) -> Reg:
        return e.compare("ne", total, literal("i8", 0))


@lru_cache(maxsize=256)
def _accumulator(combine: str, source: DType) -> Accumulator:
    kinds: dict[str, Any] = {"add": Accumulator, "max": Extreme, "min": Extreme}
    kind = Logical if source is dtypes.bool_ else kinds[combine]
    made: Accumulator = kind(combine, source)
    return made


@lru_cache(maxsize=16)
def long_sum(source: DType) -> Accumulator:
    """A sum in float64."""
    return LongSum("add", source)


def accumulator_of(v: Value) -> Accumulator:
    """The accumulator of a reduction."""
    return _accumulator(v.op.combine, v.args[0].dtype)
