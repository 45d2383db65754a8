"""LAPACK called matrix by matrix, in the matrices' own precision, on all cores.

NumPy computes float32 in float64 and a batch one matrix after the other, which is best for small
matrices, since a call from Python is expensive. Here each matrix of a batch is one call, with BLAS
limited to one thread; a single large matrix uses the threads of BLAS.

LAPACK's matrices are column-major. A C-ordered (row-major) matrix is the transpose of what LAPACK
sees, and no copy is made where the transpose serves as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.gemm import blas
from everygrad.backends.cpu.gemm.blas import OneThread, openblas
from everygrad.backends.cpu.runtime.addresses import address_of
from everygrad.backends.thread_pool import parallel_for
from everygrad.core.shapes import size_of

SMALL = 24  # rows up to which NumPy's loop over a batch beats one call per matrix
_BLAS_THREADS_MIN = 256  # rows from which the threads of BLAS pay for a single matrix
_BLOCK = 64  # LAPACK's block size in columns; its work space is a multiple of it
_SCRATCH = 1 << 20  # elements that a batch in one native loop may take for its work spaces
LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}  # of routines, by NumPy's


@lru_cache
def library() -> Any:
    """NumPy's own OpenBLAS with 64-bit integers; None where NumPy was built with another BLAS."""
    for lib in openblas("*openblas64*"):
        if hasattr(lib, "scipy_dgetrf_64_") and hasattr(lib, "scipy_cblas_dtrsm64_"):
            return lib
    return None


def serves(x: Any) -> bool:
    """Whether these matrices are large enough for one call each, and LAPACK is available."""
    return min(x.shape[-2:]) > SMALL and x.size > 0 and library() is not None


def matrices(x: Any) -> Any:
    """A C-ordered copy with one batch axis; x is not empty."""
    return np.array(x, order="C").reshape((-1, *x.shape[-2:]))


def each(x: Any, task: Callable[[int], None]) -> None:
    """task(i) for each matrix of (count, m, n)."""
    count, rows = len(x), x.shape[-1]

    def run(lo: int, hi: int) -> None:
        for i in range(lo, hi):
            task(i)

    if count == 1 and rows**3 <= blas.SMALL:
        task(0)
        return
    with nullcontext() if count == 1 and rows >= _BLAS_THREADS_MIN else OneThread():
        parallel_for(count, 1, run)


def map_batch(fn: Callable[..., Any], x: Any, *more: Any) -> Any:
    """Applies NumPy's fn to each matrix of a batch, with the matching items of `more`, by `each`.
    The result may be a tuple of arrays."""
    if not serves(x):
        return fn(x, *more)
    batch = x.shape[:-2]
    flat = x.reshape((-1, *x.shape[-2:]))
    others = [a.reshape(-1) for a in more]
    found: list[Any] = [None] * len(flat)

    def one(i: int) -> None:
        found[i] = fn(flat[i], *[a[i] for a in others])

    each(flat, one)
    if not isinstance(found[0], tuple):
        return np.stack(found).reshape((*batch, *found[0].shape))
    return tuple(np.stack(f).reshape((*batch, *f[0].shape)) for f in zip(*found, strict=True))


@lru_cache(maxsize=1024)
def _number(value: int) -> Any:
    """A number by reference; no routine writes to what is no array."""
    return ctypes.byref(ctypes.c_int64(value))


def _argument(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        return _number(value)
    return value if kind is bytes else address_of(value)


@lru_cache
def routine(name: str, letter: str, count: int) -> Any:
    """One of LAPACK's, of so many arguments, for a dtype of NumPy's letter."""
    found = ctypes.CFUNCTYPE(None, *(ctypes.c_void_p,) * count)
    return found((f"scipy_{LETTERS[letter]}{name}_64_", library()))


def lapack(name: str, dtype: Any, *args: Any) -> int:
    """Calls a routine on arrays, numbers and letters, all by reference; returns its info code."""
    info = ctypes.c_int64(0)
    given = [_argument(value) for value in args]
    routine(name, dtype.char, len(args) + 1)(*given, ctypes.byref(info))
    return info.value


@lru_cache(maxsize=64)
def triangle(n: int, upper: bool, unit: bool) -> Any:
    """Where one triangle of n x n matrices is, without the diagonal if `unit`."""
    ones = np.ones((n, n), bool)
    return np.triu(ones, int(unit)) if upper else np.tril(ones, -int(unit))


def factored(x: Any) -> tuple[Any, Any, Any]:
    """The LU factors of x's transposes, the pivot rows (from 1), and where a pivot is 0."""
    work = matrices(x)
    count, n, _ = work.shape
    pivots = np.empty((count, n), np.int64)
    bad = np.zeros(count, bool)

    def factor(i: int) -> None:
        bad[i] = lapack("getrf", work.dtype, n, n, work[i], n, pivots[i]) > 0

    each(work, factor)
    return work, pivots, bad


def _refuse_singular(bad: Any) -> None:
    if bad.any():
        raise np.linalg.LinAlgError("a pivot is 0")


def solve(a: Any, b: Any) -> Any:
    """X with a X = b, for matrices of one batch."""
    work, pivots, bad = factored(a)
    _refuse_singular(bad)
    n, wide = b.shape[-2:]
    transposed = matrices(b.mT)

    def substitute(i: int) -> None:
        lapack("getrs", work.dtype, b"T", n, wide, work[i], n, pivots[i], transposed[i], n)

    each(transposed, substitute)
    return np.ascontiguousarray(transposed.mT).reshape(b.shape)


def inv(x: Any) -> Any:
    work, pivots, bad = factored(x)
    _refuse_singular(bad)
    return inverse(work, pivots).reshape(x.shape)


def inverse(work: Any, pivots: Any) -> Any:
    """The inverses from the result of `factored`, in its memory."""
    n = work.shape[-1]

    def invert(i: int) -> None:
        space = np.empty(n * _BLOCK, work.dtype)
        lapack("getri", work.dtype, n, work[i], n, pivots[i], space, n * _BLOCK)

    each(work, invert)
    return work


def signed_diagonals(work: Any, pivots: Any) -> Any:
    """U's diagonals, negated where rows were exchanged: determinants are their products."""
    diagonals = work.diagonal(axis1=-2, axis2=-1)
    kept = pivots == np.arange(1, pivots.shape[-1] + 1)
    return np.where(kept, diagonals, -diagonals)


def cholesky(x: Any) -> Any:
    """The Cholesky factor L, from the lower triangles."""
    work = matrices(x)
    n = work.shape[-1]
    bad = np.zeros(len(work), bool)

    def factor(i: int) -> None:
        bad[i] = lapack("potrf", work.dtype, b"U", n, work[i], n) > 0
        work[i][above] = 0

    above = triangle(n, upper=True, unit=True)
    each(work, factor)
    if bad.any():
        raise np.linalg.LinAlgError("a leading minor is not positive")
    return work.reshape(x.shape)


def qr(x: Any) -> tuple[Any, Any]:
    """Q of as many columns as x, and R, of matrices that have as many rows as columns or more."""
    transposed = matrices(x.mT)
    count, n, m = transposed.shape
    upper = np.zeros((count, n, n), x.dtype)

    def factor(i: int) -> None:
        one = transposed[i]
        scales, space = np.empty(n, x.dtype), np.empty(n * _BLOCK, x.dtype)
        lapack("geqrf", x.dtype, m, n, one, m, scales, space, n * _BLOCK)
        np.copyto(upper[i], one[:, :n].T, where=triangle(n, upper=True, unit=False))
        make = "ungqr" if x.dtype.kind == "c" else "orgqr"
        lapack(make, x.dtype, m, n, n, one, m, scales, space, n * _BLOCK)

    each(transposed, factor)
    batch = x.shape[:-2]
    return transposed.mT.reshape((*batch, m, n)), upper.reshape((*batch, n, n))


def lu_factor(x: Any) -> Any:
    """L below the diagonal, U on and above it, and a last column with the rows exchanged; any
    number of rows and columns."""
    m, n = x.shape[-2:]
    count, least = size_of(x.shape[:-2]), min(m, n)
    out = np.zeros((count, m, n + 1), x.dtype)
    transposed = matrices(x.mT)

    def factor(i: int) -> None:
        pivots = np.ones(least, np.int64)
        lapack("getrf", x.dtype, m, n, transposed[i], m, pivots)
        out[i, :, :n], out[i, :least, n] = transposed[i].T, pivots - 1

    each(transposed, factor)
    return out.reshape((*x.shape[:-1], n + 1))


def lstsq(a: Any, b: Any, rtol: float) -> Any:
    """The smallest of the nearest solutions, and below it a row of ranks."""
    (m, n), k = a.shape[-2:], b.shape[-1]
    dtype, tall = a.dtype, max(m, n)
    work = matrices(a.mT)
    count = len(work)
    sides = np.zeros((count, k, tall), dtype)
    sides[:, :, :m] = b.mT.reshape((count, k, m))
    out = np.empty((count, n + 1, k), dtype)
    least = np.array(rtol, dtype.char.lower())
    size = 2 * min(m, n) + 2 * n + _BLOCK * max(n + 1, k)
    more = (np.empty(2 * n, dtype.char.lower()),) if dtype.kind == "c" else ()
    if 1 < count <= _SCRATCH // size and lazy_native.is_loaded():
        chosen, ranks = np.zeros((count, n), np.int64), np.zeros(count, np.int64)
        space = [np.empty((count, size), dtype), size]
        space += [np.empty((count, len(v)), v.dtype) for v in more]
        address = ctypes.cast(routine("gelsy", dtype.char, 0), ctypes.c_void_p).value
        loop = lazy_native.lapack_loop().run
        with OneThread():
            loop(address, count, m, n, k, work, m, sides, tall, chosen, least, ranks, *space)
        out[:, :n], out[:, n] = sides[:, :, :n].mT, ranks[:, None]
        return out.reshape((*a.shape[:-2], n + 1, k))

    def one(i: int) -> None:
        chosen, rank, space = np.zeros(n, np.int64), np.zeros(1, np.int64), np.empty(size, dtype)
        args = (m, n, k, work[i], m, sides[i], tall, chosen, least, rank, space, size)
        lapack("gelsy", dtype, *args, *(v.copy() for v in more))
        out[i, :n], out[i, n] = sides[i, :, :n].T, rank[0]

    each(work, one)
    return out.reshape((*a.shape[:-2], n + 1, k))
