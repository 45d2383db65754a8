"""Arrays as a storage, a shape and strides. Strides and offsets count elements."""

from __future__ import annotations

from typing import Any, Self

from everygrad.core.shapes import Shape
from everygrad.core.strides import is_row_major, row_major


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


def span(array: StridedArray) -> tuple[int, int]:
    """The first and the last element of the storage that the array can reach."""
    low = high = array.offset
    for n, s in zip(array.shape, array.strides, strict=True):
        if s < 0:
            low += (n - 1) * s
        else:
            high += (n - 1) * s
    return low, high
