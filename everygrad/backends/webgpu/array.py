"""The payload: a view of a storage. Offsets and strides count elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everygrad.backends.strided_array import StridedArray
from everygrad.backends.webgpu.driver.memory import Storage
from everygrad.core.ownership import calibrated, refcount
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import row_major


class WebGPUArray(StridedArray):
    """Elements of a storage; an empty array has none. It never changes."""

    __slots__ = ("in_order",)
    storage: Storage | None

    def __init__(
        self,
        device: str,
        shape: Shape,
        dtype: Any,
        storage: Storage | None,
        offset: int = 0,
        strides: Shape | None = None,
    ) -> None:
        super().__init__(device, shape, dtype, storage, offset, strides)
        self.in_order = (
            strides is None and not offset
        )  # contiguous, from the start of the storage; else unknown

    def with_known_order(self) -> WebGPUArray:
        """The same array, with `in_order` set if it is contiguous."""
        if self.offset or self.strides != row_major(self.shape):
            return self
        return WebGPUArray(self.device, self.shape, self.dtype, self.storage)

    @property
    def is_sole_owner(self) -> bool:
        """Whether this array fills its storage contiguously, and is the only one that refers to it.
        Checked for every parameter at every call of a compiled step."""
        storage = self.storage
        return self.in_order and storage is not None and refcount(storage) <= _SOLE_OWNER_REFCOUNT


def _sole_owner_refcount() -> int:
    """The refcount of a storage that one array holds, called as `is_sole_owner` calls it."""
    held: Any = object()
    array = WebGPUArray("webgpu", (), None, held)
    del held
    storage = array.storage
    return refcount(storage)


_SOLE_OWNER_REFCOUNT = calibrated(_sole_owner_refcount())


def count_of(array: WebGPUArray) -> int:
    return size_of(array.shape)


def storage_of(array: WebGPUArray) -> Storage:
    """The storage of an array that has elements."""
    assert array.storage is not None
    return array.storage


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
