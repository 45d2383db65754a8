"""The payload: a view of a storage. Offsets and strides count elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everygrad.backends.strided import (
    collapse as collapse,
    fits as fits,
    reshaped as reshaped,
    row_major as row_major,
    span as span,
    spread as spread,
)
from everygrad.backends.webgpu.memory import Storage
from everygrad.shapes import Shape, size_of


class WebGPUArray:
    """Elements of a storage; an empty array has none. It never changes."""

    __slots__ = ("__weakref__", "device", "dtype", "offset", "shape", "storage", "strides")
    plain = True  # derivatives may be fused into one kernel on it

    def __init__(
        self,
        device: str,
        shape: Shape,
        dtype: Any,
        storage: Storage | None,
        offset: int = 0,
        strides: Shape | None = None,
    ) -> None:
        self.device = device
        self.shape = shape
        self.dtype = dtype  # NumPy's
        self.storage = storage
        self.offset = offset
        self.strides = row_major(shape) if strides is None else strides

    def view(self, shape: Shape, strides: Shape, offset: int | None = None) -> WebGPUArray:
        """Other elements of the same storage."""
        at = self.offset if offset is None else offset
        return WebGPUArray(self.device, shape, self.dtype, self.storage, at, strides)

    def seen_as(self, dtype: Any) -> WebGPUArray:
        """The same bits in another dtype of the same size."""
        return WebGPUArray(self.device, self.shape, dtype, self.storage, self.offset, self.strides)

    @property
    def is_contiguous(self) -> bool:
        return self.strides == row_major(self.shape) or fits(self.shape, self.strides)


def count_of(array: WebGPUArray) -> int:
    return size_of(array.shape)


def distinct(arrays: Sequence[WebGPUArray]) -> tuple[list[Storage], tuple[int, ...]]:
    """The storages without repeats, and which of them each array is on."""
    storages: list[Storage] = []
    places: dict[int, int] = {}
    bindings = []
    for a in arrays:
        assert a.storage is not None
        at = places.get(id(a.storage))
        if at is None:
            at = places[id(a.storage)] = len(storages)
            storages.append(a.storage)
        bindings.append(at)
    return storages, tuple(bindings)
