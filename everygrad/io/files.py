"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

# a name that is there already, a link included, is another's: never written through
_NEW = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def replace(path: Path, data: bytes) -> None:
    """Write a file beside `path` under a name nobody can guess, and put it in its place. A link of
    that name is replaced, not followed."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    file = os.open(temporary, _NEW, 0o666)  # less the umask, as any file
    try:
        with open(file, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """The new name on the disk as well, where a folder can be synced."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(there)
    finally:
        os.close(there)
