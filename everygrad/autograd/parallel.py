"""The backward pass on several threads, bit for bit what one thread gives.

The order of summation is that of the sequential pass, worked out beforehand from the graph; a
contribution that comes early waits for its turn. Workers wait on one condition variable that every
outcome, an exception included, wakes and closes: nothing can be left waiting.
"""

from __future__ import annotations

import heapq
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import Any

from everygrad.autograd.engine import Grad, Pass, add, fitted
from everygrad.autograd.graph import Node


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
    def __init__(self, work: Pass) -> None:
        self.work = work
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
        self.wake = threading.Condition()
        self.leaf_lock = threading.RLock()

    def take(self) -> Node | None:
        """The next ready node, or None when all is done or something failed."""
        with self.wake:
            while not self.ready and self.left > 0 and not self.closed:
                # whatever might go wrong with a notification, nobody waits without looking again
                self.wake.wait(timeout=1.0)
            if self.closed or self.left <= 0:
                return None
            return heapq.heappop(self.ready)[1]

    def done(self, node: Node) -> None:
        with self.wake:
            self.left -= 1
            for parent in node.parents:
                if parent is not None:
                    self.counts[parent] -= 1
                    if not self.counts[parent]:
                        heapq.heappush(self.ready, (self.rank[parent], parent))
            self.wake.notify_all()

    def run_node(self, node: Node) -> None:
        g = self.inbox.pop(node).total
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
        try:
            with self.work.mode():
                while (node := self.take()) is not None:
                    self.run_node(node)
                    self.done(node)
        except BaseException as error:
            self.error = self.error or error
            self.close()

    def close(self) -> None:
        """No more nodes: everyone who waits, or will, goes home."""
        with self.wake:
            self.closed = True
            self.wake.notify_all()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=32, thread_name_prefix="everygrad-backward")


if hasattr(os, "register_at_fork"):  # a forked child has none of the threads, and no lock to trust
    os.register_at_fork(after_in_child=_pool.cache_clear)


def run_parallel(work: Pass, workers: int) -> None:
    """Run `work` on `workers` threads, the calling one included.

    The caller works too and helpers that have not started by the end are cancelled, so a full pool
    (a backward inside a hook of a backward) can slow the pass down but never block it.
    """
    shared = _Parallel(work)
    # each helper starts from a copy of the caller's context: modes and settings come along
    helpers = [
        _pool().submit(copy_context().run, shared.worker)
        for _ in range(min(workers, shared.left) - 1)
    ]
    shared.worker()
    shared.close()  # the caller leaves when all is done or something failed
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    if shared.error is not None:
        work.roll_back()
        raise shared.error
