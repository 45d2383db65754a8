"""The names of torch.utils.data: there, or listed with a reason; and pipes beside PyTorch's."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pytest
import torch.utils.data as torch_data
from torch.utils.data.datapipes.iter import IterableWrapper as TorchIterable
from torch.utils.data.datapipes.map import SequenceWrapper as TorchSequence

import everygrad as eg
from everygrad.core.torch_data_names import ABSENT, ADDED
from everygrad.errors import ArgumentError, DtypeError

THEIRS = torch_data.__all__


def test_names_are_there_or_have_a_reason() -> None:
    missing = {n for n in THEIRS if n not in ABSENT and not hasattr(eg.data, n)}
    assert missing == set()
    assert {n for n in ABSENT if hasattr(eg.data, n)} == set()
    assert set(ABSENT) <= set(THEIRS)
    assert len(ABSENT) <= 0.1 * len(THEIRS)
    assert all(len(reason) > 20 for reason in ABSENT.values())


def test_what_is_added_is_listed() -> None:
    public = {
        n
        for n, v in vars(eg.data).items()
        if not n.startswith("_") and (not isinstance(v, types.ModuleType) or n == "transforms")
    }
    assert public == {n for n in THEIRS if n not in ABSENT} | set(ADDED)


@pytest.mark.parametrize("name", ["DataLoader", "random_split", "TensorDataset", "BatchSampler"])
def test_arguments_have_pytorchs_names_and_order(name: str) -> None:
    ours, theirs = (
        [p for p in inspect.signature(getattr(d, name)).parameters.values() if p.name != "self"]
        for d in (eg.data, torch_data)
    )
    positional = [p.name for p in theirs if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert [p.name for p in ours][: len(positional)] == positional
    assert {p.name for p in theirs} <= {p.name for p in ours}


def test_missing_names_say_why_or_what_is_nearest() -> None:
    with pytest.raises(AttributeError, match="pandas"):
        eg.data.DFIterDataPipe  # noqa: B018
    with pytest.raises(AttributeError, match=r"the nearest (is|are) 'DataLoader'"):
        eg.data.Dataloader  # noqa: B018


def odd(n: int) -> bool:
    return n % 2 == 1


CHAINS: dict[str, Any] = {
    "map": lambda p: p.map(str),
    "filter": lambda p: p.filter(odd),
    "batch": lambda p: p.batch(3),
    "batch, dropped": lambda p: p.batch(3, drop_last=True),
    "unbatch": lambda p: p.batch(3).unbatch(),
    "zip": lambda p: p.zip(type(p)(range(3, 9))),
    "concat": lambda p: p.concat(type(p)(range(3))),
    "sharding_filter": lambda p: p.sharding_filter(),
    "collate": lambda p: p.batch(2).collate(sum),
}


@pytest.mark.parametrize("case", CHAINS)
def test_pipes_are_pytorchs(case: str) -> None:
    ours, theirs = (
        CHAINS[case](eg.data.IterableWrapper(range(7))),
        CHAINS[case](TorchIterable(range(7))),
    )
    assert [*map(_plain, ours)] == [*map(_plain, theirs)]
    assert len(list(ours)) > 0


def _plain(item: Any) -> Any:
    return [*map(_plain, item)] if isinstance(item, list | tuple) else item


def test_pipes_by_number_are_pytorchs() -> None:
    ours, theirs = (
        w("abcd").map(str.upper).zip(w([1, 2, 3, 4]))
        for w in (eg.data.SequenceWrapper, TorchSequence)
    )
    assert [ours[i] for i in range(len(ours))] == [theirs[i] for i in range(len(theirs))]


@pytest.mark.parametrize(("count", "kind"), [(0, "process"), (2, "process"), (3, "thread")])
def test_shuffled_pipes_are_divided_among_workers(count: int, kind: str) -> None:
    """All workers shuffle alike, so that each item is in one of their parts."""
    for size in (4, 100):
        pipe = eg.data.IterableWrapper(range(30)).shuffle(buffer_size=size).sharding_filter()
        loader = eg.data.DataLoader(
            pipe, batch_size=None, num_workers=count, workers=kind, generator=eg.Generator(3)
        )
        first, second = list(loader), list(loader)
        assert sorted(first) == sorted(second) == list(range(30))
        assert first != second
        assert first != list(range(30))


def test_pipes_resume_in_the_middle() -> None:
    def make(seed: int) -> Any:
        pipe = eg.data.IterableWrapper(range(20)).shuffle(buffer_size=6).batch(3).collate()
        return eg.data.DataLoader(pipe, batch_size=None, generator=eg.Generator(seed))

    wanted = [b.tolist() for b in make(1)]
    first = make(1)
    batches = iter(first)
    got = [next(batches).tolist() for _ in range(3)]
    second = make(9)
    second.load_state_dict(first.state_dict())
    assert got + [b.tolist() for b in second] == wanted


def test_pipes_refuse_by_name() -> None:
    pipe = eg.data.IterableWrapper([1])
    with pytest.raises(AttributeError, match=r"the pipes by name are .*shuffle"):
        pipe.shufle()
    with pytest.raises(ArgumentError, match="'map' already"):
        eg.data.functional_datapipe("map")(type("Mine", (eg.data.IterDataPipe,), {}))
    with pytest.raises(ArgumentError, match="takes a class of pipes"):
        eg.data.functional_datapipe("mine")(int)
    with pytest.raises(ArgumentError, match="batch_size"):
        pipe.batch(0)


def test_determinism_can_be_asked_for() -> None:
    @eg.data.non_deterministic(lambda source, loose=False: loose)
    class Live(eg.data.IterDataPipe[int]):
        def __init__(self, source: Any, loose: bool = False) -> None:
            self.source = source

    with eg.data.guaranteed_datapipes_determinism():
        assert Live([1]).source == [1]
        with pytest.raises(ArgumentError, match="Live is not deterministic"):
            Live([1], True)
    assert Live([1], True).source == [1]


def test_annotations_can_be_held_to() -> None:
    @eg.data.argument_validation
    def first(items: list[int], more: dict[str, int] | None = None, *rest: int) -> int:
        return items[0]

    assert first([3], {"a": 1}, 4) == 3
    for bad in (("ab",), ([1.5],), ([1], {1: 1})):
        with pytest.raises(DtypeError, match=r"first: (items|more) must be"):
            first(*bad)

    class Pairs(eg.data.IterDataPipe[tuple[int, str]]):
        @eg.data.runtime_validation
        def __iter__(self) -> Any:
            return iter([(1, "a"), (2, 3)])

    with pytest.raises(DtypeError, match="Pairs: items must be"):
        list(Pairs())
    with eg.data.runtime_validation_disabled():
        assert len(list(Pairs())) == 2
