"""CuPy's library functions on our arrays: on our stream, in memory of our pool, without copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from everygrad.backends.cuda.driver import Driver, load_cupy


class _Stream:
    """Our stream, as other libraries ask for one."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def is_eager(dev: Any) -> bool:
    """Whether ops run now, on a GPU that is there: not on a dry one, nor while recording."""
    return isinstance(dev.gpu.driver, Driver) and getattr(dev.gpu, "real", None) is None


@contextmanager
def on_our_stream(dev: Any) -> Iterator[Any]:
    """CuPy, with what it launches inside on our stream, and what it makes in our memory."""
    cupy = load_cupy()
    index = int(dev.device.partition(":")[2] or 0)
    handle = dev.gpu.driver.stream
    with dev.gpu.lock:
        dev.gpu.driver.enter()
        made = getattr(cupy.cuda.Stream, "from_external", None)  # since CuPy 14
        stream = made(_Stream(handle)) if made else cupy.cuda.ExternalStream(handle, index)
        memory = cupy.cuda.using_allocator(lambda size: dev.gpu.memory.take(size).holder)
        with cupy.cuda.Device(index), stream, memory:
            yield cupy
