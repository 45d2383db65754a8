"""LAPACK's routines on the matrices of a batch in a native loop, on all threads.

A call from Python costs as much as ten of small matrices: seven to ten arguments by reference each.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.llvm.compiler import Address, engine
from everygrad.backends.cpu.runtime import native_threads
from everygrad.backends.cpu.runtime.addresses import address_of


def _source(count: int) -> str:
    """step(lo, hi, words): the routine at words[0] on each index, whose k-th argument lies at
    words[1 + 2k], moved by words[2 + 2k] bytes for each index."""
    lines = ["  %f.word = load i64, ptr %words", "  %f = inttoptr i64 %f.word to ptr"]
    for k in range(count):
        for what, place in (("base", 1 + 2 * k), ("move", 2 + 2 * k)):
            lines += [
                f"  %{what}.at{k} = getelementptr i64, ptr %words, i64 {place}",
                f"  %{what}{k} = load i64, ptr %{what}.at{k}",
            ]
    lines += [
        "  br label %next",
        "next:",
        "  %i = phi i64 [ %lo, %entry ], [ %i.next, %one ]",
        "  %more = icmp slt i64 %i, %hi",
        "  br i1 %more, label %one, label %done",
        "one:",
    ]
    for k in range(count):
        lines += [
            f"  %moved{k} = mul i64 %i, %move{k}",
            f"  %place{k} = add i64 %base{k}, %moved{k}",
            f"  %given{k} = inttoptr i64 %place{k} to ptr",
        ]
    given = ", ".join(f"ptr %given{k}" for k in range(count))
    lines += [f"  call void %f({given})", "  %i.next = add i64 %i, 1", "  br label %next"]
    head = "define void @step(i64 %lo, i64 %hi, ptr %words) nounwind {\nentry:"
    return "\n".join([head, *lines, "done:", "  ret void", "}", ""])


@cache
def _step(count: int) -> Address:
    return engine().compile(_source(count), "step", vectorise=False)


def run(routine: int, matrices: int, *args: Any) -> Any:
    """The routine at an address for each matrix; the codes it returns. Numbers and arrays without
    axes are for all, other arrays have a first axis of the matrices."""
    codes = np.zeros(matrices, np.int64)
    numbers = np.array([a for a in args if type(a) is int], np.int64)
    words, at = [routine], 0
    for a in (*args, codes):
        if type(a) is int:
            words += (address_of(numbers) + 8 * at, 0)
            at += 1
        else:
            words += (address_of(a), a.strides[0] if a.ndim else 0)
    held = np.array(words, np.int64)
    native_threads.parallel(_step(len(args) + 1), matrices, address_of(held))
    return codes
