"""Objects as they are at one moment, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from everygrad.core.tensor import Tensor
from everygrad.errors import MissingFileError
from everygrad.io import safetensors_format as fmt, transfer
from everygrad.io.files import replacing, write_at
from everygrad.io.tree import Flattened
from everygrad.ops.python.conversion import moved

_TOGETHER = 1 << 28  # bytes that leave a device at once


class Stored(NamedTuple):
    """How an array is written: its dtype and shape as the format has them."""

    tag: str
    shape: tuple[int, ...]
    nbytes: int


class Snapshot:
    """An object as it is at one moment: its names, kinds, and where its values are.

    Values of tensors never change, so those on the CPU are kept, not copied; what lies on a device
    is left there until it is written. `settle` makes it independent of both devices and arrays.
    """

    def __init__(self, what: str, obj: Any, note: Mapping[str, Any] | None = None) -> None:
        flat = Flattened(what, obj)
        self.what = what
        self.tree = flat.tree
        self.entries = flat.entries
        self.note = dict(note or {})
        self.complex128: list[str] = []
        self.kinds: dict[str, Stored] = {}
        for name, value in flat.entries.items():
            dtype = value.dtype.np if isinstance(value, Tensor) else value.dtype.newbyteorder("=")
            shape = tuple(value.shape)
            if dtype == np.complex128:  # the format has none: pairs of float64
                self.complex128.append(name)
                dtype, shape = np.dtype(np.float64), (*shape, 2)
            tag = fmt.tag_of(dtype, name)
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            self.kinds[name] = Stored(tag, shape, nbytes)

    def settle(self) -> None:
        """Take what may change or lies elsewhere: copies of arrays, values from devices."""
        for name, value in self.entries.items():
            if isinstance(value, np.ndarray):
                self.entries[name] = value.copy()
        for name, array in self.arrays([n for n in self.entries if _elsewhere(self.entries[n])]):
            self.entries[name] = array

    def arrays(self, names: list[str]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """The values, on the CPU and contiguous, a bounded part at a time."""
        group: list[str] = []
        nbytes = 0
        for name in names:
            if not _elsewhere(self.entries[name]):
                yield name, _contiguous(self.entries[name])
                continue
            group.append(name)
            nbytes += self.kinds[name].nbytes
            if nbytes >= _TOGETHER:
                yield from self._from_device(group)
                group, nbytes = [], 0
        yield from self._from_device(group)

    def _from_device(self, names: list[str]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        tensors: list[Any] = [self.entries[name] for name in names]
        for name, t in zip(names, moved(tensors, "cpu") if names else [], strict=True):
            yield name, _contiguous(t)


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """A contiguous array's memory."""
    return array.reshape(-1).view(np.uint8).data


def _elsewhere(value: Tensor | np.ndarray[Any, Any]) -> bool:
    return isinstance(value, Tensor) and value.device != "cpu"


def _contiguous(value: Any) -> np.ndarray[Any, Any]:
    array = value._data if isinstance(value, Tensor) else value
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(array)


def write(path: Path, shot: Snapshot, names: list[str] | None = None, tree: bool = True) -> None:
    """Write a snapshot, or the tensors of it that are named, as one file."""
    kinds = {n: shot.kinds[n] for n in (shot.kinds if names is None else names)}
    places = fmt.arranged(kinds)
    crcs = {n: "0" * (8 * -(-kinds[n].nbytes // fmt.CHUNK)) for n in places}
    about = {"version": 1, "chunk": fmt.CHUNK, "crc32": crcs, "note": shot.note}
    if tree:
        about["tree"] = shot.tree
    if paired := [n for n in shot.complex128 if n in kinds]:
        about["complex128"] = paired
    head = fmt.rendered(kinds, places, about)
    try:
        with replacing(path) as file:
            found = transfer.run(
                transfer.Writer(), file, _chunks(shot, list(places), places, len(head))
            )
            crcs.update(dict.fromkeys(crcs, ""))
            for name, crc in found:
                crcs[name] += f"{crc:08x}"
            final = fmt.rendered(kinds, places, about)
            assert len(final) == len(head)
            write_at(file, memoryview(final), 0)
    except FileNotFoundError:
        raise MissingFileError(f"{shot.what}: there is no folder {path.parent}") from None


def _chunks(
    shot: Snapshot, names: list[str], places: Mapping[str, tuple[int, int]], first: int
) -> Iterator[transfer.Chunk]:
    for name, array in shot.arrays(names):
        data = bytes_of(array)
        yield from transfer.chunks_of(data, first + places[name][0], fmt.CHUNK, None, name)
