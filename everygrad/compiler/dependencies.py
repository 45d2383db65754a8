"""Which groups of a graph wait for which, directly and through others, while groups still grow.

Each group knows its direct neighbours, and as bits all the groups it waits for. Bits reach back
`WINDOW` groups: what is older counts as waited for. The answer errs on that side alone, which costs
a fusion across thousands of kernels and never an order, and makes every question take the same
time in a program of any length.
"""

from __future__ import annotations

from collections.abc import Iterable

WINDOW = 4096  # groups that the bits reach back, at least


class Dependencies:
    """Groups by number; a new one waits for nothing."""

    def __init__(self) -> None:
        self.before: list[set[int]] = []  # whom each group waits for directly
        self.after: list[set[int]] = []  # who waits for it directly
        self._floor: list[int] = []  # below this number all groups count as waited for
        self._bits: list[int] = []  # bit i: it waits for group floor + i

    def new(self) -> int:
        self.before.append(set())
        self.after.append(set())
        self._floor.append(0)
        self._bits.append(0)
        return len(self.before) - 1

    def waits(self, group: int, other: int) -> bool:
        """Whether `group` may have to run after `other`."""
        place = other - self._floor[group]
        return place < 0 or bool(self._bits[group] >> place & 1)

    def add(self, group: int, others: Iterable[int]) -> None:
        """Let `group`, and whoever waits for it, wait for others that do not wait for it."""
        fresh = [o for o in others if o != group and o not in self.before[group]]
        changed = False
        for other in fresh:
            self.before[group].add(other)
            self.after[other].add(group)
            changed |= self._inherit(group, other)
        if changed:
            self._spread(group)

    def _inherit(self, group: int, other: int) -> bool:
        """Let `group` wait for `other` and all that it waits for; whether that is anything new."""
        floor, theirs = self._floor[group], self._floor[other]
        mine = self._bits[group]
        if theirs > floor:
            mine >>= theirs - floor
            more = self._bits[other]
            top = theirs
        else:
            more = self._bits[other] >> floor - theirs
            top = floor
        if other >= top:
            more |= 1 << other - top
        both = mine | more
        if top == floor and both == mine:
            return False
        if both.bit_length() > 2 * WINDOW:
            cut = both.bit_length() - WINDOW
            top, both = top + cut, both >> cut
        self._floor[group], self._bits[group] = top, both
        return True

    def _spread(self, group: int) -> None:
        """Tell everyone behind a group what it waits for now."""
        todo = [group]
        while todo:
            here = todo.pop()
            todo += [other for other in self.after[here] if self._inherit(other, here)]

    def any_between(self, first: int, last: int) -> bool:
        """Whether a third group may have to run after `first` and before `last`."""
        return any(n != first and self.waits(n, first) for n in self.before[last])

    def merge(self, group: int, other: int) -> None:
        """Make two groups one, which keeps the first number; nothing may be between them."""
        before = self.before[other] - {group}
        after = self.after[other] - {group}
        for n in self.before[other]:
            self.after[n].discard(other)
        for n in self.after[other]:
            self.before[n].discard(other)
        self.before[other], self.after[other] = set(), set()
        changed = False
        for n in before:
            self.before[group].add(n)
            self.after[n].add(group)
            changed |= self._inherit(group, n)
        for n in after:
            self.before[n].add(group)
            self.after[group].add(n)
        if changed or after:
            self._spread(group)
