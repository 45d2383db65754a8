"""Tensors stored in an ONNX file, or beside it, as NumPy arrays; sizes are checked before."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from onnx import SparseTensorProto, TensorProto, numpy_helper

from everygrad.errors import FileError, MissingFileError
from everygrad.interop.onnx.values import NP_DTYPES, dtype_name

_FIELD_OF: dict[int, str] = {  # where elements lie that are not in raw_data
    TensorProto.FLOAT: "float_data",
    TensorProto.COMPLEX64: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.COMPLEX128: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT64: "uint64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.STRING: "string_data",
}
MOST_DENSE = 1 << 27  # elements of a sparse tensor once it is dense


def bits_of(data_type: int) -> int:
    """How many bits an element takes in a file."""
    name = dtype_name(data_type)
    if name in ("int4", "uint4", "float4e2m1"):
        return 4
    if name in ("int2", "uint2"):
        return 2
    return 8 * NP_DTYPES[data_type].itemsize


def shape_of(tensor: TensorProto, what: str) -> tuple[int, ...]:
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise FileError(f"{what}: tensor {tensor.name!r} has a negative size in {list(shape)}")
    return shape


def read_tensor(tensor: TensorProto, what: str, folder: Path | None) -> np.ndarray[Any, Any]:
    """The values of a tensor; `folder` is where data outside the file may lie."""
    shape = shape_of(tensor, what)
    if tensor.data_type not in NP_DTYPES:
        raise FileError(f"{what}: tensor {tensor.name!r}: {dtype_name(tensor.data_type)}")
    count = math.prod(shape)
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, shape, what, folder)
    if tensor.HasField("segment"):
        raise FileError(f"{what}: tensor {tensor.name!r} is stored in segments, which are refused")
    if tensor.HasField("raw_data"):
        held, needed = len(tensor.raw_data), (count * bits_of(tensor.data_type) + 7) // 8
        if tensor.data_type == TensorProto.STRING:
            raise FileError(f"{what}: tensor {tensor.name!r} has text as raw bytes")
    else:
        field = _FIELD_OF.get(tensor.data_type, "int32_data")
        held, needed = len(getattr(tensor, field)), count
        if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
            needed = 2 * count
        if field == "int32_data" and bits_of(tensor.data_type) < 8:
            per_entry = 8 // bits_of(tensor.data_type)
            needed = -(-count // per_entry)
    if held != needed:
        raise FileError(
            f"{what}: tensor {tensor.name!r} of shape {list(shape)} needs {needed} entries, "
            f"the file has {held}"
        )
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, UnicodeDecodeError) as error:
        raise FileError(f"{what}: tensor {tensor.name!r} cannot be read: {error}") from None
    return _text(array) if tensor.data_type == TensorProto.STRING else array


def _text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    decoded = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in array.flat]
    found = np.empty(array.shape, object)
    found.reshape(-1)[:] = decoded
    return found


def _number(tensor: TensorProto, entries: dict[str, str], key: str, what: str) -> int | None:
    if key not in entries:
        return None
    text = entries[key]
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise FileError(f"{what}: tensor {tensor.name!r}: external {key} is {text!r}, no size")
    return int(text)


def _external(
    tensor: TensorProto, shape: tuple[int, ...], what: str, folder: Path | None
) -> np.ndarray[Any, Any]:
    """A tensor in a file of its own, which must lie in the model's folder."""
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise FileError(
            f"{what}: tensor {tensor.name!r} lies in {location!r} beside the model; load the model "
            "by its path"
        )
    inside = folder.resolve()
    path = (inside / location) if location and "\0" not in location else inside
    named = Path(location)
    if not location or named.is_absolute() or ".." in named.parts or "\\" in location:
        raise FileError(f"{what}: external data {location!r} lies outside the model's folder")
    if not path.resolve().is_relative_to(inside):
        raise FileError(f"{what}: external data {location!r} is a link out of the model's folder")
    if not path.is_file():
        raise MissingFileError(f"{what}: there is no file {location!r} for {tensor.name!r}")
    needed = (math.prod(shape) * bits_of(tensor.data_type) + 7) // 8
    offset = _number(tensor, entries, "offset", what) or 0
    length = _number(tensor, entries, "length", what)
    size = os.stat(path).st_size
    if tensor.data_type == TensorProto.STRING:
        raise FileError(f"{what}: tensor {tensor.name!r}: text cannot lie in external data")
    if length not in (None, needed) or offset + needed > size:
        raise FileError(
            f"{what}: tensor {tensor.name!r} of shape {list(shape)} needs {needed} bytes at "
            f"{offset} of {location!r}, which has {size} (length said: {length})"
        )
    stored = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=shape)
    if bits_of(tensor.data_type) >= 8:
        return np.fromfile(
            path, NP_DTYPES[tensor.data_type].newbyteorder("<"), math.prod(shape), offset=offset
        ).reshape(shape)
    stored.raw_data = np.fromfile(path, np.uint8, needed, offset=offset).tobytes()
    return numpy_helper.to_array(stored)


def read_sparse(sparse: SparseTensorProto, what: str, folder: Path | None) -> Any:
    """A sparse tensor made dense."""
    shape = tuple(sparse.dims)
    if any(s < 0 for s in shape) or math.prod(shape) > MOST_DENSE:
        raise FileError(
            f"{what}: sparse tensor {sparse.values.name!r} of shape {list(shape)}: sizes are 0 or "
            f"more, and dense it has at most {MOST_DENSE} elements"
        )
    values = read_tensor(sparse.values, what, folder)
    indices = read_tensor(sparse.indices, what, folder)
    at: Any
    if indices.ndim == 1 and indices.dtype == np.int64:
        at, most = indices, np.array(math.prod(shape))
    elif indices.ndim == 2 and indices.shape[1] == len(shape) and indices.dtype == np.int64:
        at, most = tuple(indices.T), np.array(shape)
    else:
        at, most = None, np.array(0)
    fits = values.ndim == 1 and at is not None and len(indices) == len(values)
    if not fits or (indices < 0).any() or (indices >= most).any():
        raise FileError(
            f"{what}: sparse tensor {sparse.values.name!r}: indices {indices.shape} do not fit "
            f"values {values.shape} of shape {list(shape)}"
        )
    dense = np.zeros(shape, values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[at] = values
    else:
        dense[at] = values
    return dense
