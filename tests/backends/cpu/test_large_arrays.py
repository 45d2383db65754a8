"""CPU kernels for large arrays only: sorts, scans, searches, weighted gathers, random bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import everygrad as eg
from everygrad.backends.cpu import registry
from everygrad.backends.cpu.kernels import half_conversions, ordering, random_bits
from everygrad.backends.cpu.solver import fourier
from everygrad.core.config import config
from everygrad.ops.nn.sparse_interp import Table, _reference as by_matrix

DTYPES = {
    np.dtype(t).name: np.dtype(t)
    for t in (
        np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.int16,
        np.uint8, np.uint64, np.bool_,
    )
}  # fmt: skip
SHAPES = ((1024, 300), (1 << 18,), (64, 9, 700), (3, 100_003), (4, 1 << 16))


def numbers(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Numbers with ties, and where the dtype has them NaN, infinities and zeros of both signs."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * 40).round(1)
    if dtype.kind in "ub":
        return (np.abs(x) if dtype.kind == "u" else x > 0).astype(dtype)
    made = x.astype(dtype)
    if dtype.kind in "fV":
        for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
            made.reshape(-1)[rng.integers(0, x.size, 50)] = value
    return made


def same(got: Any, want: Any) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    wide = [a.astype(np.float64) if a.dtype.kind in "fV" else a for a in (got, want)]
    np.testing.assert_array_equal(*wide)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", DTYPES)
def test_orders_are_numpys_stable_ones(name: str, shape: tuple[int, ...]) -> None:
    x = numbers(DTYPES[name], shape)
    for axis in range(x.ndim):
        for descending in (False, True):
            want = ordering._stable(np.moveaxis(half_conversions.widened(x), axis, -1), descending)
            want = np.moveaxis(want, -1, axis)
            given = {"axis": axis, "descending": descending}
            same(ordering.KERNELS["argsort"](x, **given), want)
            for k in (1, 7, 40):
                if k <= shape[axis]:
                    got = ordering.KERNELS["top_index"](x, axis=axis, k=k, largest=descending)
                    same(got, np.take(want, range(k), axis))
            got = ordering.KERNELS["sort"](x, **given)
            same(got, np.take_along_axis(x, want, axis))


def add(x: Any, axis: int) -> Any:
    return ordering._accumulate(np.add, x, axis)


def multiply(x: Any, axis: int) -> Any:
    return ordering._accumulate(np.multiply, x, axis)


SCANS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "cumulative_sum": (add, {"reverse": False}),
    "cumulative_prod": (multiply, {}),
    "cummax_index": (ordering._extreme_index(np.maximum), {}),
    "cummin_index": (ordering._extreme_index(np.minimum), {}),
}


@pytest.mark.parametrize("op", SCANS)
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "int64", "int32", "uint8"])
def test_scans_are_numpys(name: str, op: str) -> None:
    usual, params = SCANS[op]
    for shape in SHAPES:
        x = numbers(DTYPES[name], shape)
        if op == "cumulative_prod" and x.dtype.kind == "f":
            x = (1 + np.nan_to_num(x, posinf=0, neginf=0).astype(np.float64) * 1e-4).astype(x.dtype)
        for axis in range(x.ndim):
            with np.errstate(all="ignore"):
                want = usual(x, axis=axis)
            same(ordering.KERNELS[op](x, axis=axis, **params), want)


def test_a_sum_from_the_end() -> None:
    x = numbers(DTYPES["float64"], (700, 500))
    for axis in (0, 1):
        with np.errstate(all="ignore"):
            want = np.flip(add(np.flip(x, axis), axis), axis)
        same(ordering.KERNELS["cumulative_sum"](x, axis=axis, reverse=True), want)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "int64", "int32", "uint8"])
def test_searches_are_numpys(name: str, right: bool) -> None:
    for rows, n in ((1, 1), (1, 1000), (7, 64), (3, 1025)):
        x = np.sort(numbers(DTYPES[name], (rows, n)), axis=-1)
        values = numbers(DTYPES[name], (rows, 20_000))
        side = "right" if right else "left"
        pairs = zip(x, values, strict=True)
        want = np.stack([np.searchsorted(row, v, side=side) for row, v in pairs])  # type: ignore[call-overload]
        same(ordering.KERNELS["searchsorted"](x, values, right=right), want)


@pytest.mark.parametrize("terms", [1, 3, 20])
def test_sums_by_tables(terms: int) -> None:
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((terms, 41)) * (rng.random((terms, 41)) < 0.8)
    table = Table(65, rng.integers(0, 65, (terms, 41)), weights)
    for axis, shape in ((2, (40, 30, 65)), (1, (40, 65, 30)), (0, (65, 2000))):
        x = rng.standard_normal(shape)
        got = registry.weighted_gather_sum(x, table.index, table.weights, None, None, axis)
        np.testing.assert_allclose(got, by_matrix(x, axis, table), atol=1e-12)


def test_a_weight_of_zero_does_not_add_nan() -> None:
    index, weights = np.zeros((2, 64), np.int64), np.zeros((2, 64))
    weights[0], index[0] = 1.0, 1
    for x, axis in ((np.full((400, 64), np.nan), 1), (np.full((64, 400), np.nan), 0)):
        np.moveaxis(x, axis, 0)[1] = 3.0
        assert (registry.weighted_gather_sum(x, index, weights, None, None, axis) == 3.0).all()


def test_many_bits_are_those_of_few() -> None:
    state = np.array([0xDEADBEEF, 0xFEDCBA98, 0xFFFFFFF0, 0x80000000], np.uint32)
    count = 4 * (config.native_threshold + 5)
    many = random_bits.philox(state, count)
    first = int(state[3]) << 32 | int(state[2])
    for block in (0, 15, 16, count // 4 - 3):
        at = first + block
        moved = np.array([*state[:2], at & 0xFFFFFFFF, at >> 32], np.uint32)
        few = random_bits.philox(moved, 12)
        np.testing.assert_array_equal(many[4 * block : 4 * block + 12], few)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_transforms_in_slabs(axis: int) -> None:
    x = np.random.default_rng(2).standard_normal((61, 53, 47)) + 0j  # prime sizes use NumPy
    np.testing.assert_allclose(fourier.dft(x, axis, False), np.fft.fft(x, axis=axis), atol=1e-10)
    n = x.shape[axis]
    np.testing.assert_allclose(fourier.dft(fourier.dft(x, axis, False), axis, True), x * n)
    half = fourier.real_dft(x.real, axis)
    np.testing.assert_allclose(half, np.fft.rfft(x.real, axis=axis), atol=1e-10)
    np.testing.assert_allclose(fourier.half_dft(half, axis, n), x.real * n, atol=1e-9)


@pytest.mark.parametrize("axis", [0, 1])
def test_additions_by_index_equal_numpys(axis: int) -> None:
    rng = np.random.default_rng(3)
    x, index = rng.standard_normal((300, 400)), rng.integers(0, 300, 900)
    source = rng.standard_normal((900, 400) if axis == 0 else (300, 900))
    want = x.copy()
    np.add.at(np.moveaxis(want, axis, 0), index, np.moveaxis(source, axis, 0))
    np.testing.assert_allclose(registry.index_add(x, index, source, axis), want, atol=1e-12)
    wide = rng.standard_normal((600, 600))
    places = rng.integers(0, 600, (600, 600))
    np.testing.assert_array_equal(
        registry.gather(wide, places, axis), np.take_along_axis(wide, places, axis)
    )
    want = wide.copy()
    at: list[Any] = list(np.indices(places.shape))
    at[axis] = places
    np.add.at(want, tuple(at), wide)
    np.testing.assert_allclose(registry.scatter_add(wide, places, wide, axis), want, atol=1e-10)


def test_the_last_of_equal_indices_wins() -> None:
    rng = np.random.default_rng(5)
    for count, size in ((300_000, 1000), (1000, 300_000)):
        index = rng.integers(0, size, count)
        want = np.full(size, -1)
        want[index] = np.arange(count)
        same(registry.last_write(index, size), want)
        values = rng.standard_normal(count)

        def put(x: eg.Tensor, i: eg.Tensor, v: eg.Tensor) -> eg.Tensor:
            return eg.index_copy(x, i, v)

        given = eg.zeros((size,), dtype="float64"), eg.tensor(index), eg.tensor(values)
        same(eg.jit(put)(*given).numpy(), np.where(want < 0, 0.0, values[want]))


def test_a_compiled_write_outside_is_refused() -> None:
    @eg.jit
    def write(x: eg.Tensor, i: eg.Tensor) -> eg.Tensor:
        x[i] = 1.0
        return x

    assert float(write(eg.zeros((5,)), eg.tensor([4, 4])).sum()) == 1.0
    for bad in (5, -1_000_000):
        with pytest.raises(eg.errors.OutOfRangeError, match="is out of range"):
            write(eg.zeros((5,)), eg.tensor([0, bad]))


def test_compiled_orders_and_scans_equal_eager_ones() -> None:
    x = eg.tensor(np.random.default_rng(4).standard_normal((300, 257)))

    def both(x: eg.Tensor) -> tuple[Any, ...]:
        top = eg.topk(x, 5)
        placed = eg.searchsorted(eg.sort(x[0]), x)
        return eg.argsort(x, axis=-1), top.indices, eg.cumsum(x, 0), eg.cummax(x, 1)[1], placed

    for got, want in zip(eg.jit(both)(x), both(x), strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())
