"""The payload: a view of a storage. Offsets and strides count elements."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import numpy as np

from everygrad.backends.cuda.memory import Storage
from everygrad.backends.strided import fits, row_major
from everygrad.errors import DtypeError
from everygrad.shapes import Shape


class CudaArray:
    """Elements of a storage; an empty array has none. It never changes."""

    __slots__ = ("__weakref__", "device", "dtype", "offset", "ptr", "shape", "storage", "strides")
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
        self.ptr = 0 if storage is None else storage.ptr + offset * dtype.itemsize

    def view(self, shape: Shape, strides: Shape, offset: int | None = None) -> CudaArray:
        """Other elements of the same storage."""
        at = self.offset if offset is None else offset
        return CudaArray(self.device, shape, self.dtype, self.storage, at, strides)

    @property
    def is_contiguous(self) -> bool:
        return self.strides == row_major(self.shape) or fits(self.shape, self.strides)

    @property
    def is_alone(self) -> bool:
        """Whether this is all of its storage, in C order, and no other array can see it."""
        storage = self.storage
        if storage is None or self.offset or self.strides != row_major(self.shape):
            return False
        return getrefcount(storage) <= _ALONE

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For CuPy, PyTorch and others, without a copy; they must not write to it."""
        if self.dtype.name == "bfloat16":
            raise DtypeError("__cuda_array_interface__ has no bfloat16; cast with astype() first")
        stream = self.storage.gpu.driver.stream if self.storage is not None else None
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.ptr, False),  # PyTorch takes no other
            "strides": tuple(s * self.dtype.itemsize for s in self.strides),
            "stream": stream or None,
            "version": 3,
        }


def _alone() -> int:
    """What getrefcount says of a storage that one array holds, asked as `is_alone` asks."""
    array = CudaArray("cuda", (), np.dtype(np.float32), Storage(None, None, 0, 0))
    storage = array.storage
    return getrefcount(storage)


_ALONE = _alone()
