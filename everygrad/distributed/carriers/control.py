"""The control channel: heartbeats, who is lost, who has ended, and who waits for what.

Rank 0 listens on the address it was told, on that one alone, and takes a connection from each other
rank that shows the secret of this start. Every rank says twice a second that it lives, and in which
collective it waits; rank 0 says so too, and tells all what it knows. So a rank that dies is known
at once (its connection closes), one that hangs after `LIMIT` seconds, and ranks that all wait in
different places are told so.
"""

from __future__ import annotations

import hmac
import json
import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from everygrad.errors import DeviceError

BEAT = 0.5  # seconds between heartbeats
LIMIT = float(os.environ.get("EVERYGRAD_HEARTBEAT_LIMIT", "5"))  # seconds without one
SPEAK = 2.0  # seconds that a new connection has to say who it is
STUCK = 2.0  # seconds that all ranks wait for headers without anyone moving


class Peer:
    """A connection, line by line; each line is one JSON object."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""
        self.seen = time.monotonic()
        self.lock = threading.Lock()

    def tell(self, **message: Any) -> None:
        """Send a message; a peer that is gone is found when it is read from."""
        data = json.dumps(message).encode() + b"\n"
        with self.lock, suppress(OSError):
            self.sock.sendall(data)

    def introduced(self, secret: str) -> int:
        """The rank that a new connection says it is, if it knows the secret; else 0."""
        try:
            said = (self.read() or [{}])[0]
            known = hmac.compare_digest(str(said["secret"]), secret)
            return int(said["rank"]) if known else 0
        except (ValueError, KeyError, TypeError):  # not one of ours
            return 0

    def read(self) -> list[dict[str, Any]] | None:
        """The messages that have come; None at the end."""
        try:
            data = self.sock.recv(1 << 16)
        except (BlockingIOError, InterruptedError, TimeoutError):
            return []
        except OSError:
            return None
        if not data:
            return None
        self.seen = time.monotonic()
        *lines, self.pending = (self.pending + data).split(b"\n")
        return [json.loads(line) for line in lines]


class Control:
    """One rank's end of the channel, and what it knows of the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.lost: dict[int, str] = {}
        self.ended: dict[int, float] = {}  # when it was heard
        self.stuck: str | None = None
        self.waiting: tuple[int, str] | None = None  # the collective whose others are not there
        self.closing = threading.Event()
        self.over = threading.Event()

    def beat(self) -> dict[str, Any]:
        return {"rank": self.rank, "waiting": self.waiting}

    def start(self) -> None:
        self.thread = threading.Thread(target=self.serve, name="everygrad-control", daemon=True)
        self.thread.start()

    def serve(self) -> None:
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        """Tell the others that this rank raised."""
        raise NotImplementedError

    def close(self, patience: float) -> None:
        """Tell the others that this rank has ended; wait so long for rank 0 to have heard."""
        self.closing.set()
        self.over.wait(patience)


class Server(Control):
    """Rank 0's."""

    def __init__(self, size: int, address: str) -> None:
        super().__init__(0, size)
        self.address = address
        self.listener = socket.create_server((address, 0))
        self.port: int = self.listener.getsockname()[1]
        self.peers: dict[int, Peer] = {}
        self.states: dict[int, tuple[Any, float]] = {}  # what each waits for, since when

    def accept(self, secret: str, patience: float) -> None:
        """Take the connections of all others, and no other connection."""
        until = time.monotonic() + patience
        with self.listener:
            while len(self.peers) < self.size - 1:
                self.listener.settimeout(max(0.01, until - time.monotonic()))
                try:
                    sock, _ = self.listener.accept()
                except TimeoutError:
                    missing = [n for n in range(1, self.size) if n not in self.peers]
                    raise DeviceError(
                        f"ranks {missing} did not reach rank 0 at {self.address} within "
                        f"{patience:g} s; EVERYGRAD_CONTROL_ADDRESS must be an address of its host"
                    ) from None
                sock.settimeout(SPEAK)
                peer = Peer(sock)
                number = peer.introduced(secret)
                if number in self.peers or number not in range(1, self.size):
                    sock.close()
                    continue
                sock.setblocking(False)
                self.peers[number] = peer

    def serve(self) -> None:
        chosen = selectors.DefaultSelector()
        for number, peer in self.peers.items():
            chosen.register(peer.sock, selectors.EVENT_READ, number)
        open_peers = dict(self.peers)
        beaten = 0.0
        while not self.over.is_set():
            for key, _ in chosen.select(BEAT / 2):
                number = key.data
                messages = open_peers[number].read()
                if messages is None:
                    gone = open_peers.pop(number).sock
                    chosen.unregister(gone)
                    gone.close()
                    if number not in self.ended:
                        self.note_lost(number, "died")
                for message in messages or ():
                    self.hear(number, message)
            now = time.monotonic()
            for number, peer in open_peers.items():
                if now - peer.seen > LIMIT and number not in self.ended:
                    self.note_lost(number, f"hangs (no heartbeat for {now - peer.seen:.1f} s)")
            self.look_for_stuck(now)
            if self.closing.is_set() and 0 not in self.ended:
                self.ended[0] = now
                beaten = 0.0
            if now - beaten >= BEAT:
                beaten = now
                self.tell_all(open_peers)
            if self.closing.is_set() and all(n in self.ended or n in self.lost for n in self.peers):
                self.over.set()
        chosen.close()
        for peer in open_peers.values():
            peer.sock.close()

    def hear(self, number: int, message: dict[str, Any]) -> None:
        if "raised" in message:
            self.note_lost(number, message["raised"])
        elif "ended" in message:
            self.ended.setdefault(number, time.monotonic())
            self.tell_all(self.peers)
        else:
            self.note_state(number, message["waiting"])

    def note_state(self, number: int, waiting: Any) -> None:
        waiting = None if waiting is None else tuple(waiting)
        if number not in self.states or self.states[number][0] != waiting:
            self.states[number] = (waiting, time.monotonic())

    def note_lost(self, number: int, reason: str) -> None:
        if number not in self.lost:
            self.lost[number] = reason
            self.tell_all(self.peers)

    def look_for_stuck(self, now: float) -> None:
        """Whether everyone who has not ended waits for headers, and has done so for a while."""
        self.note_state(0, self.waiting)
        here = [n for n in range(self.size) if n not in self.ended and n not in self.lost]
        states = [self.states.get(n, (None, now)) for n in here]
        waits = not self.lost and all(w and now - t > STUCK for w, t in states)
        # a rank that says nothing may have moved on since it last did
        waits = waits and all(now - self.peers[n].seen < 2 * BEAT for n in here if n)
        if self.stuck is None and here and waits:
            lines = [
                f"rank {n} in {w[1]} (#{w[0]})" for n, (w, _) in zip(here, states, strict=True)
            ]
            if ended := sorted(n for n in self.ended):
                lines.append(f"ended: {', '.join(map(str, ended))}")
            self.stuck = "; ".join(lines)
            self.tell_all(self.peers)

    def tell_all(self, peers: dict[int, Peer]) -> None:
        for peer in list(peers.values()):
            peer.tell(lost=self.lost, ended=list(self.ended), stuck=self.stuck)

    def fail(self, reason: str) -> None:
        self.note_lost(0, reason)


class Client(Control):
    """That of any other rank."""

    def __init__(self, rank: int, size: int, address: str, port: int, secret: str) -> None:
        super().__init__(rank, size)
        self.peer = Peer(socket.create_connection((address, port), timeout=LIMIT))
        self.peer.tell(rank=rank, secret=secret)
        self.peer.sock.settimeout(BEAT / 2)

    def serve(self) -> None:
        beaten = 0.0
        told = False
        while True:
            now = time.monotonic()
            if now - beaten >= BEAT:
                beaten = now
                self.peer.tell(**self.beat())
            if self.closing.is_set() and not told:
                told = True
                self.peer.tell(ended=self.rank)
                self.over.set()
            messages = self.peer.read()
            if messages is None:
                if 0 not in self.ended:
                    self.lost.setdefault(0, "died")
                self.peer.sock.close()
                self.over.set()
                return
            for m in messages:
                for number, reason in m["lost"].items():
                    self.lost.setdefault(int(number), reason)
                for number in m["ended"]:
                    self.ended.setdefault(number, time.monotonic())
                self.stuck = self.stuck or m["stuck"]
            silent = time.monotonic() - self.peer.seen
            if silent > LIMIT and 0 not in self.ended:
                self.lost.setdefault(0, f"hangs (no heartbeat for {silent:.1f} s)")

    def fail(self, reason: str) -> None:
        self.peer.tell(raised=reason, rank=self.rank)
