"""Nested objects as JSON and named arrays, and back.

Text, whole and finite numbers, booleans, None and lists are themselves in JSON. All else is an
object with one key that says what it is: {"tensor": name}, {"array": name}, {"dict": {...}},
{"items": [[key, value], ...]} where keys are not text, {"tuple": [...]}, {"float": "nan"},
{"complex": [re, im]}, {"bytes": base64}, {"dtype": name}, and {"state": ..., "of": class name} for
what an object's `state_dict()` gave and for the fields of a dataclass.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core.tensor import Tensor, wrap
from everygrad.errors import ArgumentError, FileError
from everygrad.io.safetensors_format import METADATA
from everygrad.ops.python.conversion import known_payload

_DEEPEST = 100
_LONGEST_INTEGER = 2**4096  # far below the digits that Python reads from text
_LARGEST_KEY = 2**60  # whole numbers as keys: those below hash to themselves


class Flattened:
    """A nested object: its tensors and arrays by name, and the rest as JSON."""

    def __init__(self, what: str, obj: Any) -> None:
        self.what = what
        self.entries: dict[str, Tensor | np.ndarray[Any, Any]] = {}
        self._names: dict[Any, str] = {}  # of tensors, by what makes two of them one
        self._path: list[str] = []
        self._open: set[int] = set()  # containers that this one is inside of
        self.tree: Any = self._of(obj)

    def _of(self, obj: Any) -> Any:
        if obj is None or type(obj) in (bool, str):
            return obj
        if isinstance(obj, Tensor):
            return {"tensor": self._tensor(obj)}
        if isinstance(obj, np.ndarray):
            return {"array": self._array(obj)}
        if isinstance(obj, np.generic):
            obj = obj.item()
        if isinstance(obj, bool | int | float | complex | str | bytes | dtypes.DType):
            return self._number_or_text(obj)
        with self._inside(obj):
            return self._container(obj)

    def _container(self, obj: Any) -> Any:
        if callable(getattr(obj, "state_dict", None)) and not isinstance(obj, type):
            return {"state": self._of(obj.state_dict()), "of": type(obj).__name__}
        if isinstance(obj, Mapping):
            return self._mapping(obj)
        if isinstance(obj, list):
            return [self._at(i, v) for i, v in enumerate(obj)]
        if isinstance(obj, tuple):
            names = getattr(obj, "_fields", range(len(obj)))
            return {"tuple": [self._at(n, v) for n, v in zip(names, obj, strict=True)]}
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            fields = {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj)}
            return {"state": self._mapping(fields), "of": type(obj).__name__}
        raise ArgumentError(f"{self.what}: {self._here()} is {_refused(obj)}")

    def _mapping(self, obj: Mapping[Any, Any]) -> Any:
        if all(type(k) is str for k in obj):
            return {"dict": {k: self._at(k, v) for k, v in obj.items()}}
        return {"items": [[self._key(k), self._at(k, v)] for k, v in obj.items()]}

    def _key(self, key: Any) -> Any:
        if not _is_key(key):
            raise ArgumentError(
                f"{self.what}: {self._here()} has the key {key!r}; keys are text, whole numbers "
                f"below 2**60, floats, booleans, None and tuples of them"[:400]
            )
        return self._of(key)

    def _at(self, name: Any, value: Any) -> Any:
        self._path.append(str(name))
        found = self._of(value)
        self._path.pop()
        return found

    @contextmanager
    def _inside(self, obj: Any) -> Iterator[None]:
        if id(obj) in self._open:
            raise ArgumentError(f"{self.what}: {self._here()} holds itself")
        if len(self._open) >= _DEEPEST:
            raise ArgumentError(f"{self.what}: {self._here()} is nested deeper than {_DEEPEST}")
        self._open.add(id(obj))
        yield
        self._open.discard(id(obj))

    def _number_or_text(self, obj: Any) -> Any:
        if isinstance(obj, dtypes.DType):
            return {"dtype": obj.name}
        if isinstance(obj, bytes):
            return {"bytes": base64.b64encode(obj).decode("ascii")}
        if isinstance(obj, str):  # a subclass, such as a StrEnum: its text
            return str.__str__(obj)
        if isinstance(obj, complex):
            return {"complex": [self._number_or_text(v) for v in (obj.real, obj.imag)]}
        if isinstance(obj, float):
            return float(obj) if math.isfinite(obj) else {"float": repr(float(obj))}
        if abs(obj) >= _LONGEST_INTEGER:
            raise ArgumentError(f"{self.what}: {self._here()} has more than 4096 bits")
        return bool(obj) if isinstance(obj, bool) else int(obj)

    def _tensor(self, t: Tensor) -> str:
        payload = known_payload(t, f"{self.what}()")
        if isinstance(payload, np.ndarray):
            return self._named("tensor", payload, wrap(payload))
        # the tensor may be given another value, its payload stays what it is
        return self._kept(("tensor", id(payload)), wrap(payload))

    def _array(self, array: np.ndarray[Any, Any]) -> str:
        if array.dtype.kind in "OSUMm" or array.dtype.names:
            raise ArgumentError(
                f"{self.what}: {self._here()} is an array of {array.dtype}; arrays of numbers and "
                f"booleans can be saved, text as a list"
            )
        return self._named("array", array, array)

    def _named(self, kind: str, array: np.ndarray[Any, Any], value: Any) -> str:
        """Tensors that show the same memory in the same way are one: they stay tied."""
        where = array.__array_interface__["data"][0]
        return self._kept((kind, where, array.shape, array.strides, array.dtype), value)

    def _kept(self, key: Any, value: Any) -> str:
        if key not in self._names:
            own = ".".join(self._path) or "tensor"
            own = name = own.encode("utf-8", "replace").decode("utf-8")
            count = 1
            while name in self.entries or name == METADATA:
                count += 1
                name = f"{own}#{count}"
            self._names[key] = name
            self.entries[name] = value
        return self._names[key]

    def _here(self) -> str:
        return repr(".".join(self._path)) if self._path else "the object"


def _refused(obj: Any) -> str:
    what = f"a {type(obj).__name__}"
    if isinstance(obj, set | frozenset):
        return f"{what}, which has no order; save sorted(...)"
    if isinstance(obj, type) or callable(obj):
        return f"{what} ({obj!r:.80}); code is not saved"
    return (
        f"{what}; what can be saved: tensors, arrays, numbers, text, None, dicts, lists, tuples, "
        f"dataclasses, and objects with a state_dict()"
    )


def _is_key(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(_is_key(k) for k in key)
    if type(key) is int:
        return abs(key) < _LARGEST_KEY
    return key is None or type(key) in (bool, float, str)


class Rebuilt:
    """The nested object that JSON and named arrays describe; `value` holds plain containers."""

    def __init__(
        self, file: str, tree: Any, tensor: Callable[[str], Any], array: Callable[[str], Any]
    ) -> None:
        self._file = file
        self._tensor = tensor
        self._array = array
        try:
            self.value: Any = self._of(tree, 0)
        except RecursionError:  # called from deep inside something else
            raise self._wrong("is nested too deeply") from None

    def _of(self, node: Any, depth: int) -> Any:
        if depth > 2 * _DEEPEST:
            raise self._wrong("is nested too deeply")
        if isinstance(node, list):
            return [self._of(v, depth + 1) for v in node]
        if not isinstance(node, dict):
            return node
        if set(node) == {"state", "of"}:
            return self._of(node["state"], depth + 1)
        if len(node) != 1:
            raise self._wrong(f"has an object with the keys {sorted(node)}")
        ((kind, said),) = node.items()
        return self._tagged(kind, said, depth)

    def _tagged(self, kind: str, said: Any, depth: int) -> Any:
        match kind:
            case "tensor" if isinstance(said, str):
                return self._tensor(said)
            case "array" if isinstance(said, str):
                return self._array(said)
            case "dict" if isinstance(said, dict):
                return {k: self._of(v, depth + 1) for k, v in said.items()}
            case "items" if isinstance(said, list):
                return self._items(said, depth)
            case "tuple" if isinstance(said, list):
                return tuple(self._of(v, depth + 1) for v in said)
            case "float" if said in ("nan", "inf", "-inf"):
                return float(said)
            case "complex" if isinstance(said, list) and len(said) == 2:
                parts = [self._of(v, depth + 1) for v in said]
                if all(type(v) is float for v in parts):
                    return complex(*parts)
            case "bytes" if isinstance(said, str):
                try:
                    return base64.b64decode(said, validate=True)
                except (binascii.Error, ValueError):
                    pass
            case "dtype" if isinstance(said, str) and said in dtypes.BY_NAME:
                return dtypes.BY_NAME[said]
        raise self._wrong(f"has {kind!r}: {said!r}"[:200])

    def _items(self, said: list[Any], depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for pair in said:
            if not isinstance(pair, list) or len(pair) != 2:
                raise self._wrong("has a dict with an item that is no pair")
            key = self._of(pair[0], depth + 1)
            if not _is_key(key) or key in found:
                raise self._wrong(f"has the key {key!r}, twice or not allowed"[:200])
            found[key] = self._of(pair[1], depth + 1)
        return found

    def _wrong(self, how: str) -> FileError:
        return FileError(f"{self._file}: what it says of its object cannot be read: it {how}")
