"""The memory of a compiled function: placeholders while it is recorded, and a few blocks that many
values share when it runs.

While commands are recorded, their buffers need no memory: a `PlaceholderBlock` is a size and a
number. One that the host writes (a constant) takes memory then, and keeps it. All others are
planned once the commands are known: two values that are never needed at the same time share a
block. Offsets in one large block would not work: WebGPU refuses a kernel that reads and writes one
buffer, even at different offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from everygrad.backends.webgpu.driver.memory import Block, Pool, Storage
from everygrad.compiler.memory import MOST_COMPARED, Lifetime


class PlaceholderBlock(Block):
    """A block that takes memory from `pool` when its buffer is first asked for."""

    __slots__ = ("pool", "storage")

    def __init__(self, pool: Pool, size: int) -> None:
        self.storage: Storage | None = None
        self.pool = pool
        super().__init__(None, size)

    def materialize(self) -> Block:
        if self.storage is None:
            self.storage = self.pool.take_to_write(self.size)
        return self.storage.block

    @property
    def raw(self) -> Any:
        return self.materialize().raw

    @raw.setter
    def raw(self, value: Any) -> None:
        assert value is None  # set by the base class

    @property
    def epoch(self) -> int:
        """The epoch of the memory, which commands may still use: the caller is about to write."""
        return self.materialize().epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        if self.storage is not None:
            self.storage.block.epoch = value


class PlaceholderStorage(Storage):
    """A storage on a placeholder: it returns no block, since the placeholder owns its memory."""

    __slots__ = ()

    def lease(self, back: Any) -> None:
        pass


class PlaceholderPool(Pool):
    """Stands in for a pool while commands are recorded."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool.gpu)
        self.pool = pool

    def take(self, size: int) -> Storage:
        placeholder = PlaceholderBlock(self.pool, self._block_size(size))
        return PlaceholderStorage(self.gpu, placeholder, size, self.returned)

    take_to_write = take


def shared(lifetimes: Sequence[Lifetime], bound: int) -> list[int]:
    """The number of the block that each buffer is placed in; a block is as large as its largest
    buffer.

    Buffers are placed by size, largest first, each in the first block that is free during its
    lifetime; of thousands of buffers, the small remainder is placed in the order of time. A buffer
    that fits one binding (`bound` bytes) is not placed in a block that takes several.

    >>> lives = [Lifetime(64, 0, 1, "a"), Lifetime(256, 1, 2, "b"), Lifetime(64, 2, 3, "c")]
    >>> shared(lives, 1024)
    [1, 0, 1]
    """
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first))
    places = [0] * len(lifetimes)
    blocks: list[_SharedBlock] = []
    for i in order[:MOST_COMPARED]:
        life = lifetimes[i]
        free = (n for n, block in enumerate(blocks) if block.takes(life, bound))
        places[i] = next(free, len(blocks))
        if places[i] == len(blocks):
            blocks.append(_SharedBlock(life.nbytes))
        blocks[places[i]].add(life)
    _share_by_time(lifetimes, order[MOST_COMPARED:], bound, places, len(blocks))
    return places


class _SharedBlock:
    """A block, and when it is in use."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.first: list[int] = []  # steps, sorted: when each buffer is needed first,
        self.last: list[int] = []  # and when each is needed for the last time

    def takes(self, life: Lifetime, bound: int) -> bool:
        """Whether a buffer that is not larger can be placed here."""
        if life.nbytes <= bound < self.size:
            return False
        at = bisect_right(self.first, life.last)  # those before it begin before the buffer ends
        return not at or self.last[at - 1] < life.first

    def add(self, life: Lifetime) -> None:
        at = bisect_right(self.first, life.first)
        self.first.insert(at, life.first)
        self.last.insert(at, life.last)


def _share_by_time(
    lifetimes: Sequence[Lifetime], those: Sequence[int], bound: int, places: list[int], first: int
) -> None:
    """Place these buffers in blocks from number `first` on, step by step: each takes the smallest
    free block that is large enough, or the largest one, which grows."""
    free: list[list[tuple[int, int]]] = [[], []]  # sizes and numbers, sorted; beyond one binding
    busy: list[tuple[int, int, int]] = []  # a heap: last step, size, number
    for i in sorted(those, key=lambda i: lifetimes[i].first):
        life = lifetimes[i]
        while busy and busy[0][0] < life.first:
            _, size, number = heappop(busy)
            insort(free[size > bound], (size, number))
        found = free[life.nbytes > bound]
        if found:
            at = min(bisect_left(found, (life.nbytes, -1)), len(found) - 1)
            size, number = found.pop(at)
        else:
            size, number = 0, first
            first += 1
        places[i] = number
        heappush(busy, (life.last, max(size, life.nbytes), number))
