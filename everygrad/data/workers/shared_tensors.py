"""Tensors as arguments and messages of `multiprocessing`: by shared memory, never by pickle.

Once `everygrad.data` is imported, a tensor of the CPU may be an argument of a spawned `Process` and
be put into a `Queue` or a `Pipe` of multiprocessing. The standard library describes the message in
its own way; of a tensor that description holds a file descriptor, a dtype and a shape, and both
processes see the same memory. As with PyTorch, a process that puts a tensor into a queue must live
until the other one has taken it out.
"""

from __future__ import annotations

import os
from multiprocessing import reduction
from typing import Any
from weakref import finalize

import numpy as np

from everygrad.core.tensor import Tensor, wrap
from everygrad.data.workers.messages import dtype_name, dtype_named
from everygrad.data.workers.shared_memory import Lease, Segment, new_file, supported
from everygrad.errors import ArgumentError, DeviceError, GradientError, WorkerError

_kept: dict[int, tuple[Any, int]] = {}  # of a tensor by its id: the payload, its descriptor


def sharing(x: Tensor) -> int:
    """A descriptor of memory with the tensor's values, open as long as the tensor lives: a second
    worker gets the same memory."""
    found = _kept.get(id(x))
    if found is not None and found[0] is x._data:
        return found[1]
    values = np.ascontiguousarray(x.detach().numpy())
    fd = new_file(max(values.nbytes, 1))
    if values.nbytes:
        target = Lease([Segment(fd, values.nbytes)]).bytes_of(0)
        target[:] = values.reshape(-1).view(np.uint8)
    _kept[id(x)] = (x._data, fd)
    finalize(x, _forget, id(x), fd)
    return fd


def _forget(key: int, fd: int) -> None:
    if key in _kept and _kept[key][1] == fd:
        del _kept[key]
    os.close(fd)


def _reduced(x: Tensor) -> tuple[Any, ...]:
    if x.device != "cpu":
        raise DeviceError(
            f'a tensor on {x.device} does not cross processes; send x.to("cpu") and move it there'
        )
    if not x.is_leaf:
        raise GradientError(
            "a tensor that is the result of an op does not cross processes with its graph; "
            "send x.detach()"
        )
    if not supported():
        raise ArgumentError("tensors cross processes on POSIX systems only; send x.numpy()")
    fd = reduction.DupFd(sharing(x))
    return _rebuilt, (fd, dtype_name(x.dtype.np), list(x.shape), x.requires_grad)


def _rebuilt(handle: Any, dtype: str, shape: list[int], requires_grad: bool) -> Tensor:
    try:
        fd = handle.detach()
    except (OSError, EOFError) as error:  # nobody listens any more where the memory is
        raise WorkerError(
            f"a tensor {dtype}{shape} from another process: that process has ended, and its memory "
            f"with it; it must live until the tensor is taken out (receive before it is joined, or "
            f"answer it), or send x.numpy()"
        ) from error
    kind = dtype_named(dtype)
    size = kind.itemsize
    for n in shape:
        size *= n
    try:
        raw = Lease([Segment(fd, size)]).bytes_of(0) if size else np.empty(0, np.uint8)
    finally:
        os.close(fd)
    out = wrap(raw.view(kind).reshape(shape))
    return out.requires_grad_() if requires_grad else out


def register() -> None:
    """Tell multiprocessing how tensors cross."""
    reduction.ForkingPickler.register(Tensor, _reduced)
