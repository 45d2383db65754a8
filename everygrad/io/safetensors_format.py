"""The safetensors format: eight bytes of length, a JSON header, the tensors' bytes.

The header names each tensor with its dtype, shape and place; what it says is checked against the
size of the file before memory is taken. Files that everygrad wrote have more in `__metadata__`: the
nested object whose tensors these are, and checksums. Other readers pass over it.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from everygrad.errors import DtypeError, FileError
from everygrad.io.files import read_at

LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors package
ALIGNMENT = 64  # of the first tensor in the file; the others follow by falling item size
CHUNK = 1 << 24  # bytes with a checksum of their own, so that threads can share a tensor
METADATA = "__metadata__"
OBJECT, OWN_CRC = "everygrad", "everygrad.crc32"  # names in __metadata__
_MOST_AXES = 64  # NumPy's

TAGS: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
_OF_DTYPE = {dtype: tag for tag, dtype in TAGS.items()}


class Place(NamedTuple):
    """Where a tensor lies in a file, and what its bytes mean."""

    tag: str
    shape: tuple[int, ...]
    start: int  # from the beginning of the file
    end: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return TAGS[self.tag]


class Header(NamedTuple):
    """What a file says of itself."""

    places: dict[str, Place]
    about: dict[str, Any] | None  # what everygrad wrote: tree, crc32, note; None: another's file
    size: int  # of the file


def tag_of(dtype: np.dtype[Any], name: str) -> str:
    """The format's name of a dtype."""
    tag = _OF_DTYPE.get(dtype)
    if tag is None:
        raise DtypeError(
            f"save: {name}: safetensors has no dtype for NumPy's {dtype}; it has "
            f"{', '.join(str(d) for d in TAGS.values())}"
        )
    return tag


# --- writing ------------------------------------------------------------------------------------


def arranged(kinds: Mapping[str, tuple[str, tuple[int, ...], int]]) -> dict[str, tuple[int, int]]:
    """Where each tensor's bytes begin and end behind the header. Those with the longest items come
    first, so that each is aligned to its item size."""
    order = sorted(kinds, key=lambda name: -TAGS[kinds[name][0]].itemsize)
    places, at = {}, 0
    for name in order:
        places[name] = (at, at + kinds[name][2])
        at += kinds[name][2]
    return places


def rendered(
    kinds: Mapping[str, tuple[str, tuple[int, ...], int]],
    places: Mapping[str, tuple[int, int]],
    about: dict[str, Any],
) -> bytes:
    """The header as it stands in the file, its length first."""
    table: dict[str, Any] = {
        name: {
            "dtype": kinds[name][0],
            "shape": list(kinds[name][1]),
            "data_offsets": list(places[name]),
        }
        for name in places
    }
    # "pt": programs for PyTorch's names ask for this word
    metadata = {"format": "pt", OBJECT: _dumped(about)}
    metadata[OWN_CRC] = header_crc({METADATA: metadata, **table})
    text = _dumped({METADATA: metadata, **table}).encode("ascii")
    if len(text) + ALIGNMENT > LONGEST_HEADER:
        raise FileError(
            f"save: the header has {len(text):,} bytes, readers take {LONGEST_HEADER:,}; put long "
            f"lists of numbers into arrays"
        )
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def header_crc(header: Mapping[str, Any]) -> str:
    """The checksum of everything that a header says, however it is spelled."""
    said = dict(header)
    metadata = {k: v for k, v in said.pop(METADATA, {}).items() if k != OWN_CRC}
    text = json.dumps([metadata, said], separators=(",", ":"), sort_keys=True)
    return f"{zlib.crc32(text.encode('ascii')):08x}"


# --- reading ------------------------------------------------------------------------------------


def read_header(file: int, size: int, name: str, verify: bool = True) -> Header:
    """What the file says of itself, checked against its size."""
    if size < 8:
        raise FileError(f"{name}: {size} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", _bytes(file, 8, 0, name))
    if length > min(LONGEST_HEADER, size - 8):
        raise FileError(
            f"{name}: not a whole safetensors file: it says that its header has {length:,} bytes, "
            f"and has {size - 8:,} (at most {LONGEST_HEADER:,} are read)"
        )
    table = parsed(_bytes(file, length, 8, name), f"{name}: the header")
    metadata = table.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FileError(f"{name}: {METADATA} must map names to text")
    if verify and is_ours(metadata):
        found = header_crc({METADATA: metadata, **table})
        if found != metadata.get(OWN_CRC):
            raise FileError(
                f"{name}: damaged: the header's checksum is {found}, not "
                f"{metadata.get(OWN_CRC)!r} as when it was written"
            )
    places = _places(table, 8 + length, size, name)
    return Header(places, _about(metadata, places, name), size)


def is_ours(metadata: Mapping[str, Any]) -> bool:
    """Whether everygrad wrote this. One of two names is enough: a damaged letter must not make it
    another's file, which would have no checksums."""
    return OBJECT in metadata or OWN_CRC in metadata


def _bytes(file: int, length: int, at: int, name: str) -> bytearray:
    data = bytearray(length)
    read_at(file, memoryview(data), at, name)
    return data


def parsed(data: bytearray | bytes, name: str) -> dict[str, Any]:
    """A JSON object; what is deep, said twice or not JSON is refused."""
    try:
        found = json.loads(
            data.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_no_constant
        )
    except RecursionError:
        raise FileError(f"{name} is nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error:  # JSONDecodeError is a ValueError
        raise FileError(f"{name} is not JSON: {error}"[:300]) from None
    if not isinstance(found, dict):
        raise FileError(f"{name} must be a JSON object, got {type(found).__name__}")
    return found


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        ((twice, _),) = Counter(k for k, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _places(table: dict[str, Any], first: int, size: int, name: str) -> dict[str, Place]:
    _refuse_unknown_dtypes(table, name)
    places = {key: _place(entry, first, f"{name}: {key!r}") for key, entry in table.items()}
    at, before = first, "the header"
    for key, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].end)):
        if place.start != at:
            how = "overlaps" if place.start < at else "leaves a hole behind"
            raise FileError(f"{name}: {key!r} {how} {before}")
        at, before = place.end, repr(key)
    if at != size:
        raise FileError(
            f"{name}: its tensors end at byte {at:,}, the file at byte {size:,}; is it cut off?"
        )
    return places


def _refuse_unknown_dtypes(table: dict[str, Any], name: str) -> None:
    """Name every dtype that is not known, with the first entries of it."""
    unknown: dict[str, list[str]] = {}
    for key, entry in table.items():
        tag = entry.get("dtype", "F32") if isinstance(entry, dict) else "F32"
        if not isinstance(tag, str) or tag not in TAGS:
            unknown.setdefault(repr(tag)[:40], []).append(key)
    if unknown:
        said = "; ".join(
            f"{tag} (of {', '.join(map(repr, keys[:3]))}{', ...' if keys[3:] else ''})"[:200]
            for tag, keys in list(unknown.items())[:20]
        )
        raise FileError(f"{name}: unknown dtypes: {said}; known are {', '.join(TAGS)}")


def _place(entry: Any, first: int, what: str) -> Place:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FileError(f"{what} must have a dtype, a shape and data_offsets, and nothing else")
    tag, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not _counts(shape) or len(shape) > _MOST_AXES:
        raise FileError(f"{what}: {shape!r} is no shape"[:400])
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FileError(f"{what}: data_offsets {offsets!r} are not a begin and an end"[:400])
    itemsize = TAGS[tag].itemsize
    if math.prod(max(n, 1) for n in shape) * itemsize >= 2**63:
        raise FileError(f"{what}: no array can have the shape {shape}"[:400])
    if math.prod(shape) * itemsize != offsets[1] - offsets[0]:
        raise FileError(
            f"{what}: {tag} of shape {shape} has {math.prod(shape) * itemsize} bytes, "
            f"data_offsets {offsets} say {offsets[1] - offsets[0]}"
        )
    return Place(tag, tuple(shape), first + offsets[0], first + offsets[1])


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 2**63 for n in values)


def _about(metadata: dict[str, str], places: dict[str, Place], name: str) -> dict[str, Any] | None:
    if not is_ours(metadata):
        return None
    about = parsed(metadata.get(OBJECT, "").encode("utf-8", "replace"), f"{name}: {OBJECT!r}")
    if about.get("version") != 1:
        raise FileError(f"{name}: written by a later everygrad (version {about.get('version')!r})")
    crcs, chunk = about.get("crc32"), about.get("chunk")
    if type(chunk) is not int or not 1 << 12 <= chunk < 1 << 40 or not isinstance(crcs, dict):
        raise FileError(f"{name}: its checksums cannot be read")
    for key, place in places.items():
        said = crcs.get(key)
        if not isinstance(said, str) or len(said) != 8 * -(-(place.end - place.start) // chunk):
            raise FileError(f"{name}: the checksums of {key!r} are missing")
    return about
