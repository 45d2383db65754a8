"""The place of the largest or smallest element, lowered for machines of few threads and run by the
interpreter, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from everygrad.backends.reference import interpreter
from everygrad.codegen import arg_reduce
from everygrad.codegen.copy import Layout
from everygrad.core.strides import row_major
from everygrad.dtypes import FROM_NP
from tests.support.kernel_groups import MACHINES

# rows with a group each, in pieces, and with a thread each; one row
CASES = [((5, 7), 1), ((3, 300), 1), ((40, 6), 0), ((9, 30, 3), 1), ((6, 5), 0), ((17,), 0)]


def placed(x: Any, axis: int, largest: bool, machine: str) -> Any:
    """What the kernels find; there is garbage where they write."""
    layout = Layout(FROM_NP[x.dtype], x.shape, row_major(x.shape))
    arg_reduce.plan.cache_clear()
    plan = arg_reduce.plan(layout, axis, largest, MACHINES[machine])
    given = [x.reshape(-1).copy()]
    for k, lowered in enumerate(plan.launches):
        is_last = k + 1 == len(plan.launches)
        count = x.size // x.shape[axis] if is_last else plan.between
        given = [*given[:1], *given[1:][-1:], np.full(count, -7, np.int64)]
        interpreter.run(lowered.kernel, given)
    return given[-1].reshape([n for a, n in enumerate(x.shape) if a != axis])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_places_of_extremes(dtype: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arg_reduce, "PIECE", 64)
    monkeypatch.setattr(arg_reduce, "ROWS", 4)
    rng = np.random.default_rng(0)
    for shape, axis in CASES:
        x = rng.integers(0, 4, shape).astype(dtype)  # most are there more than once
        if x.dtype.kind == "f":
            x.reshape(-1)[rng.integers(0, x.size, 2)] = np.nan
        for largest, reference in ((True, np.argmax), (False, np.argmin)):
            found = placed(x, axis, largest, machine)
            np.testing.assert_array_equal(found, reference(x, axis), f"{shape} {axis}")


@pytest.mark.parametrize("machine", MACHINES)
def test_rows_of_nothing_but_infinities(machine: str) -> None:
    x = np.full((3, 20), -np.inf, np.float32)
    assert placed(x, 1, True, machine).tolist() == [0, 0, 0]
    assert placed(-x, 1, False, machine).tolist() == [0, 0, 0]
