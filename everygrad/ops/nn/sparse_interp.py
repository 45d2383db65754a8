"""Linear maps along one axis whose results have few terms each: resizing, means of uneven windows.

Such a map is a table of what to read and what it weighs. Its transpose is such a table too, so that
derivatives gather as the map does: nothing is scattered, and sums have one order on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import taken
from everygrad.ops.python.creation import asarray
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import register, sample
from everygrad.ops.record.splits import table_axes


class Table:
    """For each of `out` results, `terms` elements of an axis of `size` and their weights.

    Arrays are (terms, out). A weight of 0 is no term: what is read there does not matter. Makers of
    tables keep them, so that one map is one object.
    """

    def __init__(self, size: int, index: Any, weights: Any) -> None:
        self.size = size
        self.index = index
        self.weights = weights

    def __repr__(self) -> str:
        return f"Table({self.size} to {self.index.shape[1]})"

    @cached_property
    def transposed(self) -> Table:
        """The table of the transposed map."""
        terms, places = np.nonzero(self.weights)
        read = self.index[terms, places]
        order = np.argsort(read, kind="stable")
        counts = np.bincount(read, minlength=self.size)
        starts = np.cumsum(counts) - counts
        rank = np.arange(len(read)) - starts[read[order]]
        shape = (max(1, int(counts.max(initial=0))), self.size)
        index, weights = np.zeros(shape, np.int64), np.zeros(shape)
        index[rank, read[order]] = places[order]
        weights[rank, read[order]] = self.weights[terms, places][order]
        made = Table(self.index.shape[1], index, weights)
        made.__dict__["transposed"] = self
        return made


def _portable(
    x: Tensor, index: Tensor, weights: Tensor, back: Tensor, shares: Tensor, axis: int
) -> Tensor:
    after = (1,) * (x.ndim - axis - 1)
    weights = weights.reshape((*weights.shape, *after))
    out = where(weights == 0, 0.0, taken(x, index, axis) * weights)
    return out.sum(axis=axis)


class _Weigh(Kernel):
    """Tables are constants: they are never batched."""

    def batched(
        self, values: Sequence[Tensor], flags: Sequence[bool], size: int, params: dict[str, Any]
    ) -> Tensor:
        return apply(WEIGH, *values, axis=params["axis"] + 1)


# the transposed table is an input too: what a derivative reads is known when it is recorded
WEIGH: Kernel = _Weigh(
    "weighted_gather_sum",
    _portable,
    ("x", "index", "weights", "back", "shares"),
    (
        lambda g, index, weights, back, shares, axis: apply(
            WEIGH, g, back, shares, index, weights, axis=axis
        ),
        None,
        None,
        None,
        None,
    ),
    linear=(0,),
    splits=table_axes,
)


def weighted_gather_sum(x: Tensor, axis: int, table: Table) -> Tensor:
    """The map along an axis of a floating-point tensor."""
    there = table.transposed
    tables = (
        asarray(table.index, dtype="int64", device=x.device),
        asarray(table.weights, dtype=x.dtype, device=x.device),
        asarray(there.index, dtype="int64", device=x.device),
        asarray(there.weights, dtype=x.dtype, device=x.device),
    )
    return apply(WEIGH, x, *tables, axis=axis)


def _reference(x: Any, axis: int, table: Table) -> Any:
    """By the matrix, written out."""
    matrix = np.zeros((table.index.shape[1], table.size))
    for term in range(len(table.index)):
        for place, i in enumerate(table.index[term]):
            matrix[place, i] += table.weights[term, place]
    return np.moveaxis(np.tensordot(x, matrix, (axis, 1)), -1, axis)


_SAMPLE = Table(
    3, np.array([[0, 2, 1, 0], [1, 0, 2, 0]]), np.array([[0.5, 2, 1, -1], [3, 0, 1, 1]])
)

register(
    WEIGH,
    weighted_gather_sum,
    namespace="internal",
    reference=_reference,
    samples=lambda: iter(
        (sample(s.real(2, 3), 1, _SAMPLE), sample(s.real(4, 2), 0, _SAMPLE.transposed))
    ),
)
