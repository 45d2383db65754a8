"""GPU memory: blocks of a few sizes, given back when the last array on them is gone.

Commands run in the order they are recorded, so a block can serve again at once.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from itertools import count
from typing import Any

import wgpu

from everygrad.errors import DeviceError, OutOfMemoryError

_SMALLEST = 256
_LARGE_STEP = 1 << 20  # bytes between the sizes of blocks larger than a binding
_KEEP = 1 << 30  # bytes of free blocks kept for later
_SPARE = 1 << 16  # bytes up to which a block is spared rather than waited for
_ON_SHELF = 2  # free blocks kept for one result: enough to take turns, call after call
_NUMBERS = count()
_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


def bucket(size: int) -> int:
    """The size of the block that serves `size` bytes: a quarter of waste at most.

    >>> bucket(1), bucket(257), bucket(1100), bucket(4097)
    (256, 320, 1280, 5120)
    """
    if size <= _SMALLEST:
        return _SMALLEST
    step = 1 << max(6, (size - 1).bit_length() - 3)
    return -(-size // step) * step


class Block:
    """A buffer of the GPU. `epoch` is the submission it was last used in, `lease` knows the storage
    it was last given to."""

    __slots__ = ("epoch", "lease", "number", "raw", "size")
    lease: Lease | None
    start = 0  # where its bytes begin in the buffer

    def __init__(self, raw: Any, size: int) -> None:
        self.raw = raw
        self.size = size
        self.number = next(_NUMBERS)
        self.epoch = -1
        self.lease = None

    @property
    def is_free(self) -> bool:
        return self.lease is None or self.lease() is None


class Slice(Block):
    """Some bytes of a block, bound as if they were one of their own."""

    __slots__ = ("of", "start")

    def __init__(self, of: Block, start: int, size: int) -> None:
        self.of = of
        super().__init__(of.raw, size)
        self.start = start

    @property
    def epoch(self) -> int:
        return self.of.epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        self.of.epoch = max(self.of.epoch, value)  # at first -1, which says nothing


class Storage:
    """What arrays hold: a block that is theirs until the last of them is gone."""

    __slots__ = ("__weakref__", "block", "gpu", "size")

    def __init__(self, gpu: Any, block: Block, size: int, back: deque[Lease]) -> None:
        self.gpu = gpu
        self.block = block
        self.size = size  # the bytes in use
        self.lease(back)

    def lease(self, back: deque[Lease]) -> None:
        """The block goes `back` when this is gone: from any thread, at any moment, so by a native
        call. (A `__del__` can be interrupted before it begins, and the exception is lost.)"""
        lease = Lease(self, back.append)
        lease.block = self.block
        self.block.lease = lease


class Lease(weakref.ref[Storage]):
    """A storage, as long as it lives, and its block."""

    __slots__ = ("block",)
    block: Block

    @property
    def is_last(self) -> bool:
        """Whether the block was not found to be free before its lease was looked at."""
        return self.block.lease is self


class Shelf:
    """The blocks that one result of a compiled function lies in, call after call. They are few, so
    the same ones come again, and with them the bind groups that were made for them."""

    def __init__(self, gpu: Any, size: int) -> None:
        self.gpu = gpu
        self.size = size
        self.blocks: deque[Lease] = deque()  # those that are free
        gpu.pool.shelves.add(self)

    def take(self) -> Storage:
        """A storage whose block comes back here."""
        with self.gpu.lock:
            while len(self.blocks) > _ON_SHELF:
                self.gpu.pool.returned.append(self.blocks.popleft())
            while self.blocks:
                lease = self.blocks.pop()
                if lease.is_last:
                    return Lent(self, lease.block)
            return Lent(self, self.gpu.pool.block(self.size))

    def empty(self) -> None:
        """Give the free blocks to everyone."""
        while self.blocks:
            self.gpu.pool.returned.append(self.blocks.pop())

    def __del__(self) -> None:
        self.gpu.pool.returned.extend(self.blocks)


class Lent(Storage):
    """A storage on a block of a shelf."""

    __slots__ = ("shelf",)

    def __init__(self, shelf: Shelf, block: Block) -> None:
        super().__init__(shelf.gpu, block, shelf.size, shelf.blocks)
        self.shelf = shelf


class Pool:
    """The blocks of one GPU. `limit` is the most bytes it takes, None for as many as there are."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        # Every block is held here too: were one part of a garbage cycle, the collector would
        # finalise its buffer along with the storage that hands the block back.
        self.blocks: dict[int, Block] = {}
        self.returned: deque[Lease] = deque()
        self.free: dict[int, list[Block]] = defaultdict(list)
        self.free_bytes = 0
        self.taken_bytes = 0  # in blocks, free or not
        self.limit: int | None = None
        self.shelves: weakref.WeakSet[Shelf] = weakref.WeakSet()

    def take(self, size: int) -> Storage:
        """A storage of `size` bytes, which must not be 0; its content is not defined."""
        with self.gpu.lock:
            return self._leased(self.block(size), size)

    def _leased(self, block: Block, size: int) -> Storage:
        return Storage(self.gpu, block, size, self.returned)

    def block(self, size: int) -> Block:
        """A block for so many bytes."""
        room = self._room(size)
        with self.gpu.lock:
            self._sort()
            kept = self.free[room]
            if kept:
                self.free_bytes -= room
                return kept.pop()
            return self._create(room)

    def take_to_write(self, size: int) -> Storage:
        """The same for bytes from the CPU. They are written before what is recorded runs: a small
        block that recorded commands use is left alone, so that nothing need be handed over."""
        with self.gpu.lock:
            found = self.take(size)
            if size > _SPARE or not self.gpu.is_recorded(found.block):
                return found
            room = found.block.size
            kept = self.free[room]
            for i, block in enumerate(kept):
                if not self.gpu.is_recorded(block):
                    self.free_bytes -= room
                    return self._leased(kept.pop(i), size)
            return self._leased(self._create(room), size)

    def _room(self, size: int) -> int:
        """The size of the block for a tensor: one binding if that holds it."""
        limits = self.gpu.limits
        bound, most = (n // 16 * 16 for n in (limits.binding_size, limits.buffer_size))
        if size <= min(bound, most):
            return min(bucket(size), bound, most)
        if size > most:
            raise OutOfMemoryError(
                f"webgpu: a tensor of {size} bytes does not fit this device, whose buffers hold at "
                f"most {most} bytes (max-buffer-size); split the tensor"
            )
        return min(bucket(size), -(-size // _LARGE_STEP) * _LARGE_STEP, most)

    def _sort(self) -> None:
        """Returned blocks to their lists."""
        while self.returned:
            lease = self.returned.popleft()
            if lease.is_last:
                self._put(lease.block)
        if self.free_bytes > _KEEP:
            self.trim()

    def _put(self, block: Block) -> None:
        """A block to its list; one that does not get there is found by `_spare`."""
        block.lease = None
        self.free[block.size].append(block)
        self.free_bytes += block.size

    def _spare(self) -> None:
        """Drop all that nobody uses."""
        for shelf in list(self.shelves):
            shelf.empty()
        self.free.clear()  # found again by who holds them: an interrupt may have lost one
        self.free_bytes = 0
        for block in list(self.blocks.values()):
            if block.is_free:
                self._put(block)
        self.trim()

    def _create(self, room: int) -> Block:
        if self.limit is not None and self.taken_bytes + room > self.limit:
            self._spare()
            if self.taken_bytes + room > self.limit:
                raise OutOfMemoryError(
                    f"webgpu: {room} bytes asked for, {self.taken_bytes} of {self.limit} in use"
                )
        try:
            raw = self._raw(room)
        except OutOfMemoryError:
            self._spare()
            self.gpu.wait()  # what was dropped is given back once the GPU is done with it
            raw = self._raw(room)
        self.taken_bytes += room
        self.gpu.largest = max(self.gpu.largest, room)
        block = Block(raw, room)
        self.blocks[block.number] = block
        return block

    def _raw(self, room: int) -> Any:
        try:
            return self.gpu.guard(self.gpu.device.create_buffer, size=room, usage=_USAGE)
        except DeviceError as error:
            if self.gpu.lost is None and "memory" in str(error).lower():
                raise OutOfMemoryError(str(error)) from None
            raise

    def trim(self) -> None:
        """Drop the free blocks."""
        self.gpu.submit()
        self.gpu.forget()
        free, self.free, self.free_bytes = self.free, defaultdict(list), 0
        for kept in free.values():
            for block in kept:
                del self.blocks[block.number]
        self.taken_bytes = sum(block.size for block in self.blocks.values())
