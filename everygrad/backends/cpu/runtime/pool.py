"""Recycled memory for large results: fresh pages cost more than the arithmetic.

A block is a plain NumPy array that the pool holds. An allocated array is a view of it and holds a
reference; when the last view is gone, the block's reference count shows that and it is reused.
There are no finalisers, and nothing is freed by hand.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import getweakrefcount

import numpy as np

from everygrad.core.ownership import calibrated, refcount
from everygrad.core.shapes import Shape

SMALLEST = 1 << 18  # bytes; smaller arrays are recycled well by malloc
MAX_BYTES = 1 << 30  # of idle memory that the pool retains
ALIGNMENT = 64  # a cache line, and the widest vector: loads and stores that cross lines cost twice


def _idle_count() -> int:
    """The result of refcount for a block that only the pool's list and its loop refer to."""
    for block in [np.empty(1)]:
        return refcount(block)
    raise AssertionError


def _named_counts() -> tuple[int, int]:
    """The results of refcount, in a function's locals, for an array that one attribute holds,
    and for its block that one list and the array hold."""

    class Holder:
        _data: Any

    t, blocks = Holder(), [np.empty(8, np.uint8)]
    t._data = blocks[0][:4].view(np.uint8)
    payload = t._data
    block = payload.base
    return refcount(payload), refcount(block)


_IDLE = calibrated(_idle_count())
_ONE_NAME, _ONE_VIEW = map(calibrated, _named_counts())


class Pool:
    """Blocks by size class."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[Any]] = {}
        self.retained = 0
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
                if refcount(block) == _IDLE:
                    return _aligned(block, nbytes).view(dtype).reshape(shape)
            if self.retained + size > MAX_BYTES:
                self.trim()
            block = np.empty(size + ALIGNMENT, np.uint8)
            self.retained += (
                size  # first: if this is interrupted, the next trim corrects the excess
            )
            self.blocks.setdefault(size, []).append(block)
            return _aligned(block, nbytes).view(dtype).reshape(shape)

    def holds(self, block: Any) -> bool:
        """Whether a block belongs to the pool."""
        return any(block is b for b in self.blocks.get(block.nbytes - ALIGNMENT, ()))

    def trim(self) -> None:
        """Drops every block: idle ones are freed now, the others when their last view goes."""
        self.blocks.clear()
        self.retained = 0


def _aligned(block: Any, nbytes: int) -> Any:
    """`nbytes` bytes of the block, from its first aligned address on."""
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes]


def _size_class(nbytes: int) -> int:
    """The size rounded up so that at most an eighth is wasted."""
    step = 1 << max(16, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step


class Recycled:
    """Small arrays of one shape; those that nobody holds any more are reused.

    Two arrays alternate if each is dropped after the next was made, as the loss of a step is.
    """

    MOST = 2

    def __init__(self, shape: Shape, dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.arrays: list[Any] = []

    def take(self) -> Any:
        """An uninitialised C-contiguous array. Callers hold a lock of their own."""
        for array in self.arrays:
            if refcount(array) == _IDLE and array.flags.owndata and not getweakrefcount(array):
                return array
        fresh = np.empty(self.shape, self.dtype)
        self.arrays = [*self.arrays[1 - self.MOST :], fresh]
        return fresh


_pool = Pool()
empty = _pool.empty


def is_sole_owner(array: Any) -> bool:
    """Whether this array is the sole owner of its memory: its own, or a block of the pool."""
    block = array.base
    if block is None:
        return bool(array.flags.owndata)
    return type(block) is np.ndarray and refcount(block) <= _ONE_VIEW and _pool.holds(block)


def rewritable(t: Any) -> Any:
    """A view of the memory of tensor `t` for a new value, or None if it may be shared.

    Only memory of the pool qualifies: the tensor holds the only reference to the array, and the
    pool and the array hold the only ones to the block. A new view is a new payload, so a weak
    reference to the old one shows that the value changed.
    """
    payload = t._data
    block = payload.base
    if type(block) is not np.ndarray or refcount(payload) != _ONE_NAME:
        return None
    if refcount(block) != _ONE_VIEW or not _pool.holds(block):
        return None
    return payload.view()
