"""Reading back: copies into staging buffers are recorded and submitted at once, and waited for when
their result is needed. Meanwhile other commands continue.

A staging buffer is mapped only while its bytes are fetched: the GPU never sees one that is mapped,
and submitting commands never waits for one.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import wgpu

from everygrad.backends.webgpu.driver.mapping import Mapping
from everygrad.backends.webgpu.driver.memory import Storage

if TYPE_CHECKING:
    from everygrad.backends.webgpu.driver.gpu import Gpu

STAGED = 1 << 28  # bytes of one staging buffer at most
_MAX_CACHED_BYTES = 1 << 26  # bytes up to which one is cached
_SMALLEST = 1 << 12
_FAULTS = 16  # bytes after the data: what checks found
_USAGE = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST


class ByteRange(NamedTuple):
    """Bytes of a storage, from `start` on; both are multiples of 4."""

    storage: Storage
    start: int
    size: int


class _StagedRange(NamedTuple):
    """`size` bytes at `at` of a staging buffer, which belong to part `of`, at its byte `into`."""

    at: int
    of: int
    into: int
    size: int


class _StagingBuffer:
    """One staging buffer, and what it contains."""

    def __init__(self, capacity: int, raw: Any) -> None:
        self.capacity = capacity
        self.raw = raw
        self.pieces: list[_StagedRange] = []
        self.used = 0
        self.mapping = Mapping(raw)


class Fetch:
    """Bytes that are being read from the GPU."""

    def __init__(
        self, readback: Readback, parts: Sequence[ByteRange], stagings: list[_StagingBuffer]
    ) -> None:
        gpu = readback.gpu
        self._readback = readback
        self._stagings = stagings
        self._sizes = [p.size for p in parts]
        self._submission = gpu.submission
        self._checks = gpu.checks_made if gpu.checks_are_unread else None
        self._raised = gpu.raised
        self._values: list[Any] | None = None

    def result(self) -> list[Any]:
        """Wait for the bytes of each part; raises what a check found."""
        gpu = self._readback.gpu
        with gpu.lock:
            if self._values is None:
                values = [np.empty(size, np.uint8) for size in self._sizes]
                gpu.guard(gpu.calls.wait, gpu.calls.handle(gpu.device), self._submission)
                words = [gpu.guard(self._copy_out, staging, values) for staging in self._stagings]
                self._values = values
                self._give_back()
                if self._checks is not None:
                    gpu.raise_fault(words[-1], self._checks, self._raised)
            return self._values

    def _copy_out(self, staging: _StagingBuffer, values: list[Any]) -> Any:
        """Copy a staging buffer's contents into `values`; returns the four words of the checks."""
        size, gpu = staging.used + _FAULTS, self._readback.gpu
        gpu.calls.close(staging.mapping)  # of an earlier try that was interrupted
        try:
            device = gpu.calls.handle(gpu.device)
            start = gpu.calls.map(staging.mapping, size, device, self._submission)
            for at, of, into, count in staging.pieces:
                ctypes.memmove(values[of].ctypes.data + into, start + at, count)
            words = np.empty(_FAULTS // 4, np.uint32)
            ctypes.memmove(words.ctypes.data, start + staging.used, _FAULTS)
            return words
        finally:
            gpu.calls.close(staging.mapping)

    def _give_back(self) -> None:
        """Return the staging buffers for reuse. (Those of a fetch that is dropped are dropped too:
        as part of a garbage cycle, such as an exception's, they may be finalised already.)"""
        stagings, self._stagings = self._stagings, []
        self._readback.returned.extend(
            [staging for staging in stagings if not staging.mapping.is_open]
        )


class Readback:
    """The staging buffers of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.returned: deque[_StagingBuffer] = deque()
        self._free: dict[int, list[Any]] = defaultdict(list)

    def start(self, parts: Sequence[ByteRange]) -> Fetch:
        """Start to fetch these bytes, after all earlier commands."""
        with self.gpu.lock:
            stagings = self._layout(parts)
            encoder = self.gpu.guard(self.gpu.outside_pass)
            for staging in stagings:
                self.gpu.guard(self._copy, encoder, staging, parts)
            self.gpu.submit()
            return Fetch(self, parts, stagings)

    def _layout(self, parts: Sequence[ByteRange]) -> list[_StagingBuffer]:
        """Staging buffers for all parts, and which bytes of which part go where."""
        sizes = [-(-p.size // 8) * 8 for p in parts]
        left = sum(sizes)
        staging = self._take(left)
        stagings = [staging]
        for of, part in enumerate(parts):
            into = 0
            while into < part.size:
                if staging.used >= STAGED:
                    staging = self._take(left)
                    stagings.append(staging)
                count = min(part.size - into, STAGED - staging.used)
                staging.pieces.append(_StagedRange(staging.used, of, into, count))
                staging.used += -(-count // 8) * 8
                left -= -(-count // 8) * 8
                into += count
        return stagings

    def _copy(self, encoder: Any, staging: _StagingBuffer, parts: Sequence[ByteRange]) -> None:
        epoch = self.gpu.epoch
        for at, of, into, count in staging.pieces:
            block = parts[of].storage.block
            start = parts[of].start + into
            block.epoch = epoch
            encoder.copy_buffer_to_buffer(block.raw, start, staging.raw, at, count)
        if self.gpu.checks_are_unread:
            faults = self.gpu.fault_storage().block
            faults.epoch = epoch
            encoder.copy_buffer_to_buffer(faults.raw, 0, staging.raw, staging.used, _FAULTS)

    def _take(self, size: int) -> _StagingBuffer:
        """A staging buffer for so many bytes, or as many as one holds."""
        while self.returned:
            staging = self.returned.popleft()
            if staging.capacity <= _MAX_CACHED_BYTES:
                self._free[staging.capacity].append(staging.raw)
        size = min(size, STAGED) + _FAULTS
        capacity = max(
            _SMALLEST, 1 << (size - 1).bit_length() if size < _MAX_CACHED_BYTES else size
        )
        cached = self._free[capacity]
        if cached:
            return _StagingBuffer(capacity, cached.pop())
        create = self.gpu.device.create_buffer
        return _StagingBuffer(
            capacity, self.gpu.guard(create, size=-(-capacity // 8) * 8, usage=_USAGE)
        )
