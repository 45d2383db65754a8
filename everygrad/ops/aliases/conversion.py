"""Dtypes, devices and layouts of a tensor in PyTorch's spellings: float(), cuda(), contiguous()."""

from __future__ import annotations

from typing import Any

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.ops.python.conversion import astype, to


def _caster(name: str, dtype: dtypes.DType) -> Any:
    def cast(x: Tensor) -> Tensor:
        return astype(x, dtype)

    cast.__name__ = cast.__qualname__ = name
    cast.__doc__ = f"The elements as {dtype}: `astype(eg.{dtype})`."
    return cast


bfloat16 = _caster("bfloat16", dtypes.bfloat16)
bool = _caster("bool", dtypes.bool_)  # PyTorch's name, as the others
byte = _caster("byte", dtypes.uint8)
cdouble = _caster("cdouble", dtypes.complex128)
cfloat = _caster("cfloat", dtypes.complex64)
char = _caster("char", dtypes.int8)
double = _caster("double", dtypes.float64)
float = _caster("float", dtypes.float32)
half = _caster("half", dtypes.float16)
int = _caster("int", dtypes.int32)
long = _caster("long", dtypes.int64)
short = _caster("short", dtypes.int16)


def type(x: Tensor, dtype: Any = None) -> Any:  # PyTorch's name
    """The elements as another dtype; without one the name of this one."""
    return f"everygrad.{x.dtype}" if dtype is None else astype(x, dtype)


def type_as(x: Tensor, other: Tensor) -> Tensor:
    """The elements in the dtype, and on the device, of another tensor."""
    return to(x, other)


def cpu(x: Tensor) -> Tensor:
    """The same values on the CPU."""
    return to(x, "cpu")


def cuda(x: Tensor, device: Any = None, non_blocking: Any = False) -> Tensor:
    """The same values on an NVIDIA GPU: the first, or the one of that number or name."""
    name = "cuda" if device is None else device
    return to(x, name if isinstance(name, str) else f"cuda:{name}")


def contiguous(x: Tensor, memory_format: Any = None) -> Tensor:
    """x itself: no op asks for a layout, and values never change."""
    return x


def is_contiguous(x: Tensor, memory_format: Any = None) -> Any:
    """True: no op asks for a layout."""
    return True


def pin_memory(x: Tensor, device: Any = None) -> Tensor:
    """x itself: a copy to a device is never waited for."""
    return x


def resolve_conj(x: Tensor) -> Tensor:
    """x itself: a conjugate is computed when it is asked for."""
    return x


def resolve_neg(x: Tensor) -> Tensor:
    """x itself: a negative is computed when it is asked for."""
    return x


def to_dense(x: Tensor) -> Tensor:
    """x itself: every tensor is dense."""
    return x
