"""Epilogues, and how a product's results are stored.

A product's kernel passes every sum to `results(e, value)`, which the epilogue defines: the sum in
the product's dtype, or what a group of fused values computes from it. Results are stored as vec4
where the rows are multiples of four.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from everygrad.backends.webgpu.source.word_layout import layout
from everygrad.dtypes import DType

_VEC4_WORDS = {1: "vec4<u32>", 2: "vec2<u32>", 4: "u32"}  # of four elements, by elements in a word


class Epilogue(NamedTuple):
    """`text` defines `struct Results { r0: ..., r1: ... }`, a register for each output, and
    `fn results(e: u32, value: f32) -> Results` for element e. It reads `inputs` more buffers of
    words, whose names follow those of the product: a{bindings}, a{bindings + 1}, ..."""

    text: str
    inputs: int
    outputs: tuple[DType, ...]


@lru_cache
def plain(dtype: DType) -> Epilogue:
    """The sum itself, rounded to its dtype."""
    text = (
        f"struct Results {{ r0: {layout(dtype).register} }}\n"
        "fn results(e: u32, value: f32) -> Results {\n"
        "  return Results(value);\n}\n"
    )
    return Epilogue(text, 0, (dtype,))


def fits_vec4(outputs: Sequence[DType]) -> bool:
    """Whether four elements of each output fit a vec4 of words."""
    return all(layout(dtype).words == 1 for dtype in outputs)


def bindings(words: Sequence[str], epilogue: Epilogue, params: int, vec4: bool) -> str:
    """Declarations: what is read as arrays of `words`, then by the epilogue; results; uniform."""
    lines = [
        f"@group(0) @binding({i}) var<storage, read> a{i}: array<{word}>;\n"
        for i, word in enumerate((*words, *("u32",) * epilogue.inputs))
    ]
    for q, dtype in enumerate(epilogue.outputs):
        word = _VEC4_WORDS[layout(dtype).per_word] if vec4 else "u32"
        at = len(lines)
        lines.append(
            f"@group(0) @binding({at}) var<storage, read_write> {_out(q)}: array<{word}>;\n"
        )
    at = len(lines)
    lines.append(f"struct Params {{ v: array<vec4<u32>, {-(-params // 4)}> }}\n")
    lines.append(f"@group(0) @binding({at}) var<uniform> P: Params;\n")
    return "".join(lines)


def _out(q: int) -> str:
    return "out" if q == 0 else f"out{q}"


def _word(dtype: DType, parts: Sequence[str]) -> str:
    """Four registers packed into words as they are in memory."""
    bits = [f"({layout(dtype).bits.format(v=part)})" for part in parts]
    each = layout(dtype).per_word
    width = 32 // each
    words = [
        " | ".join(f"({b} << {width * i}u)" if i else b for i, b in enumerate(bits[at : at + each]))
        for at in range(0, 4, each)
    ]
    return words[0] if each == 4 else f"{_VEC4_WORDS[each]}({', '.join(words)})"


def stored(epilogue: Epilogue, value: str, at: str, count: str, vec4: bool) -> str:
    """Lines that store the vec4 `value`, elements `at`.. of a row; `count` says how many of the
    four there are, where there may be fewer (with `vec4` there are always four)."""
    lines = [f"    let e = {at};\n    let v = {value};\n"]
    if vec4:
        lines += [f"    let q{i} = results(e + {i}u, v.{p});\n" for i, p in enumerate("xyzw")]
        for q, dtype in enumerate(epilogue.outputs):
            word = _word(dtype, [f"q{i}.r{q}" for i in range(4)])
            lines.append(f"    {_out(q)}[e >> 2u] = {word};\n")
        return "".join(lines)
    for i, p in enumerate("xyzw"):
        one = stored_one(epilogue, f"v.{p}", f"e + {i}u")
        lines.append(f"    if ({i}u < {count}) {{\n{one}    }}\n")
    return "".join(lines)


def stored_one(epilogue: Epilogue, value: str, at: str) -> str:
    """Lines that store one number as element `at`, which is a word of each output."""
    lines = [f"      let to = {at};\n      let q = results(to, {value});\n"]
    for q, dtype in enumerate(epilogue.outputs):
        bits = layout(dtype).bits.format(v=f"q.r{q}")
        lines.append(f"      {_out(q)}[to] = {bits};\n")
    return "".join(lines)
