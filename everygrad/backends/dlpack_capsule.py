"""Memory of the CPU shared with other libraries: by DLPack's capsules, or by a shorter way.

NumPy makes and takes the capsules. It refuses bfloat16: such arrays travel as 16-bit integers, and
the dtype's code is written into the capsule in between.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad import dtypes

UINT, BFLOAT = 1, 4  # codes of dtypes
VERSION = (1, 0)
_BITS = np.dtype(np.uint16)
_BFLOAT_NUMBER = dtypes.bfloat16.np.num  # NumPy's: comparing dtypes takes longer than all else
# A capsule's name, and the offset of the dtype in DLManagedTensorVersioned and in DLManagedTensor
_NEW, _OLD = (b"dltensor_versioned", 52), (b"dltensor", 20)

_api = ctypes.pythonapi
_code = ctypes.c_uint8
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)


def code_of(capsule: Any, new: bool) -> ctypes.c_uint8:
    """The code of the dtype in a capsule that nobody has taken yet: its memory. `new`: of the
    version that was asked for; producers may give an older one."""
    for name, offset in (_NEW, _OLD) if new else (_OLD,):
        try:
            return _code.from_address(_pointer(capsule, name) + offset)
        except ValueError:
            pass  # it has another name
    raise BufferError("from_dlpack: this capsule was used up, or is of a version not known here")


def exported(values: Any, stream: Any, version: Any, device: Any, copy: Any) -> Any:
    """A capsule of a NumPy array of any dtype here, as `__dlpack__` is asked for it."""
    if values.dtype.num != _BFLOAT_NUMBER:
        if device is None and copy is None:
            return values.__dlpack__(stream=stream, max_version=version)
        return values.__dlpack__(
            stream=stream, max_version=version, dl_device=device, copy=copy or None
        )
    capsule = exported(values.view(_BITS), stream, version, device, copy)
    code_of(capsule, version is not None and version[0] >= 1).value = BFLOAT
    return capsule


class _Relabelled:
    """A producer of one capsule, for `np.from_dlpack`."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def imported(x: Any) -> Any:
    """A NumPy array on the memory of another library's, of any dtype here."""
    if "bfloat16" not in str(getattr(x, "dtype", "")):
        return np.from_dlpack(x)
    try:
        capsule = x.__dlpack__(max_version=VERSION)
    except TypeError:  # a producer older than DLPack 1.0
        capsule = x.__dlpack__()
    code = code_of(capsule, True)
    if code.value != BFLOAT:
        return np.from_dlpack(_Relabelled(capsule))
    code.value = UINT
    return np.from_dlpack(_Relabelled(capsule)).view(dtypes.bfloat16.np)


def _of_numpy(x: Any) -> Any:
    return x if x.dtype in dtypes.FROM_NP else None


class _Ways(dict[type, Any]):
    """How arrays are shared without a capsule, by their exact type: subclasses may mean something
    else. PyTorch's are added when they are first seen; None for all others, which are not kept."""

    def __missing__(self, kind: type) -> Any:
        if f"{kind.__module__}.{kind.__qualname__}" not in _TORCH:
            return None
        self[kind] = way = kind.numpy  # type: ignore[attr-defined]
        return way


_TORCH = frozenset(("torch.Tensor", "torch.nn.parameter.Parameter"))
_ways = _Ways({np.ndarray: _of_numpy})
# A function that shares an array of this type, or None. It gives None or raises where it cannot:
# to ask beforehand would take as long as to share.
quick_way: Callable[[type], Callable[[Any], Any] | None] = _ways.__getitem__


def shared_otherwise(x: Any) -> Any:
    """An array of a type that has a quick way, on its memory, where that way raised; None where it
    lies elsewhere. From then on tensors like it are asked beforehand: what PyTorch raises takes ten
    times as long as to share."""
    kind = type(x)
    if kind is np.ndarray:
        return x
    if not x.is_cpu or x.dtype is sys.modules["torch"].bfloat16:
        _ways[kind] = _of_torch
    return _of_torch(x)


def _of_torch(x: Any) -> Any:
    if not x.is_cpu:
        return None
    torch: Any = sys.modules["torch"]
    if x.dtype is torch.bfloat16 and not x.requires_grad:
        return x.view(torch.int16).numpy().view(dtypes.bfloat16.np)
    return x.numpy()  # which says why it cannot, where it cannot
