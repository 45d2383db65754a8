"""Collating beside PyTorch's: the same containers, dtypes and values."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

import everygrad as eg
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from tests.support.loader_cases import Pair, Record, as_values

F = np.float32
BATCHES: dict[str, list[Any]] = {
    "integers": [1, 2, 3],
    "booleans": [True, False],
    "floats": [1.5, 2.5],
    "strings": ["a", "b"],
    "bytes": [b"a", b"b"],
    "arrays": [np.arange(3), np.arange(3) + 1],
    "scalars": [F(1), F(2)],
    "0-d arrays": [np.array(1.5), np.array(2.5)],
    "empty arrays": [np.ones((0, 3)), np.ones((0, 3))],
    "float16": [np.ones(2, np.float16), np.zeros(2, np.float16)],
    "uint8": [np.ones((2, 2), np.uint8), np.zeros((2, 2), np.uint8)],
    "tuples": [(1, "a"), (2, "b")],
    "lists": [[1, 2.0], [3, 4.0]],
    "dicts": [{"x": 1, "y": np.ones(2)}, {"x": 2, "y": np.zeros(2)}],
    "ordered dicts": [OrderedDict(b=1, a=2), OrderedDict(b=3, a=4)],
    "namedtuples": [Pair(1, "a"), Pair(2, "b")],
    "nested": [{"a": [(1, {"b": F(2)})]}, {"a": [(3, {"b": F(4)})]}],
    "one item": [(np.ones((2, 2), F), 3)],
}


def as_torch_values(batch: Any) -> Any:
    """PyTorch's batch in the form of `as_values`."""
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype).removeprefix("torch."), batch.tolist()
    if isinstance(batch, dict):
        return type(batch).__name__, [(k, as_torch_values(v)) for k, v in batch.items()]
    if isinstance(batch, list | tuple):
        return type(batch).__name__, [as_torch_values(v) for v in batch]
    return batch


@pytest.mark.parametrize("case", BATCHES)
def test_batches_are_pytorchs(case: str) -> None:
    ours = eg.data.default_collate(BATCHES[case])
    theirs = torch_data.default_collate(BATCHES[case])
    assert as_values(ours) == as_torch_values(theirs)


@pytest.mark.parametrize("case", BATCHES)
def test_items_are_converted_like_pytorchs(case: str) -> None:
    for item in BATCHES[case]:
        ours, theirs = eg.data.default_convert(item), torch_data.default_convert(item)
        assert as_values(ours) == as_torch_values(theirs)


def test_tensors_and_dataclasses() -> None:
    made = eg.data.default_collate([Record(eg.ones((2,)), "a"), Record(eg.zeros((2,)), "b")])
    assert isinstance(made, Record)
    assert as_values(made.x) == ("float32", [[1.0, 1.0], [0.0, 0.0]])
    assert made.name == ["a", "b"]
    converted = eg.data.default_convert(Record(np.ones(2), "a"))
    assert as_values(converted.x) == ("float64", [1.0, 1.0])


def test_a_wider_dtype_later_in_the_batch_widens_it() -> None:
    made = eg.data.default_collate([np.ones(2, np.float32), np.full(2, 0.1), np.ones(2, np.int64)])
    assert made.dtype is eg.float64
    assert made[1].tolist() == [0.1, 0.1]
    mixed = eg.data.default_collate([1, 2.5])
    assert as_values(mixed) == ("float64", [1.0, 2.5])


def test_tensors_are_stacked_on_their_device(device: str) -> None:
    made = eg.data.default_collate([(eg.ones((2,), device=device), 1)] * 2)
    assert made[0].device == device
    assert made[0].tolist() == [[1.0, 1.0], [1.0, 1.0]]


REFUSALS: dict[str, tuple[type[Exception], str, list[Any]]] = {
    "empty": (ArgumentError, "empty", []),
    "shapes": (ShapeError, r"shape \(3,\) at place 1", [np.ones(2), np.ones(3)]),
    "nested shapes": (ShapeError, r"item\['x'\]", [{"x": np.ones(2)}, {"x": np.ones(3)}]),
    "lengths": (ShapeError, "2 values at place 1", [[1], [1, 2]]),
    "keys": (ArgumentError, "no 'x'", [{"x": 1}, {"y": 1}]),
    "kinds": (DtypeError, "int in one place", [1, "a"]),
    "kinds of containers": (DtypeError, "dict in one place", [{"x": 1}, [1]]),
    "arrays and numbers": (DtypeError, "ndarray in one place", [np.ones(2), 1]),
    "objects": (DtypeError, "object", [object(), object()]),
    "object arrays": (DtypeError, "dtype object", [np.array([None])] * 2),
    "string arrays": (DtypeError, "use numbers", [np.array(["a"])] * 2),
    "huge integers": (ArgumentError, "int64", [2**70]),
    "None": (DtypeError, "NoneType", [None, None]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_place(case: str) -> None:
    error, text, batch = REFUSALS[case]
    with pytest.raises(error, match=text):
        eg.data.default_collate(batch)
