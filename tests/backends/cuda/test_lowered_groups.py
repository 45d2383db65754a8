"""Fused groups lowered as on every device, rendered for CUDA: dry, they are launched and compile.

The generator in use is another (`backends/cuda/fused`) until `benchmarks/probes/fused_groups` has
run on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from benchmarks.probes.fused_groups import LoweredReplay
from everygrad._jit.pipeline import prepared
from everygrad.backends import base
from everygrad.backends.cuda.driver import nvrtc
from everygrad.backends.cuda.source.prelude import with_library
from everygrad.codegen.groups import group_threads
from tests.backends.cuda.test_fused import FORMS, QUICK, SHAPES

DRY = "cuda:dry"


def sources(fn: Any, x: Any) -> dict[str, str]:
    """The kernels of a function, by name."""
    dev: Any = base.get(DRY)
    graph = prepared(eg.jit(fn).lower(x).graph, DRY)
    replay = LoweredReplay(dev, graph)
    replay.run_on([x._data])
    return {name: text for text, name in replay.sources().items()}


def test_kernels_compile() -> None:
    found: dict[str, str] = {}
    for fn, _ in FORMS.values():
        for shape in SHAPES:
            found |= sources(fn, eg.ones(shape, device=DRY))
    assert len(found) > 40
    whole = with_library("".join(found[name] for name in sorted(found)))
    assert "Pack<float, 4>" in whole
    assert "warp_reduce<32, 1>" in whole
    nvrtc.opened().compile("all", whole, "sm_90", (*nvrtc.OPTIONS, *QUICK))


def test_what_is_compared_with_an_extreme_is_rounded_alike() -> None:
    def grads(x: Any) -> Any:
        return eg.grad(lambda x: (eg.max(x * 0.75 + 0.3, axis=-1) ** 2).sum())(x)

    x = eg.tensor(np.ones((2, 300), np.float32), device=DRY)
    assert "__fadd_rn" in "".join(sources(grads, x).values())
    assert "__fadd_rn" not in "".join(sources(lambda x: eg.sum(x * 0.75 + 0.3, -1), x).values())


@pytest.mark.parametrize("length", [30_000, 50_257])
def test_long_rows_are_read_twice_for_a_softmax(length: int) -> None:
    """The maximum and the sum are found in one pass; the next one stores."""
    x = eg.ones((64, length), device=DRY)
    (text,) = sources(lambda x: eg.softmax(x, axis=-1), x).values()
    vector = 4 if length % 4 == 0 else 1
    loads = "*(const Pack<float, 4>*)" if vector == 4 else "= a0["
    batch = group_threads.TAKEN // 4 // vector
    assert text.count(loads) == 2 * (batch + 1)  # and those that are left


# --- eager ops -----------------------------------------------------------------------------------


def launched(fn: Any, *given: Any) -> list[str]:
    """The texts of what an eager call launches."""
    gpu: Any = base.get(DRY).gpu
    with gpu.lock:
        gpu.log = []
        try:
            fn(*given)
            return [command.what.source for command in gpu.log]
        finally:
            gpu.log = None


def test_memory_that_begins_between_vectors_is_read_element_by_element() -> None:
    x = eg.ones((65, 64), device=DRY) * 2.0
    flat = x.reshape(-1)
    for part, is_vector in ((flat[64:], True), (flat[4:], True), (flat[1:], False)):
        (add,) = launched(lambda v: v + v, part)
        (total,) = launched(lambda v: v.reshape(-1, 1).sum(axis=0), part[:60])
        assert ("Pack<float, 4>*)(a0" in add) == ("Pack<float, 4>*)(a0" in total) == is_vector


def test_results_of_permuted_arrays_stay_permuted() -> None:
    x = (eg.ones((6, 8), device=DRY) * 2.0).T
    (text,) = launched(lambda v: v + v, x)
    assert "Pack<float, 4>" in text
    assert (x + x)._data.strides == x._data.strides  # type: ignore[attr-defined]  # a CudaArray


def test_halves_are_rounded_once() -> None:
    x = eg.ones((64, 64), device=DRY).astype("bfloat16")
    (text,) = launched(eg.exp, x)
    assert "brain_bits" in text
    assert "brain_round" not in text


def test_rows_of_doubles_are_computed_in_doubles() -> None:
    x = eg.ones((8, 64), device=DRY).astype("float64")
    (text,) = launched(lambda v: eg.softmax(v, axis=-1), x)
    assert "float " not in text
