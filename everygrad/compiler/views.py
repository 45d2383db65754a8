"""Strided views: what a chain of layout moves makes of the value behind it.

A view is a base value, stored one element after the other, and for each axis how far one step along
it goes. Reshapes that no strides can express, and `unslice`, end the chain: they are computed.
"""

from __future__ import annotations

from typing import NamedTuple

from everygrad.compiler.facts import Move
from everygrad.compiler.ir import Value
from everygrad.core.shapes import Shape
from everygrad.core.strides import is_row_major, reshape_strides, row_major


class View(NamedTuple):
    """Elements of `base`: the one at index i is offset + sum(i * strides)."""

    base: Value
    shape: Shape
    strides: Shape
    offset: int = 0


def whole(value: Value) -> View:
    return View(value, value.shape, row_major(value.shape))


def view_of(value: Value) -> View:
    """The longest chain of moves that ends in `value`, as one view."""
    if value.view is not None:
        known: View = value.view
        return known
    chain: list[Value] = []
    here = value
    while here.view is None and here.kind == "movement":
        chain.append(here)
        here = here.args[0]
    view: View = here.view
    if view is None:
        view = here.view = whole(here)
    for move in reversed(chain):
        moved = apply_move(view, move)
        view = move.view = whole(move) if moved is None else moved
    return view


def strided(base: Value, shape: Shape, strides: Shape, offset: int) -> Value:
    """A view of a value in memory as a value, outside the order of a graph: how an op that runs by
    itself reads its arrays."""
    made = Value("movement", "view", None, (base,), {}, shape, base.dtype, base.number, base.where)
    made.view = View(base, shape, strides, offset)
    return made


def apply_move(view: View, move: Value) -> View | None:
    """The view after one more move; None where strides cannot say it."""
    base, shape, strides, offset = view
    params = move.params
    kind = move.move
    if kind is Move.PERMUTE:
        axes = params["axes"]
        return View(base, move.shape, tuple(strides[a] for a in axes), offset)
    if kind is Move.BROADCAST:
        return expand(view, move.shape)
    if kind is Move.SLICE:
        slices = params["slices"]
        start = offset + sum(s * step for (s, _, _), step in zip(slices, strides, strict=True))
        steps = tuple(by * step for (_, _, by), step in zip(slices, strides, strict=True))
        return View(base, move.shape, steps, start)
    if kind is Move.RESHAPE:
        moved = reshape_strides(shape, strides, move.shape)
        return None if moved is None else View(base, move.shape, moved, offset)
    return None


def expand(view: View, shape: Shape) -> View:
    """The view broadcast to `shape`."""
    if view.shape == shape:
        return view
    added = len(shape) - len(view.shape)
    strides = [0] * added
    for n, new, step in zip(view.shape, shape[added:], view.strides, strict=True):
        strides.append(0 if n == 1 and new != 1 else step)
    return View(view.base, shape, tuple(strides), view.offset)


def is_whole(shape: Shape, strides: Shape, offset: int = 0) -> bool:
    """Whether the elements are contiguous from the first on."""
    return not offset and is_row_major(shape, strides)
