"""Token files for language models: one row of integers behind a header, mapped into memory."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from everygrad.core.shapes import as_int
from everygrad.data.dataset import Dataset
from everygrad.data.sampler import positive
from everygrad.errors import ArgumentError, DtypeError, OutOfRangeError

_MAGIC = b"EGTOKENS"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQ40x")  # magic, version, bytes of a token, number of tokens
_DTYPES = {1: "<u1", 2: "<u2", 4: "<u4"}
_NAMES = {"uint8": 1, "uint16": 2, "uint32": 4}


class TokenWriter:
    """Writes a token file piece by piece. The file appears under its name when it is complete.

    >>> import everygrad as eg, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with eg.data.TokenWriter(f"{folder}/train.tokens") as out:
    ...         out.write([1, 2, 3])
    ...         out.write([4])
    ...     eg.data.read_tokens(f"{folder}/train.tokens").tolist()
    [1, 2, 3, 4]
    """

    def __init__(self, path: str | os.PathLike[str], dtype: str = "uint16") -> None:
        if dtype not in _NAMES:
            raise DtypeError(f"TokenWriter: dtype must be one of {[*_NAMES]}, got {dtype!r}")
        self.path, self.count = Path(path), 0
        self._size = _NAMES[dtype]
        self._parts = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        self._file = open(self._parts, "wb")  # noqa: SIM115  # closed by close()
        self._file.write(bytes(_HEADER.size))

    def write(self, tokens: Any) -> None:
        """Append tokens: an array, a list, or any iterable of integers."""
        given = list(tokens) if not hasattr(tokens, "__len__") else tokens
        values = np.asarray(given)
        if values.size == 0:
            return
        if values.dtype.kind not in "iu":
            raise DtypeError(f"TokenWriter.write: tokens are integers, got {values.dtype}")
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= 1 << 8 * self._size:
            raise ArgumentError(
                f"TokenWriter.write: token {low if low < 0 else high} does not fit into "
                f"uint{8 * self._size}; give the writer a wider dtype"
            )
        self._file.write(values.astype(_DTYPES[self._size]).reshape(-1).tobytes())
        self.count += values.size

    def close(self) -> None:
        """Complete the file: its bytes are on the disk before it gets its name."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._file.write(_HEADER.pack(_MAGIC, _VERSION, self._size, self.count))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._parts, self.path)

    def discard(self) -> None:
        """Give the file up: nothing is left of it."""
        self._file.close()
        self._parts.unlink(missing_ok=True)

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def write_tokens(
    path: str | os.PathLike[str], tokens: Iterable[int] | Any, dtype: str = "uint16"
) -> None:
    """Write a whole token file at once.

    >>> import everygrad as eg, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     eg.data.write_tokens(f"{folder}/a.tokens", [5, 6, 7])
    ...     len(eg.data.read_tokens(f"{folder}/a.tokens"))
    3
    """
    with TokenWriter(path, dtype) as out:
        out.write(tokens)


def read_tokens(path: str | os.PathLike[str]) -> Any:
    """All tokens of a file as an array that is mapped into memory, and cannot be written to."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            raise ArgumentError(f"read_tokens: {os.fspath(path)}: {size} bytes are no token file")
        magic, version, width, count = _HEADER.unpack(head)
        if magic != _MAGIC or version != _VERSION or width not in _DTYPES:
            raise ArgumentError(
                f"read_tokens: {os.fspath(path)}: not a token file of version {_VERSION}; "
                f"make it with eg.data.TokenWriter"
            )
        if size != _HEADER.size + count * width:
            raise ArgumentError(
                f"read_tokens: {os.fspath(path)}: {count} tokens of {width} bytes announced, "
                f"{size - _HEADER.size} bytes there"
            )
        if count == 0:
            return np.empty(0, _DTYPES[width])
        return np.memmap(file, _DTYPES[width], "r", _HEADER.size, (count,))


class TokenDataset(Dataset[tuple[Any, Any]]):
    """Windows of a token file: x is `block_size` tokens, y the same one token further on.

    Windows begin `stride` tokens apart, by default one behind the other. With `stride=1` and
    `shuffle=True` a loader draws windows from anywhere.

    >>> import everygrad as eg, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     eg.data.write_tokens(f"{folder}/a.tokens", range(10))
    ...     windows = eg.data.TokenDataset(f"{folder}/a.tokens", block_size=4)
    ...     len(windows), *windows[1]
    (2, array([4, 5, 6, 7]), array([5, 6, 7, 8]))
    """

    def __init__(
        self, path: str | os.PathLike[str], block_size: int, stride: int | None = None
    ) -> None:
        self.path = os.fspath(path)
        self.block_size = positive(block_size, "TokenDataset", "block_size")
        self.stride = positive(stride or block_size, "TokenDataset", "stride")
        if stride is not None:
            positive(stride, "TokenDataset", "stride")
        self.tokens = read_tokens(path)
        self._length = (len(self.tokens) - 1 - block_size) // self.stride + 1
        if self._length < 1:
            raise ArgumentError(
                f"TokenDataset: {self.path}: a window of block_size={block_size} needs "
                f"{block_size + 1} tokens, the file has {len(self.tokens)}"
            )

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        place = as_int(index, "TokenDataset", "index")
        if not -self._length <= place < self._length:
            raise OutOfRangeError(
                f"TokenDataset: index {index} is outside its {self._length} windows"
            )
        begin = place % self._length * self.stride
        window = np.asarray(self.tokens[begin : begin + self.block_size + 1], np.int64)
        return window[:-1], window[1:]

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        """A spawned worker opens the file itself; the tokens are not sent."""
        return {"path": self.path, "block_size": self.block_size, "stride": self.stride}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # as if it were made there
