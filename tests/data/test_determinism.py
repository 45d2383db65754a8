"""One seed, one stream of batches: for any number of workers, and after any interruption."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError
from tests.support.loader_cases import (
    Augmented,
    Counting,
    CountingFrom,
    DrawnByEverygrad,
    as_values,
)

WORKERS = [(0, "process"), (1, "process"), (2, "process"), (1, "thread"), (2, "thread")]
Loader = eg.data.DataLoader


def passes(data: Any, count: int = 2, **settings: Any) -> list[Any]:
    loader = Loader(data, batch_size=4, shuffle=True, generator=eg.Generator(5), **settings)
    return [[as_values(b) for b in loader] for _ in range(count)]


@pytest.mark.parametrize(("count", "kind"), WORKERS)
@pytest.mark.parametrize("persistent", [False, True])
def test_the_number_of_workers_changes_nothing(count: int, kind: str, persistent: bool) -> None:
    data = DrawnByEverygrad() if kind == "thread" else Augmented()
    wanted = passes(data)
    assert wanted[0] != wanted[1]
    keep = {"persistent_workers": True} if persistent and count else {}
    assert passes(data, num_workers=count, workers=kind, **keep) == wanted


def test_spawned_workers_change_nothing_either() -> None:
    wanted = passes(Augmented(), 1)
    assert passes(Augmented(), 1, num_workers=2, multiprocessing_context="spawn") == wanted


def test_another_seed_is_another_stream() -> None:
    first = [as_values(b) for b in Loader(Augmented(), 4, generator=eg.Generator(1))]
    second = [as_values(b) for b in Loader(Augmented(), 4, generator=eg.Generator(2))]
    assert len(first) == len(second) == 6
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_items_draw_apart_from_each_other() -> None:
    (batch,) = Loader(Augmented(), batch_size=23)
    for name in ("python", "numpy", "everygrad"):
        values = batch[name].numpy().reshape(-1)
        assert len(np.unique(values)) == values.size


def test_an_item_drawn_twice_is_augmented_twice() -> None:
    (batch,) = Loader(Augmented(), batch_size=2, sampler=[3, 3])
    assert batch["item"].tolist() == [3, 3]
    assert batch["python"][0].item() != batch["python"][1].item()


def test_the_streams_of_the_program_go_on_as_if_nobody_had_drawn() -> None:
    def drawn(loads: bool) -> Any:
        random.seed(3)
        np.random.seed(3)
        eg.manual_seed(3)
        if loads:
            for _ in Loader(Augmented(), batch_size=4, generator=eg.Generator(0)):
                pass
        return random.random(), np.random.rand(), eg.rand(()).item()

    assert drawn(True) == drawn(False)


def test_a_seed_set_inside_an_item_stays_there() -> None:
    class Seeds(eg.data.Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> Any:
            np.random.seed(i)
            random.seed(i)
            eg.manual_seed(i)
            return np.random.rand(), random.random(), eg.rand(())

    found = [
        [as_values(b) for b in Loader(Seeds(), num_workers=n, generator=eg.Generator(0))]
        for n in (0, 1)
    ]
    assert found[0] == found[1]
    assert found[0][0][1][0][1] == [np.random.RandomState(0).rand()]


# --- resumption -----------------------------------------------------------------------------------


def resumed(make: Any, at: int) -> tuple[list[Any], list[Any]]:
    """What a loop yields that is stopped after `at` batches and resumed by another loader, and the
    pass after it."""
    first = make(5)
    batches = iter(first)
    got = [as_values(next(batches)) for _ in range(at)]
    state = first.state_dict()
    del batches
    second = make(99)
    second.load_state_dict(state)
    assert second.state_dict() == state
    got += [as_values(b) for b in second]
    return got, [as_values(b) for b in second]


@pytest.mark.parametrize(("count", "kind"), WORKERS)
def test_a_loop_resumes_at_every_batch(count: int, kind: str) -> None:
    data = DrawnByEverygrad()
    wanted = passes(data)

    def make(seed: int) -> Any:
        return Loader(
            data, 4, shuffle=True, generator=eg.Generator(seed), num_workers=count, workers=kind
        )

    for at in range(len(wanted[0]) + 1):
        assert resumed(make, at) == (wanted[0], wanted[1])


def test_a_loop_resumes_with_another_number_of_workers() -> None:
    wanted = passes(Augmented())[0]
    first = Loader(Augmented(), 4, shuffle=True, generator=eg.Generator(5), num_workers=2)
    batches = iter(first)
    got = [as_values(next(batches)) for _ in range(2)]
    second = Loader(Augmented(), 4, shuffle=True, generator=eg.Generator(0))
    second.load_state_dict(first.state_dict())
    assert got + [as_values(b) for b in second] == wanted


def test_a_second_interruption_counts_from_the_first() -> None:
    wanted = passes(DrawnByEverygrad())[0]
    got: list[Any] = []
    state = None
    for _ in wanted:
        loader = Loader(DrawnByEverygrad(), 4, shuffle=True, generator=eg.Generator(5))
        if state is not None:
            loader.load_state_dict(state)
        got.append(as_values(next(iter(loader))))
        state = loader.state_dict()
    assert got == wanted


@pytest.mark.parametrize("sampler", ["weighted", "buckets", "own generator", "distributed"])
def test_samplers_resume_too(sampler: str) -> None:
    makes: dict[str, Any] = {
        "weighted": lambda g: {"sampler": eg.data.WeightedRandomSampler(range(1, 24), 23, True, g)},
        "buckets": lambda g: {
            "batch_sampler": eg.data.BucketBatchSampler([n % 5 for n in range(23)], 4, generator=g)
        },
        "own generator": lambda g: {"sampler": eg.data.RandomSampler(range(23), generator=g)},
        "distributed": lambda g: {"sampler": eg.data.DistributedSampler(range(23), 2, 0)},
    }

    def make(seed: int) -> Any:
        given = makes[sampler](eg.Generator(seed))
        size = {} if "batch_sampler" in given else {"batch_size": 4}
        return Loader(DrawnByEverygrad(), generator=eg.Generator(seed), **size, **given)

    loader = make(5)
    wanted = tuple([as_values(b) for b in loader] for _ in range(2))
    assert len(wanted[0]) >= 3
    for at in range(len(wanted[0]) + 1):
        assert resumed(make, at) == wanted


def test_the_state_between_two_passes() -> None:
    def make(seed: int) -> Any:
        return Loader(DrawnByEverygrad(), 4, shuffle=True, generator=eg.Generator(seed))

    first = make(5)
    for _ in first:
        pass
    second = make(0)
    second.load_state_dict(first.state_dict())
    assert [as_values(b) for b in second] == [as_values(b) for b in first]


@pytest.mark.parametrize(("count", "kind"), WORKERS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_iterable_datasets_resume_at_every_batch(count: int, kind: str, drop_last: bool) -> None:
    def make(seed: int) -> Any:
        return Loader(
            Counting(11),
            2,
            drop_last=drop_last,
            generator=eg.Generator(seed),
            num_workers=count,
            workers=kind,
        )

    whole = make(5)
    wanted = tuple([as_values(b) for b in whole] for _ in range(2))
    assert len(wanted[0]) >= 4
    assert wanted[0] != wanted[1]
    for at in range(len(wanted[0]) + 1):
        assert resumed(make, at) == wanted


@pytest.mark.parametrize("count", [0, 1])
def test_an_iterable_dataset_with_a_state_does_not_start_again(count: int) -> None:
    first = Loader(CountingFrom(11), 2, num_workers=count)
    batches = iter(first)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    data = CountingFrom(11)
    second = Loader(data, 2, num_workers=count)
    second.load_state_dict(first.state_dict())
    assert [b.tolist() for b in second] == [[4, 5], [6, 7], [8, 9], [10]]
    assert data.produced == (7 if count == 0 else 0)  # in a worker it is that one's copy


def test_states_that_do_not_fit_are_refused() -> None:
    loader = Loader(Counting(9), num_workers=2)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ArgumentError, match="num_workers=2, not 1"):
        Loader(Counting(9), num_workers=1).load_state_dict(state)
    with pytest.raises(ArgumentError, match="takes what its state_dict"):
        loader.load_state_dict({"batches": 3})
    with pytest.raises(ArgumentError, match="another kind of sampler"):
        Loader(range(9), sampler=[1, 2]).load_state_dict(
            Loader(range(9), shuffle=True).state_dict()
        )
    seeded = Loader(range(9), shuffle=True, generator=eg.Generator(0)).state_dict()
    with pytest.raises(ArgumentError, match="generator; make it alike"):
        Loader(range(9), shuffle=True).load_state_dict(seeded)


def test_a_state_is_made_of_plain_values() -> None:
    loader = Loader(Counting(9), num_workers=2, generator=eg.Generator(3))
    next(iter(loader))

    def check(value: Any) -> int:
        if isinstance(value, dict):
            assert all(isinstance(k, str) for k in value)
            return sum(check(v) for v in value.values())
        if isinstance(value, list):
            return sum(check(v) for v in value)
        assert value is None or type(value) in (int, float, str, bool)
        return 1

    assert check(loader.state_dict()) > 10
