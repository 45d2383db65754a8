"""A driver without a GPU: memory is the host's, kernels are collected and never run.

Tests use it to check that every kernel compiles, and that launches are as planned.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from everygrad.backends.cuda.source.writer import KernelText

_KEPT = 1 << 16


class DryDriver:
    """The interface of `driver.Driver` as bookkeeping. `texts` are the kernels seen, by name."""

    name = "a dry device"
    arch = "sm_90"
    capability = (9, 0)
    multiprocessors = 132
    shared = 227 << 10
    index = 0
    recycles = False  # memory that no kernel writes must be zero, not reused
    lt = None  # no library: products by our own kernels
    cudnn = None  # and convolutions by their definition
    cusolver = None  # as linear algebra

    def __init__(self) -> None:
        self.texts: dict[str, KernelText] = {}
        self.launched: deque[str] = deque(maxlen=_KEPT)  # kernels, the latest last
        self.limit = 1 << 40
        self.used = 0
        self.stream = 0
        self.events = 0
        self.open_events: set[int] = set()
        self.registered: dict[int, int] = {}  # sizes of the host's blocks, by address

    @property
    def launches(self) -> Counter[str]:
        """How often each of the latest kernels was launched."""
        return Counter(self.launched)

    def enter(self) -> None:
        return

    def function(self, text: KernelText) -> str:
        self.texts[text.name] = text
        return text.name

    def begin(self, text: KernelText) -> Callable[[], str]:
        return partial(self.function, text)

    def unload(self) -> None:
        return

    def launcher(self, kernel: Any) -> Callable[[], None]:
        """A native call, as a launch is: no signal handler runs inside."""
        return partial(self.launched.append, kernel.function)

    def recover(self, kernel: Any, error: Exception) -> None:
        raise error

    def malloc(self, size: int) -> tuple[Any, int] | None:
        if size > self.limit:
            return None
        block = np.zeros(size + 512, np.uint8)  # aligned as the pool's
        start = -block.ctypes.data % 512
        return block, block.ctypes.data + start

    def upload(self, ptr: int, data: Any) -> None:
        _bytes_at(ptr, data.size)[:] = data

    def pinned(self, size: int) -> Any:
        return np.zeros(size, np.uint8)

    def register(self, address: int, size: int) -> bool:
        self.registered[address] = size
        return True

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def fill(self, pinned: Any, piece: Any) -> None:
        pinned[:] = piece

    def upload_pinned(self, ptr: int, pinned: Any, size: int, stream: int) -> None:
        self.upload(ptr, pinned if isinstance(pinned, np.ndarray) else _bytes_at(pinned.ptr, size))

    def marked(self, stream: int | None = None) -> int:
        """The number of the event, each used for one wait."""
        self.events += 1
        self.open_events.add(self.events)
        return self.events

    def wait(self, stream: int, event: int) -> None:
        self.open_events.remove(event)

    def forget(self, event: int) -> None:
        self.open_events.remove(event)

    def new_stream(self) -> int:
        return 1

    def end_stream(self, stream: int) -> None:
        return

    def download(self, ptr: int, size: int) -> Download:
        return Download(_bytes_at(ptr, size).copy())

    def clear(self, ptr: int, size: int) -> None:
        _bytes_at(ptr, size)[:] = 0

    def copy_from(self, other: DryDriver, target: int, source: int, size: int) -> None:
        _bytes_at(target, size)[:] = _bytes_at(source, size)

    def stopwatch(self) -> Callable[[], float]:
        """The host's clock: nothing else runs here."""
        start = perf_counter()
        return lambda: perf_counter() - start

    def order(self, first: int, second: int) -> None:
        return

    def synchronize(self) -> None:
        return

    def trim(self) -> None:
        return

    def statistics(self) -> dict[str, int]:
        return {"used": 0, "held": 0, "free": self.limit, "total": self.limit}


class Download:
    """A copy to the host, complete at once."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def wait(self) -> Any:
        return self.data


def _bytes_at(ptr: int, size: int) -> Any:
    """The host's memory at an address, as an array."""
    facts = {"data": (ptr, False), "shape": (size,), "typestr": "|u1", "version": 3}
    return np.asarray(type("Bytes", (), {"__array_interface__": facts})())
