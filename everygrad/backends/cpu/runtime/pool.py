"""Recycled memory for large results: fresh pages cost more than the arithmetic.

A block is a plain NumPy array that the pool holds. An allocated array is a view of it and holds a
reference; when the last view is gone, the block's reference count shows that and it is reused.
There are no finalisers, and nothing is freed by hand.

A context may have its memory counted (`count_memory`): blocks that are taken in it are its own
until nobody holds them any more. Ranks that are threads of one process share the pool, and each is
counted by itself.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import Any
from weakref import getweakrefcount

import numpy as np

from everygrad.backends.cpu.runtime.addresses import address_of
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


def _listed_count() -> int:
    """The result of refcount for a block that the pool and one array hold, looked at in a list."""
    pool = [np.empty(8, np.uint8)]
    payloads = [pool[0][:4].view(np.uint8)]
    return max(map(refcount, [*map(_base, payloads)]))


_base = attrgetter("base")
_IDLE = calibrated(_idle_count())
_ONE_NAME, _ONE_VIEW = map(calibrated, _named_counts())
_LISTED = calibrated(_listed_count())


class MemoryCount:
    """The bytes of the pool that one context holds, and of the arenas of functions that were
    compiled in it. Arrays below `SMALLEST` are not the pool's."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._most = 0
        self.apart: list[weakref.ref[Any]] = []  # blocks that are not the pool's

    @property
    def in_use(self) -> int:
        """Bytes of blocks that were taken in this context and are still held."""
        with self._pool.lock:
            return self._pool.held_by(self)

    @property
    def peak(self) -> int:
        """The most that was in use at once since the count began, or since `reset_peak`."""
        return self._most

    def reset_peak(self) -> None:
        self._most = self.in_use

    def note(self) -> None:
        """A block was taken; the pool is locked."""
        self._most = max(self._most, self._pool.held_by(self))


counting: ContextVar[MemoryCount | None] = ContextVar("everygrad_memory_count", default=None)


class Pool:
    """Blocks by size class."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[Any]] = {}
        self.held: set[int] = set()  # the ids of all of them
        self.retained = 0
        self.lock = threading.Lock()
        self.owners: dict[int, MemoryCount] = {}  # of blocks by id, where memory is counted

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
                    self.held.add(id(block))  # again: who made it may have been interrupted
                    made = _array(block, shape, dtype)
                    self.note(block)
                    return made
            if self.retained + size > MAX_BYTES:
                self.trim()
            block = np.empty(size + ALIGNMENT, np.uint8)
            self.retained += (
                size  # first: if this is interrupted, the next trim corrects the excess
            )
            self.blocks.setdefault(size, []).append(block)
            self.held.add(id(block))
            made = _array(block, shape, dtype)
            self.note(block)
            return made

    def note(self, block: Any) -> None:
        """A block was taken: whose is it?"""
        count = counting.get()
        if count is not None:
            self.owners[id(block)] = count
            count.note()
        elif self.owners:
            self.owners.pop(id(block), None)

    def held_by(self, count: MemoryCount) -> int:
        """Bytes of the blocks in use that were taken while this count was in force."""
        total = sum(block.nbytes for found in count.apart if (block := found()) is not None)
        for size, blocks in self.blocks.items():
            for block in blocks:
                if refcount(block) != _IDLE and self.owners.get(id(block)) is count:
                    total += size
        return total

    def holds(self, block: Any) -> bool:
        """Whether a block belongs to the pool."""
        return id(block) in self.held

    def free_idle(self) -> None:
        """Gives blocks that nobody uses back to the system."""
        with self.lock:
            freed = 0
            for size, blocks in self.blocks.items():
                used = []
                for block in blocks:
                    if refcount(block) == _IDLE:
                        freed += size
                        self.held.discard(id(block))
                    else:
                        used.append(block)
                self.blocks[size] = used
            self.retained = max(0, self.retained - freed)

    def trim(self) -> None:
        """Drops every block: idle ones are freed now, the others when their last view goes. Those
        in use that are counted stay, so that their count does."""
        kept: dict[int, list[Any]] = {}
        owners: dict[int, MemoryCount] = {}
        if self.owners:
            for size, blocks in self.blocks.items():
                for block in blocks:
                    if refcount(block) != _IDLE and (count := self.owners.get(id(block))):
                        kept.setdefault(size, []).append(block)
                        owners[id(block)] = count
        self.held = {id(block) for blocks in kept.values() for block in blocks}
        self.blocks, self.owners = kept, owners
        self.retained = 0


def _array(block: Any, shape: Shape, dtype: Any) -> Any:
    """An array in the block, from its first aligned address on. Its base is the block."""
    return np.ndarray(shape, dtype, block, -address_of(block) % ALIGNMENT)


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


def note_apart(block: Any) -> None:
    """Count a large block that a compiled function keeps for itself."""
    if (count := counting.get()) is not None and block.nbytes >= SMALLEST:
        count.apart.append(weakref.ref(block))


_pool = Pool()
empty = _pool.empty
free_idle = _pool.free_idle


@contextmanager
def count_memory() -> Iterator[MemoryCount]:
    """Within the block, memory that this context takes from the pool is counted."""
    count = MemoryCount(_pool)
    token = counting.set(count)
    try:
        yield count
    finally:
        counting.reset(token)


def is_sole_owner(array: Any) -> bool:
    """Whether this array is the sole owner of its memory: its own, or a block of which there is
    no other view. The pool knows a block until it is trimmed."""
    block = array.base
    if block is None:
        return bool(array.flags.owndata)
    if type(block) is not np.ndarray or not block.flags.owndata:
        return False
    return refcount(block) <= (_ONE_VIEW if _pool.holds(block) else _ONE_VIEW - 1)


def are_sole_owners(arrays: Iterable[Any]) -> bool:
    """Whether arrays in blocks, each of which was the only one in its block, still are: a few
    native calls for hundreds. False also where the pool was trimmed of some of the blocks alone."""
    blocks = [*map(_base, arrays)]
    most = max(map(refcount, blocks))
    if _pool.held.issuperset(map(id, blocks)):
        return most <= _LISTED
    return most < _LISTED and _pool.held.isdisjoint(map(id, blocks))


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
