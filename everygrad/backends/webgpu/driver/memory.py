"""GPU memory: blocks of a few sizes, returned when the last array on them is gone.

Commands run in the order they are recorded, so a block can be reused at once.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from itertools import count
from typing import TYPE_CHECKING, Any

import wgpu

from everygrad.errors import DeviceError, OutOfMemoryError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.driver.gpu import Gpu

_SMALLEST = 256
_LARGE_STEP = 1 << 20  # bytes between the sizes of blocks larger than a binding
_MAX_FREE_BYTES = 1 << 30  # bytes of free blocks kept for later
_SPARE = 1 << 16  # bytes up to which another block is taken rather than waited for
_ON_SHELF = 2  # free blocks kept for one result: enough to alternate between calls
_NUMBERS = count()
_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


def bucket(size: int) -> int:
    """The size of the block for `size` bytes: at most a quarter is wasted.

    >>> bucket(1), bucket(257), bucket(1100), bucket(4097)
    (256, 320, 1280, 5120)
    """
    if size <= _SMALLEST:
        return _SMALLEST
    step = 1 << max(6, (size - 1).bit_length() - 3)
    return -(-size // step) * step


class Block:
    """A buffer of the GPU. `epoch` is the submission it was last used in, `lease` refers to the
    storage it was last given to."""

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
    """Some bytes of a block, bound as if they were a block."""

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
        self.of.epoch = max(
            self.of.epoch, value
        )  # the base class sets -1 first, which changes nothing


class Storage:
    """What arrays hold: a block that they own until the last of them is gone."""

    __slots__ = ("__weakref__", "block", "gpu", "size")

    def __init__(self, gpu: Gpu, block: Block, size: int, back: deque[Lease]) -> None:
        self.gpu = gpu
        self.block = block
        self.size = size  # the bytes in use
        self.lease(back)

    def lease(self, back: deque[Lease]) -> None:
        """Return the block to `back` when this is gone. That can happen in any thread at any
        moment, so a native call does it. (A `__del__` can be interrupted before it begins, and the
        exception is lost.)"""
        lease = Lease(self, back.append)
        lease.block = self.block
        self.block.lease = lease


class Lease(weakref.ref[Storage]):
    """A weak reference to a storage, and its block."""

    __slots__ = ("block",)
    block: Block

    @property
    def is_last(self) -> bool:
        """Whether the block has no newer lease."""
        return self.block.lease is self


class Shelf:
    """The blocks that one result of a compiled function uses, call after call. They are few, so
    the same ones are reused, and with them the bind groups that were made for them."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self.gpu = gpu
        self.size = size
        self.blocks: deque[Lease] = deque()  # the free ones
        gpu.pool.shelves.add(self)

    def take(self) -> Storage:
        """A storage whose block is returned to this shelf."""
        with self.gpu.lock:
            while len(self.blocks) > _ON_SHELF:
                self.gpu.pool.returned.append(self.blocks.popleft())
            while self.blocks:
                lease = self.blocks.pop()
                if lease.is_last:
                    return ShelfStorage(self, lease.block)
            return ShelfStorage(self, self.gpu.pool.block(self.size))

    def empty(self) -> None:
        """Return the free blocks to the pool."""
        while self.blocks:
            self.gpu.pool.returned.append(self.blocks.pop())

    def __del__(self) -> None:
        self.gpu.pool.returned.extend(self.blocks)


class ShelfStorage(Storage):
    """A storage on a block of a shelf."""

    __slots__ = ("shelf",)

    def __init__(self, shelf: Shelf, block: Block) -> None:
        super().__init__(shelf.gpu, block, shelf.size, shelf.blocks)
        self.shelf = shelf


class Pool:
    """The blocks of one GPU. `limit` is the most bytes it takes; None: no limit."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        # Every block is held here too: were one part of a garbage cycle, the collector would
        # finalise its buffer along with the storage that returns the block.
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
        block_size = self._block_size(size)
        with self.gpu.lock:
            self._sort()
            free = self.free[block_size]
            if free:
                self.free_bytes -= block_size
                return free.pop()
            return self._create(block_size)

    def take_to_write(self, size: int) -> Storage:
        """As `take`, for bytes from the CPU. They are written before recorded commands run: a small
        block that recorded commands use is skipped, so that nothing need be submitted first."""
        with self.gpu.lock:
            found = self.take(size)
            if size > _SPARE or not self.gpu.is_recorded(found.block):
                return found
            block_size = found.block.size
            free = self.free[block_size]
            for i, block in enumerate(free):
                if not self.gpu.is_recorded(block):
                    self.free_bytes -= block_size
                    return self._leased(free.pop(i), size)
            return self._leased(self._create(block_size), size)

    def _block_size(self, size: int) -> int:
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
        """Move returned blocks to their free lists."""
        while self.returned:
            lease = self.returned.popleft()
            if lease.is_last:
                self._put(lease.block)
        if self.free_bytes > _MAX_FREE_BYTES:
            self.trim()

    def _put(self, block: Block) -> None:
        """Add a block to its free list; `_drop_unused` finds one that an interrupt lost here."""
        block.lease = None
        self.free[block.size].append(block)
        self.free_bytes += block.size

    def _drop_unused(self) -> None:
        """Drop all blocks that are not in use."""
        for shelf in list(self.shelves):
            shelf.empty()
        self.free.clear()  # rebuilt from the leases: an interrupt may have lost one
        self.free_bytes = 0
        for block in list(self.blocks.values()):
            if block.is_free:
                self._put(block)
        self.trim()

    def _create(self, block_size: int) -> Block:
        if self.limit is not None and self.taken_bytes + block_size > self.limit:
            self._drop_unused()
            if self.taken_bytes + block_size > self.limit:
                raise OutOfMemoryError(
                    f"webgpu: {block_size} bytes asked for, "
                    f"{self.taken_bytes} of {self.limit} in use"
                )
        try:
            raw = self._raw(block_size)
        except OutOfMemoryError:
            self._drop_unused()
            self.gpu.wait()  # dropped buffers are released once the GPU is done with them
            raw = self._raw(block_size)
        self.taken_bytes += block_size
        self.gpu.largest = max(self.gpu.largest, block_size)
        block = Block(raw, block_size)
        self.blocks[block.number] = block
        return block

    def _raw(self, block_size: int) -> Any:
        try:
            return self.gpu.guard(self.gpu.device.create_buffer, size=block_size, usage=_USAGE)
        except DeviceError as error:
            if self.gpu.lost is None and "memory" in str(error).lower():
                raise OutOfMemoryError(str(error)) from None
            raise

    def trim(self) -> None:
        """Drop the free blocks."""
        self.gpu.submit()
        self.gpu.drop_bind_groups()
        free, self.free, self.free_bytes = self.free, defaultdict(list), 0
        for blocks in free.values():
            for block in blocks:
                del self.blocks[block.number]
        self.taken_bytes = sum(block.size for block in self.blocks.values())
