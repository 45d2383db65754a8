"""A cache of launches: what an op launched before on arrays of the same layout, launched again.

Working out what an op does to shapes and strides takes several times as long as launching it. Its
launches are recorded once, as a compiled function's steps are, and repeated on other addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad.backends.cuda.array import CudaArray, layout_of
from everygrad.backends.cuda.driver.gpu import Kernel
from everygrad.backends.cuda.graph.recording import ALIGN, Step, recorder, steps_of
from everygrad.backends.strided_array import span
from everygrad.compiler.facts import OpFacts
from everygrad.core.config import config
from everygrad.errors import DeviceError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda
    from everygrad.backends.cuda.graph.recording import RecordingCuda

_MOST = 1 << 12
_NEVER, _ONCE = object(), object()


class CachedLaunch(NamedTuple):
    """What an op launches. Slots are its input arrays, then the memory it allocates."""

    steps: tuple[Step, ...]
    sizes: tuple[int, ...]  # bytes of the memory it allocates; 0: the shared workspace
    workspace: int  # bytes of the workspace
    checks: bool  # whether it checks indices
    constants: list[CudaArray]  # that it reads
    slot: int  # the result's
    at: int  # its first byte in the slot
    like: CudaArray

    def run(self, dev: Cuda, arrays: Sequence[CudaArray]) -> CudaArray:
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
                what, arguments, relocations, words = step
                if words:
                    given = step.filled(addresses)
                else:
                    given = list(arguments)
                    for where, number, offset in relocations:
                        given[where] = addresses[number] + offset
                if type(what) is Kernel:
                    gpu.launch(what, *given)
                else:
                    gpu.call(what, *given)
        first = at // like.dtype.itemsize
        if slot < len(arrays):
            first += arrays[slot].offset
        made = CudaArray(like.device, like.shape, like.dtype, storages[slot], first, like.strides)
        made.layout = like.layout  # all memory is aligned as placeholders are
        return made


def _placeholder(rec: RecordingCuda, array: CudaArray) -> CudaArray:
    """An array of the same shape and strides, on placeholder memory."""
    low, high = span(array)
    storage = rec.gpu.placeholders.take((high - low + 1) * array.dtype.itemsize)
    return CudaArray(array.device, array.shape, array.dtype, storage, 0, array.strides)


def record_launch(
    dev: Cuda, op: OpFacts, arrays: Sequence[CudaArray], params: dict[str, Any]
) -> Any:
    """What an op launches on arrays of these layouts, or `_NEVER`."""
    rec = recorder(dev)
    given = [_placeholder(rec, a) for a in arrays]
    try:
        out = type(dev).run(rec, op, given, params)  # a test may watch the device's own
    except DeviceError:  # it reads a value
        return _NEVER
    placeholders, space = rec.gpu.placeholders, rec.gpu._workspace
    if not isinstance(out, CudaArray) or not placeholders.holds(out.ptr):
        return _NEVER
    slot = placeholders.find(out.ptr)
    layout_of(out)
    taken = zip(placeholders.starts[len(given) :], placeholders.sizes[len(given) :], strict=True)
    sizes = tuple(0 if space is not None and space.ptr == at else size for at, size in taken)
    return CachedLaunch(
        tuple(steps_of(rec.gpu)),
        sizes,
        0 if space is None else space.size,
        rec.gpu.checks,
        rec.constants,
        slot,
        out.ptr - placeholders.starts[slot],
        out,
    )


class LaunchCache:
    """Launches of one device, by op, parameters and layouts; recorded at an op's second call."""

    def __init__(self) -> None:
        self._entries: dict[Any, Any] = {}

    def find(
        self, dev: Cuda, op: OpFacts, arrays: Sequence[CudaArray], params: dict[str, Any]
    ) -> CachedLaunch | None:
        try:
            layouts = [a.layout or layout_of(a) for a in arrays]
            key = (op, config.matmul_precision, *params.items(), *layouts)
            found = self._entries.get(key)
        except TypeError:  # a parameter that has no hash
            return None
        if found is _NEVER:
            return None
        for a in arrays:  # layouts know alignment up to 16 bytes, recordings assume more
            if a.ptr & (ALIGN - 1):
                return None
        if type(found) is CachedLaunch:
            return found
        if found is None:
            if len(self._entries) > _MOST:
                self._entries.clear()
            self._entries[key] = _ONCE if _is_plain(op, arrays) else _NEVER
        else:
            self._entries[key] = record_launch(dev, op, arrays, params)
        return None


def _is_plain(op: OpFacts, arrays: Sequence[CudaArray]) -> bool:
    """Whether launches on such arrays can be cached: all have elements, and none is before the
    first."""
    if op.transfers or not arrays:  # a transfer depends on more than layouts
        return False
    return all(a.storage is not None and min(a.strides, default=0) >= 0 for a in arrays)
