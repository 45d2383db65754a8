"""Anonymous shared memory: arrays that another process sees without a copy.

A segment has no name, only a file descriptor that is sent to the other process and closed once both
have mapped it. So nothing is left in /dev/shm however a process ends, its size is not bounded by
that file system, and no descriptor stays open for memory that is in use.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections import deque
from typing import Any
from weakref import ref

import numpy as np

from everygrad.errors import DeviceError, OutOfMemoryError

ALIGN = 64  # bytes: a cache line, and what vector loads like
_STEP = 1 << 16
_FAILED = ctypes.c_void_p(-1).value


def supported() -> bool:
    """Whether this system can hand memory to another process."""
    return os.name == "posix" and hasattr(mmap, "MAP_SHARED")


_libc = ctypes.CDLL(None, use_errno=True) if supported() else None
if _libc is not None:
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    ]
    _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def new_file(size: int) -> int:
    """A descriptor of `size` bytes of memory, all of which is there: a write cannot fail later."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("everygrad-data", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="everygrad-data-")
        os.unlink(path)
    try:
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.close(fd)
        raise OutOfMemoryError(f"DataLoader: no {size} bytes of shared memory: {error}") from None
    return fd


class Segment:
    """Memory behind a descriptor, mapped here until nobody holds this object. A device that copies
    from it by itself is its `keeper` and unmaps it: a list of the address, the size and how."""

    __slots__ = ("__weakref__", "_unmap", "address", "keeper", "number", "size")

    def __init__(self, fd: int, size: int, number: int = 0) -> None:
        if _libc is None:
            raise DeviceError('worker processes need a POSIX system; use workers="thread"')
        self._unmap = None
        self.keeper: deque[Any] | None = None
        if os.fstat(fd).st_size < size:
            raise DeviceError(f"shared memory: {size} bytes announced, {os.fstat(fd).st_size} came")
        both = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, size, both, mmap.MAP_SHARED, fd, 0)
        if address in (None, _FAILED):
            why = os.strerror(ctypes.get_errno())
            raise OutOfMemoryError(f"DataLoader: cannot map {size} bytes of shared memory: {why}")
        self.address, self.size, self.number = address, size, number
        self._unmap = _libc.munmap  # held: module globals may be gone when the interpreter ends

    def __del__(self) -> None:
        if self._unmap is None:
            return
        if self.keeper is None:
            self._unmap(self.address, self.size)
        else:
            self.keeper.append((self.address, self.size, self._unmap))


class Lease:
    """The right to the segments of one batch; their numbers are noted once nobody holds it."""

    __slots__ = ("__weakref__", "_note", "numbers", "segments")

    def __init__(self, segments: list[Segment], returned: deque[int] | None = None) -> None:
        self.segments = {s.number: s for s in segments}
        self.numbers = [*self.segments]
        # one native call, from whatever thread collects the garbage
        self._note = None if returned is None else returned.extend

    def __del__(self) -> None:
        if self._note is not None:
            self._note(self.numbers)

    def bytes_of(self, number: int) -> Any:
        """A segment's bytes as an array; arrays made of it hold this lease."""
        return np.asarray(_Exported(self, self.segments[number]))


class _Exported:
    """What NumPy asks for an address, and keeps alive as the base of all views; `host_block` is
    what a device that copies from it asks for."""

    __slots__ = ("__array_interface__", "_lease", "host_block")

    def __init__(self, lease: Lease, segment: Segment) -> None:
        self._lease, self.host_block = lease, segment
        self.__array_interface__ = {
            "data": (segment.address, False),
            "shape": (segment.size,),
            "typestr": "|u1",
            "version": 3,
        }


class Arena:
    """A worker's segments: what a batch is written into, used again once the parent and everyone
    here has let go of it.

    Fresh pages cost more than the copy into them, so a loader in full swing makes none.
    """

    def __init__(self, spare: int = 4) -> None:
        self._spare = spare  # how many free segments are kept
        self._numbers = 0
        self._free: dict[int, Segment] = {}
        self._lent: dict[int, Segment] = {}
        self._holders: dict[int, Any] = {}  # number -> weak reference to this side's lease
        self._begin()

    def _begin(self) -> None:
        self._batch: list[tuple[Segment, Any]] = []  # each segment with its bytes
        self._used = 0  # bytes of the last one
        self.created: list[tuple[int, int, int]] = []  # number, size, descriptor
        self.dropped: list[int] = []

    def array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised array in the memory of the current batch."""
        dtype = np.dtype(dtype)
        count = 1
        for n in shape:
            count *= n
        wanted = count * dtype.itemsize
        if not self._batch or self._used + wanted > self._batch[-1][0].size:
            self._take(max(wanted, 1))
        begin = self._used
        self._used = -(-(begin + wanted) // ALIGN) * ALIGN
        return self._batch[-1][1][begin : begin + wanted].view(dtype).reshape(shape)

    def _take(self, size: int) -> None:
        fitting = [
            s
            for s in self._free.values()
            if s.size >= size and self._holders.get(s.number, _nobody)() is None
        ]
        if fitting:
            segment = min(fitting, key=lambda s: s.size)
            del self._free[segment.number]
        else:
            segment = self._create(size)
        lease = Lease([segment])
        self._holders[segment.number] = ref(lease)
        self._batch.append((segment, lease.bytes_of(segment.number)))
        self._used = 0

    def _create(self, size: int) -> Segment:
        grain = max(_STEP, 1 << max(size.bit_length() - 3, 0))  # at most an eighth is unused
        size = -(-size // grain) * grain
        fd = new_file(size)
        self._numbers += 1
        segment = Segment(fd, size, self._numbers)
        self.created.append((segment.number, size, fd))
        return segment

    def place(self, array: Any) -> tuple[int, int]:
        """The segment and the offset of an array's values, copied there unless they lie there."""
        if array.flags.c_contiguous:
            address = array.__array_interface__["data"][0]
            for segment, _ in self._batch:
                offset = address - segment.address
                if offset >= 0 and offset + array.nbytes <= segment.size:
                    return segment.number, offset
        target = self.array(array.shape, array.dtype)
        target[...] = array
        return self.place(target)

    def finish(self) -> tuple[list[int], list[tuple[int, int, int]], list[int]]:
        """The numbers of the batch's segments, those that are new, and those that are given up;
        the caller closes the new ones' descriptors once they are sent."""
        numbers = [s.number for s, _ in self._batch]
        self._lent.update((s.number, s) for s, _ in self._batch)
        while len(self._free) > self._spare:
            smallest = min(self._free.values(), key=lambda s: s.size).number
            self.dropped.append(smallest)
            del self._free[smallest]
            self._holders.pop(smallest, None)
        out = numbers, self.created, self.dropped
        self._begin()
        return out

    def abandon(self) -> None:
        """Forget the current batch, which failed: its segments are free, the new ones are gone."""
        new = {number for number, _, _ in self.created}
        for _, _, fd in self.created:
            os.close(fd)
        self._free.update((s.number, s) for s, _ in self._batch if s.number not in new)
        dropped = self.dropped
        self._begin()
        self.dropped = dropped

    def given_back(self, numbers: list[int]) -> None:
        """The parent holds no array of these segments any more."""
        for number in numbers:
            if number in self._lent:
                self._free[number] = self._lent.pop(number)


def _nobody() -> None:
    return None


class Received:
    """The parent's side: the segments that one worker has sent."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self.returned: deque[int] = deque()  # numbers nobody here holds any more

    def add(self, number: int, size: int, fd: int) -> None:
        try:
            self._segments[number] = Segment(fd, size, number)
        finally:
            os.close(fd)

    def drop(self, numbers: list[int]) -> None:
        for number in numbers:
            self._segments.pop(number, None)

    def lease(self, numbers: list[int]) -> Lease:
        return Lease([self._segments[n] for n in numbers], self.returned)

    def take_returned(self) -> list[int]:
        """The numbers to tell the worker of; each is given out once."""
        out = []
        while self.returned:
            out.append(self.returned.popleft())
        return out
