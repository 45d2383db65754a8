"""Changing dtype and device, and leaving the library: astype, to, numpy, item, DLPack."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.autograd.transform_scope import check_in_force
from everygrad.backends import base
from everygrad.core import shapes
from everygrad.core.context import tracing
from everygrad.core.tensor import Tensor, Wrapped, shared, wrap
from everygrad.core.torch_names import MEMORY_FORMATS
from everygrad.dispatch import apply, user_line
from everygrad.dtypes import DType
from everygrad.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    GradientError,
    PlacementError,
    TraceError,
)
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Elementwise, Kernel
from everygrad.ops.record.spec import composite, refuse, register, same, sample
from everygrad.ops.record.splits import every_axis

_TOGETHER = 1 << 28  # bytes that leave a device at once


class _Cast(Elementwise):
    """A conversion. Its derivative converts back, a complex gradient to its real part."""

    def out_dtype(self, inputs: Sequence[DType], params: dict[str, Any]) -> DType:
        return params["dtype"]

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        return [astype(g, node.params["source"])]

    def jvp(self, out: Tensor, inputs: Any, tangents: Any, params: dict[str, Any]) -> Tensor | None:
        (t,) = tangents
        return None if t is None or not out.dtype.is_differentiable else astype(t, params["dtype"])


CAST = _Cast(
    "astype",
    lambda x, *, dtype, source: x.cast(dtype),
    (lambda g: g,),
    kinds="any",
    recompute="cheap",
)


def astype(x: Tensor, dtype: Any, copy: bool = True, device: Any = None) -> Tensor:
    """The elements converted to another dtype, and moved to `device` if one is named.

    Python's `float` means float64, as it does to NumPy and PyTorch (`dtypes.as_dtype`).
    Where nothing changes, the result is x itself without `copy`, else another name for its value.
    """
    if copy is not True and copy is not False:
        copy = shapes.as_bool(copy, "astype", "copy")
    if device is not None and device != x.device:
        return to(x, device, dtype)
    wanted = dtypes.as_dtype(dtype)
    source = x.dtype
    if wanted is source:
        return same(x) if copy else x
    if source.is_complex and wanted.kind in ("int", "uint", "bool"):
        raise DtypeError(
            f"astype: {source} to {wanted} drops the imaginary part; take real() first"
        )
    out = apply(CAST, x, dtype=wanted, source=source)
    # integers have no derivative: the graph ends here, as it does at a comparison
    return out if wanted.is_differentiable else wrap(out._data)


register(
    CAST,
    astype,
    methods=("astype",),
    reference=lambda x, dtype: np.asarray(x).astype(dtype),
    samples=lambda: iter(
        (
            sample(s.real(2, 3), "float32"),
            sample(s.real(3), "float16"),
            sample(s.real(3), "complex128"),
            sample(s.integers(3), "float64"),
            sample(s.real(3), "int32"),
            sample(s.real(0), "bool"),
        )
    ),
    refuses=(
        refuse(DtypeError, "'float99' is not a dtype", s.real(2), "float99"),
        refuse(DtypeError, "drops the imaginary part", s.real(2) * 1j, "int32"),
    ),
    coarse=True,
)


class _Transfer(Kernel):
    """A copy to another device; the gradient comes back the other way."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        return [to(g, node.params["source"])]


COPY: Kernel = _Transfer(
    "to",
    lambda x, device, source: x,
    ("x",),
    (lambda g: g,),
    linear=(0,),
    batch=lambda xs, device, source: apply(COPY, xs[0], device=device, source=source),
    result=lambda x, device, source: (x.shape, x.dtype),
    alias=True,
    transfers=True,
    splits=every_axis,
)


def _named(device: Any) -> Any:
    """The backend that `to` is asked for."""
    if not isinstance(device, str):
        raise ArgumentError(f"to: a device is named by a string, got {device!r}")
    return base.get(device)


def to(
    x: Tensor,
    device: Any = None,
    dtype: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    *,
    memory_format: Any = None,
) -> Tensor:
    """The same values on another device, or in another dtype, or both; or as another tensor has
    them. The name of a dtype in place of a device is taken for what it is.

    The last three change nothing: what is moved, or shared, cannot change meanwhile, and no op
    asks for a layout.
    """
    for name, value in (("non_blocking", non_blocking), ("copy", copy)):
        if value is not False:
            shapes.as_bool(value, "to", name)
    if memory_format is not None and str(memory_format) not in MEMORY_FORMATS:
        known = ", ".join(MEMORY_FORMATS)
        raise ArgumentError(f"to: memory_format is one of {known}, got {memory_format!r}")
    if isinstance(dtype, bool):  # to(device, non_blocking)
        dtype = None
    if dtypes.names_dtype(device) and dtype is None:
        device, dtype = None, device
    elif isinstance(device, Tensor):
        device, dtype = device.device, dtype or device.dtype
    if dtype is not None:
        x = astype(x, dtype)
    if device is None or device == x.device:
        return same(x)
    _named(device)
    return apply(COPY, x, device=device, source=x.device)


register(
    COPY,
    to,
    methods=("to",),
    reference=lambda x, device: x,
    samples=lambda: iter((sample(s.real(2, 3), "cpu"),)),
    refuses=(
        refuse(
            DeviceError, "device 'tpu' is not available: known devices are cpu", s.real(2), "tpu"
        ),
        refuse(ArgumentError, "to: a device is named by a string", s.real(2), 3),
    ),
)


def to_device(x: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """The Array API's name for a move to another device; devices here have one stream each."""
    if stream is not None:
        raise ArgumentError(f"to_device: a device has one stream; stream is None, got {stream!r}")
    _named(device)
    return to(x, device)


@composite(reference=lambda x: x, samples=s.unary())
def clone(x: Tensor) -> Tensor:
    """The same value, connected to x. Nothing is copied: values never change."""
    return same(x) if x._node is None else x * 1.0 if x.ndim == 0 else _identity(x)


def _identity(x: Tensor) -> Tensor:
    return apply(IDENTITY, x)


IDENTITY: Kernel = Kernel(
    "identity",
    lambda x: x,
    ("x",),
    (lambda g: g,),
    linear=(0,),
    batch=lambda xs: xs[0],
    result=lambda x: (x.shape, x.dtype),
    alias=True,
    splits=every_axis,
)
register(IDENTITY, _identity, reference=lambda x: x, samples=s.unary(), namespace="internal")


def numpy(x: Tensor) -> Any:
    """The values as a NumPy array that shares memory where it can, and cannot be written to."""
    if x._node is not None:
        raise GradientError("numpy: this tensor requires grad; use detach().numpy()")
    return _values(x, "numpy()")


class Later:
    """A tensor's values on their way to the CPU."""

    def __init__(self, pending: base.Pending) -> None:
        self._pending = pending

    def result(self) -> Any:
        """The values as `numpy()` gives them; waits for what was run before they were asked for,
        and for nothing else."""
        return _read_only(self._pending.result()[0])


def numpy_later(x: Tensor) -> Later:
    """The values as a NumPy array that is on its way: its `result()` waits, this does not.

    >>> import everygrad as eg
    >>> loss = eg.tensor([1.0, 2.0]).sum().numpy_later()
    >>> float(loss.result())  # when other work is under way
    3.0
    """
    if x._node is not None:
        raise GradientError("numpy_later: this tensor requires grad; use detach().numpy_later()")
    return Later(base.get(x.device).read_later([known_payload(x, "numpy_later()")]))


def moved(tensors: Sequence[Tensor], device: str) -> list[Tensor]:
    """The same values on another device, unconnected. Many tensors cost one wait, not many."""
    target = _named(device)
    if tracing.get() is not None or any(isinstance(t._data, Wrapped) for t in tensors):
        return [to(t, device) for t in tensors]  # there are no values yet
    made: list[Tensor] = []
    for group in _together(tensors):
        pending = base.get(group[0].device).read_later([t._data for t in group])
        made += [wrap(target.from_numpy(values)) for values in pending.result()]
    return made


def _together(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one device, as many as may leave it at once."""
    group: list[Tensor] = []
    nbytes = 0
    for t in tensors:
        size = t.size * t.dtype.itemsize
        if group and (nbytes + size > _TOGETHER or group[0].device != t.device):
            yield group
            group, nbytes = [], 0
        group.append(t)
        nbytes += size
    if group:
        yield group


def _values(x: Tensor, what: str) -> Any:
    return _read_only(base.get(x.device).to_numpy(known_payload(x, what)))


def _read_only(values: Any) -> Any:
    view = values.view()
    view.flags.writeable = False
    return view


def known_payload(x: Tensor, what: str) -> Any:
    """The payload, which must be an array: `what` asks for values."""
    payload = shared(x)
    if isinstance(payload, Wrapped):
        if payload.is_shard:
            raise PlacementError(
                f"{what} at {user_line()}: this tensor {payload.shape} is spread over a mesh; take "
                f"distributed.local_value(x), or distributed.full_value(x) on all ranks"
            )
        check_in_force(payload, f"{what} at {user_line()}: ")
        error = TraceError(
            f"{what} at {user_line()}: the values are not known inside jit, vmap and other "
            f"transformations; return the tensor, or use where() in place of a condition"
        )
        if (tracer := tracing.get()) is not None:
            tracer.refused = error  # a function that catches it must not be compiled
        raise error
    return payload


def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: N807
    values = numpy(self)
    if dtype is not None and np.dtype(dtype) != values.dtype:
        if copy is False:
            raise ArgumentError("__array__: copy=False, but another dtype needs a copy")
        return values.astype(dtype)
    return values.copy() if copy else values


def item(x: Tensor) -> Any:
    """The one element as a Python number."""
    if x.size != 1:
        raise ArgumentError(
            f"item: needs exactly one element, this tensor has {x.size} (shape {x.shape}); "
            f"use tolist() for more"
        )
    return _values(x.detach(), "item()").item()


def tolist(x: Tensor) -> Any:
    """The values as nested lists of Python numbers."""
    return _values(x.detach(), "tolist()").tolist()


def _number(convert: Any, what: str) -> Any:
    def method(self: Tensor) -> Any:
        if self.size != 1:
            raise ArgumentError(
                f"{what}: needs exactly one element, this tensor has {self.size} "
                f"(shape {self.shape}); reduce it with any(), all() or sum() first"
            )
        value = _values(self.detach(), what).item()
        if isinstance(value, complex) and convert in (int, float):
            raise DtypeError(f"{what}: this tensor is {self.dtype}; take real() or abs() first")
        return convert(value)

    return method


def _complex(value: Any) -> complex:
    """Of a real NaN both parts are NaN, as the Array API has it."""
    unknown = isinstance(value, float) and value != value
    return complex(value, value) if unknown else complex(value)


def __index__(self: Tensor) -> int:  # noqa: N807
    if not self.dtype.is_integer or self.ndim:
        raise DtypeError(
            f"__index__: needs a 0-d integer tensor, got {self.dtype}{list(self.shape)}"
        )
    return int(item(self))


VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")  # of the Array API; the last one in full


def __array_namespace__(self: Tensor, /, *, api_version: str | None = None) -> Any:  # noqa: N807
    """The package itself: it is the Array API's namespace for tensors."""
    if api_version is not None and api_version not in VERSIONS:
        known = ", ".join(VERSIONS)
        raise ArgumentError(
            f"__array_namespace__: api_version {api_version!r} is not among {known}"
        )
    return sys.modules[__name__.partition(".")[0]]


for _method in (
    __array_namespace__,
    to_device,
    numpy,
    numpy_later,
    item,
    tolist,
    __array__,
    __index__,
):
    setattr(Tensor, _method.__name__, _method)
for _name, _convert in (("bool", bool), ("int", int), ("float", float), ("complex", _complex)):
    setattr(Tensor, f"__{_name}__", _number(_convert, f"{_name}()"))
