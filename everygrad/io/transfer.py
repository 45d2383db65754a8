"""Bytes between arrays and files, with checksums, on several threads.

Reading, writing and checksums release the interpreter lock. Each thread takes a chunk, block by
block, so that the checksum finds a block in the processor's cache.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, NamedTuple

from everygrad.backends.cpu.kernels.crc32 import crc32
from everygrad.errors import FileError
from everygrad.io.files import read_at, write_at

_BLOCK = 1 << 20
_THREADS = min(4, os.cpu_count() or 1)
_AT_ONCE = 2 * _THREADS  # chunks under way: what waits keeps its array in memory
_WORTH_A_THREAD = 1 << 20
_SENT_AT_ONCE = 1 << 27


class Chunk(NamedTuple):
    """A part of an array's memory and where it lies in a file."""

    data: memoryview
    offset: int
    crc: int | None  # that it must have
    name: str  # for errors


class Writer:
    """Writes chunks and gives their checksums. Every now and then it sends what was written to the
    disk, which is then at work while the rest is still being copied."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting = 0  # bytes that only the system's memory holds

    def __call__(self, file: int, chunk: Chunk) -> int:
        crc = 0
        for at in range(0, len(chunk.data), _BLOCK):
            block = chunk.data[at : at + _BLOCK]
            crc = crc32(block, crc)
            write_at(file, block, chunk.offset + at)
        with self._lock:
            self._waiting += len(chunk.data)
            enough = self._waiting >= _SENT_AT_ONCE
            self._waiting = 0 if enough else self._waiting
        if enough and hasattr(os, "fdatasync"):
            os.fdatasync(file)
        return crc


def read_chunk(file: int, chunk: Chunk) -> None:
    """Fill a chunk from the file, and check what came."""
    crc = 0
    for at in range(0, len(chunk.data), _BLOCK):
        block = chunk.data[at : at + _BLOCK]
        read_at(file, block, chunk.offset + at, chunk.name)
        if chunk.crc is not None:
            crc = crc32(block, crc)
    _compare(chunk, crc)


def check_chunk(file: int, chunk: Chunk) -> None:
    """Check a chunk that is there already: mapped memory."""
    _compare(chunk, crc32(chunk.data))


def _compare(chunk: Chunk, crc: int) -> None:
    if chunk.crc is not None and crc != chunk.crc:
        raise FileError(
            f"{chunk.name}: damaged: the checksum of its bytes from {chunk.offset:,} to "
            f"{chunk.offset + len(chunk.data):,} is {crc:08x}, not {chunk.crc:08x} as when it was "
            f"written"
        )


def run(
    work: Callable[[int, Chunk], Any], file: int, chunks: Iterable[Chunk]
) -> list[tuple[str, Any]]:
    """The name of each chunk and what `work` gives for it, in order; large ones on threads."""
    names: list[str] = []
    found: dict[int, Any] = {}
    waiting: deque[tuple[int, Future[Any]]] = deque()
    with ThreadPoolExecutor(_THREADS, "everygrad-files") as pool:  # starts a thread when needed
        try:
            for chunk in chunks:
                names.append(chunk.name)
                if len(chunk.data) < _WORTH_A_THREAD:
                    found[len(names)] = work(file, chunk)
                    continue
                try:
                    waiting.append((len(names), pool.submit(work, file, chunk)))
                except RuntimeError:  # the interpreter ends, and starts no thread any more
                    found[len(names)] = work(file, chunk)
                del chunk  # whoever waits in this loop holds no array
                if len(waiting) >= _AT_ONCE:
                    at, future = waiting.popleft()
                    found[at] = future.result()
            found.update((at, future.result()) for at, future in waiting)
        except BaseException:
            for _, future in waiting:
                future.cancel()
            raise
    return [(name, found[i + 1]) for i, name in enumerate(names)]


def chunks_of(
    data: memoryview, offset: int, size: int, crcs: list[int] | None, name: str
) -> Iterator[Chunk]:
    """An array's memory in chunks of `size` bytes."""
    for i, at in enumerate(range(0, len(data), size)):
        crc = None if crcs is None else crcs[i]
        yield Chunk(data[at : at + size], offset + at, crc, name)
