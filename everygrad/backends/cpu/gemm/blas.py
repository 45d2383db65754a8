"""Matrix products on NumPy's BLAS, on its threads or on ours.

OpenBLAS's own threads are best for one large product. On a busy machine, though, they wait for
each other far longer than a product takes (20 ms for a product of 1 ms was seen), and our kernels
run slower after them. So medium products and batches of small ones are split over this backend's
thread pool, with BLAS limited to one thread meanwhile. The limits were found by timing training
steps, not single products.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from everygrad.backends.cpu.runtime.pool import empty
from everygrad.backends.thread_pool import parallel_for
from everygrad.compiler.accumulate import identity
from everygrad.compiler.thresholds import edge
from everygrad.core.scopes import Scope
from everygrad.core.shapes import size_of
from everygrad.dtypes import float64

# multiply-adds up to which limiting the threads of BLAS costs more than it gains
SMALL = edge(__name__, "SMALL", 1 << 21, "products")
SPLIT = edge(__name__, "SPLIT", 1 << 22, "products")  # from which a second thread of our pool pays
LARGE = edge(__name__, "LARGE", 1 << 23, "products")  # from which BLAS's own threads are better
_START = identity("add", float64)  # a product with k = 1 is a sum of one product
# from which BLAS uses threads for a gemv: 0.1 ms of reading memory
GEMV = edge(__name__, "GEMV", 1 << 19, "products")
# terms of a gemv over rows of the matrix, which BLAS adds one after the other: more lose digits
STRETCH = edge(__name__, "STRETCH", 1 << 9, "size")
CHUNKS = 16  # of a product: as many whatever the number of threads, which must not change its bits


def openblas(files: str) -> Iterator[Any]:
    """The OpenBLAS libraries that NumPy brought along, of which the files have such names."""
    from pathlib import Path  # takes 4 ms, which `import everygrad` need not

    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in sorted(folder.glob(files)):
        yield ctypes.CDLL(str(path))  # already loaded by NumPy: the same library


def _controls() -> tuple[Callable[[int], None], Callable[[], int]] | None:
    """OpenBLAS's functions to set and get its number of threads; None for another BLAS."""
    for lib in openblas("*openblas*"):
        for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", "")):
            try:
                put = getattr(lib, f"{prefix}openblas_set_num_threads{suffix}")
                get = getattr(lib, f"{prefix}openblas_get_num_threads{suffix}")
            except AttributeError:
                continue
            return put, get
    return None


class _Blas:
    """The thread count of BLAS: one while any caller asks for that, else what it was before."""

    def __init__(self) -> None:
        self.controls: Any = None
        self.looked = False
        self.lock = threading.Lock()
        self.askers: set[object] = set()
        self.lowered = False  # BLAS has one thread now, and had `before`
        self.before = 1

    def lower(self, asker: object) -> None:
        if not self.looked:
            self.controls, self.looked = _controls(), True
        if self.controls is not None:
            put, get = self.controls
            with self.lock:
                self.askers.add(asker)
                if not self.lowered:
                    self.before = get()
                    self.lowered = True
                    put(1)

    def settle(self) -> None:
        """Restores the thread count of BLAS if no caller asks for one thread any more."""
        with self.lock:
            if self.lowered and not self.askers:
                self.controls[0](self.before)
                self.lowered = False


_blas = _Blas()


class OneThread(Scope):
    """A block in which BLAS uses one thread; blocks may overlap in different threads. If its exit
    is interrupted, the next large product restores the thread count."""

    def enter(self) -> None:
        _blas.lower(self)

    def leaving(self) -> tuple[Callable[[], Any], ...]:
        return (partial(_blas.askers.discard, self), _blas.settle)


def matmul(x: Any, y: Any) -> Any:
    """np.matmul of float32, float64 and complex arrays of two or more dimensions."""
    m, k = x.shape[-2:]
    n = y.shape[-1]
    one = m * n * k
    if x.ndim == y.ndim == 2:
        if k == 1 == y.shape[0] and one <= SMALL:
            out = np.multiply(x, y)  # a column times a row: BLAS takes several times as long
            out += _START
            return out
        if 1 in (m, n) and (one > GEMV or k > 2 * STRETCH):
            apart = (y.strides[0] if m == 1 else x.strides[1]) != x.itemsize  # terms of the matrix
            with OneThread():  # waiting for a second thread took up to 8 ms
                return _in_stretches(x, y) if apart and k > 2 * STRETCH else np.matmul(x, y)
        if one <= SMALL:
            return np.matmul(x, y)
        if one > LARGE:
            if _blas.lowered:
                _blas.settle()
            return np.matmul(x, y)
        batch: tuple[int, ...] = ()
        count = 1
    else:
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        count = size_of(batch)
        if count * one <= SMALL:
            return np.matmul(x, y)
    with OneThread():
        if count * one <= SPLIT:
            return np.matmul(x, y)
        out = empty((*batch, m, n), x.dtype)
        if count > 1:
            _by_matrix(x, y, out, batch, count)
        elif m >= n:
            _split(m, lambda lo, hi: np.matmul(x[..., lo:hi, :], y, out=out[..., lo:hi, :]))
        else:
            _split(n, lambda lo, hi: np.matmul(x, y[..., lo:hi], out=out[..., lo:hi]))
        return out


def _split(count: int, task: Callable[[int, int], Any]) -> None:
    """The task on ranges that are the same for any number of threads: two parts per thread for up
    to eight of them, so that a thread that wakes late delays little."""
    chunk = max(1, -(-count // CHUNKS))

    def some(first: int, last: int) -> None:
        for k in range(first, last):
            task(k * chunk, min(count, (k + 1) * chunk))

    parallel_for(-(-count // chunk), 1, some)


def _in_stretches(x: Any, y: Any) -> Any:
    """A vector times a matrix, whose many terms are added in stretches."""
    (m, k), n = x.shape, y.shape[1]
    count = k // STRETCH
    whole = count * STRETCH
    rows = x[:, :whole].reshape(m, count, STRETCH).swapaxes(0, 1)
    parts = np.empty((m, n, count + 1), x.dtype)
    parts[..., :count] = np.matmul(rows, y[:whole].reshape(count, STRETCH, n)).transpose(1, 2, 0)
    parts[..., count] = np.matmul(x[:, whole:], y[whole:])
    return np.add.reduce(parts, axis=-1)


def _by_matrix(x: Any, y: Any, out: Any, batch: tuple[int, ...], count: int) -> None:
    if len(batch) == 1 and x.ndim == y.ndim == 3 and len(x) == len(y):
        _split(count, lambda lo, hi: np.matmul(x[lo:hi], y[lo:hi], out=out[lo:hi]))
        return
    x = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    y = np.broadcast_to(y, (*batch, *y.shape[-2:]))
    first = batch[0]
    if first > 1:
        _split(first, lambda lo, hi: np.matmul(x[lo:hi], y[lo:hi], out=out[lo:hi]))
    else:
        np.matmul(x, y, out=out)
