"""A worker process: takes indices from a socket, and sends batches back in shared memory."""

from __future__ import annotations

import os
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from typing import Any

from everygrad.backends.thread_pool import set_num_threads
from everygrad.data.collate import allocator
from everygrad.data.permutation import mixed
from everygrad.data.workers import worker_info
from everygrad.data.workers.fetch import END, Fetcher, Job, fetcher
from everygrad.data.workers.item_seeds import ProcessSeeds
from everygrad.data.workers.messages import Closed, describe_into, receive, restore_index, send
from everygrad.data.workers.shared_memory import Arena, Lease, Segment, new_file
from everygrad.data.workers.worker_info import WorkerInfo

BOARD = struct.Struct("<qq")  # the batch and the place in it that a worker is busy with


class Board:
    """A few bytes that both sides see: a worker that is killed has said what it was doing."""

    def __init__(self, fd: int) -> None:
        self._bytes = memoryview(Lease([Segment(fd, BOARD.size)]).bytes_of(0))
        self.batch = -1

    def write(self, place: int) -> None:
        BOARD.pack_into(self._bytes, 0, self.batch, place)

    def read(self) -> tuple[int, int]:
        batch, place = BOARD.unpack_from(self._bytes)
        return batch, place


class Worker:
    """The state of one worker process."""

    def __init__(
        self,
        sock: socket.socket,
        job: Job,
        number: int,
        workers: int,
        init: Callable[[int], Any] | None,
        spare: int,
    ) -> None:
        self._sock, self._job, self._number, self._workers = sock, job, number, workers
        self._init: Callable[[int], Any] | None = init
        self._arena = Arena(spare)
        self._seeds = ProcessSeeds()
        self._fetcher: Fetcher | None = None
        self._failed: Any = None  # why the pass could not begin
        fd = new_file(BOARD.size)
        self._board = Board(fd)
        self._board.write(0)
        send(sock, {"hello": os.getpid()}, [fd])
        os.close(fd)

    def serve(self) -> None:
        allocator.set(self._arena.array)
        with self._seeds.scope():
            while True:
                command, _ = receive(self._sock)
                self._arena.given_back(command.get("free", []))
                if command["op"] == "pass":
                    self._begin(command)
                else:
                    self._answer(command)

    def _begin(self, command: Any) -> None:
        """Start a pass; a failure is told with the first batch that is asked for."""
        self._failed = None
        seed = command["seed"]
        own = mixed(seed, self._number)
        self._seeds(seed, self._number)
        info = WorkerInfo(self._number, self._workers, own, self._job.dataset)
        worker_info.here.info, worker_info.here.pass_seed = info, seed
        try:
            if self._init is not None:
                init, self._init = self._init, None
                init(self._number)
            self._fetcher = fetcher(
                self._job, self._seeds, seed, self._number, command["resume"], self._board.write
            )
        except BaseException as error:
            self._failed = _told(error)

    def _answer(self, command: Any) -> None:
        number, name = command["number"], command["pass"]
        reply: dict[str, Any] = {"number": number, "pass": name}
        indices = restore_index(command["indices"])
        self._board.batch = number
        self._board.write(0)
        fds: list[int] = []
        try:
            if self._failed is not None:
                reply["error"] = self._failed
            else:
                assert self._fetcher is not None
                batch = self._fetcher.fetch(number, indices)
                if batch is END:
                    reply["end"] = True
                else:
                    reply["batch"] = describe_into(self._arena, batch)
                del batch
                if self._job.iterable:
                    reply["state"] = describe_into(self._arena, self._fetcher.state())
                reply["segments"], new, reply["drop"] = self._arena.finish()
                reply["new"] = [(n, size) for n, size, _ in new]
                fds = [fd for _, _, fd in new]
        except BaseException as error:
            told = {**_told(error), "place": self._board.read()[1]}
            reply = {"number": number, "pass": name, "error": told}
            self._arena.abandon()
        self._board.batch = -1
        self._board.write(0)
        try:
            send(self._sock, reply, fds)
        finally:
            for fd in fds:
                os.close(fd)


def _told(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    return {
        "place": None,
        "type": f"{kind.__module__}:{kind.__qualname__}",
        "text": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def main(sock: socket.socket, *args: Any) -> None:
    """What a worker process runs until the loader closes its end of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which closes the socket
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked while it was started
    set_num_threads(1)  # the workers are the parallelism
    try:
        Worker(sock, *args).serve()
    except Closed:
        pass
    finally:
        sock.close()
