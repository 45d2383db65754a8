"""Ranks simulated by threads of one process: the carrier of tests, and of a script on one machine.

Ranks put arrays on a board and take each other's from it. What is put there is a copy: its owner
goes on and may write over its memory. Who raises, ends or does not come in time is named to those
who wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.distributed.group import Group
from everygrad.errors import PeerLost

TIMEOUT = 60.0  # seconds that a rank waits for another that is alive


class Board:
    """What the ranks of one world share."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.changed = threading.Condition()
        self.posts: dict[Any, dict[int, Any]] = {}  # by group and round: what each rank gives
        self.taken: dict[Any, int] = {}  # how many ranks have their part of a round
        self.gone: dict[int, str] = {}  # ranks that are lost or have ended, and how
        self.interrupted = False  # who started the ranks does not wait for them any more

    def interrupt(self) -> None:
        """Let every rank raise where it communicates next."""
        with self.changed:
            self.interrupted = True
            self.changed.notify_all()

    def leave(self, rank: int, reason: str) -> None:
        with self.changed:
            self.gone.setdefault(rank, reason)
            self.changed.notify_all()


class LocalCarrier:
    """One rank's side of the board."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board = board
        self.rank = rank
        self.size = board.size

    def swap(
        self,
        group: Group,
        parts: Sequence[Any],
        outs: Sequence[Any],
        entry: dict[str, Any],
        header: bool,
        channel: int,
    ) -> None:
        copies = {id(p): p for p in parts}
        copies = {key: p.copy() for key, p in copies.items()}
        key = (group.name, group.ranks, channel, group.rounds[channel], "swap")
        self.post(key, group.index, [copies[id(p)] for p in parts])
        found = self.wait_for(key, group, range(group.size), entry)
        board = self.board
        with board.changed:
            board.taken[key] = board.taken.get(key, 0) + 1
            if board.taken[key] == group.size:
                del board.posts[key], board.taken[key]
        for i, out in enumerate(outs):
            if i != group.index:
                np.copyto(out, found[i][group.index])

    def post(self, key: Any, index: int, what: Any) -> None:
        with self.board.changed:
            self.board.posts.setdefault(key, {})[index] = what
            self.board.changed.notify_all()

    def wait_for(
        self, key: Any, group: Group, who: Sequence[int], entry: dict[str, Any]
    ) -> dict[int, Any]:
        """What these members of the group have put down."""
        board = self.board
        until = time.monotonic() + board.timeout
        with board.changed:
            while True:
                if board.interrupted:
                    raise KeyboardInterrupt(f"in {entry['call']}")
                there = board.posts.get(key, {})
                missing = [i for i in who if i not in there]
                if not missing:
                    return dict(there)
                for i in missing:
                    lost = group.ranks[i]
                    if lost in board.gone:
                        raise PeerLost(lost, entry["call"], entry["step"], board.gone[lost])
                left = until - time.monotonic()
                if left <= 0:
                    lost = group.ranks[missing[0]]
                    reason = f"did not come within {board.timeout:g} s"
                    raise PeerLost(lost, entry["call"], entry["step"], reason)
                board.changed.wait(min(left, 1.0))

    def send(
        self, group: Group, to: int, x: Any, text: str, number: int, entry: dict[str, Any]
    ) -> None:
        key = (group.name, group.ranks, group.index, to, number)
        self.post(key, group.index, (text, x.copy()))

    def receive(
        self, group: Group, source: int, out: Any, text: str, number: int, entry: dict[str, Any]
    ) -> str:
        """Fill `out`, and return what the sender says it sends; it is filled if they agree."""
        key = (group.name, group.ranks, source, group.index, number)
        found = self.wait_for(key, group, (source,), entry)
        with self.board.changed:
            del self.board.posts[key]
        said: str
        said, x = found[source]
        if said == text:
            np.copyto(out, x)
        return said

    def close(self, reason: str) -> None:
        self.board.leave(self.rank, reason)
