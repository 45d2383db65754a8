"""What flows through an ONNX graph here: tensors, NumPy arrays, lists (sequences), None.

A NumPy array is a value that is known while only shapes are: a shape, a constant, text, or numbers
of a dtype that tensors have none of (float8, int4). It becomes a tensor where a handler computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextvars import Context
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError
from everygrad.ops.python.creation import asarray

# What an operator may be asked to make from sizes alone: beyond this it is a fault, not a model.
MOST_ELEMENTS = 1 << 31

NP_DTYPES: dict[int, np.dtype[Any]] = {
    number: np.dtype(helper.tensor_dtype_to_np_dtype(number))
    for number in TensorProto.DataType.values()
    if number not in (TensorProto.UNDEFINED, TensorProto.STRING)
}
NP_DTYPES[TensorProto.STRING] = np.dtype(object)


def np_dtype(number: int) -> np.dtype[Any]:
    """NumPy's dtype for a TensorProto's data type."""
    if number not in NP_DTYPES:
        raise DtypeError(f"ONNX data type {number} is unknown to the installed onnx package")
    return NP_DTYPES[number]


def dtype_name(number: int) -> str:
    """A data type's name as ONNX writes it."""
    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number).lower() if known else f"data type {number}"


def is_foreign(value: Any) -> bool:
    """Whether a value is an array that no tensor can hold: text, float8, int4."""
    return isinstance(value, np.ndarray) and value.dtype not in dtypes.FROM_NP


def tensor_of(value: Any, device: str) -> Any:
    """A value as handlers compute with it: an array as a tensor on `device`."""
    if isinstance(value, np.ndarray):
        if value.dtype not in dtypes.FROM_NP:
            kind = "text" if value.dtype.kind == "O" else str(value.dtype)
            raise DtypeError(f"no tensor holds {kind}; Cast or DequantizeLinear it first")
        return asarray(value, device=device)
    return value


def array_of(value: Any) -> Any:
    """A value as a NumPy array; refused by the tracer where it is not known."""
    if isinstance(value, Tensor):
        return value.detach().numpy()
    return value


def outside(function: Any, *args: Any) -> Any:
    """Call a function on known values where no tracer, profiler or gradient sees its ops."""
    return Context().run(function, *args)


def dtype_of(value: Any) -> np.dtype[Any]:
    return value.dtype.np if isinstance(value, Tensor) else np.asarray(value).dtype


def sizes(value: Any) -> tuple[int, ...]:
    """A vector of known numbers as Python's."""
    return tuple(int(v) for v in np.asarray(value).reshape(-1))


def checked_size(what: str, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that an operator is about to make, refused before memory is taken for it."""
    found = tuple(int(s) for s in shape)
    if any(s < 0 for s in found) or math.prod(found) > MOST_ELEMENTS:
        raise ArgumentError(
            f"{what}: the result would be of shape {found}; sizes are 0 or more, and a tensor has "
            f"at most {MOST_ELEMENTS} elements"
        )
    return found
