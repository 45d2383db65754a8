"""Strides, in elements: contiguous ones, and what broadcasting, reshaping and merging make of them.

Every device and the compiler ask here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from everygrad.core.shapes import Shape

_SHAPES = 4096  # whose strides are kept: a replay asks for those of every parameter


def row_major(shape: Sequence[int]) -> Shape:
    """The strides of an array in C order.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    return _row_major(tuple(shape))


@lru_cache(maxsize=_SHAPES)
def _row_major(shape: Shape) -> Shape:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def is_row_major(shape: Shape, strides: Shape) -> bool:
    """Whether strides are contiguous in C order; axes of size 1 do not matter."""
    want = 1
    for n, step in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and step != want:
            return False
        want *= n
    return True


def broadcast_strides(shape: Shape, strides: Shape, wanted: Shape) -> Shape:
    """The strides of an array broadcast to `wanted`."""
    added = len(wanted) - len(shape)
    return (
        *(0,) * added,
        *(0 if n == 1 else s for n, s in zip(shape, strides, strict=True)),
    )


def reshape_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """The strides that view the same elements in the same order as `new`; None if there are none.

    >>> reshape_strides((2, 6), (6, 1), (2, 2, 3)), reshape_strides((2, 3), (1, 2), (6,))
    ((6, 3, 1), None)
    """
    if 0 in shape:
        return row_major(new)
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    made: list[int] = []
    sizes = list(new)
    at = 0
    for n, s in _merged(old):
        block: list[int] = []
        count = 1
        while at < len(sizes) and (count < n or sizes[at] == 1):
            block.append(sizes[at])
            count *= sizes[at]
            at += 1
        if count != n:
            return None
        made.extend(s * step for step in row_major(tuple(block)))
    made.extend([1] * (len(sizes) - at))
    return tuple(made)


def _merged(axes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring axes merged where one stride covers both."""
    out: list[tuple[int, int]] = []
    for n, s in axes:
        if out and out[-1][1] == n * s:
            out[-1] = (out[-1][0] * n, s)
        else:
            out.append((n, s))
    return out


def collapse(shape: Shape, all_strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Fewer axes for the same loops over several arrays; at least one axis remains."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in all_strides]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        if sizes and all(k[-1] == n * s[axis] for k, s in zip(steps, all_strides, strict=True)):
            sizes[-1] *= n
            for k, s in zip(steps, all_strides, strict=True):
                k[-1] = s[axis]
        else:
            sizes.append(n)
            for k, s in zip(steps, all_strides, strict=True):
                k.append(s[axis])
    if not sizes:
        return (1,), [(0,)] * len(steps)
    return tuple(sizes), [tuple(k) for k in steps]
