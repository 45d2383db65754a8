"""Fences around the CPU's arrays and scratch memory: kernels must write what is theirs, no more.

While fences stand, fresh memory of the CPU's pool is filled with NaN and lies between two stretches
of -0.0, which even adding zero would change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from everygrad.backends.cpu.runtime import pool

WIDTH = 512  # bytes on each side; a vector has 64
_JUNK = 0xFF  # NaN in every floating dtype, -1 in integers


class Fence:
    """The memory handed out, and what is around it."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, int, int]] = []
        self.on = True

    def empty(self, shape: Any, dtype: Any) -> Any:
        """An array as `pool.empty` makes it."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block = np.full((nbytes + 2 * WIDTH) // 8 + 18, -0.0).view(np.uint8)
        start = WIDTH + -(block.ctypes.data + WIDTH) % pool.ALIGNMENT
        block[start : start + nbytes] = _JUNK
        self.blocks.append((block, start, start + nbytes))
        return block[start : start + nbytes].view(dtype).reshape(shape)

    def broken(self) -> list[str]:
        """What was written outside, in words."""
        found = []
        for block, start, end in self.blocks:
            clean = np.full(block.size // 8, -0.0).view(np.uint8)
            for what, part in (("before", slice(0, start)), ("behind", slice(end, None))):
                places = np.flatnonzero(block[part] != clean[part])
                if places.size:
                    n = end - start
                    found.append(f"wrote {places.size} bytes {what} an array of {n} bytes")
        self.blocks.clear()
        return found


@contextmanager
def around(device: str) -> Iterator[Fence]:
    """While it is open, what the CPU's kernels allocate is fenced; nothing on other devices."""
    fence = Fence()
    if device != "cpu":
        yield fence
        return
    plain = pool.empty
    _replace(plain, fence.empty)
    try:
        yield fence
    finally:
        _replace(fence.empty, plain)  # modules that were loaded meanwhile took the fence's


def _replace(old: Any, new: Any) -> None:
    for name, module in [*sys.modules.items()]:
        if name.startswith("everygrad.backends.cpu") and getattr(module, "empty", None) == old:
            module.empty = new  # type: ignore[attr-defined]
