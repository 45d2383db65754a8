"""The ranks there are, and which of them this is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from typing import Any, Protocol

from everygrad.distributed.calls import Ring
from everygrad.distributed.carriers.local import TIMEOUT, Board, LocalCarrier
from everygrad.distributed.group import Group
from everygrad.errors import ArgumentError, PeerLost


class Carrier(Protocol):
    """What a group asks of whoever carries its arrays."""

    rank: int
    size: int

    def swap(
        self,
        group: Group,
        parts: Sequence[Any],
        likes: Sequence[tuple[tuple[int, ...], Any]],
        entry: dict[str, Any],
        header: bool,
    ) -> list[Any]:
        """Give part i to member i of the group; get an array like `likes[i]` from each. `header`:
        the exchange shows who is there; what follows it cannot wait for long."""

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

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.rank = carrier.rank
        self.size = carrier.size
        self.ring = Ring(self.rank)
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


_here: ContextVar[World | None] = ContextVar("everygrad_world", default=None)
_process: World | None = None


def world() -> World:
    """The world that this thread, or else this process, belongs to."""
    global _process
    found = _here.get() or _process
    if found is None:
        found = _process = World(LocalCarrier(Board(1, TIMEOUT), 0))
    return found


def rank() -> int:
    """The number of this rank, from 0.

    >>> import everygrad as eg
    >>> eg.distributed.rank()
    0
    """
    return world().rank


def world_size() -> int:
    """How many ranks there are; one process by itself is one.

    >>> import everygrad as eg
    >>> eg.distributed.world_size()
    1
    """
    return world().size


def init(carrier: str | None = None) -> None:
    """Join the other ranks. Needed only where the carrier is to be chosen: `Mesh` does it too.

    carrier  "local:N": the N ranks that `run_local` started; None: what the launcher or
             mpiexec set up, else this process by itself

    >>> import everygrad as eg
    >>> eg.distributed.init()
    """
    if carrier is None:
        world()
        return
    kind, _, count = carrier.partition(":") if isinstance(carrier, str) else ("", "", "")
    if kind != "local" or not count.isdecimal():
        raise ArgumentError(f'init: carrier must be "local:N", got {carrier!r}')
    if world().size != int(count):
        raise ArgumentError(
            f"init: {carrier!r}, and there are {world().size} ranks here; start them with "
            f"run_local(main, {count})"
        )


class _Rank(threading.Thread):
    """One simulated rank."""

    def __init__(self, fn: Callable[..., Any], args: Any, board: Board, number: int) -> None:
        super().__init__(name=f"rank-{number}", daemon=True)
        self.fn = fn
        self.args = args
        self.carrier = LocalCarrier(board, number)
        self.result: Any = None
        self.error: BaseException | None = None
        self.around = copy_context()

    def run(self) -> None:
        self.around.run(self.work)

    def work(self) -> None:
        _here.set(World(self.carrier))
        try:
            self.result = self.fn(*self.args)
        except BaseException as error:
            self.error = error
            self.carrier.close(f"raised {type(error).__name__}: {error}")
        else:
            self.carrier.close("has ended")


def run_local(fn: Callable[..., Any], n: int, *args: Any, timeout: float = TIMEOUT) -> list[Any]:
    """fn(*args) on each of n ranks, simulated by threads of this process; the list of their
    results. What a rank raises is raised here, with the rank noted; others that waited for it
    got `PeerLost`. `timeout`: the seconds that a rank waits for another.

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
    for r in ranks:
        r.join()
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
