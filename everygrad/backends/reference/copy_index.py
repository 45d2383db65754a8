"""What moves, picks and orders elements, and what adds them up where they meet."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from everygrad.backends.reference.tolerance import (
    Expected,
    Way,
    growth,
    is_exact,
    kind_of,
    off,
    total,
    unit,
    wide,
)
from everygrad.core.shapes import Shape

# NumPy's types know neither tuples of axes nor slices in places to add at
_ADD: Any = np.add
_MULTIPLY: Any = np.multiply

# --- movement ------------------------------------------------------------------------------------


def _slices(slices: Any) -> tuple[slice, ...]:
    """(start, count, step) triples as Python slices."""
    made = []
    for start, count, step in slices:
        stop = start + count * step
        made.append(slice(start, stop if stop >= 0 else None, step) if count else slice(0, 0))
    return tuple(made)


def _unslice(x: Any, shape: Shape, slices: Any) -> Expected:
    out = np.zeros(shape, x.dtype)
    out[_slices(slices)] = x
    return Expected(out)


# --- reductions ----------------------------------------------------------------------------------


def reduce(x: Any, combine: str, mean: bool, axes: Shape, keepdims: bool) -> Expected:
    """By the record's way of combining."""
    if combine in ("and", "or"):
        fn: Any = np.logical_and if combine == "and" else np.logical_or
        return Expected(fn.reduce(x, axis=axes, keepdims=keepdims))
    if combine in ("max", "min"):
        whole: Any = np.maximum if combine == "max" else np.minimum
        held = wide(x)
        return Expected(whole.reduce(held, axis=axes, keepdims=keepdims), signed=False)
    if is_exact(x.dtype):
        return Expected(_ADD.reduce(x, axis=axes, keepdims=keepdims, dtype=x.dtype))
    held = wide(x)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    value = _ADD.reduce(held, axis=axes, keepdims=keepdims)
    size = _ADD.reduce(np.abs(held), axis=axes, keepdims=keepdims)
    if mean:  # of no elements: nothing by nothing, NaN
        value, size = value / count if count else value / np.float64(0), size / max(1, count)
    return total(value, size, count, x.dtype)


def _prod(x: Any, axes: Shape, keepdims: bool) -> Expected:
    if is_exact(x.dtype):
        return Expected(_MULTIPLY.reduce(x, axis=axes, keepdims=keepdims, dtype=x.dtype))
    value = _MULTIPLY.reduce(wide(x), axis=axes, keepdims=keepdims)
    count = x.size // max(1, value.size)
    return Expected(value, off(value, x.dtype, 2 + count))


def _arg(fn: Any) -> Way:
    def run(x: Any, axis: int, keepdims: bool) -> Expected:
        if not x.size:
            return Expected(np.zeros(np.sum(x, axis=axis, keepdims=keepdims).shape, np.int64))
        return Expected(np.asarray(fn(wide(x), axis=axis, keepdims=keepdims)))

    return run


# --- indexing ------------------------------------------------------------------------------------


def _places(index: Any, axis: int) -> tuple[Any, ...]:
    """NumPy's index of the elements that `index` names along an axis."""
    found = list(np.indices(index.shape, sparse=True))
    found[axis] = index.astype(np.int64)
    return tuple(found)


def _gather(x: Any, index: Any, axis: int) -> Expected:
    return Expected(x[_places(index, axis)])


def _added(x: Any, at: tuple[Any, ...], source: Any) -> Expected:
    """x with sources added at places, which may come several times."""
    if is_exact(x.dtype):
        out = x.copy()
        _ADD.at(out, at, source)
        return Expected(out)
    value, size, count = wide(x), np.abs(wide(x)), np.zeros(x.shape, np.int64)
    _ADD.at(value, at, wide(source))
    _ADD.at(size, at, np.abs(wide(source)))
    _ADD.at(count, at, 1)
    most = int(count.max(initial=0)) + 1
    made = total(value, size, most, x.dtype)
    # halves are added one by one where they lie, and rounded each time
    stepwise = min(most, growth(most)) * unit(x.dtype) * size if x.dtype.itemsize == 2 else 0.0
    return made._replace(error=made.error + stepwise)


def _index_add(x: Any, index: Any, source: Any, axis: int) -> Expected:
    at = (slice(None),) * axis + (index.astype(np.int64),)
    return _added(x, at, source)


def _scatter_add(x: Any, index: Any, source: Any, axis: int) -> Expected:
    return _added(x, _places(index, axis), source)


def _last_write(index: Any, size: int) -> Expected:
    out = np.full(size, -1, index.dtype)
    for place, name in enumerate(index.tolist()):
        out[name] = place
    return Expected(out)


def _index_put(x: Any, index: Any, values: Any) -> Expected:
    out = x.copy()
    last = {name: place for place, name in enumerate(index.tolist())}
    if last:
        out[list(last)] = values[list(last.values())]
    return Expected(out)


def _scatter_extreme(fn: Any, lowest: bool) -> Way:
    def run(x: Any, index: Any, source: Any, include_self: bool) -> Expected:
        out = wide(x).copy()
        if not include_self:
            out[index] = _edge(out.dtype, lowest)
        fn.at(out, index, wide(source))
        return Expected(out, signed=False)

    return run


def _edge(dtype: Any, lowest: bool) -> Any:
    if is_exact(dtype):
        return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max
    return -np.inf if lowest else np.inf


def _scatter_prod(x: Any, index: Any, source: Any, include_self: bool) -> Expected:
    out = wide(x).copy()
    count = np.zeros(x.shape, np.int64)
    if not include_self:
        out[index] = 1
    _MULTIPLY.at(out, index, wide(source))
    _ADD.at(count, index, 1)
    if is_exact(x.dtype):
        return Expected(out)
    return Expected(out, off(out, x.dtype, 2 + int(count.max(initial=0))))


# --- orders and searches -------------------------------------------------------------------------


def _order(x: Any, axis: int, descending: bool) -> Any:
    """The stable order; NaN is larger than every number."""
    x = wide(x)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(order, axis)


def _sort(x: Any, axis: int, descending: bool) -> Expected:
    order = _order(x, axis, descending)
    return Expected(np.take_along_axis(x, order, axis), signed=False)


def _top_index(x: Any, axis: int, k: int, largest: bool) -> Expected:
    return Expected(np.take(_order(x, axis, largest), range(k), axis=axis))


def _searchsorted(x: Any, values: Any, right: bool) -> Expected:
    side: Any = "right" if right else "left"
    rows = zip(wide(x), wide(values), strict=True)
    found = [np.searchsorted(row, wanted, side) for row, wanted in rows]
    return Expected(np.asarray(found, np.int64).reshape(values.shape))


# --- scans ---------------------------------------------------------------------------------------


def _cumulative_sum(x: Any, axis: int, reverse: bool) -> Expected:
    if reverse:
        value, error, _ = _cumulative_sum(np.flip(x, axis), axis, False)
        flipped = None if error is None else np.flip(error, axis)
        return Expected(np.flip(value, axis), flipped)
    if is_exact(x.dtype):
        return Expected(np.cumsum(x, axis=axis, dtype=x.dtype))
    value, size = np.cumsum(wide(x), axis=axis), np.cumsum(np.abs(wide(x)), axis=axis)
    return total(value, size, x.shape[axis], x.dtype)


def _cumulative_prod(x: Any, axis: int) -> Expected:
    if is_exact(x.dtype):
        return Expected(np.cumprod(x, axis=axis, dtype=x.dtype))
    value = np.cumprod(wide(x), axis=axis)
    return Expected(value, off(value, x.dtype, 2 + x.shape[axis]))


def _recurrence(a: Any, b: Any, axis: int) -> Expected:
    """out[i] = b[i] + a[i] out[i - 1]."""
    exact = is_exact(b.dtype)
    factors, out = np.moveaxis(wide(a), axis, 0), np.moveaxis(wide(b), axis, 0).copy()
    size = np.abs(out)
    for i in range(1, len(out)):
        out[i] += factors[i] * out[i - 1]
        size[i] += np.abs(factors[i]) * size[i - 1]
    value = np.moveaxis(out, 0, axis)
    if exact:
        return Expected(value)
    return total(value, np.moveaxis(size, 0, axis), b.shape[axis], b.dtype)


def _logcumsumexp(x: Any, axis: int) -> Expected:
    value = np.logaddexp.accumulate(wide(x), axis=axis)
    size = np.abs(np.where(np.isfinite(value), value, 0)) + 1
    size = np.maximum.accumulate(size, axis=axis)
    return total(value, size, x.shape[axis], x.dtype)


def _extreme_index(fn: Any) -> Way:
    """The last place of the extreme so far; a NaN stays it."""

    def run(x: Any, axis: int) -> Expected:
        x = np.moveaxis(wide(x), axis, 0)
        found = np.zeros(x.shape, np.int64)
        best: Any = None
        for i, row in enumerate(x):
            if best is None:
                best = row.copy()
                continue
            new = fn(row, best) | (row != row) if kind_of(x.dtype) != "b" else fn(row, best)
            found[i] = np.where(new, i, found[i - 1])
            best = np.where(new, row, best)
        return Expected(np.moveaxis(found, 0, axis))

    return run


def _not_below(row: Any, best: Any) -> Any:
    return row >= best


def _not_above(row: Any, best: Any) -> Any:
    return row <= best


# --- windows over images -------------------------------------------------------------------------


def _windows(shape: Shape, window: Any) -> Any:
    """For each element of the window, the rows and columns of the image it is laid over."""
    height, width = window.out_size(shape)
    (sh, sw), (ph, pw), (dh, dw) = window.stride, window.padding, window.dilation
    for i, j in product(*map(range, window.size)):
        rows = (np.arange(height) * sh - ph + i * dh)[:, None]
        columns = (np.arange(width) * sw - pw + j * dw)[None, :]
        inside = (rows >= 0) & (rows < shape[2]) & (columns >= 0) & (columns < shape[3])
        yield np.where(inside, rows, 0), np.where(inside, columns, 0), inside


def _largest(x: Any, window: Any) -> Any:
    """The flat place of the first largest element of each window; -1 where it has none."""
    held = wide(x)
    shape = (*x.shape[:2], *window.out_size(x.shape))
    found, best = np.full(shape, -1, np.int64), np.zeros(shape, held.dtype)
    for rows, columns, inside in _windows(x.shape, window):
        v = held[:, :, rows, columns]
        better = inside & ((found < 0) | (v > best) | ((v != v) & (best == best)))
        found = np.where(better, rows * x.shape[3] + columns, found)
        best = np.where(better, v, best)
    return found


def _at_largest(x: Any, window: Any) -> tuple[Any, ...]:
    found = _largest(x, window)
    n, c = np.indices(x.shape[:2], sparse=True)
    return n[..., None, None], c[..., None, None], found // x.shape[3], found % x.shape[3]


def _max_pool(x: Any, window: Any) -> Expected:
    return Expected(x[_at_largest(x, window)])


def _max_pool_spread(y: Any, x: Any, window: Any) -> Expected:
    return _added(np.zeros(x.shape, y.dtype), _at_largest(x, window), y)


def _sum_pool(x: Any, window: Any) -> Expected:
    held = wide(x)
    shape = (*x.shape[:2], *window.out_size(x.shape))
    value, size = np.zeros(shape, held.dtype), np.zeros(shape, np.abs(held).dtype)
    for rows, columns, inside in _windows(x.shape, window):
        v = np.where(inside, held[:, :, rows, columns], 0)
        value, size = value + v, size + np.abs(v)
    return total(value, size, window.size[0] * window.size[1], x.dtype)


def _sum_pool_spread(y: Any, window: Any, image: Shape) -> Expected:
    held = wide(y)
    value, size = np.zeros(image, held.dtype), np.zeros(image, np.abs(held).dtype)
    for rows, columns, inside in _windows(image, window):
        part = np.where(inside, held, 0)
        _ADD.at(value, (slice(None), slice(None), rows, columns), part)
        _ADD.at(size, (slice(None), slice(None), rows, columns), np.abs(part))
    return total(value, size, window.size[0] * window.size[1], y.dtype)


def _weighted_gather_sum(
    x: Any, index: Any, weights: Any, back: Any, shares: Any, axis: int
) -> Expected:
    """A weight of 0 is no term, whatever is read."""
    held = weights.reshape((*weights.shape, *(1,) * (x.ndim - axis - 1)))
    terms = np.where(held == 0, 0, np.take(wide(x), index, axis=axis) * wide(held))
    value, size = terms.sum(axis=axis), np.abs(terms).sum(axis=axis)
    return total(value, size, len(index), x.dtype)


def _same(fn: Callable[..., Any]) -> Way:
    return lambda *arrays, **params: Expected(fn(*arrays, **params))


def _matrix_part(x: Any, axis: int, start: int, count: int) -> Expected:
    found = np.take(x, range(start, start + abs(count)), axis=axis)
    return Expected(found.squeeze(axis) if count == -1 else found)


WAYS: dict[str, Way] = {
    "matrix_part": _matrix_part,
    "reshape": _same(lambda x, shape: x.reshape(shape)),
    "permute_dims": _same(lambda x, axes: x.transpose(axes)),
    "broadcast_to": _same(lambda x, shape: np.broadcast_to(x, shape)),
    "slice": _same(lambda x, slices: x[_slices(slices)]),
    "unslice": _unslice,
    # where devices check values, the values are what they were
    "to": _same(lambda x, device, source: x),
    "identity": _same(lambda x: x),
    "check_range": _same(lambda x, size, what: x),
    "check_true": _same(lambda ok, what, error: ok),
    "ensure": _same(lambda x, ok, what, error: x),
    "concat": _same(lambda *xs, axis, sizes: np.concatenate(xs, axis=axis)),
    "take": _same(lambda x, index, axis: np.take(x, index, axis=axis)),
    "gather": _gather,
    "index_add": _index_add,
    "scatter_add": _scatter_add,
    "last_write": _last_write,
    "index_put": _index_put,
    "scatter_max": _scatter_extreme(np.maximum, True),
    "scatter_min": _scatter_extreme(np.minimum, False),
    "scatter_prod": _scatter_prod,
    "prod": _prod,
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    "argsort": _same(_order),
    "sort": _sort,
    "top_index": _top_index,
    "searchsorted": _searchsorted,
    "nonzero_indices": _same(lambda mask, count: np.flatnonzero(mask)),
    "cumulative_sum": _cumulative_sum,
    "cumulative_prod": _cumulative_prod,
    "recurrence": _recurrence,
    "logcumsumexp": _logcumsumexp,
    "cummax_index": _extreme_index(_not_below),
    "cummin_index": _extreme_index(_not_above),
    "max_pool2d_index": _same(_largest),
    "max_pool2d_value": _max_pool,
    "max_pool2d_spread": _max_pool_spread,
    "sum_pool2d": _sum_pool,
    "sum_pool2d_spread": _sum_pool_spread,
    "weighted_gather_sum": _weighted_gather_sum,
}
