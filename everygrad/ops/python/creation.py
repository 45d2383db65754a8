"""Tensors from data and from nothing: the Array API's creation functions."""

from __future__ import annotations

import cmath
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.autograd.modes import in_inference_mode
from everygrad.autograd.saved_tensor_hooks import recorder
from everygrad.backends import base
from everygrad.core import shapes
from everygrad.core.tensor import Tensor, Wrapped, shared, wrap
from everygrad.dispatch import refuse_masked
from everygrad.dtypes import DType
from everygrad.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    GradientError,
    ShapeError,
)
from everygrad.ops.record.keywords import with_names
from everygrad.ops.record.spec import REGISTRY

_MAX_BYTES = 1 << 46  # what no machine has: a wrong size, better named here than by the allocator


def _finish(payload: Any, requires_grad: bool) -> Tensor:
    out = wrap(payload)
    if requires_grad:
        if in_inference_mode():
            raise GradientError("requires_grad=True inside inference_mode(): leave it first")
        out.requires_grad_()
    return out


def _buffer(data: Any) -> Any:
    """The array on the memory of an object that has Python's buffer protocol, and so a dtype of its
    own; any other as it is."""
    if isinstance(data, np.ndarray | np.generic | int | float | complex | list | tuple | bytes):
        return data
    try:
        return np.asarray(memoryview(data))
    except (TypeError, ValueError):  # no buffer, or of a format that NumPy does not know
        return data


def _as_array(data: Any, dtype: DType | None) -> Any:
    """A NumPy array from nested lists, numbers and arrays, in a dtype everygrad has."""
    refuse_masked(data)
    data = _buffer(data)
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"tensor: the nested lists are ragged: {error}") from None
    if array.dtype == np.float64 and not hasattr(data, "dtype"):
        array = _large_integers(data, array)
    if array.dtype == object or array.dtype.kind in "USmM":
        raise DtypeError(f"tensor: cannot make a tensor of {type(data).__name__} {data!r}"[:200])
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if dtype is None:
        python_numbers = not hasattr(data, "dtype") and array.dtype in (np.float64, np.complex128)
        if python_numbers:  # Python's floats carry no dtype of their own: the default one
            simple = array.dtype == np.float64
            dtype = dtypes.DEFAULT_FLOAT if simple else dtypes.DEFAULT_COMPLEX
        else:
            dtype = dtypes.as_dtype(array.dtype)
    if array.dtype.kind == "c" and not dtype.is_complex:
        raise DtypeError(f"tensor: complex data does not fit {dtype}; take its real part first")
    if array.size and array.dtype.kind in "iu" and dtype.is_integer:
        limits = np.iinfo(dtype.np)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            bad = low if low < limits.min else high
            raise ArgumentError(f"tensor: {bad} does not fit into {dtype}; choose a wider dtype")
    if dtype is dtypes.bfloat16 and array.dtype != dtype.np:
        return np.array(dtypes.rounded(array, dtype))
    return array.astype(dtype.np)  # always a copy: a tensor's value is nobody else's


def _large_integers(data: Any, array: Any) -> Any:
    """`array`; or its data in uint64, where NumPy took integers around 2**63 for floats."""
    if not array.size or not array.max() >= 2.0**63:
        return array
    exact = np.asarray(data, dtype=object)
    if not all(isinstance(v, int) for v in exact.flat):
        return array
    if exact.min() < 0 or exact.max() >= 2**64:
        ends = f"{exact.min()} and {exact.max()}"
        raise ArgumentError(f"tensor: no integer dtype holds {ends}; give one of them as a float")
    return exact.astype(np.uint64)


def tensor(
    data: Any,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with a copy of `data`: numbers, nested lists, arrays or another tensor.

    Lists may hold tensors: these are stacked, on their device, in the dtype that they have together
    (numbers beside them never widen it), and gradients flow to them. A tensor alone is copied.

    >>> import everygrad as eg
    >>> eg.tensor([[1.0, 2.0], [3.0, 4.0]])
    tensor([[1., 2.],
            [3., 4.]])
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(data, Tensor):
        out = data.detach().to(device or "cpu").astype(wanted or data.dtype)
        return _finish(out._data, requires_grad)
    if isinstance(data, list | tuple) and holds_tensors(data):
        out = _stacked(data, wanted, device)
        return out.requires_grad_() if requires_grad else out
    payload = base.get(device or "cpu").from_numpy(_as_array(data, wanted))
    return _finish(payload, requires_grad)


def holds_tensors(data: Any) -> bool:
    """Whether there is a tensor in nested lists."""
    return any(
        isinstance(v, Tensor) or (isinstance(v, list | tuple) and holds_tensors(v)) for v in data
    )


def _stacked(data: Any, dtype: DType | None, device: str | None) -> Tensor:
    """Nested lists of tensors, arrays and numbers as one tensor, connected to those in it."""
    parts: list[Any] = []
    _gather(data, parts)
    tensors = [v for v in parts if isinstance(v, Tensor)]
    common = dtypes.result_type(*parts) if dtype is None else dtype
    places = sorted({t.device for t in tensors})
    if len(places) > 1:
        raise DeviceError(
            f"tensor: the tensors are on different devices ({', '.join(places)}); "
            f"move them with to()"
        )
    out = _nested(data, common, places[0])
    return out if device is None else out.to(device)


def _gather(data: Any, parts: list[Any]) -> None:
    """The tensors, arrays and numbers in nested lists."""
    for v in data:
        if isinstance(v, list | tuple):
            _gather(v, parts)
        elif isinstance(v, Tensor | np.ndarray | np.generic | bool | int | float | complex):
            parts.append(v)
        else:
            raise DtypeError(f"tensor: cannot make a tensor of {type(v).__name__} {v!r}"[:200])


def _nested(data: Any, dtype: DType, device: str) -> Tensor:
    if isinstance(data, Tensor):
        return data.astype(dtype)
    if not isinstance(data, list | tuple) or not holds_tensors(data):
        return wrap(base.get(device).from_numpy(_as_array(data, dtype)))
    made = [_nested(v, dtype, device) for v in data]
    if any(t.shape != made[0].shape for t in made):
        raise ShapeError(f"tensor: the nested lists are ragged: {[t.shape for t in made]}")
    out: Tensor = REGISTRY["stack"].function(made)
    return out


def asarray(
    obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """The Array API's name: a tensor of `obj`, sharing its memory where `copy` is not True.

    A tensor that needs no change is returned itself, unless `copy` is True. A NumPy array, or other
    buffer, that is shared must not be written to afterwards: tensors never change.
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(obj, Tensor):
        out = obj if device in (None, obj.device) else obj.to(device)
        out = out if wanted in (None, obj.dtype) else out.astype(wanted)
        if copy is False and out is not obj:
            raise ArgumentError("asarray: copy=False, but the dtype or device asked for needs one")
        if not copy:
            return out
        # a copy of a leaf is the result of an op: its elements may be assigned to
        return wrap(shared(out)) if out._node is None else out.clone()
    refuse_masked(obj)
    obj = _buffer(obj)
    shares = isinstance(obj, np.ndarray) and wanted in (None, dtypes.FROM_NP.get(obj.dtype))
    if shares and obj.dtype in dtypes.FROM_NP and not copy and device in (None, "cpu"):
        return wrap(np.asarray(obj))  # of a subclass the plain array
    if copy is False:
        raise ArgumentError(f"asarray: copy=False, but {type(obj).__name__} cannot be shared")
    return tensor(obj, dtype=wanted, device=device)


def _checked(shape: Any, op: str, dtype: DType) -> shapes.Shape:
    sizes = shapes.as_shape(shape, op)
    if any(n < 0 for n in sizes):
        raise ShapeError(f"{op}: sizes must not be negative, got {sizes}")
    if shapes.size_of(sizes) * dtype.itemsize > _MAX_BYTES:
        raise ShapeError(f"{op}: {sizes} of {dtype} is more memory than any device has")
    return sizes


_WITHOUT_MEANING = ("layout", "memory_format", "pin_memory")  # in PyTorch: no op asks for a layout


def with_sizes(
    function: Callable[..., Tensor],
    shape: Any,
    more: tuple[Any, ...],
    names: Mapping[str, Any],
    options: dict[str, Any],
) -> Tensor:
    """A call with several sizes, `zeros(2, 3)`, with PyTorch's `size=`, or with the options by
    position in their order, as one with a shape and named options."""
    rest = {k: v for k, v in names.items() if k not in _WITHOUT_MEANING}
    shape = rest.pop("size", shape)
    for name in rest:
        raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
    if more and isinstance(more[0], int | np.integer) and not isinstance(more[0], bool):
        return function((shape, *more), **options)
    if len(more) > len(options):
        raise TypeError(f"{function.__name__}() takes at most {1 + len(options)} arguments")
    return function(shape, **{**options, **dict(zip(options, more, strict=False))})


def full(
    shape: Any,
    fill_value: Any,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Every element `fill_value`: a number, or a tensor of one."""
    if isinstance(fill_value, Tensor) and not fill_value.ndim:
        out = _filled(fill_value, shapes.as_shape(shape, "full"), dtype, device)
        return out.requires_grad_() if requires_grad else out
    value = fill_value.item() if isinstance(fill_value, np.generic) else fill_value
    if not isinstance(value, bool | int | float | complex):
        raise DtypeError(
            f"full: fill_value must be a number, got {type(value).__name__} {value!r}"[:300]
        )
    wanted = dtypes.of_scalar(value) if dtype is None else dtypes.as_dtype(dtype)
    _check_fits(value, wanted)
    sizes = _checked(shape, "full", wanted)
    payload = base.get(device or "cpu").full(sizes, value, wanted)
    if (around := recorder.get()) is not None:
        around.filled(payload, device or "cpu", sizes, value, wanted)
    return _finish(payload, requires_grad)


def _check_fits(value: Any, dtype: DType) -> None:
    """Refuse a number that casting would turn into another one; fractions are cut off."""
    if isinstance(value, complex) and not dtype.is_complex:
        raise DtypeError(f"full: {value} does not fit into {dtype}; choose a complex dtype")
    if isinstance(value, float) and dtype.is_integer:
        limits = np.iinfo(dtype.np)
        if not limits.min <= value <= limits.max:
            raise ArgumentError(f"full: {value} does not fit into {dtype}; choose another dtype")


def _filled(value: Tensor, shape: shapes.Shape, dtype: Any, device: str | None) -> Tensor:
    """A 0-d tensor repeated, and connected to it: its value need not be known."""
    return value.astype(dtype or value.dtype, device=device or value.device).broadcast_to(shape)


def zeros(
    shape: Any = (),
    *more: Any,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
    **names: Any,
) -> Tensor:
    """Every element 0."""
    if more or names:
        options = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
        return with_sizes(zeros, shape, more, names, options)
    return full(shape, 0, dtype or dtypes.DEFAULT_FLOAT, device, requires_grad)


def ones(
    shape: Any = (),
    *more: Any,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
    **names: Any,
) -> Tensor:
    """Every element 1."""
    if more or names:
        options = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
        return with_sizes(ones, shape, more, names, options)
    return full(shape, 1, dtype or dtypes.DEFAULT_FLOAT, device, requires_grad)


def empty(
    shape: Any = (),
    *more: Any,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
    **names: Any,
) -> Tensor:
    """A tensor whose values mean nothing. They are zeros: unwritten memory shows what was there."""
    if more or names:
        options = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
        return with_sizes(empty, shape, more, names, options)
    return zeros(shape, dtype=dtype, device=device, requires_grad=requires_grad)


def full_like(
    x: Tensor,
    /,
    fill_value: Any,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`full` with the shape, dtype and device of x, and its placement on a mesh."""
    payload, dtype = x._data, dtype or x.dtype
    if isinstance(payload, Wrapped) and payload.layout is not None:
        part = full(payload.inner.shape, fill_value, dtype, device or x.device)
        made = wrap(payload.layout.of_gradient().around(part))
        return made.requires_grad_() if requires_grad else made
    return full(x.shape, fill_value, dtype, device or x.device, requires_grad)


def zeros_like(
    x: Tensor, /, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """`zeros` with the shape, dtype and device of x."""
    return full_like(x, 0, dtype, device, requires_grad)


def ones_like(
    x: Tensor, /, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """`ones` with the shape, dtype and device of x."""
    return full_like(x, 1, dtype, device, requires_grad)


def new_ones(
    x: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Ones of a shape, in the dtype and on the device of x; without a shape like x itself, which is
    what the engine asks for: it knows no ops."""
    if size or dtype or device or requires_grad:
        shape = x.shape if not size else size[0] if len(size) == 1 else size
        return ones(shape, dtype or x.dtype, device or x.device, requires_grad)
    payload = x._data
    if type(payload) is np.ndarray and not payload.shape:  # the commonest: a loss
        return wrap(np.array(1, payload.dtype))
    return wrap(base.get(x.device).full(x.shape, 1, x.dtype))


setattr(Tensor, "new_ones", new_ones)  # noqa: B010  # mypy reads the stub, which has it


def empty_like(
    x: Tensor, /, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """`empty` with the shape, dtype and device of x."""
    return zeros_like(x, dtype, device, requires_grad)


def arange(
    start: float = 0,
    stop: float | None = None,
    step: float = 1,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
    **names: Any,
) -> Tensor:
    """start, start + step, ... up to but without stop; of 0-d tensors the values are read.

    >>> import everygrad as eg
    >>> eg.arange(2, 8, 3)
    tensor([2, 5])
    """
    if names:
        options = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
        return with_names(arange, names, start, stop, step, **options)
    if stop is None:
        start, stop = 0, start
    start, stop, step = (_read(v, "arange") for v in (start, stop, step))
    if step == 0:
        raise ArgumentError("arange: step must not be 0")
    whole = all(isinstance(v, int) for v in (start, stop, step))
    wanted = dtypes.as_dtype(dtype or (dtypes.DEFAULT_INT if whole else dtypes.DEFAULT_FLOAT))
    count = max(0, -((start - stop) // step) if whole else int(np.ceil((stop - start) / step)))
    _checked((count,), "arange", wanted)
    payload = base.get(device or "cpu").arange(start, int(count), step, wanted)
    return _finish(payload, requires_grad)


def _read(value: Any, op: str) -> Any:
    """A number, or the one that a 0-d tensor holds."""
    if isinstance(value, Tensor) and value._node is not None:
        raise GradientError(
            f"{op}: how many elements there are has no derivative, but an end requires grad; "
            f"use detach()"
        )
    return value.item() if isinstance(value, Tensor | np.generic) else value


def linspace(
    start: complex | Tensor,
    stop: complex | Tensor,
    num: int = 100,
    dtype: Any = None,
    device: str | None = None,
    endpoint: bool = True,
    requires_grad: bool = False,
    **names: Any,
) -> Tensor:
    """`num` evenly spaced numbers from start to stop; without `endpoint`, stop is not reached.

    Ends that are 0-d tensors keep their derivatives, and their values need not be known.
    """
    if names:
        options = {"endpoint": endpoint, "requires_grad": requires_grad}
        return with_names(linspace, names, start, stop, num, dtype, device, **options)
    if num < 0:
        raise ArgumentError(f"linspace: num must not be negative, got {num}")
    ends = (start, stop)
    is_complex = any(_is_complex(end) for end in ends)
    default = dtypes.DEFAULT_COMPLEX if is_complex else dtypes.DEFAULT_FLOAT
    wanted = dtypes.as_dtype(dtype or default)
    if is_complex and not wanted.is_complex:
        raise DtypeError(f"linspace: complex ends do not fit {wanted}; take their real parts first")
    if isinstance(start, Tensor) or isinstance(stop, Tensor):
        out = _between(ends, num, wanted, device, endpoint)
        return out.requires_grad_() if requires_grad else out
    # the distance between two finite ends need not be finite: half of it is
    share = 1 if cmath.isfinite(stop - start) else 2
    values = np.linspace(start / share, stop / share, num, endpoint=endpoint) * share
    array = _whole(values, ends, wanted, endpoint) if wanted.is_integer else values
    payload = base.get(device or "cpu").from_numpy(
        dtypes.rounded(array, wanted) if wanted.is_float else array.astype(wanted.np, copy=False)
    )
    return _finish(payload, requires_grad)


def _whole(values: Any, ends: tuple[Any, Any], dtype: DType, endpoint: bool) -> Any:
    """Values cut to integers, except for the ends: float64 does not hold every int64."""
    limits = np.iinfo(dtype.np)
    for end in ends:
        if not limits.min <= end <= limits.max:
            raise ArgumentError(f"linspace: {end} does not fit into {dtype}; choose another dtype")
    with np.errstate(invalid="ignore"):  # the last may be rounded up to 2**63, and is set below
        array = values.astype(dtype.np)
    if len(array):
        array[0] = ends[0]
    if endpoint and len(array) > 1:
        array[-1] = ends[1]
    return array


def _is_complex(end: Any) -> bool:
    return end.dtype.is_complex if isinstance(end, Tensor) else isinstance(end, complex)


def _between(
    ends: tuple[Any, Any], num: int, dtype: DType, device: str | None, endpoint: bool
) -> Tensor:
    """Means of two ends, with weights that go from one to the other: both are met exactly."""
    tensors = [end for end in ends if isinstance(end, Tensor)]
    if any(t.ndim for t in tensors):
        got = [t.shape for t in tensors]
        raise ShapeError(f"linspace: ends are numbers or 0-d tensors, got {got}")
    place = device or tensors[0].device
    inner = dtype if dtype.is_differentiable else dtypes.DEFAULT_FLOAT
    first, last = (
        end.astype(inner, device=place) if isinstance(end, Tensor) else end for end in ends
    )
    weights = linspace(0, 1, num, inner, place, endpoint)
    return (first * (1 - weights) + last * weights).astype(dtype)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    k: int = 0,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Ones on the k-th diagonal, zeros elsewhere."""
    wanted = dtypes.as_dtype(dtype or dtypes.DEFAULT_FLOAT)
    shape = _checked((n_rows, n_rows if n_cols is None else n_cols), "eye", wanted)
    values = np.eye(shape[0], shape[1], k=k, dtype=wanted.np)
    return _finish(base.get(device or "cpu").from_numpy(values), requires_grad)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinate tensors from coordinate vectors, or from a list of them."""
    if len(arrays) == 1 and isinstance(arrays[0], list | tuple):
        arrays = tuple(arrays[0])
    for a in arrays:
        if not isinstance(a, Tensor):
            raise DtypeError(f"meshgrid: takes tensors, got {type(a).__name__} {a!r}"[:200])
    arrays = tuple(a if a.ndim else a.reshape((1,)) for a in arrays)
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f'meshgrid: indexing must be "xy" or "ij", got {indexing!r}')
    if any(a.ndim != 1 for a in arrays):
        raise ShapeError(f"meshgrid: takes vectors, got {[a.shape for a in arrays]}")
    count = len(arrays)
    order: Sequence[int] = list(range(count))
    if indexing == "xy" and count > 1:
        order = [1, 0, *range(2, count)]
    shape = tuple(arrays[i].shape[0] for i in order)
    return [
        a.reshape(tuple(-1 if order[j] == i else 1 for j in range(count))).expand(shape)
        for i, a in enumerate(arrays)
    ]


__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tensor",
    "zeros",
    "zeros_like",
]
