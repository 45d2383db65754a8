"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from everygrad.core.nearest import nearest
from everygrad.errors import ArgumentError, FileError, MissingFileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # asked for before each use

# a name that is there already, a link included, is another's: never written through
_NEW = (
    os.O_RDWR
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
# a pipe under that name must not be waited for
_OLD = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)

_OURS = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")
_OF_CHECKPOINTS = "; eg.load_latest takes a folder of checkpoints"
_YOUNG = 1.0  # seconds between the making of a file and its lock, at most


def as_path(path: Any, what: str) -> Path:
    """A path that a user gave."""
    if isinstance(path, str | os.PathLike):
        return Path(os.fsdecode(path))
    raise ArgumentError(f"{what}: a path is text or a Path, got {type(path).__name__}")


@contextmanager
def replacing(path: Path) -> Iterator[int]:
    """A new file to be written, by its descriptor, under a name nobody can guess; behind the block
    it is on the disk and in the place of `path`. If the block raises, nothing has changed. A link
    of that name is replaced, not followed."""
    remove_orphans(path.parent, path.name)  # each may be as large as this one
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    file = os.open(temporary, _NEW, 0o666)  # less the umask, as any file
    try:
        try:
            _lock(file)
            yield file
            os.fsync(file)
            if fcntl is not None:  # while it is locked: nobody may take it for an orphan
                os.replace(temporary, path)
        finally:
            os.close(file)
        if fcntl is None:  # Windows renames no file that is open
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _lock(file: int) -> None:
    if fcntl is not None:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def replace(path: Path, data: bytes) -> None:
    """Put a file with this content in the place of `path`."""
    with replacing(path) as file:
        write_at(file, memoryview(data), 0)


def write_at(file: int, data: memoryview, offset: int) -> None:
    """All of `data`, at an offset of a file."""
    while len(data):
        done = _pwrite(file, data, offset)
        data, offset = data[done:], offset + done


def read_at(file: int, into: memoryview, offset: int, name: str) -> None:
    """Fill `into` with what lies at an offset of a file."""
    while len(into):
        done = _pread(file, into, offset)
        if done == 0:
            raise FileError(f"{name}: ends at byte {offset}, where {len(into)} more belong to it")
        into, offset = into[done:], offset + done


if hasattr(os, "preadv"):

    def _pwrite(file: int, data: memoryview, offset: int) -> int:
        return os.pwrite(file, data, offset)

    def _pread(file: int, into: memoryview, offset: int) -> int:
        return os.preadv(file, [into], offset)

else:  # Windows, where one thread at a time moves the file's position
    from threading import Lock

    _position = Lock()

    def _pwrite(file: int, data: memoryview, offset: int) -> int:
        with _position:
            os.lseek(file, offset, os.SEEK_SET)
            return os.write(file, data)

    def _pread(file: int, into: memoryview, offset: int) -> int:
        with _position:
            os.lseek(file, offset, os.SEEK_SET)
            data = os.read(file, len(into))
        into[: len(data)] = data
        return len(data)


@contextmanager
def reading(path: Path, what: str) -> Iterator[tuple[int, int]]:
    """A plain file's descriptor and size; pipes, devices and folders are refused by name."""
    try:
        file = os.open(path, _OLD)
    except FileNotFoundError:
        raise MissingFileError(f"{what}: {missing(path)}") from None
    except IsADirectoryError:
        raise FileError(f"{what}: {path} is a folder{_OF_CHECKPOINTS}") from None
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            kind = f"a folder{_OF_CHECKPOINTS}" if stat.S_ISDIR(about.st_mode) else "no plain file"
            raise FileError(f"{what}: {path} is {kind}")
        yield file, about.st_size
    finally:
        os.close(file)


def missing(path: Path) -> str:
    """That there is no such file, and what there is."""
    try:
        there = sorted(os.listdir(path.parent))
    except OSError:
        return f"there is no folder {path.parent}"
    close = nearest(path.name, there[:10_000])
    return f"there is no file {path}" + ("" if close is None else f"; there is {close!r}")


def remove_orphans(folder: Path, of: str | None = None) -> list[Path]:
    """Delete what processes that were killed while they wrote have left in a folder, of one name or
    of all."""
    if fcntl is None:
        return []
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".tmp"))
    except OSError:  # who writes there says what is wrong with it
        return []
    removed = []
    for path in (folder / n for n in names if (m := _OURS.fullmatch(n)) and of in (None, m[1])):
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while someone writes
                if time.time() - os.fstat(file).st_mtime > _YOUNG:
                    path.unlink()
                    removed.append(path)
            finally:
                os.close(file)
    return removed


def _sync(folder: Path) -> None:
    """The new name on the disk as well, where a folder can be synced."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(there)
    finally:
        os.close(there)
