"""The small kernels after a fused one: they combine partial sums, and pack elements into words.

Sixteen or more threads share an element's partial sums, so that none adds many.
"""

from __future__ import annotations

from everygrad.backends.webgpu.fused.accumulator import Accumulator, BlockReducer, ThreadGroup, put
from everygrad.backends.webgpu.fused.row_kernel import PartialSums, framed, packed_words
from everygrad.backends.webgpu.fused.thread_mapping import WORKGROUP, power_of_two
from everygrad.backends.webgpu.source.render import MAIN, THREAD, with_library
from everygrad.backends.webgpu.source.word_layout import layout
from everygrad.dtypes import DType


def _lanes(parts: PartialSums) -> int:
    """How many threads share an element."""
    few = 4 if parts.value.size >= WORKGROUP else 1
    width = layout(parts.value.dtype).per_word if parts.value.size > 1 else 1  # elements in a word
    return max(1, min(WORKGROUP // width, power_of_two(parts.many) // few))


def groups_of(parts: PartialSums) -> int:
    return -(-parts.value.size * _lanes(parts) // WORKGROUP)


def finish(parts: list[PartialSums], shared_bytes: int) -> tuple[str, int]:
    """The kernel that combines all these partial sums, and its workgroups: each final has some of
    them, in order."""
    accumulators = [Accumulator(p.value) for p in parts]
    reducer = BlockReducer(shared_bytes)
    lines, first = ["  let k = w.y * g.x + w.x;"], 0
    for i, (p, acc) in enumerate(zip(parts, accumulators, strict=True)):
        last = first + groups_of(p)
        lines.append(f"  if (k >= {first}u && k < {last}u) {{")
        lines += _one(p, acc, reducer, f"(k - {first}u)", f"out{i}")
        lines.append("  }")
        first = last
    functions = {f.function: f.define() for f in accumulators}
    text = "".join(functions.values()) + reducer.declared() + MAIN + "\n".join(lines) + "\n}\n"
    writes = [(f"out{i}", "u32") for i in range(len(parts))]
    return framed([("scratch", "u32")], writes) + with_library(text), first


def _one(
    p: PartialSums, acc: Accumulator, reducer: BlockReducer, group: str, out: str
) -> list[str]:
    """Lines of the workgroups that compute one final."""
    lanes, size = _lanes(p), p.value.size
    width = WORKGROUP // lanes
    index = f"{p.start}u + (p / {p.inner}u) * {p.outer}u + (p % {p.inner}u) * {p.step}u"
    lines = [
        f"  let x = l % {width}u;",
        f"  let y = l / {width}u;",
        f"  let e = {group} * {width}u + x;",
        f"  var sum: {acc.register} = {acc.identity};",
        f"  if (e < {size}u) {{ for (var p = y; p < {p.many}u; p = p + {lanes}u) {{",
        f"    let at = {index} + e * {p.each}u;",
        f"    let one: {acc.register} = {acc.load_partial('scratch', 'at')};",
        f"    sum = {acc.combine(['sum', 'one'])};",
        "  } }",
    ]
    name = "sum"
    if lanes > 1:
        lines += reducer.block_reduce([acc], ["sum"], ThreadGroup("y", lanes, "x", width))
        name = "all_sum"
    dtype = p.value.dtype
    lines.append(f"  let made: {layout(dtype).register} = {acc.finalize(name)};")
    if layout(dtype).per_word == 1 or size == 1:
        return [*lines, f"  if (y == 0u && e < {size}u) {{", *put(dtype, out, "e", "made"), "  }"]
    return [*lines, *_packed(dtype, reducer, out, size)]


def _packed(dtype: DType, reducer: BlockReducer, out: str, size: int) -> list[str]:
    """Lines in which the first of neighbouring threads stores all their elements in one word."""
    each, bits = layout(dtype).per_word, 32 // layout(dtype).per_word
    reducer.used = max(reducer.used, 1)
    word = " | ".join(f"(part0[l + {i}u] << {bits * i}u)" for i in range(each))
    return [
        "  workgroupBarrier();",
        f"  part0[l] = select(0u, {packed_words(dtype, ['made'])[0]}, e < {size}u);",
        "  workgroupBarrier();",
        f"  if (y == 0u && e < {size}u && e % {each}u == 0u) {{ {out}[e / {each}u] = {word}; }}",
    ]


def pack(dtype: DType, count: int) -> tuple[str, int]:
    """The kernel that packs elements that were stored one to a word, and its workgroups."""
    each, width = layout(dtype).per_word, 32 // layout(dtype).per_word
    words = -(-count // each)
    text = MAIN + THREAD + f"  if (t >= {words}u) {{ return; }}\n  let e = t * {each}u;\n"
    parts = [f"(a0[e + {i}u] << {width * i}u)" if i else "a0[e]" for i in range(each)]
    text += f"  out[t] = {' | '.join(parts)};\n}}\n"
    return framed([("a0", "u32")], [("out", "u32")]) + text, -(-words // WORKGROUP)
