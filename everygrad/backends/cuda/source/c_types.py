"""How elements of each dtype lie in memory and in registers, as CUDA C++ types.

Memory holds what NumPy's holds. In registers bools are bool, half floats are float; small integers
keep their own type, so that a cast wraps them as memory would.
"""

from __future__ import annotations

from typing import NamedTuple

from everygrad import dtypes
from everygrad.dtypes import DType


class Layout(NamedTuple):
    """One dtype; `kind` selects the form in a renderer's table."""

    kind: str  # b bool, i signed, u unsigned, f real, c complex
    register: str
    memory: str
    load: str = "{0}"  # the element {0} of memory as a register
    store: str = "{0}"  # and back
    word: str = ""  # integers: the unsigned type arithmetic wraps in


def _integer(kind: str, name: str, bits: int) -> Layout:
    return Layout(kind, name, name, word="u64" if bits == 64 else "u32")


LAYOUTS: dict[DType, Layout] = {
    dtypes.bool_: Layout("b", "bool", "u8", "({0} != 0)", "(u8)({0})"),
    dtypes.int8: _integer("i", "i8", 8),
    dtypes.int16: _integer("i", "i16", 16),
    dtypes.int32: _integer("i", "i32", 32),
    dtypes.int64: _integer("i", "i64", 64),
    dtypes.uint8: _integer("u", "u8", 8),
    dtypes.uint16: _integer("u", "u16", 16),
    dtypes.uint32: _integer("u", "u32", 32),
    dtypes.uint64: _integer("u", "u64", 64),
    dtypes.float16: Layout("f", "float", "u16", "half_f({0})", "half_bits({0})"),
    dtypes.bfloat16: Layout("f", "float", "u16", "brain_f({0})", "brain_bits({0})"),
    dtypes.float32: Layout("f", "float", "float"),
    dtypes.float64: Layout("f", "double", "double"),
    dtypes.complex64: Layout("c", "c64", "c64"),
    dtypes.complex128: Layout("c", "c128", "c128"),
}
HALVES = (dtypes.float16, dtypes.bfloat16)
# types that copy elements of so many bytes, whatever they mean
RAW = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "u128"}


def accumulator_dtype(dtype: DType) -> DType:
    """The dtype that a result is accumulated in."""
    return dtypes.float32 if dtype in HALVES else dtype
