"""One opened GPU: kernels, launches, checks of values, reading back.

Every launch goes through `launch`, on one stream; only reading waits. `log`, where it is a list,
collects what was launched.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from everygrad.backends.code_cache import code_cache
from everygrad.backends.cuda.driver.host_blocks import HostBlocks
from everygrad.backends.cuda.driver.memory import Memory, Storage
from everygrad.backends.cuda.source.writer import WrittenKernel
from everygrad.backends.deferred_checks import Check, Checks
from everygrad.errors import EverygradError, OutOfRangeError

_FAULT_BYTES = 24  # the number of bad values, the check, the first value
_MODULE = 1 << 16  # bytes of a loaded module, about
_BUFFER, _SIZE, _END = 1, 2, 0  # of cuLaunchKernel's `extra`


class Kernel:
    """A loaded kernel with its integer arguments; pointers are filled in at each launch."""

    __slots__ = (
        "_size", "block", "buffer", "extra", "fire", "function", "grid", "name", "put", "source",
        "written"
    )  # fmt: skip

    def __init__(self, function: Any, written: WrittenKernel) -> None:
        self.function = function
        self.written = written
        self.name = written.text.name
        self.source = written.text.source
        self.grid = written.grid
        self.block = written.block
        put = struct.Struct(f"={written.pointers}Q")
        self.put = put.pack_into
        letter = "q" if written.wide else "i"
        numbers = struct.pack(f"={len(written.numbers)}{letter}", *written.numbers)
        size = put.size + len(numbers)
        self.buffer = ctypes.create_string_buffer(bytes(put.size) + numbers, size)
        self._size = ctypes.c_size_t(size)
        self.extra = (ctypes.c_void_p * 5)(
            *(_BUFFER, ctypes.addressof(self.buffer), _SIZE, ctypes.addressof(self._size), _END)
        )
        self.fire: Callable[[], Any]  # the driver's launch of this kernel


class PendingKernel:
    """A kernel's function that other threads compile meanwhile."""

    def __init__(self, begun: Callable[[], Any]) -> None:
        self._begun = begun
        self._lock = threading.Lock()
        self._function: Any = None

    @property
    def function(self) -> Any:
        """The loaded function; waits, and raises compile errors."""
        with self._lock:
            if self._function is None:
                self._function = self._begun()
            return self._function


class CachedKernel:
    """A kernel's function, or its `PendingKernel`, as it is cached by name."""

    __slots__ = ("__weakref__", "function", "recent")

    def __init__(self, function: Any) -> None:
        self.function = function
        self.recent = True


class Command(NamedTuple):
    """A logged launch: of a kernel on addresses, or a library's call with its arguments."""

    what: Any
    arguments: tuple[Any, ...]


class Gpu:
    """A device, by a driver (`driver.Driver`, or `dry_driver.DryDriver` for tests)."""

    def __init__(self, name: str, driver: Any) -> None:
        self.name = name
        self.driver = driver
        self.lock = threading.RLock()
        self.memory = Memory(self)
        self.host_blocks = HostBlocks(self)
        self.log: list[Command] | None = None
        self._functions: dict[str, CachedKernel] = {}
        self._checks = Checks()
        self._faults: Storage | None = None
        self._unread_checks = False
        self._workspace: Storage | None = None

    # --- kernels ---------------------------------------------------------------------------------

    def prepare(self, written: WrittenKernel) -> Kernel:
        """A kernel ready to be launched again and again."""
        with self.lock:
            known = self._functions.get(written.text.name)
            if known is None:
                self.unload()
                known = self.cache_kernel(written, self.driver.function(written.text))
            known.recent = True
            function = known.function
            kernel = Kernel(function, written)
            kernel.fire = partial(self._first_fire, kernel)
            if not isinstance(function, PendingKernel):
                kernel.fire = self.driver.launcher(kernel)
            return kernel

    def cache_kernel(self, written: WrittenKernel, function: Any) -> CachedKernel:
        """Cache a kernel's function, or its `PendingKernel`."""
        name = written.text.name
        known = self._functions[name] = CachedKernel(function)
        code_cache.add(
            known, _MODULE + len(written.text.source), partial(_drop, self._functions, name)
        )
        return known

    def unload(self) -> None:
        """Unload kernels that were dropped."""
        with self.lock:
            self.driver.unload()

    def ready(self, kernel: Kernel) -> None:
        """Wait until a kernel is compiled, if another thread compiles it."""
        if isinstance(kernel.function, PendingKernel):
            kernel.function = kernel.function.function
            known = self._functions.get(kernel.name)
            if known is not None:
                known.function = kernel.function
            kernel.fire = self.driver.launcher(kernel)

    def _first_fire(self, kernel: Kernel) -> None:
        self.ready(kernel)
        kernel.fire()

    def launch(self, kernel: Kernel, *pointers: int) -> None:
        """Launch one kernel on these addresses."""
        with self.lock:
            kernel.put(kernel.buffer, 0, *pointers)
            try:
                kernel.fire()
            except Exception as error:
                self.driver.recover(kernel, error)
            if self.log is not None:
                self.log.append(Command(kernel, pointers))

    @contextmanager
    def unlogged(self) -> Iterator[None]:
        """Launches inside are not logged."""
        with self.lock:
            log, self.log = self.log, None
            try:
                yield
            finally:
                self.log = log

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """A launch by a library or the driver on our stream; it must not wait or allocate."""
        with self.lock:
            self.driver.enter()
            function(*arguments)
            if self.log is not None:
                self.log.append(Command(function, arguments))

    def clear(self, ptr: int, size: int) -> None:
        """Fill device memory with zeros."""
        self.call(self.driver.clear, ptr, size)

    def workspace(self, size: int) -> int:
        """The address of memory that a library may use until its launch is done; all launches share
        it."""
        if self._workspace is None or self._workspace.size < size:
            self._workspace = self.memory.take(size)
        return self._workspace.ptr

    # --- checks ----------------------------------------------------------------------------------

    def faults(self) -> int:
        """The address of three words: the number of bad values, the check, the first value. The
        next read looks at them."""
        self._unread_checks = True
        if self._faults is None:
            self._faults = self.memory.take(_FAULT_BYTES)
            self.driver.clear(self._faults.ptr, _FAULT_BYTES)
        return self._faults.ptr

    def check_number(
        self, what: str, size: int, error: type[EverygradError] = OutOfRangeError
    ) -> int:
        """The number that stands for a check's message."""
        return self._checks.number(Check(what, size, error))

    def raise_fault(self, words: Any, raised: int | None = None) -> None:
        """Raise what checks found, once: not again what was raised since the words were requested
        (`raised` is the count then)."""
        count, number, value = (int(w) for w in words.view(np.int64))
        before = self.raised if raised is None else raised
        refusal = self._checks.refusal(count, number, value, before)
        if refusal is not None:
            self.driver.clear(self.faults(), _FAULT_BYTES)
            self._unread_checks = False
            raise refusal

    @property
    def raised(self) -> int:
        """How often checks raised an error."""
        return self._checks.raised

    def read_faults(self) -> FaultRead | None:
        """Start to read what checks found; None if none ran since the last time."""
        with self.lock:
            if not self._unread_checks or self._faults is None:
                return None
            self._unread_checks = False
            return FaultRead(self, self.driver.download(self._faults.ptr, _FAULT_BYTES))

    def wait(self) -> None:
        """Wait until everything launched has run; raises what checks found."""
        faults = self.read_faults()
        self.driver.synchronize()
        if faults is not None:
            faults.result()

    # --- reading ---------------------------------------------------------------------------------

    def read(self, storage: Storage, start: int, size: int) -> PendingRead:
        """Start to read bytes from `start` on, after all that was launched so far; `result()` waits
        for them."""
        with self.lock:
            data = self.driver.download(storage.ptr + start, size)
            return PendingRead(data, self.read_faults())


def _drop(functions: dict[str, CachedKernel], name: str, known: CachedKernel) -> None:
    """Drop a kernel from the cache; plans and replays that hold it still work."""
    if functions.get(name) is known:
        del functions[name]


class FaultRead:
    """What checks found, being read."""

    def __init__(self, gpu: Gpu, words: Any) -> None:
        self._gpu = gpu
        self._words = words
        self._raised = gpu.raised

    def result(self) -> None:
        """Wait, and raise what was found, unless another read did so meanwhile."""
        self._gpu.raise_fault(self._words.wait(), self._raised)


class PendingRead:
    """Bytes being read; `result` waits, and raises what checks found."""

    def __init__(self, data: Any, faults: FaultRead | None) -> None:
        self._data = data
        self._faults_read = faults

    def result(self) -> Any:
        data = self._data.wait()
        faults, self._faults_read = self._faults_read, None
        if faults is not None:
            faults.result()
        return data
