"""The CUDA backend: computes ops from their records, by kernels written in CUDA C++."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from everygrad import dtypes
from everygrad.backends.base import Uploads
from everygrad.backends.cuda import dlpack, registry
from everygrad.backends.cuda.array import CudaArray, LaunchPlan, layout_of, remember
from everygrad.backends.cuda.cupy_interop import on_our_stream
from everygrad.backends.cuda.driver.copy_stream import CopyStream
from everygrad.backends.cuda.driver.driver import Driver
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.driver.gpu import Gpu, Kernel, PendingRead
from everygrad.backends.cuda.graph import library_calls
from everygrad.backends.cuda.graph.launch_cache import LaunchCache
from everygrad.backends.cuda.graph.recording import recorder
from everygrad.backends.cuda.graph.replay import Replay
from everygrad.backends.cuda.kernels import copy_kernels, multi_tensor, single_op
from everygrad.backends.cuda.kernels.single_op import PlannedOp
from everygrad.backends.cuda.source.kernel_render import render
from everygrad.backends.cuda.source.writer import WrittenKernel
from everygrad.backends.gpu import GpuBackend
from everygrad.backends.strided_array import span
from everygrad.codegen.groups.kernel_texts import KernelTexts
from everygrad.compiler.expr import Program
from everygrad.compiler.facts import OpFacts
from everygrad.core.config import config
from everygrad.core.protocols import UpdateRule
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import DeviceError

if TYPE_CHECKING:
    from everygrad.compiler.ir import Graph

_PLANS = 1 << 14  # kernels that are cached with their shapes
_HEAD_START = 200_000  # cycles, about 100 us: as long as launching what is timed takes


class Cuda(GpuBackend):
    """One GPU. `device` is its name on tensors: "cuda" for the first, then "cuda:1"..."""

    name = "cuda"
    communicates = True

    def __init__(self, device: str, driver: Any) -> None:
        super().__init__(device)
        self.gpu = self.home = Gpu(device, driver)  # a recorder has its own `gpu`, this home
        self.multiprocessors: int = driver.multiprocessors
        self.plans: dict[Any, Any] = {}
        self.texts = KernelTexts("cuda", render)
        self.launch_cache = LaunchCache()
        self.kernels: dict[str, partial[Any]] = {
            name: partial(fn, self) for name, fn in registry.KERNELS.items()
        }

    def synchronize(self) -> None:
        self.gpu.wait()

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float, float]:
        """By the device's own clock. A delay kernel runs first, so that the device does not wait
        for launches while it is timed."""
        self.synchronize()
        start = perf_counter()
        kernel = self.planned("delay", lambda: registry.write_delay(_HEAD_START))
        with self.gpu.unlogged():
            self.gpu.launch(kernel)
        stop = self.gpu.driver.stopwatch()
        out = work()
        return out, start, stop()

    @contextmanager
    def launches(self) -> Iterator[list[str]]:
        names: list[str] = []
        with self.gpu.lock:
            outer, self.gpu.log = self.gpu.log, []
            try:
                yield names
            finally:
                log, self.gpu.log = self.gpu.log or [], outer
                names += [getattr(c.what, "name", None) or c.what.__name__ for c in log]

    @property
    def tf32(self) -> bool:
        """Whether float32 products may be rounded to 10 bits first."""
        return config.matmul_precision == "high"

    # --- ops -------------------------------------------------------------------------------------

    def run(self, op: OpFacts, arrays: list[Any], params: dict[str, Any]) -> Any:
        kernel = self.kernels.get(op.name)
        if kernel is None:
            if op.family == "elementwise":
                return self._run_elementwise(op, arrays, params)
            if op.family == "reduction":
                return single_op.reduce(self, op, arrays[0], **params)
            raise DeviceError(f"{op.name}: the cuda backend has no kernel for it")
        if self.gpu is self.home and op.name not in single_op.KERNELS:
            launch = self.launch_cache.find(self, op, arrays, params)
            if launch is not None:
                return launch.run(self, arrays)
        return kernel(*arrays, **params)

    def _run_elementwise(self, op: OpFacts, arrays: list[Any], params: dict[str, Any]) -> CudaArray:
        """An elementwise op, by the plan for arrays of these layouts."""
        key = (op, *params.items(), *[a.layout or layout_of(a) for a in arrays])
        found: PlannedOp | None = self.plans.get(key)
        if found is not None:
            return found.run(self, arrays)
        program = op.program([FROM_NP[a.dtype] for a in arrays], params)
        found = self.keep(key, self._find_plan(op.name, program, arrays, False))
        out = found.run(self, arrays)
        if not params and out.storage is not None and found.is_plain and len(arrays) <= 3:
            self._remember(op, found, arrays)
        return out

    def elementwise(
        self, name: str, program: Program, arrays: Sequence[CudaArray], ordered: bool = False
    ) -> CudaArray:
        """A scalar program over arrays that broadcast; `ordered`: the result is contiguous."""
        return self._find_plan(name, program, arrays, ordered).run(self, arrays)

    def _find_plan(
        self, name: str, program: Program, arrays: Sequence[CudaArray], ordered: bool
    ) -> PlannedOp:
        """The plan of a program on arrays of these layouts, cached or new; it holds the program, so
        that no other gets its id."""
        key = (id(program), ordered, *[a.layout or layout_of(a) for a in arrays])
        found: PlannedOp | None = self.plans.get(key)
        if found is None:
            made = single_op.elementwise(self, name, program, arrays, ordered)
            found = self.keep(key, made._replace(keep=(program, made.keep)))
        return found

    def _remember(self, op: OpFacts, found: PlannedOp, arrays: Sequence[CudaArray]) -> None:
        """Let later calls of the op on arrays of these layouts use `CudaArray.direct`. The plan is
        the real device's, even when this one records."""
        ((kernel, _),) = found.launches
        gpu = self.home
        how = (gpu, kernel, gpu.memory.waiting_for(found.size), gpu.lock, kernel.put, kernel.buffer)
        made = (self.device, found.shape, found.dtype, found.size, found.strides, found.layout)
        remember(op, arrays, LaunchPlan(*how, *made))

    def keep(self, key: Any, found: Any) -> Any:
        """A plan, cached by its key."""
        if len(self.plans) > _PLANS:
            self.plans.clear()
        self.plans[key] = found
        return found

    def planned(self, key: Any, write: Callable[[], WrittenKernel]) -> Kernel:
        """The cached kernel under `key`, written on first use."""
        found: Kernel | None = self.plans.get(key)
        return self.keep(key, self.gpu.prepare(write())) if found is None else found

    def rewrite_all(
        self, rule: UpdateRule, given: Sequence[list[Any]]
    ) -> Sequence[dict[int, Any] | None]:
        return multi_tensor.rewrite(self, rule, given)

    def compile(self, graph: Graph, donated: Any = (), remade: Any = ()) -> Replay:
        return Replay(self, graph, donated)

    def serves(self, op: OpFacts, given: Sequence[Any], params: dict[str, Any]) -> bool:
        """Where no library computes it, found by recording the op on placeholder arrays."""
        by_library = library_calls.serves(self, op.name, given, params)
        if by_library is not None:
            return by_library
        made = recorder(self)
        return made.run(op, [made.empty(v.shape, v.dtype) for v in given], params) is not (
            NotImplemented
        )

    def communicate(
        self, work: Callable[[int, int, int], None], x: CudaArray, shape: Shape, dtype: DType
    ) -> CudaArray:
        """What `work` makes of x, launched on our stream with the addresses of x and the result."""
        x, out = self.contiguous(x), self.empty(shape, dtype)
        with on_our_stream(self):
            work(self.gpu.driver.stream, x.ptr, out.ptr)
        return out

    # --- arrays ----------------------------------------------------------------------------------

    def empty(self, shape: Shape, dtype: DType) -> CudaArray:
        """An array whose elements a kernel is about to write."""
        size = size_of(shape) * dtype.itemsize
        storage = self.gpu.memory.take(size) if size else None
        return CudaArray(self.device, shape, dtype.np, storage)

    def contiguous(self, x: CudaArray) -> CudaArray:
        return copy_kernels.contiguous(self, x)

    def concat_into(self, out: CudaArray, arrays: Sequence[CudaArray], axis: int) -> None:
        copy_kernels.concat_into(self, out, arrays, axis)

    def upload(self, array: Any) -> CudaArray:
        out = self.empty(array.shape, dtypes.as_dtype(array.dtype))
        if out.storage is not None:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            with self.gpu.lock:
                self.gpu.driver.upload(out.ptr, data)
        return out

    def uploads(self) -> CopyStreamUploads:
        return CopyStreamUploads(self)

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return (dlpack.GPU, self.gpu.driver.index)

    def to_dlpack(self, array: CudaArray, stream: Any, copy: bool | None) -> Any:
        if any(s < 0 for s in array.strides):  # PyTorch aborts the process on these
            if copy is False:
                raise BufferError("__dlpack__: copy=False, but no other library takes such strides")
            array = copy_kernels.contiguous(self, array)
        elif copy:
            array = copy_kernels.copied(self, array)
        return dlpack.exported(self, array, stream)

    def from_dlpack(self, x: Any, copy: bool) -> CudaArray:
        array = dlpack.imported(self, x)
        return copy_kernels.copied(self, array) if copy and array.storage is not None else array

    def to_numpy(self, array: CudaArray) -> Any:
        """Waits for the GPU; raises what checks found since the last time."""
        return self._begin_read(array).values()

    def read_later(self, arrays: Sequence[CudaArray]) -> PendingReadbacks:
        """Start to copy the values now; `result()` waits for them."""
        return PendingReadbacks([self._begin_read(a) for a in arrays])

    def _begin_read(self, array: CudaArray) -> Readback:
        if array.storage is None or not size_of(array.shape):
            return Readback(array, None, 0)
        low, high = span(array)
        if high - low + 1 > 2 * size_of(array.shape) + 64:  # mostly gaps
            array = copy_kernels.contiguous(self, array)
            low, high = 0, size_of(array.shape) - 1
        size = array.dtype.itemsize
        assert array.storage is not None
        reading = self.gpu.read(array.storage, low * size, (high - low + 1) * size)
        return Readback(array, reading, low)


class CopyStreamUploads(Uploads):
    """Arrays that arrive while other launches compute."""

    def __init__(self, dev: Cuda) -> None:
        super().__init__(dev)
        self._device = dev.device
        self._copies = CopyStream(dev.gpu)

    def put(self, array: Any) -> CudaArray:
        dtype = dtypes.as_dtype(array.dtype)
        storage = None
        if array.size:
            storage = self._copies.put(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return CudaArray(self._device, array.shape, dtype.np, storage)

    def sent(self) -> int:
        return self._copies.sent()

    def arrived(self, sent: int) -> None:
        self._copies.arrived(sent)

    def close(self) -> None:
        self._copies.close()


class Readback:
    """An array's values on their way to the host."""

    def __init__(self, array: CudaArray, reading: PendingRead | None, low: int) -> None:
        self._array = array  # holds the memory until it is read
        self._reading = reading
        self._low = low

    def values(self) -> Any:
        """The values as a NumPy array; raises what checks found."""
        array = self._array
        if self._reading is None:
            return np.zeros(array.shape, array.dtype)
        size = array.dtype.itemsize
        steps = tuple(s * size for s in array.strides)
        at = (array.offset - self._low) * size
        return np.ndarray(array.shape, array.dtype, self._reading.result(), at, steps)


class PendingReadbacks:
    """Several arrays on their way to the host."""

    def __init__(self, readbacks: list[Readback]) -> None:
        self._readbacks = readbacks

    def result(self) -> list[Any]:
        return [r.values() for r in self._readbacks]


def canonical(name: str) -> str:
    """The canonical name of a device: "cuda" is "cuda:0".

    >>> canonical("cuda:0"), canonical("cuda:2")
    ('cuda', 'cuda:2')
    """
    _, _, index = name.partition(":")
    if index == "dry" or not index:
        return name
    if not index.isdecimal():
        raise DeviceError(f'device {name!r}: GPUs are named by their number, "cuda:0" or "cuda:1"')
    return f"cuda:{int(index)}" if int(index) else "cuda"


def open_device(name: str = "cuda") -> Cuda:
    """ "cuda", "cuda:1", ...; "cuda:dry" launches nothing, for tests without a GPU."""
    name = canonical(name)
    _, _, index = name.partition(":")
    return Cuda(name, DryDriver() if index == "dry" else Driver(int(index or 0)))
