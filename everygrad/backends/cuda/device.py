"""CUDA as a backend: works ops out from their records, by kernels written in CUDA C++."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from everygrad import dtypes, shapes
from everygrad.backends.base import Backend
from everygrad.backends.cuda import elementwise, kernels, moves, reducing
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.driver import Driver
from everygrad.backends.cuda.dry import DryDriver
from everygrad.backends.cuda.gpu import Gpu, Kernel, Reading
from everygrad.backends.cuda.recording import recorder
from everygrad.backends.cuda.render import used_inputs
from everygrad.backends.cuda.replay import Replay
from everygrad.backends.cuda.writer import Written
from everygrad.backends.strided import span, spread
from everygrad.compile.expr import Program
from everygrad.config import config
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import ArgumentError, DeviceError
from everygrad.shapes import Shape, size_of

_PLANS = 1 << 14  # kernels remembered with their shapes
_INTERNED = 1 << 14  # elements up to which arange's results are remembered


class Cuda(Backend):
    """One GPU. `device` is its name as tensors say it: "cuda" for the first, then "cuda:1"..."""

    name = "cuda"

    def __init__(self, device: str, driver: Any) -> None:
        self.device = device
        self.gpu = Gpu(device, driver)
        self.multiprocessors: int = driver.multiprocessors
        self.plans: dict[Any, Any] = {}
        self.made: dict[Any, CudaArray] = {}  # constants: they never change, so they serve again
        self.kernels: dict[str, Callable[..., Any]] = {
            name: partial(fn, self) for name, fn in kernels.KERNELS.items()
        }

    def synchronize(self) -> None:
        self.gpu.driver.synchronize()

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

    def run(self, op: Any, arrays: list[Any], params: dict[str, Any]) -> Any:
        kernel = self.kernels.get(op.name)
        if kernel is not None:
            return kernel(*arrays, **params)
        if op.family == "elementwise":
            program = op.program([FROM_NP[a.dtype] for a in arrays], params)
            return self.elementwise(op.name, program, arrays)
        if op.family == "reduction":
            return reducing.reduce(self, op.name, op.combine, arrays[0], mean=op.mean, **params)
        raise DeviceError(f"{op.name}: the cuda backend has no kernel for it")

    def elementwise(
        self, name: str, program: Program, arrays: Sequence[CudaArray], ordered: bool = False
    ) -> CudaArray:
        """A scalar program over arrays that broadcast; `ordered`: the result lies in C order."""
        key = (id(program), ordered, *[(a.shape, a.strides, a.ptr % 16) for a in arrays])
        found = self.plans.get(key)
        if found is None:
            found = self._plan(key, name, program, arrays, ordered)
        kernel, shape, strides, used, dtype, size, _ = found
        if kernel is None:
            return CudaArray(self.device, shape, dtype, None)
        storage = self.gpu.memory.take(size)
        self.gpu.launch(kernel, *[arrays[k].ptr for k in used], storage.ptr)
        return CudaArray(self.device, shape, dtype, storage, 0, strides)

    def _plan(
        self,
        key: Any,
        name: str,
        program: Program,
        arrays: Sequence[CudaArray],
        ordered: bool,
    ) -> Any:
        """What is done for a program on arrays of these shapes and strides. The program stays with
        its plan, so that no other can have its id."""
        shape = shapes.broadcast(name, *(a.shape for a in arrays))
        dtype = program.dtype
        used = used_inputs(program)
        kernel: Kernel | None = None
        strides: Shape = ()
        if size_of(shape):
            at = elementwise.walk(
                shape, [spread(a.shape, a.strides, shape) for a in arrays], ordered
            )
            given = [FROM_NP[a.dtype] for a in arrays]
            places = [a.ptr % 16 for a in arrays]
            strides = at.out
            kernel = self.gpu.prepare(
                elementwise.write(name, program, given, at, places, self.multiprocessors)
            )
        size = size_of(shape) * dtype.itemsize
        if len(self.plans) > _PLANS:
            self.plans.clear()
        found = self.plans[key] = (kernel, shape, strides, used, dtype.np, size, program)
        return found

    def planned(self, key: Any, write: Callable[[], Written]) -> Kernel:
        """The kernel under `key`, written when it is first asked for."""
        found: Kernel | None = self.plans.get(key)
        if found is None:
            if len(self.plans) > _PLANS:
                self.plans.clear()
            found = self.plans[key] = self.gpu.prepare(write())
        return found

    def compile(self, graph: Any, donated: Any = ()) -> Replay:
        return Replay(self, graph, donated)

    def serves(self, op: Any, given: Sequence[Any], params: dict[str, Any]) -> bool:
        """Found out by recording the op on promised arrays."""
        made = recorder(self)
        return made.run(op, [made.empty(v.shape, v.dtype) for v in given], params) is not (
            NotImplemented
        )

    # --- arrays ----------------------------------------------------------------------------------

    def empty(self, shape: Shape, dtype: DType) -> CudaArray:
        """An array whose elements a kernel is about to write."""
        size = size_of(shape) * dtype.itemsize
        storage = self.gpu.memory.take(size) if size else None
        return CudaArray(self.device, shape, dtype.np, storage)

    def from_numpy(self, array: Any) -> CudaArray:
        dtype = dtypes.as_dtype(array.dtype)
        if array.ndim and array.size > 1 and 0 in array.strides:  # broadcast: send it once
            index = tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)
            return moves.broadcast_to(self, self.from_numpy(array[index]), array.shape)
        out = self.empty(array.shape, dtype)
        if out.storage is not None:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            with self.gpu.lock:
                self.gpu.driver.upload(out.ptr, data)
        return out

    def to_numpy(self, array: CudaArray) -> Any:
        """Waits for the GPU; raises what index checks found since the last time."""
        return self._begin_read(array).values()

    def read_later(self, arrays: Sequence[CudaArray]) -> Later:
        """The values, begun to be copied now; `result()` waits for them."""
        return Later([self._begin_read(a) for a in arrays])

    def _begin_read(self, array: CudaArray) -> Readback:
        if array.storage is None:
            return Readback(array, None, 0)
        low, high = span(array)
        if high - low + 1 > 2 * size_of(array.shape) + 64:  # mostly gaps
            array = moves.contiguous(self, array)
            low, high = 0, size_of(array.shape) - 1
        size = array.dtype.itemsize
        assert array.storage is not None
        reading = self.gpu.read(array.storage, low * size, (high - low + 1) * size)
        return Readback(array, reading, low)

    def full(self, shape: Shape, value: Any, dtype: DType) -> CudaArray:
        if not size_of(shape):
            return self.empty(shape, dtype)
        try:
            one = np.array(value, dtype.np)
        except OverflowError:
            raise ArgumentError(
                f"{value} does not fit into {dtype}; choose a wider dtype"
            ) from None
        found = self.intern((one.tobytes(), dtype), lambda: one)
        return found if not shape else moves.broadcast_to(self, found, shape)

    def arange(self, start: Any, count: int, step: Any, dtype: DType) -> CudaArray:
        def values() -> Any:
            whole = np.arange(count, dtype=np.int64 if dtype.is_integer else np.float64)
            return (start + step * whole).astype(dtype.np)

        if count > _INTERNED:
            return self.from_numpy(values())
        return self.intern((start, count, step, dtype, type(start), type(step)), values)

    def intern(self, key: Any, make: Callable[[], Any]) -> CudaArray:
        """A constant made once. Nothing ever writes to an array, so it can be shared."""
        found = self.made.get(key)
        if found is None:
            if len(self.made) > 1024:
                self.made.clear()
            found = self.made[key] = self.from_numpy(make())
        return found


class Readback:
    """An array's values on their way to the host."""

    def __init__(self, array: CudaArray, reading: Reading | None, low: int) -> None:
        self._array = array  # holds the memory until it was read
        self._reading = reading
        self._low = low

    def values(self) -> Any:
        """The values as a NumPy array; raises what index checks found."""
        array = self._array
        if self._reading is None:
            return np.zeros(array.shape, array.dtype)
        size = array.dtype.itemsize
        steps = tuple(s * size for s in array.strides)
        at = (array.offset - self._low) * size
        return np.ndarray(array.shape, array.dtype, self._reading.result(), at, steps)


class Later:
    """Several arrays on their way to the host."""

    def __init__(self, readbacks: list[Readback]) -> None:
        self._readbacks = readbacks

    def result(self) -> list[Any]:
        return [r.values() for r in self._readbacks]


def canonical(name: str) -> str:
    """The one name of a device: "cuda" is "cuda:0".

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
