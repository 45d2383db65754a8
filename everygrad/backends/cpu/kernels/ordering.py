"""Sorts, scans and searches: NumPy for small arrays, compiled kernels for large ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad.backends.cpu.kernels import single_op
from everygrad.backends.cpu.kernels.half_conversions import widened
from everygrad.backends.cpu.runtime.threaded_numpy import in_slabs
from everygrad.compiler.accumulate import identity
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import bfloat16, float64, rounded

SHORT = edge(__name__, "SHORT", 128, "size")  # elements of a row up to which NumPy sorts as fast


def _tied(x: Any) -> Any:
    """Which rows have equal elements; a sort treats NaN as equal to NaN."""
    ordered = np.sort(x, axis=-1)
    first, second = ordered[..., :-1], ordered[..., 1:]
    return ((first == second) | (first != first)).any(axis=-1)


def _stable(x: Any, descending: bool) -> Any:
    """A stable argsort. NumPy puts NaN last; descending, it is first, and ties keep their order."""
    if not descending:
        return np.argsort(x, axis=-1, kind="stable")
    return x.shape[-1] - 1 - np.flip(np.argsort(np.flip(x, -1), axis=-1, kind="stable"), -1)


def argsort(x: Any, axis: int, descending: bool) -> Any:
    """A stable argsort. NumPy's unstable sort takes a quarter of the time, and few rows of floats
    have ties: only those are sorted again."""
    x = np.moveaxis(widened(x), axis, -1)
    if x.dtype.kind != "f" or x.shape[-1] < 2:
        return np.moveaxis(_stable(x, descending), -1, axis)
    tied = _tied(x)
    if 4 * np.count_nonzero(tied) >= tied.size:
        return np.moveaxis(_stable(x, descending), -1, axis)
    order = np.argsort(x, axis=-1)
    if descending:
        order = np.flip(order, -1).copy()
    if tied.any():
        order[tied] = _stable(x[tied], descending)
    return np.moveaxis(order, -1, axis)


def sort(x: Any, axis: int, descending: bool) -> Any:
    out = np.array(widened(x))
    in_slabs(lambda a, b: b.sort(axis=axis), out, out, axis)
    out = out.astype(x.dtype, copy=False)
    return np.flip(out, axis) if descending else out


def top_index(x: Any, axis: int, k: int, largest: bool) -> Any:
    """The elements beyond the k-th and the first of those equal to it, sorted."""
    x = np.moveaxis(widened(x), axis, -1)
    n = x.shape[-1]
    if 4 * k > n or k == 0 or (x.dtype.kind == "f" and np.isnan(x).any()):
        order = argsort(x, x.ndim - 1, largest)
        return np.moveaxis(order[..., :k], -1, axis)
    position = n - k if largest else k - 1
    limit = np.partition(x, position, axis=-1)[..., position : position + 1]
    beyond, equal = (x > limit if largest else x < limit), x == limit
    missing = k - np.count_nonzero(beyond, axis=-1)
    first = equal & (np.cumsum(equal, axis=-1) <= missing[..., None])
    found = np.nonzero((beyond | first).reshape(-1, n))[1].reshape((*x.shape[:-1], k))
    order = argsort(np.take_along_axis(x, found, -1), x.ndim - 1, largest)
    return np.moveaxis(np.take_along_axis(found, order, -1), -1, axis)


def _order(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
    """An op that runs compiled on large arrays, along the last axis."""

    def run(x: Any, axis: int, **params: Any) -> Any:
        few = x.size < single_op.LARGE >> 4 or x.shape[axis] < SHORT
        if few or x.dtype.kind == "c" or params.get("k") == 0:
            return usual(x, axis=axis, **params)
        rows = single_op.as_contiguous(np.moveaxis(x, axis, -1))
        found = single_op.call(name, *rows, axis=x.ndim - 1, **params)
        return np.moveaxis(found, -1, axis)

    return run


# --- scans ---------------------------------------------------------------------------------------

_START = identity("add", float64)
_WIDE = {"f": np.float64, "V": np.float64, "c": np.complex128}  # V: bfloat16


def _accumulate(fn: Any, x: Any, axis: int) -> Any:
    """A running sum or product in a wider dtype, so that it does not stagnate."""
    wide = _WIDE.get(x.dtype.kind, x.dtype)
    out = fn.accumulate(x.astype(wide, copy=False), axis=axis)
    return rounded(out, bfloat16) if x.dtype.kind == "V" else out.astype(x.dtype, copy=False)


def cumulative_sum(x: Any, axis: int, reverse: bool) -> Any:
    """Running sums that start at 0.0; NumPy's start with the first element, which may be -0.0."""
    if reverse:
        return np.flip(cumulative_sum(np.flip(x, axis), axis, False), axis)
    out = _accumulate(np.add, x, axis)
    out += _START
    return out


def _extreme_index(fn: Any) -> Callable[..., Any]:
    """The last index of the running extreme, by a scan of indices; NaN stays the extreme."""

    def run(x: Any, axis: int) -> Any:
        x = widened(x)
        best = fn.accumulate(x, axis=axis)
        position = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - axis - 1))
        hit = (x == best) | (x != x)
        return np.maximum.accumulate(np.where(hit, position, 0), axis=axis)

    return run


def recurrence(a: Any, b: Any, axis: int) -> Any:
    """y[i] = b[i] + a[i] y[i - 1]: compiled if large, else one step at a time."""
    if b.size >= single_op.LARGE and b.dtype.kind != "c":
        return single_op.call("recurrence", *single_op.as_contiguous(a, b), axis=axis)
    wide = _WIDE.get(b.dtype.kind, b.dtype)
    out = np.moveaxis(np.array(b, wide), axis, 0)
    for i, factor in enumerate(np.moveaxis(a, axis, 0)[1:]):
        out[i + 1] += factor * out[i]
    out = np.moveaxis(out, 0, axis)
    return rounded(out, bfloat16) if b.dtype.kind == "V" else out.astype(b.dtype, copy=False)


def logcumsumexp(x: Any, axis: int) -> Any:
    return _accumulate(np.logaddexp, x, axis)


def _scan(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
    """A scan that runs compiled on large arrays."""

    def run(x: Any, **params: Any) -> Any:
        if x.size < single_op.LARGE or x.dtype.kind in "bc":
            return usual(x, **params)
        return single_op.call(name, *single_op.as_contiguous(x), **params)

    return run


# --- searches ------------------------------------------------------------------------------------


def searchsorted(x: Any, values: Any, right: bool) -> Any:
    x, values = widened(x), widened(values)
    if values.size >= single_op.LARGE >> 4:
        return single_op.call("searchsorted", *single_op.as_contiguous(x, values), right=right)
    out = np.empty(values.shape, np.int64)
    for row, wanted, found in zip(x, values, out, strict=True):
        found[...] = np.searchsorted(row, wanted, "right" if right else "left")
    return out


def _combine_at(fn: Any, worst: Callable[[Any], Any]) -> Callable[..., Any]:
    """Combines each source into its target by a ufunc; `worst` is the identity of the ufunc."""

    def run(x: Any, index: Any, source: Any, include_self: bool) -> Any:
        out = np.array(widened(x))
        if not include_self:
            out[index] = worst(out.dtype)
        fn.at(out, index, widened(source))
        return out.astype(x.dtype, copy=False)

    return run


def _lowest(dtype: Any) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


KERNELS: dict[str, Callable[..., Any]] = {
    "argsort": _order("argsort", argsort),
    "sort": sort,
    "top_index": _order("top_index", top_index),
    "cumulative_sum": _scan("cumulative_sum", cumulative_sum),
    "cumulative_prod": _scan("cumulative_prod", lambda x, axis: _accumulate(np.multiply, x, axis)),
    "cummax_index": _scan("cummax_index", _extreme_index(np.maximum)),
    "cummin_index": _scan("cummin_index", _extreme_index(np.minimum)),
    "recurrence": recurrence,
    "logcumsumexp": _scan("logcumsumexp", logcumsumexp),
    "nonzero_indices": lambda mask, count: np.flatnonzero(mask),
    "searchsorted": searchsorted,
    "scatter_max": _combine_at(np.maximum, _lowest),
    "scatter_min": _combine_at(np.minimum, _highest),
    "scatter_prod": _combine_at(np.multiply, lambda dtype: 1),
}
