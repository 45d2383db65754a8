"""Device memory as arrays hold it, and what is said when there is none left."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from everygrad.errors import OutOfMemoryError

LARGE = 1 << 20  # bytes from which the line that made a storage is noted
_PACKAGE = __name__.split(".")[0] + "."


class Storage:
    """Bytes of the device, given back to the pool when the last array on them is gone.

    Work runs in the order it is launched, so bytes given back can serve again at once.
    """

    __slots__ = ("__weakref__", "gpu", "holder", "line", "ptr", "size")

    def __init__(self, gpu: Any, holder: Any, ptr: int, size: int, line: str = "") -> None:
        self.gpu = gpu
        self.holder = holder  # keeps the bytes; CuPy's, or the dry driver's
        self.ptr = ptr
        self.size = size
        self.line = line


def user_line() -> str:
    """The file and line of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Memory:
    """The storages of one device, taken from the driver's pool."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        self.large: weakref.WeakSet[Storage] = weakref.WeakSet()

    def take(self, size: int) -> Storage:
        """A storage of `size` bytes, which must not be 0; its content is not defined."""
        driver = self.gpu.driver
        found = driver.malloc(size)
        if found is None:
            driver.synchronize()
            driver.trim()
            found = driver.malloc(size)
            if found is None:
                raise self._exhausted(size)
        holder, ptr = found
        if size < LARGE:
            return Storage(self.gpu, holder, ptr, size)
        storage = Storage(self.gpu, holder, ptr, size, user_line())
        self.large.add(storage)
        return storage

    def _exhausted(self, size: int) -> OutOfMemoryError:
        facts = self.gpu.driver.statistics()
        lines = [
            f"{self.gpu.name}: out of memory: {size:,} bytes asked for, {facts['used']:,} in use, "
            f"{facts['free']:,} of {facts['total']:,} free on the device"
        ]
        largest = sorted(self.large, key=lambda s: -s.size)[:8]
        if largest:
            lines.append("the largest tensors alive, by the line that made them:")
            lines += [f"  {s.size:>16,} bytes  {s.line}" for s in largest]
        return OutOfMemoryError("\n".join(lines))
