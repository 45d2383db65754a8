"""Float32 sums keep their digits at every size, exactly where kernels change their ways too.

Equal numbers are the hardest: their rounding errors all have the same sign. Added one after another
to one float32, each costs up to 0.2 epsilons.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import thread_pool
from everygrad.backends.cpu.fused import column_sums, fused, row_loops
from everygrad.backends.cpu.kernels import numpy_reduce
from everygrad.backends.cpu.llvm import loop_writer
from everygrad.compiler import loop_nest

EPSILON = 2.0**-23
MOST = 64 * EPSILON
EDGES = {
    column_sums.SHORT,
    loop_nest.CHUNK,
    loop_writer.STRETCH,
    row_loops.STRIP,
    fused.GRAIN,
    numpy_reduce.SMALL,
    numpy_reduce.BLOCK,
    numpy_reduce.CHUNK,
    numpy_reduce.PARALLEL,
    numpy_reduce.BLOCK**2,
}
SIZES = sorted({n for e in EDGES for n in (e, e + 1)} | {8 * loop_nest.CHUNK + 1})
WIDTH = 5  # different constants, and different random numbers
LAYOUTS: dict[str, tuple[Any, tuple[int, ...]]] = {  # (n, WIDTH) -> array, and the axes summed
    "all": (lambda x: x[:, 0], (0,)),
    "rows": (lambda x: x.T, (1,)),
    "columns": (lambda x: x, (0,)),
    "the middle": (lambda x: np.stack([x, x + 1]), (1,)),
    "the first and the last": (lambda x: x.T.reshape(WIDTH, -1, 1) + np.zeros((1, 3)), (1, 2)),
    "the first two": (lambda x: np.stack([x, x + 1]), (0, 1)),
}


def equal_numbers(n: int, rng: np.random.Generator) -> Any:
    return np.repeat(rng.uniform(1, 2, (1, WIDTH)), n, 0)


def random_numbers(n: int, rng: np.random.Generator) -> Any:
    return rng.uniform(0.5, 1, (n, WIDTH))


def moments(x: Any, axes: tuple[int, ...]) -> Any:
    """sum, mean and var, over numbers that a kernel computes and over those in memory."""
    scaled = x * 2.0
    return (
        eg.sum(x, axis=axes),
        eg.sum(scaled, axis=axes),
        eg.mean(scaled, axis=axes),
        eg.var(x, axis=axes),
    )


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", SIZES)
def test_sums_are_near_those_in_float64(n: int, layout: str, compiled: bool) -> None:
    arranged, axes = LAYOUTS[layout]
    rng = np.random.default_rng(n)
    run = eg.jit(lambda t: moments(t, axes)) if compiled else lambda t: moments(t, axes)
    for numbers in (equal_numbers(n, rng), random_numbers(n, rng)):
        x = np.ascontiguousarray(arranged(numbers), np.float32)
        total, doubled, mean, var = (t.numpy() for t in run(eg.tensor(x)))
        exact = x.astype(np.float64)
        want = exact.sum(axes)
        np.testing.assert_allclose(total, want, MOST)
        np.testing.assert_allclose(doubled, 2 * want, MOST)
        count = math.prod(x.shape[a] for a in axes)
        np.testing.assert_allclose(mean, 2 * want / count, MOST)
        # a mean that is off by so many epsilons adds their square
        np.testing.assert_allclose(var, exact.var(axes), MOST, (MOST * exact.max()) ** 2)


@pytest.mark.parametrize("n", SIZES)
def test_numpy_sums_of_columns(n: int) -> None:
    x = equal_numbers(n, np.random.default_rng(3)).astype(np.float32)
    found = numpy_reduce.add(x, (0,), False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, x.astype(np.float64).sum(0), MOST)
    pair = numpy_reduce.add(x + 1j * x, (0,), False)
    assert pair.dtype == np.complex64
    np.testing.assert_allclose(pair.imag, x.astype(np.float64).sum(0), MOST)


class Recorded(column_sums.ColumnSums):
    """Keeps what was planned."""

    made: list[column_sums.ColumnSums]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Recorded.made.append(self)


# shape, that of a factor, the axes of each sum, whether rows are reduced too; how many sums have
# accumulators for a stretch, the axis that is cut, and how many accumulate in float64
PLANS: dict[str, tuple[Any, ...]] = {
    "few rows": ((200, 8), (8,), [(0,)], False, 0, None, 0),
    "many rows": ((9000, 8), (8,), [(0,)], False, 1, 0, 0),
    "the middle": ((33, 1000, 8), (1, 1, 8), [(1,)], False, 1, 1, 0),
    "two middles": ((2, 300, 3, 300, 4), (1, 1, 1, 1, 4), [(1, 3)], False, 1, 3, 0),
    "kept rows inside": ((9000, 3, 8), (1, 3, 1), [(0,)], False, 1, 0, 0),
    "two alike": ((9000, 24), (24,), [(0,), (0,)], False, 2, 0, 0),
    "two that differ": ((3, 513, 8, 8), (1, 1, 8, 8), [(0, 1), (1, 2)], False, 1, 1, 1),
    "long rows": ((33, 300, 8), (33, 300, 8), [(1, 2), (0, 1)], True, 1, None, 0),
    "all, and an axis inside": ((7, 513, 3), (1, 1, 3), [(0, 1, 2), (1,)], False, 1, None, 0),
    "kept axes inside": ((513, 3, 8), (513, 3, 1), [(0, 1, 2), (0,)], False, 1, None, 0),
}


@pytest.mark.parametrize("case", PLANS)
def test_stretches_of_rows(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of small integers, which are exact, whatever the axes; and each way is taken."""
    shape, other, axes, rows, stretched, axis, in_float64 = PLANS[case]
    Recorded.made = []
    monkeypatch.setattr(fused, "ColumnSums", Recorded)
    monkeypatch.setattr(fused, "_written", {})
    rng = np.random.default_rng(5)
    x, y = (rng.integers(-3, 4, s).astype(np.float32) for s in (shape, other))

    def sums(x: Any, y: Any, xp: Any) -> Any:
        made = x * y
        if rows:
            made = made + xp.max(made, axis=(1, 2), keepdims=True)
        return [xp.sum(made * (k + 1), axis=a) for k, a in enumerate(axes)]

    found = eg.jit(lambda x, y: sums(x, y, eg))(eg.tensor(x), eg.tensor(y))
    for mine, want in zip(found, sums(x.astype(np.float64), y, np), strict=True):
        np.testing.assert_array_equal(mine.numpy(), want)
    plan = max(Recorded.made, key=lambda s: len(s.wide))
    assert len(plan.counts) == stretched
    assert len(plan.wide) == stretched + in_float64
    assert (plan.stretch.axis if plan.stretch else None) == axis


@pytest.mark.parametrize("shape", [(9001, 8), (33, 1000, 8), (40_001, 3), (32_769,)])
def test_the_number_of_threads_changes_no_bit(shape: tuple[int, ...]) -> None:
    x = eg.tensor(np.random.default_rng(2).standard_normal(shape).astype(np.float32))
    run = eg.jit(lambda x: (eg.sum(x * 1.5, axis=max(0, x.ndim - 2)), eg.var(x, axis=0)))
    before = thread_pool.num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            thread_pool.set_num_threads(count)
            results.append([t.numpy() for t in run(x)])
    finally:
        thread_pool.set_num_threads(before)
    assert all(
        np.array_equal(a, b) for r in results[1:] for a, b in zip(results[0], r, strict=True)
    )
