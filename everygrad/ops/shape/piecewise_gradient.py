"""The gradient of a tensor that was read in pieces: put together once, when all have come.

A slice's own gradient is a whole tensor of zeros with a piece in it. For `x[:, t]` in a loop that
would be as many tensors as steps, and as many sums; so a piece stays a piece until the engine asks
for the total. Pieces one behind the other are joined; others are added by their indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import add
from typing import Any

import numpy as np

from everygrad.autograd.engine import Unsummed
from everygrad.autograd.modes import recording
from everygrad.backends import base
from everygrad.core.context import intercepted
from everygrad.core.shapes import Shape, size_of
from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import apply
from everygrad.dtypes import DType
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import REGISTRY

Slices = tuple[tuple[int, int, int], ...]  # (start, count, step) for each axis
Picked = tuple[int, Tensor, Tensor]  # an axis, the index along it, the gradient
Join = Callable[[list[Picked], Shape], Tensor]
MOST_PENDING = 2  # elements of pieces that wait, for each one of the whole
FEW = 4  # pieces so few that they are summed as whole tensors, where they cannot be joined
SMALL = 1 << 12  # elements of a whole that is put together by NumPy
LARGE = 8  # likewise if this many of them, on average, make a whole one


class Pieces(Unsummed):
    """Parts of a gradient of `shape`. `slices`: those of slices, by where they were cut; the same
    slice read again and again is one. `picked`: those of indices, by the function that joins them.
    `whole`: the sum of the contributions that are whole tensors.

    Pieces never take much more memory than the whole: beyond, they become part of it at once."""

    __slots__ = ("pending", "picked", "shape", "slices", "whole")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.slices: dict[Slices, Tensor] = {}
        self.picked: dict[Join, list[Picked]] = {}
        self.whole: Tensor | None = None
        self.pending = 0  # elements of all pieces

    @classmethod
    def of_slice(cls, slices: Slices, g: Tensor, shape: Shape) -> Pieces:
        made = cls(shape)
        made.slices[slices] = g
        made.pending = size_of(g.shape)
        return made

    @classmethod
    def of_index(cls, join: Join, axis: int, index: Tensor, g: Tensor, shape: Shape) -> Pieces:
        made = cls(shape)
        made.picked[join] = [(axis, index, g)]
        made.pending = size_of(g.shape)
        return made

    def added(self, other: Any) -> Pieces:
        if not isinstance(other, Pieces):
            self.whole = other if self.whole is None else self.whole + other
            return self
        for slices, g in other.slices.items():
            held = self.slices.get(slices)
            self.slices[slices] = g if held is None else held + g
            self.pending += size_of(g.shape) if held is None else 0
        for join, some in other.picked.items():
            self.picked.setdefault(join, []).extend(some)
            self.pending += sum(size_of(g.shape) for _, _, g in some)
        if other.whole is not None:
            self.added(other.whole)
        if self.pending > MOST_PENDING * size_of(self.shape):
            self.whole = self.total()
            self.slices, self.picked, self.pending = {}, {}, 0
        return self

    def total(self) -> Tensor:
        made = [] if self.whole is None else [self.whole]
        if self.slices:
            made.append(_joined(self.slices, self.shape))
        made += [join(some, self.shape) for join, some in self.picked.items()]
        return reduce(add, made)


def _zeros(shape: Shape, dtype: DType, device: str) -> Tensor:
    return wrap(base.get(device).full(shape, 0, dtype))


def _concat(xs: Sequence[Tensor], axis: int) -> Tensor:
    sizes = tuple(x.shape[axis] for x in xs)
    return xs[0] if len(xs) == 1 else apply(REGISTRY["concat"], *xs, axis=axis, sizes=sizes)


def _unslice(g: Tensor, shape: Shape, slices: Slices) -> Tensor:
    return apply(REGISTRY["unslice"], g, shape=shape, slices=slices)


# --- slices --------------------------------------------------------------------------------------


def _joined(found: dict[Slices, Tensor], shape: Shape) -> Tensor:
    """Gradients of slices as one of the whole."""
    if size_of(shape) <= SMALL and not recording() and not intercepted():
        arrays = [g._data for g in found.values()]
        if all(type(a) is np.ndarray for a in arrays):  # nobody needs to see how
            return _put_together(found, arrays, shape)
    if len(found) == 1:
        ((slices, g),) = found.items()
        return _unslice(g, shape, slices)
    axis = _cut_axis(found, shape)
    if axis is not None:
        row = sorted(found.items(), key=lambda item: item[0][axis][0])
        if _are_apart([slices[axis] for slices, _ in row]):
            return _in_a_row(row, shape, axis)
    count = sum(size_of(g.shape) for g in found.values())
    if len(found) <= FEW or count * LARGE >= len(found) * size_of(shape):
        return reduce(add, [_unslice(g, shape, slices) for slices, g in found.items()])
    return _by_index(found, shape, axis)


def _put_together(found: dict[Slices, Tensor], arrays: list[Any], shape: Shape) -> Tensor:
    """The same by NumPy, at a third of the price where arrays are small."""
    out = np.zeros(shape, arrays[0].dtype)
    for k, (slices, a) in enumerate(zip(found, arrays, strict=True)):
        if k:
            out[_index(slices)] += a
        else:
            out[_index(slices)] = a
    return wrap(out)


@lru_cache(maxsize=1024)
def _index(slices: Slices) -> tuple[slice, ...]:
    """As NumPy has it."""
    made = []
    for start, count, step in slices:
        stop = start + count * step
        made.append(slice(start, None if stop < 0 else stop, step) if count else slice(0, 0))
    return tuple(made)


def _cut_axis(found: dict[Slices, Tensor], shape: Shape) -> int | None:
    """The one axis that all slices cut, being whole along the others; None where they differ."""
    cut = {
        a
        for slices in found
        for a, (piece, n) in enumerate(zip(slices, shape, strict=True))
        if piece != (0, n, 1)
    }
    return cut.pop() if len(cut) == 1 else None


def _are_apart(pieces: Sequence[tuple[int, int, int]]) -> bool:
    """Whether pieces of an axis, sorted, are each without gaps and do not overlap."""
    end = 0
    for start, count, step in pieces:
        if start < end or (step != 1 and count > 1):
            return False
        end = start + count
    return True


def _in_a_row(row: Sequence[tuple[Slices, Tensor]], shape: Shape, axis: int) -> Tensor:
    """Pieces one behind the other, with zeros between them, and around them all."""
    first = row[0][0][axis][0]
    xs: list[Tensor] = []
    at = first
    for slices, g in row:
        start, count, _ = slices[axis]
        if start > at:
            gap = (*shape[:axis], start - at, *shape[axis + 1 :])
            xs.append(_zeros(gap, g.dtype, g.device))
        xs.append(g)
        at = start + count
    joined = _concat(xs, axis)
    if joined.shape == shape:
        return joined
    whole = tuple((first, at - first, 1) if a == axis else (0, n, 1) for a, n in enumerate(shape))
    return _unslice(joined, shape, whole)


def _by_index(found: dict[Slices, Tensor], shape: Shape, axis: int | None) -> Tensor:
    """Pieces anywhere, added to zeros where their indices say."""
    some = next(iter(found.values()))
    device = some.device
    if axis is None:  # by single elements
        index = np.concatenate([_flat(slices, shape) for slices in found])
        source = _concat([g.reshape(-1) for g in found.values()], 0)
        start = _zeros((size_of(shape),), some.dtype, device)
    else:
        index = np.concatenate([_places(slices[axis]) for slices in found])
        source = _concat(list(found.values()), axis)
        start = _zeros(shape, some.dtype, device)
    places = wrap(base.get(device).from_numpy(index))
    out = apply(REGISTRY["index_add"], start, places, source, axis=axis or 0)
    return out.reshape(shape)


def _places(piece: tuple[int, int, int]) -> Any:
    start, count, step = piece
    return start + step * np.arange(count, dtype=np.int64)


def _flat(slices: Slices, shape: Shape) -> Any:
    """The places of a slice's elements in the whole, counted as if that were flat."""
    at = np.zeros((), np.int64)
    for piece, n in zip(slices, shape, strict=True):
        at = at[..., None] * n + _places(piece)
    return at.reshape(-1)


# --- indices -------------------------------------------------------------------------------------


def join_taken(parts: list[Picked], shape: Shape) -> Tensor:
    """Gradients of `take` as one of the whole."""
    axes: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for axis, index, g in parts:
        flat = g.reshape((*shape[:axis], index.size, *shape[axis + 1 :]))
        axes.setdefault(axis, []).append((index.reshape(-1), flat))
    return reduce(add, [_added("index_add", p, 0, axis, shape) for axis, p in axes.items()])


def join_gathered(parts: list[Picked], shape: Shape) -> Tensor:
    """Gradients of `gather` as one of the whole."""
    alike: dict[Any, list[tuple[Tensor, Tensor]]] = {}
    for axis, index, g in parts:  # those that fit together along the axis
        rest = (*index.shape[:axis], *index.shape[axis + 1 :])
        alike.setdefault((axis, rest), []).append((index, g))
    return reduce(
        add, [_added("scatter_add", p, axis, axis, shape) for (axis, _), p in alike.items()]
    )


def _added(
    op: str, pairs: Sequence[tuple[Tensor, Tensor]], along: int, axis: int, shape: Shape
) -> Tensor:
    """Indices, joined along `along`, and what they add to zeros of `shape`."""
    indices, gs = [i for i, _ in pairs], [g for _, g in pairs]
    if any(i.dtype is not indices[0].dtype for i in indices):
        indices = [i.astype("int64") for i in indices]
    start = _zeros(shape, gs[0].dtype, gs[0].device)
    return apply(REGISTRY[op], start, _concat(indices, along), _concat(gs, axis), axis=axis)


class Picking(Kernel):
    """take and gather, whose gradients are pieces of one whole until all have come."""

    def __init__(self, *facts: Any, join: Join, **more: Any) -> None:
        super().__init__(*facts, **more)
        self.join = join

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        whole = node.parents[0]
        if whole is None or whole.shape == node.shape:
            return super().vjp(node, g, create_graph)
        index = self.restore(node, create_graph)[2]
        return [Pieces.of_index(self.join, node.params["axis"], index, g, whole.shape), None]
