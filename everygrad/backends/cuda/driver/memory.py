"""Device memory as arrays hold it, and the error when there is none left.

Small blocks that nobody holds any more are cached here, by size, for the next array: asking CuPy's
pool costs more than many a kernel.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad.core.ownership import calibrated, refcount
from everygrad.errors import OutOfMemoryError

if TYPE_CHECKING:
    from everygrad.backends.cuda.driver.gpu import Gpu

LARGE = 1 << 20  # bytes from which the allocating line is recorded
_UNIT = 512  # bytes: blocks are multiples of it, and start at multiples of it
_SHIFT = 9  # log2 of it
_WAITING = 256  # cached blocks of one size, at most
_PACKAGE = __name__.split(".")[0] + "."


class SourceLine(NamedTuple):
    """A place in a program, cheap to record: its line is looked up when it is shown."""

    code: CodeType
    at: int  # the instruction, in bytes

    def __str__(self) -> str:
        number = self.code.co_firstlineno
        for start, end, line in self.code.co_lines():
            if start <= self.at < end and line is not None:
                number = line
        return f"{self.code.co_filename}:{number}"


class Storage:
    """Device memory, returned to the pool with the last array on it.

    Work runs in launch order, so memory can be reused at once.
    """

    __slots__ = ("__weakref__", "gpu", "holder", "ptr", "size")

    gpu: Gpu  # None where the memory is not ours: nothing is returned to a pool

    def __init__(self, gpu: Gpu | None, holder: Any, ptr: int, size: int) -> None:
        self.gpu = gpu  # type: ignore[assignment]
        self.holder = holder  # owns the memory; CuPy's, or the dry driver's
        self.ptr = ptr
        self.size = size


class LargeStorage(Storage):
    """A storage whose bytes are counted."""

    __slots__ = ()

    def __del__(self) -> None:
        try:
            memory = self.gpu.memory
        except AttributeError:  # interrupted during construction
            return
        memory.large.pop(self.ptr, None)
        memory.count(-self.size)


class SmallStorage(Storage):
    """A storage whose block is cached for the next of its size when the last array is gone, unless
    the holder has other owners."""

    __slots__ = ("waiting",)

    def __init__(
        self, gpu: Gpu, holder: Any, ptr: int, size: int, waiting: list[tuple[Any, int]]
    ) -> None:
        self.gpu = gpu
        self.holder = holder
        self.ptr = ptr
        self.size = size
        self.waiting = waiting

    def __del__(self) -> None:
        try:
            waiting = self.waiting
        except AttributeError:  # interrupted during construction
            return
        if len(waiting) < _WAITING and refcount(self.holder) <= _OURS:
            waiting.append((self.holder, self.ptr))
        else:
            self.gpu.memory.count(-((self.size + _UNIT - 1) & -_UNIT))


def _ours() -> int:
    """The refcount of a holder that only one storage has, as `__del__` sees it."""
    storage = Storage(None, object(), 0, 0)
    return refcount(storage.holder)


_OURS = calibrated(_ours())
_inside: dict[str, bool] = {}  # by file: whether it belongs to this package


def user_line() -> SourceLine:
    """The line of the innermost caller outside this package."""
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

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.large: dict[int, tuple[int, SourceLine]] = {}  # by address: size, allocating line
        self.recycles: bool = gpu.driver.recycles  # free small blocks are cached
        self.counted = 0  # bytes of large storages, and of small blocks, cached or in use
        self.peak = 0  # the most there were
        # by size in units: cached free blocks
        self.waiting: list[list[tuple[Any, int]]] = [[] for _ in range((LARGE >> _SHIFT) + 1)]

    def take(self, size: int) -> Storage:
        """A storage of `size` bytes, which must not be 0; its content is undefined."""
        if size >= LARGE or not self.recycles:
            return self._take_apart(size)
        waiting = self.waiting_for(size)
        try:
            holder, ptr = waiting.pop()
        except IndexError:
            holder, ptr = self.ask((size + _UNIT - 1) & -_UNIT)
        return SmallStorage(self.gpu, holder, ptr, size, waiting)

    def waiting_for(self, size: int) -> list[tuple[Any, int]]:
        """The cached blocks for an array of `size` bytes; always empty if it is large."""
        return self.waiting[(size + _UNIT - 1) >> _SHIFT] if size < LARGE else []

    def _take_apart(self, size: int) -> Storage:
        holder, ptr = self.ask(size)
        if size >= LARGE:
            self.large[ptr] = (size, user_line())
        return LargeStorage(self.gpu, holder, ptr, size)

    def count(self, size: int) -> None:
        """Add to the bytes in use, or subtract."""
        with self.gpu.lock:
            self.counted += size
            if self.counted > self.peak:
                self.peak = self.counted

    def ask(self, size: int) -> tuple[Any, int]:
        """A block from the driver's pool."""
        found: tuple[Any, int] | None = self.gpu.driver.malloc(size)
        if found is None:
            self.trim()
            found = self.gpu.driver.malloc(size)
            if found is None:
                raise self._exhausted(size)
        self.count(size)
        return found

    def trim(self) -> None:
        """Return all free memory to the system."""
        for size, waiting in enumerate(self.waiting):
            self.count(-len(waiting) * size * _UNIT)
            waiting.clear()
        self.gpu.driver.synchronize()
        self.gpu.driver.trim()

    def statistics(self) -> dict[str, int]:
        """Bytes: used by arrays now and at the peak, held by the pool, free on the device, and in
        total."""
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
