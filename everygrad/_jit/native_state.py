"""What objects written in C keep to themselves, and what is outside of the process.

The first becomes a value that can be compared before a replay; reading the second is refused, since
it may be another at the next call.
"""

from __future__ import annotations

import _thread
import io
import os
import random
import sys
import weakref
from collections.abc import Sequence
from pathlib import PurePath
from queue import SimpleQueue
from typing import Any

from everygrad.errors import TraceError

_LOCKS = (_thread.LockType, _thread.RLock)
# methods that say how such an object is, without changing it
_ASKED: tuple[tuple[tuple[type, ...], frozenset[str]], ...] = (
    (_LOCKS, frozenset(("locked",))),
    ((SimpleQueue,), frozenset(("qsize", "empty"))),
    ((PurePath,), frozenset(("exists", "is_file", "is_dir"))),
)
_FILES = {f"genericpath.{name}" for name in ("exists", "isfile", "isdir", "getsize", "getmtime")}
_FILES |= {f"{os.name}.listdir", f"{os.name}path.exists", "posixpath.lexists"}
_READING = frozenset(("read", "read1", "readline", "readlines", "readinto", "readall", "__next__"))
_TAKING = frozenset(("get", "get_nowait"))  # what is put in is no part of the result
# what tracing itself changes: it holds what it sees, and collects no garbage
_DISTURBED = {"gc.isenabled", "gc.get_count", "sys.getrefcount", "weakref.getweakrefcount"}
_DISTURBED |= {"gc.get_objects", "gc.get_referrers", "_weakref.getweakrefcount"}
_DRAWING = {f"{os.name}.urandom", "posix.urandom", "uuid.uuid1", "uuid.uuid4"}


def kept_by(held: Any) -> Any:
    """What an object of one of a few classes of the library keeps; None of any other class."""
    if isinstance(held, io.StringIO | io.BytesIO):
        return "closed" if held.closed else (held.getvalue(), held.tell())
    decimal = sys.modules.get("decimal")
    if decimal is not None and isinstance(held, decimal.Context):
        return _settings_of(held)
    return None


def _settings_of(context: Any) -> tuple[Any, ...]:
    """All that decides how decimal numbers are computed; not which exceptions were noted."""
    traps = sorted(kind.__name__ for kind, trapped in context.traps.items() if trapped)
    limits = (context.prec, context.Emin, context.Emax, context.capitals, context.clamp)
    return (*limits, context.rounding, *traps)


def decimal_settings() -> tuple[Any, ...] | None:
    """Those in force in this context; None where nobody has imported decimal numbers."""
    decimal = sys.modules.get("decimal")
    return None if decimal is None else _settings_of(decimal.getcontext())


def is_decimal(value: Any) -> bool:
    decimal = sys.modules.get("decimal")
    if decimal is None:
        return False
    return value is decimal.Decimal or isinstance(value, decimal.Decimal)


def is_alive(reference: weakref.ref[Any]) -> bool:
    return reference() is not None


def only_asks(callee: Any, owner: Any, name: str) -> bool:
    """Whether a call tells how an object written in C, or the file system, is."""
    if name in _FILES:
        return True
    method = getattr(callee, "__name__", "")
    return any(isinstance(owner, kinds) and method in names for kinds, names in _ASKED)


def refuse_outside(callee: Any, owner: Any, name: str, args: Sequence[Any]) -> None:
    """Raise where a call reads a file or a database, takes from a queue, asks the system for
    random numbers, or the interpreter for what tracing changes."""
    method = getattr(callee, "__name__", "")
    module = str(getattr(callee, "__module__", ""))
    systems = isinstance(owner, random.SystemRandom) or callee is random.SystemRandom
    if name in _DRAWING or module == "secrets" or systems:
        raise TraceError(
            f"jit: the function draws random numbers by {method}(), which a replay would not do "
            f"again; draw with eg.rand() and its relatives, or pass the numbers as arguments"
        )
    if name in _DISTURBED:
        raise TraceError(
            f"jit: the function asks {name}(), whose answer tracing changes; ask outside, and pass "
            f"what it says as an argument"
        )
    if callee is open:
        what = "a file" if _reads(args[1:2]) else ""
    elif isinstance(owner, io.IOBase):
        what = "a file" if kept_by(owner) is None and method in _READING else ""
    elif isinstance(owner, PurePath):
        what = "a file" if method in ("read_text", "read_bytes") else ""
    elif isinstance(owner, SimpleQueue):
        what = "a queue" if method in _TAKING else ""
    else:
        what = "a database" if type(owner).__module__ == "sqlite3" else ""
    if what:
        raise TraceError(
            f"jit: the function uses {what} by {method}(), which a replay would not do again; read "
            f"it outside, and pass what comes of it as an argument"
        )


def _reads(mode: Sequence[Any]) -> bool:
    """Whether open() with this mode reads."""
    given = mode[0] if mode and type(mode[0]) is str else "r"
    return not set(given) & set("wax") or "+" in given
