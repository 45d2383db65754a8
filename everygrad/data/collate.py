"""Collating: a list of items becomes one item of batches.

A batch grows item by item (`Batch.add`), and an item's arrays are copied to their row at once,
while they are still in the cache; in a worker process that row is shared memory already.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core.tensor import Tensor, wrap
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.python.creation import asarray
from everygrad.ops.shape.joining import stack

Allocate = Callable[[tuple[int, ...], Any], Any]
# how arrays of a batch are made: a worker process puts them into shared memory
allocator: ContextVar[Allocate] = ContextVar("everygrad_collate_allocator", default=np.empty)


def default_collate(batch: Sequence[Any]) -> Any:
    """The items of a batch side by side: arrays, tensors and numbers stacked to tensors, strings as
    a list, and dicts, lists, tuples, namedtuples and dataclasses of those.

    Python's floats become float64 and its integers int64, as in PyTorch.

    >>> import everygrad as eg
    >>> eg.data.default_collate([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
    {'x': tensor([1, 2]), 'name': ['a', 'b']}
    """
    if not len(batch):
        raise ArgumentError("default_collate: the batch is empty")
    made = Batch(len(batch))
    for item in batch:
        made.add(item)
    return made.finish()


def default_convert(data: Any) -> Any:
    """NumPy arrays anywhere in an item as tensors, and everything else as it is.

    >>> import everygrad as eg
    >>> import numpy as np
    >>> eg.data.default_convert([np.ones(2), "a"])
    [tensor([1., 1.], dtype=float64), 'a']
    """
    if isinstance(data, np.ndarray | np.generic):
        return data if data.dtype.kind in "SUOmMV" and not _known(data.dtype) else asarray(data)
    if isinstance(data, Tensor | str | bytes):
        return data
    if isinstance(data, Mapping):
        return _like_mapping(data, {k: default_convert(v) for k, v in data.items()})
    if _is_namedtuple(data):
        return type(data)(*(default_convert(v) for v in data))
    if _is_dataclass(data):
        return _like_dataclass(data, {k: default_convert(v) for k, v in _fields(data)})
    if isinstance(data, tuple):
        return [default_convert(v) for v in data]
    if isinstance(data, list):
        return [default_convert(v) for v in data]
    return data


class Batch:
    """A batch of `size` items in the making."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._count = 0
        self._whole: Any = None

    def add(self, item: Any) -> None:
        if self._whole is None:
            self._whole = _part_for(item, self._size, "")
        self._whole.put(self._count, item)
        self._count += 1

    def finish(self) -> Any:
        return self._whole.finish()


# --- one class for each kind of item --------------------------------------------------------------


class _Arrays:
    """Arrays, NumPy's scalars and tensors of the CPU, of one shape."""

    def __init__(self, first: Any, size: int, where: str) -> None:
        self._where = where
        self._shape = first.shape
        self._size, self._dtype = size, first.dtype if not isinstance(first, Tensor) else None
        if isinstance(first, Tensor):
            self._dtype = first.dtype.np
        if not _known(self._dtype):
            raise DtypeError(f"default_collate: item{where} has dtype {self._dtype}; use numbers")
        self._out = allocator.get()((size, *self._shape), self._dtype)

    def put(self, row: int, item: Any) -> None:
        if isinstance(item, Tensor):
            item = item.detach().numpy()
        elif not isinstance(item, np.ndarray | np.generic):
            raise _mixed(self._where, np.ndarray, item)
        if item.shape != self._shape:
            raise ShapeError(
                f"default_collate: item{self._where} has shape {item.shape} at place {row} of the "
                f"batch and {self._shape} at place 0; pad them in a collate_fn of your own"
            )
        if item.dtype != self._dtype:
            self._widen(row, item.dtype)
        self._out[row] = item

    def _widen(self, row: int, dtype: Any) -> None:
        """Stacking promotes: go on in the dtype that holds both."""
        if not _known(dtype):
            raise DtypeError(f"default_collate: item{self._where} has dtype {dtype}; use numbers")
        wider = dtypes.result_type(dtypes.FROM_NP[self._dtype], dtypes.FROM_NP[dtype]).np
        if wider != self._dtype:
            out = allocator.get()(self._out.shape, wider)
            out[:row] = self._out[:row]
            self._out, self._dtype = out, wider

    def finish(self) -> Any:
        return wrap(self._out)


class _OnDevice:
    """Tensors of a GPU: stacked there."""

    def __init__(self, first: Tensor, size: int, where: str) -> None:
        self._where = where
        self._items: list[Tensor] = []

    def put(self, row: int, item: Any) -> None:
        if not isinstance(item, Tensor):
            raise _mixed(self._where, Tensor, item)
        self._items.append(item.detach())

    def finish(self) -> Any:
        return stack(self._items)


class _Numbers:
    """Python's numbers."""

    def __init__(self, first: Any, size: int, where: str) -> None:
        self._where = where
        self._items: list[Any] = []

    def put(self, row: int, item: Any) -> None:
        if not isinstance(item, bool | int | float | complex | np.generic):
            raise _mixed(self._where, type(self._items[0]), item)
        self._items.append(item)

    def finish(self) -> Any:
        kind = np.result_type(*{_NUMBERS.get(type(v), np.float64) for v in self._items})
        try:
            values = np.array(self._items, kind)
        except OverflowError:
            raise ArgumentError(
                f"default_collate: item{self._where} has an integer that int64 does not hold"
            ) from None
        out = allocator.get()(values.shape, kind)
        out[...] = values
        return wrap(out)


_NUMBERS: dict[type, Any] = {
    bool: np.bool_,
    int: np.int64,
    float: np.float64,
    complex: np.complex128,
}


class _Strings:
    """Strings and bytes, which stay a list."""

    def __init__(self, first: Any, size: int, where: str) -> None:
        self._items: list[Any] = []

    def put(self, row: int, item: Any) -> None:
        self._items.append(item)

    def finish(self) -> Any:
        return self._items


class _Fields:
    """Dicts, sequences, namedtuples and dataclasses: a part for each of their values."""

    def __init__(self, first: Any, size: int, where: str) -> None:
        self._first, self._where = first, where
        self._read, self._make = _container(first)
        self._parts = {k: _part_for(v, size, f"{where}[{k!r}]") for k, v in self._read(first)}

    def put(self, row: int, item: Any) -> None:
        if not isinstance(item, type(self._first)) and not _alike(self._first, item):
            raise _mixed(self._where, type(self._first), item)
        values = dict(self._read(item))
        if len(values) != len(self._parts) and not isinstance(item, Mapping):
            raise ShapeError(
                f"default_collate: item{self._where} has {len(values)} values at place {row} of "
                f"the batch and {len(self._parts)} at place 0"
            )
        for key, part in self._parts.items():
            if key not in values:
                raise ArgumentError(
                    f"default_collate: item{self._where} has no {key!r} at place {row} of the batch"
                )
            part.put(row, values[key])

    def finish(self) -> Any:
        made = {k: p.finish() for k, p in self._parts.items()}
        if isinstance(self._first, list | tuple):  # strings of sequences are tuples, as in PyTorch
            strings = [k for k, p in self._parts.items() if isinstance(p, _Strings)]
            made.update((k, tuple(made[k])) for k in strings)
        return self._make(self._first, made)


def _alike(first: Any, item: Any) -> bool:
    return any(
        isinstance(first, kind) and isinstance(item, kind) for kind in (list, tuple, Mapping)
    )


def _container(first: Any) -> tuple[Any, Any]:
    """How the values of such a container are read, and how one is made of others."""
    if isinstance(first, Mapping):
        return (lambda x: x.items()), _like_mapping
    if _is_dataclass(first):
        return _fields, _like_dataclass
    if _is_namedtuple(first):
        return enumerate, lambda like, made: type(like)(*made.values())
    return enumerate, lambda like, made: [*made.values()]  # of tuples lists, as PyTorch has it


def _part_for(first: Any, size: int, where: str) -> Any:
    if isinstance(first, Tensor) and first.device != "cpu":
        return _OnDevice(first, size, where)
    for kinds, part in _PARTS:
        if isinstance(first, kinds):
            return part(first, size, where)
    if _is_dataclass(first):
        return _Fields(first, size, where)
    raise DtypeError(
        f"default_collate: item{where} is {type(first).__name__}; it takes tensors, arrays, "
        f"numbers, strings, dicts, lists, tuples and dataclasses; write a collate_fn for others"
    )


_PARTS: tuple[tuple[Any, Any], ...] = (
    (Tensor | np.ndarray | np.generic, _Arrays),
    (bool | int | float | complex, _Numbers),
    (str | bytes, _Strings),
    (Mapping | list | tuple, _Fields),
)


# --- containers -----------------------------------------------------------------------------------


def _is_namedtuple(data: Any) -> bool:
    return isinstance(data, tuple) and hasattr(data, "_fields")


def _is_dataclass(data: Any) -> bool:
    return dataclasses.is_dataclass(data) and not isinstance(data, type)


def _fields(data: Any) -> list[tuple[str, Any]]:
    return [(f.name, getattr(data, f.name)) for f in dataclasses.fields(data)]


def _like_dataclass(like: Any, values: Mapping[str, Any]) -> Any:
    out = copy.copy(like)
    for name, value in values.items():
        object.__setattr__(out, name, value)  # frozen ones too
    return out


def _like_mapping(like: Any, values: dict[Any, Any]) -> Any:
    """A mapping of the same kind: a dict, or a copy with other values."""
    if type(like) is dict:
        return values
    if isinstance(like, MutableMapping):
        out = copy.copy(like)
        out.update(values)
        return out
    return type(like)(values)


def _known(dtype: Any) -> bool:
    return dtype in dtypes.FROM_NP


def _mixed(where: str, kind: type, item: Any) -> DtypeError:
    return DtypeError(
        f"default_collate: item{where} is {kind.__name__} in one place of the batch and "
        f"{type(item).__name__} in another"
    )


def rebuilt(data: Any, change: Callable[[Any], Any]) -> Any:
    """The same containers with every leaf changed."""
    if isinstance(data, Mapping):
        return _like_mapping(data, {k: rebuilt(v, change) for k, v in data.items()})
    if _is_namedtuple(data):
        return type(data)(*(rebuilt(v, change) for v in data))
    if isinstance(data, list | tuple):
        return type(data)(rebuilt(v, change) for v in data)
    if _is_dataclass(data):
        return _like_dataclass(data, {k: rebuilt(v, change) for k, v in _fields(data)})
    return change(data)
