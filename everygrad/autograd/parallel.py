"""The backward pass on several threads, bit for bit what one thread gives.

The order of summation is that of the sequential pass, worked out beforehand from the graph; a
contribution that comes early waits for its turn. Workers wait for tickets in a native queue; every
outcome, an exception included, closes the pass and hands out more: nothing can be left waiting.
"""

from __future__ import annotations

import heapq
import os
import threading
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from everygrad.autograd.engine import Grad, Pass, add, complete, fitted
from everygrad.autograd.graph import Node
from everygrad.core.scopes import drain


def _sequence(work: Pass) -> list[Node]:
    """The order in which the sequential pass would run the nodes."""
    counts = dict(work.counts)
    ready, order = work.start[::-1], []
    while ready:
        node = ready.pop()
        order.append(node)
        for parent in node.parents:
            if parent is not None:
                counts[parent] -= 1
                if not counts[parent]:
                    (order if parent.is_leaf else ready).append(parent)
    return order


class _Inbox:
    """Contributions to one node: summed in their fixed order as far as they have come."""

    __slots__ = ("early", "next", "total")

    def __init__(self, seed: Grad) -> None:
        self.total = seed
        self.next = 0
        self.early: dict[int, Grad] = {}

    def put(self, turn: int, g: Grad) -> None:
        self.early[turn] = g
        while self.next in self.early:
            g = self.early.pop(self.next)
            self.next += 1
            if g is not None:
                self.total = g if self.total is None else add(self.total, g)


class _Parallel:
    def __init__(self, work: Pass, workers: int) -> None:
        self.work = work
        self.workers = workers
        order = _sequence(work)
        self.rank = {node: i for i, node in enumerate(order)}
        self.turn: dict[tuple[Node, int], int] = {}  # (consumer, input number) -> place in the sum
        seen: dict[Node, int] = {}
        for node in order:
            for i, parent in enumerate(node.parents):
                if parent is not None:
                    self.turn[node, i] = seen.get(parent, 0)
                    seen[parent] = self.turn[node, i] + 1
        self.inbox = {node: _Inbox(work.grads.get(node)) for node in order}
        self.locks = {node: threading.Lock() for node in order}
        self.counts = dict(work.counts)
        self.ready = [(self.rank[node], node) for node in work.start]  # a heap; ranks are unique
        heapq.heapify(self.ready)
        self.left = len(order)
        self.error: BaseException | None = None
        self.closed = False
        self.lock = threading.Lock()  # of counts, ready and left; native, as all locks here
        self.tickets: SimpleQueue[None] = SimpleQueue()  # one for each node in `ready`
        for _ in self.ready:
            self.tickets.put(None)
        self.helping: set[int] = set()  # helpers at work
        self.gone: SimpleQueue[None] = SimpleQueue()  # one for each that was
        self.leaf_lock = threading.RLock()

    def take(self) -> Node | None:
        """The next ready node, or None when all is done or something failed."""
        while not self.closed and self.left > 0:
            with suppress(Empty):  # whatever became of a ticket, nobody waits without looking again
                self.tickets.get(timeout=1.0)
            with self.lock:
                if self.ready and not self.closed:
                    return heapq.heappop(self.ready)[1]
        return None

    def done(self, node: Node) -> None:
        with self.lock:
            self.left -= 1
            for parent in node.parents:
                if parent is not None:
                    self.counts[parent] -= 1
                    if not self.counts[parent]:
                        heapq.heappush(self.ready, (self.rank[parent], parent))
                        self.tickets.put(None)
            if not self.left:
                self.wake()

    def wake(self) -> None:
        """Whoever waits looks again."""
        for _ in range(self.workers):
            self.tickets.put(None)

    def run_node(self, node: Node) -> None:
        g = complete(self.inbox.pop(node).total)
        if node.is_leaf:
            with self.leaf_lock:  # hooks of different leaves do not run at the same time
                self.work.finish_leaf(node, g)
            return
        results = self.work.step(node, g)
        for i, parent in enumerate(node.parents):
            if parent is None:
                continue
            c: Any = results[i] if results is not None else None
            if c is not None:
                c = fitted(c, parent.shape)
            with self.locks[parent]:
                self.inbox[parent].put(self.turn[node, i], c)

    def worker(self) -> None:
        usual, dtypes = self.work.modes()
        with usual, dtypes:
            while (node := self.take()) is not None:
                self.run_node(node)
                self.done(node)

    def help(self, number: int) -> None:
        """A helper's whole work. Signals come to the main thread: nothing here is interrupted."""
        with self.lock:
            if self.closed or self.left <= 0:  # it starts late: the caller may be gone
                return
            self.helping.add(number)
        try:
            self.worker()
        except BaseException as error:
            self.error = self.error or error
            self.closed = True
            self.wake()
        finally:
            self.helping.discard(number)
            self.gone.put(None)

    def finish(self) -> None:
        """Wait for the helpers at work."""
        self.closed = True
        with self.lock:  # who starts from here on sees that it is closed
            pass
        self.wake()
        while self.helping:
            with suppress(Empty):
                self.gone.get(timeout=1.0)


_MOST = 32  # threads that help
_jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
_started: list[None] = []  # one for each thread; a list, whose append cannot be interrupted


def _serve() -> None:
    threading.current_thread().name = "everygrad-backward"  # it looks at no tensor by itself
    while True:
        job = _jobs.get()
        job()
        del job  # keeps no graph alive while it waits


def _after_fork() -> None:
    """A forked child has none of the threads."""
    global _jobs
    _jobs = SimpleQueue()
    _started.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def run_parallel(work: Pass, workers: int) -> None:
    """Run `work` on `workers` threads, the calling one included.

    The caller works too, and helpers that have not started by the end find nothing to do, so a
    full pool (a backward inside a hook of a backward) can slow the pass down but never block it.
    A handler of signals may raise anywhere in here: all locks are native, the pass is then closed
    to the helpers, and the caller waits for those at work, as often as it is interrupted.
    """
    if any(node.op is not None and node.op.communicates for node in work.counts):
        work.run()  # other processes count on the order of one thread
        return
    shared = _Parallel(work, min(workers, _MOST, len(work.counts)))
    interrupted: BaseException | None = None
    try:
        for number in range(shared.workers - 1):
            if len(_started) <= number:
                # not threading.Thread, whose start() waits on locks that are not native
                start_new_thread(_serve, ())
                _started.append(None)
            # each helper starts from a copy of the caller's context: modes and settings come along
            _jobs.put(partial(copy_context().run, shared.help, number))
        shared.worker()
    except BaseException as error:
        interrupted = error
    while True:
        try:
            shared.finish()
            break
        except BaseException as error:
            interrupted = error
    if shared.error is None and interrupted is None:
        try:
            usual, dtypes = work.modes()
            with usual, dtypes:
                work.end()
        except BaseException as error:
            interrupted = error
    failed = shared.error or interrupted
    if failed is not None:
        drain(work.undo)
        try:
            raise failed
        finally:  # whose traceback leads back to here
            failed = interrupted = shared.error = None
