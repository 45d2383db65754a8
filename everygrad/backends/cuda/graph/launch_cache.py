"""Ops that were run before on arrays that lie so: what they launched, launched again.

Working out what an op does to shapes and strides takes several times as long as launching it. What
it did is recorded once, as a compiled function's steps are, and then done with other addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everygrad.backends.cuda.array import CudaArray, layout_of
from everygrad.backends.cuda.driver.gpu import Kernel
from everygrad.backends.cuda.graph.recording import ALIGN, Step, recorder, steps_of
from everygrad.backends.strided_array import span
from everygrad.core.config import config
from everygrad.errors import DeviceError

_MOST = 1 << 12
_NOT_THESE = ("to",)  # what they do depends on more than layouts
_NEVER, _ONCE = object(), object()


class Shortcut(NamedTuple):
    """What an op launches. Slots are the arrays it is given, then the memory it takes."""

    steps: tuple[Step, ...]
    sizes: tuple[int, ...]  # bytes of the memory it takes; 0: the workspace all share
    workspace: int  # bytes of that
    checks: bool  # it looks at indices
    kept: list[CudaArray]  # constants it reads
    slot: int  # the result's
    at: int  # its first byte in the slot
    like: CudaArray

    def run(self, dev: Any, arrays: Sequence[CudaArray]) -> CudaArray:
        steps, sizes, space, checks, _, slot, at, like = self
        gpu = dev.gpu
        storages: list[Any] = [a.storage for a in arrays]
        if steps or sizes:
            addresses = [a.ptr for a in arrays]
            for size in sizes:
                storage = gpu.memory.take(size) if size else None
                storages.append(storage)
                addresses.append(gpu.workspace(space) if storage is None else storage.ptr)
            if checks:
                gpu.faults()
            for step in steps:
                what, arguments, places, words = step
                if words:
                    given = step.filled(addresses)
                else:
                    given = list(arguments)
                    for where, number, offset in places:
                        given[where] = addresses[number] + offset
                if type(what) is Kernel:
                    gpu.launch(what, *given)
                else:
                    gpu.call(what, *given)
        first = at // like.dtype.itemsize
        if slot < len(arrays):
            first += arrays[slot].offset
        made = CudaArray(like.device, like.shape, like.dtype, storages[slot], first, like.strides)
        made.layout = like.layout  # memory, given or taken, begins where promised memory does
        return made


def _promised(rec: Any, array: CudaArray) -> CudaArray:
    """An array that lies as another does, on memory that is only promised."""
    low, high = span(array)
    storage = rec.gpu.promises.take((high - low + 1) * array.dtype.itemsize)
    return CudaArray(array.device, array.shape, array.dtype, storage, 0, array.strides)


def learn(dev: Any, op: Any, arrays: Sequence[CudaArray], params: dict[str, Any]) -> Any:
    """The shortcut of an op on arrays that lie as these do, or `_NEVER`."""
    rec = recorder(dev)
    given = [_promised(rec, a) for a in arrays]
    try:
        out = type(dev).run(rec, op, given, params)  # a test may watch the device's own
    except DeviceError:  # it reads a value
        return _NEVER
    promises, space = rec.gpu.promises, rec.gpu._workspace
    if not isinstance(out, CudaArray) or not promises.holds(out.ptr):
        return _NEVER
    slot = promises.find(out.ptr)
    layout_of(out)
    taken = zip(promises.starts[len(given) :], promises.sizes[len(given) :], strict=True)
    sizes = tuple(0 if space is not None and space.ptr == at else size for at, size in taken)
    return Shortcut(
        tuple(steps_of(rec.gpu)),
        sizes,
        0 if space is None else space.size,
        rec.gpu.checks,
        rec.kept,
        slot,
        out.ptr - promises.starts[slot],
        out,
    )


class Shortcuts:
    """Those of one device, by op, parameters and layouts; learnt when an op comes a second time."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def find(
        self, dev: Any, op: Any, arrays: Sequence[CudaArray], params: dict[str, Any]
    ) -> Shortcut | None:
        try:
            layouts = [a.layout or layout_of(a) for a in arrays]
            key = (op, config.matmul_precision, *params.items(), *layouts)
            found = self._known.get(key)
        except TypeError:  # a parameter that has no hash
            return None
        if found is _NEVER:
            return None
        for a in arrays:  # layouts tell addresses apart by 16 bytes, recorded ones are even to more
            if a.ptr & (ALIGN - 1):
                return None
        if type(found) is Shortcut:
            return found
        if found is None:
            if len(self._known) > _MOST:
                self._known.clear()
            self._known[key] = _ONCE if _is_plain(op, arrays) else _NEVER
        else:
            self._known[key] = learn(dev, op, arrays, params)
        return None


def _is_plain(op: Any, arrays: Sequence[CudaArray]) -> bool:
    """Whether an op could have a shortcut on such arrays: they have elements, none before their
    first."""
    if op.name in _NOT_THESE or not arrays:
        return False
    return all(a.storage is not None and min(a.strides, default=0) >= 0 for a in arrays)
