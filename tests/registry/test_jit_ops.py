"""Compiled equals eager: for every op of the registry, in values, gradients and dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes
from everygrad.errors import DtypeError, TraceError
from everygrad.ops.record.spec import REGISTRY, Op, Sample
from tests.support.checks import (
    TOLERANCE,
    WITH_SAMPLES,
    arrays_of,
    call,
    close,
    function_of,
    in_dtype,
    is_flat,
    is_float,
    map_sample,
    values,
)


def is_masked(sample: Sample) -> bool:
    """Whether the size of the result depends on values: refused, and tested elsewhere."""
    return any(a.dtype == bool and a.ndim for a in arrays_of(sample))


FIXED = [n for n in WITH_SAMPLES if not REGISTRY[n].notes.get("by_values")]
KEEPS_PLACES = [n for n in FIXED if n != "to"]


def as_function(op: Any, sample: Sample) -> Any:
    """The call as a function of the sample's tensors alone."""

    def function(*tensors: Any) -> list[Any]:
        given = iter(tensors)
        return call(function_of(op), map_sample(sample, lambda a: next(given)))

    return function


def tensors_of(sample: Sample, grad: bool = False) -> list[Any]:
    return [eg.tensor(a, requires_grad=grad and is_float(a)) for a in arrays_of(sample)]


def agree(got: list[Any], want: list[Any], dtype: str = "float64") -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype is w.dtype
        assert g.shape == w.shape
        name = str(w.dtype)
        if w.dtype.is_differentiable:
            close(g, w, TOLERANCE.get(name, 1e-5), name)
        else:
            np.testing.assert_array_equal(values(g), values(w))


def unmasked(op: Op) -> list[Sample]:
    """The samples whose results have sizes that are known; some are left of every op."""
    found = [s for s in op.samples() if op.name != "getitem" or not is_masked(s)]
    assert found
    return found


@pytest.mark.parametrize("name", KEEPS_PLACES)
def test_values(name: str) -> None:
    op = REGISTRY[name]
    for sample in unmasked(op):
        function = as_function(op, sample)
        given = tensors_of(sample)
        compiled = eg.jit(function)
        for _ in range(2):  # traced, then replayed
            agree(compiled(*given), function(*given))


@pytest.mark.parametrize("name", sorted({*WITH_SAMPLES} - {*FIXED}))
def test_sizes_that_depend_on_values_are_refused(name: str) -> None:
    op = REGISTRY[name]
    for sample in op.samples():
        with pytest.raises(TraceError):
            eg.jit(as_function(op, sample))(*tensors_of(sample))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", KEEPS_PLACES)
def test_other_dtypes(name: str, dtype: str) -> None:
    op = REGISTRY[name]
    sample = in_dtype(next(iter(op.samples())), dtypes.as_dtype(dtype))
    function = as_function(op, sample)
    given = tensors_of(sample)
    try:
        want = function(*given)
    except DtypeError:  # what eager refuses, a compiled function does
        with pytest.raises(DtypeError):
            eg.jit(function)(*given)
        return
    agree(eg.jit(function)(*given), want)


def loss_of(function: Any) -> Any:
    """A number that weighs every element of every floating result differently."""

    def loss(*tensors: Any) -> Any:
        total = eg.zeros((), dtype="float64")
        for out in function(*tensors):
            if out.dtype.is_float and out.size:
                weights = eg.arange(out.size, dtype=out.dtype).reshape(out.shape) * 0.3 + 0.7
                total = total + (out * weights).sum()
        return total

    return loss


DIFFERENTIABLE = [
    n for n in KEEPS_PLACES if not is_flat(REGISTRY[n]) and REGISTRY[n].family != "movement"
]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str) -> None:
    op = REGISTRY[name]
    checked = 0
    for sample in unmasked(op):
        loss = loss_of(as_function(op, sample))
        wanted = [i for i, a in enumerate(arrays_of(sample)) if is_float(a) and a.dtype.kind == "f"]
        given = tensors_of(sample)
        if not wanted:
            continue
        want = eg.grad(loss, wanted)(*given)
        agree(eg.jit(eg.grad(loss, wanted))(*given), list(want))
        agree(list(eg.grad(eg.jit(loss), wanted)(*given)), list(want))
        checked += 1
    assert checked
