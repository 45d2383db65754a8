"""A rank's communication threads: collectives that were started, in the order of their starts.

A large sum has three stages: ranks agree on it, exchange parts, and give each other what they made
of them. Each stage has a thread of its own, so that a link which one stage leaves idle, while ranks
wait for each other's answers, is used by another stage of the sums before and behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from everygrad.backends.cpu.runtime.pool import counting

STAGES = 3  # threads, and what a collective has at most


class Rest(NamedTuple):
    """What is left of a collective whose first stages were carried out."""

    work: Callable[[], Any]


class Pending:
    """A collective that was started; `result` waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work: Callable[[], Any] | None = work
        self.count = counting.get()  # what it allocates is counted where it was started
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> bool:
        """Carry it out. False: a stage is done, and `work` is what is left. Who calls this sets
        `done`."""
        counting.set(self.count)
        try:
            assert self.work is not None
            made = self.work()
            if isinstance(made, Rest):
                self.work = made.work
                return False
            self.value = made
        except BaseException as error:  # raised where it is waited for
            self.error = error
        self.work = None
        return True

    def result(self) -> Any:
        """What the collective gives, or raises."""
        self.done.wait()
        if self.error is not None:
            raise self.error
        return self.value


class Background:
    """The threads, begun with the first start."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: list[SimpleQueue[Pending]] = [SimpleQueue() for _ in range(STAGES)]
        self.open: list[Pending] = []
        self.lock = threading.Lock()
        self.began = False
        self.tickets: dict[int, Pending] = {}  # of starts in compiled functions
        self.count = 0

    @property
    def busy(self) -> bool:
        """Whether something is under way: what comes now must come after it."""
        with self.lock:
            return bool(self.open)

    def submit(self, work: Callable[[], Any]) -> Pending:
        made = Pending(work)
        with self.lock:
            if not self.began:
                self.began = True
                for i in range(STAGES):
                    name = f"{self.name}-{i}"
                    threading.Thread(target=self.serve, args=(i,), name=name, daemon=True).start()
            self.open.append(made)
            self.queues[0].put(made)
        return made

    def after_all(self, work: Callable[[], Any]) -> Any:
        """What `work` gives, once all that was started before it is done."""
        for _ in range(STAGES - 1):  # it passes through the threads of all stages
            work = partial(Rest, work)
        return self.submit(work).result()

    def serve(self, stage: int) -> None:
        while True:
            self.serve_one(stage)  # a function of its own: no name keeps a result alive

    def serve_one(self, stage: int) -> None:
        pending = self.queues[stage].get()
        if pending.run():
            with self.lock:
                self.open.remove(pending)
            pending.done.set()
        else:
            self.queues[stage + 1].put(pending)

    def start(self, work: Callable[[], Any]) -> int:
        """Submit, and return the number by which `finish` finds the result."""
        self.count += 1
        self.tickets[self.count] = self.submit(work)
        return self.count

    def finish(self, ticket: int) -> Any:
        return self.tickets.pop(ticket).result()
