"""PyTorch's tensors on NVIDIA GPUs as ours, and back: the one place that knows of CUDA.

Work of ours runs on our stream, since the default stream of PyTorch cannot be captured as a CUDA
graph. Around each call the streams wait for each other, on the GPU: what PyTorch launched on its
current stream before the call comes first, and what it launches afterwards comes last. The host
waits for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.utils.dlpack import from_dlpack

from everygrad._jit.buffers import BufferFunction
from everygrad.backends import base
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.dlpack import Exporter
from everygrad.backends.cuda.driver.memory import Storage
from everygrad.core.shapes import size_of
from everygrad.interop.torch.exchange import from_tensor
from everygrad.interop.torch.graph import DTYPES

DEFAULT_STREAM = 1  # CUDA's handle of the legacy default stream, which PyTorch calls 0


def payload(backend: Any, t: torch.Tensor, buffer: Any) -> Any:
    """A buffer of ours on a tensor's memory, which it holds. A number on the CPU stays there: the
    compiled function copies it."""
    dtype = buffer.dtype.np
    if not on_gpu(t):
        return from_tensor(t)._data.reshape(buffer.shape)
    if not t.numel():
        return CudaArray(backend.device, buffer.shape, dtype, None)
    # a slice ends before its buffer does: how much is there to read is said by the storage
    size = min(
        size_of(buffer.shape) * dtype.itemsize,
        t.untyped_storage().nbytes() - t.storage_offset() * dtype.itemsize,
    )
    storage = Storage(backend.gpu, t, t.data_ptr(), size)
    return CudaArray(backend.device, buffer.shape, dtype, storage)


def on_gpu(t: torch.Tensor) -> bool:
    return t.is_cuda


class Freed:
    """Memory of results that PyTorch freed. Its stream may still read it, so ours waits for that
    before it writes there again: once for many, since each order costs some microseconds."""

    def __init__(self, driver: Any) -> None:
        self.driver = ref(driver)
        self.held: deque[tuple[Any, int]] = deque()  # storages, and PyTorch's stream
        self.bytes = 0

    def add(self, storage: Any, stream: int) -> None:
        """Called in any thread, wherever PyTorch frees a tensor; an empty one has no storage."""
        if storage is None:
            return
        self.held.append((storage, stream))
        self.bytes += storage.size
        if self.bytes > _HELD_BYTES or len(self.held) > _HELD:
            self.settle()

    def settle(self, waited_for: int | None = None) -> None:
        """Let our stream wait for PyTorch's, then return the memory; it may just have waited for
        one of them."""
        self.bytes = 0
        taken = []
        with suppress(IndexError):  # what others add meanwhile is not covered by our order
            while True:
                taken.append(self.held.popleft())
        for stream in {stream for _, stream in taken} - {waited_for}:
            driver = self.driver()
            if driver is not None:
                driver.order(stream, driver.stream)


_HELD, _HELD_BYTES = 64, 1 << 26  # of freed memory that waits for an order of streams
_freed: WeakKeyDictionary[Any, Freed] = WeakKeyDictionary()  # by driver


class CudaCall:
    """A compiled function as one of PyTorch's tensors on a GPU: results have the strides that
    `made` says."""

    def __init__(self, function: BufferFunction, device: str, made: Sequence[Any]) -> None:
        backend: Any = base.get(device)
        self.backend, self.driver = backend, backend.gpu.driver
        self.function, self.replay = function, function.replay
        self.freed = _freed.setdefault(self.driver, Freed(self.driver))
        self.exporters = [
            Exporter(m.size, m.stride, DTYPES[m.dtype], backend.dlpack_device) for m in made
        ]
        self.on_cpu = [k for k, m in enumerate(made) if m.node.meta["val"].device.type == "cpu"]
        self.copied = [
            k for k, a in enumerate(self.replay.results) if not a.is_contiguous and a.storage
        ]
        self.addresses: list[int] = []  # of the inputs in the call before
        self.from_cpu: set[int] = set()  # inputs on the CPU: each call takes their values

    def __call__(
        self, inputs: Sequence[torch.Tensor], state: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """`state`: four words of a random generator, on the CPU."""
        driver = self.driver
        theirs = torch.cuda.current_stream(driver.index).cuda_stream or DEFAULT_STREAM
        addresses = [t.data_ptr() for t in inputs]
        with self.replay.lock:
            moved = self.moved(inputs, addresses, state)
            self.addresses = []  # should the call be interrupted
            driver.order(theirs, driver.stream)
            self.freed.settle(theirs)
            found = self.replay.run_moved(moved)
            self.addresses = addresses
            for k in self.copied:
                found[k] = self.contiguous(k, found[k])
            driver.order(driver.stream, theirs)
        add = self.freed.add
        out = [
            from_dlpack(e.capsule(ptr, storage, partial(add, storage, theirs)))
            for e, (storage, ptr) in zip(self.exporters, found, strict=True)
        ]
        for k in self.on_cpu:
            out[k] = out[k].cpu()
        return out

    def moved(
        self, inputs: Sequence[torch.Tensor], addresses: list[int], state: torch.Tensor | None
    ) -> dict[int, Any]:
        """The payloads of the inputs that are elsewhere than in the call before, by number, and of
        those that are copied in each call."""
        count = len(addresses)
        if not self.addresses:
            numbers: Iterable[int] = range(count)
            self.from_cpu = {i for i, t in enumerate(inputs) if not on_gpu(t)}
        else:
            new = {*self.from_cpu, *self.replay.unsettled()}
            if addresses != self.addresses:
                pairs = enumerate(zip(addresses, self.addresses, strict=True))
                new |= {i for i, (now, before) in pairs if now != before}
            numbers = [i for i in new if i < count]
        buffers = self.function.inputs
        made = {i: payload(self.backend, inputs[i], buffers[i]) for i in numbers}
        if state is not None:
            made[count] = state.numpy().view("uint32")
            count += 1
        for k, t in enumerate(self.function.found):
            made[count + k] = t._data
        return made

    def contiguous(self, k: int, found: tuple[Any, int]) -> tuple[Any, int]:
        """A result that was computed in another order of its elements, in order."""
        storage, ptr = found
        a = self.replay.results[k]
        offset = (ptr - storage.ptr) // a.dtype.itemsize
        made = self.backend.contiguous(
            CudaArray(a.device, a.shape, a.dtype, storage, offset, a.strides)
        )
        return made.storage, made.ptr
