"""The reference of `jit(verify=True)`: every op by NumPy alone, and what it says of wrong results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from everygrad.backends import base
from everygrad.backends.reference import ways
from everygrad.compile.ir import infer
from everygrad.config import FAST_LIMIT
from everygrad.dtypes import FROM_NP
from everygrad.ops.spec import REGISTRY
from everygrad.scopes import Setting
from tests.support import (
    WITH_SAMPLES,
    all_close,
    call,
    function_of,
    map_sample,
    refer,
    samples_of,
    to_tensor,
)


def evaluated(op: Any, arrays: list[Any], params: dict[str, Any]) -> Any:
    """An op by the reference, in the dtype its record gives the result."""
    if op.family != "kernel" or op.result is not None:
        given = [SimpleNamespace(shape=a.shape, dtype=FROM_NP[a.dtype]) for a in arrays]
        dtype = infer(op, given, params)[1].np  # type: ignore[arg-type]  # all that it looks at
    elif op.name == "count_labels":
        dtype = params["dtype"].np
    else:
        dtype = np.dtype(np.int64) if op.name.startswith("arg") else arrays[0].dtype
    return np.asarray(ways.evaluate(op, arrays, params, dtype))


@contextmanager
def by_reference(seen: set[str] | None = None) -> Iterator[None]:
    """Every eager op on the CPU is computed by the reference instead."""
    backend = base.get("cpu")

    def run(op: Any, arrays: list[Any], params: dict[str, Any]) -> Any:
        if seen is not None:
            seen.add(op.name)
        return evaluated(op, arrays, params)

    backend.__dict__["run"] = run
    try:
        with Setting(FAST_LIMIT, -1):  # nothing goes past `run`
            yield
    finally:
        del backend.__dict__["run"]


def test_every_op_has_a_way() -> None:
    leaves = [op for op in REGISTRY.values() if op.family != "composite"]
    assert len(leaves) > 200
    assert [op.name for op in leaves if not ways.is_known(op)] == []


def test_no_way_is_left_over() -> None:
    """A way whose op is gone would say nothing of anything."""
    named = {*ways.WAYS, *ways.products.ROUNDED, *ways.matrices.CLAIMS}
    assert named <= set(REGISTRY)
    assert set(ways.matrices.CLAIMS) == set(ways.matrices.CHOSEN)


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_reference_equals_the_records_own(name: str) -> None:
    op = REGISTRY[name]
    checked = 0
    for sample in samples_of(op, "cpu"):
        with by_reference():
            got = call(function_of(op), map_sample(sample, to_tensor("cpu")))
        coarse = op.notes.get("coarse")
        all_close(got, refer(op, sample), 2e-3 if coarse else 1e-11, f"{name} {sample}")
        checked += 1
    assert checked
