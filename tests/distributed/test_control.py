"""The control channel between sockets of this process: who is taken in, who is lost, who waits."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from everygrad.distributed.carriers import control
from everygrad.distributed.carriers.control import Client, Server
from everygrad.errors import DeviceError

SECRET = "known to this start"


def soon(holds: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether something holds before the time is over."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
    return bool(holds())


@pytest.fixture
def pair() -> Iterator[tuple[Server, Client]]:
    server = Server(2, "127.0.0.1")
    client = Client(1, 2, "127.0.0.1", server.port, SECRET)
    server.accept(SECRET, 10.0)
    server.start()
    client.start()
    yield server, client
    client.closing.set()
    server.closing.set()
    assert server.over.wait(10)
    for one in (server, client):
        one.thread.join(10)
        assert not one.thread.is_alive()


def test_it_listens_where_it_was_told_and_takes_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "SPEAK", 0.2)
    server = Server(2, "127.0.0.1")
    assert server.listener.getsockname()[0] == "127.0.0.1"
    lines = (
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"rank": 1, "secret": "guessed"}\n',
        b'{"rank": 7}\n',
        b"",
    )
    with closing(socket.socket()) as waiting:
        strangers = []
        for line in lines:
            stranger = socket.create_connection(("127.0.0.1", server.port))
            stranger.sendall(line)
            strangers.append(stranger)
        client = Client(1, 2, "127.0.0.1", server.port, SECRET)
        server.accept(SECRET, 10.0)
        assert list(server.peers) == [1]
        for stranger in strangers:
            stranger.settimeout(5)
            assert stranger.recv(10) == b""  # closed
            stranger.close()
        with pytest.raises(ConnectionRefusedError):  # nobody listens any more
            waiting.connect(("127.0.0.1", server.port))
    client.peer.sock.close()
    server.peers[1].sock.close()


def test_a_rank_that_does_not_connect_is_named() -> None:
    server = Server(3, "127.0.0.1")
    with pytest.raises(DeviceError, match=r"ranks \[1, 2\] did not reach rank 0 at 127.0.0.1"):
        server.accept(SECRET, 0.1)
    assert server.listener.fileno() == -1  # closed


def test_a_connection_that_closes_is_a_death(pair: tuple[Server, Client]) -> None:
    server, client = pair
    client.peer.sock.shutdown(socket.SHUT_RDWR)
    assert soon(lambda: server.lost)
    assert server.lost == {1: "died"}


def test_silence_is_a_hang(pair: tuple[Server, Client], monkeypatch: pytest.MonkeyPatch) -> None:
    server, client = pair
    monkeypatch.setattr(control, "LIMIT", 1.0)
    client.peer.lock.acquire()  # nothing can be sent any more
    try:
        assert soon(lambda: server.lost)
        assert server.lost[1].startswith("hangs (no heartbeat for 1.")
    finally:
        client.peer.lock.release()


def test_what_one_raises_all_hear(pair: tuple[Server, Client]) -> None:
    server, client = pair
    client.fail("raised ValueError: no")
    assert soon(lambda: server.lost)
    assert server.lost == {1: "raised ValueError: no"}
    assert soon(lambda: client.lost)


def test_ends_are_told_both_ways(pair: tuple[Server, Client]) -> None:
    server, client = pair
    client.closing.set()
    assert soon(lambda: 1 in server.ended)
    assert not server.lost
    done = threading.Thread(target=server.close, args=(10.0,))
    done.start()
    done.join(10)
    assert not done.is_alive()


def test_ranks_that_all_wait_are_told(pair: tuple[Server, Client]) -> None:
    server, client = pair
    server.waiting, client.waiting = (4, "all_reduce"), (4, "recv")
    assert soon(lambda: client.stuck and server.stuck)
    assert server.stuck == client.stuck == "rank 0 in all_reduce (#4); rank 1 in recv (#4)"


def test_one_that_waits_is_not_stuck(pair: tuple[Server, Client]) -> None:
    server, client = pair
    client.waiting = (3, "recv")
    time.sleep(control.STUCK + 3 * control.BEAT)
    assert server.stuck is None
    assert client.stuck is None
    assert server.states[1][0] == (3, "recv")
