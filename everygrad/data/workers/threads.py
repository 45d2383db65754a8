"""Worker threads, and the caller itself as the only worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any
from weakref import finalize

from everygrad.data.permutation import mixed
from everygrad.data.workers import worker_info
from everygrad.data.workers.fetch import Fetcher, Job, fetcher, name_of_item
from everygrad.data.workers.item_seeds import ProcessSeeds, ThreadSeeds
from everygrad.data.workers.worker_info import WorkerInfo
from everygrad.errors import WorkerError

_GRACE = 2.0  # seconds that threads have to finish their items when the loader closes


class Caller:
    """No workers: a batch is made when it is taken, by whoever takes it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._seeds = ProcessSeeds()
        self._asked: dict[int, Any] = {}
        self._fetcher: Fetcher | None = None
        self._begun: tuple[int, Any] = (0, None)

    def begin(self, seed: int, resume: list[Any] | None) -> None:
        self._asked.clear()
        self._fetcher = None
        self._begun = (seed, None if resume is None else resume[0])

    def submit(self, worker: int, number: int, indices: Any) -> None:
        self._asked[number] = indices

    def take(self, number: int) -> tuple[Any, Any]:
        seed, resume = self._begun
        here = worker_info.here
        with self._seeds.scope():
            around, here.pass_seed = here.pass_seed, seed
            try:
                if self._fetcher is None:
                    self._fetcher = fetcher(self._job, self._seeds, seed, 0, resume)
                batch = self._fetcher.fetch(number, self._asked.pop(number))
                return batch, self._fetcher.state()
            finally:
                here.pass_seed = around

    def close(self) -> None:
        self._asked.clear()
        self._fetcher = None


class _Thread:
    """What one worker thread does. It knows the loader's queues, never the loader: that one is
    collected while the thread waits."""

    def __init__(self, job: Job, number: int, workers: int, init: Any, results: Any) -> None:
        self._job, self._number, self._workers, self._init = job, number, workers, init
        self._results: SimpleQueue[Any] = results
        self.commands: SimpleQueue[Any] = SimpleQueue()
        self._seeds = ThreadSeeds()
        self._fetcher: Any = None  # or what was raised as the pass began
        self.place = 0
        self.closed = False

    def serve(self) -> None:
        with self._seeds.scope():
            while (command := self.commands.get()) is not None:
                if self.closed:
                    return
                name, number, given = command
                if number is None:
                    self._begin(*given)
                    continue
                self.place = 0
                try:
                    if isinstance(self._fetcher, BaseException):
                        raise self._fetcher
                    batch = self._fetcher.fetch(number, given)
                    self._results.put((name, number, None, (batch, self._fetcher.state())))
                    del batch
                except BaseException as error:
                    item = name_of_item(given, self.place, self._job.batched)
                    error.add_note(
                        f"Raised in worker {self._number} (a thread) of a DataLoader, {item} of "
                        f"batch {number}"
                    )
                    self._results.put((name, number, error, None))

    def _progress(self, place: int) -> None:
        self.place = place

    def _begin(self, seed: int, resume: Any) -> None:
        own = mixed(seed, self._number)
        self._seeds(seed, self._number)
        info = WorkerInfo(self._number, self._workers, own, self._job.dataset)
        worker_info.here.info, worker_info.here.pass_seed = info, seed
        try:
            if self._init is not None:
                init, self._init = self._init, None
                init(self._number)
            self._fetcher = fetcher(
                self._job, self._seeds, seed, self._number, resume, self._progress
            )
        except BaseException as error:
            self._fetcher = error


class ThreadWorkers:
    """Threads that fetch batches: for datasets whose work releases the interpreter lock."""

    def __init__(
        self, job: Job, count: int, init: Callable[[int], Any] | None, timeout: float
    ) -> None:
        self._timeout = timeout
        self._pass = 0
        self._results: SimpleQueue[Any] = SimpleQueue()
        self._ready: dict[int, tuple[BaseException | None, Any]] = {}
        self._job = job
        self._asked: dict[int, tuple[int, Any]] = {}
        self._workers = [_Thread(job, n, count, init, self._results) for n in range(count)]
        self._threads = [
            threading.Thread(target=w.serve, name=f"everygrad-loader-{n}", daemon=True)
            for n, w in enumerate(self._workers)
        ]
        self._finalizer = finalize(self, _close, self._workers, self._threads, self._results)
        for t in self._threads:
            t.start()

    def begin(self, seed: int, resume: list[Any] | None) -> None:
        self._pass += 1
        self._ready.clear()
        self._asked.clear()
        for n, w in enumerate(self._workers):
            w.commands.put((self._pass, None, (seed, None if resume is None else resume[n])))

    def submit(self, worker: int, number: int, indices: Any) -> None:
        self._asked[number] = (worker, indices)
        self._workers[worker].commands.put((self._pass, number, indices))

    def take(self, number: int) -> tuple[Any, Any]:
        while number not in self._ready:
            try:
                name, which, error, value = self._results.get(timeout=self._timeout or None)
            except Empty:
                worker, indices = self._asked[number]
                item = name_of_item(indices, self._workers[worker].place, self._job.batched)
                raise WorkerError(
                    f"DataLoader: no batch {number} within timeout={self._timeout} seconds; "
                    f"worker {worker} (a thread) is busy, last with {item}"
                ) from None
            if name is None:
                raise WorkerError("DataLoader: its workers are closed")
            if name == self._pass:
                self._ready[which] = (error, value)
        self._asked.pop(number, None)
        error, value = self._ready.pop(number)
        if error is not None:
            if isinstance(error, StopIteration | StopAsyncIteration):  # would end the loop silently
                raise WorkerError(f"DataLoader: a dataset raised {error!r}") from error
            raise error
        return value

    def close(self) -> None:
        self._ready.clear()
        self._finalizer()

    def disown(self) -> None:
        """Forget the workers: this process is a fork of the one that has them."""
        self._finalizer.detach()


def _close(workers: list[_Thread], threads: list[threading.Thread], results: Any) -> None:
    results.put((None, None, None, None))  # for a thread of ours that waits
    for w in workers:
        w.closed = True
        w.commands.put(None)
    limit = time.monotonic() + _GRACE
    for t in threads:
        if t is not threading.current_thread():  # a worker's own garbage collection may get here
            t.join(max(0.0, limit - time.monotonic()))
