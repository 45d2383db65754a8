"""Least squares by one native call (`lstsq_code`), for matrices of any size that are few: by
reflections where the rank is seen to be full, else by LAPACK."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.llvm.compiler import Address, engine
from everygrad.backends.cpu.llvm.cpython import is_available
from everygrad.backends.cpu.runtime.native_call import bound
from everygrad.backends.cpu.solver import lstsq_code as code
from everygrad.backends.cpu.solver.batched_lapack import SMALL, routine
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP

_FEW = edge(__name__, "_FEW", 1 << 17, "products")  # with the interpreter's lock held
_REFLECTED = edge(__name__, "_REFLECTED", 1 << 19, "products")  # the same without LAPACK
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


def of_full_rank(a: Any, b: Any, rtol: float) -> Any:
    """The op's result for matrices of single precision, with the rank -1 for those that may have a
    lower one; None for what is not served, which depends on one matrix of a batch alone."""
    key = ("reflected", a.dtype.char, a.shape, b.shape[-1], rtol)
    found = _bound.get(key)
    if found is None:
        (*batch, m, n), k, is_single = a.shape, b.shape[-1], a.dtype.char in "fF"
        each = m * n * (n + k)
        if not is_single or m < n or each > _REFLECTED or not is_available():
            return None
        count = size_of(tuple(batch))
        if count * each > _REFLECTED and count > 1:
            return _by_parts(a, b, rtol, -(-count * each // _REFLECTED))
        found = _make_reflected(key)
    call, _, shape = found
    out = np.empty(shape, a.dtype)
    call(*_contiguous(a, b), out)
    return out


def _by_parts(a: Any, b: Any, rtol: float, parts: int) -> Any:
    """A batch by several calls, between which the interpreter's lock may be released."""
    (*batch, m, n), k = a.shape, b.shape[-1]
    a, b = a.reshape((-1, m, n)), b.reshape((-1, m, k))
    out = np.empty((len(a), n + 1, k), a.dtype)
    most = -(-len(a) // parts)
    for at in range(0, len(a), most):
        out[at : at + most] = of_full_rank(a[at : at + most], b[at : at + most], rtol)
    return out.reshape((*batch, n + 1, k))


def unproven(out: Any) -> Any:
    """Of which matrices of a batch, seen as one axis, the rank is not known; None for none."""
    n, k = out.shape[-2:]
    if out.size == n * k:
        return np.zeros(1, np.intp) if out.item(n * k - k).real < 0 else None
    ranks = out[..., -1, 0].real
    return np.flatnonzero(ranks < 0) if ranks.min() < 0 else None


def _make_reflected(key: tuple[str, str, Shape, int, float]) -> tuple[Any, Any, Shape]:
    _, char, (*batch, m, n), k, rtol = key
    wide, long, tall = (-(-size // 8) * 8 for size in (k, n, m))  # in vectors
    work = np.empty((2 if char == "F" else 1) * ((n + k + 1) * tall + n * (long + wide)))
    # squares of norms are multiplied; half of what the bound allows, since both were rounded
    limit = np.array([0.5 / max(rtol, 1e-30) ** 2])
    words = (0, 0, 0, 0, work, m, n, k, 0, limit, 0, size_of(tuple(batch)))
    made = bound(_address("of_full_rank", char), words, code.A, 3)
    return _remember(key, (made, None, (*batch, n + 1, k)))


def solution(a: Any, b: Any, rtol: float) -> Any:
    """The op's result; None where there is none."""
    key = ("solution", a.dtype.char, a.shape, b.shape[-1], rtol)
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


def _make(key: tuple[str, str, Shape, int, float]) -> tuple[Any, Any, Shape]:
    _, char, (*batch, m, n), k, rtol = key
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


def system(a: Any, b: Any) -> Any:
    """X with a X = b for small matrices of single precision; None where there is none, or it is not
    finite."""
    key = ("system", a.dtype.char, a.shape, b.shape)
    found = _bound.get(key)
    if found is None:
        n, k = b.shape[-2:]
        is_single = a.dtype.char in "fF" and a.dtype == b.dtype
        products = a.size * (n + k)
        if not is_single or n > SMALL or products > _FEW or not b.size or not is_available():
            return None
        found = _make_system(key)
    call, _, shape = found
    out = np.empty(shape, a.dtype)
    call(*_contiguous(a, b), out)
    first = out.item(0)
    return out if first == first else None


def _make_system(key: tuple[str, str, Shape, Shape]) -> tuple[Any, Any, Shape]:
    _, char, (*batch, n, _), shape = key
    work = np.empty((2 if char == "F" else 1) * n * sum(-(-s // 8) * 8 for s in (n, shape[-1])))
    words = (0, 0, 0, 0, work, n, n, shape[-1], 0, 0, 0, size_of(tuple(batch)))
    made = bound(_address("system", char), words, code.A, 3)
    return _remember(key, (made, None, shape))


def residuals(a: Any, x: Any, b: Any) -> Any:
    char = a.dtype.char
    key = ("residuals", char, a.shape, b.shape[-1])
    call, _, shape = _bound.get(key) or _make_residuals(key)
    out = np.empty(shape, char.lower())
    a, b, x = _contiguous(a, b, x)
    call(a, b, out, x)
    return out


def _make_residuals(key: tuple[str, str, Shape, int]) -> tuple[Any, Any, Shape]:
    _, char, (*batch, m, n), k = key
    words = (0, 0, 0, 0, 0, m, n, k, 0, 0, 0, size_of(tuple(batch)))
    made = bound(_address("residuals", char), words, code.A, 4)
    return _remember(key, (made, None, (*batch, k)))
