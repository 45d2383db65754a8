"""What kernels find wrong with values while nobody waits: noted by them, raised by the next read.

A check has a number. A kernel that finds a bad value writes, if it is the first, the number and the
value into a few words of the device's memory, which every read looks at if checks ran before it.
"""

from __future__ import annotations

from typing import NamedTuple

from everygrad.errors import EverygradError, OutOfRangeError


class Check(NamedTuple):
    """What is looked at, and the error of a bad value.

    Of an OutOfRangeError `what` names the index, and `size` is that of the axis it points into; or
    `what` is a whole message with {} for the index. Of any other error `what` is all there is to
    say.
    """

    what: str
    size: int
    error: type[EverygradError]

    def refusal(self, value: int) -> EverygradError:
        """The error for a bad value.

        >>> print(Check("take: index", 3, OutOfRangeError).refusal(7))
        take: index 7 is out of range for an axis of size 3
        """
        what, size = self.what, self.size
        if self.error is not OutOfRangeError:
            return self.error(what)
        if "{}" in what:
            return self.error(what.format(value))
        return self.error(f"{what} {value} is out of range for an axis of size {size}")


class Checks:
    """The checks of one device by number, and what they found."""

    def __init__(self) -> None:
        self._numbers: dict[Check, int] = {}
        self._known: list[Check] = []
        self.raised = 0  # how often the words were found filled, and emptied
        self._count = 0  # of bad values, the last time

    def number(self, check: Check) -> int:
        found = self._numbers.get(check)
        if found is None:
            found = self._numbers[check] = len(self._known)
            self._known.append(check)
        return found

    def refusal(self, count: int, number: int, value: int, raised: int) -> EverygradError | None:
        """The error for what a read found: how many bad values, and the first. None if there are
        none, or if they were raised since the read began, when `raised` was what it is given as."""
        if not count or (raised != self.raised and count <= self._count):
            return None
        self.raised += 1
        self._count = count
        return self._known[number].refusal(value)
