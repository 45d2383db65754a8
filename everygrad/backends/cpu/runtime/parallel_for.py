"""Kernels over a range, f(lo, hi, *words), on the native threads.

Eager kernels are compiled once for all sizes and take the sizes as arguments. The native pool calls
functions of blocks, f(lo, hi, args); a bridge between the two, one for each number of words, maps
blocks to ranges and unpacks the words.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.backends.cpu.runtime import native_threads

_HEAD = 3  # words before the kernel's own: its address, the count, the elements of a block


def _source(words: int) -> str:
    """A step that calls a kernel with this many words."""
    lines = []
    for i in range(_HEAD + words):
        lines.append(f"  %at{i} = getelementptr i64, ptr %args, i64 {i}")
        lines.append(f"  %w{i} = load i64, ptr %at{i}, align 8")
    given = ", ".join(["i64 %from", "i64 %to", *(f"i64 %w{_HEAD + i}" for i in range(words))])
    return "\n".join(
        [
            "declare i64 @llvm.smin.i64(i64, i64)",
            "define void @step(i64 %lo, i64 %hi, ptr %args) nounwind {",
            *lines,
            "  %kernel = inttoptr i64 %w0 to ptr",
            "  %from = mul i64 %lo, %w2",
            "  %end = mul i64 %hi, %w2",
            "  %to = call i64 @llvm.smin.i64(i64 %end, i64 %w1)",
            f"  call void %kernel({given})",
            "  ret void",
            "}",
            "",
        ]
    )


@cache
def _bridge(words: int) -> tuple[int, type[ctypes.Array[ctypes.c_int64]]]:
    address = engine().compile(_source(words), "step", vectorise=False)
    return address, ctypes.c_int64 * (_HEAD + words)


def spread(kernel: int, count: int, grain: int, words: Sequence[int]) -> None:
    """Calls the kernel at address `kernel` on ranges that partition [0, count), on all threads.
    Ranges begin at multiples of `grain`."""
    step, holder = _bridge(len(words))
    args = holder(kernel, count, grain, *words)
    native_threads.parallel(step, -(-count // grain), ctypes.addressof(args))
