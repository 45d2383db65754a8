"""What was compiled and is kept for the next call: within `config.code_bytes` in all.

Whoever keeps something compiled (an entry of a jitted function, an eager kernel) enters it here,
with what it takes and how to drop it, and sets its `recent` at each use. When the sum grows beyond
the bound, what was not used since this was last looked at is dropped, the oldest first. Dropping
takes a thing out of its cache; its memory goes when the last call that uses it has ended.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from everygrad.core.config import config


class Cacheable(Protocol):
    """What can be kept: it takes weak references."""

    recent: bool  # whether it was used since somebody looked


class _Item(NamedTuple):
    thing: weakref.ref[Any]
    nbytes: int
    drop: Callable[[Any], None]


class CodeCache:
    """Things, the oldest first."""

    def __init__(self) -> None:
        self._items: dict[int, _Item] = {}  # by id
        self._lock = threading.RLock()  # a finalizer may come here while this thread is here

    def add(self, thing: Any, nbytes: int, drop: Callable[[Any], None]) -> None:
        """Keep a thing, or note that it takes another number of bytes now. `drop` must hold
        neither the thing nor its cache's owner."""
        key = id(thing)

        def gone(ref: Any) -> None:
            found = self._items.get(key)
            if found is not None and found.thing is ref:
                del self._items[key]

        thing.recent = True
        with self._lock:
            self._items.pop(key, None)
            self._items[key] = _Item(weakref.ref(thing, gone), nbytes, drop)
            self._shrink(key)

    def total(self) -> int:
        """Bytes of all things that are kept."""
        return sum(item.nbytes for item in list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def _shrink(self, newest: int) -> None:
        """Drop what was not used lately; beyond twice the bound, whatever is oldest."""
        bound = config.code_bytes
        left = self.total()
        if left <= bound:
            return
        # keys alone: pairs would be new objects, whose making may run the collector, and `gone`
        for key in list(self._items):
            if left <= bound or key == newest:
                return
            item = self._items.get(key)
            thing = None if item is None else item.thing()
            if item is None or thing is None:
                continue
            if thing.recent and left <= 2 * bound:
                thing.recent = False
                self._items.pop(key, None)
                self._items[key] = item  # behind all others
                continue
            self._items.pop(key, None)
            item.drop(thing)
            left -= item.nbytes

    def after_fork(self) -> None:
        """In a forked child: whoever held the lock is gone."""
        self._lock = threading.RLock()


code_cache = CodeCache()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=code_cache.after_fork)
