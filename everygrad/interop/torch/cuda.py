"""PyTorch's tensors on NVIDIA GPUs as ours, and back: the one place that knows of CUDA.

Work of ours runs on our stream, since the default stream of PyTorch cannot be captured as a CUDA
graph. Around each call the streams wait for each other, on the GPU: what PyTorch launched on its
current stream before the call comes first, and what it launches afterwards comes last. The host
waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from everygrad._jit.buffers import BufferFunction
from everygrad.backends import base
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.dlpack import capsule
from everygrad.backends.cuda.driver.memory import Storage
from everygrad.core.shapes import size_of
from everygrad.interop.torch.exchange import from_tensor
from everygrad.interop.torch.graph import DTYPES


def run(
    function: BufferFunction,
    inputs: Sequence[torch.Tensor],
    state: torch.Tensor | None,
    device: str,
    made: Sequence[Any],
) -> list[torch.Tensor]:
    """The results of a compiled function as PyTorch's tensors, with the strides that `made` says.

    `state`: four words of a random generator, on the CPU.
    """
    backend: Any = base.get(device)
    driver = backend.gpu.driver
    theirs = torch.cuda.current_stream(driver.index).cuda_stream or DEFAULT_STREAM
    payloads: list[Any] = [
        payload(backend, t, b) for t, b in zip(inputs, function.inputs, strict=False)
    ]
    if state is not None:
        payloads.append(state.numpy().view("uint32"))
    driver.order(theirs, driver.stream)
    results = [backend.contiguous(a) for a in function.on_payloads(payloads)]
    driver.order(driver.stream, theirs)
    # memory that PyTorch gives back may still be read by what its stream holds
    done = partial(driver.order, theirs, driver.stream)
    return [tensor(backend, a, m, done) for a, m in zip(results, made, strict=True)]


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


def tensor(backend: Any, array: CudaArray, made: Any, done: Callable[[], None]) -> torch.Tensor:
    """A result as PyTorch's tensor, which holds its memory; `done` is called when it is freed. The
    capsule has the strides: a tensor that `as_strided` gave would be a view, which PyTorch lets
    nobody write to in its graph."""
    seen = array.view(made.size, made.stride, array.offset)
    out = from_dlpack(capsule(seen, DTYPES[made.dtype], backend.dlpack_device, done))
    return out.cpu() if made.node.meta["val"].device.type == "cpu" else out
