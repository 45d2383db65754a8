"""What crosses between a loader and its workers: descriptions in JSON, arrays in shared memory.

Nothing is pickled. Containers, numbers and strings are described; an array or a tensor is a
segment, an offset, a dtype and a shape. A class is named, and must be found under that name on
arrival.
"""

from __future__ import annotations

import array
import dataclasses
import json
import os
import select
import socket
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core.tensor import Tensor, wrap
from everygrad.data.workers.shared_memory import Arena, Lease, Segment, new_file
from everygrad.errors import ArgumentError, DeviceError

_PLAIN = (str, int, float, bool, type(None))
_HEADER = struct.Struct("<QII")  # bytes of text, descriptors, whether the text is in the last one
_INLINE = 1 << 14  # longer texts go through shared memory, so that no send waits for a reader
_MAX_FDS = 250  # Linux takes 253 in one call


# --- descriptions ---------------------------------------------------------------------------------


def dtype_name(dtype: Any) -> str:
    """The dtype's name here, or NumPy's own where everygrad has none."""
    known = dtypes.FROM_NP.get(dtype)
    return known.name if known is not None else f"np:{dtype.str}"


def dtype_named(name: str) -> Any:
    return np.dtype(name[3:]) if name.startswith("np:") else dtypes.BY_NAME[name].np


class Describe:
    """Values as JSON; arrays are placed in an arena on the way."""

    def __init__(self, place: Callable[[Any], tuple[int, int]]) -> None:
        self._place = place

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list or kind is tuple or kind is set or kind is frozenset:
            return [kind.__name__, [self(v) for v in value]]
        if kind is dict or kind is OrderedDict:
            return [kind.__name__, [[self(k), self(v)] for k, v in value.items()]]
        if isinstance(value, Tensor):
            return ["tensor", *self._array(_values(value))]
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
            return ["array", *self._array(np.asarray(value))]  # of a mapped file the plain array
        if isinstance(value, np.generic):
            return ["scalar", *self._array(np.asarray(value))]
        if kind is complex:
            return ["complex", [value.real, value.imag]]
        if kind is bytes:
            return ["bytes", *self._array(np.frombuffer(value, np.uint8))]
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ["namedtuple", _class_name(kind), [self(v) for v in value]]
        if dataclasses.is_dataclass(kind):
            names = [f.name for f in dataclasses.fields(kind)]
            return ["dataclass", _class_name(kind), [[n, self(getattr(value, n))] for n in names]]
        raise ArgumentError(
            f"DataLoader: a batch from a worker process is a description and arrays, without "
            f"pickle: it may not hold {kind.__module__}.{kind.__qualname__}; return tensors, "
            f'numbers, strings and containers of them, or use workers="thread"'
        )

    def _array(self, values: Any) -> list[Any]:
        dtype = values.dtype
        if dtype.hasobject or (dtype.kind == "V" and dtype not in dtypes.FROM_NP):
            kind = "Python objects" if dtype.hasobject else f"dtype {dtype}"
            raise ArgumentError(
                f"DataLoader: an array of {kind} does not cross processes; send numbers, of "
                f'records each field by itself, or use workers="thread"'
            )
        return [*self._place(values), dtype_name(values.dtype), list(values.shape)]


def _values(x: Tensor) -> Any:
    if x.device != "cpu":
        raise DeviceError(
            f"DataLoader: a worker process made a tensor on {x.device}; keep items on the CPU, "
            f"and let DataLoader(device={x.device!r}) move the batches"
        )
    return x.detach().numpy()


def _class_name(kind: type) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if class_named(name) is not kind:
        raise ArgumentError(
            f"DataLoader: {name} crosses processes by its name, under which it is not found; "
            f"define the class at the top of a module"
        )
    return name


def class_named(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


class Restore:
    """Values from JSON; arrays lie in the segments of a lease."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._bytes: dict[int, Any] = {}

    def __call__(self, told: Any) -> Any:
        if not isinstance(told, list):
            return told
        return _RESTORE[told[0]](self, *told[1:])

    def array(self, number: int, offset: int, dtype: str, shape: list[int]) -> Any:
        raw = self._bytes.get(number)
        if raw is None:
            raw = self._bytes[number] = self._lease.bytes_of(number)
        kind = dtype_named(dtype)
        count = kind.itemsize
        for n in shape:
            count *= n
        return raw[offset : offset + count].view(kind).reshape(shape)

    def _class(self, name: str) -> Any:
        found = class_named(name)
        if found is None:
            raise ArgumentError(f"DataLoader: a worker sent {name}, which does not exist here")
        return found


def _dataclass(restore: Restore, name: str, pairs: list[Any]) -> Any:
    kind = restore._class(name)
    out = object.__new__(kind)
    for field, told in pairs:  # frozen ones too, and without running __init__ on collated fields
        object.__setattr__(out, field, restore(told))
    return out


_RESTORE: dict[str, Callable[..., Any]] = {
    "list": lambda r, v: [r(x) for x in v],
    "tuple": lambda r, v: tuple(r(x) for x in v),
    "set": lambda r, v: {r(x) for x in v},
    "frozenset": lambda r, v: frozenset(r(x) for x in v),
    "dict": lambda r, v: {r(k): r(x) for k, x in v},
    "OrderedDict": lambda r, v: OrderedDict((r(k), r(x)) for k, x in v),
    "tensor": lambda r, *a: wrap(r.array(*a)),
    "array": lambda r, *a: r.array(*a),
    "scalar": lambda r, *a: r.array(*a)[()],
    "bytes": lambda r, *a: r.array(*a).tobytes(),
    "complex": lambda r, v: complex(*v),
    "namedtuple": lambda r, name, v: r._class(name)(*(r(x) for x in v)),
    "dataclass": _dataclass,
}


def describe_into(arena: Arena, value: Any) -> Any:
    """The description of a value whose arrays lie in, or are copied to, the arena."""
    return Describe(arena.place)(value)


def _no_arrays(values: Any) -> Any:
    raise ArgumentError("DataLoader: a sampler's indices must not be arrays; use tolist()")


describe_index = Describe(_no_arrays)
restore_index = Restore(Lease([]))


# --- the socket -----------------------------------------------------------------------------------


class Closed(Exception):  # noqa: N818  # the end of a conversation, not a fault
    """The other side has closed its end, or is gone."""


def send(sock: socket.socket, message: Any, fds: list[int], meanwhile: Any = None) -> None:
    """Send a message and descriptors. `meanwhile()` reads what arrives while nothing can be sent:
    two processes that only write would wait for each other."""
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(fds) > _MAX_FDS:
        raise ArgumentError(f"DataLoader: a batch in {len(fds)} pieces of memory; return fewer")
    big = len(text) > _INLINE
    if big:
        page = new_file(len(text))
        view = memoryview(text)
        while view:
            view = view[os.write(page, view) :]
        fds = [*fds, page]
    try:
        data = _HEADER.pack(len(text), len(fds), big) + (b"" if big else text)
        _send_all(sock, data, fds, meanwhile)
    except (BrokenPipeError, ConnectionError):
        raise Closed from None
    finally:
        if big:
            os.close(page)


def _send_all(sock: socket.socket, data: bytes, fds: list[int], meanwhile: Any) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    view = memoryview(data)
    flags = 0 if meanwhile is None else socket.MSG_DONTWAIT
    while view:
        try:
            view = view[sock.sendmsg([view], rights, flags) :]
            rights = []
        except BlockingIOError:
            poll = select.poll()
            poll.register(sock, select.POLLIN | select.POLLOUT)
            if poll.poll()[0][1] & select.POLLIN:
                meanwhile()


def receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """The next message and its descriptors, which the caller closes."""
    head, fds = _header(sock)
    try:
        size, count, big = _HEADER.unpack(head)
        if count != len(fds):
            raise DeviceError(f"DataLoader: {count} descriptors announced, {len(fds)} came")
        text = _text_of(fds.pop(), size) if big else _exactly(sock, size)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return json.loads(text), fds


def _header(sock: socket.socket) -> tuple[bytes, list[int]]:
    found = array.array("i")
    room = socket.CMSG_SPACE((_MAX_FDS + 1) * found.itemsize)
    try:
        head, rights, _, _ = sock.recvmsg(_HEADER.size, room)
    except ConnectionError:
        raise Closed from None
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    if not head:
        raise Closed
    try:
        return head + _exactly(sock, _HEADER.size - len(head)), [*found]
    except BaseException:
        for fd in found:
            os.close(fd)
        raise


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = sock.recv(size - len(parts))
        except ConnectionError:
            raise Closed from None
        if not part:
            raise Closed
        parts += part
    return bytes(parts)


def _text_of(fd: int, size: int) -> bytes:
    try:
        return Lease([Segment(fd, size)]).bytes_of(0).tobytes()
    finally:
        os.close(fd)
