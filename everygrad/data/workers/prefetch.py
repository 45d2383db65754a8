"""Moving batches to a device, the next one while the last one computes."""

from __future__ import annotations

import threading
from queue import Empty, Full, Queue
from typing import Any
from weakref import finalize

from everygrad.core.tensor import Tensor
from everygrad.data.collate import rebuilt


def moved(batch: Any, device: str) -> Any:
    """The same containers, with every tensor on the device."""
    return rebuilt(batch, lambda t: t.to(device) if isinstance(t, Tensor) else t)


class _Shared:
    """What the thread and the loader both know."""

    def __init__(self, ahead: int) -> None:
        self.queue: Queue[Any] = Queue(ahead)
        self.stop = threading.Event()

    def put(self, value: Any) -> None:
        while not self.stop.is_set():
            try:
                self.queue.put(value, timeout=0.1)
                return
            except Full:
                continue


class DevicePrefetch:
    """Takes batches from `source` in a thread of its own and moves them to a device.

    On CUDA a move goes through pinned memory and waits for nothing; meanwhile the caller launches
    the step of the batch before.
    """

    def __init__(self, source: Any, device: str, ahead: int = 1) -> None:
        self._shared = _Shared(ahead)
        self._thread = threading.Thread(
            target=_serve,
            args=(source, device, self._shared),
            name="everygrad-prefetch",
            daemon=True,
        )
        self._finalizer = finalize(self, _close, self._shared, self._thread)
        self._thread.start()

    def take(self) -> Any:
        """The next batch with its position; raises what the source raised."""
        kind, value = self._shared.queue.get()
        if kind == "error":
            raise value
        return value

    def stop(self) -> None:
        """Take no further batch; returns at once."""
        self._shared.stop.set()

    def close(self) -> None:
        self._finalizer()


def _serve(source: Any, device: str, shared: _Shared) -> None:
    try:
        while not shared.stop.is_set():
            batch, position = source()
            shared.put(("batch", (moved(batch, device), position)))
            del batch
    except BaseException as error:  # StopIteration at the end too
        shared.put(("error", error))


def _close(shared: _Shared, thread: threading.Thread) -> None:
    shared.stop.set()
    try:
        while True:
            shared.queue.get_nowait()
    except Empty:
        pass
    if thread is not threading.current_thread():
        thread.join(5.0)
