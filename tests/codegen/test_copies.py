"""Copies in the kernel language, on views and in every way of the lowerings, by the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from everygrad.backends.reference import interpreter
from everygrad.codegen import copy_parts
from tests.codegen.test_gathers import MACHINES, layout, run, views

SLICES: list[tuple[tuple[int, ...], tuple[tuple[int, int, int], ...]]] = [
    ((9,), ((2, 5, 1),)),
    ((9,), ((8, 5, -2),)),
    ((5, 24), ((0, 5, 1), (8, 8, 1))),
    ((5, 7), ((1, 2, 3), (0, 7, 1))),
    ((4, 6, 8), ((3, 4, -1), (1, 2, 4), (7, 8, -1))),
    ((3, 8), ((1, 1, 1), (4, 1, 1))),
]


def cut(x: Any, slices: Any) -> Any:
    return x[np.ix_(*[start + step * np.arange(n) for start, n, step in slices])]


@pytest.mark.parametrize("machine", MACHINES)
def test_unslice(machine: str) -> None:
    rng = np.random.default_rng(0)
    for shape, slices in SLICES:
        for dtype in ("float32", "int8"):
            for x in views(rng, *(n for _, n, _ in slices), dtype=dtype):
                out = np.zeros(shape, dtype)
                lowered = copy_parts.unslice(
                    layout(x), shape, slices, MACHINES[machine], aligned=1 if x.base is None else 4
                )
                run(lowered, x, out)
                np.testing.assert_array_equal(cut(out, slices), x)
                assert np.count_nonzero(out) == np.count_nonzero(x)


@pytest.mark.parametrize("machine", MACHINES)
def test_concat(machine: str) -> None:
    rng = np.random.default_rng(1)
    for axis, sizes in [(0, (3, 1, 2)), (1, (8, 16, 4)), (2, (4, 8, 12)), (2, (1, 3, 2))]:
        for dtype in ("float32", "int8", "complex64"):
            for which in range(3):
                parts = []
                for n in sizes:
                    shape = [5, 6, 4]
                    shape[axis] = n
                    parts.append([*views(rng, *shape, dtype=dtype)][which])
                want = np.concatenate(parts, axis)
                out = np.zeros(want.shape, dtype)
                made = MACHINES[machine]
                aligned = 16 if which == 0 else 4
                lowered = copy_parts.concat(tuple(map(layout, parts)), axis, made, aligned)
                run(lowered, *parts, out)
                np.testing.assert_array_equal(out, want)


def test_arrays_share_a_buffer() -> None:
    """Where a device has few of them."""
    rng = np.random.default_rng(2)
    whole, other = rng.standard_normal((2, 40)).astype(np.float32)
    parts = (whole[3:11].reshape(2, 4), whole[30:20:-1].reshape(2, 5), other[4:10].reshape(2, 3))
    lowered = copy_parts.concat(
        tuple(map(layout, parts)), 1, MACHINES["webgpu"], 1, (0, 0, 1), (3, 30, 4)
    )
    out = np.zeros((2, 12), np.float32)
    sizes = [b.size for b in lowered.kernel.buffers]
    held = [whole[: sizes[0]], other[: sizes[1]], out]
    interpreter.run(lowered.kernel, [
        h.reshape(-1).view(b.dtype.np) for h, b in zip(held, lowered.kernel.buffers, strict=True)
    ])  # fmt: skip
    np.testing.assert_array_equal(out, np.concatenate(parts, 1))
