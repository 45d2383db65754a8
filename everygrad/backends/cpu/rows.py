"""Reductions and row kernels on NumPy arrays, split over threads and sized for the cache.

Blocks depend on the shape alone, never on the number of threads: the same bits on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad.backends.cpu.pool import empty
from everygrad.backends.cpu.threads import parallel_for
from everygrad.shapes import Shape, reduced, size_of

SMALL = 1 << 10  # elements so few that no order of summation matters
BLOCK = 256  # terms summed one after the other before blocks are summed
CHUNK = 1 << 15  # elements worked on at a time: input, output and temporaries stay in L2
PARALLEL = 1 << 17  # elements from which a second thread pays

_ADD: Any = np.add  # NumPy's types know no tuple of axes


def _runs(axes: Shape) -> list[tuple[int, int]]:
    """Sorted axes as runs of neighbours, last run first: [(first, last), ...]."""
    runs: list[tuple[int, int]] = []
    for a in axes:
        if runs and runs[-1][1] == a - 1:
            runs[-1] = (runs[-1][0], a)
        else:
            runs.append((a, a))
    return runs[::-1]


def _sum_rows(x: Any) -> Any:
    """(rows, n) -> (rows,); NumPy sums a contiguous row pairwise."""
    rows, n = x.shape
    if x.size < PARALLEL:
        return np.add.reduce(x, axis=1)
    if rows == 1 and n >= 2 * CHUNK:
        whole = n - n % CHUNK
        parts = _sum_rows(x[0, :whole].reshape(-1, CHUNK))
        return np.add.reduce(parts, keepdims=True) + np.add.reduce(x[0, whole:], keepdims=True)
    out = np.empty(rows, x.dtype)
    parallel_for(
        rows,
        max(1, PARALLEL // 2 // max(1, n)),
        lambda lo, hi: np.add.reduce(x[lo:hi], axis=1, out=out[lo:hi]),
    )
    return out


def _sum_columns(x: Any) -> Any:
    """(outer, n, inner) -> (outer, inner), in blocks: a running sum loses three digits by 1e6."""
    while (n := x.shape[1]) > BLOCK:
        whole = n - n % BLOCK
        outer, _, inner = x.shape
        blocks = np.add.reduce(x[:, :whole].reshape(outer, -1, BLOCK, inner), axis=2)
        if whole < n:
            rest = np.add.reduce(x[:, whole:], axis=1)[:, None]
            blocks = np.concatenate([blocks, rest], axis=1)
        x = blocks
    return np.add.reduce(x, axis=1)


def _sum_run(x: Any, first: int, last: int) -> Any:
    """The sum over neighbouring axes, kept as size 1."""
    kept = (*x.shape[:first], *(1,) * (last - first + 1), *x.shape[last + 1 :])
    outer, inner = size_of(x.shape[:first]), size_of(x.shape[last + 1 :])
    n = size_of(x.shape[first : last + 1])
    if inner == 1 and n:
        return _sum_rows(x.reshape(outer, n)).reshape(kept)
    return _sum_columns(x.reshape(outer, n, inner)).reshape(kept)


def add(x: Any, axes: Shape, keepdims: bool, mean: bool = False) -> Any:
    """The sum or mean over axes; half floats are summed in float32."""
    dtype = x.dtype
    if x.size <= SMALL and dtype.itemsize > 2 and not mean:
        return _ADD.reduce(x, axis=axes, dtype=dtype, keepdims=keepdims)
    count = size_of(tuple(x.shape[a] for a in axes))
    total = x.astype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else x
    for first, last in _runs(axes):
        total = _sum_run(total, first, last)
    if total is x:
        total = x.copy()
    if mean:
        total = total / np.asarray(count, total.dtype)
    return total.reshape(reduced(x.shape, axes, keepdims)).astype(dtype, copy=False)


def by_ufunc(ufunc: Any) -> Callable[..., Any]:
    """A reduction in which the order does not matter."""

    def run(x: Any, axes: Shape, keepdims: bool, mean: bool = False) -> Any:
        return ufunc.reduce(x, axis=axes, keepdims=keepdims)

    return run


def row_kernel(fn: Callable[..., None]) -> Callable[..., Any]:
    """`fn(out, *inputs)` on blocks of contiguous rows, as a kernel along any axis.

    Half floats are widened to float32 for the computation.
    """

    def run(*arrays: Any, axis: int, **params: Any) -> Any:
        dtype, shape = arrays[0].dtype, arrays[0].shape
        arrays = tuple(_as_rows(a, axis) for a in arrays)
        rows, n = arrays[0].shape
        out = empty((rows, n), arrays[0].dtype)
        step = max(1, CHUNK // max(1, n))

        def task(lo: int, hi: int) -> None:
            with np.errstate(all="ignore"):
                for at in range(lo, hi, step):
                    part = slice(at, min(at + step, hi))
                    fn(out[part], *(a[part] for a in arrays), **params)

        parallel_for(rows, max(1, PARALLEL // 2 // max(1, n)), task)
        moved = out.reshape(*shape[:axis], *shape[axis + 1 :], n)
        return np.moveaxis(moved, -1, axis).astype(dtype, copy=False)

    return run


def _as_rows(a: Any, axis: int) -> Any:
    a = np.moveaxis(a, axis, -1)
    a = np.ascontiguousarray(a).reshape(-1, a.shape[-1]) if a.size else a.reshape(0, a.shape[-1])
    return a.astype(np.float32) if a.dtype.itemsize == 2 else a


def softmax(out: Any, x: Any) -> None:
    np.subtract(x, x.max(axis=1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, np.add.reduce(out, axis=1, keepdims=True), out=out)


def softmax_move(out: Any, g: Any, y: Any) -> None:
    np.multiply(g, y, out=out)
    np.subtract(out, y * np.add.reduce(out, axis=1, keepdims=True), out=out)


def log_softmax(out: Any, x: Any) -> None:
    moved = x - x.max(axis=1, keepdims=True)
    np.exp(moved, out=out)
    np.subtract(moved, np.log(np.add.reduce(out, axis=1, keepdims=True)), out=out)


def log_softmax_vjp(out: Any, g: Any, y: Any) -> None:
    np.exp(y, out=out)
    np.multiply(out, np.add.reduce(g, axis=1, keepdims=True), out=out)
    np.subtract(g, out, out=out)


def _row_mean(x: Any) -> Any:
    return np.add.reduce(x, axis=1, keepdims=True) / np.asarray(x.shape[1], x.dtype)


def standardize(out: Any, x: Any, eps: float) -> None:
    np.subtract(x, _row_mean(x), out=out)
    var = np.einsum("ij,ij->i", out, out)[:, None] / np.asarray(x.shape[1], x.dtype)
    np.multiply(out, 1 / np.sqrt(var + np.asarray(eps, x.dtype)), out=out)


def standardize_move(out: Any, g: Any, y: Any, x: Any, eps: float) -> None:
    off = x - _row_mean(x)
    n = np.asarray(x.shape[1], x.dtype)
    var = np.einsum("ij,ij->i", off, off)[:, None] / n
    scale = 1 / np.sqrt(var + np.asarray(eps, x.dtype))
    along = np.einsum("ij,ij->i", g, y)[:, None] / n
    np.subtract(g, _row_mean(g), out=out)
    np.subtract(out, y * along, out=out)
    np.multiply(out, scale, out=out)


def over_axes(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A row kernel over several axes: they are brought together at the end first."""

    def run(*arrays: Any, axes: Shape, eps: float) -> Any:
        ndim = arrays[0].ndim
        order = (*(a for a in range(ndim) if a not in axes), *axes)
        moved = [np.transpose(a, order) for a in arrays]
        kept = moved[0].shape[: ndim - len(axes)]
        flat = [m.reshape(size_of(kept), size_of(m.shape[len(kept) :])) for m in moved]
        out = kernel(*flat, axis=1, eps=eps).reshape(moved[0].shape)
        return np.transpose(out, tuple(int(i) for i in np.argsort(order)))

    return run
