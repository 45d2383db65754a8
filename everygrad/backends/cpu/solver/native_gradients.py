"""The gradients of small factorisations by native code (`gradient_code`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from everygrad.backends import thread_pool
from everygrad.backends.cpu.llvm.compiler import Address, engine
from everygrad.backends.cpu.llvm.cpython import is_available
from everygrad.backends.cpu.runtime.native_call import bound, on_all_threads
from everygrad.backends.cpu.solver import gradient_code as code
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP

_FEW = edge(__name__, "_FEW", 1 << 18, "products")  # with the interpreter's lock held


@cache
def _address(name: str, char: str) -> Address:
    source = code.SOURCES[name](FROM_NP[np.dtype(char)])
    return engine().compile(source, "step", vectorise=False)


def _room(m: int, n: int, k: int) -> int:
    """Elements of scratch memory that are enough for any of the functions: at most 16 matrices of
    these sizes, and 10 with right sides."""
    a, b = max(m, n), min(m, n)
    sides = max(a * _whole(k), k * _whole(a))
    return 2 * (16 * max(a * _whole(b), b * _whole(a)) + 10 * sides) + 64


def _whole(n: int) -> int:
    """In whole vectors of any processor."""
    return -(-n // 8) * 8


def _bounds(char: str, m: int, n: int, k: int) -> Any:
    """What counts as equal, as no full rank, and as a dependence on a phase."""
    eps = float(np.finfo(char).eps)
    return np.array([4.0 * math.sqrt(k) * eps, eps * max(m, n), math.sqrt(eps)])


_bound: dict[Any, tuple[Any, Any]] = {}


def gradient(
    name: str,
    g: Any,
    out: Any,
    m: int,
    n: int,
    others: Sequence[Any] = (),
    bounds: Any = None,
    k: int = 0,
    width: int = 0,
) -> Any:
    """That of a factorisation of (m, n) matrices; NotImplemented if one of them is not plain. k:
    how many right sides, with the width of a result that is not as wide as the matrices."""
    batch = out.shape[:-2]
    count = size_of(batch)
    result = np.empty((*batch, m, width or n), out.dtype)
    given = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in (g, out, *others)]
    given.insert(2, result)
    k = k or min(m, n)
    if count * m * n * k <= _FEW and is_available():
        key = (name, out.dtype.char, m, n, k, count)
        call, status = _bound.get(key) or _make(key, bounds)
        status[0] = 0
        call(*given)
        return NotImplemented if status[0] else result
    blocks = min(count, 4 * thread_pool.num_threads())
    status = np.zeros(1, np.int64)
    room = _room(m, n, k)
    scratch = np.empty(blocks * room)
    bounds = _bounds(out.dtype.char, m, n, k) if bounds is None else bounds
    on_all_threads(
        _address(name, out.dtype.char), blocks, *given, *[0] * (5 - len(given)), scratch, room,
        m, n, k, status, bounds, count, blocks,
    )  # fmt: skip
    return NotImplemented if status[0] else result


def _make(key: tuple[str, str, int, int, int, int], bounds: Any) -> tuple[Any, Any]:
    name, char, m, n, k, count = key
    room = _room(m, n, k)
    status = np.zeros(1, np.int64)
    bounds = _bounds(char, m, n, k) if bounds is None else bounds
    words = (0, 0, 0, 0, 0, np.empty(room), room, m, n, k, status, bounds, count, 1)
    if len(_bound) >= 500:
        _bound.clear()
    found = _bound[key] = bound(_address(name, char), words, code.G, 5), status
    return found
