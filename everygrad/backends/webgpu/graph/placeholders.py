"""The memory of a compiled function: names while it is recorded, few blocks that serve many values
when it runs.

While commands are recorded, what they speak of needs no memory: a `Promised` block is a size and a
number. One that the host writes (a constant) takes memory then, and keeps it. All others are
planned once the commands are known: two values that are never needed at the same time lie in one
block. Offsets in a common block would not do: WebGPU refuses a kernel that reads and writes one
buffer, even in different places.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from everygrad.backends.webgpu.driver.memory import Block, Pool, Storage
from everygrad.compile.memory import MOST_COMPARED, Lifetime


class Promised(Block):
    """A block that takes memory from `pool` when somebody asks for its buffer."""

    __slots__ = ("held", "pool")

    def __init__(self, pool: Pool, size: int) -> None:
        self.held: Storage | None = None
        self.pool = pool
        super().__init__(None, size)

    def real(self) -> Block:
        if self.held is None:
            self.held = self.pool.take_to_write(self.size)
        return self.held.block

    @property
    def raw(self) -> Any:
        return self.real().raw

    @raw.setter
    def raw(self, value: Any) -> None:
        assert value is None  # by the base class, which has nothing to give

    @property
    def epoch(self) -> int:
        """That of the memory, which commands may still use: who asks is about to write."""
        return self.real().epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        if self.held is not None:
            self.held.block.epoch = value


class Promise(Storage):
    """A storage on a promised block: there is nothing to give back but what the block holds."""

    __slots__ = ()

    def lease(self, back: Any) -> None:
        pass


class Promises(Pool):
    """Stands in for a pool while commands are recorded."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool.gpu)
        self.pool = pool

    def take(self, size: int) -> Storage:
        promised = Promised(self.pool, self._room(size))
        return Promise(self.gpu, promised, size, self.returned)

    take_to_write = take


def shared(lifetimes: Sequence[Lifetime], bound: int) -> list[int]:
    """The number of the block that each buffer lies in; a block's size is that of its largest.

    Largest first, each takes the first block that is free all the time it is needed; of thousands,
    the small rest is placed in the order of time. What one binding holds (`bound` bytes) does not
    go where it would take several.

    >>> lives = [Lifetime(64, 0, 1, "a"), Lifetime(256, 1, 2, "b"), Lifetime(64, 2, 3, "c")]
    >>> shared(lives, 1024)
    [1, 0, 1]
    """
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first))
    places = [0] * len(lifetimes)
    blocks: list[_Shared] = []
    for i in order[:MOST_COMPARED]:
        life = lifetimes[i]
        free = (n for n, block in enumerate(blocks) if block.takes(life, bound))
        places[i] = next(free, len(blocks))
        if places[i] == len(blocks):
            blocks.append(_Shared(life.nbytes))
        blocks[places[i]].add(life)
    _share_by_time(lifetimes, order[MOST_COMPARED:], bound, places, len(blocks))
    return places


class _Shared:
    """A block, and when it is in use."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.first: list[int] = []  # steps, sorted: who comes, and
        self.last: list[int] = []  # when each is needed for the last time

    def takes(self, life: Lifetime, bound: int) -> bool:
        """Whether a buffer that is not larger can lie there."""
        if life.nbytes <= bound < self.size:
            return False
        at = bisect_right(self.first, life.last)  # those before it come before the buffer goes
        return not at or self.last[at - 1] < life.first

    def add(self, life: Lifetime) -> None:
        at = bisect_right(self.first, life.first)
        self.first.insert(at, life.first)
        self.last.insert(at, life.last)


def _share_by_time(
    lifetimes: Sequence[Lifetime], those: Sequence[int], bound: int, places: list[int], first: int
) -> None:
    """Blocks from number `first` on for these, step by step: each takes the smallest free block
    that is large enough, or the largest one, which grows."""
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
