"""Kernels as the driver compiled them, cached by their source.

A command needs its pipeline when it is bound to buffers. While a compiled function is recorded
nothing is bound yet, so its pipelines are made on other threads meanwhile, several at once: wgpu
releases the interpreter lock, and a driver takes tenths of a second for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

from everygrad.backends.code_cache import code_cache

# What a pipeline takes, about: bytes, and bytes for each character of its source. Mesa's software
# driver, measured: 0.3 MB for x + 1, 2 for a sine, 5 for lgamma.
_DRIVERS, _SOFTWARE = (1 << 16, 1), (300 << 10, 300)
_MOST_THREADS = 16


class Pipeline:
    """A compiled kernel. The driver holds what was recorded with it."""

    __slots__ = ("__weakref__", "_later", "_raw", "recent")

    def __init__(self, raw: Any, later: Future[Any] | None = None) -> None:
        self._raw = raw
        self._later = later
        self.recent = True

    @property
    def raw(self) -> Any:
        """wgpu's object; waits for the thread that makes it, and raises what that thread raised."""
        if self._later is not None:
            self._raw = self._later.result()
            self._later = None
        return self._raw

    @property
    def has_failed(self) -> bool:
        """Whether the thread that was to make it raised an error."""
        later = self._later
        return later is not None and later.done() and later.exception() is not None


class Pipelines:
    """The pipelines of one device; `make(name, source, layout)` compiles one."""

    def __init__(self, make: Callable[[str, str, Any], Any], software: bool = False) -> None:
        self._make = make
        self._nbytes = _SOFTWARE if software else _DRIVERS
        self._found: dict[str, Pipeline] = {}

    def __len__(self) -> int:
        return len(self._found)

    def get(self, name: str, source: str, layout: Any, later: bool = False) -> Pipeline:
        """The pipeline of a source, compiled now, or by another thread if `later`."""
        found = self._found.get(source)
        if found is None or found.has_failed:  # the next attempt may succeed
            if later:
                found = Pipeline(None, _threads().submit(self._make, name, source, layout))
            else:
                found = Pipeline(self._make(name, source, layout))
            self._found[source] = found
            each, per_character = self._nbytes
            nbytes = each + per_character * len(source)
            code_cache.add(found, nbytes, partial(_drop, self._found, source))
        found.recent = True
        return found


def _drop(pipelines: dict[str, Pipeline], source: str, pipeline: Pipeline) -> None:
    """Drop a pipeline from the cache; kernels that hold it keep working."""
    if pipelines.get(source) is pipeline:
        del pipelines[source]


@lru_cache
def _threads() -> ThreadPoolExecutor:
    """The compiling threads. Their names tell that they use no tensors."""
    count = min(_MOST_THREADS, os.cpu_count() or 1)
    return ThreadPoolExecutor(count, thread_name_prefix="everygrad webgpu")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)
