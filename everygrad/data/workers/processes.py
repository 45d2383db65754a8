"""Worker processes, from the loader's side."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet, finalize

from everygrad.backends import base
from everygrad.data.workers import worker_process
from everygrad.data.workers.fetch import END, Job, name_of_item
from everygrad.data.workers.messages import (
    Closed,
    Restore,
    class_named,
    describe_index,
    receive,
    send,
)
from everygrad.data.workers.shared_memory import Received, supported
from everygrad.errors import ArgumentError, DeviceError, EverygradError, WorkerError

_GRACE = 1.0  # seconds that workers have to finish their item before they are ended

_ends: WeakSet[socket.socket] = WeakSet()  # the parent's ends


def _close_ends() -> None:
    """A forked child must not hold them: a worker would wait for a parent that is gone."""
    for sock in list(_ends):
        sock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_ends)


def a_gpu_is_open() -> bool:
    """Whether this process has used a device that a forked child could not use."""
    return any(base.kind_of(b.name) in ("cuda", "webgpu") for b in base.opened())


def context_for(wanted: Any) -> Any:
    """The way in which processes are started: what is asked for, or one that is safe.

    A GPU does not follow a fork, so a process that has opened one spawns its workers.
    """
    if wanted is None:
        wanted = multiprocessing.get_start_method(allow_none=True)
        if wanted is None and sys.platform == "linux":
            wanted = "fork"
        # multiprocessing sets "fork" for everyone when something is first spawned, so that is no
        # sign of anybody's wish
        if wanted == "fork" and a_gpu_is_open():
            wanted = "spawn"
    if wanted is None or isinstance(wanted, str):
        try:
            return multiprocessing.get_context(wanted)
        except ValueError:
            ways = ", ".join(map(repr, multiprocessing.get_all_start_methods()))
            raise ArgumentError(
                f"DataLoader: multiprocessing_context must be one of {ways}, got {wanted!r}"
            ) from None
    if not hasattr(wanted, "Process"):
        raise ArgumentError(
            f"DataLoader: multiprocessing_context must be a name or a context of "
            f"multiprocessing, got {wanted!r}"
        )
    return wanted


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """SIGINT waits meanwhile; a process that is started here begins without it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Remote:
    """One worker: its process, its end of a socket, and what it was asked for."""

    def __init__(self, number: int, process: Any, sock: socket.socket) -> None:
        self.number, self.process, self.sock = number, process, sock
        self.received = Received()
        self.board: worker_process.Board | None = None
        self.asked: dict[int, Any] = {}  # batch -> indices


class ProcessWorkers:
    """Processes that fetch batches; `submit` asks for one and `take` waits for it."""

    def __init__(
        self,
        job: Job,
        count: int,
        init: Callable[[int], Any] | None,
        context: Any,
        timeout: float,
        prefetch: int,
    ) -> None:
        if not supported():
            raise DeviceError(
                f"DataLoader: worker processes need a POSIX system, not {sys.platform}; "
                f'use workers="thread"'
            )
        self._job, self._timeout = job, timeout
        self._pass = 0
        self._ready: dict[int, Any] = {}
        self._remotes: list[_Remote] = []
        self._finalizer = finalize(self, _close, self._remotes, os.getpid())
        try:
            for number in range(count):
                self._remotes.append(self._start(number, count, init, context, prefetch))
        except BaseException:
            self.close()
            raise

    def _start(self, number: int, count: int, init: Any, context: Any, prefetch: int) -> _Remote:
        ours, theirs = socket.socketpair()
        _ends.add(ours)
        try:
            process = context.Process(
                target=worker_process.main,
                args=(theirs, self._job, number, count, init, prefetch + 2),
                name=f"everygrad-loader-{number}",
                daemon=True,
            )
            with _without_ctrl_c():  # until the worker ignores it
                process.start()
        except (OSError, EverygradError):
            ours.close()
            raise
        except Exception as error:  # of pickle, which has several
            ours.close()
            raise ArgumentError(
                f"DataLoader: multiprocessing sends a spawned worker its dataset, collate_fn and "
                f"worker_init_fn by pickle, and cannot: {error}; define them at the top of a "
                f'module, or use multiprocessing_context="fork" or workers="thread"'
            ) from error
        finally:
            theirs.close()
        return _Remote(number, process, ours)

    # --- a pass ----------------------------------------------------------------------------------

    def begin(self, seed: int, resume: list[Any] | None) -> None:
        """Start a pass over the dataset; what is left of an earlier one is forgotten."""
        self._pass += 1
        self._ready.clear()
        for r in self._remotes:
            r.asked.clear()
            state = None if resume is None else resume[r.number]
            self._send(r, {"op": "pass", "seed": seed, "resume": state})

    def submit(self, worker: int, number: int, indices: Any) -> None:
        r = self._remotes[worker]
        r.asked[number] = indices
        told = describe_index(indices)
        self._send(r, {"op": "batch", "number": number, "pass": self._pass, "indices": told})

    def take(self, number: int) -> tuple[Any, Any]:
        """A batch (or END) and the worker's state behind it."""
        limit = time.monotonic() + self._timeout if self._timeout else None
        while number not in self._ready:
            self._wait(number, limit)
        kind, r, value = self._ready.pop(number)
        if kind == "error":
            self._raise(r, number, value)
        return value

    def _wait(self, number: int, limit: float | None) -> None:
        if not self._remotes:
            raise WorkerError("DataLoader: its workers are closed")
        poll = select.poll()
        by_fd = {r.sock.fileno(): r for r in self._remotes}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        left = None if limit is None else max(0.0, limit - time.monotonic()) * 1000
        found = poll.poll(left)
        if not found:
            r = next(r for r in self._remotes if number in r.asked)
            raise WorkerError(
                f"DataLoader: no batch {number} within timeout={self._timeout} seconds; "
                f"{self._about(r)} is busy with {self._busy_with(r)}"
            )
        for fd, _ in found:
            self._receive(by_fd[fd])

    def _send(self, r: _Remote, message: dict[str, Any]) -> None:
        message["free"] = r.received.take_returned()
        try:
            send(r.sock, message, [], lambda: self._receive(r))
        except Closed:
            self._died(r)

    def _receive(self, r: _Remote) -> None:
        try:
            message, fds = receive(r.sock)
        except Closed:
            self._died(r)
        if "hello" in message:
            r.board = worker_process.Board(fds[0])
            os.close(fds[0])
            return
        for (number, size), fd in zip(message.get("new", []), fds, strict=True):
            r.received.add(number, size, fd)
        number = message["number"]
        indices = r.asked.pop(number, None) if message["pass"] == self._pass else None
        if "error" in message:
            if message["pass"] == self._pass:
                self._ready[number] = ("error", r, (message["error"], indices))
            return
        lease = r.received.lease(message["segments"])  # returned at once where nobody keeps it
        if message["pass"] == self._pass:
            restore = Restore(lease)
            batch = END if message.get("end") else restore(message["batch"])
            self._ready[number] = ("batch", r, (batch, restore(message.get("state"))))
        r.received.drop(message["drop"])

    # --- failures --------------------------------------------------------------------------------

    def _about(self, r: _Remote) -> str:
        return f"worker {r.number} (process {r.process.pid})"

    def _busy_with(self, r: _Remote) -> str:
        if r.board is None:
            return "its start"
        batch, place = r.board.read()
        if batch not in r.asked:
            return "nothing"
        item = name_of_item(r.asked[batch], place, self._job.batched)
        return f"{item} of batch {batch}"

    def _died(self, r: _Remote) -> None:
        r.process.join(_GRACE)
        code, busy = r.process.exitcode, self._busy_with(r)
        how = "has closed its socket" if code is None else f"has ended with exit code {code}"
        hint = ""
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                hint = "; the system does that when memory runs out"
        if r.board is None:
            hint += (
                "; spawned workers import the main module: guard the program with "
                'if __name__ == "__main__"'
            )
        raise WorkerError(f"DataLoader: {self._about(r)} {how} while busy with {busy}{hint}")

    def _raise(self, r: _Remote, number: int, told: Any) -> None:
        error, indices = told
        where = "as the pass began"
        if error["place"] is not None:
            item = name_of_item(indices, error["place"], self._job.batched)
            where = f"{item} of batch {number}"
        text = (
            f"{error['text']}\n\nRaised in {self._about(r)} of a DataLoader, {where}:\n"
            f"{error['traceback']}"
        )
        kind = class_named(error["type"])
        plain = isinstance(kind, type) and issubclass(kind, Exception)
        if plain and not issubclass(kind, StopIteration | StopAsyncIteration):
            try:
                same = kind(_Text(text))
            except Exception:  # a constructor of its own, which takes something else
                same = None
            if same is not None and text in str(same):
                raise same
        raise WorkerError(text)

    def close(self) -> None:
        """End all workers; returns when they are gone."""
        self._ready.clear()
        self._finalizer()

    def disown(self) -> None:
        """Forget the workers: this process is a fork of the one that has them."""
        self._finalizer.detach()


class _Text(str):
    """A text whose repr is itself: KeyError shows the repr of what it was given."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _close(remotes: list[_Remote], owner: int) -> None:
    if os.getpid() != owner:  # a forked child's copy: the workers are its parent's
        return
    for r in remotes:  # wakes the worker, and a thread of ours that waits for it
        with suppress(OSError):
            r.sock.shutdown(socket.SHUT_RDWR)
    limit = time.monotonic() + _GRACE
    for r in remotes:
        r.process.join(max(0.0, limit - time.monotonic()))
    for end in ("terminate", "kill"):
        for r in remotes:
            if r.process.is_alive():
                getattr(r.process, end)()
        for r in remotes:
            r.process.join(_GRACE)
    for r in remotes:
        r.sock.close()
        if not r.process.is_alive():
            r.process.close()
    remotes.clear()
