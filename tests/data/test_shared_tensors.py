"""Tensors cross processes by shared memory, and never by pickle."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

import everygrad as eg
from everygrad.data.workers.shared_memory import Arena, Received
from everygrad.errors import ArgumentError, DeviceError, GradientError, WorkerError
from tests.support.loader_cases import held

TENSORS: dict[str, Any] = {
    "float32": lambda: eg.rand((100, 30)),
    "bfloat16": lambda: eg.ones((3,), eg.bfloat16),
    "strided": lambda: eg.arange(12).reshape(3, 4).T,
    "0-d": lambda: eg.tensor(2.5),
    "empty": lambda: eg.ones((0, 3)),
    "complex": lambda: eg.tensor([1 + 2j]),
    "a leaf": lambda: eg.ones((2,), requires_grad=True),
}


def double(inbox: Any, outbox: Any, given: Any) -> None:
    """What the other process does: it stays until it is told that its answer has come."""
    x = inbox.get()
    outbox.put((x.detach() * 2, x.requires_grad, given.detach() + 1))
    inbox.get()


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_tensors_as_arguments_and_messages(way: str) -> None:
    for case, make in TENSORS.items() if way == "fork" else [("float32", TENSORS["float32"])]:
        context = multiprocessing.get_context(way)
        inbox, outbox = context.Queue(), context.Queue()
        x, given = make(), eg.arange(3)
        process = context.Process(target=double, args=(inbox, outbox, given))
        process.start()
        try:
            inbox.put(x)
            y, required, other = outbox.get(timeout=60)
            inbox.put(None)
        finally:
            process.join(60)
            inbox.close()
            outbox.close()
        assert process.exitcode == 0, case
        assert y.dtype is x.dtype
        assert y.tolist() == (x.detach() * 2).tolist()
        assert required is x.requires_grad
        assert other.tolist() == [1, 2, 3]


def leave(outbox: Any) -> None:
    outbox.put(eg.arange(3))


def test_a_sender_that_has_ended_is_named() -> None:
    context = multiprocessing.get_context("fork")
    outbox = context.Queue()
    process = context.Process(target=leave, args=(outbox,))
    process.start()
    process.join(60)
    try:
        with pytest.raises(WorkerError, match=r"int64\[3\] from .* has ended.* send x.numpy\(\)"):
            outbox.get(timeout=60)
    finally:
        outbox.close()


def test_a_dataset_of_tensors_is_spawned() -> None:
    x = eg.rand((10, 3))
    data = eg.data.TensorDataset(x, eg.arange(10))
    loader = eg.data.DataLoader(data, 4, num_workers=2, multiprocessing_context="spawn")
    found = [row for rows, _ in loader for row in rows.tolist()]
    assert found == x.tolist()


def test_nothing_stays_behind() -> None:
    before = held()
    for _ in range(3):
        x = eg.rand((1000,))
        connections = multiprocessing.Pipe()
        connections[0].send(x)
        y = connections[1].recv()
        assert y.tolist() == x.tolist()
        for c in connections:
            c.close()
        del x, y
    after = held()
    assert after[1] <= before[1]
    assert after[2] - before[2] <= 2  # the sharer of multiprocessing listens on a socket


def test_what_does_not_cross(device: str) -> None:
    sending = multiprocessing.Pipe()[0]
    w = eg.ones((2,), requires_grad=True)
    with pytest.raises(GradientError, match=r"send x.detach\(\)"):
        sending.send(w * 2)
    if device != "cpu":
        with pytest.raises(DeviceError, match="does not cross processes"):
            sending.send(eg.ones((2,), device=device))
    with pytest.raises(ArgumentError, match=r"never pickled; .* import everygrad.data"):
        w.__reduce_ex__(2)


def test_an_arena_uses_memory_again_and_bounds_what_is_free() -> None:
    arena, received = Arena(spare=2), Received()
    numbers = []
    for size in [1000, 1000, 500_000, 1000, 500_000, 2_000_000, 1000, 1000]:
        arena.array((size,), "uint8")[:] = 7
        used, new, dropped = arena.finish()
        for number, length, fd in new:
            received.add(number, length, fd)
        lease = received.lease(used)
        assert int(lease.bytes_of(used[0])[:size].sum()) == 7 * size
        received.drop(dropped)
        del lease
        arena.given_back(received.take_returned())
        numbers.append(used[0])
    assert numbers[1] == numbers[0]
    assert numbers[2] != numbers[0]
    assert len(arena._free) <= 3
