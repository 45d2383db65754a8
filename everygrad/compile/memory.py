"""One arena for everything a replay computes on the way: who lives when, and where.

Largest first, each buffer takes the lowest place at which no neighbour in time overlaps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGN = 64


class Lifetime(NamedTuple):
    """A buffer of `nbytes`, needed from step `first` to step `last`."""

    nbytes: int
    first: int
    last: int
    name: str


class Plan(NamedTuple):
    """The offset of each buffer, and the size of the arena."""

    offsets: list[int]
    size: int


def _rounded(nbytes: int) -> int:
    return max(1, -(-nbytes // ALIGN)) * ALIGN


def plan(lifetimes: Sequence[Lifetime]) -> Plan:
    """Offsets at which no two buffers that live at the same time overlap."""
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first))
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    top = 0
    for i in order:
        life = lifetimes[i]
        size = _rounded(life.nbytes)
        taken = sorted(
            (offsets[j], offsets[j] + _rounded(lifetimes[j].nbytes))
            for j in placed
            if lifetimes[j].first <= life.last and life.first <= lifetimes[j].last
        )
        at = 0
        for start, end in taken:
            if at + size <= start:
                break
            at = max(at, end)
        offsets[i] = at
        placed.append(i)
        top = max(top, at + size)
    return Plan(offsets, top)


def peak(lifetimes: Sequence[Lifetime]) -> int:
    """The most bytes alive at once: what no plan can go below."""
    steps = max((life.last for life in lifetimes), default=-1) + 1
    alive = [0] * (steps + 1)
    for life in lifetimes:
        alive[life.first] += _rounded(life.nbytes)
        alive[life.last + 1] -= _rounded(life.nbytes)
    most = now = 0
    for change in alive:
        now += change
        most = max(most, now)
    return most


class Memory:
    """The memory plan: `arena` bytes for what is computed on the way, of which `peak` are in use
    at once; `outputs` bytes of results; `constants` bytes; `in_place`: how many results take the
    memory of an input. `placed`: where each buffer begins, and when it is needed."""

    def __init__(
        self,
        arena: int,
        placed: Sequence[tuple[int, Lifetime]],
        outputs: int,
        constants: int,
        in_place: int,
    ) -> None:
        self.arena = arena
        self.placed = sorted(placed)
        self.peak = peak([life for _, life in placed])
        self.outputs = outputs
        self.constants = constants
        self.in_place = in_place

    def __str__(self) -> str:
        lines = [
            f"arena {self.arena:,} bytes ({self.peak:,} in use at once), results "
            f"{self.outputs:,}, constants {self.constants:,}, {self.in_place} written in place"
        ]
        for offset, life in self.placed:
            lines.append(
                f"  at {offset:>10,}: {life.nbytes:>10,} bytes, steps {life.first} to {life.last}"
                f"  {life.name}"
            )
        return "\n".join(lines)

    __repr__ = __str__
