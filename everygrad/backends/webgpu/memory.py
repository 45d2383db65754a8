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
    """A buffer of the GPU. `epoch` is the submission it was last used in."""

    __slots__ = ("epoch", "number", "raw", "size")
    start = 0  # where its bytes begin in the buffer

    def __init__(self, raw: Any, size: int) -> None:
        self.raw = raw
        self.size = size
        self.number = next(_NUMBERS)
        self.epoch = -1


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

    def __init__(self, gpu: Any, block: Block, size: int) -> None:
        self.gpu = gpu
        self.block = block
        self.size = size  # the bytes in use

    def __del__(self) -> None:
        # from any thread, at any moment: an append is all that is safe, and enough
        self.gpu.pool.returned.append(self.block)


class Shelf:
    """The blocks that one result of a compiled function lies in, call after call. They are few, so
    the same ones come again, and with them the bind groups that were made for them."""

    def __init__(self, gpu: Any, size: int) -> None:
        self.gpu = gpu
        self.size = size
        self.blocks: deque[Block] = deque()  # those that are free
        gpu.pool.shelves.add(self)

    def take(self) -> Storage:
        """A storage whose block comes back here."""
        while len(self.blocks) > _ON_SHELF:
            self.gpu.pool.returned.append(self.blocks.popleft())
        block = self.blocks.pop() if self.blocks else self.gpu.pool.block(self.size)
        return Lent(self, block)

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
        super().__init__(shelf.gpu, block, shelf.size)
        self.shelf = shelf

    def __del__(self) -> None:
        self.shelf.blocks.append(self.block)


class Pool:
    """The blocks of one GPU. `limit` is the most bytes it takes, None for as many as there are."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        # Every block is held here too: were one part of a garbage cycle, the collector would
        # finalise its buffer along with the storage that hands the block back.
        self.blocks: dict[int, Block] = {}
        self.returned: deque[Block] = deque()
        self.free: dict[int, list[Block]] = defaultdict(list)
        self.free_bytes = 0
        self.taken_bytes = 0  # in blocks, free or not
        self.limit: int | None = None
        self.shelves: weakref.WeakSet[Shelf] = weakref.WeakSet()

    def take(self, size: int) -> Storage:
        """A storage of `size` bytes, which must not be 0; its content is not defined."""
        return Storage(self.gpu, self.block(size), size)

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
                    return Storage(self.gpu, kept.pop(i), size)
            return Storage(self.gpu, self._create(room), size)

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
            block = self.returned.popleft()
            self.free[block.size].append(block)
            self.free_bytes += block.size
        if self.free_bytes > _KEEP:
            self.trim()

    def _spare(self) -> None:
        """Drop all that nobody uses."""
        for shelf in list(self.shelves):
            shelf.empty()
        self._sort()
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
        self.taken_bytes -= self.free_bytes
        for kept in self.free.values():
            for block in kept:
                del self.blocks[block.number]
        self.free.clear()
        self.free_bytes = 0
