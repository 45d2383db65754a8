"""The memory of a compiled function: names while it is recorded, few blocks that serve many values
when it runs.

While commands are recorded, what they speak of needs no memory: a `Promised` block is a size and a
number. One that the host writes (a constant) takes memory then, and keeps it. All others are
planned once the commands are known: two values that are never needed at the same time lie in one
block. Offsets in a common block would not do: WebGPU refuses a kernel that reads and writes one
buffer, even in different places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everygrad.backends.webgpu.memory import Block, Pool, Storage
from everygrad.compile.memory import Lifetime


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

    Largest first, each takes the first block that is free all the time it is needed. What one
    binding holds (`bound` bytes) does not go where it would take several.

    >>> lives = [Lifetime(64, 0, 1, "a"), Lifetime(256, 1, 2, "b"), Lifetime(64, 2, 3, "c")]
    >>> shared(lives, 1024)
    [1, 0, 1]
    """
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first))
    blocks: list[list[Lifetime]] = []
    places = [0] * len(lifetimes)
    for i in order:
        life = lifetimes[i]
        free = (n for n, others in enumerate(blocks) if _joins(life, others, bound))
        places[i] = next(free, len(blocks))
        if places[i] == len(blocks):
            blocks.append([])
        blocks[places[i]].append(life)
    return places


def _joins(life: Lifetime, others: Sequence[Lifetime], bound: int) -> bool:
    """Whether a buffer can lie where these, the first of which is the largest, do."""
    if life.nbytes <= bound < others[0].nbytes:
        return False
    return all(o.last < life.first or life.last < o.first for o in others)
