"""The CUDA driver: finding it, memory, streams and launches. Nothing here knows of arrays.

CuPy provides the memory pools; the rest calls libcuda through ctypes, which costs less. CuPy is
imported when a device is opened, never before.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from everygrad.backends.cuda.driver import cudnn, cusolver, nvrtc
from everygrad.backends.cuda.driver.cublaslt import CublasLt
from everygrad.backends.cuda.source.writer import KernelText, full_source
from everygrad.errors import DeviceError, OutOfMemoryError

_CHUNK = 1 << 25  # bytes of one pinned piece
_PENDING = 1 << 28  # bytes of pending uploads before the oldest is waited for
_PINNED_MOST = 1 << 28  # bytes of a download that go through one pinned piece
_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_STATIC_SHARED = 48 << 10  # bytes of shared memory that a kernel may use without opting in
_SIGNATURES: dict[str, str] = {  # p: an address or handle, i: int, u: unsigned, z: a size
    "cuModuleLoadData": "pp",
    "cuModuleUnload": "p",
    "cuModuleGetFunction": "ppp",
    "cuFuncSetAttribute": "pii",
    "cuMemcpyHtoDAsync_v2": "ppzp",
    "cuMemcpyDtoHAsync_v2": "ppzp",
    "cuMemcpyPeerAsync": "ppppzp",
    "cuMemsetD8Async": "pczp",
    "cuMemGetInfo_v2": "pp",
    "cuMemHostRegister_v2": "pzu",
    "cuMemHostUnregister": "p",
    "cuCtxSetCurrent": "p",
    "cuDeviceGet": "pi",
    "cuDeviceGetCount": "p",
    "cuDeviceGetName": "pii",
    "cuDeviceGetAttribute": "pii",
    "cuDevicePrimaryCtxRetain": "pi",
    "cuStreamCreate": "pu",
    "cuStreamDestroy_v2": "p",
    "cuStreamSynchronize": "p",
    "cuStreamWaitEvent": "ppu",
    "cuStreamIsCapturing": "pp",
    "cuEventCreate": "pu",
    "cuEventRecord": "pp",
    "cuEventQuery": "p",
    "cuEventElapsedTime": "ppp",
    "cuEventSynchronize": "p",
    "cuEventDestroy_v2": "p",
    "cuInit": "u",
    "cuDriverGetVersion": "p",
    "cuGetErrorName": "ip",
    "cuGetErrorString": "ip",
}
_LETTERS = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "z": ctypes.c_size_t,
    "c": ctypes.c_ubyte,
}
_NO_DEVICE = 100
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_MAJOR, _MINOR, _MULTIPROCESSORS, _SHARED = 75, 76, 16, 97  # of cuDeviceGetAttribute


# --- finding it ----------------------------------------------------------------------------------


def load_cupy() -> Any:
    """CuPy, or an error that says how to get it."""
    try:
        import cupy
    except ModuleNotFoundError:
        raise DeviceError(
            "device \"cuda\" needs CuPy, which is not installed: pip install 'everygrad[cuda13]' "
            "(or everygrad[cuda12] for a driver of CUDA 12)"
        ) from None
    except ImportError as error:
        raise DeviceError(f'device "cuda": CuPy does not load: {error}') from error
    return cupy


def load_driver() -> Any:
    """libcuda with its functions' types, initialised."""
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise DeviceError(
            'device "cuda" needs NVIDIA\'s driver, whose libcuda.so.1 was not found: install the '
            "driver (nvidia-smi must work), or use another device"
        ) from None
    for name, letters in _SIGNATURES.items():
        getattr(lib, name).argtypes = [_LETTERS[c] for c in letters]
    code = lib.cuInit(0)
    if code == _NO_DEVICE:
        raise DeviceError('device "cuda": the driver finds no GPU; see what nvidia-smi says')
    if code:
        raise DeviceError(f'device "cuda": the driver does not start: {describe(lib, code)}')
    return lib


def check_versions(driver: int, runtime: int) -> None:
    """Refuse a driver older than the CUDA this CuPy was built for; versions as CUDA counts."""
    if driver // 1000 < runtime // 1000:
        raise DeviceError(
            f'device "cuda": the driver is for CUDA {driver // 1000}.{driver % 1000 // 10}, too '
            f"old for this CuPy, built for CUDA {runtime // 1000}: update the driver, or "
            f"pip install 'everygrad[cuda{driver // 1000}]' in place of cuda{runtime // 1000}"
        )


@lru_cache
def found() -> tuple[Any, Any, int]:
    """CuPy, libcuda, and the driver's version."""
    cupy = load_cupy()
    lib = load_driver()
    version = ctypes.c_int()
    lib.cuDriverGetVersion(ctypes.byref(version))
    check_versions(version.value, cupy.cuda.runtime.runtimeGetVersion())
    return cupy, lib, version.value


def describe(lib: Any, code: int) -> str:
    """A driver error by its name and its message."""
    texts = []
    for ask in (lib.cuGetErrorName, lib.cuGetErrorString):
        text = ctypes.c_char_p()
        ask(code, ctypes.byref(text))
        texts.append((text.value or b"unknown").decode())
    return f"{texts[0]} ({code}): {texts[1]}"


# --- one device ----------------------------------------------------------------------------------


class Module:
    """A loaded module; it lives as long as a function of it is held."""

    __slots__ = ("_dropped", "_handle")

    def __init__(self, handle: int, dropped: deque[int]) -> None:
        self._handle = handle
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.append(self._handle)  # for `unload`: a finalizer may run anywhere


class Function(int):
    """The handle of a kernel. Code that may still launch it must hold this, not a plain int."""

    module: Module


class Driver:
    """One GPU, by its number: a context, a stream, pools of memory. Errors are DeviceErrors."""

    recycles = True

    def __init__(self, index: int) -> None:
        self._cupy, self._lib, self.version = found()  # as CUDA counts: 13000 is 13.0
        count = self._number("cuDeviceGetCount")
        if index >= count:
            raise DeviceError(
                f'device "cuda:{index}" is not there: the driver finds {count} '
                f"GPU{'s' if count != 1 else ''}, numbered from 0"
            )
        self.index = index
        self._several = count > 1
        self._here = threading.local()
        device = self._number("cuDeviceGet", index)
        self.context = self._handle("cuDevicePrimaryCtxRetain", device)
        self.enter()
        self.stream = self._handle("cuStreamCreate", 1)  # not ordered after the default stream
        name = ctypes.create_string_buffer(256)
        self._check(self._lib.cuDeviceGetName(name, 256, device), "asking for its name")
        self.name = name.value.decode()
        major, minor = (self._number("cuDeviceGetAttribute", a, device) for a in (_MAJOR, _MINOR))
        self.capability = (major, minor)
        self.arch = f"sm_{major}{minor}"
        self.multiprocessors = self._number("cuDeviceGetAttribute", _MULTIPROCESSORS, device)
        self.shared = self._number("cuDeviceGetAttribute", _SHARED, device)  # bytes for a block
        self._majors = tuple(m for m in (13, 12) if m <= self.version // 1000)
        self._pool = self._cupy.cuda.MemoryPool()
        self._pinned = self._cupy.cuda.PinnedMemoryPool()
        self._exhausted = self._cupy.cuda.memory.OutOfMemoryError
        self._uploads: deque[tuple[int, Any, int]] = deque()
        self._upload_bytes = 0
        self._events: list[int] = []
        self.ordering = threading.RLock()  # held while streams are ordered, or one is captured
        self._postponed: deque[tuple[int, int]] = deque()  # orders asked for during a capture
        self._dropped: deque[int] = deque()  # modules without a function that is still held
        self._lt: CublasLt | None = None
        self._cudnn: cudnn.Cudnn | None = None
        self._cusolver: cusolver.Cusolver | None = None
        self._launch = import_module("cupy_backends.cuda.api.driver").launchKernel

    @property
    def lt(self) -> CublasLt:
        """cuBLASLt on this device."""
        if self._lt is None:
            self.enter()
            self._lt = CublasLt()
        return self._lt

    @property
    def cudnn(self) -> cudnn.Cudnn | None:
        """cuDNN on this device; None where the machine has none."""
        if self._cudnn is None:
            library = cudnn.load()
            if library is not None:
                self.enter()
                self._cudnn = cudnn.Cudnn(library, self.stream)
        return self._cudnn

    @property
    def cusolver(self) -> cusolver.Cusolver | None:
        """cuSOLVER and cuBLAS on this device; None where the machine lacks one."""
        if self._cusolver is None:
            libraries = cusolver.load()
            if libraries is not None:
                block = self.malloc(cusolver.WORKSPACE)
                if block is None:
                    raise OutOfMemoryError(
                        f"cuda: no {cusolver.WORKSPACE:,} bytes for cuBLAS are left"
                    )
                self._solver_workspace, address = block  # held for good
                self._cusolver = cusolver.Cusolver(libraries, self.stream, address)
        return self._cusolver

    @property
    def nvrtc(self) -> nvrtc.Nvrtc:
        """The compiler for this driver."""
        return nvrtc.opened(self._majors)

    def _check(self, code: int, what: str) -> None:
        if code:
            raise DeviceError(f"cuda: {what}: {describe(self._lib, code)}")

    def _number(self, function: str, *args: int) -> int:
        """What a function stores as an int through its first argument."""
        made = ctypes.c_int()
        self._check(getattr(self._lib, function)(ctypes.byref(made), *args), function)
        return made.value

    def _handle(self, function: str, *args: int) -> int:
        """What a function stores as a handle through its first argument."""
        made = ctypes.c_void_p()
        self._check(getattr(self._lib, function)(ctypes.byref(made), *args), function)
        return made.value or 0

    def enter(self) -> None:
        """Make this device's context current in this thread; where there are several, other code
        may have changed it."""
        if self._several or not getattr(self._here, "entered", False):
            self._check(self._lib.cuCtxSetCurrent(self.context), "entering the context")
            self._here.entered = True

    # --- kernels ---------------------------------------------------------------------------------

    def function(self, text: KernelText) -> Function:
        """The loaded kernel of this text."""
        source = full_source(text)
        cubin = self.nvrtc.compile(text.name, source, self.arch)
        return self.load(cubin, text.name)

    def begin(self, text: KernelText) -> Callable[[], Function]:
        """The same, compiled by another thread; calling the result waits and loads it."""
        made = self.nvrtc.compile_later(text.name, full_source(text), self.arch)
        return lambda: self.load(made.result(), text.name)

    def load(self, cubin: bytes, name: str, shared: int = 0) -> Function:
        """A kernel of a cubin, which may use `shared` bytes of dynamic shared memory."""
        self.enter()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        what = f"loading the kernel {name!r}"
        self._check(self._lib.cuModuleLoadData(ctypes.byref(module), cubin), what)
        owner = Module(module.value or 0, self._dropped)
        code = self._lib.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        self._check(code, what)
        if shared > _STATIC_SHARED:
            self._check(self._lib.cuFuncSetAttribute(function, _DYNAMIC_SHARED, shared), what)
        found = Function(function.value or 0)
        found.module = owner
        return found

    def unload(self) -> None:
        """Unload the modules whose kernels can no longer be launched, after synchronising. Not
        while a graph is captured: the caller holds the device's lock."""
        if self._dropped:
            self.enter()
            self.synchronize()
            while self._dropped:
                code = self._lib.cuModuleUnload(self._dropped.popleft())
                self._check(code, "unloading a module")

    def launcher(self, kernel: Any) -> Callable[[], Any]:
        """The launch of a kernel on the stream with the arguments in its buffer, through CuPy:
        ctypes would take twice as long."""
        extra = ctypes.addressof(kernel.extra)
        facts = (kernel.function, *kernel.grid, kernel.block, 1, 1, 0, self.stream, 0, extra)
        fire = partial(self._launch, *facts)
        if not self._several:
            return fire

        def enter_and_fire() -> None:
            self.enter()
            fire()

        return enter_and_fire

    def launch(self, kernel: Any) -> None:
        """One launch of a kernel whose arguments are in its buffer."""
        try:
            kernel.fire()
        except Exception as error:
            self.recover(kernel, error)

    def recover(self, kernel: Any, error: Exception) -> None:
        """Handle a failed launch: a thread's first one finds no context, and is repeated."""
        if not hasattr(error, "status"):  # a compile error, or what a signal handler raised
            raise error
        if error.status != _NO_CONTEXT:
            raise DeviceError(f"cuda: launching {kernel.name}: {error}") from error
        self._check(self._lib.cuCtxSetCurrent(self.context), "entering the context")
        try:
            kernel.fire()
        except Exception as second:
            raise DeviceError(f"cuda: launching {kernel.name}: {second}") from second

    # --- memory ----------------------------------------------------------------------------------

    def malloc(self, size: int) -> tuple[Any, int] | None:
        """An owner of `size` bytes and their address; None where memory is exhausted."""
        self.enter()
        try:
            made = self._pool.malloc(size)
        except self._exhausted:
            return None
        return made, made.ptr

    def upload(self, ptr: int, data: Any) -> None:
        """Copy bytes to an address through pinned memory, without waiting for earlier launches."""
        for start in range(0, data.size, _CHUNK):
            piece = data[start : start + _CHUNK]
            pinned = self.pinned(piece.size)
            self.fill(pinned, piece)
            self.upload_pinned(ptr + start, pinned, piece.size, self.stream)

    def pinned(self, size: int) -> Any:
        """Pinned memory of the host."""
        self.enter()
        return self._pinned.malloc(size)

    def register(self, address: int, size: int) -> bool:
        """Pin memory of the host where it is; False where the system does not let us."""
        self.enter()
        return self._lib.cuMemHostRegister_v2(address, size, 0) == 0

    def unregister(self, address: int) -> None:
        """The memory may be unmapped."""
        self.enter()
        self._check(self._lib.cuMemHostUnregister(address), "unpinning memory of the host")

    def fill(self, pinned: Any, piece: Any) -> None:
        """Copy bytes into pinned memory."""
        np.frombuffer(pinned, np.uint8, piece.size)[:] = piece

    def upload_pinned(self, ptr: int, pinned: Any, size: int, stream: int) -> None:
        """Copy pinned bytes to an address on a stream; they are held until that is done."""
        self.enter()
        code = self._lib.cuMemcpyHtoDAsync_v2(ptr, pinned.ptr, size, stream)
        self._check(code, "copying to the device")
        self._uploads.append((self.marked(stream), pinned, size))
        self._upload_bytes += size
        self._reap()

    def _reap(self) -> None:
        """Free the pinned memory of uploads that are done."""
        while self._uploads:
            event, _, size = self._uploads[0]
            if self._upload_bytes > _PENDING:
                self._check(self._lib.cuEventSynchronize(event), "waiting for an upload")
            elif self._lib.cuEventQuery(event):
                return
            self._uploads.popleft()
            self._events.append(event)
            self._upload_bytes -= size

    def marked(self, stream: int | None = None) -> int:
        """An event after all that was launched so far, or put on another stream."""
        self.enter()
        event = self._event()
        code = self._lib.cuEventRecord(event, self.stream if stream is None else stream)
        self._check(code, "recording an event")
        return event

    def wait(self, stream: int, event: int) -> None:
        """Later work on a stream waits for an event, which is not used again by the caller."""
        self.enter()
        self._check(self._lib.cuStreamWaitEvent(stream, event, 0), "waiting for a stream")
        self.forget(event)  # the stream already waits

    def forget(self, event: int) -> None:
        """Nobody will wait for an event any more."""
        self._events.append(event)

    def new_stream(self) -> int:
        """Another stream, ordered after nothing."""
        self.enter()
        return self._handle("cuStreamCreate", 1)

    def end_stream(self, stream: int) -> None:
        """Destroy a stream once its work is done."""
        self.enter()
        self._check(self._lib.cuStreamDestroy_v2(stream), "ending a stream")

    def _event(self) -> int:
        """An event, used before or new; other threads take them too."""
        try:
            return self._events.pop()
        except IndexError:
            return self._handle("cuEventCreate", 2)  # without a clock

    def download(self, ptr: int, size: int) -> Download:
        """Start to copy bytes to the host, after all that was launched so far."""
        self.enter()
        return Download(self, ptr, size)

    def clear(self, ptr: int, size: int) -> None:
        """Fill memory with zeros."""
        self.enter()
        self._check(self._lib.cuMemsetD8Async(ptr, 0, size, self.stream), "clearing memory")

    def copy_from(self, other: Driver, target: int, source: int, size: int) -> None:
        """Copy from another device; each stream waits for the other, the host for neither."""
        other.enter()
        ready = other.marked()
        self.enter()
        self._check(self._lib.cuStreamWaitEvent(self.stream, ready, 0), "waiting for a device")
        code = self._lib.cuMemcpyPeerAsync(
            target, self.context, source, other.context, size, self.stream
        )
        self._check(code, "copying between devices")
        done = self.marked()
        other.enter()
        self._check(self._lib.cuStreamWaitEvent(other.stream, done, 0), "waiting for a device")
        other._events.append(ready)  # the streams already wait: events can be reused
        self._events.append(done)
        self.enter()

    def stopwatch(self) -> Callable[[], float]:
        """A device clock, started after all that was launched so far. Calling it returns the
        seconds until everything launched before the call was done."""
        self.enter()
        start, end = (self._handle("cuEventCreate", 0) for _ in range(2))
        self._check(self._lib.cuEventRecord(start, self.stream), "recording an event")

        def stop() -> float:
            took = ctypes.c_float()
            self._check(self._lib.cuEventRecord(end, self.stream), "recording an event")
            self._check(self._lib.cuEventSynchronize(end), "waiting for the device")
            code = self._lib.cuEventElapsedTime(ctypes.byref(took), start, end)
            for event in (start, end):
                self._lib.cuEventDestroy_v2(event)
            self._check(code, "asking how long it took")
            return took.value / 1e3

        return stop

    def order(self, first: int, second: int) -> None:
        """Later work on the second stream waits for earlier work on the first.

        Memory of ours that another library frees asks for this, in whatever thread and wherever the
        garbage collector runs: while our stream is captured it is postponed until that is over.
        """
        self.enter()
        with self.ordering:
            self._postponed.append((first, second))
            if not self._state_of("cuStreamIsCapturing", self.stream):
                self.catch_up()

    def catch_up(self) -> None:
        """Order streams as it was asked for."""
        while self._postponed:
            first, second = self._postponed.popleft()
            self.wait(second, self.marked(first))

    def _state_of(self, function: str, handle: int) -> int:
        """What a function says of a handle, as an int through its last argument."""
        found = ctypes.c_int()
        self._check(getattr(self._lib, function)(handle, ctypes.byref(found)), function)
        return found.value

    def synchronize(self) -> None:
        self.enter()
        self._check(self._lib.cuStreamSynchronize(self.stream), "waiting for the device")

    def trim(self) -> None:
        """Return free memory to the system."""
        self._pool.free_all_blocks()
        self._pinned.free_all_blocks()

    def limit(self, size: int | None) -> None:
        """Limit the bytes of the pool; None: no limit."""
        self.enter()
        self._pool.set_limit(size=size or 0)

    def statistics(self) -> dict[str, int]:
        """Bytes: used by arrays, held by the pool, free on the device, and in total."""
        self.enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._check(
            self._lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "asking for memory"
        )
        used, held = self._pool.used_bytes(), self._pool.total_bytes()
        return {"used": used, "held": held, "free": free.value, "total": total.value}


class Download:
    """A pending copy to the host."""

    def __init__(self, driver: Driver, ptr: int, size: int) -> None:
        self._driver = driver
        self._data: Any = None
        self._size = size
        if size > _PINNED_MOST:
            self._data = self._in_pieces(ptr)
            return
        self._pinned = driver._pinned.malloc(size)
        self._copy(self._pinned, ptr, size)
        self._event = driver.marked()

    def _copy(self, pinned: Any, ptr: int, size: int) -> None:
        code = self._driver._lib.cuMemcpyDtoHAsync_v2(pinned.ptr, ptr, size, self._driver.stream)
        self._driver._check(code, "copying to the host")

    def _in_pieces(self, ptr: int) -> Any:
        data = np.empty(self._size, np.uint8)
        for start in range(0, self._size, _PINNED_MOST):
            size = min(_PINNED_MOST, self._size - start)
            pinned = self._driver._pinned.malloc(size)
            self._copy(pinned, ptr + start, size)
            self._driver.synchronize()
            data[start : start + size] = np.frombuffer(pinned, np.uint8, size)
        return data

    def wait(self) -> Any:
        """The bytes."""
        if self._data is None:
            driver = self._driver
            code = driver._lib.cuEventSynchronize(self._event)
            driver._check(code, "waiting for results")
            driver._events.append(self._event)
            self._data = np.frombuffer(self._pinned, np.uint8, self._size).copy()
            self._pinned = None
        return self._data
