"""Tensors in several safetensors files, with an index that says which is where.

The index is JSON as others write it: {"metadata": {...}, "weight_map": {tensor: file}}. Files of
one index have a word of their own in their names, so that those of the index that is replaced stay
whole until the new one is on the disk.
"""

from __future__ import annotations

import json
import re
import secrets
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from everygrad.errors import ArgumentError, FileError, MissingFileError
from everygrad.io import files, safetensors_format as fmt
from everygrad.io.snapshot import Snapshot, write
from everygrad.io.source import Source, as_tensor
from everygrad.io.unpacking import read_arrays, rebuilt

_ENDING = ".index.json"
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)(i?)B", re.IGNORECASE)


def as_bytes(size: int | str) -> int:
    """A size as a number of bytes: "5GB" is 5e9, "5GiB" is 5 * 2**30.

    >>> as_bytes("1.5MB"), as_bytes("2KiB"), as_bytes(7)
    (1500000, 2048, 7)
    """
    if type(size) is int and size > 0:
        return size
    found = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if found is None:
        raise ArgumentError(
            f'save: max_shard_size is a number of bytes above 0, or text such as "5GB", '
            f"got {size!r:.80}"
        )
    base = 1024 if found[3] else 1000
    return max(1, int(float(found[1]) * base ** " KMGT".index(found[2].upper() or " ")))


# --- writing -------------------------------------------------------------------------------------


def write_shards(path: Path, shot: Snapshot, size: int) -> None:
    """Write a snapshot as files of at most `size` bytes of tensors, and then their index."""
    index = path if path.name.endswith(_ENDING) else path.with_name(path.name + _ENDING)
    stem = index.name.removesuffix(_ENDING).removesuffix(".safetensors")
    if not index.parent.is_dir():
        raise MissingFileError(f"save: there is no folder {index.parent}")
    groups = _groups(shot, size)
    word = secrets.token_hex(4)
    names = [
        f"{stem}-{word}-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))
    ]
    try:
        for name, group in zip(names, groups, strict=True):
            write(index.with_name(name), shot, group, tree=False)
        where = {n: name for name, group in zip(names, groups, strict=True) for n in group}
        files.replace(index, _rendered(shot, where))
    except BaseException:
        _remove(index, names)
        raise
    _remove(index, _older_shards(index, stem, names))


def _groups(shot: Snapshot, size: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    room = size
    for name, kind in shot.kinds.items():
        if kind.nbytes > room and groups[-1]:
            groups.append([])
            room = size
        groups[-1].append(name)
        room -= kind.nbytes
    return groups


def _rendered(shot: Snapshot, where: Mapping[str, str]) -> bytes:
    total = sum(kind.nbytes for kind in shot.kinds.values())
    about = {"version": 1, "tree": shot.tree, "note": shot.note}
    metadata = {"total_size": total, fmt.OBJECT: json.dumps(about, allow_nan=False)}
    metadata[fmt.OWN_CRC] = _crc(metadata, where)
    return json.dumps({"metadata": metadata, "weight_map": where}, indent=1).encode("ascii")


def _crc(metadata: Mapping[str, Any], where: Mapping[str, str]) -> str:
    said = [{k: v for k, v in metadata.items() if k != fmt.OWN_CRC}, where]
    return f"{zlib.crc32(json.dumps(said, sort_keys=True).encode('ascii')):08x}"


def _older_shards(index: Path, stem: str, names: list[str]) -> list[str]:
    """Files of the index that was replaced, and of those that were never finished."""
    ours = re.compile(re.escape(stem) + r"-[0-9a-f]{8}-\d{5}-of-\d{5}\.safetensors")
    found = (path.name for path in index.parent.iterdir())
    return sorted(n for n in found if ours.fullmatch(n) and n not in names)


def _remove(index: Path, names: list[str]) -> None:
    for name in names:
        with suppress(OSError):
            index.with_name(name).unlink(missing_ok=True)


# --- reading -------------------------------------------------------------------------------------


def load_index(path: Path, device: str | None, mapped: bool, verify: bool) -> Any:
    """What the files of an index hold."""
    where, about = _read(path, verify)
    inside: dict[str, set[str]] = {}
    for tensor, name in where.items():
        inside.setdefault(name, set()).add(tensor)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, wanted in inside.items():
        with files.reading(path.with_name(name), "load") as (file, size):
            shard = str(path.with_name(name))
            header = fmt.read_header(file, size, shard, verify)
            missing = sorted(wanted - header.places.keys())
            if missing:
                raise FileError(
                    f"{shard}: does not hold {', '.join(map(repr, missing))}, though {path.name} "
                    f"says so"
                )
            arrays |= read_arrays(Source(file, size, shard, mapped, verify), header, wanted)
    ordered = {n: arrays[n] for n in where}
    if about is None:
        return {n: as_tensor(array, device) for n, array in ordered.items()}
    return rebuilt(about, ordered, device, str(path))


def _read(path: Path, verify: bool) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Which tensor is in which file, and the object that everygrad saved."""
    with files.reading(path, "load") as (file, size):
        if size > fmt.LONGEST_HEADER:
            raise FileError(f"{path}: {size:,} bytes are too many for an index")
        data = bytearray(size)
        files.read_at(file, memoryview(data), 0, str(path))
    index = fmt.parsed(data, str(path))
    where, metadata = index.get("weight_map"), index.get("metadata", {})
    if not isinstance(where, dict) or not isinstance(metadata, dict):
        raise FileError(f"{path}: not an index of safetensors files: it has no weight_map")
    for tensor, name in where.items():
        if not isinstance(name, str) or not _is_plain(name):
            raise FileError(
                f"{path}: {tensor!r:.80} is said to be in {name!r:.80}; files of an index lie "
                f"beside it"
            )
    if not fmt.is_ours(metadata):
        return where, None
    if verify and _crc(metadata, where) != metadata.get(fmt.OWN_CRC):
        raise FileError(f"{path}: damaged: its checksum is not as when it was written")
    said = metadata.get(fmt.OBJECT)
    about = fmt.parsed(said.encode("utf-8", "replace") if isinstance(said, str) else b"", str(path))
    if about.get("version") != 1 or "tree" not in about:
        raise FileError(f"{path}: written by a later everygrad, or damaged")
    return where, about


def _is_plain(name: str) -> bool:
    """Whether this is the name of a file in the same folder, on any system."""
    return bool(name) and name[0] != "." and not re.search(r"[/\\:\x00]", name)
