"""The payload: a view of a storage. Offsets and strides count elements.

Arrays with the same strides and alignment share a `Layout`. What an elementwise op launches for
arrays of such layouts is a `LaunchPlan`, made by the device the first time; from then on `direct`
is the whole way from arrays to a launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad.backends import base
from everygrad.backends.cuda.driver.memory import SmallStorage, Storage
from everygrad.backends.strided_array import StridedArray
from everygrad.compiler.facts import OpFacts
from everygrad.core.ownership import calibrated, refcount
from everygrad.core.shapes import Shape
from everygrad.core.strides import row_major
from everygrad.dtypes import FROM_NP
from everygrad.errors import DtypeError

if TYPE_CHECKING:
    from everygrad.backends.cuda.driver.gpu import Gpu

_LAYOUTS_MOST = 1 << 14
_PLANS_MOST = 1 << 14
_NUMBERS_MOST = 1 << 10
ALIGNED = 16  # bytes of the widest load


class Layout:
    """Shape, strides, dtype, device and alignment: one object for all equal, compared by
    identity."""

    __slots__ = ()


class LaunchPlan(NamedTuple):
    """An elementwise op that reads one to three arrays of certain layouts, ready to be launched."""

    gpu: Gpu
    kernel: Any
    waiting: list[tuple[Any, int]]  # cached blocks of the result's size; always empty if large
    lock: Any
    put: Any
    buffer: Any
    device: str
    shape: Shape
    dtype: Any
    size: int  # bytes of the result, not 0
    strides: Shape
    layout: Layout  # the result's


_layouts: dict[Any, Layout] = {}
_plans: dict[Any, LaunchPlan] = {}
_numbers: dict[Any, CudaArray] = {}


class CudaArray(StridedArray):
    """A view of a storage; an empty array has none. It never changes."""

    __slots__ = ("layout", "ptr")
    storage: Storage | None
    size = math.inf  # never small: dispatch's fast path for small NumPy arrays is not for it

    def __init__(
        self,
        device: str,
        shape: Shape,
        dtype: Any,
        storage: Storage | None,
        offset: int = 0,
        strides: Shape | None = None,
    ) -> None:
        self.device = device  # repeats the base class: calling it takes as long as all of this
        self.shape = shape
        self.dtype = dtype
        self.storage = storage
        self.offset = offset
        self.strides = row_major(shape) if strides is None else strides
        self.ptr = 0 if storage is None else storage.ptr + offset * dtype.itemsize
        self.layout: Layout | None = None  # found on first use

    @staticmethod
    def direct(op: OpFacts, a: Any, b: Any = None, c: Any = None) -> CudaArray | None:
        """The result of an elementwise op by its cached plan; None where there is none.

        The hottest code of this backend: `Memory.take`, `Gpu.launch` and `__init__` are inlined,
        since the calls cost as much as what they do.
        """
        try:
            if b is None:
                plan = _plans.get((op, a.layout or layout_of(a)))
            elif c is None:
                plan = _plans.get((op, a.layout or layout_of(a), b.layout or layout_of(b)))
            else:
                places = [v.layout or layout_of(v) for v in (a, b, c)]
                plan = _plans.get((op, *places))
        except AttributeError:  # a payload of another kind
            return None
        if plan is None or plan[0].log is not None:
            return None
        gpu, kernel, waiting, lock, put, buffer, device, shape, dtype, size, strides, layout = plan
        try:
            holder, ptr = waiting.pop()
            storage: Storage = SmallStorage(gpu, holder, ptr, size, waiting)
        except IndexError:
            storage = gpu.memory.take(size)
            ptr = storage.ptr
        with lock:
            if b is None:
                put(buffer, 0, a.ptr, ptr)
            elif c is None:
                put(buffer, 0, a.ptr, b.ptr, ptr)
            else:
                put(buffer, 0, a.ptr, b.ptr, c.ptr, ptr)
            try:
                kernel.fire()
            except Exception as error:
                gpu.driver.recover(kernel, error)
        made = _new(CudaArray)
        made.device = device
        made.shape = shape
        made.dtype = dtype
        made.storage = storage
        made.offset = 0
        made.strides = strides
        made.ptr = ptr
        made.layout = layout
        return made

    def number(self, value: float) -> CudaArray:
        """A number as a 0-d array of this array's dtype and device."""
        key = (value, self.dtype, self.device)
        found = _numbers.get(key)
        if found is None or not value:  # 0.0 and -0.0 are one key
            found = base.get(self.device).full((), value, FROM_NP[self.dtype])
            if len(_numbers) > _NUMBERS_MOST:
                _numbers.clear()
            _numbers[key] = found
        return found

    @property
    def is_sole_owner(self) -> bool:
        """Whether this is all of its storage, contiguous, and no other array shares it."""
        storage = self.storage
        if storage is None or self.offset or self.strides != row_major(self.shape):
            return False
        return refcount(storage) <= _SOLE_OWNER

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For CuPy, PyTorch and others, without a copy; they must not write to it."""
        if self.dtype.name == "bfloat16":
            raise DtypeError("__cuda_array_interface__ has no bfloat16; cast with astype() first")
        stream = self.storage.gpu.driver.stream if self.storage is not None else None
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.ptr, False),  # PyTorch requires writable memory
            "strides": tuple(s * self.dtype.itemsize for s in self.strides),
            "stream": stream or None,
            "version": 3,
        }


_new = CudaArray.__new__


def layout_of(array: CudaArray) -> Layout:
    """The layout of an array, which caches it."""
    place = array.ptr % ALIGNED
    found = array.layout = layout(array.device, array.shape, array.strides, array.dtype, place)
    return found


def layout(device: str, shape: Shape, strides: Shape, dtype: Any, place: int = 0) -> Layout:
    """The one object for all arrays of this layout; `place` is the address modulo `ALIGNED`."""
    key = (device, shape, strides, dtype, place)
    found = _layouts.get(key)
    if found is None:
        if len(_layouts) > _LAYOUTS_MOST:
            _layouts.clear()
        found = _layouts[key] = Layout()
    return found


def remember(op: OpFacts, arrays: Sequence[CudaArray], plan: LaunchPlan) -> None:
    """Cache the plan of an op on arrays of these layouts, for `direct`."""
    if len(_plans) > _PLANS_MOST:
        _plans.clear()
    _plans[op, *[a.layout or layout_of(a) for a in arrays]] = plan


def _sole_owner() -> int:
    """The refcount of a storage that one array holds, as `is_sole_owner` sees it."""
    array = CudaArray("cuda", (), np.dtype(np.float32), Storage(None, None, 0, 0))
    storage = array.storage
    return refcount(storage)


_SOLE_OWNER = calibrated(_sole_owner())
