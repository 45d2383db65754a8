"""Object code on disk, so that later processes need not compile it again.

Code from here is executed, so it is read only from a directory that nobody else can write: a real
directory, not a link, that belongs to this user and gives no write permission to others. Every
entry is checked again: a regular file of this user, of a sensible size, for this very key, with
the right digest. Whatever fails a check is deleted and compiled anew; digests find accidents, the
owner and the permissions keep attackers out. Nothing is ever unpickled or evaluated.

    EVERYGRAD_CACHE_DIR   where; by default `everygrad` in XDG_CACHE_HOME or ~/.cache
    EVERYGRAD_CACHE_MB    how much, 512 by default: beyond it, the least recently used entries go
    EVERYGRAD_CACHE=0     disables it

Any number of processes may share a directory: an entry appears whole or not at all, and one that
vanishes before it is read is compiled again. Where nothing can be written (a full or read-only
disk) everything works without a cache. Windows has no such permissions, and no cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from everygrad.errors import ArgumentError

_MAGIC = b"EGOBJ\r\n\0"
_FORMAT = 1
_HEADER = struct.Struct("<8sQ32sQ32s")  # magic, format, key, length, digest of the payload
LARGEST = 1 << 26  # bytes of one entry; our kernels have thousands
_OURS = re.compile(r"[0-9a-f]{64}\.o|\.[0-9a-f]{64}\.\d+\.[0-9a-f]+\.tmp")
_TOUCH_AFTER = 3600.0  # seconds: a use is noted once an hour, not at every read
_STALE_AFTER = 3600.0  # a temporary file this old belongs to a process that was killed
_CURE = (
    "compiled kernels are not kept; set EVERYGRAD_CACHE_DIR to a directory of your own "
    "(chmod 700), or EVERYGRAD_CACHE=0 to do without"
)


class _Entry(NamedTuple):
    """A file of ours in the directory."""

    used: float
    size: int
    name: str


def default_directory(environment: Mapping[str, str]) -> Path:
    """Where the cache is, by the environment."""
    named = environment.get("EVERYGRAD_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    base = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the specification: relative ones are to be ignored
        return Path(base) / "everygrad"
    return Path.home() / ".cache" / "everygrad"


def _is_private(found: os.stat_result) -> bool:
    """Whether only this user can have written it."""
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _open_directory(path: Path) -> int:
    """A descriptor of the directory, created if needed. Raises an OSError that says what is
    wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if path.is_symlink():
            raise OSError(f"{path} is a symbolic link") from None
    # all else uses this descriptor, so replacing the directory has no effect
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(directory)
    if not _is_private(found):
        os.close(directory)
        if found.st_uid != os.geteuid():
            raise OSError(f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}")
        raise OSError(f"{path} can be written by others (mode {found.st_mode & 0o777:o})")
    return directory


def _read_all(file: int, size: int) -> bytes:
    """Up to `size` bytes; fewer if the file is shorter than it was."""
    data = os.read(file, size)
    while len(data) < size:  # a read may stop early
        more = os.read(file, size - len(data))
        if not more:
            break
        data += more
    return data


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _packed(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(payload).digest()
    return _HEADER.pack(_MAGIC, _FORMAT, bytes.fromhex(key), len(payload), digest) + payload


def _unpacked(key: str, data: bytes) -> bytes | None:
    """The payload of an entry, if it is whole and for this key."""
    if len(data) <= _HEADER.size:
        return None
    magic, number, named, length, digest = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if (magic, number, named) != (_MAGIC, _FORMAT, bytes.fromhex(key)) or length != len(payload):
        return None
    return payload if hashlib.sha256(payload).digest() == digest else None


class DiskCache:
    """Entries in one directory, at most `limit` bytes in all, give or take what other processes add
    meanwhile. Raises OSError where the directory cannot be trusted or created."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit
        self._directory = _open_directory(path)
        self._writable = True
        self._unscanned = 0  # bytes written since the directory was last scanned

    def get(self, key: str) -> bytes | None:
        """The payload under `key` (64 hexadecimal digits), or None."""
        name = f"{key}.o"
        # nonblocking: a pipe in place of an entry must not block
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            file = os.open(name, flags, dir_fd=self._directory)
        except FileNotFoundError:
            return None
        except OSError:  # a link, a socket
            self._remove(name)
            return None
        try:
            found = self._checked(key, file)
        except OSError:
            found = None
        finally:
            os.close(file)
        if found is None:
            self._remove(name)
        return found

    def _checked(self, key: str, file: int) -> bytes | None:
        """The payload in an open file, if all checks pass."""
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or not _is_private(found):
            return None
        if not _HEADER.size < found.st_size <= _HEADER.size + LARGEST:
            return None
        payload = _unpacked(key, _read_all(file, found.st_size))
        if payload is not None and time.time() - found.st_mtime > _TOUCH_AFTER:
            self._touch(file)
        return payload

    def _touch(self, file: int) -> None:
        """Record that an entry was used; a read-only disk does not."""
        try:
            os.utime(file)
        except OSError:
            self._writable = False

    def put(self, key: str, payload: bytes) -> None:
        """Store `payload` under `key`, if possible."""
        if not self._writable or not 0 < len(payload) <= min(LARGEST, self.limit):
            return
        temporary = f".{key}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        try:
            self._write(temporary, f"{key}.o", _packed(key, payload))
        except OSError:  # full, read-only, over quota: it will not be better for the next kernel
            self._writable = False
            self._remove(temporary)
            return
        self._unscanned += len(payload)
        # scanning a large directory is slow, so one entry in 64 does it
        if self._unscanned > self.limit // 32 or int(key[:2], 16) < 4:
            self.trim()

    def _write(self, temporary: str, name: str, data: bytes) -> None:
        """The whole file or none: a temporary file that is renamed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        there = self._directory
        file = os.open(temporary, flags, 0o600, dir_fd=there)
        try:
            _write_all(file, data)
        finally:
            os.close(file)
        os.rename(temporary, name, src_dir_fd=there, dst_dir_fd=there)

    def _remove(self, name: str) -> None:
        """Delete a file of ours; others may have done so already."""
        try:
            if os.lstat(name, dir_fd=self._directory).st_uid == os.geteuid():
                os.unlink(name, dir_fd=self._directory)
        except OSError:
            return

    def _entries(self) -> Iterator[_Entry]:
        """Our files. Anything else in the directory is not touched."""
        with os.scandir(self._directory) as found:
            for file in found:
                if _OURS.fullmatch(file.name):
                    try:
                        facts = file.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    yield _Entry(facts.st_mtime, facts.st_size, file.name)

    def trim(self) -> None:
        """Delete the least recently used entries until a tenth of the limit is free."""
        self._unscanned = 0
        try:
            entries = sorted(self._entries())
        except OSError:
            return
        total = sum(e.size for e in entries)
        wanted = self.limit * 9 // 10 if total > self.limit else total
        now = time.time()
        for used, size, name in entries:
            if total > wanted or (name.endswith(".tmp") and now - used > _STALE_AFTER):
                self._remove(name)
                total -= size


def from_environment(environment: Mapping[str, str]) -> DiskCache | None:
    """The cache the environment asks for; None, and a warning, where it cannot be opened."""
    if environment.get("EVERYGRAD_CACHE") == "0" or not hasattr(os, "geteuid"):
        return None
    text = environment.get("EVERYGRAD_CACHE_MB", "512")
    if not text.isdecimal():
        raise ArgumentError(f"EVERYGRAD_CACHE_MB={text}: give a whole number of megabytes")
    if int(text) == 0:
        return None
    try:
        return DiskCache(default_directory(environment), int(text) << 20)
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        # not RuntimeWarning: those are NumPy's, which dispatch ignores and ops catch
        warnings.warn(f"{error}: {_CURE}", UserWarning, stacklevel=2)
        return None


_cache: DiskCache | None = None
_ready = False
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def current() -> DiskCache | None:
    """The process's cache, set up when first asked for."""
    global _cache, _ready
    if not _ready:
        with _lock:
            if not _ready:
                try:
                    _cache = from_environment(os.environ)
                except Exception:  # not Ctrl-C: a warning that is an error is raised once, too
                    _ready = True
                    raise
                _ready = True
    return _cache


def use(cache: DiskCache | None) -> None:
    """Store object code in `cache` from now on; None disables it."""
    global _cache, _ready
    with _lock:
        _cache, _ready = cache, True


def get(key: str) -> bytes | None:
    """The object code under `key`, or None."""
    cache = current()
    return None if cache is None else cache.get(key)


def put(key: str, code: bytes) -> None:
    """Store object code for later processes."""
    cache = current()
    if cache is not None:
        cache.put(key, code)
