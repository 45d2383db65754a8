"""The bound on compiled code that is cached for the next call: `config.code_bytes` in all.

Every cache of compiled code (the entries of a jitted function, eager kernels) registers its items
here, with their size and how to drop them, and sets `recent` at each use. When the total exceeds
the bound, items that were not used since the last eviction are dropped, the oldest first, until a
sixteenth of it is free. Dropping removes an item from its own cache; its memory is freed when the
last call that uses it has ended.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from everygrad.core.config import config


class Cacheable(Protocol):
    """What can be registered: it takes weak references."""

    recent: bool  # whether it was used since the last eviction


class _Item(NamedTuple):
    thing: weakref.ref[Any]
    nbytes: int
    drop: Callable[[Any], None]


class CodeCache:
    """Registered items, the oldest first."""

    def __init__(self) -> None:
        self._items: dict[int, _Item] = {}  # by id
        # At least the total. Items that are freed elsewhere do not lower it: `gone` takes no lock.
        # The items are only counted when it exceeds the bound.
        self._at_most = 0
        self._lock = threading.RLock()  # reentrant: a finalizer may run inside a method of this

    def add(self, thing: Any, nbytes: int, drop: Callable[[Any], None]) -> None:
        """Register an item, or update its size. `drop` must hold neither the item nor its cache's
        owner."""
        key = id(thing)
        # native, with the reference for pop's default: what a signal handler raises in a callback
        # written in Python, such as Ctrl-C, is lost
        gone = partial(self._items.pop, key)
        thing.recent = True
        with self._lock:
            self._items.pop(key, None)
            self._items[key] = _Item(weakref.ref(thing, gone), nbytes, drop)
            self._at_most += nbytes
            if self._at_most > config.code_bytes:
                self._at_most = self._shrink(key, config.code_bytes)

    def total(self) -> int:
        """Bytes of all registered items."""
        return sum(item.nbytes for item in list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def _shrink(self, newest: int, bound: int) -> int:
        """Drop what was not used recently; beyond twice the bound, whatever is oldest. What the
        rest takes."""
        total = self.total()
        if total <= bound:
            return total
        wanted = bound - bound // 16  # so that not every new item has all of them counted
        # keys only: pairs would be new objects, whose allocation may run the collector, and `gone`
        for key in list(self._items):
            if total <= wanted or key == newest:
                break
            item = self._items.get(key)
            thing = None if item is None else item.thing()
            if item is None or thing is None:
                continue
            if thing.recent and total <= 2 * bound:
                thing.recent = False
                self._items.pop(key, None)
                self._items[key] = item  # moved to the end
                continue
            self._items.pop(key, None)
            item.drop(thing)
            total -= item.nbytes
        return total

    def after_fork(self) -> None:
        """In a forked child: the thread that held the lock does not exist."""
        self._lock = threading.RLock()


code_cache = CodeCache()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=code_cache.after_fork)
