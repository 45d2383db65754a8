"""Parts of what a kernel packed into one array: vectors beside values, Q above R.

A part is a view, and its gradient a piece of the whole's, which waits until those of the others
have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from numpy import ndarray

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
from everygrad.ops.record.splits import Split
from everygrad.ops.shape.movement import SLICE, UNSLICE
from everygrad.ops.shape.piecewise_gradient import Pieces

# an axis from the end, the first place along it and how many; -1: one, without the axis
Part = tuple[int, int, int]
_NOTHING_SAVED = (None, None)


_WITH_AXIS = {-1: (..., None), -2: (..., None, slice(None))}


@lru_cache(maxsize=1024)
def _slices(shape: Shape, axis: int, start: int, count: int) -> tuple[tuple[int, int, int], ...]:
    at = len(shape) + axis
    here = (start, abs(count), 1)
    return tuple(here if a == at else (0, n, 1) for a, n in enumerate(shape))


@lru_cache(maxsize=64)
def _index(axis: int, start: int, count: int) -> tuple[Any, ...]:
    place = start if count == -1 else slice(start, start + count)
    return (..., place, *(slice(None),) * (-1 - axis))


def _unpart(part: Part, g: Tensor, shape: Shape) -> Tensor:
    """Zeros of `shape` with g where the part was."""
    g = g.expand_dims(part[0]) if part[2] == -1 else g
    return apply(UNSLICE, g, shape=shape, slices=_slices(shape, *part))


class _MatrixPart(Kernel):
    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        params, shape = node.params, node.parents[0].shape
        part = params["axis"], params["start"], params["count"]
        if part[2] == -1:
            if type(g._data) is ndarray and not intercepted() and not recording():
                g = wrap(g._data[_WITH_AXIS[part[0]]])
            else:
                g = g.expand_dims(part[0])
        return [Pieces.of_slice(_slices(shape, *part), g, shape)]


def _portable(x: Tensor, axis: int, start: int, count: int) -> Tensor:
    found = apply(SLICE, x, slices=_slices(x.shape, axis, start, count))
    return found.squeeze(axis) if count == -1 else found


def _other_axes(shapes: Sequence[Shape], axis: int, start: int, count: int) -> list[Split]:
    """All axes but the one that is cut, which is gone from the result where count is -1."""
    rank = len(shapes[0])
    at = rank + axis
    gone = count == -1
    return [Split((a,), a - (gone and a > at)) for a in range(rank) if a != at]


PART: Kernel = _MatrixPart(
    "matrix_part",
    _portable,
    ("x",),
    (lambda g, shape, axis, start, count: _unpart((axis, start, count), g, shape),),
    linear=(0,),
    batch=over_leading(lambda: PART),
    splits=_other_axes,
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
