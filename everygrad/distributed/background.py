"""One communication thread a rank: collectives that were started, in the order of their starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Pending:
    """A collective that was started; `result` waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work: Callable[[], Any] | None = work
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            assert self.work is not None
            self.value = self.work()
        except BaseException as error:  # raised where it is waited for
            self.error = error
        self.work = None
        self.done.set()

    def result(self) -> Any:
        """What the collective gives, or raises."""
        self.done.wait()
        if self.error is not None:
            raise self.error
        return self.value


class Background:
    """The thread, begun with the first start."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: SimpleQueue[Pending] = SimpleQueue()
        self.latest: Pending | None = None
        self.thread: threading.Thread | None = None
        self.tickets: dict[int, Pending] = {}  # of starts in compiled functions
        self.count = 0

    @property
    def busy(self) -> bool:
        """Whether something is under way: what comes now must come after it."""
        return self.latest is not None and not self.latest.done.is_set()

    def submit(self, work: Callable[[], Any]) -> Pending:
        if self.thread is None:
            self.thread = threading.Thread(target=self.serve, name=self.name, daemon=True)
            self.thread.start()
        made = self.latest = Pending(work)
        self.queue.put(made)
        return made

    def serve(self) -> None:
        while True:
            self.queue.get().run()

    def start(self, work: Callable[[], Any]) -> int:
        """Submit, and return the number by which `finish` finds the result."""
        self.count += 1
        self.tickets[self.count] = self.submit(work)
        return self.count

    def finish(self, ticket: int) -> Any:
        return self.tickets.pop(ticket).result()
