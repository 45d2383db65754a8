"""Recycled memory for large results: fresh pages cost more than the arithmetic.

A block is a plain NumPy array the pool keeps. An array handed out is a view of it and holds a
reference; when the last view is gone, the block's reference count says so and it is given out
again. No finalisers, nothing to free by hand.
"""

from __future__ import annotations

import threading
from sys import getrefcount
from typing import Any

import numpy as np

from everygrad.shapes import Shape

SMALLEST = 1 << 18  # bytes; below this malloc recycles well by itself
MOST_BYTES = 1 << 30  # of idle memory kept


def _idle_count() -> int:
    """What getrefcount says of a block that only the pool's list and its loop know."""
    for block in [np.empty(1)]:
        return getrefcount(block)
    raise AssertionError


_IDLE = _idle_count()


class Pool:
    """Blocks by size class."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[Any]] = {}
        self.kept = 0
        self.lock = threading.Lock()

    def empty(self, shape: Shape, dtype: Any) -> Any:
        """An uninitialised C-contiguous array."""
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        if nbytes < SMALLEST:
            return np.empty(shape, dtype)
        size = _size_class(nbytes)
        with self.lock:
            blocks = self.blocks.setdefault(size, [])
            for block in blocks:
                if getrefcount(block) == _IDLE:
                    return block[:nbytes].view(dtype).reshape(shape)
            if self.kept + size > MOST_BYTES:
                self.trim()
            block = np.empty(size, np.uint8)
            self.blocks.setdefault(size, []).append(block)
            self.kept += size
            return block[:nbytes].view(dtype).reshape(shape)

    def trim(self) -> None:
        """Forget every block: idle ones are freed now, the others when their last view goes."""
        self.blocks.clear()
        self.kept = 0


def _size_class(nbytes: int) -> int:
    """Rounded up so that at most an eighth is wasted."""
    step = 1 << max(16, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step


_pool = Pool()
empty = _pool.empty
trim = _pool.trim
