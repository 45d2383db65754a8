"""The ranks there are, and which of them this is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from typing import Any, Protocol

from everygrad.distributed.background import Background
from everygrad.distributed.calls import Ring
from everygrad.distributed.carriers import mpi
from everygrad.distributed.carriers.local import TIMEOUT, Board, LocalCarrier
from everygrad.distributed.group import Group
from everygrad.errors import ArgumentError, PeerLost
from everygrad.ops.random.generators import own_stream


class Carrier(Protocol):
    """What a group asks of whoever carries its arrays."""

    rank: int
    size: int

    def swap(
        self,
        group: Group,
        parts: Sequence[Any],
        outs: Sequence[Any],
        entry: dict[str, Any],
        header: bool,
        channel: int,
    ) -> None:
        """Give part i to member i of the group; fill outs[i], which is contiguous, with what it
        gives. This rank's own is in its place already. `header`, `channel`: as in `Group.swap`."""

    def send(
        self, group: Group, to: int, x: Any, text: str, number: int, entry: dict[str, Any]
    ) -> None:
        """Send an array, with its description, to a member of the group."""

    def receive(
        self, group: Group, source: int, out: Any, text: str, number: int, entry: dict[str, Any]
    ) -> str:
        """Fill `out`, and return the description that came with it."""

    def close(self, reason: str) -> None:
        """Tell the others that this rank is gone."""


class World:
    """All ranks, as one of them sees them."""

    def __init__(self, carrier: Carrier, uses_nccl: bool = False) -> None:
        self.carrier = carrier
        self.uses_nccl = uses_nccl  # between GPUs; what is on CPUs goes by the carrier
        self.rank = carrier.rank
        self.size = carrier.size
        self.gpu = local_rank()  # the number of this rank's GPU
        self.ring = Ring(self.rank)
        self.background = Background(f"everygrad-communication-{self.rank}")
        self.groups: dict[tuple[str, tuple[int, ...]], Group] = {}
        self.meshes = 0  # made so far: ranks make them in the same order
        self.everyone = self.group("all ranks", tuple(range(self.size)))

    def group(self, name: str, ranks: tuple[int, ...]) -> Group:
        """The ranks as a group; asked for again, the same one."""
        key = (name, ranks)
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = Group(self, name, ranks)
        return found


PATIENCE = 2.0  # seconds that ranks have to end when whoever waits for them is interrupted

_here: ContextVar[World | None] = ContextVar("everygrad_world", default=None)
_process: World | None = None
_CARRIERS = ("mpi", "nccl")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")  # what mpiexec tells its processes


def world() -> World:
    """The world that this thread, or else this process, belongs to."""
    found = _here.get() or _process
    return _joined(None) if found is None else found


def _joined(carrier: str | None) -> World:
    """The process's world, joined through a carrier; None: what the environment says."""
    global _process
    if carrier is None:
        sizes = (os.environ.get(name, "") for name in _SIZES)
        carrier = "mpi" if any(s.isdecimal() and int(s) > 1 for s in sizes) else "local:1"
    started = any(name in os.environ for name in _SIZES)
    alone = carrier == "local:1" or (carrier == "nccl" and not started)
    made: Carrier = LocalCarrier(Board(1, TIMEOUT), 0) if alone else mpi.start()
    _process = World(made, uses_nccl=carrier == "nccl")
    return _process


def is_first() -> bool:
    """Whether this is rank 0, as far as is known without joining the others: who writes and shows
    what is the same on all ranks."""
    here = _here.get() or _process
    if here is not None:
        return here.rank == 0
    given = (os.environ[name] for name in _RANKS if name in os.environ)
    return next(given, "0") == "0"


def rank() -> int:
    """The number of this rank, from 0.

    >>> import everygrad as eg
    >>> eg.distributed.rank()
    0
    """
    return world().rank


def local_rank() -> int:
    """The number of this rank among those of its machine: which of its GPUs is this rank's.

    >>> import everygrad as eg
    >>> eg.distributed.local_rank()
    0
    """
    given = (os.environ[name] for name in _LOCAL_RANKS if name in os.environ)
    return int(next(given, "0"))


def attempt() -> int:
    """How often the launcher had to start this program again.

    >>> import everygrad as eg
    >>> eg.distributed.attempt()
    0
    """
    return int(os.environ.get("EVERYGRAD_ATTEMPT", "0"))


def world_size() -> int:
    """How many ranks there are; one process by itself is one.

    >>> import everygrad as eg
    >>> eg.distributed.world_size()
    1
    """
    return world().size


def init(carrier: str | None = None) -> None:
    """Join the other ranks. Needed only where the carrier is to be chosen: `Mesh` does it too.

    carrier  "local:N": the N ranks that `run_local` started; "mpi": the processes of mpiexec;
             "nccl": the same, whose GPUs talk to each other directly; None: the processes of
             the launcher or of mpiexec where there are any, else this process by itself

    >>> import everygrad as eg
    >>> eg.distributed.init()
    """
    if carrier is None:
        world()
        return
    kind, _, count = carrier.partition(":") if isinstance(carrier, str) else ("", "", "")
    if not (carrier in _CARRIERS or (kind == "local" and count.isdecimal())):
        raise ArgumentError(f'init: carrier must be "local:N", "mpi" or "nccl", got {carrier!r}')
    here = _here.get() or _process
    if carrier in _CARRIERS:
        if here is None:
            _joined(carrier)
        elif here.uses_nccl != (carrier == "nccl") or not (
            here.uses_nccl or isinstance(here.carrier, mpi.MpiCarrier)
        ):
            raise ArgumentError(
                f"init: {carrier!r}, and this program has {here.size} ranks of another carrier "
                f"already; call init() first of all"
            )
        return
    if here is None and count == "1":
        here = _joined(carrier)
    size = 1 if here is None else here.size
    if size != int(count):
        raise ArgumentError(
            f"init: {carrier!r}, and there are {size} ranks here; start them with "
            f"run_local(main, {count})"
        )


class _Rank(threading.Thread):
    """One simulated rank."""

    def __init__(self, fn: Callable[..., Any], args: Any, board: Board, number: int) -> None:
        super().__init__(name=f"everygrad-rank-{number}", daemon=True)
        self.awaited_by = threading.current_thread()  # who does nothing else meanwhile
        self.fn = fn
        self.args = args
        self.carrier = LocalCarrier(board, number)
        self.result: Any = None
        self.error: BaseException | None = None
        self.around = copy_context()
        self.over = threading.Event()  # join() forgets a thread in which a signal interrupts it

    def run(self) -> None:
        try:
            self.around.run(self.work)
        finally:
            self.over.set()

    def work(self) -> None:
        _here.set(World(self.carrier))
        try:
            with own_stream():
                self.result = self.fn(*self.args)
        except BaseException as error:
            self.error = error
            self.carrier.close(f"raised {type(error).__name__}: {error}")
        else:
            self.carrier.close("has ended")


def run_local(fn: Callable[..., Any], n: int, *args: Any, timeout: float = TIMEOUT) -> list[Any]:
    """fn(*args) on each of n ranks, simulated by threads of this process; the list of their
    results. What a rank raises is raised here, with the rank noted; others that waited for it
    got `PeerLost`. `timeout`: the seconds that a rank waits for another. Ctrl-C ends the ranks
    where they communicate next.

    >>> import everygrad as eg
    >>> eg.distributed.run_local(lambda: eg.distributed.rank() ** 2, 3)
    [0, 1, 4]
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ArgumentError(f"run_local: n must be an integer from 1 on, got {n!r}")
    if not timeout > 0:
        raise ArgumentError(f"run_local: timeout must be above 0 seconds, got {timeout!r}")
    board = Board(n, timeout)
    ranks = [_Rank(fn, args, board, i) for i in range(n)]
    for r in ranks:
        r.start()
    try:
        for r in ranks:
            while not r.over.wait(1.0):  # no longer: a signal may come to another thread
                pass
            r.join()
    except BaseException:  # a signal: ranks end with their next collective
        board.interrupt()
        until = time.monotonic() + PATIENCE
        for r in ranks:
            r.over.wait(max(0.0, until - time.monotonic()))
        raise
    failed = [r for r in ranks if r.error is not None]
    if failed:  # who waited for another one is not the cause
        first = next((r for r in failed if not isinstance(r.error, PeerLost)), failed[0])
        error = first.error
        assert error is not None
        others = ", ".join(str(r.carrier.rank) for r in failed if r is not first)
        also = f"; raised on ranks {others} too" if others else ""
        error.add_note(f"on rank {first.carrier.rank} of {n}{also}")
        raise error
    return [r.result for r in ranks]
