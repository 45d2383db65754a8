"""How elements are laid out in buffers of 32-bit words, and how WGSL reads and writes them.

Buffers hold what NumPy's memory holds: four bools or 8-bit integers to a word, two 16-bit numbers,
one 32-bit number, half a 64-bit integer, one part of a complex number. In a kernel's registers
small integers are i32 and u32, floats of 16 bits are f32, 64-bit integers and complex numbers are
pairs of words.
"""

from __future__ import annotations

from typing import NamedTuple

from everygrad import dtypes
from everygrad.dtypes import DType
from everygrad.errors import DtypeError


class Layout(NamedTuple):
    """One dtype: `kind` chooses the functions of a renderer's table."""

    kind: str  # b, i, u, f, l (int64), ul (uint64), c (complex64)
    register: str  # the WGSL type
    per_word: int  # elements in one word
    words: int  # words of one element
    load: str  # of buffer {b} at element {i}
    bits: str  # the element {v} as the low bits of a word


_EIGHT = "({b}[{i} >> 2u] >> (({i} & 3u) * 8u))"
_SIXTEEN = "({b}[{i} >> 1u] >> (({i} & 1u) * 16u))"
_PAIR = "vec2<u32>({b}[2u * {i}], {b}[2u * {i} + 1u])"

LAYOUTS: dict[DType, Layout] = {
    dtypes.bool_: Layout("b", "bool", 4, 1, f"({_EIGHT} & 255u) != 0u", "select(0u, 1u, {v})"),
    dtypes.int8: Layout(
        "i", "i32", 4, 1, f"bitcast<i32>({_EIGHT} << 24u) >> 24u", "bitcast<u32>({v}) & 255u"
    ),
    dtypes.uint8: Layout("u", "u32", 4, 1, f"{_EIGHT} & 255u", "{v} & 255u"),
    dtypes.int16: Layout(
        "i", "i32", 2, 1, f"bitcast<i32>({_SIXTEEN} << 16u) >> 16u", "bitcast<u32>({v}) & 65535u"
    ),
    dtypes.uint16: Layout("u", "u32", 2, 1, f"{_SIXTEEN} & 65535u", "{v} & 65535u"),
    dtypes.float16: Layout("f", "f32", 2, 1, f"half_f({_SIXTEEN} & 65535u)", "half_bits({v})"),
    dtypes.bfloat16: Layout("f", "f32", 2, 1, f"bits_f({_SIXTEEN} << 16u)", "brain_bits({v})"),
    dtypes.int32: Layout("i", "i32", 1, 1, "bitcast<i32>({b}[{i}])", "bitcast<u32>({v})"),
    dtypes.uint32: Layout("u", "u32", 1, 1, "{b}[{i}]", "{v}"),
    dtypes.float32: Layout("f", "f32", 1, 1, "bitcast<f32>({b}[{i}])", "bitcast<u32>({v})"),
    dtypes.int64: Layout("l", "vec2<u32>", 1, 2, _PAIR, ""),
    dtypes.uint64: Layout("ul", "vec2<u32>", 1, 2, _PAIR, ""),
    dtypes.complex64: Layout("c", "vec2<u32>", 1, 2, _PAIR, ""),
}
_CURES = {"float": "float32", "complex": "complex64"}


def layout(dtype: DType) -> Layout:
    """The layout of a dtype; an error for others says what to use."""
    found = LAYOUTS.get(dtype)
    if found is None:
        raise DtypeError(
            f"webgpu: {dtype} does not exist on this device; use {_CURES[dtype.kind]}: "
            f"x.astype('{_CURES[dtype.kind]}')"
        )
    return found


_RAW = {
    dtypes.float16: dtypes.uint16,
    dtypes.bfloat16: dtypes.uint16,
    dtypes.float32: dtypes.uint32,
}


def raw(dtype: DType) -> DType:
    """The dtype to copy elements as: a NaN may change in a float register."""
    return _RAW.get(dtype, dtype)


def load(dtype: DType, buffer: str, index: str) -> str:
    """The element at `index`, which must be a name: it may be repeated."""
    return layout(dtype).load.format(b=buffer, i=index)


def store(dtype: DType, count: str) -> str:
    """The body of main: each thread stores one word (or 64-bit element) from `element(e)`."""
    lay = layout(dtype)
    if lay.words == 2:
        return (
            f"  if (t >= {count}) {{ return; }}\n  let v = element(t);\n"
            f"  out[2u * t] = v.x;\n  out[2u * t + 1u] = v.y;\n"
        )
    if lay.per_word == 1:
        return (
            f"  if (t >= {count}) {{ return; }}\n  let v = element(t);\n"
            f"  out[t] = {lay.bits.format(v='v')};\n"
        )
    each, width = lay.per_word, 32 // lay.per_word
    return (
        f"  if (t * {each}u >= {count}) {{ return; }}\n  var word = 0u;\n"
        f"  for (var j = 0u; j < {each}u; j = j + 1u) {{\n    let e = t * {each}u + j;\n"
        f"    if (e < {count}) {{\n      let v = element(e);\n"
        f"      word = word | (({lay.bits.format(v='v')}) << (j * {width}u));\n    }}\n  }}\n"
        f"  out[t] = word;\n"
    )


def byte_size(dtype: DType, count: int) -> int:
    """The bytes of `count` elements, rounded up to whole words."""
    layout(dtype)
    return -(-dtype.itemsize * count // 4) * 4


def thread_count(dtype: DType, count: int) -> int:
    """The threads that `store` needs."""
    return -(-count // layout(dtype).per_word)
