""".npy and .npz files, mapped into memory; nothing in them is ever unpickled.

Every size is checked against the file before memory is taken: a header cannot ask for more than is
there.
"""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

from everygrad.errors import ArgumentError, DtypeError, ShapeError

_LONGEST_HEADER = 1 << 16
_INFLATES = 1040  # deflate makes at most so many bytes of one
_LOCAL = struct.Struct("<4s22xHH")  # a ZIP member's own header: signature, lengths of name, extra


def read_npy(path: str | os.PathLike[str], mmap: bool = True) -> Any:
    """The array of a .npy file, read only and mapped into memory: pages are read when used.

    >>> import everygrad as eg, numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", np.arange(3))
    ...     eg.data.read_npy(f"{folder}/x.npy", mmap=False)
    array([0, 1, 2])
    """
    name = f"read_npy: {os.fspath(path)}"
    with open(path, "rb") as file:
        shape, fortran, dtype = _header(file, name)
        offset, size = file.tell(), os.fstat(file.fileno()).st_size
        _check_size(name, shape, dtype, size - offset)
        return _array(file, offset, shape, fortran, dtype, mmap)


def read_npz(path: str | os.PathLike[str], mmap: bool = True) -> dict[str, Any]:
    """The arrays of a .npz file by name. What `np.savez` wrote is mapped into memory; what
    `np.savez_compressed` wrote is unpacked.

    >>> import everygrad as eg, numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/x.npz", a=np.arange(3))
    ...     eg.data.read_npz(f"{folder}/x.npz", mmap=False)
    {'a': array([0, 1, 2])}
    """
    where = f"read_npz: {os.fspath(path)}"
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = [m.filename for m in members]
            if any(m.flag_bits & 1 for m in members):
                raise ArgumentError(f"{where}: is encrypted")
            if len({*names}) != len(names):
                raise ArgumentError(f"{where}: two members have the same name")
            return {
                m.filename.removesuffix(".npy"): _member(archive, m, where, mmap) for m in members
            }
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        raise ArgumentError(f"{where}: not a whole .npz file: {error}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # a member at a place that is none
            raise
        raise ArgumentError(f"{where}: not a whole .npz file: {error}") from None


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str, mmap: bool) -> Any:
    name = f"{where}: {info.filename}"
    path = archive.filename
    with archive.open(info) as member:
        shape, fortran, dtype = _header(member, name)  # type: ignore[arg-type]  # reads as a file
        offset = member.tell()
        _check_size(name, shape, dtype, info.file_size - offset)
        if info.compress_type == zipfile.ZIP_STORED and path is not None:
            with open(path, "rb") as file:
                begin = _data_of(file, info, name)
                return _array(file, begin + offset, shape, fortran, dtype, mmap)
        if info.file_size > _INFLATES * info.compress_size + _LONGEST_HEADER:
            raise ArgumentError(
                f"{name}: {info.compress_size} bytes do not unpack to {info.file_size}"
            )
        out = np.empty(shape, dtype, order="F" if fortran else "C")
        flat = out.reshape(-1, order="A").view(np.uint8) if out.size else np.empty(0, np.uint8)
        filled = 0
        while filled < flat.size:
            part = member.read(min(1 << 20, flat.size - filled))
            if not part:
                raise ArgumentError(f"{name}: ends after {filled} of {flat.size} bytes")
            flat[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
            filled += len(part)
        out.flags.writeable = False
        return out


def _data_of(file: BinaryIO, info: zipfile.ZipInfo, name: str) -> int:
    """Where the bytes of an uncompressed member begin, all of which must be in the file."""
    file.seek(info.header_offset)
    head = file.read(_LOCAL.size)
    if len(head) < _LOCAL.size:
        raise ArgumentError(f"{name}: its header is cut off")
    signature, named, extra = _LOCAL.unpack(head)
    begin = info.header_offset + _LOCAL.size + named + extra
    end = begin + info.file_size
    if signature != b"PK\x03\x04" or end > os.fstat(file.fileno()).st_size:
        raise ArgumentError(f"{name}: {info.file_size} bytes are not in the file")
    return begin


def _header(file: BinaryIO, name: str) -> tuple[tuple[int, ...], bool, Any]:
    """Shape, order and dtype; the file then stands at the data."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ArgumentError(f"{name}: version {version} of the .npy format is not known")
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file, max_header_size=_LONGEST_HEADER)
    except (ValueError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{name}: not a .npy file: {str(error)[:200]}") from None
    if dtype.hasobject:
        raise DtypeError(f"{name}: holds Python objects, which only pickle reads; save numbers")
    return shape, fortran, dtype


def _check_size(name: str, shape: tuple[int, ...], dtype: Any, there: int) -> None:
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in shape):
        raise ShapeError(f"{name}: {shape} is not a shape")
    if len(shape) > 64:
        raise ShapeError(f"{name}: {len(shape)} axes; NumPy has at most 64")
    if not dtype.itemsize or max(shape, default=0) >= 1 << 63:  # 0 bytes hold any number of these
        raise ShapeError(f"{name}: {dtype}{list(shape)} says nothing about its size")
    wanted = dtype.itemsize
    for n in shape:
        wanted *= n
    if wanted > there:
        raise ShapeError(
            f"{name}: {dtype}{list(shape)} takes {wanted} bytes and {max(there, 0)} are there"
        )


def _array(
    file: BinaryIO, offset: int, shape: tuple[int, ...], fortran: bool, dtype: Any, mmap: bool
) -> Any:
    order: Any = "F" if fortran else "C"
    if 0 in shape:
        return np.empty(shape, dtype, order)
    if mmap:
        return np.memmap(file, dtype, "r", offset, shape, order)
    file.seek(offset)
    count = int(np.prod(shape, dtype=object))
    values = np.fromfile(file, dtype, count)
    if values.size != count:
        raise ShapeError(f"{getattr(file, 'name', 'file')}: shrank while it was read")
    out = values.reshape(shape, order=order)
    out.flags.writeable = False
    return out
