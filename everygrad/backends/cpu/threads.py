"""One pool of threads for work that releases the interpreter lock.

Work is cut into parts and everyone, the caller too, takes the next part until none is left: a
worker that wakes late costs nothing, because the caller has done its share meanwhile.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from everygrad.errors import ArgumentError

Task = Callable[[int, int], object]

# more parts than threads evens out cores of unequal speed; each part costs about 1 us of Python
_PARTS_PER_THREAD = 4


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return os.cpu_count() or 1


def _nothing(lo: int, hi: int) -> None:
    """The task of a finished job: keeps no buffer alive."""


class _Job:
    """One parallel_for: parts to claim, parts still running, the first exception."""

    __slots__ = ("_claims", "_count", "_finished", "_left", "_lock", "_parts", "_task", "error")

    def __init__(self, count: int, parts: int, task: Task) -> None:
        self._count = count
        self._parts = parts
        self._task: Task = task
        self._claims = itertools.count()  # next() on it is atomic
        self._left = parts
        self._lock = threading.Lock()
        self._finished = threading.Lock()
        self._finished.acquire()
        self.error: BaseException | None = None

    def work(self) -> None:
        """Take parts until none is left. Never raises: the caller of parallel_for does."""
        count, parts = self._count, self._parts
        while (part := next(self._claims)) < parts:
            try:
                if self.error is None:
                    self._task(count * part // parts, count * (part + 1) // parts)
            except BaseException as error:  # KeyboardInterrupt too: it belongs to the caller
                self.error = self.error or error
            with self._lock:
                self._left -= 1
                last = not self._left
            if last:
                self._finished.release()

    def wait(self) -> None:
        """Return when no part is running any more, even if interrupted meanwhile."""
        while True:
            try:
                self._finished.acquire()
                self._task = _nothing  # a worker may find this job in the queue much later
                return
            except BaseException as error:  # workers still write into the caller's buffers
                self.error = self.error or error


class _Pool:
    """Daemon workers on one queue; grown when first needed, never shrunk."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.lock = threading.Lock()
        self.workers = 0

    def grow(self, workers: int) -> None:
        with self.lock:
            while self.workers < workers:
                name = f"everygrad-{self.workers}"
                threading.Thread(target=self.serve, name=name, daemon=True).start()
                self.workers += 1

    def serve(self) -> None:
        _inside.value = True
        while True:
            job = self.jobs.get()
            job.work()
            del job  # do not keep the task's buffers alive while parked


class _Inside(threading.local):
    """Whether this thread is already working on a part."""

    value = False


_inside = _Inside()
_pool = _Pool()
_threads = _usable_cores()


def _after_fork() -> None:
    """A forked child has the parent's pool object but none of its threads."""
    global _pool
    _pool = _Pool()
    _inside.value = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def inside() -> bool:
    """Whether this thread is working on a part; native code then keeps to this thread too."""
    return _inside.value


def num_threads() -> int:
    """How many threads share work, the calling one included."""
    return _threads


def set_num_threads(count: int) -> None:
    """Share work between `count` threads from now on, the calling one included."""
    global _threads
    if count < 1:
        raise ArgumentError(f"set_num_threads: {count} threads cannot work; give 1 or more")
    _threads = count


def parallel_for(count: int, grain: int, task: Task) -> None:
    """Call `task(lo, hi)` on ranges that cover [0, count) once, on several threads.

    Ranges hold at least `grain` items. Returns when all are done; raises the first exception any
    raised, in which case ranges not yet begun are left out. Runs in the caller alone when there
    are fewer than two grains, one thread, or when called from inside a task.
    """
    if count <= 0:
        return
    helpers = _threads - 1
    if helpers < 1 or count < 2 * grain or _inside.value:
        task(0, count)
        return
    parts = min(count // max(grain, 1), _threads * _PARTS_PER_THREAD)
    helpers = min(helpers, parts - 1)
    job = _Job(count, parts, task)
    pool = _pool
    if pool.workers < helpers:
        pool.grow(helpers)
    for _ in range(helpers):
        pool.jobs.put(job)
    _inside.value = True
    try:
        job.work()
    finally:
        _inside.value = False
        job.wait()
    if job.error is not None:
        raise job.error
