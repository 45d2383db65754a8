"""WebGPU as a backend: runs ops from their records, by kernels written in WGSL."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from everygrad import dtypes
from everygrad.backends.base import Pending, Ready
from everygrad.backends.gpu import GpuBackend
from everygrad.backends.strided_array import span
from everygrad.backends.webgpu import registry
from everygrad.backends.webgpu.array import WebGPUArray, count_of
from everygrad.backends.webgpu.driver.adapters import asked_for, find_adapter
from everygrad.backends.webgpu.driver.gpu import WORKGROUP, Gpu
from everygrad.backends.webgpu.driver.memory import Storage
from everygrad.backends.webgpu.driver.readback import ByteRange, Fetch
from everygrad.backends.webgpu.gemm import cooperative_matrix
from everygrad.backends.webgpu.graph.replay import Replay
from everygrad.backends.webgpu.kernels import (
    chunked,
    copy_kernels,
    multi_tensor,
    scan,
    single_op,
)
from everygrad.backends.webgpu.kernels.single_op import LaunchCache
from everygrad.backends.webgpu.source.word_layout import byte_size, layout
from everygrad.compiler.expr import Program
from everygrad.compiler.facts import OpFacts
from everygrad.compiler.thresholds import edge
from everygrad.core import shapes
from everygrad.core.protocols import UpdateRule
from everygrad.core.scopes import Attribute
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import DeviceError, EverygradError, OutOfMemoryError

if TYPE_CHECKING:
    from everygrad.compiler.ir import Graph

MOST_ELEMENTS = edge(__name__, "MOST_ELEMENTS", (1 << 31) - 1, "elements")


class WebGPU(GpuBackend):
    """`wanted` names the adapter: part of its name, or nothing for the fastest."""

    name = "webgpu"

    def __init__(self, device: str, wanted: str) -> None:
        super().__init__(device)
        self.wanted = wanted
        self._gpu: Gpu | None = None
        self.launch_cache = LaunchCache()
        self.kernels: dict[str, Callable[..., Any]] = {
            name: partial(fn, self) for name, fn in registry.KERNELS.items()
        }

    @property
    def gpu(self) -> Gpu:
        """The open device; a lost one is opened again."""
        if self._gpu is None or self._gpu.lost is not None:
            self.made.clear()
            self.launch_cache.clear()
            self._gpu = Gpu(find_adapter(self.wanted))
        return self._gpu

    def synchronize(self) -> None:
        if self._gpu is not None:
            self.gpu.wait()

    def launches(self) -> Attribute:
        return Attribute(self.gpu, "launched", [])

    # --- ops -------------------------------------------------------------------------------------

    def run(self, op: OpFacts, arrays: list[Any], params: dict[str, Any]) -> Any:
        for a in arrays:
            if a.storage is not None and a.storage.gpu.lost is not None:
                raise DeviceError(f"{op.name}: {a.storage.gpu.lost}")
        kernel = self.kernels.get(op.name)
        if kernel is not None:
            if op.name in registry.OF_REALS and arrays[0].dtype.kind == "c":
                return NotImplemented
            return kernel(*arrays, **params)
        if op.family == "elementwise":
            program = op.program([FROM_NP[a.dtype] for a in arrays], params)
            return self.elementwise(op.name, program, arrays)
        if op.family == "reduction":
            check_count(op.name, size_of(arrays[0].shape))
            return single_op.reduce(self, op, arrays[0], **params)
        raise DeviceError(f"{op.name}: the webgpu backend has no kernel for it")

    def serves(self, op: OpFacts, given: Sequence[Any], params: dict[str, Any]) -> bool:
        if op.name in scan.KERNELS:
            return scan.serves(self, given[0].dtype, given[0].shape)
        return op.name not in registry.OF_REALS or not given[0].dtype.is_complex

    def elementwise(
        self, name: str, program: Program, arrays: Sequence[WebGPUArray]
    ) -> WebGPUArray:
        """A scalar program over arrays that broadcast."""
        gpu, limits = self.gpu, self.gpu.limits
        for a in arrays:
            if a.storage is None:
                return self.empty(shapes.broadcast(name, *(a.shape for a in arrays)), program.dtype)
        if len(arrays) >= limits.storage_buffers:
            arrays = copy_kernels.fit_bindings(self, arrays)
        if gpu.largest > limits.binding_size:
            out = self.empty(shapes.broadcast(name, *(a.shape for a in arrays)), program.dtype)
            if chunked.is_needed(gpu, arrays, out):
                chunked.elementwise(self, name, program, arrays, out)
                return out
        return single_op.elementwise(self, name, program, arrays)

    def launch(
        self,
        name: str,
        source: str,
        inputs: Sequence[Storage],
        out: WebGPUArray,
        params: Sequence[int],
        threads: int,
    ) -> None:
        """Record a kernel of so many threads."""
        assert out.storage is not None
        groups = -(-threads // WORKGROUP)
        out.storage.gpu.dispatch(name, source, inputs, [out.storage], params, groups)

    def rewrite_all(
        self, rule: UpdateRule, given: Sequence[list[Any]]
    ) -> Sequence[dict[int, Any] | None]:
        return multi_tensor.rewrite(self, rule, given)

    def compile(self, graph: Graph, donated: Any = (), remade: Any = ()) -> Replay:
        return Replay(self, graph, donated)

    def cooperative_matrices(self) -> str:
        """Whether float16 products use the device's cooperative matrices, in words."""
        return cooperative_matrix.state(self.gpu)

    # --- arrays ----------------------------------------------------------------------------------

    def empty(self, shape: Shape, dtype: DType) -> WebGPUArray:
        """An array with undefined elements, which a kernel is about to write."""
        count = size_of(shape)
        check_count("a tensor", count)
        storage = self.gpu.pool.take(byte_size(dtype, count)) if count else None
        return WebGPUArray(self.device, shape, dtype.np, storage)

    def contiguous(self, x: WebGPUArray) -> WebGPUArray:
        return copy_kernels.contiguous(self, x)

    def concat_into(self, out: WebGPUArray, arrays: Sequence[WebGPUArray], axis: int) -> None:
        copy_kernels.concat_into(self, out, arrays, axis)

    def upload(self, array: Any) -> WebGPUArray:
        dtype = dtypes.as_dtype(array.dtype)
        layout(dtype)
        if not array.size:
            return self.empty(array.shape, dtype)
        check_count("a tensor", array.size)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if data.size % 4:
            data = np.concatenate([data, np.zeros(-data.size % 4, np.uint8)])
        gpu = self.gpu
        storage = gpu.pool.take_to_write(data.size)
        gpu.write(storage, data)
        return WebGPUArray(self.device, array.shape, dtype.np, storage)

    def to_numpy(self, array: WebGPUArray) -> Any:
        """Wait for the GPU; raise what checks found since the last read."""
        if array.storage is None:
            return np.zeros(array.shape, array.dtype)
        array, part = self.span_of(array)
        return as_numpy(array, part, part.storage.gpu.read(*part))

    def read_later(self, arrays: Sequence[WebGPUArray]) -> Pending:
        """Read all arrays in one submission; `result()` waits for it, and for nothing after it."""
        spans = [self.span_of(a) for a in arrays if a.storage is not None]
        if not spans:
            return Ready([np.zeros(a.shape, a.dtype) for a in arrays])
        return PendingArrays(arrays, spans, self.gpu.fetch([part for _, part in spans]))

    def span_of(self, array: WebGPUArray) -> tuple[WebGPUArray, ByteRange]:
        """The bytes to read for an array, which is first copied to contiguous if mostly gaps."""
        assert array.storage is not None
        if array.storage.gpu.lost is not None:
            raise DeviceError(array.storage.gpu.lost)
        low, high = span(array)
        if high - low + 1 > 2 * count_of(array) + 64:
            array = copy_kernels.contiguous(self, array)
            low, high = span(array)
        assert array.storage is not None
        size = array.dtype.itemsize
        start = low * size // 4 * 4
        end = -(-(high + 1) * size // 4) * 4
        return array, ByteRange(array.storage, start, end - start)

    def check_dtype(self, dtype: DType) -> None:
        layout(dtype)

    def intern(self, key: Any, make: Callable[[], Any]) -> Any:
        self.gpu  # noqa: B018  # opens a lost device again, which empties `made`
        return super().intern(key, make)


class PendingArrays:
    """Arrays that are being read back to the CPU."""

    def __init__(
        self,
        arrays: Sequence[WebGPUArray],
        spans: Sequence[tuple[WebGPUArray, ByteRange]],
        fetch: Fetch,
    ) -> None:
        self._arrays = arrays
        self._spans = spans
        self._fetch = fetch

    def result(self) -> list[Any]:
        """Wait for the values; raise what checks found before."""
        read = iter(zip(self._spans, self._fetch.result(), strict=True))
        made = []
        for a in self._arrays:
            if a.storage is None:
                made.append(np.zeros(a.shape, a.dtype))
            else:
                (array, part), data = next(read)
                made.append(as_numpy(array, part, data))
        return made


def as_numpy(array: WebGPUArray, part: ByteRange, data: Any) -> Any:
    """An array from the bytes that were read."""
    size = array.dtype.itemsize
    steps = tuple(s * size for s in array.strides)
    return np.ndarray(array.shape, array.dtype, data, array.offset * size - part.start, steps)


def check_count(what: str, count: int) -> None:
    """Refuse more elements than kernels can index: indices are 32-bit, their differences signed."""
    if count > MOST_ELEMENTS:
        raise OutOfMemoryError(
            f"webgpu: {what} of {count} elements: kernels count to {MOST_ELEMENTS}; "
            f"split the tensor"
        )


def open_device(name: str = "webgpu") -> WebGPU:
    """ "webgpu", or "webgpu:" and part of an adapter's name."""
    backend = WebGPU(name, asked_for(name))
    backend.gpu  # noqa: B018  # opened now, so that a missing adapter is reported here
    atexit.register(_finish, backend, os.getpid())
    return backend


def _finish(backend: WebGPU, process: int) -> None:
    """Wait for running commands when the program ends: drivers that compute on the process's
    threads crash otherwise. Errors that checks found are ignored."""
    gpu = backend._gpu
    if gpu is not None and gpu.lost is None and os.getpid() == process:
        with contextlib.suppress(EverygradError):
            gpu.wait()
