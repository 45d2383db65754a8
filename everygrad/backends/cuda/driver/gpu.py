"""One opened GPU: kernels, launches, checks of values, reading back.

Every launch goes through `launch`, on one stream; nothing waits but reading. While a compiled
function is recorded, `log` collects what was launched.
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
from everygrad.backends.cuda.driver.memory import Memory, Storage
from everygrad.backends.cuda.source.writer import WrittenKernel
from everygrad.backends.deferred_checks import Check, Checks
from everygrad.errors import EverygradError, OutOfRangeError

_FAULT_BYTES = 24  # how many bad values, whose check, the first of them
_MODULE = 1 << 16  # bytes of a loaded module, about
_BUFFER, _SIZE, _END = 1, 2, 0  # of cuLaunchKernel's `extra`


class Kernel:
    """A loaded kernel with the numbers of its arguments; pointers are put in at each launch."""

    __slots__ = (
        "_size", "block", "buffer", "extra", "fire", "function", "grid", "name", "put", "source"
    )  # fmt: skip

    def __init__(self, function: Any, written: WrittenKernel) -> None:
        self.function = function
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
    """A kernel's function that other threads compile until someone asks for it."""

    def __init__(self, begun: Callable[[], Any]) -> None:
        self._begun = begun
        self._lock = threading.Lock()
        self._function: Any = None

    @property
    def function(self) -> Any:
        """Waits; raises what the compiler found."""
        with self._lock:
            if self._function is None:
                self._function = self._begun()
            return self._function


class CachedKernel:
    """A kernel's function, or the `PendingKernel` of it, as it is kept by its name."""

    __slots__ = ("__weakref__", "function", "recent")

    def __init__(self, function: Any) -> None:
        self.function = function
        self.recent = True


class Command(NamedTuple):
    """A logged launch: of a kernel on addresses, or a library's call with its arguments."""

    what: Any
    arguments: tuple[Any, ...]


class Gpu:
    """A device, by a driver (`driver.Driver`, or `dry.DryDriver` for tests)."""

    def __init__(self, name: str, driver: Any) -> None:
        self.name = name
        self.driver = driver
        self.lock = threading.RLock()
        self.memory = Memory(self)
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
        """Keep a kernel's function, or its `PendingKernel`, for the next time."""
        name = written.text.name
        known = self._functions[name] = CachedKernel(function)
        code_cache.add(
            known, _MODULE + len(written.text.source), partial(_drop, self._functions, name)
        )
        return known

    def unload(self) -> None:
        """Give back what dropped kernels took."""
        with self.lock:
            self.driver.unload()

    def ready(self, kernel: Kernel) -> None:
        """Wait until a kernel is compiled, if another thread is at it."""
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
        """One kernel on these addresses."""
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
        """What is launched inside is not logged."""
        with self.lock:
            log, self.log = self.log, None
            try:
                yield
            finally:
                self.log = log

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """A library's launch, or the driver's, on our stream: it must not wait or allocate."""
        with self.lock:
            self.driver.enter()
            function(*arguments)
            if self.log is not None:
                self.log.append(Command(function, arguments))

    def clear(self, ptr: int, size: int) -> None:
        """Zeros in bytes of the device."""
        self.call(self.driver.clear, ptr, size)

    def workspace(self, size: int) -> int:
        """The address of bytes that a library may use until its launch is done: the next one uses
        the same."""
        if self._workspace is None or self._workspace.size < size:
            self._workspace = self.memory.take(size)
        return self._workspace.ptr

    # --- checks ----------------------------------------------------------------------------------

    def faults(self) -> int:
        """The address of three words: how many bad values, whose check, the first of them. The next
        read looks at them."""
        self._unread_checks = True
        if self._faults is None:
            self._faults = self.memory.take(_FAULT_BYTES)
            self.driver.clear(self._faults.ptr, _FAULT_BYTES)
        return self._faults.ptr

    def check_number(
        self, what: str, size: int, error: type[EverygradError] = OutOfRangeError
    ) -> int:
        """The number under which a check's message is kept."""
        return self._checks.number(Check(what, size, error))

    def raise_fault(self, words: Any, raised: int | None = None) -> None:
        """Raise what checks found, once: not again what was raised since the words were asked for,
        when `raised` was said."""
        count, number, value = (int(w) for w in words.view(np.int64))
        before = self.raised if raised is None else raised
        refusal = self._checks.refusal(count, number, value, before)
        if refusal is not None:
            self.driver.clear(self.faults(), _FAULT_BYTES)
            self._unread_checks = False
            raise refusal

    @property
    def raised(self) -> int:
        """How often checks had something raised."""
        return self._checks.raised

    def look(self) -> FaultRead | None:
        """Begin to read what checks found; None if there were none since the last time."""
        with self.lock:
            if not self._unread_checks or self._faults is None:
                return None
            self._unread_checks = False
            return FaultRead(self, self.driver.download(self._faults.ptr, _FAULT_BYTES))

    def wait(self) -> None:
        """Until everything launched has run; raises what checks found."""
        look = self.look()
        self.driver.synchronize()
        if look is not None:
            look.result()

    # --- reading ---------------------------------------------------------------------------------

    def read(self, storage: Storage, start: int, size: int) -> PendingRead:
        """Bytes from `start` on, as they are after all that was launched so far; begun now, and
        waited for by `result()`."""
        with self.lock:
            data = self.driver.download(storage.ptr + start, size)
            return PendingRead(data, self.look())


def _drop(functions: dict[str, CachedKernel], name: str, known: CachedKernel) -> None:
    """Forget a kernel; plans and replays that hold it go on."""
    if functions.get(name) is known:
        del functions[name]


class FaultRead:
    """What checks found, under way."""

    def __init__(self, gpu: Gpu, words: Any) -> None:
        self._gpu = gpu
        self._words = words
        self._raised = gpu.raised

    def result(self) -> None:
        """Waits, and raises it, unless another read did so meanwhile."""
        self._gpu.raise_fault(self._words.wait(), self._raised)


class PendingRead:
    """Bytes under way; `result` waits, and raises what checks found meanwhile."""

    def __init__(self, data: Any, look: FaultRead | None) -> None:
        self._data = data
        self._look = look

    def result(self) -> Any:
        data = self._data.wait()
        look, self._look = self._look, None
        if look is not None:
            look.result()
        return data
