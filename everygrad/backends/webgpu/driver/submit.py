"""The commands of a compiled function as a table, which one native call records in wgpu-native.

A row is five words: a pipeline, or 0 for the previous one; a bind group; the workgroups along three
axes. Everything was validated when the pipelines and groups were made, and wgpu-native reports
errors when the pass ends, as it does for commands that are recorded one by one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.backends.webgpu.driver.wgpu_native import NativeCalls

_WORDS = 5
_TEXT = f"""
define void @record_commands(ptr %functions, ptr %pass, ptr %rows, i64 %count) nounwind {{
entry:
  %group.at = getelementptr ptr, ptr %functions, i64 1
  %dispatch.at = getelementptr ptr, ptr %functions, i64 2
  %set_pipeline = load ptr, ptr %functions, align 8
  %set_group = load ptr, ptr %group.at, align 8
  %dispatch = load ptr, ptr %dispatch.at, align 8
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %row, label %done
row:
  %i = phi i64 [ 0, %entry ], [ %i.next, %go ]
  %words = mul i64 %i, {_WORDS}
  %at = getelementptr i64, ptr %rows, i64 %words
  %pipeline = load ptr, ptr %at, align 8
  %same = icmp eq ptr %pipeline, null
  br i1 %same, label %go, label %set
set:
  call void %set_pipeline(ptr %pass, ptr %pipeline)
  br label %go
go:
  %at.1 = getelementptr i64, ptr %at, i64 1
  %at.2 = getelementptr i64, ptr %at, i64 2
  %at.3 = getelementptr i64, ptr %at, i64 3
  %at.4 = getelementptr i64, ptr %at, i64 4
  %group = load ptr, ptr %at.1, align 8
  %x = load i32, ptr %at.2, align 8
  %y = load i32, ptr %at.3, align 8
  %z = load i32, ptr %at.4, align 8
  call void %set_group(ptr %pass, i32 0, ptr %group, i64 0, ptr null)
  call void %dispatch(ptr %pass, i32 %x, i32 %y, i32 %z)
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %count
  br i1 %more, label %row, label %done
done:
  ret void
}}
"""


class CommandRow(NamedTuple):
    """One command: handles, workgroups, and the group itself, which must outlive its handle."""

    pipeline: Any
    group: Any
    grid: tuple[int, int, int]
    keep: Any


Recorder = Callable[[Any], None]  # records commands into a pass, given by its handle


def recorder(rows: Sequence[CommandRow], calls: NativeCalls) -> Recorder:
    """A function that records these commands, all of them in one pass."""
    return _at_once(rows, calls) if calls.functions else _one_by_one(rows, calls)


def _at_once(rows: Sequence[CommandRow], calls: NativeCalls) -> Recorder:
    words: list[int] = []
    last = None
    for row in rows:
        words.append(0 if row.pipeline == last else calls.address(row.pipeline))
        words += (calls.address(row.group), *row.grid)
        last = row.pipeline
    table = (ctypes.c_uint64 * len(words))(*words)
    where = ctypes.addressof(_functions(calls.functions))
    start, count, keep = ctypes.addressof(table), len(rows), (table, rows)
    run, address = _native(), calls.address

    def record(
        within: Any, keep: Any = keep
    ) -> None:  # `keep` keeps what the addresses point to alive
        run(where, address(within), start, count)

    return record


def _one_by_one(rows: Sequence[CommandRow], calls: NativeCalls) -> Recorder:
    def record(within: Any) -> None:
        for row in rows:
            calls.set_pipeline(within, row.pipeline)
            calls.set_group(within, 0, row.group, 0, calls.nothing)
            calls.dispatch(within, *row.grid)

    return record


@cache
def _functions(addresses: tuple[int, ...]) -> Any:
    """The addresses of the three functions as a native array."""
    return (ctypes.c_uint64 * len(addresses))(*addresses)


@cache
def _native() -> Callable[[int, int, int, int], None]:
    address = engine().functions(_TEXT, ("record_commands",), vectorise=False)["record_commands"]
    word = ctypes.c_size_t
    return ctypes.CFUNCTYPE(None, word, word, word, word)(address)
