"""CuPy's library functions on our arrays: on our stream, in memory of our pool, without copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.driver.driver import Driver, load_cupy
from everygrad.backends.strided_array import span

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


class _Stream:
    """Our stream, by the protocol that other libraries use."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def has_libraries(dev: Cuda) -> bool:
    """Whether there is a GPU that libraries can use: a dry device has none."""
    return isinstance(dev.gpu.driver, Driver)


def is_eager(dev: Cuda) -> bool:
    """Whether ops run now on a real GPU: not on a dry one, nor while recording."""
    return has_libraries(dev) and getattr(dev.gpu, "real", None) is None


@contextmanager
def on_our_stream(dev: Cuda) -> Iterator[Any]:
    """CuPy, launching on our stream and allocating from our pool."""
    cupy = load_cupy()
    index = dev.gpu.driver.index
    handle = dev.gpu.driver.stream
    with dev.gpu.lock:
        dev.gpu.driver.enter()
        made = getattr(cupy.cuda.Stream, "from_external", None)  # since CuPy 14
        stream = made(_Stream(handle)) if made else cupy.cuda.ExternalStream(handle, index)
        memory = cupy.cuda.using_allocator(lambda size: dev.gpu.memory.take(size).holder)
        with cupy.cuda.Device(index), stream, memory:
            yield cupy


def as_cupy(cupy: Any, x: CudaArray, address: int | None = None) -> Any:
    """An array as CuPy's, sharing its memory, or the memory at an address. CuPy must not write to
    an array's own memory: arrays never change."""
    low, high = span(x)
    size = x.dtype.itemsize
    first = x.ptr if address is None else address
    memory = cupy.cuda.UnownedMemory(
        first - (x.offset - low) * size, (high - low + 1) * size, x.storage
    )
    at = cupy.cuda.MemoryPointer(memory, (x.offset - low) * size)
    steps = tuple(s * size for s in x.strides)
    return cupy.ndarray(x.shape, x.dtype, memptr=at, strides=steps)
