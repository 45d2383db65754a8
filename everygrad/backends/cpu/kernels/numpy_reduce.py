"""Reductions on NumPy arrays, split over threads.

Blocks depend on the shape only, never on the number of threads: any machine gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad.backends.thread_pool import parallel_for
from everygrad.compiler.accumulate import identity
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, reduced, size_of
from everygrad.dtypes import float64

# elements up to which the order of summation does not matter
SMALL = edge(__name__, "SMALL", 1 << 10, "elements")
# terms of a block, which is summed sequentially; then blocks are summed
BLOCK = edge(__name__, "BLOCK", 256, "size")
# elements worked on at a time: input, output and temporaries stay in L2
CHUNK = edge(__name__, "CHUNK", 1 << 15, "elements")
# elements from which a second thread pays
PARALLEL = edge(__name__, "PARALLEL", 1 << 17, "elements")

_ADD: Any = np.add  # NumPy's types know no tuple of axes
_OR: Any = np.logical_or
_START = identity("add", float64)
_WIDER = {np.dtype(np.float32): np.dtype(np.float64), np.dtype("complex64"): np.dtype("complex128")}


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
        return _ADD.reduce(x, 1, initial=_START)
    if rows == 1 and n >= 2 * CHUNK:
        whole = n - n % CHUNK
        parts = _sum_rows(x[0, :whole].reshape(-1, CHUNK))
        return np.add.reduce(parts, keepdims=True) + np.add.reduce(x[0, whole:], keepdims=True)
    out = np.empty(rows, x.dtype)
    parallel_for(
        rows,
        max(1, PARALLEL // 2 // max(1, n)),
        lambda lo, hi: _ADD.reduce(x[lo:hi], 1, None, out[lo:hi], initial=_START),
    )
    return out


def _sum_columns(x: Any) -> Any:
    """(outer, n, inner) -> (outer, inner), in blocks: a running sum loses three digits by 1e6.
    The sums of blocks are added in a wider dtype, and so is the result."""
    while (n := x.shape[1]) > BLOCK and x.size:
        whole = n - n % BLOCK
        outer, _, inner = x.shape
        blocks = np.add.reduce(x[:, :whole].reshape(outer, -1, BLOCK, inner), axis=2)
        if whole < n:
            rest = np.add.reduce(x[:, whole:], axis=1)[:, None]
            blocks = np.concatenate([blocks, rest], axis=1)
        x = blocks.astype(_WIDER.get(x.dtype, x.dtype), copy=False)
    return _ADD.reduce(x, 1, initial=_START)


def _sum_run(x: Any, first: int, last: int) -> Any:
    """The sum over adjacent axes, with keepdims."""
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
        return _ADD.reduce(x, axes, dtype, None, keepdims, _START)
    count = size_of(tuple([x.shape[a] for a in axes]))
    if count <= BLOCK and x.size < PARALLEL and dtype.itemsize > 2 and not mean:
        return _ADD.reduce(x, axes, dtype, None, keepdims, _START)
    trailing = axes[-1:] == (x.ndim - 1,) and axes[0] == x.ndim - len(axes)
    if trailing and count and x.size < PARALLEL and dtype.itemsize > 2:  # rows, as they lie
        total = _ADD.reduce(x.reshape(-1, count), 1, None, None, False, _START)
        if mean:
            total = total / np.asarray(count, dtype)
        return total.reshape(reduced(x.shape, axes, keepdims)).astype(dtype, copy=False)
    total = x.astype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else x
    for first, last in _runs(axes):
        total = _sum_run(total, first, last)
    if total is x:  # no axes: each element is its own sum
        total = x + x.dtype.type(_START)
    if mean:
        total = total / np.asarray(count, total.dtype)
    return total.reshape(reduced(x.shape, axes, keepdims)).astype(dtype, copy=False)


def extreme(ufunc: Any) -> Callable[..., Any]:
    """max or min. NumPy treats both zeros as equal, so the order of elements would decide which
    one is the result."""

    def run(x: Any, axes: Shape, keepdims: bool, mean: bool = False) -> Any:
        out = ufunc.reduce(x, axis=axes, keepdims=keepdims)
        if np.count_nonzero(out) == out.size or x.dtype.kind in "iub":
            return out
        negative, any_of = np.signbit(x), _OR
        if ufunc is np.minimum:
            below = any_of.reduce((x == 0) & negative, axis=axes, keepdims=keepdims)
        else:
            below = ~any_of.reduce((x == 0) & ~negative, axis=axes, keepdims=keepdims)
        return np.where(out == 0, np.where(below, -0.0, 0.0), out).astype(out.dtype)

    return run


def by_ufunc(ufunc: Any) -> Callable[..., Any]:
    """A reduction in which the order does not matter."""

    def run(x: Any, axes: Shape, keepdims: bool, mean: bool = False) -> Any:
        return ufunc.reduce(x, axis=axes, keepdims=keepdims)

    return run
