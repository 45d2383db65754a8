"""Datasets beside PyTorch's: items, lengths, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch.utils.data as torch_data

import everygrad as eg
from everygrad.errors import ArgumentError, OutOfRangeError, ShapeError


class Numbers(eg.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


class TorchNumbers(torch_data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


MAP_STYLE = {
    "StackDataset of tuples": lambda d: d.StackDataset([1, 2, 3], "abc"),
    "StackDataset of dicts": lambda d: d.StackDataset(x=[1, 2, 3], y="abc"),
    "Subset": lambda d: d.Subset("abcdef", [4, 0, 2]),
    "ConcatDataset": lambda d: d.ConcatDataset(["ab", "c", "def"]),
    "Subset of ConcatDataset": lambda d: d.Subset(d.ConcatDataset(["ab", "cd"]), [3, 1]),
    "a sum": lambda d: d.Subset("ab", [0]) + d.Subset("cd", [1]),
}


@pytest.mark.parametrize("case", MAP_STYLE)
def test_items_are_pytorchs(case: str) -> None:
    ours, theirs = MAP_STYLE[case](eg.data), MAP_STYLE[case](torch_data)
    assert len(ours) == len(theirs) > 0
    assert [ours[i] for i in range(len(ours))] == [theirs[i] for i in range(len(theirs))]


def test_iterable_datasets_are_chained() -> None:
    theirs = torch_data.ChainDataset([TorchNumbers(), TorchNumbers()])
    for ours in (eg.data.ChainDataset([Numbers(), Numbers()]), Numbers() + Numbers()):
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)


def test_rows_of_tensors() -> None:
    x = np.arange(12.0).reshape(4, 3)
    data = eg.data.TensorDataset(eg.asarray(x), x[:, 0])
    assert len(data) == 4
    first, second = data[2]
    assert first.tolist() == [6.0, 7.0, 8.0]
    assert second.item() == 6.0


@pytest.mark.parametrize("lengths", [[7, 3], [0.5, 0.3, 0.2], [0.25, 0.75], [10], [3, 3, 4]])
def test_random_split_divides_like_pytorchs(lengths: list[Any]) -> None:
    ours = eg.data.random_split(range(10), lengths, eg.Generator(3))
    theirs = torch_data.random_split(range(10), lengths)
    assert [len(p) for p in ours] == [len(p) for p in theirs]
    assert sorted(i for p in ours for i in p) == list(range(10))
    again = eg.data.random_split(range(10), lengths, eg.Generator(3))
    assert [list(p) for p in ours] == [list(p) for p in again]


REFUSALS = {
    "no tensor": (ArgumentError, "at least one tensor", lambda d: d.TensorDataset()),
    "sizes": (ShapeError, "first sizes", lambda d: d.TensorDataset(eg.ones((2,)), eg.ones((3,)))),
    "0-d": (ShapeError, "first sizes", lambda d: d.TensorDataset(eg.ones(()))),
    "stack": (ArgumentError, "by position", lambda d: d.StackDataset([1], x=[1])),
    "stack sizes": (ShapeError, "lengths", lambda d: d.StackDataset([1], [1, 2])),
    "concat none": (ArgumentError, "at least one", lambda d: d.ConcatDataset([])),
    "concat iterable": (ArgumentError, "ChainDataset", lambda d: d.ConcatDataset([Numbers()])),
    "chain map": (ArgumentError, "ConcatDataset", lambda d: d.ChainDataset([[1]])),
    "concat index": (OutOfRangeError, "index 3", lambda d: d.ConcatDataset(["ab", "c"])[3]),
    "split sum": (ArgumentError, "must sum", lambda d: d.random_split(range(3), [1, 1])),
    "split negative": (ArgumentError, "must sum", lambda d: d.random_split(range(3), [4, -1])),
    "split fractions": (ArgumentError, "fractions", lambda d: d.random_split("ab", [1.5, -0.5])),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    error, text, call = REFUSALS[case]
    with pytest.raises(error, match=text):
        call(eg.data)


def test_what_a_subclass_must_write_is_said() -> None:
    with pytest.raises(NotImplementedError, match="__getitem__"):
        eg.data.Dataset()[0]
    with pytest.raises(NotImplementedError, match="__iter__"):
        iter(eg.data.IterableDataset())
