"""MPI through mpi4py: one process a rank, on a communicator of our own.

Messages are bytes, sent and received without blocking and asked after until they are there: MPI
makes no progress by itself, and a rank that is gone would be waited for without end. What is known
of other ranks comes through the control channel, and is looked at between two questions.
"""

from __future__ import annotations

import atexit
import os
import secrets
import sys
import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from everygrad.distributed.carriers.control import Client, Control, Server
from everygrad.distributed.group import Group
from everygrad.errors import CollectiveMismatchError, DeviceError, PeerLost

SPIN = 1e-4  # seconds of asking without a pause
LONGEST_PAUSE = 2e-4  # seconds between two questions: an exchange takes several answers in turn
GRACE = 1.5  # seconds for what a rank sent before it ended
_CHUNK = 1 << 30  # bytes of one message: counts of MPI are 32 bits
_SWAPS = (0, 3, 4)  # kinds of tags, by the stage of a collective; 1 and 2 are those of messages
_KINDS = 5
_STARTED: list[MpiCarrier] = []  # MPI starts once in a process


class MpiCarrier:
    """This process as a rank of MPI's world."""

    def __init__(self) -> None:
        mpi = self.mpi = _mpi()
        self.comm = mpi.COMM_WORLD.Dup()
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()
        self.tags: dict[str, int] = {}
        self.abandoned: list[Any] = []  # what a failed transfer still points to
        self.to_itself: list[Any] = []  # messages of this rank that it has not received yet
        self.failed: str | None = None
        self.control = self.connected()

    def connected(self) -> Control | None:
        """The control channel; there is none where there is nobody to talk to."""
        if self.size == 1:
            return None
        address = os.environ.get("EVERYGRAD_CONTROL_ADDRESS", "127.0.0.1")
        made: Control
        if self.rank == 0:
            server = Server(self.size, address)
            secret = secrets.token_hex(16)
            self.comm.bcast((address, server.port, secret), 0)
            server.accept(secret, 30.0)
            made = server
        else:
            address, port, secret = self.comm.bcast(None, 0)
            made = Client(self.rank, self.size, address, port, secret)
        made.start()
        return made

    # --- messages --------------------------------------------------------------------------------

    def tag(self, group: Group, kind: int) -> int:
        """Of the messages of a group: the same number on all its ranks."""
        found = self.tags.get(group.name)
        if found is None:
            known = blake2b(group.name.encode(), digest_size=8).digest()
            limit = self.mpi.COMM_WORLD.Get_attr(self.mpi.TAG_UB) // _KINDS
            found = self.tags[group.name] = int.from_bytes(known, "little") % limit * _KINDS
        return found + kind

    def swap(
        self,
        group: Group,
        parts: Sequence[Any],
        outs: Sequence[Any],
        entry: dict[str, Any],
        header: bool,
        channel: int,
    ) -> None:
        tag = self.tag(group, _SWAPS[channel])
        others = [i for i in range(group.size) if i != group.index]
        requests: list[Any] = []
        for i in others:
            requests += self.receiving(outs[i], group.ranks[i], tag)
        given = [np.ascontiguousarray(parts[i]) for i in others]
        for i, part in zip(others, given, strict=True):
            requests += self.sending(part, group.ranks[i], tag)
        self.finish(requests, group.ranks, entry, header, (outs, given))

    def sending(self, x: Any, rank: int, tag: int) -> list[Any]:
        raw = x.reshape(-1).view(np.uint8)
        return [
            self.comm.Isend([raw[a : a + _CHUNK], self.mpi.BYTE], rank, tag)
            for a in range(0, raw.size, _CHUNK)
        ]

    def receiving(self, x: Any, rank: int, tag: int) -> list[Any]:
        raw = x.reshape(-1).view(np.uint8)
        return [
            self.comm.Irecv([raw[a : a + _CHUNK], self.mpi.BYTE], rank, tag)
            for a in range(0, raw.size, _CHUNK)
        ]

    def send(
        self, group: Group, to: int, x: Any, text: str, number: int, entry: dict[str, Any]
    ) -> None:
        rank, tag = group.ranks[to], self.tag(group, 1)
        said = np.frombuffer(text.encode().ljust(256), np.uint8)
        x = x.copy() if rank == self.rank else x
        requests = [*self.sending(said, rank, tag), *self.sending(x, rank, tag + 1)]
        if rank == self.rank:  # nobody else can receive it meanwhile: it is not waited for
            self.to_itself = [kept for kept in self.to_itself if not self.done(kept[0])]
            self.to_itself.append((requests, said, x))
            return
        self.finish(requests, (rank,), entry, True, (said, x))

    def receive(
        self, group: Group, source: int, out: Any, text: str, number: int, entry: dict[str, Any]
    ) -> str:
        rank, tag = group.ranks[source], self.tag(group, 1)
        said = np.empty(256, np.uint8)
        self.finish(self.receiving(said, rank, tag), (rank,), entry, True, said)
        got = said.tobytes().decode().rstrip()
        if got == text:
            self.finish(self.receiving(out, rank, tag + 1), (rank,), entry, False, out)
        return got

    def done(self, requests: list[Any]) -> bool:
        return bool(self.mpi.Request.Testall(requests))

    def finish(
        self,
        requests: list[Any],
        ranks: Sequence[int],
        entry: dict[str, Any],
        header: bool,
        buffers: Any,
    ) -> None:
        """Ask until everything is sent and received, or somebody is found to be gone."""
        begun = time.perf_counter()
        control = self.control
        pause = 0.0
        try:
            while not self.done(requests):
                waited = time.perf_counter() - begun
                if waited > SPIN:
                    pause = min(LONGEST_PAUSE, pause + 2e-5)
                    if header and control is not None and waited > 0.2:
                        control.waiting = (entry["step"], entry["call"])
                    self.check(ranks, entry)
                    time.sleep(pause)
        except BaseException as error:
            self.abandoned.append((requests, buffers))
            if isinstance(error, self.mpi.Exception):
                self.name_lost(ranks, entry)
            raise
        finally:
            if control is not None:
                control.waiting = None

    def name_lost(self, ranks: Sequence[int], entry: dict[str, Any]) -> None:
        """MPI found a connection closed: raise as soon as the control channel says whose. What was
        not received must not be asked after again."""
        until = time.monotonic() + GRACE
        while time.monotonic() < until:
            self.check(ranks, entry)
            time.sleep(1e-3)

    def check(self, ranks: Sequence[int], entry: dict[str, Any]) -> None:
        """Raise if a rank is lost, or one of `ranks` has ended, or nobody can go on."""
        control = self.control
        if control is None:
            return
        if control.stuck is not None:
            self.failed = control.stuck
            raise CollectiveMismatchError(f"every rank waits for another one: {control.stuck}")
        for rank, reason in control.lost.items():
            if rank != self.rank:
                self.failed = f"rank {rank} {reason}"
                raise PeerLost(rank, entry["call"], entry["step"], reason)
        for rank in ranks:
            heard = control.ended.get(rank)
            if rank != self.rank and heard is not None and time.monotonic() - heard > GRACE:
                self.failed = f"rank {rank} has ended"
                raise PeerLost(rank, entry["call"], entry["step"], "has ended")

    # --- the end ---------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """This rank raised: the others need not wait for it."""
        self.failed = self.failed or reason
        if self.control is not None:
            self.control.fail(reason)

    def close(self, reason: str) -> None:
        """Leave. MPI is ended only where nobody is lost: it would wait for them."""
        if self.control is not None:
            self.control.close(3600.0 if self.failed is None else 2.0)
            if self.control.lost or self.failed is not None:
                return
        if self.failed is None and not self.mpi.Is_finalized():
            self.mpi.Finalize()


def _mpi() -> Any:
    """mpi4py's MPI, started if it was not; it is ended by us, if at all."""
    # the wheel's libfabric is probed for a second at start; clusters that need it say so
    os.environ.setdefault("OMPI_MCA_mtl", "^ofi")
    os.environ.setdefault("OMPI_MCA_btl", "^ofi,uct")
    # on one connection, what is received waits behind what is sent: the directions take turns
    os.environ.setdefault("OMPI_MCA_btl_tcp_links", "4")
    try:
        import mpi4py
    except ImportError:
        raise DeviceError('the carrier "mpi" needs mpi4py: pip install "everygrad[mpi]"') from None
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            f'the carrier "mpi" found no MPI library: {error}; pip install "everygrad[mpi]"'
        ) from None
    return MPI


def start() -> MpiCarrier:
    """This process as a rank; asked again, the same."""
    if not _STARTED:
        made = MpiCarrier()
        _STARTED.append(made)
        _watch_exceptions(made)
        atexit.register(made.close, "has ended")
    return _STARTED[0]


def _watch_exceptions(carrier: MpiCarrier) -> None:
    """Tell the others of an exception that ends this program."""
    before = sys.excepthook

    def hook(kind: Any, error: Any, where: Any) -> None:
        if isinstance(error, PeerLost):  # the others know it by themselves, and its cause
            carrier.failed = str(error)
        else:
            carrier.fail(f"raised {kind.__name__}: {error}"[:500])
        before(kind, error, where)

    sys.excepthook = hook
