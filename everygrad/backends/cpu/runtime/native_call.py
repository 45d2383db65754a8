"""Calls of native code on arrays and numbers, at the price of a call of Python's own builtins.

A function f(lo, hi, words) computes blocks [lo, hi) of its independent blocks; a word is the
address of an array's first element, or a number. Where there is little to do it is called by a
builtin, with the interpreter's lock held; otherwise on all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.llvm import cpython
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.backends.cpu.runtime import native_threads
from everygrad.backends.cpu.runtime.addresses import address_of

_MOST = 24  # words
_MOST_BOUND = 6  # arrays


def _source() -> str:
    """call(function, blocks, *words): `self` is an array of the type of arrays and of None."""
    f = cpython.Function("define ptr @call(ptr %self, ptr %args, i64 %n)")
    f.begin.append(f"  %words = alloca [{_MOST} x i64], align 16")
    state = f.load("%self", cpython.DATA)
    array = f.load(state, 0)

    def number(value: str) -> str:
        return f.emit("i64", f"call i64 @PyLong_AsSsize_t(ptr {value})")

    address, blocks = number(f.load("%args", 0)), number(f.load("%args", 8))
    for i in range(_MOST):
        f.go_unless(f.emit("i1", f"icmp sgt i64 %n, {i + 2}"), "ready")
        value = f.load("%args", 8 * (i + 2))
        to = f.emit("ptr", f"getelementptr i64, ptr %words, i64 {i}")
        f.line(
            f"br i1 {f.equal(f.load(value, cpython.HEAD - 8), array)}, "
            f"label %array{i}, label %number{i}"
        )
        f.label(f"array{i}")
        f.line(f"store i64 {f.load(value, cpython.DATA, 'i64')}, ptr {to}")
        f.line(f"br label %stored{i}")
        f.label(f"number{i}")
        f.line(f"store i64 {number(value)}, ptr {to}")
        f.line(f"br label %stored{i}")
        f.label(f"stored{i}")
    f.line("br label %ready")
    f.label("ready")
    function = f.emit("ptr", f"inttoptr i64 {address} to ptr")
    f.line(f"call void {function}(i64 0, i64 {blocks}, ptr %words)")
    f.leave(f.load(state, 8))
    return "\n".join([cpython.declarations(), f.text(), ""])


def _bound_source() -> str:
    """bound(*arrays): the addresses of the arrays are put into the words `self` names from a place
    on, and the function is called on its only block."""
    f = cpython.Function("define ptr @bound(ptr %self, ptr %args, i64 %n)")
    state = f.load("%self", cpython.DATA)
    function, words, none = (f.load(state, 8 * i) for i in range(3))
    at = f.load(state, 24, "i64")
    first = f.emit("ptr", f"getelementptr i64, ptr {words}, i64 {at}")
    for i in range(_MOST_BOUND):
        f.go_unless(f.emit("i1", f"icmp sgt i64 %n, {i}"), "ready")
        data = f.load(f.load("%args", 8 * i), cpython.DATA, "i64")
        to = f.emit("ptr", f"getelementptr i64, ptr {first}, i64 {i}")
        f.line(f"store i64 {data}, ptr {to}")
    f.line("br label %ready")
    f.label("ready")
    f.line(f"call void {function}(i64 0, i64 1, ptr {words})")
    f.leave(none)
    return "\n".join([cpython.declarations(), f.text(), ""])


def on_all_threads(function: int, blocks: int, *words: Any) -> None:
    """f(lo, hi, words) on ranges that partition [0, blocks)."""
    found = [w if isinstance(w, int) else address_of(w) for w in words]
    held = np.array(found, np.int64)
    native_threads.parallel(function, blocks, address_of(held))


_held: list[Any] = []  # what the builtin works with, which lives as long as the process


@cache
def here() -> Callable[..., None]:
    """A function of (function, blocks, *words), which calls it once on all of its blocks."""
    if not cpython.is_available():
        return on_all_threads
    address = engine().functions(_source(), ["call"])["call"]
    method = cpython.method("call", address)
    state = np.array([id(np.ndarray), id(None)], np.int64)
    _held.extend((method, state))
    return cpython.new_builtin(method, state)


@cache
def _bound_method() -> Any:
    return cpython.method("bound", engine().functions(_bound_source(), ["bound"])["bound"])


class _Words(np.ndarray[Any, Any]):
    """Words of a bound function, and what they are addresses of, so that it lives as long."""

    held: Any


def bound(
    function: int, words: Sequence[Any], at: int, count: int, held: Any = None
) -> Callable[..., None]:
    """A function of `count` NumPy arrays, and nothing else, which calls f on its only block with
    their addresses among the words from `at` on. Scratch memory may be one of the words: as long
    as the interpreter's lock is held, nobody else calls it. `held`: what lives as long."""
    found = [w if isinstance(w, int) else address_of(w) for w in words]
    if not cpython.is_available():

        def call(*arrays: Any) -> None:
            given = np.array(found, np.int64)
            given[at : at + count] = [address_of(a) for a in arrays]
            native_threads.parallel(function, 1, address_of(given))

        return call
    table = np.array(found, np.int64)
    state = np.array([function, address_of(table), id(None), at], np.int64).view(_Words)
    state.held = (function, table, words, held)
    return cpython.new_builtin(_bound_method(), state)
