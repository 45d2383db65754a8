"""What the WebGPU and CUDA backends share: strided arrays, and constants that are cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everygrad.backends import strided_views
from everygrad.backends.base import Backend
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import DType, rounded
from everygrad.errors import ArgumentError

_INTERNED = 1 << 14  # elements up to which arange's results are cached
_MOST_MADE = 1 << 10  # constants that are cached


class GpuBackend(Backend):
    """A device whose payloads are strided arrays, and whose checks are deferred."""

    checks_later = True

    def __init__(self, device: str) -> None:
        self.device = device  # as tensors name it
        self.made: dict[Any, Any] = {}  # constants, by value: they never change

    def check_dtype(self, dtype: DType) -> None:
        """Raise for a dtype that the device does not have."""

    def empty(self, shape: Shape, dtype: DType) -> Any:
        """An array whose elements a kernel is about to write."""
        raise NotImplementedError

    def upload(self, array: Any) -> Any:
        """The values of a NumPy array, copied to the device."""
        raise NotImplementedError

    def contiguous(self, x: Any) -> Any:
        """The same elements in C order."""
        raise NotImplementedError

    def concat_into(self, out: Any, arrays: Sequence[Any], axis: int) -> None:
        """Write arrays into `out`, one behind the other along an axis."""
        raise NotImplementedError

    def from_numpy(self, array: Any) -> Any:
        stretched = [n > 1 and s == 0 for n, s in zip(array.shape, array.strides, strict=True)]
        if any(stretched) and array.size:  # broadcast: copy it once
            index = tuple(slice(0, 1) if s else slice(None) for s in stretched)
            return strided_views.broadcast_to(self, self.from_numpy(array[index]), array.shape)
        return self.upload(array)

    def full(self, shape: Shape, value: Any, dtype: DType) -> Any:
        self.check_dtype(dtype)
        if not size_of(shape):
            return self.empty(shape, dtype)
        try:
            one = np.array(rounded(value, dtype) if dtype.is_float else value, dtype.np)
        except OverflowError:
            raise ArgumentError(
                f"{value} does not fit into {dtype}; choose a wider dtype"
            ) from None
        found = self.intern((one.tobytes(), dtype), lambda: one)
        return found if not shape else strided_views.broadcast_to(self, found, shape)

    def arange(self, start: Any, count: int, step: Any, dtype: DType) -> Any:
        def values() -> Any:
            whole = np.arange(count, dtype=np.int64 if dtype.is_integer else np.float64)
            values = start + step * whole
            return rounded(values, dtype) if dtype.is_float else values.astype(dtype.np)

        self.check_dtype(dtype)
        if count > _INTERNED:
            return self.from_numpy(values())
        return self.intern((start, count, step, dtype, type(start), type(step)), values)

    def intern(self, key: Any, make: Callable[[], Any]) -> Any:
        """A cached constant. Nothing ever writes to an array, so it can be shared."""
        found = self.made.get(key)
        if found is None:
            if len(self.made) > _MOST_MADE:
                self.made.clear()
            found = self.made[key] = self.from_numpy(make())
        return found
