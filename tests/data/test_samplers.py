"""Samplers beside PyTorch's: lengths, what is covered, resumption."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

import everygrad as eg
from everygrad.errors import ArgumentError

DATA = range(10)
CASES: dict[str, Any] = {
    "sequential": lambda d: d.SequentialSampler(DATA),
    "random": lambda d: d.RandomSampler(DATA),
    "random, some": lambda d: d.RandomSampler(DATA, num_samples=4),
    "random, more than there are": lambda d: d.RandomSampler(DATA, num_samples=25),
    "subset": lambda d: d.SubsetRandomSampler([3, 1, 8]),
    "weighted without replacement": lambda d: d.WeightedRandomSampler([1.0, 0.0, 2.0], 2, False),
    "batches": lambda d: d.BatchSampler(d.SequentialSampler(DATA), 3, False),
    "batches, dropped": lambda d: d.BatchSampler(d.SequentialSampler(DATA), 3, True),
    **{
        f"distributed {rank} of {n}, {drop=}": (
            lambda d, n=n, rank=rank, drop=drop: d.DistributedSampler(
                DATA, n, rank, shuffle=False, drop_last=drop
            )
        )
        for n, rank in ((1, 0), (3, 0), (3, 2), (4, 3), (16, 11))
        for drop in (False, True)
    },
}
ORDERED = [c for c in CASES if c.startswith(("seq", "batches", "distributed"))]


@pytest.mark.parametrize("case", CASES)
def test_lengths_and_coverage_are_pytorchs(case: str) -> None:
    ours, theirs = CASES[case](eg.data), CASES[case](torch_data)
    assert len(ours) == len(theirs)
    mine, others = list(ours), list(theirs)
    assert len(mine) == len(others) == len(ours)
    if case in ORDERED:
        assert mine == others
    elif "some" not in case and "more" not in case:
        assert Counter(mine) == Counter(others)
    else:  # every item as often as any other, but for the last round
        counts = Counter(mine)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_pass_with_replacement_is_uniform() -> None:
    drawn = list(eg.data.RandomSampler(range(8), True, 80000, eg.Generator(1)))
    counts = np.bincount(drawn, minlength=8)
    assert len(drawn) == 80000
    assert abs(counts - 10000).max() < 5 * np.sqrt(10000)


@pytest.mark.parametrize("replacement", [True, False])
def test_weights_decide_how_often(replacement: bool) -> None:
    weights = [1.0, 0.0, 3.0, 4.0]
    first: list[int] = []
    sampler = eg.data.WeightedRandomSampler(weights, 1, replacement, eg.Generator(2))
    for _ in range(4000):
        first += list(sampler)
    share = np.bincount(first, minlength=4) / 4000
    assert share[1] == 0
    assert abs(share - np.array(weights) / 8).max() < 0.03


def test_an_epoch_of_a_distributed_sampler_is_divided() -> None:
    parts = [eg.data.DistributedSampler(range(12), 3, rank, seed=5) for rank in range(3)]
    orders = []
    for epoch in (0, 1):
        for p in parts:
            p.set_epoch(epoch)
        every = [i for p in parts for i in p]
        assert sorted(every) == list(range(12))
        orders.append(every)
    assert orders[0] != orders[1]


DRAWING: dict[str, Any] = {
    "random": lambda g: eg.data.RandomSampler(range(30), generator=g),
    "replacement": lambda g: eg.data.RandomSampler(range(30), True, 50, g),
    "subset": lambda g: eg.data.SubsetRandomSampler(range(5, 30), g),
    "weighted": lambda g: eg.data.WeightedRandomSampler(range(1, 30), 40, generator=g),
    "buckets": lambda g: eg.data.BucketBatchSampler(
        [n % 7 for n in range(30)], 4, bucket_size=2, generator=g
    ),
    "in batches": lambda g: eg.data.BatchSampler(
        eg.data.RandomSampler(range(30), generator=g), 4, False
    ),
}


@pytest.mark.parametrize("case", DRAWING)
def test_a_pass_is_repeated_from_its_state(case: str) -> None:
    ours = DRAWING[case](eg.Generator(7))
    passes = [list(ours) for _ in range(3)]
    assert passes[0] != passes[1]
    assert [list(DRAWING[case](eg.Generator(7)))] == passes[:1]
    again = DRAWING[case](eg.Generator(7))
    assert list(again) == passes[0]
    middle = iter(again)
    begun = [next(middle)]
    state = again.state_dict()
    other = DRAWING[case](eg.Generator(99))
    other.load_state_dict(state)
    assert list(other) == passes[1]
    assert begun == passes[1][:1]
    assert list(other) == passes[2]


def test_the_default_generator_decides_where_none_is_given() -> None:
    orders = []
    for _ in range(2):
        eg.manual_seed(11)
        orders.append(list(eg.data.RandomSampler(range(20))))
    assert orders[0] == orders[1]
    assert list(eg.data.RandomSampler(range(20))) != orders[0]


@pytest.mark.parametrize(
    "limits", [{"batch_size": 4}, {"max_tokens": 30}, {"batch_size": 4, "max_tokens": 24}]
)
def test_buckets_hold_similar_lengths(limits: dict[str, int]) -> None:
    lengths = np.random.default_rng(0).integers(1, 20, 200).tolist()
    sampler = eg.data.BucketBatchSampler(
        lengths, bucket_size=50, generator=eg.Generator(0), **limits
    )
    batches = list(sampler)
    assert sorted(i for b in batches for i in b) == list(range(200))
    assert len(sampler) == len(batches)
    padded = sum(max(lengths[i] for i in b) * len(b) for b in batches)
    plain = list(range(200))
    size = limits.get("batch_size", 3)
    unsorted = sum(
        max(lengths[i] for i in plain[k : k + size]) * len(plain[k : k + size])
        for k in range(0, 200, size)
    )
    assert padded < 0.8 * unsorted
    assert all(len(b) <= limits.get("batch_size", 200) for b in batches)
    tokens = limits.get("max_tokens", 10**9)
    assert all(max(lengths[i] for i in b) * len(b) <= tokens for b in batches)


REFUSALS: dict[str, Any] = {
    "num_samples": lambda d: d.RandomSampler(DATA, num_samples=0),
    "batch_size": lambda d: d.BatchSampler(DATA, 0, False),
    "weights": lambda d: d.WeightedRandomSampler([1.0, -1.0], 2),
    "weights nan": lambda d: d.WeightedRandomSampler([1.0, float("nan")], 2),
    "weights zero": lambda d: d.WeightedRandomSampler([0.0, 0.0], 2),
    "without replacement": lambda d: d.WeightedRandomSampler([1.0, 0.0], 2, False),
    "rank": lambda d: d.DistributedSampler(DATA, 2, 2),
    "num_replicas": lambda d: d.DistributedSampler(DATA, 0, 0),
    "give batch_size": lambda d: d.BucketBatchSampler([1, 2]),
    "max_tokens": lambda d: d.BucketBatchSampler([1, 9], max_tokens=5),
    "lengths": lambda d: d.BucketBatchSampler([1, -9], 2),
    "takes what its state_dict": lambda d: d.RandomSampler(DATA).load_state_dict({"sed": 1}),
    "no items": lambda d: list(d.RandomSampler([], num_samples=3)),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_argument(case: str) -> None:
    with pytest.raises(ArgumentError, match=case.split()[0]):
        REFUSALS[case](eg.data)


def test_torch_tensors_as_weights() -> None:
    weights = torch.tensor([0.0, 1.0])
    assert list(eg.data.WeightedRandomSampler(weights, 3)) == [1, 1, 1]
    assert list(eg.data.WeightedRandomSampler(eg.tensor([1.0, 0.0]), 2)) == [0, 0]
