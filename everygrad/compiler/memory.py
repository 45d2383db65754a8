"""One arena for everything a replay computes on the way: who lives when, and where.

Largest first, each buffer takes the lowest place at which no neighbour in time overlaps it. Of
thousands, that is done for the largest; the small rest is placed in the order of time, which takes
no comparing of each with all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

ALIGN = 64
MOST_COMPARED = 1 << 10  # buffers that are compared with one another


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
    top = _by_size(lifetimes, order[:MOST_COMPARED], offsets)
    rest = order[MOST_COMPARED:]
    return Plan(offsets, _by_time(lifetimes, rest, offsets, top) if rest else top)


def _by_size(lifetimes: Sequence[Lifetime], order: Sequence[int], offsets: list[int]) -> int:
    """Place these, in this order, each at the lowest offset that is free all the while."""
    count = len(order)
    # of those that have a place, in the order of their offsets: where they begin and end, and the
    # first and last step in which they are needed
    start, end, first, last = (np.zeros(count, np.int64) for _ in range(4))
    top = 0
    for n, i in enumerate(order):
        size, begins, ends = _rounded(lifetimes[i].nbytes), lifetimes[i].first, lifetimes[i].last
        near = (first[:n] <= ends) & (last[:n] >= begins)
        starts = start[:n][near]
        free = np.empty(len(starts) + 1, np.int64)  # from where on it is free before each of them
        free[0] = 0
        np.maximum.accumulate(end[:n][near], out=free[1:])
        fits = starts - free[:-1] >= size
        at = int(free[fits.argmax()] if fits.any() else free[-1])
        place = int(start[:n].searchsorted(at))
        facts = ((start, at), (end, at + size), (first, begins), (last, ends))
        for table, value in facts:
            table[place + 1 : n + 1] = table[place:n].copy()
            table[place] = value
        offsets[i] = at
        top = max(top, at + size)
    return top


def _by_time(
    lifetimes: Sequence[Lifetime], those: Sequence[int], offsets: list[int], base: int
) -> int:
    """Place these from `base` on, step by step: each takes the smallest gap that those before it
    have left, or is put behind everything. Returns where it all ends."""
    begin = sorted(those, key=lambda i: lifetimes[i].first)
    alive: list[tuple[int, int, int]] = []  # a heap: last step, offset, size
    gaps: dict[int, int] = {}  # sizes by offset
    ends: dict[int, int] = {}  # the same gaps: offsets by where they end
    by_size: list[tuple[int, int]] = []  # sorted: sizes and offsets of the gaps
    top = base

    def add(at: int, size: int) -> None:
        after = gaps.get(at + size)
        if after is not None:
            remove(at + size)
            size += after
        before = ends.get(at)
        if before is not None:
            size += gaps[before]
            remove(before)
            at = before
        gaps[at], ends[at + size] = size, at
        insort(by_size, (size, at))

    def remove(at: int) -> None:
        size = gaps.pop(at)
        del ends[at + size]
        del by_size[bisect_left(by_size, (size, at))]

    for i in begin:
        while alive and alive[0][0] < lifetimes[i].first:
            _, at, size = heappop(alive)
            add(at, size)
        size = _rounded(lifetimes[i].nbytes)
        place = bisect_left(by_size, (size, -1))
        if place < len(by_size):
            held, at = by_size[place]
            remove(at)
            if held > size:
                add(at + size, held - size)
        else:
            at = top
            if top in ends:  # the last gap reaches the end: it grows
                at = ends[top]
                remove(at)
            top = at + size
        offsets[i] = at
        heappush(alive, (lifetimes[i].last, at, size))
    return top


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
