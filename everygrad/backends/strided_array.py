"""Arrays as a storage, a shape and strides. Strides and offsets count elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from everygrad.core.shapes import Shape


class StridedArray:
    """A view of a storage; an empty array has none. It never changes.

    The common base of WebGPU's and CUDA's payloads, which take the same arguments.
    """

    __slots__ = ("__weakref__", "device", "dtype", "offset", "shape", "storage", "strides")
    plain = True  # derivatives may be fused into one kernel on it

    def __init__(
        self,
        device: str,
        shape: Shape,
        dtype: Any,
        storage: Any,
        offset: int = 0,
        strides: Shape | None = None,
    ) -> None:
        self.device = device
        self.shape = shape
        self.dtype = dtype  # NumPy's
        self.storage = storage
        self.offset = offset
        self.strides = row_major(shape) if strides is None else strides

    def view(self, shape: Shape, strides: Shape | None, offset: int | None = None) -> Self:
        """Another view of the same storage; without strides it is contiguous."""
        at = self.offset if offset is None else offset
        return type(self)(self.device, shape, self.dtype, self.storage, at, strides)

    def bitcast(self, dtype: Any) -> Self:
        """The same bits in another dtype of the same size."""
        return type(self)(self.device, self.shape, dtype, self.storage, self.offset, self.strides)

    @property
    def is_contiguous(self) -> bool:
        return self.strides == row_major(self.shape) or is_row_major(self.shape, self.strides)


def row_major(shape: Shape) -> Shape:
    """The strides of an array in C order.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
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


def span(array: StridedArray) -> tuple[int, int]:
    """The first and the last element of the storage that the array can reach."""
    low = high = array.offset
    for n, s in zip(array.shape, array.strides, strict=True):
        if s < 0:
            low += (n - 1) * s
        else:
            high += (n - 1) * s
    return low, high
