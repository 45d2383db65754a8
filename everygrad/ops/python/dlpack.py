"""DLPack: tensors on the memory of other libraries' arrays, and their arrays on ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends import base
from everygrad.backends.dlpack_capsule import exported, imported, quick_way, shared_otherwise
from everygrad.core import fast_calls
from everygrad.core.tensor import Tensor, shared, wrap
from everygrad.errors import ArgumentError, ExchangeError, GradientError
from everygrad.ops.python.conversion import known_payload
from everygrad.ops.python.creation import asarray

CPU = (1, 0)  # DLPack's numbers for it
_CUDA = 2  # DLPack's number for NVIDIA GPUs


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of another library's array on the CPU or an NVIDIA GPU, copied only
    where it must be.

    The other library must not write to it afterwards, unless `copy` is True: tensors never change.
    """
    plain = device is None and copy is None
    if plain and _native_take is not None and (taken := _native_take(x)) is not None:
        return taken
    way = quick_way(type(x))
    if plain and way is not None:
        if _takes.is_hot():
            _take_natively(x)
        try:
            quick = way(x)
            if quick is not None:
                t = Tensor()  # `wrap` itself, without a call: each is a tenth of all this
                t._data = quick
                t._node = t._source = None
                return t
        except (TypeError, RuntimeError):
            pass  # what follows shares it in another way, or says why not
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    try:
        found = None if way is None else shared_otherwise(x)
    except (TypeError, RuntimeError) as error:
        raise ExchangeError(f"from_dlpack: {type(x).__name__} cannot be shared: {error}") from None
    if found is not None and device is None and copy is None and found.dtype in dtypes.FROM_NP:
        return wrap(found)
    try:
        kind, index = getattr(x, "__dlpack_device__", lambda: (1, 0))()
    except (ValueError, TypeError, RuntimeError) as error:  # a device that DLPack has no number for
        raise ExchangeError(f"from_dlpack: {type(x).__name__} cannot be shared: {error}") from None
    if kind == _CUDA:
        if copy is False and device not in (None, "cuda", f"cuda:{index}"):
            raise ArgumentError(f"from_dlpack: copy=False, but moving to {device!r} needs a copy")
        return asarray(_from_gpu(x, index, bool(copy)), device=device)
    if copy is False and device not in (None, "cpu"):
        raise ArgumentError(f"from_dlpack: copy=False, but moving to {device!r} needs a copy")
    try:
        array = imported(x) if found is None else found
    except (BufferError, TypeError, AttributeError, RuntimeError) as error:
        raise ExchangeError(f"from_dlpack: {type(x).__name__} cannot be shared: {error}") from None
    dtypes.as_dtype(array.dtype)
    array = array.copy() if copy else array
    return wrap(array if device is None else base.get(device).from_numpy(array))


_native_take: Callable[[Any], Tensor | None] | None = None
_takes, _exports = fast_calls.Heat(), fast_calls.Heat()


def _take_natively(x: Any) -> None:
    """From now on. NumPy's arrays have no native way: theirs are counted with PyTorch's."""
    global _native_take
    if type(x) is np.ndarray:
        _takes.calls = 0
    else:
        _native_take = fast_calls.take(sys.modules["torch"])


def _from_gpu(x: Any, index: int, copy: bool) -> Tensor:
    backend = base.get(f"cuda:{index}")
    try:
        return wrap(backend.from_dlpack(x, copy))
    except (BufferError, TypeError) as error:
        raise ExchangeError(f"from_dlpack: {type(x).__name__} cannot be shared: {error}") from None


def __dlpack__(  # noqa: N807
    self: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Zero-copy export where `copy` is not True; the taker must not write to it.

    Takers older than DLPack 1.0 cannot be told that memory is read-only, and are given a copy of
    such memory.
    """
    if _exports.is_hot():
        _export_natively()
    if self._node is not None:
        raise GradientError("__dlpack__: this tensor requires grad; export detach() instead")
    values = shared(self)
    if type(values) is np.ndarray and (flags := values.flags).writeable and flags.c_contiguous:
        return exported(values, stream, max_version, dl_device, copy)
    backend = base.get(self.device)
    wanted = backend.dlpack_device if dl_device is None else tuple(dl_device)
    if wanted == backend.dlpack_device != CPU:
        return backend.to_dlpack(known_payload(self, "__dlpack__()"), stream, copy)
    values = backend.to_numpy(known_payload(self, "__dlpack__()"))
    old = max_version is None or max_version[0] < 1
    # negative steps: PyTorch aborts the process on these
    if any(step < 0 for step in values.strides) or (old and not values.flags.writeable):
        if copy is False:
            raise BufferError("__dlpack__: copy=False, but this layout cannot be shared as it is")
        values = values.copy()
    return exported(values, stream, max_version, dl_device, copy)


def __dlpack_device__(self: Tensor) -> tuple[int, int]:  # noqa: N807
    if type(self._data) is np.ndarray:
        return CPU
    return base.get(self.device).dlpack_device


_METHODS = (__dlpack__, __dlpack_device__)


def _export_natively() -> None:
    """From now on."""
    made = fast_calls.export(*_METHODS)
    for method, native in zip(_METHODS, made or (), strict=False):
        setattr(Tensor, method.__name__, native)


for _method in _METHODS:
    setattr(Tensor, _method.__name__, _method)

__all__ = ["from_dlpack"]
