"""Searching sorted tensors, membership, and counts by bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply, operands
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import isnan, minimum, where
from everygrad.ops.index.gather import gather, index_add, known, take_along_axis, taken
from everygrad.ops.index.sort import sort
from everygrad.ops.python.creation import arange, ones, tensor, zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel, check_kind
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.record.splits import search_axes
from everygrad.ops.shape.joining import stack
from everygrad.ops.shape.movement import slice_axis

# --- places in a sorted row ----------------------------------------------------------------------


def _search_portable(x: Tensor, values: Tensor, right: bool) -> Tensor:
    """Halving: the place is built bit by bit, from the highest. NaN counts as the largest."""
    n = x.shape[1]
    place = zeros(values.shape, dtypes.int32, x.device)
    for bit in reversed(range(n.bit_length())):
        tried = place + (1 << bit)
        there = gather(x, minimum(tried, n) - 1, 1)
        before = there <= values if right else there < values
        if x.dtype.is_float:
            before = before | (isnan(values) if right else isnan(values) & ~isnan(there))
        place = where(before & (tried <= n), tried, place)
    return place.astype(dtypes.int64)


def _search_batch(inputs: list[Tensor], right: bool) -> Tensor:
    x, values = inputs
    rows = [v.reshape((v.shape[0] * v.shape[1], v.shape[2])) for v in (x, values)]
    return apply(SEARCHSORTED, *rows, right=right).reshape(values.shape)


SEARCHSORTED: Kernel = Kernel(
    "searchsorted",
    _search_portable,
    ("x", "values"),
    constant=True,
    batch=_search_batch,
    result=lambda x, values, right: (values.shape, dtypes.int64),
    splits=search_axes,
)


def _searched(op: str, x: Tensor, values: Any, right: bool) -> Tensor:
    x, values = operands(op, x, values)
    check_kind(op, x.dtype, "ordered")
    if x.dtype is dtypes.bool_:
        x, values = x.astype(dtypes.uint8), values.astype(dtypes.uint8)
    if x.ndim != 1 and (x.ndim == 0 or x.shape[:-1] != values.shape[:-1]):
        raise ShapeError(
            f"{op}: {x.shape} and values of {values.shape}: the sorted tensor must be a vector, or "
            f"both must have the same axes but for the last"
        )
    count = shapes.size_of(x.shape[:-1])
    rows = x.reshape((count, x.shape[-1]))
    width = values.size if x.ndim == 1 else values.shape[-1]
    found = apply(SEARCHSORTED, rows, values.reshape((count, width)), right=right)
    return found.reshape(values.shape)


def searchsorted(
    sorted_sequence: Tensor,
    values: Any,
    side: str | None = None,
    sorter: Tensor | None = None,
    *,
    right: bool = False,
    out_int32: bool = False,
) -> Tensor:
    """The index at which each value can be put into a sequence, sorted along its last axis, and
    keep order.

    side       "left": before equal elements, "right": after them, which right=True says too
    sorter     indices that sort it, where it is not sorted itself
    out_int32  whether indices are int32, not int64
    """
    if right and side == "left":
        raise ArgumentError('searchsorted: right=True and side="left" say two things; give one')
    side = side or ("right" if right else "left")
    if side not in ("left", "right"):
        raise ArgumentError(f'searchsorted: side must be "left" or "right", got {side!r}')
    if sorter is not None:
        sorted_sequence = take_along_axis(sorted_sequence, sorter, -1)
    found = _searched("searchsorted", sorted_sequence, values, side == "right")
    return found.astype(dtypes.int32) if out_int32 else found


register(
    SEARCHSORTED,
    searchsorted,
    methods=("searchsorted",),
    kinds="ordered",
    gives="index",
    # of the sorted x: the tests put other numbers in its place
    tested_as=lambda x, *rest, **more: searchsorted(sort(x), *rest, **more),
    reference=lambda x, *rest, **more: np.searchsorted(np.sort(x), *rest, **more),
    samples=lambda: iter(
        (
            sample(np.array([-1.0, 0.5, 0.5, np.nan]), np.array([[0.5, np.nan], [-2.0, 9.0]])),
            sample(s.real(3), s.real(2, seed=1), side="right"),
        )
    ),
    refuses=(
        refuse(ArgumentError, "searchsorted: side must be .*got 'up'", s.real(3), s.real(2), "up"),
        refuse(ShapeError, "searchsorted: .*the sorted tensor must be a", s.real(2, 3), s.real(2)),
    ),
)


@composite(
    kinds="ordered",
    gives="index",
    flat=True,
    tested_as=lambda x, boundaries, **more: bucketize(x, sort(boundaries), **more),
    reference=lambda x, boundaries, right=False: np.searchsorted(
        np.sort(boundaries), x, "right" if right else "left"
    ),
    samples=lambda: iter((sample(s.real(2, 2), s.real(3, seed=1), right=True),)),
    refuses=(
        refuse(ShapeError, "bucketize: boundaries must be a vector", s.real(3), s.real(2, 2)),
    ),
)
def bucketize(
    x: Any, boundaries: Tensor, right: bool = False, *, out_int32: bool = False
) -> Tensor:
    """The number of the bucket of each element: boundaries[i - 1] < x <= boundaries[i].

    right      the buckets are closed on the other side: boundaries[i - 1] <= x < boundaries[i]
    out_int32  whether indices are int32, not int64
    """
    if boundaries.ndim != 1:
        raise ShapeError(f"bucketize: boundaries must be a vector, got shape {boundaries.shape}")
    found = _searched("bucketize", boundaries, x, right)
    return found.astype(dtypes.int32) if out_int32 else found


@composite(
    flat=True,
    reference=lambda x, elements, invert=False: np.isin(x, elements, invert=invert),
    samples=lambda: iter(
        (
            sample(np.array([[1.0, 2.0], [np.nan, -3.0]]), np.array([2.0, -3.0, np.nan])),
            sample(s.integers(4), s.integers(3, seed=1), invert=True),
            sample(s.real(2), s.real(0)),
        )
    ),
    refuses=(refuse(DtypeError, "isin: takes tensors and numbers, got str", s.real(2), "one"),),
)
def isin(x: Any, test_elements: Any, invert: bool = False) -> Tensor:
    """Whether each element of x is among `test_elements` (or is not); NaN never is."""
    x, elements = operands("isin", x, test_elements)
    elements = elements.reshape(-1)
    if elements.size == 0:
        found = zeros(x.shape, dtypes.bool_, x.device)
    elif x.dtype.is_complex:  # no order to search in
        found = (x.expand_dims(-1) == elements).any(axis=-1)
    else:
        ordered = sort(elements.detach())
        place = _searched("isin", ordered, x.detach(), False)
        found = taken(ordered, minimum(place, elements.size - 1), 0) == x
    return ~found if invert else found


# --- counts --------------------------------------------------------------------------------------


def _counts(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    if weights is None:
        return np.bincount(x, minlength=minlength)
    out = np.zeros(max(minlength, x.max() + 1), weights.dtype)
    np.add.at(out, x, weights)
    return out


@composite(
    by_values=True,
    gives="index",
    torch="tests.support.beside_torch:bincount",
    reference=_counts,
    samples=lambda: iter(
        (
            sample(np.array([3, 1, 1]), s.real(3)),
            sample(np.array([0, 2]), minlength=4),
        )
    ),
    refuses=(
        refuse(DtypeError, "bincount: takes integers, got float64", s.real(3)),
        refuse(ArgumentError, "bincount: .*not be negative, got -1", np.array([2, -1])),
        refuse(ShapeError, "bincount: takes a vector", np.array([[1]])),
        refuse(ShapeError, "bincount: .*a weight for each", np.array([1]), s.real(2)),
    ),
)
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 on is in x, or the sum of the weights that stand beside it.

    The size of the result depends on the largest one, which is read: eager only.
    """
    if not x.dtype.is_integer:
        raise DtypeError(f"bincount: takes integers, got {x.dtype}; cast with astype()")
    if x.ndim != 1:
        raise ShapeError(f"bincount: takes a vector, got shape {x.shape}; flatten() it")
    if weights is not None and weights.shape != x.shape:
        raise ShapeError(
            f"bincount: weights of {weights.shape} for {x.shape}: it needs a weight for each"
        )
    size = max(shapes.as_int(minlength, "bincount", "minlength"), 0)
    if x.size:
        low, high = known("bincount", stack([x.min(), x.max()]))
        if low < 0:
            raise ArgumentError(f"bincount: the numbers must not be negative, got {low}")
        size = max(size, high + 1)
    each = ones(x.shape, dtypes.int64, x.device) if weights is None else weights
    return index_add(zeros((size,), each.dtype, x.device), x, each)


class Histogram(NamedTuple):
    """Counts, or weights, or densities by bin; and the edges between bins."""

    hist: Tensor
    bin_edges: Tensor


def _edges(x: Tensor, bins: Any, limits: tuple[float, float] | None) -> Tensor:
    if isinstance(bins, Tensor | Sequence):
        edges = bins if isinstance(bins, Tensor) else tensor(bins, x.dtype, x.device)
        if edges.ndim != 1 or edges.size < 2:
            raise ShapeError(f"histogram: edges are a vector of 2 or more, got {edges.shape}")
        return edges.astype(x.dtype)
    count = shapes.as_int(bins, "histogram", "bins")
    if count <= 0:
        raise ArgumentError(f"histogram: bins must be positive, got {count}")
    if limits is not None:
        low, high = (float(v) for v in limits)
        if not low <= high:
            raise ArgumentError(f"histogram: the range must not end before it begins, got {limits}")
        wider = 0.5 if low == high else 0.0
        return tensor(np.linspace(low - wider, high + wider, count + 1), x.dtype, x.device)
    if x.size == 0:
        return tensor(np.linspace(0.0, 1.0, count + 1), x.dtype, x.device)
    first, last = x.min(), x.max()
    flat = first == last  # all in the middle, as NumPy has it
    first, last = where(flat, first - 0.5, first), where(flat, last + 0.5, last)
    steps = arange(count + 1, dtype=x.dtype, device=x.device)
    return where(steps == count, last, first + steps * ((last - first) / float(count)))


def _histogram_reference(x: Any, bins: Any = 10, weights: Any = None, **more: Any) -> Any:
    return np.histogram(x, bins, weights=weights, **more)[0].astype(x.dtype)


@composite(
    kinds="real float",
    flat=True,
    tested_as=lambda *args, **more: histogram(*args, **more).hist,
    reference=_histogram_reference,
    samples=lambda: iter(
        (
            sample(s.real(2, 3), 3),
            sample(s.real(4), 2, weights=s.real(4, seed=1), range=(-1.0, 1.5), density=True),
        )
    ),
    refuses=(
        refuse(ArgumentError, "histogram: bins must be positive, got 0", s.real(3), 0),
        refuse(ShapeError, "histogram: weights of .*a weight for each", s.real(3), 2, s.real(2)),
        refuse(DtypeError, "histogram: does not take int64", s.integers(3)),
        refuse(ArgumentError, "histogram: the range must", s.real(3), 2, range=(1.0, 0.0)),
        refuse(ShapeError, "histogram: edges are a vector", s.real(3), [1.0]),
    ),
)
def histogram(
    x: Tensor,
    bins: int | Sequence[float] | Tensor = 10,
    weights: Tensor | None = None,
    range: tuple[float, float] | None = None,
    density: bool = False,
) -> Histogram:
    """How many elements lie in each bin, in x's dtype, and the edges of the bins.

    bins     so many of equal width, or the edges; the last one is closed on both sides
    weights  sums of these instead; they have derivatives
    range    from where to where the bins reach; of all elements where it is not given
    density  divided by the total and the width of each bin
    """
    check_kind("histogram", x.dtype, "real float")
    if weights is not None and weights.shape != x.shape:
        raise ShapeError(
            f"histogram: weights of {weights.shape} for {x.shape}: it needs a weight for each"
        )
    flat = x.detach().reshape(-1)
    edges = _edges(flat, bins, range)
    count = edges.shape[0] - 1
    first, last = slice_axis(edges, 0, 0, 1), slice_axis(edges, 0, count, 1)
    place = _searched("histogram", edges, flat, True) - 1
    place = where(flat == last, count - 1, place)
    inside = (flat >= first) & (flat <= last)
    each = ones(flat.shape, x.dtype, x.device) if weights is None else weights.reshape(-1)
    total = zeros((count + 1,), each.dtype, x.device)
    hist = slice_axis(index_add(total, where(inside, place, count), each), 0, 0, count)
    if density:
        widths = slice_axis(edges, 0, 1, count) - slice_axis(edges, 0, 0, count)
        hist = hist / widths / hist.sum()
    return Histogram(hist, edges)
