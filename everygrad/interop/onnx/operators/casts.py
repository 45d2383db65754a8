"""Cast, CastLike, BitCast; dtypes without tensors (float8, int4, text) are NumPy's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import everygrad as eg
from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import DtypeError
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import array_of, dtype_of, is_foreign, np_dtype

_SATURATING = frozenset(
    (
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E4M3FNUZ,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
    )
)


def to_foreign(x: np.ndarray[Any, Any], to: int, saturate: bool, round_mode: str) -> Any:
    """An array in a dtype that no tensor has."""
    dtype = np_dtype(to)
    if to == TensorProto.STRING:
        return _as_text(x)
    with np.errstate(over="ignore", invalid="ignore"):
        if to == TensorProto.FLOAT8E8M0:
            wide = x.astype(np.float32)
            return numpy_helper.to_float8e8m0(wide, saturate, round_mode).astype(dtype)
        if to in _SATURATING and saturate:
            return numpy_helper.saturate_cast(x, dtype)
        return x.astype(dtype)


def _as_text(x: np.ndarray[Any, Any]) -> Any:
    found = np.empty(x.shape, object)
    found.reshape(-1)[:] = [str(v) for v in x.reshape(-1)]
    return found


def _from_text(x: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Any:
    kind = int if dtype.kind in "iu" else float
    try:
        return np.array([kind(v) for v in x.reshape(-1)]).astype(dtype).reshape(x.shape)
    except ValueError as error:
        raise DtypeError(f"Cast: text that is no number: {error}") from None


def cast(x: Any, to: int, saturate: bool = True, round_mode: str = "up") -> Any:
    """A value in another of ONNX's data types."""
    dtype = np_dtype(to)
    ours = dtypes.FROM_NP.get(dtype)
    if ours is not None and isinstance(x, Tensor):
        return x if x.dtype is ours else eg.astype(x, ours)
    known = array_of(x)
    if is_foreign(known) and known.dtype.kind == "O" and dtype.kind != "O":
        return _from_text(known, dtype)
    if ours is None:
        return to_foreign(known, to, saturate, round_mode)
    with np.errstate(over="ignore", invalid="ignore"):
        if is_foreign(known):
            return (
                known.astype(np.float32).astype(dtype)
                if dtype.kind != "f"
                else (known.astype(dtype))
            )
        return known.astype(dtype)


@onnx_op("Cast", raw=True)
def _cast(call: Call, x: Any) -> Any:
    to = call("to")
    if isinstance(to, str):  # opset 1 writes the name
        to = TensorProto.DataType.Value(to)
    return cast(x, to, bool(call("saturate", 1)), call("round_mode", "up"))


@onnx_op("CastLike", raw=True)
def _cast_like(call: Call, x: Any, like: Any) -> Any:
    dtype = dtype_of(like)
    to = TensorProto.STRING if dtype.kind == "O" else helper.np_dtype_to_tensor_dtype(dtype)
    return cast(x, to, bool(call("saturate", 1)), call("round_mode", "up"))


@onnx_op("BitCast", raw=True)
def _bit_cast(call: Call, x: Any) -> Any:
    dtype = np_dtype(call("to"))
    known = np.array(array_of(x), order="C")  # no op of ours reads bits as another dtype
    if "O" in (dtype.kind, known.dtype.kind) or known.dtype.itemsize != dtype.itemsize:
        raise DtypeError(f"BitCast: {known.dtype} and {dtype} are not of one width")
    return known.view(dtype).reshape(known.shape)
