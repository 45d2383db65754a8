"""Parts of what a kernel packed into one array: vectors beside values, Q above R.

A part is a view, and its gradient waits, as a piece of a tensor's does, until those of the others
have come: they are put side by side once, in one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from everygrad.autograd.engine import Unsummed
from everygrad.autograd.graph import Node
from everygrad.autograd.modes import CAREFUL, recording
from everygrad.core.context import intercepted
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import apply
from everygrad.ops.linalg.checks import over_leading
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import register, sample
from everygrad.ops.record.splits import leading
from everygrad.ops.shape.movement import SLICE, UNSLICE

# an axis from the end, the first place along it and how many; -1: one, without the axis
Part = tuple[int, int, int]
_NOTHING_SAVED = (None, None)


@lru_cache(maxsize=1024)
def _slices(shape: Shape, axis: int, start: int, count: int) -> tuple[tuple[int, int, int], ...]:
    at = len(shape) + axis
    here = (start, abs(count), 1)
    return tuple(here if a == at else (0, n, 1) for a, n in enumerate(shape))


@lru_cache(maxsize=64)
def _index(axis: int, start: int, count: int) -> tuple[Any, ...]:
    place = start if count == -1 else slice(start, start + count)
    return (..., place, *(slice(None),) * (-1 - axis))


class _Gathering(Unsummed):
    """The gradient of a packed array, of whose parts gradients came."""

    __slots__ = ("found", "shape", "whole")

    def __init__(self, part: Part, g: Tensor, shape: Shape) -> None:
        self.shape = shape
        self.found = [(part, g)]
        self.whole: Tensor | None = None

    def added(self, other: Any) -> _Gathering:
        if isinstance(other, _Gathering):
            self.found += other.found
            other = other.whole
        if other is not None:
            self.whole = other if self.whole is None else self.whole + other
        return self

    def total(self) -> Tensor:
        arrays = [g._data for _, g in self.found]
        if not intercepted() and not recording() and all(type(a) is ndarray for a in arrays):
            out = np.zeros(self.shape, arrays[0].dtype)
            for (part, _), a in zip(self.found, arrays, strict=True):
                out[_index(*part)] += a
            made = wrap(out)
        else:
            made = _unpart(*self.found[0], self.shape)
            for part, g in self.found[1:]:
                made = made + _unpart(part, g, self.shape)
        return made if self.whole is None else made + self.whole


def _unpart(part: Part, g: Tensor, shape: Shape) -> Tensor:
    """Zeros of `shape` with g where the part was."""
    g = g.expand_dims(part[0]) if part[2] == -1 else g
    return apply(UNSLICE, g, shape=shape, slices=_slices(shape, *part))


class _MatrixPart(Kernel):
    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        params = node.params
        part = params["axis"], params["start"], params["count"]
        return [_Gathering(part, g, node.parents[0].shape)]


def _portable(x: Tensor, axis: int, start: int, count: int) -> Tensor:
    found = apply(SLICE, x, slices=_slices(x.shape, axis, start, count))
    return found.squeeze(axis) if count == -1 else found


PART: Kernel = _MatrixPart(
    "matrix_part",
    _portable,
    ("x",),
    (lambda g, shape, axis, start, count: _unpart((axis, start, count), g, shape),),
    linear=(0,),
    batch=over_leading(lambda: PART),
    splits=leading(2),
)


def parts(x: Tensor, *wanted: Part) -> list[Tensor]:
    """Views of a packed result that nobody else has."""
    a = x._data
    if type(a) is not ndarray or intercepted():
        return [apply(PART, x, axis=p[0], start=p[1], count=p[2]) for p in wanted]
    parent = x._node
    mode = 0 if parent is None else recording()
    if mode == CAREFUL:
        return [apply(PART, x, axis=p[0], start=p[1], count=p[2]) for p in wanted]
    made = []
    for p in wanted:  # what `apply` does, at a third of the price
        t = Tensor()
        t._data = a[_index(*p)]
        t._source = None
        t._node = None
        if mode:
            node = t._node = Node()
            node.op = PART
            node.parents = (parent,)
            node.saved = _NOTHING_SAVED
            node.params = {"axis": p[0], "start": p[1], "count": p[2]}
            node.shape = t._data.shape
            node.hooks = None
        made.append(t)
    return made


register(
    PART,
    lambda x, axis, start, count: apply(PART, x, axis=axis, start=start, count=count),
    reference=lambda x, axis, start, count: x[_index(axis, start, count)],
    namespace="internal",
    samples=lambda: iter(
        (sample(s.real(4, 3), -2, 1, 2), sample(s.real(2, 3, 4), -1, 2, -1),
         sample(s.real(3, 2), -2, 2, -1))
    ),
)  # fmt: skip
