"""Chooses the loop nest over a set of strided arrays, by arithmetic on sizes and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from everygrad.compiler.thresholds import edge
from everygrad.errors import ShapeError

Array = np.ndarray[Any, Any]

# width of the column blocks for a transposed operand, so that its cache lines are used up
_TILE = edge(__name__, "_TILE", 64, "size")


class LoopNest(NamedTuple):
    """The merged loops: sizes, and the byte strides and offset of each operand."""

    sizes: list[int]
    strides: list[list[int]]
    offsets: list[int]


def _broadcast_strides(shape: tuple[int, ...], array: Array) -> list[int]:
    """The array's byte strides along `shape`: 0 where it is broadcast."""
    extra = len(shape) - array.ndim
    sizes = array.shape
    fits = extra >= 0 and all(
        s in (1, n) for s, n in zip(sizes, shape[max(extra, 0) :], strict=True)
    )
    if not fits:
        raise ShapeError(f"an array of shape {sizes} does not broadcast to {shape}")
    strides = [0 if s == 1 else step for s, step in zip(sizes, array.strides, strict=True)]
    return [0] * extra + strides


def merge(out: Array, arrays: Sequence[Array]) -> LoopNest:
    """The loops that fill `out` in its memory order, adjacent ones merged where strides allow."""
    shape = out.shape
    strides = [list(out.strides), *(_broadcast_strides(shape, a) for a in arrays)]
    offsets = [0] * len(strides)
    dims = [d for d, size in enumerate(shape) if size != 1]
    if any(out.strides[d] == 0 for d in dims):
        raise ShapeError(f"out of shape {shape} repeats its elements: it cannot be written to")
    for d in dims:
        if strides[0][d] < 0:  # traverse the output forwards
            for k, steps in enumerate(strides):
                offsets[k] += steps[d] * (shape[d] - 1)
                steps[d] = -steps[d]
    dims.sort(key=lambda d: -strides[0][d])
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for d in dims:
        if sizes and all(m[-1] == s[d] * shape[d] for m, s in zip(merged, strides, strict=True)):
            sizes[-1] *= shape[d]
            for m, s in zip(merged, strides, strict=True):
                m[-1] = s[d]
        else:
            sizes.append(shape[d])
            for m, s in zip(merged, strides, strict=True):
                m.append(s[d])
    if not sizes:
        return LoopNest([1], [[0] for _ in strides], offsets)
    return LoopNest(sizes, merged, offsets)


def tile(layout: LoopNest) -> list[LoopNest]:
    """The loop nest split into column blocks, if an operand is transposed to the innermost loop."""
    sizes, strides, offsets = layout
    if len(sizes) < 2 or sizes[-1] < 2 * _TILE or sizes[-2] < 2:
        return [layout]
    if not any(abs(s[-1]) > abs(s[-2]) > 0 for s in strides):
        return [layout]
    blocks, rest = divmod(sizes[-1], _TILE)
    done = blocks * _TILE
    tiled = LoopNest(
        [*sizes[:-2], blocks, sizes[-2], _TILE],
        [[*s[:-2], s[-1] * _TILE, s[-2], s[-1]] for s in strides],
        offsets,
    )
    if not rest:
        return [tiled]
    # the same number of loops, so that one kernel serves both
    last = LoopNest(
        [*sizes[:-2], 1, sizes[-2], rest],
        [[*s[:-2], 0, s[-2], s[-1]] for s in strides],
        [o + s[-1] * done for o, s in zip(offsets, strides, strict=True)],
    )
    return [tiled, last]


def kind(stride: int, itemsize: int, size: int) -> str:
    """How an operand moves along a loop of `size` elements: see `loops.Pattern`."""
    if size == 1 or stride == itemsize:
        return "c"
    return "s" if stride == 0 else "g"
