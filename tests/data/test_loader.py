"""DataLoader: batches beside PyTorch's, arguments and their refusals, devices."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import numpy as np
import pytest
import torch.utils.data as torch_data

import everygrad as eg
from everygrad.data.workers import processes
from everygrad.errors import ArgumentError
from tests.support.loader_cases import Computing, Counting, Large, Pair, Record, as_values

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "batches": {"batch_size": 3},
    "dropped": {"batch_size": 3, "drop_last": True},
    "items": {"batch_size": None},
    "sampler": {"batch_size": 3, "sampler": [5, 1, 1, 0]},
    "batch_sampler": {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
    "collate_fn": {"batch_size": 4, "collate_fn": sum},
}
WORKERS = [(0, "process"), (2, "process"), (2, "thread")]


class Squares:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> int:
        if not 0 <= i < 10:
            raise IndexError(i)
        return i * i


def plain(batch: Any) -> Any:
    return batch.tolist() if hasattr(batch, "tolist") else batch


@pytest.mark.parametrize(("count", "kind"), WORKERS)
@pytest.mark.parametrize("case", SETTINGS)
def test_batches_are_pytorchs(case: str, count: int, kind: str) -> None:
    ours = eg.data.DataLoader(Squares(), num_workers=count, workers=kind, **SETTINGS[case])
    theirs = torch_data.DataLoader(Squares(), **SETTINGS[case])  # type: ignore[arg-type]
    assert len(ours) == len(theirs)
    assert [plain(b) for b in ours] == [plain(b) for b in theirs]


@pytest.mark.parametrize(("count", "kind"), WORKERS)
def test_iterable_datasets_are_divided_as_pytorch_does(count: int, kind: str) -> None:
    class Theirs(torch_data.IterableDataset[int]):
        def __iter__(self) -> Any:
            info = torch_data.get_worker_info()
            first, step = (0, 1) if info is None else (info.id, info.num_workers)
            return iter(range(first, 11, step))

    theirs = torch_data.DataLoader(Theirs(), batch_size=2, num_workers=count)
    ours = eg.data.DataLoader(Counting(11), batch_size=2, num_workers=count, workers=kind)
    mine = [numbers.tolist() for numbers, _ in ours]
    assert mine == [plain(b) for b in theirs]
    assert sorted(n for b in mine for n in b) == list(range(11))


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_rows_of_tensors_are_gathered(kind: str) -> None:
    x, y = np.arange(30.0).reshape(10, 3), np.arange(10)
    data = eg.data.TensorDataset(eg.asarray(x), eg.asarray(y))
    for count in (0, 2):
        loader = eg.data.DataLoader(
            data, 4, sampler=[9, 0, -1, 3, 3], num_workers=count, workers=kind
        )
        found = [(a.tolist(), b.tolist()) for a, b in loader]
        wanted = [9, 0, 9, 3], [3]
        assert found == [(x[w].tolist(), y[w].tolist()) for w in map(list, wanted)]


CONTAINERS: dict[str, Any] = {
    "numbers": lambda items: (len(items), 1.5, float("inf"), True, None, 3 + 4j, 2**100),
    "strings": lambda items: ["ä\ud800", "", b"\x00\xff", {"k": "v"}],
    "keys": lambda items: {1: "a", (2, "b"): "c", None: 0, 1.5: 1},
    "sets": lambda items: ({1, 2}, frozenset("a")),
    "arrays": lambda items: (np.arange(3), np.float32(2), np.ones((0, 2))),
    "dates": lambda items: np.array("2020-01-01", "M8[D]"),
    "strided": lambda items: np.arange(24).reshape(4, 6)[::2, ::-1].T,
    "text arrays": lambda items: np.array(["a", "bc"]),
    "tensors": lambda items: [eg.ones((2,), eg.bfloat16), eg.tensor(1 + 2j), eg.tensor(True)],
    "named": lambda items: Pair(Record(eg.ones((1,)), "n"), [Pair(1, 2)]),
    "big-endian": lambda items: np.arange(3, dtype=">i4"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTAINERS)
def test_whatever_a_batch_holds_crosses_processes(case: str) -> None:
    here, there = (
        list(eg.data.DataLoader(range(2), num_workers=n, collate_fn=CONTAINERS[case]))
        for n in (0, 1)
    )
    assert len(here) == len(there) == 2
    assert [as_values(b) for b in here] == [as_values(b) for b in there]


class Local:
    """Not a container that a description names."""


def test_what_does_not_cross_is_named() -> None:
    for collate, text in (
        (lambda items: Local(), "Local"),
        (lambda items: np.array([None]), "Python objects"),
        (lambda items: np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), "each field"),
        (lambda items: type("Inner", (tuple,), {"_fields": ()})(), "Inner"),
    ):
        with pytest.raises(ArgumentError, match=text):
            list(eg.data.DataLoader(range(2), num_workers=1, collate_fn=collate))
        assert (
            len(
                list(
                    eg.data.DataLoader(
                        range(2), num_workers=1, collate_fn=collate, workers="thread"
                    )
                )
            )
            == 2
        )


def test_long_texts_and_many_indices_do_not_block() -> None:
    """Both sides have more to say than a socket holds."""
    loader = eg.data.DataLoader(
        Large(10, text=300_000), batch_size=2, num_workers=2, prefetch_factor=4
    )
    texts = [t for _, names in loader for t in names]
    assert [len(t) for t in texts] == [300_000 + len(str(i)) for i in range(24)]
    indices = [list(range(10))] + [[0] * 60_000 for _ in range(6)]
    many = eg.data.DataLoader([3] * 10, batch_sampler=indices, num_workers=1, prefetch_factor=8)
    assert [len(b) for b in many] == [len(i) for i in indices]


def test_batches_stay_what_they_are_while_others_come() -> None:
    """The memory of a batch is used again only when nobody has it."""
    loader = eg.data.DataLoader(Large(), batch_size=2, num_workers=2)
    every = [x for x, _ in loader]
    assert [x[:, 0].tolist() for x in every] == [[2.0 * i, 2.0 * i + 1] for i in range(12)]
    row = None
    for x, _ in eg.data.DataLoader(Large(), batch_size=2, num_workers=1):
        row = x[0] if row is None else row  # a view alone keeps its batch
    assert row is not None
    assert set(row.tolist()) == {0.0}


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_workers_compute_what_their_parent_does(kind: str) -> None:
    """Native threads, compiled functions and caches are in use in the parent before it forks."""
    data = Computing()
    wanted = [as_values(b) for b in eg.data.DataLoader(data, 2)]
    for _ in range(2):
        found = [as_values(b) for b in eg.data.DataLoader(data, 2, num_workers=2, workers=kind)]
        assert found == wanted
        assert [as_values(b) for b in eg.data.DataLoader(data, 2)] == wanted
    assert len(wanted) == 4


def test_batches_are_not_copied() -> None:
    for x, _ in eg.data.DataLoader(Large(), batch_size=2, num_workers=1):
        owner = x.numpy()
        while isinstance(owner, np.ndarray):
            owner = owner.base
        assert type(owner).__module__ == "everygrad.data.workers.shared_memory"


def test_a_worker_that_keeps_a_batch_is_not_overwritten() -> None:
    kept: list[Any] = []

    def collate(items: list[Any]) -> Any:
        kept.append(eg.data.default_collate(items))
        return [k[0][:, 0].tolist() for k in kept]

    loader = eg.data.DataLoader(Large(), batch_size=2, num_workers=1, collate_fn=collate)
    last = list(loader)[-1]
    assert last == [[2.0 * i, 2.0 * i + 1] for i in range(12)]


@pytest.mark.parametrize(("count", "kind"), WORKERS)
def test_batches_are_moved_to_a_device(count: int, kind: str, device: str) -> None:
    given = {"num_workers": count, "workers": kind, "device": device, "pin_memory": True}
    if device != "cpu":
        eg.ones((1,), device=device)  # open: workers are spawned
    loader = eg.data.DataLoader(Large(100), batch_size=4, **given)
    found = [(x.device, x.sum(axis=1).tolist(), names) for x, names in loader]
    assert len(found) == 6
    for k, (where, sums, names) in enumerate(found):
        assert where == device
        assert sums == [100.0 * (4 * k + i) for i in range(4)]
        assert [*names] == [str(4 * k + i) for i in range(4)]


def test_a_break_while_batches_are_on_their_way_to_a_device(device: str) -> None:
    for kind in ("process", "thread"):
        loader = eg.data.DataLoader(Large(), 2, num_workers=1, workers=kind, device=device)
        for x, _ in loader:
            assert x.device == device
            break


REFUSALS: dict[str, dict[str, Any]] = {
    "num_workers is 0 or more": {"num_workers": -1},
    "batch_size must be 1 or more": {"batch_size": 0},
    "leave out shuffle": {"sampler": [0], "shuffle": True},
    "a batch_sampler decides": {"batch_sampler": [[0]], "batch_size": 2},
    "nothing to drop_last": {"batch_size": None, "drop_last": True},
    "prefetch_factor needs workers": {"prefetch_factor": 2},
    "persistent_workers needs workers": {"persistent_workers": True},
    "timeout needs workers": {"timeout": 3},
    "prefetch_factor must be 1": {"prefetch_factor": 0, "num_workers": 1},
    "timeout is 0 or more": {"timeout": -1, "num_workers": 1},
    'workers is "process" or "thread"': {"workers": 2},
    "multiprocessing_context must be one of": {"num_workers": 1, "multiprocessing_context": "frok"},
    "threads have no": {"num_workers": 1, "multiprocessing_context": "fork", "workers": "thread"},
}


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals(text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        eg.data.DataLoader(range(4), **REFUSALS[text])


@pytest.mark.parametrize("given", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_an_iterable_dataset_takes_no_order(given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="an IterableDataset has none"):
        eg.data.DataLoader(Counting(3), **given)


def test_workers_know_themselves() -> None:
    def collate(items: list[int]) -> Any:
        info = eg.data.get_worker_info()
        return None if info is None else [info.id, info.num_workers, info.seed, len(info.dataset)]

    for kind in ("process", "thread"):
        started: list[int] = []
        loader = eg.data.DataLoader(
            range(4),
            collate_fn=collate,
            num_workers=2,
            workers=kind,
            worker_init_fn=started.append,
            generator=eg.Generator(1),
        )
        told = list(loader)
        assert [t[0] for t in told] == [0, 1, 0, 1]
        assert all(t[1] == 2 and t[3] == 4 for t in told)
        assert told[0][2] != told[1][2]
        if kind == "thread":
            assert sorted(started) == [0, 1]
    assert list(eg.data.DataLoader(range(1), collate_fn=collate)) == [None]


def test_workers_are_started_in_a_way_that_is_safe(device: str, monkeypatch: Any) -> None:
    eg.ones((1,), device=device)
    gpu = device != "cpu"
    monkeypatch.setattr(processes, "a_gpu_is_open", lambda: gpu)
    if sys.platform == "linux":
        assert processes.context_for(None).get_start_method() == ("spawn" if gpu else "fork")
    assert processes.context_for("fork").get_start_method() == "fork"
    context = multiprocessing.get_context("forkserver")
    assert processes.context_for(context) is context
    with pytest.raises(ArgumentError, match="a name or a context"):
        processes.context_for(3)


def test_an_open_gpu_is_seen(monkeypatch: Any) -> None:
    class Fake:
        name = "cuda:0"

    monkeypatch.undo()
    monkeypatch.setattr(processes.base, "opened", lambda: [Fake()])
    assert processes.a_gpu_is_open()
    monkeypatch.setattr(processes.base, "opened", lambda: [])
    assert not processes.a_gpu_is_open()
