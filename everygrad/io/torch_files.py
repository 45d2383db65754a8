"""PyTorch's files: zip archives of a pickle and storages, and the older streams of pickles.

Sizes and places are checked against the file before memory is taken, and of the pickle only data is
read (`torch_pickle`).
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.errors import FileError
from everygrad.io import transfer
from everygrad.io.files import read_at
from everygrad.io.snapshot import bytes_of
from everygrad.io.source import Source, as_tensor
from everygrad.io.torch_pickle import (
    LONGEST,
    DTypeRef,
    Global,
    PickleReader,
    StorageRef,
    TensorRef,
)

ZIP, STREAM = b"PK\x03\x04", b"\x80\x02\x8a\x0a"  # what the two begin with
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_DEEPEST = 100
_LARGEST = 10_000_000  # values in nested containers, each counted where it appears


class _Blob(NamedTuple):
    """Bytes in a file, with the checksum that the file gives them."""

    start: int
    size: int
    crc: int | None


def from_zip(source: Source, device: str | None) -> Any:
    """What `torch.save` wrote."""
    blobs = _entries(source)
    pickles = [name for name in blobs if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise FileError(
            f"{source.name}: a zip archive with {len(pickles)} entries data.pkl, where a file of "
            f"torch.save has one"
        )
    folder = pickles[0].removesuffix("data.pkl")
    order = blobs.get(folder + "byteorder")
    if order is not None and _content(source, order) != b"little":
        raise FileError(f"{source.name}: written on a big-endian machine")
    blob = blobs[pickles[0]]
    if blob.size > LONGEST:
        raise FileError(f"{source.name}: its pickle has {blob.size:,} bytes; {LONGEST:,} are read")
    obj = PickleReader(_content(source, blob), source.name).load()
    content = _Content(source, obj)
    return content.build({k: _in_zip(source, blobs, folder, r) for k, r in content.refs()}, device)


def _in_zip(source: Source, blobs: dict[str, _Blob], folder: str, ref: StorageRef) -> _Blob:
    blob = blobs.get(f"{folder}data/{ref.key}")
    if blob is None or blob.size != ref.nbytes:
        there = "is missing" if blob is None else f"has {blob.size:,} bytes, not {ref.nbytes:,}"
        raise FileError(f"{source.name}: the storage {ref.key!r:.80} {there}")
    return blob


def _content(source: Source, blob: _Blob) -> bytearray:
    data = bytearray(blob.size)
    view = memoryview(data)
    transfer.read_chunk(source.file, transfer.Chunk(view, blob.start, blob.crc, source.name))
    return data


def _entries(source: Source) -> dict[str, _Blob]:
    """The entries of an archive: stored, apart from each other, inside the file."""
    try:
        with os.fdopen(os.dup(source.file), "rb") as file, zipfile.ZipFile(file) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
            end = archive.start_dir
    except Exception as error:  # zipfile raises many kinds on damaged directories
        raise FileError(f"{source.name}: not a whole zip archive: {error}") from None
    if any("/code/" in info.filename for info in infos):
        raise FileError(
            f"{source.name}: a TorchScript program, which would have to be executed; save "
            f"module.state_dict() instead"
        )
    found: dict[str, _Blob] = {}
    for info, limit in zip(infos, [*(i.header_offset for i in infos[1:]), end], strict=True):
        name = info.filename
        what = f"{source.name}: its entry {name!r:.80}"
        parts = name.replace("\\", "/").split("/")
        if name in found or name.startswith("/") or ".." in parts or ":" in parts[0]:
            raise FileError(f"{what} is there twice, or outside of the archive")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 0x1:
            raise FileError(f"{what} is compressed or encrypted; torch.save stores them plainly")
        start = _data_start(source, info, what)
        if info.file_size != info.compress_size or start + info.file_size > limit:
            raise FileError(f"{what} says {info.file_size:,} bytes and overlaps what follows it")
        found[name] = _Blob(start, info.file_size, info.CRC if source.verify else None)
    return found


def _data_start(source: Source, info: zipfile.ZipInfo, what: str) -> int:
    """Behind the entry's own header, which must say what the directory says."""
    head = bytearray(30)
    if info.header_offset < 0:
        raise FileError(f"{what} begins before the file")
    read_at(source.file, memoryview(head), info.header_offset, source.name)
    long_name, long_extra = struct.unpack("<HH", head[26:30])
    name = bytearray(long_name)
    read_at(source.file, memoryview(name), info.header_offset + 30, source.name)
    if head[:4] != ZIP or name.decode("utf-8", "replace") != info.orig_filename:
        raise FileError(f"{what} has another name where its bytes are")
    return info.header_offset + 30 + long_name + long_extra


def from_stream(source: Source, device: str | None) -> Any:
    """What `torch.save` wrote before version 1.6: pickles, then the storages one by one."""
    data = bytearray(min(source.size, LONGEST))
    read_at(source.file, memoryview(data), 0, source.name)
    reader = PickleReader(data, source.name)
    magic, version, system = (reader.load() for _ in range(3))
    if magic != _MAGIC or version != _PROTOCOL or not isinstance(system, dict):
        raise FileError(f"{source.name}: a pickle, and none of torch.save")
    if system.get("little_endian") is not True:
        raise FileError(f"{source.name}: written on a big-endian machine")
    obj, keys = reader.load(), reader.load()
    content = _Content(source, obj)
    refs = dict(content.refs())
    if not isinstance(keys, list) or not all(type(k) is str for k in keys):
        raise FileError(f"{source.name}: its storages have no list")
    if len(set(keys)) != len(keys) or set(keys) != set(refs):
        raise FileError(f"{source.name}: its storages are not those that its tensors need")
    blobs, at = {}, reader.at
    for key in keys:
        (count,) = struct.unpack("<q", _content(source, _Blob(at, 8, None)))
        if count != refs[key].length or at + 8 + refs[key].nbytes > source.size:
            raise FileError(
                f"{source.name}: the storage {key!r:.80} has {count:,} items, not "
                f"{refs[key].length:,}, or is cut off"
            )
        blobs[key] = _Blob(at + 8, refs[key].nbytes, None)
        at += 8 + refs[key].nbytes
    return content.build(blobs, device)


class _Content:
    """What a pickle made, looked through before memory is taken, and then made of tensors.

    A pickle can name a container many times, inside others too: a few lines of it can stand for
    more than any memory holds, or hold themselves.
    """

    def __init__(self, source: Source, obj: Any) -> None:
        self._source = source
        self._obj = obj
        self._seen: dict[int, tuple[int, int]] = {}  # of containers: values inside, and height
        self._open: set[int] = set()
        self._refs: dict[str, StorageRef] = {}
        self._look(obj, 0)

    def refs(self) -> Iterable[tuple[str, StorageRef]]:
        """The storages that are needed, by key."""
        return self._refs.items()

    def _look(self, value: Any, depth: int) -> tuple[int, int]:
        if isinstance(value, TensorRef):
            ref = self._refs.setdefault(value.storage.key, value.storage)
            if ref.nbytes != value.storage.nbytes:
                raise self._wrong(f"a storage {ref.key!r:.80} of two sizes")
            return 1, 0
        if isinstance(value, StorageRef | Global | np.dtype):
            raise self._wrong(f"a {type(value).__name__} outside of a tensor")
        if isinstance(value, DTypeRef) or not isinstance(value, dict | list | tuple):
            return 1, 0
        if id(value) not in self._seen:
            if id(value) in self._open or depth > _DEEPEST:
                raise self._wrong("containers that hold themselves, or too deep in each other")
            self._open.add(id(value))
            inside = [self._look(v, depth + 1) for v in _values(value)]
            self._open.discard(id(value))
            count = 1 + sum(n for n, _ in inside)
            self._seen[id(value)] = count, 1 + max((h for _, h in inside), default=0)
        count, height = self._seen[id(value)]
        if depth + height > _DEEPEST or count > _LARGEST:
            raise self._wrong(
                f"{count:,} values, {depth + height} deep, which is more than is read"
            )
        return count, height

    def _wrong(self, what: str) -> FileError:
        return FileError(f"{self._source.name}: its pickle has {what}")

    def build(self, blobs: dict[str, _Blob], device: str | None) -> Any:
        """The storages read, and tensors and containers made."""
        source = self._source
        dtype = np.dtype(np.uint8)
        storages = {k: source.array(dtype, (b.size,), b.start) for k, b in blobs.items()}
        source.fill(
            transfer.Chunk(bytes_of(storages[k]), b.start, b.crc, f"{source.name}: storage {k!r}")
            for k, b in blobs.items()
        )
        tensors: dict[TensorRef, Any] = {}

        def made(value: Any) -> Any:
            if isinstance(value, TensorRef):
                if value not in tensors:
                    array = _array(storages[value.storage.key], value, source.name, device)
                    tensors[value] = as_tensor(array, device)
                return tensors[value]
            if isinstance(value, DTypeRef):
                return dtypes.FROM_NP.get(value.np, value.np)
            if isinstance(value, dict):
                return {k: made(v) for k, v in value.items()}
            if isinstance(value, list | tuple):
                return type(value)([made(v) for v in value])
            return value

        return made(self._obj)


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _array(storage: Any, ref: TensorRef, name: str, device: str | None) -> Any:
    """The view of a storage that a tensor is; its bounds were checked when it was read."""
    dtype, count = ref.dtype, math.prod(ref.shape)
    if not count:
        return np.empty(ref.shape, dtype)
    items = storage[: len(storage) // dtype.itemsize * dtype.itemsize].view(dtype)
    if not items.flags.aligned:
        items = items.copy()
    if dtype == np.bool_ and storage.max() > 1:
        raise FileError(f"{name}: the storage {ref.storage.key!r} has booleans that are not 0 or 1")
    contiguous = tuple(math.prod(ref.shape[i + 1 :]) for i in range(len(ref.shape)))
    if all(a == b or n == 1 for a, b, n in zip(ref.strides, contiguous, ref.shape, strict=True)):
        return items[ref.offset : ref.offset + count].reshape(ref.shape)
    if device not in (None, "cpu") and count * dtype.itemsize > 8 * len(storage) + (1 << 20):
        raise FileError(
            f"{name}: a tensor of shape {ref.shape} is a broadcast of {len(storage)} bytes, which "
            f"would take {count * dtype.itemsize:,} on {device}; load it on the CPU"
        )
    strides = tuple(n * dtype.itemsize for n in ref.strides)
    return np.lib.stride_tricks.as_strided(items[ref.offset :], ref.shape, strides, writeable=False)
