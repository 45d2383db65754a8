"""Ranks that raise, end, stay away or do something else: named on the others, and written down."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import everygrad as eg
from everygrad import distributed as dist
from everygrad.distributed.calls import LATEST, around_first_difference
from everygrad.distributed.carriers.mpi import MpiCarrier
from everygrad.errors import CollectiveMismatchError, PeerLost


@pytest.fixture(autouse=True)
def ring_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERYGRAD_RING_DIR", str(tmp_path))
    return tmp_path


def outcomes(deed: Callable[[Any, Any], Any], n: int = 3, timeout: float = 20.0) -> list[Any]:
    """What each rank raises where rank 1 does `deed` and the others sum."""
    found: list[Any] = [None] * n

    def main() -> None:
        mesh = dist.Mesh({"data": n})
        x = eg.ones((4,))
        dist.all_reduce(x, mesh, "data")
        try:
            if dist.rank() == 1:
                deed(x, mesh)
            else:
                dist.all_reduce(x, mesh, "data")
        except BaseException as error:
            found[dist.rank()] = error
            raise

    with pytest.raises(BaseException) as caught:  # noqa: PT011  # which one is looked at below
        dist.run_local(main, n, timeout=timeout)
    assert "on rank" in "".join(caught.value.__notes__)
    return found


def test_a_rank_that_raises() -> None:
    def deed(x: Any, mesh: Any) -> None:
        raise ValueError("no such word")

    first, second, third = outcomes(deed)
    assert isinstance(second, ValueError)
    for error in (first, third):
        assert isinstance(error, PeerLost)
        assert (error.rank, error.step) == (1, 3)
        assert error.collective.startswith("all_reduce float32[4] how=sum")
        assert error.reason == "raised ValueError: no such word"


def test_a_rank_that_ends() -> None:
    found = outcomes(lambda x, mesh: None)
    assert [type(e) for e in found] == [PeerLost, type(None), PeerLost]
    assert found[0].rank == 1
    assert found[0].reason == "has ended"


def test_a_rank_that_does_not_come() -> None:
    started = time.monotonic()
    found = outcomes(lambda x, mesh: time.sleep(1.0), timeout=0.3)
    assert time.monotonic() - started < 10
    assert found[0].rank == 1
    assert found[0].reason == "did not come within 0.3 s"


MISMATCHES = {
    "another shape": lambda x, mesh: dist.all_reduce(eg.ones((5,)), mesh, "data"),
    "another dtype": lambda x, mesh: dist.all_reduce(x.astype(eg.float64), mesh, "data"),
    "another kind": lambda x, mesh: dist.all_gather(x, mesh, "data"),
    "another operation": lambda x, mesh: dist.all_reduce(x, mesh, "data", "max"),
    "another axis": lambda x, mesh: dist.all_gather(x.reshape(4, 1), mesh, "data", dim=1),
}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_ranks_that_call_different_things(kind: str) -> None:
    """All of them raise, and each shows what all were about to do."""
    found = outcomes(MISMATCHES[kind])
    assert [type(e) for e in found] == [CollectiveMismatchError] * 3
    for error in found:
        assert "rank 0:\n  > 0: all_reduce float32[4] how=sum over Mesh1(data=3).data" in str(error)
        assert "rank 1:\n" in str(error)
        assert "rank 2:\n" in str(error)


def test_a_message_that_is_not_expected() -> None:
    def main() -> None:
        mesh = dist.Mesh({"pipe": 2})
        if dist.rank() == 0:
            dist.send(eg.ones((3,)), mesh, "pipe", to=1)
        else:
            dist.recv(eg.zeros((4,)), mesh, "pipe", source=0)

    with pytest.raises(CollectiveMismatchError, match=r"receives float32\[4\] from rank 0, which"):
        dist.run_local(main, 2)


def test_meshes_that_differ() -> None:
    def main() -> None:
        dist.Mesh({"data": 2} if dist.rank() else {"model": 2})

    with pytest.raises(CollectiveMismatchError, match="model=2"):
        dist.run_local(main, 2)


def test_the_ring_has_the_latest_collectives(ring_folder: Path) -> None:
    """256 of them, the failed one last, in a file that the error names."""
    names: list[str] = []

    def main() -> None:
        mesh = dist.Mesh({"data": 2})
        for _ in range(300):
            dist.all_reduce(eg.ones((1,)), mesh, "data")
        try:
            dist.all_reduce(eg.ones((1 + dist.rank(),)), mesh, "data")
        except CollectiveMismatchError as error:
            names.append(re.search(r"are in (\S+\.json)", str(error))[1])  # type: ignore[index]
            raise

    with pytest.raises(CollectiveMismatchError):
        dist.run_local(main, 2)
    assert len(set(names)) == 2
    for name in names:
        assert Path(name).parent == ring_folder
        content = json.loads(Path(name).read_text(encoding="utf-8"))
        calls = content["collectives"]
        assert len(calls) == LATEST == 256
        assert calls[-1]["step"] == 302
        assert calls[0]["step"] == 302 - 255
        assert calls[-2]["state"] == "done"


def test_a_failed_step_changes_nothing() -> None:
    """A compiled step whose collective fails leaves parameters and gradients as they were."""

    def main() -> Any:
        mesh = dist.Mesh({"data": 2})
        w = eg.tensor([1.0, 2.0], requires_grad=True)
        sgd = eg.optim.SGD([w], lr=1.0)

        @eg.jit
        def step(x: Any) -> Any:
            sgd.zero_grad()
            loss = (w * x).sum()
            loss.backward()
            w.grad = dist.all_reduce(w.grad, mesh, "data")
            sgd.step()
            return dist.all_reduce(loss.detach(), mesh, "data")

        x = eg.tensor([1.0, 1.0])
        step(x)
        before = (w.tolist(), w.grad.tolist())  # type: ignore[union-attr]
        if dist.rank() == 1:
            return None
        with pytest.raises(PeerLost):
            step(x)
        return before, (w.tolist(), w.grad.tolist())  # type: ignore[union-attr]

    (before, after), _ = dist.run_local(main, 2)
    assert before == after == ([-1.0, 0.0], [2.0, 2.0])


def test_the_first_difference_of_lists() -> None:
    lists = {0: list("abcdefgh"), 1: list("abcdefxh"), 2: list("abc")}
    shown = around_first_difference(lists, context=1)
    assert shown == (
        "rank 0:\n    2: c\n  > 3: d\n    4: e\nrank 1:\n    2: c\n  > 3: d\n    4: e\n"
        "rank 2:\n    2: c\n  > 3: (nothing)"
    )


@pytest.mark.parametrize("lost", [True, False])
def test_what_mpi_finds_first_is_named_by_the_control_channel(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that a dead rank closed makes MPI raise before anybody has said who it was. What
    was not received is not asked after again: MPI would call it done."""

    class MpiError(Exception):
        pass

    asked: list[Any] = []

    def testall(requests: Any) -> bool:
        asked.append(requests)
        if len(asked) > 1:
            return True
        raise MpiError

    monkeypatch.setattr("everygrad.distributed.carriers.mpi.GRACE", 0.3)
    carrier = object.__new__(MpiCarrier)
    carrier.rank, carrier.failed, carrier.abandoned = 0, None, []
    carrier.mpi = SimpleNamespace(Exception=MpiError, Request=SimpleNamespace(Testall=testall))
    control: Any = SimpleNamespace(stuck=None, lost={}, ended={}, waiting=None)
    carrier.control = control
    if lost:
        threading.Timer(0.05, control.lost.update, [{1: "died"}]).start()
    with pytest.raises(PeerLost if lost else MpiError) as caught:
        carrier.finish([1], (0, 1), {"step": 7, "call": "all_reduce"}, False, None)
    assert len(asked) == 1
    assert not lost or str(caught.value).startswith("rank 1 died")


def test_an_interrupt_ends_simulated_ranks() -> None:
    """Ctrl-C comes to the thread that waits for them; none goes on by itself."""
    ended: list[tuple[int, str]] = []
    main = threading.main_thread()
    assert threading.current_thread() is main
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def run() -> None:
        mesh = dist.Mesh({"d": dist.world_size()})
        x = eg.ones((4,))
        try:
            dist.barrier(mesh)
            if dist.rank() == 0:
                signal.raise_signal(signal.SIGINT)  # the handler runs in the main thread
            while True:
                dist.all_reduce(x, mesh, "d")
        except BaseException as error:
            ended.append((dist.rank(), type(error).__name__))
            raise

    try:
        with pytest.raises(KeyboardInterrupt):
            dist.run_local(run, 3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(ended) == [(rank, "KeyboardInterrupt") for rank in range(3)]
    for t in threading.enumerate():  # which have all but ended
        if t.name.startswith("everygrad-rank-"):
            t.join(5.0)
            assert not t.is_alive()
    assert dist.run_local(dist.rank, 2) == [0, 1]
