"""Memory shared with other libraries on the same GPU without a copy: DLPack capsules.

Written with ctypes, so that every dtype can be exported and imported. Streams wait for each other;
the host waits only when memory of another library is released.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.driver.memory import Storage
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import row_major
from everygrad.dtypes import DType
from everygrad.errors import DtypeError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

GPU = 2  # DLPack's number for CUDA
DEFAULT_STREAM = 1  # what a consumer's None means
NO_STREAM = -1  # the consumer asks for no synchronisation
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_NAME, _USED = b"dltensor", b"used_dltensor"
_CODES = {"int": 0, "uint": 1, "float": 2, "complex": 5, "bool": 6}
_BFLOAT = 4


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# capsules by address: one that is being freed must not get a new reference
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)
# what must live until the consumer of exported memory is done, by its descriptor's address
_exported: dict[int, tuple[Any, ...]] = {}


def _code(dtype: DType) -> int:
    return _BFLOAT if dtype is dtypes.bfloat16 else _CODES[dtype.kind]


_DTYPES = {(_code(d), 8 * d.itemsize): d for d in dtypes.FROM_NP.values()}


# --- export --------------------------------------------------------------------------------------


def _delete(address: int) -> None:
    """The consumer is done."""
    _exported.pop(address)[-1]()


def _drop(capsule: int) -> None:
    """A capsule is freed: if nothing consumed it, nothing will."""
    if _is_valid(capsule, _NAME):
        _delete(_pointer(capsule, _NAME))


# addresses that C may call; held here as long as it may
_CALLS = (_Deleter(_delete), _Deleter(_drop))
_DELETE, _DROP = (ctypes.cast(call, ctypes.c_void_p) for call in _CALLS)


class Exporter:
    """Hands out arrays of one shape, strides (in elements) and dtype, one after the other."""

    def __init__(self, shape: Shape, strides: Shape, dtype: DType, device: tuple[int, int]) -> None:
        ndim = len(shape)
        self.sizes = (ctypes.c_int64 * (2 * ndim))(*shape, *strides)
        managed = _Managed()
        t = managed.tensor
        t.device_type, t.device_id = device
        t.ndim = ndim
        t.code, t.bits, t.lanes = _code(dtype), 8 * dtype.itemsize, 1
        first = ctypes.addressof(self.sizes)
        t.shape = ctypes.cast(first, ctypes.POINTER(ctypes.c_int64))
        t.strides = ctypes.cast(first + 8 * ndim, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = _DELETE
        self.rest = bytes(managed)[_POINTER:]  # behind the address, which comes first

    def capsule(self, ptr: int, holder: Any, done: Callable[[], None]) -> Any:
        """A capsule of the array at an address, whose holder lives until the consumer is done;
        `done` is called then."""
        managed = _Managed.from_buffer_copy(ptr.to_bytes(_POINTER, sys.byteorder) + self.rest)
        address = ctypes.addressof(managed)
        _exported[address] = (managed, self, holder, done)
        return _new(address, _NAME, _DROP)


def exported(dev: Cuda, array: CudaArray, stream: Any) -> Any:
    """A capsule of an array for a consumer on `stream`: its work comes after ours, and our later
    use of the memory comes after its work."""
    driver = dev.gpu.driver
    other = DEFAULT_STREAM if stream is None else int(stream)
    if other != NO_STREAM:
        driver.order(driver.stream, other)

    def done() -> None:
        if other != NO_STREAM:
            driver.order(other, driver.stream)

    dtype = dtypes.FROM_NP[array.dtype]
    return Exporter(array.shape, array.strides, dtype, dev.dlpack_device).capsule(
        array.ptr, array, done
    )


# --- import --------------------------------------------------------------------------------------


class Borrowed:
    """Memory of another library, released with this object."""

    def __init__(self, managed: _Managed, before: Callable[[], None]) -> None:
        self._managed = managed
        self._before = before

    def __del__(self) -> None:
        self._before()
        if self._managed.deleter:
            _Deleter(self._managed.deleter)(ctypes.addressof(self._managed))


def opened(given: Any, before: Callable[[], None]) -> tuple[Borrowed, _Tensor, DType]:
    """The content of a capsule: its holder, its descriptor and its dtype; `before` is called before
    the memory is released."""
    at = id(given)
    if not _is_valid(at, _NAME):
        raise DtypeError("from_dlpack: this capsule was used up, or is of a version not known here")
    managed = _Managed.from_address(_pointer(at, _NAME))
    t = managed.tensor
    dtype = _DTYPES.get((t.code, t.bits)) if t.lanes == 1 else None
    if dtype is None:
        raise DtypeError(
            f"from_dlpack: no dtype here has DLPack's code {t.code}, {t.bits} bits, {t.lanes} lanes"
        )
    _rename(at, _USED)
    return Borrowed(managed, before), t, dtype


def imported(dev: Cuda, x: Any) -> CudaArray:
    """An array that shares another library's memory, which must not be written afterwards."""
    driver = dev.gpu.driver
    given = x.__dlpack__(stream=driver.stream or None)
    holder, t, dtype = opened(given, driver.synchronize)
    shape = tuple(t.shape[: t.ndim])
    strides = tuple(t.strides[: t.ndim]) if t.strides else row_major(shape)
    if not size_of(shape):
        return CudaArray(dev.device, shape, dtype.np, None)
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    storage = Storage(dev.gpu, holder, t.data + t.byte_offset, reach * dtype.itemsize)
    return CudaArray(dev.device, shape, dtype.np, storage, 0, strides)
