"""An open file as arrays: read into new memory or mapped, and then tensors."""

from __future__ import annotations

import mmap as _mmap
from collections.abc import Iterable
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends import base
from everygrad.core.tensor import wrap
from everygrad.errors import OutOfMemoryError
from everygrad.io import transfer


class Source:
    """An open file, read into new memory or mapped."""

    def __init__(self, file: int, size: int, name: str, mapped: bool, verify: bool) -> None:
        self.file = file
        self.size = size
        self.name = name
        self.verify = verify
        self._map = _mmap.mmap(file, size, access=_mmap.ACCESS_READ) if mapped and size else None

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> Any:
        """An array for what lies at `start`: new, or the mapped file itself."""
        try:
            if self._map is None:
                return np.empty(shape, dtype)
            count = int(np.prod(shape, dtype=np.int64))
            if not count:
                return np.empty(shape, dtype)
            array = np.frombuffer(self._map, dtype, count, start).reshape(shape)
            return array if array.flags.aligned else array.copy()
        except MemoryError as error:
            raise OutOfMemoryError(f"{self.name}: {dtype}{list(shape)}: {error}") from None

    def fill(self, chunks: Iterable[transfer.Chunk]) -> None:
        """Read what is not there yet, and check it."""
        if self._map is None:
            transfer.run(transfer.read_chunk, self.file, chunks)
        elif self.verify:
            transfer.run(transfer.check_chunk, self.file, chunks)


def as_tensor(array: np.ndarray[Any, Any], device: str | None) -> Any:
    """A tensor around an array that nobody else writes to; of a dtype that everygrad has none of
    (float8), the array itself."""
    if array.dtype not in dtypes.FROM_NP:
        return array
    array.flags.writeable = False
    if device in (None, "cpu"):
        return wrap(array)
    return wrap(base.get(device or "cpu").from_numpy(array))
