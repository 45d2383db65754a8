"""The different elements of a tensor: sorted, with where and how often they stand.

Every NaN is an element of its own. The number of different elements is read from the device: eager
only. Nothing here has a derivative.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import AxisError
from everygrad.ops.elementwise.basic import imag, real
from everygrad.ops.index.gather import last_write, taken
from everygrad.ops.index.masks import true_places
from everygrad.ops.index.sort import argsort
from everygrad.ops.python.creation import full, ones
from everygrad.ops.record import samples as s
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.reduce.scans import cumulative_sum, diff
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import slice_axis


class UniqueAll(NamedTuple):
    """The elements, where each first stands, which of them every element is, and their counts."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The elements, and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The elements, and which of them every element is."""

    values: Tensor
    inverse_indices: Tensor


def _order(columns: list[Tensor]) -> Tensor:
    """The order of rows given by columns, the first counting most: sorted by the last one first."""
    order = argsort(columns[-1])
    for column in reversed(columns[:-1]):
        order = taken(order, argsort(taken(column, order)))
    return order


def _columns(rows: Tensor) -> list[Tensor]:
    """(n, width) as real vectors to sort by; complex numbers by their real part first."""
    split = [rows[:, i] for i in range(rows.shape[1])]
    if rows.dtype.is_complex:
        return [part(v) for v in split for part in (real, imag)]
    return split


class _Groups(NamedTuple):
    """Rows in order, and where a group of equal ones begins."""

    order: Tensor
    rows: Tensor
    first: Tensor  # bool
    starts: Tensor


def _grouped(op: str, rows: Tensor) -> _Groups:
    n, width = rows.shape
    if n == 0 or width == 0:  # rows of nothing are all alike
        order = true_places(op, ones((n,), dtypes.bool_, rows.device))
        first = order == 0
    else:
        order = _order(_columns(rows))
        rows = taken(rows, order)
        changes = slice_axis(rows, 0, 1, n - 1) != slice_axis(rows, 0, 0, n - 1)
        changed = changes.reshape(-1) if width == 1 else changes.any(axis=1)
        first = concat([ones((1,), dtypes.bool_, rows.device), changed])
    return _Groups(order, rows, first, true_places(op, first))


def _inverse(groups: _Groups) -> Tensor:
    """The number of each row's group, where the row stood."""
    n = groups.order.shape[0]
    back = last_write(groups.order, n)
    return taken(cumulative_sum(groups.first) - 1, back)


def _counts(groups: _Groups) -> Tensor:
    n = groups.order.shape[0]
    end = full((1,), n, dtypes.int64, groups.order.device)
    return diff(concat([groups.starts, end]))


def _flat(op: str, x: Tensor) -> tuple[_Groups, Tensor]:
    """The groups of all elements, and one element of each."""
    groups = _grouped(op, x.detach().reshape(-1, 1))
    return groups, taken(groups.rows, groups.starts).reshape(-1)


def _samples() -> Any:
    yield sample(np.array([[2.0, -1.0], [2.0, np.nan]]))
    yield sample(s.integers(0))


def _reference(*wanted: str) -> Any:
    """NumPy's, with every NaN on its own."""

    def reference(x: Any) -> Any:
        keys = ("values", "indices", "inverse_indices", "counts")
        found = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
        )
        named = dict(zip(keys, found, strict=True))
        named["inverse_indices"] = named["inverse_indices"].reshape(x.shape)
        return [named[w] for w in wanted]

    return reference


_FACTS: dict[str, Any] = {
    "by_values": True,
    "flat": True,
    "gives": "index",
    "samples": _samples,
    "methods": (),
}


@composite(reference=_reference("values", "indices", "inverse_indices", "counts"), **_FACTS)
def unique_all(x: Tensor) -> UniqueAll:
    """The different elements in order, their first indices, the inverse, and their counts."""
    groups, values = _flat("unique_all", x)
    indices = taken(groups.order, groups.starts)
    return UniqueAll(values, indices, _inverse(groups).reshape(x.shape), _counts(groups))


@composite(reference=_reference("values", "counts"), **_FACTS)
def unique_counts(x: Tensor) -> UniqueCounts:
    """The different elements in order, and how often each occurs."""
    groups, values = _flat("unique_counts", x)
    return UniqueCounts(values, _counts(groups))


@composite(reference=_reference("values", "inverse_indices"), **_FACTS)
def unique_inverse(x: Tensor) -> UniqueInverse:
    """The different elements in order, and for each element of x which of them it is."""
    groups, values = _flat("unique_inverse", x)
    return UniqueInverse(values, _inverse(groups).reshape(x.shape))


@composite(reference=_reference("values"), **_FACTS)
def unique_values(x: Tensor) -> Tensor:
    """The different elements in order."""
    return _flat("unique_values", x)[1]


def _unique_reference(
    x: Any, return_inverse: bool = False, return_counts: bool = False, axis: Any = None
) -> Any:
    fn: Any = np.unique  # its types know no flags that are variables
    out = fn(x, False, return_inverse, return_counts, axis, equal_nan=False)
    parts = list(out) if isinstance(out, tuple) else [out]
    if return_inverse and axis is None:
        parts[1] = parts[1].reshape(x.shape)
    return parts


@composite(
    by_values=True,
    flat=True,
    gives="index",
    reference=_unique_reference,
    samples=lambda: iter(
        (
            sample(np.array([[2.0, -1.0], [2.0, 0.5]])),
            sample(
                np.array([[2, 1], [0, 1], [2, 1]]), return_inverse=True, return_counts=True, axis=0
            ),
        )
    ),
    refuses=(refuse(AxisError, "unique: axis 2 is out of range", s.real(2, 2), axis=2),),
)
def unique(
    x: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
    """The different elements, or slices along an axis, always in order; PyTorch's form.

    return_inverse, return_counts  a tuple, with these behind the elements
    """
    if axis is None:
        groups, values = _flat("unique", x)
        shape = x.shape
    else:
        at = shapes.axis_index(axis, x.ndim, "unique")
        moved = x.detach().moveaxis(at, 0)
        shape = moved.shape[:1]
        groups = _grouped("unique", moved.reshape((shape[0], shapes.size_of(moved.shape[1:]))))
        picked = taken(moved, taken(groups.order, groups.starts))
        values = picked.moveaxis(0, at)
    parts = [values]
    parts += [_inverse(groups).reshape(shape)] if return_inverse else []
    parts += [_counts(groups)] if return_counts else []
    return tuple(parts) if len(parts) > 1 else values
