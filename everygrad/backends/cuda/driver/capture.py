"""A list of launches as one CUDA graph, captured from the stream and launched by one call; and
timing on the device."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

_RELAXED = 2  # other threads may call CUDA meanwhile
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuStreamBeginCapture_v2": (ctypes.c_void_p, ctypes.c_int),
    "cuStreamEndCapture": (ctypes.c_void_p, ctypes.c_void_p),
    "cuGraphInstantiateWithFlags": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong),
    "cuGraphLaunch": (ctypes.c_void_p, ctypes.c_void_p),
    "cuGraphDestroy": (ctypes.c_void_p,),
    "cuGraphExecDestroy": (ctypes.c_void_p,),
    "cuMemcpyDtoDAsync_v2": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
    "cuEventElapsedTime": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "cuEventDestroy_v2": (ctypes.c_void_p,),
}


@cache
def prepare(lib: Any) -> Any:
    """libcuda, with the argument types of the functions used here."""
    for name, types in _SIGNATURES.items():
        getattr(lib, name).argtypes = types
    return lib


class Captured:
    """Launches captured as one CUDA graph."""

    def __init__(self, driver: Any, work: Callable[[], None]) -> None:
        self._driver = driver
        lib = self._lib = prepare(driver._lib)
        driver.enter()
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        begun: list[int] = []  # filled by the native call itself: a begun capture always ends
        begin = map(lib.cuStreamBeginCapture_v2, (driver.stream,), (_RELAXED,))
        with driver.ordering:  # an order of streams from another thread would end the capture
            try:
                begun.extend(begin)
                driver._check(begun[0], "recording a graph")
                work()
            finally:
                if begun == [0]:
                    code = lib.cuStreamEndCapture(driver.stream, ctypes.byref(graph))
            driver.catch_up()
        driver._check(code, "recording a graph")
        code = lib.cuGraphInstantiateWithFlags(ctypes.byref(made), graph, 0)
        lib.cuGraphDestroy(graph)
        driver._check(code, "making a graph")
        self._handle = made.value
        self._launch = lib.cuGraphLaunch
        weakref.finalize(self, lib.cuGraphExecDestroy, made.value).atexit = False

    def launch(self, launched: list[Any]) -> None:
        """Launch the graph; the same native call adds to `launched`."""
        self._driver.enter()
        launched.extend(map(self._launch, (self._handle,), (self._driver.stream,)))
        if launched[-1]:
            code = launched.pop()
            self._driver._check(code, "launching a graph")


def copy(driver: Any, target: int, source: int, size: int) -> None:
    """Copy bytes from one address to another, on the stream."""
    driver.enter()
    code = prepare(driver._lib).cuMemcpyDtoDAsync_v2(target, source, size, driver.stream)
    driver._check(code, "copying on the device")


def timed(driver: Any, work: Callable[[], None], times: int = 3) -> float:
    """Seconds that `work` takes on the device: the mean of `times` runs after a first one."""
    lib = prepare(driver._lib)
    begun, done = (driver._handle("cuEventCreate", 0) for _ in range(2))
    work()
    driver._check(lib.cuEventRecord(begun, driver.stream), "timing")
    for _ in range(times):
        work()
    driver._check(lib.cuEventRecord(done, driver.stream), "timing")
    driver.synchronize()
    found = ctypes.c_float()  # milliseconds
    driver._check(lib.cuEventElapsedTime(ctypes.byref(found), begun, done), "timing")
    for event in (begun, done):
        lib.cuEventDestroy_v2(event)
    return found.value / times / 1e3
