"""Uploads on a stream of their own: bytes arrive while the last launches still compute.

On the one stream that everything is launched on, a copy would wait for all launches before it. A
second stream must be told what that order told: which memory is free, and when a copy is done.

- Blocks are kept here and used again and again. A block whose array is gone is reused after what
  was launched until the next batch was handed out: everything that could read it came before.
- What is launched after `arrived` waits for the copy. What was launched before does not.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad.backends.cuda.driver.memory import Storage
from everygrad.errors import DeviceError

if TYPE_CHECKING:
    from everygrad.backends.cuda.driver.gpu import Gpu

_SPARE = 8  # free blocks kept, of whatever sizes
_PIECE = 1 << 25  # bytes of one pinned piece


class FreeBlock(NamedTuple):
    """Device memory that no array is on; it may be written to once `after` has happened."""

    holder: Any
    ptr: int
    size: int
    after: int  # an event


class BorrowedStorage(Storage):
    """A storage whose block goes back to its copy stream with the last array on it."""

    __slots__ = ("copies",)

    def __init__(self, copies: CopyStream, holder: Any, ptr: int, size: int) -> None:
        super().__init__(copies.gpu, holder, ptr, size)
        self.copies = copies

    def __del__(self) -> None:
        try:
            copies = self.copies
        except AttributeError:  # interrupted during construction
            return
        if copies.stream:
            copies.back.append((self.holder, self.ptr, self.size))
        else:
            self.gpu.memory.count(-self.size)


class CopyStream:
    """The uploads of one loader. One thread calls `put` and `sent`, another may call `arrived`."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.stream: int = gpu.driver.new_stream()  # 0 once it is closed
        self._sent: set[int] = set()  # events that nobody has waited for
        self._free: list[FreeBlock] = []
        self.back: deque[Any] = deque()  # filled by storages as they go, in any thread

    def put(self, data: Any) -> Storage:
        """A storage with these bytes, once they have arrived."""
        gpu, driver = self.gpu, self.gpu.driver
        with gpu.lock:
            self._refuse_closed()
            storage = self._take(data.size)
            direct = gpu.host_blocks.pinned(data)
            if direct is not None:
                driver.upload_pinned(storage.ptr, direct, data.size, self.stream)
                return storage
        for start in range(0, data.size, _PIECE):
            piece = data[start : start + _PIECE]
            with gpu.lock:
                pinned = driver.pinned(piece.size)
            driver.fill(pinned, piece)  # not under the lock: others launch meanwhile
            with gpu.lock:
                self._refuse_closed()
                driver.upload_pinned(storage.ptr + start, pinned, piece.size, self.stream)
        return storage

    def _refuse_closed(self) -> None:
        if not self.stream:
            raise DeviceError("cuda: the loader of these uploads was closed")

    def _take(self, size: int) -> Storage:
        """Memory that the copy stream may write to, after what it waits for."""
        driver = self.gpu.driver
        for i, block in enumerate(self._free):
            if block.size == size:
                del self._free[i]
                driver.wait(self.stream, block.after)
                return BorrowedStorage(self, block.holder, block.ptr, size)
        holder, ptr = self.gpu.memory.ask(size)
        driver.wait(self.stream, driver.marked())  # launches may still use this memory
        return BorrowedStorage(self, holder, ptr, size)

    def sent(self) -> int:
        """An event behind all uploads so far."""
        with self.gpu.lock:
            self._refuse_closed()
            event: int = self.gpu.driver.marked(self.stream)
            self._sent.add(event)
            return event

    def arrived(self, event: int) -> None:
        """Let everything launched from now on come after the uploads before `event`."""
        driver = self.gpu.driver
        with self.gpu.lock:
            while self.back:  # first: what was launched so far did not wait for this batch
                holder, ptr, size = self.back.popleft()
                self._free.append(FreeBlock(holder, ptr, size, driver.marked()))
            self._sent.remove(event)
            driver.wait(driver.stream, event)
            while len(self._free) > _SPARE:
                self._drop(self._free.pop(0))

    def close(self) -> None:
        """Give the memory back. Launches come after uploads that nobody waited for."""
        gpu = self.gpu
        with gpu.lock:
            if not self.stream:
                return
            gpu.driver.order(self.stream, gpu.driver.stream)
            gpu.host_blocks.settle()
            ended, self.stream = self.stream, 0
            gpu.driver.end_stream(ended)
            while self._sent:
                gpu.driver.forget(self._sent.pop())
            while self._free:
                self._drop(self._free.pop())
            while self.back:
                gpu.memory.count(-self.back.popleft()[2])

    def _drop(self, block: FreeBlock) -> None:
        """Its memory may be used by what is launched next, in whose order it comes."""
        self.gpu.driver.forget(block.after)
        self.gpu.memory.count(-block.size)
