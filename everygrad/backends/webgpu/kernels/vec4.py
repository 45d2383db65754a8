"""Elementwise kernels on contiguous arrays: a thread loads and stores vec4s.

The last thread may go beyond the end: blocks are multiples of four words, and no other array uses
the words after the last element.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from everygrad import dtypes
from everygrad.backends.webgpu.source.render import MAIN, THREAD, body, slot, with_library
from everygrad.backends.webgpu.source.word_layout import layout
from everygrad.compiler.expr import Program
from everygrad.core.shapes import Shape
from everygrad.dtypes import DType

_PARTS = "xyzw"


def serves(
    program: Program, given: Sequence[DType], offsets: Sequence[int], strides: Sequence[Shape]
) -> bool:
    """Whether every operand is one number or contiguous from a multiple of four on, in words (or in
    bools, four to a word)."""
    for dtype in (program.dtype, *given):
        if dtype.itemsize != 4 and dtype is not dtypes.bool_:
            return False
    for offset, steps in zip(offsets, strides, strict=True):
        if len(steps) != 1 or steps[0] not in (0, 1) or (steps[0] == 1 and offset % 4):
            return False
    return True


def _read(k: int, dtype: DType, buffer: str, one: bool) -> str:
    """Lines that define v{k}, the four values of input k, or its only one."""
    at = slot(1 + k)
    register = layout(dtype).register
    if dtype is dtypes.bool_:
        word = f"({at} >> 2u)" if one else f"({at} >> 2u) + t"
        lines = f"  let w{k} = {word};\n  let b{k} = {buffer}[w{k} >> 2u][w{k} & 3u];\n"
        if one:
            return lines + f"  let v{k} = ((b{k} >> (({at} & 3u) * 8u)) & 255u) != 0u;\n"
        bits = ", ".join(f"(b{k} & {255 << 8 * i}u) != 0u" for i in range(4))
        return lines + f"  let v{k} = vec4<bool>({bits});\n"
    if one:
        return f"  let v{k} = bitcast<{register}>({buffer}[{at} >> 2u][{at} & 3u]);\n"
    return f"  let v{k} = bitcast<vec4<{register}>>({buffer}[({at} >> 2u) + t]);\n"


@lru_cache(maxsize=4096)
def kernel(
    program: Program, given: tuple[DType, ...], bindings: tuple[int, ...], ones: tuple[bool, ...]
) -> str:
    """Uniform: the count, then each input's offset. `ones` says which inputs are one number."""
    used = sorted({inst.value for inst in program.insts if inst.fn == "input"})
    names = ", ".join(f"x{k}: {layout(given[k]).register}" for k in used)
    lines = body(program, {k: f"x{k}" for k in used}, "result")
    result = layout(program.dtype)
    text = f"fn one({names}) -> {result.register} {{\n" + "\n".join(lines)
    text += "\n  return result;\n}\n" + MAIN + THREAD
    text += f"  if (t * 4u >= {slot(0)}) {{ return; }}\n"
    for k in used:
        text += _read(k, given[k], f"a{bindings[k]}", ones[k])
    for i, part in enumerate(_PARTS):
        args = ", ".join(f"v{k}" if ones[k] else f"v{k}.{part}" for k in used)
        text += f"  let r{i} = one({args});\n"
    if program.dtype is dtypes.bool_:
        word, values = "u32", [f"select(0u, {1 << 8 * i}u, r{i})" for i in range(4)]
        text += f"  out[t] = {' | '.join(values)};\n}}\n"
    else:
        word, values = "vec4<u32>", [result.bits.format(v=f"r{i}") for i in range(4)]
        text += f"  out[t] = vec4<u32>({', '.join(values)});\n}}\n"
    count = max(bindings) + 1
    head = "".join(
        f"@group(0) @binding({i}) var<storage, read> a{i}: array<vec4<u32>>;\n"
        for i in range(count)
    )
    head += f"@group(0) @binding({count}) var<storage, read_write> out: array<{word}>;\n"
    head += f"struct Params {{ v: array<vec4<u32>, {-(-(1 + len(given)) // 4)}> }}\n"
    head += f"@group(0) @binding({count + 1}) var<uniform> P: Params;\n"
    return head + with_library(text)
