"""The few opcodes of pickle that PyTorch's files of tensors need, read as data.

This executes nothing and imports nothing: an opcode or a global that is not in the tables here is
refused by its name. What comes out is dicts, lists, tuples, text, numbers, booleans, None, dtypes
and `TensorRef`s.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from reprlib import repr as shortened  # what a pickle made may be long, deep or both
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from everygrad import dtypes
from everygrad.errors import FileError

LONGEST = 1 << 25  # bytes of a pickle; one of ten thousand tensors has two millions
_LONGEST_INTEGER = 512  # bytes
_LARGEST_KEY = 2**60  # whole numbers as keys: those below hash to themselves
_LONGEST_NAME = 256

STORAGES: dict[str, np.dtype[Any]] = {
    "BoolStorage": np.dtype(np.bool_),
    "ByteStorage": np.dtype(np.uint8),
    "CharStorage": np.dtype(np.int8),
    "ShortStorage": np.dtype(np.int16),
    "IntStorage": np.dtype(np.int32),
    "LongStorage": np.dtype(np.int64),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "FloatStorage": np.dtype(np.float32),
    "DoubleStorage": np.dtype(np.float64),
    "ComplexFloatStorage": np.dtype(np.complex64),
    "ComplexDoubleStorage": np.dtype(np.complex128),
}
DTYPES: dict[str, np.dtype[Any]] = {
    **{name: d.np for name, d in dtypes.BY_NAME.items()},
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
}


class StorageRef(NamedTuple):
    """Memory that a pickle names and the file holds elsewhere."""

    key: str
    dtype: np.dtype[Any] | None  # None: bytes, whose meaning the tensor says
    length: int  # in items; in bytes where there is no dtype

    @property
    def nbytes(self) -> int:
        return self.length * (1 if self.dtype is None else self.dtype.itemsize)


class TensorRef(NamedTuple):
    """A tensor: a strided view of a storage."""

    storage: StorageRef
    dtype: np.dtype[Any]
    offset: int  # in items, as strides are
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Global(NamedTuple):
    """A name that the pickle asks for, one that is allowed."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class _Mark:
    """Where the items of a list, a tuple or a dict begin on the stack."""


_MARK = _Mark()
_PLAIN = (str, int, float, bool, type(None))
_REFUSED = {  # opcodes that call or make what they like, by their names in Python's documentation
    b"i"[0]: "INST",
    b"o"[0]: "OBJ",
    b"\x81"[0]: "NEWOBJ",
    b"\x92"[0]: "NEWOBJ_EX",
    b"\x82"[0]: "EXT1",
    b"\x83"[0]: "EXT2",
    b"\x84"[0]: "EXT4",
    b"P"[0]: "PERSID",
    b"\x97"[0]: "NEXT_BUFFER",
    b"\x98"[0]: "READONLY_BUFFER",
    b"\x8f"[0]: "EMPTY_SET",
    b"\x90"[0]: "ADDITEMS",
    b"\x91"[0]: "FROZENSET",
}


class PickleReader:
    """Reads pickles that stand one behind the other; `at` is where the next one begins."""

    def __init__(self, data: bytes | bytearray, file: str) -> None:
        self._data = data
        self._file = file
        self.at = 0

    def load(self) -> Any:
        """The next object."""
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        try:
            while (op := self._take(1)[0]) != _STOP:
                step = _STEPS.get(op)
                if step is None:
                    name = _REFUSED.get(op, f"{op:#04x}")
                    raise self.wrong(f"uses the opcode {name}, which is not among those of data")
                step(self)
        except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
            raise self.wrong(f"is damaged ({type(error).__name__} {error})") from None
        if len(self._stack) != 1 or self._stack[0] is _MARK:
            raise self.wrong("does not end with one object")
        return self._stack.pop()

    def wrong(self, how: str) -> FileError:
        return FileError(f"{self._file}: its pickle {how}, at byte {self.at}; nothing was executed")

    # --- taking bytes ----------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self._data):
            raise self.wrong("is cut off")
        taken = bytes(self._data[self.at : end])
        self.at = end
        return taken

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack(code, self._take(struct.calcsize(code)))
        return value

    def _line(self) -> str:
        end = self._data.find(b"\n", self.at, self.at + _LONGEST_NAME)
        if end < 0:
            raise self.wrong("has a name without an end")
        line = self._take(end - self.at)
        self.at += 1
        return line.decode("ascii")

    # --- the stack -------------------------------------------------------------------------------

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise self.wrong("takes a mark for a value")
        return value

    def _to_mark(self) -> list[Any]:
        found = []
        while (value := self._stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    def _top(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise self.wrong(f"adds to a {type(self._stack[-1]).__name__} as if to a {kind}")
        return self._stack[-1]

    def _memoize(self, at: int) -> None:
        if self._stack[-1] is _MARK:
            raise self.wrong("takes a mark for a value")
        self._memo[at] = self._stack[-1]

    # --- opcodes ---------------------------------------------------------------------------------

    def _protocol(self) -> None:
        if (version := self._take(1)[0]) > 5:
            raise self.wrong(f"is of protocol {version}; 5 is the last one known")

    def _frame(self) -> None:
        self._take(8)  # a length, which only those who read ahead need

    def _text(self, code: str) -> None:
        self._push(self._take(self._number(code)).decode("utf-8", "surrogatepass"))

    def _integer(self, code: str) -> None:
        length = self._number(code)
        if not 0 <= length <= _LONGEST_INTEGER:
            raise self.wrong(f"has a whole number of {length} bytes")
        self._push(int.from_bytes(self._take(length), "little", signed=True))

    def _tuple(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self._push(tuple(values[::-1]))

    def _append(self, values: list[Any]) -> None:
        self._top(list).extend(values)

    def _set(self, values: list[Any]) -> None:
        if len(values) % 2:
            raise self.wrong("has a key without a value")
        into = self._top(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            flat = key if type(key) is tuple else (key,)
            if not all(type(k) in _PLAIN for k in flat) or any(
                type(k) is int and abs(k) >= _LARGEST_KEY for k in flat
            ):
                raise self.wrong(f"has a {type(key).__name__} as a key; text and numbers may be")
            into[key] = value

    def _global(self, module: str, name: str) -> None:
        if (module, name) not in _CALLS and _constant(module, name) is None:
            cure = ""
            if module.startswith("torch") or module == "__main__":
                cure = "; in PyTorch, save model.state_dict() rather than the model"
            raise FileError(
                f"{self._file}: its pickle asks for {module}.{name}, which is not data and was "
                f"neither imported nor called{cure}"
            )
        found = _constant(module, name)
        self._push(Global(module, name) if found is None else found)

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            raise self.wrong("has a global without a name")
        self._global(module[:_LONGEST_NAME], name[:_LONGEST_NAME])

    def _reduce(self) -> None:
        args, called = self._pop(), self._pop()
        if type(called) is not Global or type(args) is not tuple:
            raise self.wrong("calls what is no function")
        try:
            self._push(_CALLS[called.module, called.name](*args))
        except (TypeError, ValueError) as error:
            raise self.wrong(f"gives {called} what it does not take ({error})"[:300]) from None

    def _persistent(self) -> None:
        said = self._pop()
        match said:
            case ("storage", np.dtype() as dtype, str(key), str(), int(count), *rest) if (
                0 <= count < 2**62 and type(count) is int and rest in ([], [None])
            ):
                self._push(StorageRef(key, None if dtype == _UNTYPED else dtype, count))
            case ("storage", Global() as kind, *_):
                raise self.wrong(f"has a storage of {kind}")
            case _:
                raise self.wrong(f"has a storage that cannot be read: {shortened(said)}")

    def _build(self) -> None:
        """The attributes of an OrderedDict (a state_dict's `_metadata`) say nothing of tensors."""
        state = self._pop()
        self._top(dict)
        if type(state) is not dict:
            raise self.wrong("gives attributes to what has none")


# --- what may be named ---------------------------------------------------------------------------


def _constant(module: str, name: str) -> Any:
    """What a name stands for that is a value: the dtype of a storage, a dtype."""
    if (module, name) == ("torch.storage", "UntypedStorage"):
        return _UNTYPED
    if module != "torch":
        return None
    return STORAGES.get(name) or (DTypeRef(DTYPES[name]) if name in DTYPES else None)


class DTypeRef(NamedTuple):
    """A dtype as a value, which a storage's is not."""

    np: np.dtype[Any]


_UNTYPED = np.dtype("V1")  # bytes of no meaning


def _ordered_dict(*items: Any) -> dict[Any, Any]:
    if items and not (len(items) == 1 and items[0] in ([], ())):
        raise TypeError("an OrderedDict is made empty and filled then")
    return {}


def _strided(
    storage: Any, offset: Any, shape: Any, strides: Any, dtype: np.dtype[Any]
) -> TensorRef:
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, StorageRef) or not all(
        type(n) is int and 0 <= n < 2**62 for n in numbers
    ):
        raise ValueError(
            f"offset {shortened(offset)}, shape {shortened(shape)}, strides {shortened(strides)}"
        )
    if type(shape) is not tuple or len(shape) != len(strides) or len(shape) > 64:
        raise ValueError(f"shape {shortened(shape)} with strides {shortened(strides)}")
    if math.prod(max(n, 1) for n in shape) * dtype.itemsize >= 2**63:
        raise ValueError(f"no array can have the shape {shape}")
    if storage.dtype is not None and storage.dtype != dtype:
        raise ValueError(f"a tensor of {dtype} in a storage of {storage.dtype}")
    count = storage.length if storage.dtype is not None else storage.length // dtype.itemsize
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if 0 in shape:
        last = offset - 1
    if last >= count or offset > count:
        raise ValueError(f"shape {shape} with strides {strides} from {offset} on, of {count} items")
    return TensorRef(storage, dtype, offset, shape, strides)


def _tensor_v2(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    requires_grad: Any,
    hooks: Any,
    metadata: Any = None,
) -> TensorRef:
    if metadata:
        raise ValueError(
            f"{shortened(metadata)}: call resolve_conj() and resolve_neg() before saving"
        )
    if not isinstance(storage, StorageRef) or storage.dtype is None:
        raise ValueError("the storage has no dtype")
    return _strided(storage, offset, tuple(shape), tuple(strides), storage.dtype)


def _tensor_v3(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    requires_grad: Any,
    hooks: Any,
    dtype: Any,
    metadata: Any = None,
) -> TensorRef:
    if metadata or not isinstance(dtype, DTypeRef):
        raise ValueError(f"{shortened(dtype)}, {shortened(metadata)}")
    return _strided(storage, offset, tuple(shape), tuple(strides), dtype.np)


def _parameter(data: Any, requires_grad: Any, hooks: Any) -> Any:
    if not isinstance(data, TensorRef):
        raise ValueError("a parameter is made of a tensor")
    return data


def _size(values: Any) -> tuple[Any, ...]:
    if not all(type(n) is int for n in values):
        raise ValueError("sizes are whole numbers")
    return tuple(values)


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch", "Size"): _size,
}

_STOP = b"."[0]
_STEPS: dict[int, Callable[[PickleReader], None]] = {
    b"\x80"[0]: PickleReader._protocol,
    b"\x95"[0]: PickleReader._frame,
    b"N"[0]: lambda r: r._push(None),
    b"\x88"[0]: lambda r: r._push(True),
    b"\x89"[0]: lambda r: r._push(False),
    b"J"[0]: lambda r: r._push(r._number("<i")),
    b"K"[0]: lambda r: r._push(r._number("<B")),
    b"M"[0]: lambda r: r._push(r._number("<H")),
    b"\x8a"[0]: lambda r: r._integer("<B"),
    b"\x8b"[0]: lambda r: r._integer("<i"),
    b"G"[0]: lambda r: r._push(r._number(">d")),
    b"X"[0]: lambda r: r._text("<I"),
    b"\x8c"[0]: lambda r: r._text("<B"),
    b"\x8d"[0]: lambda r: r._text("<Q"),
    b"}"[0]: lambda r: r._push({}),
    b"]"[0]: lambda r: r._push([]),
    b")"[0]: lambda r: r._push(()),
    b"("[0]: lambda r: r._push(_MARK),
    b"t"[0]: lambda r: r._push(tuple(r._to_mark())),
    b"\x85"[0]: lambda r: r._tuple(1),
    b"\x86"[0]: lambda r: r._tuple(2),
    b"\x87"[0]: lambda r: r._tuple(3),
    b"l"[0]: lambda r: r._push(r._to_mark()),
    b"d"[0]: lambda r: _filled(r, r._to_mark()),
    b"a"[0]: lambda r: r._append([r._pop()]),
    b"e"[0]: lambda r: r._append(r._to_mark()),
    b"s"[0]: lambda r: r._set([r._pop(), r._pop()][::-1]),
    b"u"[0]: lambda r: r._set(r._to_mark()),
    b"q"[0]: lambda r: r._memoize(r._number("<B")),
    b"r"[0]: lambda r: r._memoize(r._number("<I")),
    b"\x94"[0]: lambda r: r._memoize(len(r._memo)),
    b"h"[0]: lambda r: r._push(r._memo[r._number("<B")]),
    b"j"[0]: lambda r: r._push(r._memo[r._number("<I")]),
    b"c"[0]: lambda r: r._global(r._line(), r._line()),
    b"\x93"[0]: PickleReader._stack_global,
    b"R"[0]: PickleReader._reduce,
    b"Q"[0]: PickleReader._persistent,
    b"b"[0]: PickleReader._build,
}


def _filled(reader: PickleReader, values: list[Any]) -> None:
    reader._push({})
    reader._set(values)
