"""One pool of threads for work that releases the interpreter lock.

Work is split into parts, and all threads, the caller's too, take the next part until none remains:
a worker that wakes late costs nothing, because the others have done its share.
"""

from __future__ import annotations

import itertools
import os
import threading
from _thread import start_new_thread
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from everygrad.errors import ArgumentError

Task = Callable[[int, int], object]
T = TypeVar("T")

# more parts than threads evens out cores of unequal speed; each part costs about 1 us of Python
_PARTS_PER_THREAD = 4


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return os.cpu_count() or 1


def _nothing(lo: int, hi: int) -> None:
    """The task of a finished job, which keeps no buffer alive."""


class _Job:
    """One parallel_for: parts to claim, helpers at work, the first exception.

    Signals reach the main thread, which is a caller and never a helper. Helpers are therefore never
    interrupted, and count themselves; nothing waits for a part that an interrupted caller claimed.
    """

    __slots__ = ("_claims", "_closed", "_count", "_gone", "_helping", "_lock", "_parts", "_task",
                 "error")  # fmt: skip

    def __init__(self, count: int, parts: int, task: Task) -> None:
        self._count = count
        self._parts = parts
        self._task: Task = task
        self._claims = itertools.count()  # next() on it is atomic
        self._lock = threading.Lock()
        self._helping = 0
        self._closed = False
        self._gone: SimpleQueue[None] = SimpleQueue()  # one item for each helper that has left
        self.error: BaseException | None = None

    def work(self) -> None:
        """Take parts until none remains, or one failed."""
        count, parts = self._count, self._parts
        while self.error is None and (part := next(self._claims)) < parts:
            self._task(count * part // parts, count * (part + 1) // parts)

    def help(self) -> None:
        """A helper's share. Never raises: the caller of parallel_for does."""
        with self._lock:
            if self._closed:  # taken from the queue after all was done
                return
            self._helping += 1
        try:
            self.work()
        except BaseException as error:
            self.error = self.error or error
        finally:
            with self._lock:
                self._helping -= 1
            self._gone.put(None)

    def finish(self) -> None:
        """Return when no part is running any more; may be called again when interrupted."""
        with self._lock:
            self._closed = True
        while self._helping:  # each helper still inside puts one item when it leaves
            self._gone.get()
        self._task = _nothing  # a worker may find this job in the queue much later


class _Pool:
    """Daemon workers on one queue; grown when first needed, never shrunk."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.lock = threading.Lock()
        self.workers = 0

    def grow(self, workers: int) -> None:
        with self.lock:
            while self.workers < workers:
                # not threading.Thread, whose start() may be interrupted with a lock held that the
                # thread waits for
                start_new_thread(self.serve, (f"everygrad-{self.workers}",))
                self.workers += 1

    def serve(self, name: str) -> None:
        threading.current_thread().name = name
        _inside.value = True
        while True:
            job = self.jobs.get()
            job.help()
            del job  # do not keep the task's buffers alive while parked


class _Inside(threading.local):
    """Whether this thread is already working on a part."""

    value = False


class _Uninterrupted:
    """One thread for work that a signal handler must not end halfway: handlers run on the main
    thread only. Such is all that other people's Python code does with a lock held."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]]] = SimpleQueue()
        self.lock = threading.Lock()
        self.started = False

    def run(self, work: Callable[[], Any]) -> Any:
        """What `work` gives or raises. An interrupted wait does not end the work."""
        with self.lock:
            if not self.started:
                start_new_thread(self.serve, ())
                self.started = True
        answers: SimpleQueue[Any] = SimpleQueue()
        self.calls.put((partial(copy_context().run, work), answers))
        made, error = answers.get()
        if error is None:
            return made
        try:
            raise error
        finally:
            del error  # whose traceback leads back to here

    def serve(self) -> None:
        threading.current_thread().name = "everygrad-uninterrupted"
        while True:
            work, answers = self.calls.get()
            try:
                answers.put((work(), None))
            except BaseException as error:
                answers.put((None, error))
            del work, answers  # do not keep what they hold alive while parked


_inside = _Inside()
_pool = _Pool()
_uninterrupted = _Uninterrupted()
_threads = _usable_cores()


def _after_fork() -> None:
    """A forked child has the parent's pool object but none of its threads."""
    global _pool, _uninterrupted
    _pool = _Pool()
    _uninterrupted = _Uninterrupted()
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


def uninterrupted(work: Callable[[], T]) -> T:
    """What `work` gives, on a thread where no signal handler runs."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    made: T = _uninterrupted.run(work)
    return made


def parallel_for(count: int, grain: int, task: Task) -> None:
    """Call `task(lo, hi)` on ranges that cover [0, count) once, on several threads.

    Ranges hold at least `grain` items. Returns when all are done; raises the first exception any
    raised, in which case ranges not yet begun are skipped. Runs in the caller only when there are
    fewer than two grains, one thread, or when called from inside a task.
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
    failed: BaseException | None = None
    try:
        if pool.workers < helpers:
            pool.grow(helpers)
        for _ in range(helpers):
            pool.jobs.put(job)
        _inside.value = True
        job.work()
    except BaseException as error:
        job.error = failed = job.error or error
    finally:
        _inside.value = False
    while True:  # however often it is interrupted: helpers still write into the caller's buffers
        try:
            job.finish()
            break
        except BaseException as error:
            failed = failed or error
    failed = job.error or failed
    if failed is not None:
        try:
            raise failed
        finally:
            job.error = failed = None  # whose traceback leads back to here
