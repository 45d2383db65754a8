"""Least squares by one native call (`lstsq_code`), for matrices of any size that are few."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.llvm.compiler import Address, engine
from everygrad.backends.cpu.llvm.cpython import is_available
from everygrad.backends.cpu.runtime.native_call import bound
from everygrad.backends.cpu.solver import lstsq_code as code
from everygrad.backends.cpu.solver.batched_lapack import routine
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP

_FEW = edge(__name__, "_FEW", 1 << 17, "products")  # with the interpreter's lock held
_BLOCK = 64  # LAPACK's block size in columns


def _contiguous(*arrays: Any) -> list[Any]:
    return [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in arrays]


def serves(a: Any, b: Any) -> bool:
    products = a.size * (min(a.shape[-2:]) + b.shape[-1])
    return products <= _FEW and is_available()


@cache
def _address(name: str, char: str) -> Address:
    source = code.SOURCES[name](FROM_NP[np.dtype(char)])
    return engine().compile(source, "step", vectorise=False)


_bound: dict[Any, tuple[Any, Any, Shape]] = {}


def solution(a: Any, b: Any, rtol: float) -> Any:
    """The op's result; None where there is none."""
    key = (a.dtype.char, a.shape, b.shape[-1], rtol)
    call, status, shape = _bound.get(key) or _make(key)
    out = np.empty(shape, a.dtype)
    status[0] = 0
    call(*_contiguous(a, b), out)
    return None if status[0] else out


def _remember(key: Any, found: tuple[Any, Any, Shape]) -> tuple[Any, Any, Shape]:
    if len(_bound) >= 500:
        _bound.clear()
    _bound[key] = found
    return found


def _make(key: tuple[str, Shape, int, float]) -> tuple[Any, Any, Shape]:
    char, (*batch, m, n), k, rtol = key
    tall, parts = max(m, n), 2 if char in "FD" else 1
    size = 2 * min(m, n) + 2 * n + _BLOCK * max(n + 1, k)
    numbers = np.array([m, n, k, tall, 0, size, 0, 0, *[0] * n], np.int64)
    work = np.empty(parts * (m * n + tall * k + size) + 2 * n, char.lower())
    address = ctypes.cast(routine("gelsy", char, 0), ctypes.c_void_p).value
    status = np.zeros(1, np.int64)
    words = (0, 0, 0, address, work, m, n, k, numbers, np.array([rtol], char.lower()), status,
             size_of(tuple(batch)))  # fmt: skip
    made = bound(_address("solution", char), words, code.A, 3)
    return _remember(key, (made, status, (*batch, n + 1, k)))


def residuals(a: Any, x: Any, b: Any) -> Any:
    char = a.dtype.char
    key = (char, a.shape, b.shape[-1])
    call, _, shape = _bound.get(key) or _make_residuals(key)
    out = np.empty(shape, char.lower())
    a, b, x = _contiguous(a, b, x)
    call(a, b, out, x)
    return out


def _make_residuals(key: tuple[str, Shape, int]) -> tuple[Any, Any, Shape]:
    char, (*batch, m, n), k = key
    words = (0, 0, 0, 0, 0, m, n, k, 0, 0, 0, size_of(tuple(batch)))
    made = bound(_address("residuals", char), words, code.A, 4)
    return _remember(key, (made, None, (*batch, k)))
