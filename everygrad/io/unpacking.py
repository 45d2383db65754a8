"""Safetensors files as arrays, and the objects that were saved in them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from everygrad.errors import FileError
from everygrad.io import safetensors_format as fmt, transfer
from everygrad.io.snapshot import bytes_of
from everygrad.io.source import Source, as_tensor
from everygrad.io.tree import Rebuilt


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


def read_arrays(
    source: Source, header: fmt.Header, only: Container[str] | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a safetensors file, or `only` those named, in the order of its header."""
    places = {n: p for n, p in header.places.items() if only is None or n in only}
    arrays = {n: source.array(p.dtype, p.shape, p.start) for n, p in places.items()}
    about = header.about
    source.fill(
        chunk
        for name, place in sorted(places.items(), key=lambda item: item[1].start)
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
    paired = (about or {}).get("complex128", [])
    if not isinstance(paired, list) or not all(isinstance(n, str) for n in paired):
        raise FileError(f"{source.name}: its list of complex128 cannot be read")
    for name in paired:
        if name in header.places and name not in arrays:
            continue  # not asked for
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
