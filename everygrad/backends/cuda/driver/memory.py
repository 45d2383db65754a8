"""Device memory as arrays hold it, and what is said when there is none left.

Small blocks that nobody holds any more are cached here, by size, for the next array: asking CuPy's
pool costs more than many a kernel.
"""

from __future__ import annotations

import sys
from sys import getrefcount
from types import CodeType
from typing import Any, NamedTuple

from everygrad.errors import OutOfMemoryError

LARGE = 1 << 20  # bytes from which the line that made a storage is noted
_UNIT = 512  # bytes: blocks are multiples of it, and start at multiples of it
_SHIFT = 9  # log2 of it
_WAITING = 256  # blocks of one size that wait, at most
_PACKAGE = __name__.split(".")[0] + "."


class SourceLine(NamedTuple):
    """A place in a program, as cheap to note as can be: its line is looked up when it is shown."""

    code: CodeType
    at: int  # the instruction, in bytes

    def __str__(self) -> str:
        number = self.code.co_firstlineno
        for start, end, line in self.code.co_lines():
            if start <= self.at < end and line is not None:
                number = line
        return f"{self.code.co_filename}:{number}"


class Storage:
    """Bytes of the device, given back to the pool when the last array on them is gone.

    Work runs in the order it is launched, so bytes given back can serve again at once.
    """

    __slots__ = ("__weakref__", "gpu", "holder", "ptr", "size")

    def __init__(self, gpu: Any, holder: Any, ptr: int, size: int) -> None:
        self.gpu = gpu
        self.holder = holder  # keeps the bytes; CuPy's, or the dry driver's
        self.ptr = ptr
        self.size = size


class LargeStorage(Storage):
    """A storage whose bytes are counted."""

    __slots__ = ()

    def __del__(self) -> None:
        try:
            memory = self.gpu.memory
        except AttributeError:  # interrupted before it was anything
            return
        memory.large.pop(self.ptr, None)
        memory.count(-self.size)


class SmallStorage(Storage):
    """A storage whose block waits for the next of its size when the last array is gone; unless the
    block was lent, and its holder has other owners."""

    __slots__ = ("waiting",)

    def __init__(
        self, gpu: Any, holder: Any, ptr: int, size: int, waiting: list[tuple[Any, int]]
    ) -> None:
        self.gpu = gpu
        self.holder = holder
        self.ptr = ptr
        self.size = size
        self.waiting = waiting

    def __del__(self) -> None:
        try:
            waiting = self.waiting
        except AttributeError:  # interrupted before it was anything
            return
        if len(waiting) < _WAITING and getrefcount(self.holder) <= _OURS:
            waiting.append((self.holder, self.ptr))
        else:
            self.gpu.memory.count(-((self.size + _UNIT - 1) & -_UNIT))


def _ours() -> int:
    """What getrefcount says of a holder that one storage has, asked as `__del__` asks."""
    storage = Storage(None, object(), 0, 0)
    return getrefcount(storage.holder)


_OURS = _ours()
_inside: dict[str, bool] = {}  # by file: whether it is of this package


def user_line() -> SourceLine:
    """The innermost caller's outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        # files, not code: a code object's hash goes over all of its instructions
        file = frame.f_code.co_filename
        if file not in _inside:
            _inside[file] = frame.f_globals.get("__name__", "").startswith(_PACKAGE)
        if not _inside[file]:
            break
        frame = frame.f_back
    return SourceLine(frame.f_code, frame.f_lasti)


class Memory:
    """The storages of one device, taken from the driver's pool."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        self.large: dict[int, tuple[int, SourceLine]] = {}  # by address: the size, who made it
        self.recycles: bool = gpu.driver.recycles  # blocks that nobody holds wait
        self.counted = 0  # bytes of large storages, and of small blocks whether they wait or not
        self.peak = 0  # the most there were
        # by size in units: blocks that nobody holds
        self.waiting: list[list[tuple[Any, int]]] = [[] for _ in range((LARGE >> _SHIFT) + 1)]

    def take(self, size: int) -> Storage:
        """A storage of `size` bytes, which must not be 0; its content is not defined."""
        if size >= LARGE or not self.recycles:
            return self._take_apart(size)
        waiting = self.waiting_for(size)
        try:
            holder, ptr = waiting.pop()
        except IndexError:
            holder, ptr = self._ask((size + _UNIT - 1) & -_UNIT)
        return SmallStorage(self.gpu, holder, ptr, size, waiting)

    def waiting_for(self, size: int) -> list[tuple[Any, int]]:
        """The blocks that can serve an array of `size` bytes; none ever where it is large."""
        return self.waiting[(size + _UNIT - 1) >> _SHIFT] if size < LARGE else []

    def _take_apart(self, size: int) -> Storage:
        holder, ptr = self._ask(size)
        if size >= LARGE:
            self.large[ptr] = (size, user_line())
        return LargeStorage(self.gpu, holder, ptr, size)

    def count(self, size: int) -> None:
        """So many bytes more, or fewer."""
        with self.gpu.lock:
            self.counted += size
            if self.counted > self.peak:
                self.peak = self.counted

    def _ask(self, size: int) -> tuple[Any, int]:
        """A block of the driver's pool."""
        found: tuple[Any, int] | None = self.gpu.driver.malloc(size)
        if found is None:
            self.trim()
            found = self.gpu.driver.malloc(size)
            if found is None:
                raise self._exhausted(size)
        self.count(size)
        return found

    def trim(self) -> None:
        """Give all that nobody holds back to the system."""
        for size, waiting in enumerate(self.waiting):
            self.count(-len(waiting) * size * _UNIT)
            waiting.clear()
        self.gpu.driver.synchronize()
        self.gpu.driver.trim()

    def statistics(self) -> dict[str, int]:
        """Bytes: used by arrays, the most that were, held by the pool, free on the device, and all
        there are."""
        facts: dict[str, int] = self.gpu.driver.statistics()
        facts["peak"] = self.peak
        facts["used"] -= sum(len(blocks) * k * _UNIT for k, blocks in enumerate(self.waiting))
        return facts

    def _exhausted(self, size: int) -> OutOfMemoryError:
        facts = self.statistics()
        lines = [
            f"{self.gpu.name}: out of memory: {size:,} bytes asked for, {facts['used']:,} in use, "
            f"{facts['free']:,} of {facts['total']:,} free on the device"
        ]
        largest = sorted(self.large.copy().values(), key=lambda made: -made[0])[:8]
        if largest:
            lines.append("the largest tensors alive, by the line that made them:")
            lines += [f"  {size:>16,} bytes  {line}" for size, line in largest]
        return OutOfMemoryError("\n".join(lines))
