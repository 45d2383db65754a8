"""Deferred checks of values: kernels record what is wrong, and the next read raises it.

A check has a number. The first kernel that finds a bad value writes the number and the value into a
few words of device memory. A read looks at them if checks ran before it.
"""

from __future__ import annotations

from typing import NamedTuple

from everygrad.errors import EverygradError, OutOfRangeError


class Check(NamedTuple):
    """What is checked, and the error for a bad value.

    For an OutOfRangeError `what` names the index, and `size` is the size of the axis; or `what` is
    a whole message with {} for the index. For any other error `what` is the whole message.
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
        self.raised = 0  # how often an error was raised and the words were cleared
        self._count = 0  # of bad values, at the last error

    def number(self, check: Check) -> int:
        found = self._numbers.get(check)
        if found is None:
            found = self._numbers[check] = len(self._known)
            self._known.append(check)
        return found

    def refusal(self, count: int, number: int, value: int, raised: int) -> EverygradError | None:
        """The error for what a read found: how many bad values, and the first. None if there are
        none, or if they were raised since the read began (`raised` is its count then)."""
        if not count or (raised != self.raised and count <= self._count):
            return None
        self.raised += 1
        self._count = count
        return self._known[number].refusal(value)
