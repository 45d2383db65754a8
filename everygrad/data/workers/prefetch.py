"""Moving batches to a device, the next one while the last one computes."""

from __future__ import annotations

import threading
from queue import Empty, Full, Queue
from typing import Any
from weakref import finalize

import numpy as np

from everygrad.backends import base
from everygrad.core.tensor import Tensor, wrap
from everygrad.data.collate import rebuilt


def moved(batch: Any, device: str, uploads: base.Uploads) -> Any:
    """The same containers, with every tensor on the device, once they have arrived."""

    def move(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        here = type(t._data) is np.ndarray and t._node is None
        return wrap(uploads.put(t._data)) if here and device != "cpu" else t.to(device)

    return rebuilt(batch, move)


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

    On CUDA a move goes through pinned memory, on a stream of its own: the device copies one batch
    while it computes with the one before.
    """

    def __init__(self, source: Any, device: str, ahead: int = 1) -> None:
        self._shared = _Shared(ahead)
        self._uploads = base.get(device).uploads()
        self._thread = threading.Thread(
            target=_serve,
            args=(source, device, self._uploads, self._shared),
            name="everygrad-prefetch",
            daemon=True,
        )
        self._finalizer = finalize(self, _close, self._shared, self._thread, self._uploads)
        self._thread.start()

    def take(self) -> Any:
        """The next batch with its position; raises what the source raised."""
        kind, value = self._shared.queue.get()
        if kind == "error":
            raise value
        batch, position, sent = value
        self._uploads.arrived(sent)
        return batch, position

    def stop(self) -> None:
        """Take no further batch; returns at once."""
        self._shared.stop.set()

    def close(self) -> None:
        self._finalizer()


def _serve(source: Any, device: str, uploads: base.Uploads, shared: _Shared) -> None:
    try:
        while not shared.stop.is_set():
            batch, position = source()
            batch = moved(batch, device, uploads)
            shared.put(("batch", (batch, position, uploads.sent())))
            del batch
    except BaseException as error:  # StopIteration at the end too
        shared.put(("error", error))


def _close(shared: _Shared, thread: threading.Thread, uploads: base.Uploads) -> None:
    shared.stop.set()
    try:
        while True:
            shared.queue.get_nowait()
    except Empty:
        pass
    if thread is not threading.current_thread():
        thread.join(5.0)
    uploads.close()
