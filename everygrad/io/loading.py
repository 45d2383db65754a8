"""`eg.load`: what `eg.save` wrote, other safetensors files, sharded ones, and PyTorch's."""

from __future__ import annotations

import mmap as _mmap
from pathlib import Path
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends import base
from everygrad.core.tensor import wrap
from everygrad.errors import FileError, OutOfMemoryError
from everygrad.io import safetensors_format as fmt, transfer
from everygrad.io.files import reading
from everygrad.io.restore import restore
from everygrad.io.saving import as_path, bytes_of
from everygrad.io.tree import Rebuilt


def load(
    path: Any,
    into: Any = None,
    *,
    device: str | None = None,
    mmap: bool = False,
    verify: bool | None = None,
) -> Any:
    """What a file holds: nested dicts, lists and tuples of tensors and values.

    Takes what `eg.save` wrote and any other safetensors file. With `into`, an object of the
    structure that was saved, its modules, optimisers, tensors and values are given what the file
    holds, and it is returned; if that raises, nothing has changed. `device` is where tensors go.
    `mmap` maps the file, and reads what is used when it is used. `verify` compares checksums; the
    default is to do so unless the file is mapped.

    >>> import everygrad as eg, tempfile
    >>> file = tempfile.mkdtemp() + "/model.safetensors"
    >>> model = eg.nn.Linear(3, 2)
    >>> eg.save(file, model)
    >>> {name: t.shape for name, t in eg.load(file).items()}
    {'weight': (2, 3), 'bias': (2,)}
    >>> eg.load(file, into=model) is model
    True
    """
    where = as_path(path, "load")
    if device is not None:
        base.get(device)  # is it there?
    found = contents(where, device, mmap, not mmap if verify is None else verify)
    return found if into is None else restore(into, found, str(where))


def contents(path: Path, device: str | None, mapped: bool, verify: bool) -> Any:
    """What a file holds, by what it begins with."""
    with reading(path, "load") as (file, size):
        source = Source(file, size, str(path), mapped, verify)
        header = fmt.read_header(file, size, str(path), verify)
        return unpacked(source, header, device)


class Source:
    """An open file, read into new memory or mapped."""

    def __init__(self, file: int, size: int, name: str, mapped: bool, verify: bool) -> None:
        self.file = file
        self.size = size
        self.name = name
        self.verify = verify
        self._map = _mmap.mmap(file, size, access=_mmap.ACCESS_READ) if mapped and size else None

    def room(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> Any:
        """An array for what lies at `start`: new, or the mapped file itself."""
        try:
            if self._map is None:
                return np.empty(shape, dtype)
            count = int(np.prod(shape, dtype=np.int64))
            if not count:
                return np.empty(shape, dtype)
            array = np.frombuffer(self._map, dtype, count, start).reshape(shape)
            return array if array.flags.aligned else array.copy()
        except MemoryError as error:
            raise OutOfMemoryError(f"{self.name}: {dtype}{list(shape)}: {error}") from None

    def fill(self, chunks: Any) -> None:
        """Read what is not there yet, and check it."""
        if self._map is None:
            transfer.run(transfer.read_chunk, self.file, chunks)
        elif self.verify:
            transfer.run(transfer.check_chunk, self.file, chunks)


def unpacked(source: Source, header: fmt.Header, device: str | None) -> Any:
    """The tensors of a safetensors file, in the object that was saved if everygrad wrote it."""
    arrays = read_arrays(source, header)
    if header.about is None or "tree" not in header.about:
        return {name: as_tensor(array, device) for name, array in arrays.items()}
    return rebuilt(header.about, arrays, device, source.name)


def rebuilt(
    about: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]], device: str | None, name: str
) -> Any:
    """The object that `about` describes."""
    tensors: dict[str, Any] = {}

    def array(key: str) -> Any:
        if key not in arrays:
            raise FileError(f"{name}: there is no tensor {key!r} in it, though its object has one")
        return arrays[key]

    def tensor(key: str) -> Any:
        if key not in tensors:
            tensors[key] = as_tensor(array(key), device)
        return tensors[key]

    return Rebuilt(name, about["tree"], tensor, array).value


def read_arrays(source: Source, header: fmt.Header) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays of a safetensors file, in the order of its header."""
    arrays = {
        name: source.room(place.dtype, place.shape, place.start)
        for name, place in header.places.items()
    }
    about = header.about
    source.fill(
        chunk
        for name, place in sorted(header.places.items(), key=lambda item: item[1].start)
        for chunk in transfer.chunks_of(
            bytes_of(arrays[name]),
            place.start,
            fmt.CHUNK if about is None else about["chunk"],
            _crcs(about["crc32"][name], source.name) if about and source.verify else None,
            f"{source.name}: {name!r}",
        )
    )
    for name, array in arrays.items():
        if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
            raise FileError(f"{source.name}: {name!r} has booleans that are neither 0 nor 1")
    for name in (about or {}).get("complex128", ()):
        arrays[name] = _paired(arrays.get(name), f"{source.name}: {name!r}")
    return arrays


def _crcs(said: str, name: str) -> list[int]:
    try:
        return [int(said[i : i + 8], 16) for i in range(0, len(said), 8)]
    except ValueError:
        raise FileError(f"{name}: its checksums cannot be read") from None


def _paired(array: Any, name: str) -> Any:
    if array is None or array.dtype != np.float64 or array.shape[-1:] != (2,):
        raise FileError(f"{name} is said to be complex128, and is not pairs of float64")
    return array.view(np.complex128)[..., 0]


def as_tensor(array: np.ndarray[Any, Any], device: str | None) -> Any:
    """A tensor around an array that nobody else writes to; of a dtype that everygrad has none of
    (float8), the array itself."""
    if array.dtype not in dtypes.FROM_NP:
        return array
    array.flags.writeable = False
    if device in (None, "cpu"):
        return wrap(array)
    return wrap(base.get(device or "cpu").from_numpy(array))


__all__ = ["load"]
