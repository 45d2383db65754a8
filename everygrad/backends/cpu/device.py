"""The CPU as a backend: chooses NumPy, compiled kernels or BLAS for each op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from everygrad.backends.base import Backend
from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.kernels import single_op
from everygrad.backends.cpu.kernels.numpy_render import small
from everygrad.backends.cpu.registry import KERNELS, REDUCERS
from everygrad.backends.cpu.runtime.pool import empty, rewritable
from everygrad.compiler.facts import OpFacts
from everygrad.core.config import config
from everygrad.core.protocols import Compiled
from everygrad.core.shapes import Shape
from everygrad.dtypes import FROM_NP, DType, bfloat16, rounded
from everygrad.errors import ArgumentError, OutOfMemoryError

if TYPE_CHECKING:
    from everygrad.compiler.ir import Graph


class CPU(Backend):
    """The CPU backend; its payloads are NumPy arrays."""

    name = "cpu"
    communicates = overlaps = True

    def __init__(self) -> None:
        self.kernels: dict[str, Callable[..., Any]] = dict(KERNELS)
        self._flat: dict[Any, Callable[..., Any]] = {}  # of `direct`, by op and dtypes

    def run(self, op: OpFacts, arrays: list[Any], params: dict[str, Any]) -> Any:
        kernel = self.kernels.get(op.name)
        try:
            out = kernel(*arrays, **params) if kernel else self.compute(op, arrays, params)
        except RuntimeWarning:  # a filter raises NumPy's warnings: run without them
            with np.errstate(all="ignore"):
                out = self.compute(op, arrays, params)
        except MemoryError as error:
            sizes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays)
            raise OutOfMemoryError(f"{op.name}: out of memory on inputs {sizes}: {error}") from None
        # NumPy returns scalars for 0-d results; "to" may return an array of another device
        return np.asarray(out) if isinstance(out, np.generic) else out

    def compute(self, op: OpFacts, arrays: list[Any], params: dict[str, Any]) -> Any:
        kernel = self.kernels.get(op.name)
        if kernel is not None:
            return kernel(*arrays, **params)
        if op.family == "elementwise":
            return self.elementwise(op, arrays, params)
        if single_op.reduces(arrays[0], params["axes"]):
            return single_op.run(op, arrays, params)
        return REDUCERS[op.combine](arrays[0], mean=op.mean, **params)

    def direct(self, op: OpFacts, *arrays: Any) -> Any:
        key = (op, *[a.dtype for a in arrays])
        flat = self._flat.get(key)
        if flat is None:
            program = op.program([FROM_NP[a.dtype] for a in arrays], {})
            if not lazy_native.supports(program):
                return None
            flat = self._flat[key] = lazy_native.flat(program)
        try:
            return flat(arrays)
        except MemoryError:  # `run` says of what
            return None

    def elementwise(self, op: OpFacts, arrays: list[Any], params: dict[str, Any]) -> Any:
        """A scalar body over arrays that broadcast."""
        program = op.program([FROM_NP[a.dtype] for a in arrays], params)
        largest = max(a.size for a in arrays)
        if largest > config.native_threshold and lazy_native.supports(program):
            out = lazy_native.flat(program)(arrays)
            if out is not None:
                return out
            shape = arrays[0].shape
            for a in arrays:
                if a.shape != shape:
                    shape = np.broadcast_shapes(*[a.shape for a in arrays])
                    break
            out = empty(shape, program.dtype.np)
            lazy_native.run(program, arrays, out)
            return out
        return small(program, len(arrays))(*arrays)

    def small_rows(self, name: str, eps: float | None = None) -> Callable[..., Any]:
        found: Callable[..., Any] = lazy_native.small_rows(name, eps)
        return found

    def norm_gradients(self, g: Any, x: Any, weight: Any, eps: float) -> Any:
        if not x.dtype == g.dtype == weight.dtype or x.dtype.itemsize < 4:
            return None
        return lazy_native.norm_gradients(g, x, weight, eps)

    def rms_gradients(self, g: Any, x: Any, weight: Any, eps: float) -> Any:
        if not x.dtype == g.dtype == weight.dtype or x.dtype.itemsize < 4:
            return None
        return lazy_native.rms_gradients(g, x, weight, eps)

    def rewrite(self, op: OpFacts, t: Any, others: list[Any], params: dict[str, Any]) -> Any:
        """op(t, *others) in the memory of tensor `t`; None where that is not possible."""
        payload = t._data
        if payload.size <= config.native_threshold or payload.dtype.kind == "c":
            return None
        if any(a.shape not in (payload.shape, ()) for a in others):
            return None
        program = op.program([FROM_NP[a.dtype] for a in (payload, *others)], params)
        if program.dtype.np != payload.dtype or not lazy_native.supports(program):
            return None
        del payload  # drops a reference: the reference count decides about in-place reuse
        out = rewritable(t)
        if out is not None:
            lazy_native.run(program, [t._data, *others], out)
        return out

    def warm_up(self) -> None:
        lazy_native.warm_up()

    def compile(self, graph: Graph, donated: Any = (), remade: Any = ()) -> Compiled:
        return lazy_native.compiled(graph, donated, remade)

    def from_numpy(self, array: Any) -> Any:
        return array

    def to_numpy(self, array: Any) -> Any:
        return array

    def full(self, shape: Shape, value: Any, dtype: DType) -> Any:
        try:
            if dtype is bfloat16 or (type(value) is int and dtype.is_float):
                value = rounded(value, dtype)[()]
            if not shape:
                return np.array(value, dtype.np)
            # the system's zero pages cost nothing until they are written; -0.0 is not zero bits
            if not value and not isinstance(value, complex) and math.copysign(1, value) > 0:
                return np.zeros(shape, dtype.np)
            return np.full(shape, value, dtype.np)
        except OverflowError:
            raise ArgumentError(
                f"{value} does not fit into {dtype}; choose a wider dtype"
            ) from None
        except MemoryError as error:
            raise OutOfMemoryError(f"full: {dtype}{list(shape)}: {error}") from None

    def arange(self, start: Any, count: int, step: Any, dtype: DType) -> Any:
        whole = dtype.is_integer and isinstance(start, int) and isinstance(step, int)
        if whole and step and _fits(start, start + step * count, dtype):
            return np.arange(start, start + step * count, step, dtype=dtype.np)
        if whole:
            # modulo 2**64, where no integer is too large
            values = np.arange(count, dtype=np.uint64) * np.uint64(step % 2**64)
            return (values + np.uint64(start % 2**64)).astype(dtype.np)
        if dtype.is_integer:
            return (start + step * np.arange(count, dtype=np.int64)).astype(dtype.np)
        return rounded(start + step * np.arange(count, dtype=np.float64), dtype)


def _fits(first: int, end: int, dtype: DType) -> bool:
    """Whether an integer dtype holds both numbers and all between them."""
    limits = np.iinfo(dtype.np)
    return bool(limits.min <= min(first, end) and max(first, end) <= limits.max)


def open_device() -> CPU:
    return CPU()
