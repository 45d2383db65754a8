"""Zeros have signs: every reduction gives the same one whatever its size, axes, way and device.

What it is stands in `everygrad/compiler/accumulate.py`, and is counted here a second time, from the
sign bits alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from tests.support.checks import is_narrow

SIZES = [1, 2, 7, 17, 33, 257, 20_000, 270_000]
LAYOUTS: tuple[tuple[Callable[[int], tuple[int, ...]], Any], ...] = (
    (lambda n: (n,), None),
    (lambda n: (n,), 0),
    (lambda n: (n, 3), 0),
    (lambda n: (3, n), 1),
    (lambda n: (2, n, 3), 1),
    (lambda n: (2, n, 3), (0, 1)),
    (lambda n: (2, n), (0, 1)),
)
WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "jit": eg.jit,
    "jit, fused": lambda f: eg.jit(lambda x: f(eg.where(x == 5.0, 1.0, x))),
}


def dtypes_of(device: str, n: int = 1) -> tuple[str, ...]:
    if n > 1 << 10:
        return ("float32",)
    return ("float32", "float16") if is_narrow(device) else (
        "float32", "float64", "float16", "bfloat16"
    )  # fmt: skip


def negative(x: Any) -> Any:
    return np.signbit(x.astype("float32").numpy())


def zeros(shape: tuple[int, ...], kind: str) -> Any:
    """-0.0 alone, or here and there among 0.0."""
    if kind == "alone":
        return np.full(shape, -0.0)
    flat = np.zeros(math.prod(shape))
    if kind == "first":
        flat[0] = -0.0
    elif kind == "last":
        flat[-1] = -0.0
    else:
        flat[np.random.default_rng(flat.size).random(flat.size) < 0.5] = -0.0
    return flat.reshape(shape)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", SIZES)
def test_sums_begin_with_zero(n: int, way: str, device: str) -> None:
    """0.0 + x + y ...: 0.0 for zeros of whatever signs, as in NumPy and PyTorch."""
    checked = 0
    for dtype in dtypes_of(device, n):
        for shape_of, axis in LAYOUTS:
            functions = {f.__name__: WAYS[way](partial(f, axis=axis)) for f in (eg.sum, eg.mean)}
            for kind in ("alone", "mixed"):
                x = eg.tensor(zeros(shape_of(n), kind), dtype, device)
                for name, function in functions.items():
                    out = function(x)
                    assert not out.numpy().astype("float32").any()
                    assert not negative(out).any(), (name, dtype, shape_of(n), axis, kind)
                    checked += 1
    assert checked == len(dtypes_of(device, n)) * len(LAYOUTS) * 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [1, 2, 16, 33, 1000, 300_000])
def test_running_sums_begin_with_zero(n: int, way: str, device: str) -> None:
    for dtype in dtypes_of(device):
        for shape, axis in (((n,), 0), ((n, 2), 0), ((2, n), 1)):
            x = eg.tensor(zeros(shape, "alone"), dtype, device)
            for initial in (False, True):
                out = WAYS[way](partial(eg.cumulative_sum, axis=axis, include_initial=initial))(x)
                assert not negative(out).any(), (dtype, shape, axis)
            products = negative(WAYS[way](partial(eg.cumulative_prod, axis=axis))(x))
            odd = np.arange(n) % 2 == 0
            assert (np.moveaxis(products, axis, -1) == odd).all(), (dtype, shape, axis)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", SIZES)
def test_products_count_signs(n: int, way: str, device: str) -> None:
    for dtype in dtypes_of(device, n):
        for shape_of, axis in LAYOUTS:
            x = zeros(shape_of(n), "mixed")
            odd = np.signbit(x).sum(axis=axis) % 2 == 1
            out = WAYS[way](partial(eg.prod, axis=axis))(eg.tensor(x, dtype, device))
            assert (negative(out) == odd).all(), (dtype, shape_of(n), axis)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", SIZES)
def test_extremes_order_zeros(n: int, way: str, device: str) -> None:
    """IEEE's maximum and minimum: 0.0 is above -0.0 wherever it stands."""
    for dtype in dtypes_of(device, n):
        for shape_of, axis in LAYOUTS:
            highest, lowest = (WAYS[way](partial(f, axis=axis)) for f in (eg.max, eg.min))
            for kind in ("alone", "mixed", "first", "last"):
                x = zeros(shape_of(n), kind)
                t = eg.tensor(x, dtype, device)
                top, low = highest(t), lowest(t)
                assert (negative(top) == np.signbit(x).all(axis=axis)).all(), (dtype, x.shape, axis)
                assert (negative(low) == np.signbit(x).any(axis=axis)).all(), (dtype, x.shape, axis)


def test_extremes_beside_others(device: str) -> None:
    """Zeros among numbers below (above) them, NaN and infinities."""
    x = np.array([[-1.0, -0.0, 0.0], [-0.0, -2.0, -math.inf], [0.0, math.nan, 1.0]])
    t = eg.tensor(x, "float32", device)
    for way in WAYS.values():
        top = way(lambda x: eg.max(x, axis=1))(t).numpy()
        low = way(lambda x: eg.min(-x, axis=1))(t).numpy()
        assert np.array_equal(top, [0.0, 0.0, math.nan], equal_nan=True)
        assert np.signbit(top[:2]).tolist() == [False, True]
        assert np.signbit(low[:2]).tolist() == [True, False]


def test_nothing_has_no_sign(device: str) -> None:
    for way in WAYS.values():
        for shape, axis in (((0,), None), ((0, 3), 0), ((3, 0), 1), ((2, 0, 3), (0, 1))):
            x = eg.zeros(shape, dtype="float32", device=device)
            out = way(partial(eg.sum, axis=axis))(x)
            assert not negative(out).any()
            assert (way(partial(eg.prod, axis=axis))(x).numpy() == 1).all()
            assert np.isnan(way(partial(eg.mean, axis=axis))(x).numpy()).all()


def test_no_axes(device: str) -> None:
    for x in (np.float32(-0.0), np.array([-0.0, 0.0, 2.0], np.float32)):
        t = eg.tensor(x, device=device)
        for way in WAYS.values():
            for fn in (eg.sum, eg.mean):
                out = way(partial(fn, axis=()))(t)
                assert out.numpy().tolist() == x.tolist()
                assert not negative(out).any()


@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("n", [1, 2, 9, 100, 5000])
def test_as_in_pytorch(name: str, n: int, device: str) -> None:
    x = np.full((n, 2), -0.0, np.float32)
    want = getattr(torch, name)(torch.tensor(x), 0).numpy()
    got = getattr(eg, name)(eg.tensor(x, device=device), axis=0).numpy()
    assert np.signbit(got).tolist() == np.signbit(want).tolist()


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 1, 4), (300, 1, 200), (5, 3, 7), (70, 80, 90)])
def test_matrix_products_begin_with_zero(size: tuple[int, int, int], device: str) -> None:
    m, k, n = size
    if device == "cuda" and k == 1:
        k = 2  # cuBLAS begins with the first product: one of -0.0 is -0.0 there
    for dtype in dtypes_of(device):
        x = eg.full((m, k), -0.0, dtype=dtype, device=device)
        y = eg.ones((k, n), dtype=dtype, device=device)
        for way in (lambda f: f, eg.jit):
            assert not negative(way(eg.matmul)(x, y)).any(), (size, dtype)


def test_adding_zero_in_a_compiled_function() -> None:
    """x + 0.0 is not x where x is -0.0; x + -0.0 and x - 0.0 are."""
    x = eg.tensor([-0.0, 0.0, 1.0])
    for fn in (
        lambda x: x + 0.0, lambda x: 0.0 + x, lambda x: x + -0.0, lambda x: x - 0.0,
        lambda x: x - -0.0, lambda x: eg.full((3,), -0.0).sum(axis=0) + 0 * x,
        lambda x: eg.full((1, 3), -0.0).sum(axis=0) * x, lambda x: eg.full((3,), -0.0).mean() * x,
    ):  # fmt: skip
        want, got = fn(x), eg.jit(fn)(x)
        assert np.signbit(got.numpy()).tolist() == np.signbit(want.numpy()).tolist()
    z = eg.tensor([complex(-0.0, -0.0), complex(-0.0, 1.0)])
    want, got = (z + 0.0).numpy(), eg.jit(lambda z: z + 0.0)(z).numpy()
    assert np.signbit(got.view("float32")).tolist() == np.signbit(want.view("float32")).tolist()
    want, got = z.reshape(1, 2).sum(axis=0), eg.jit(lambda z: z.reshape(1, 2).sum(axis=0))(z)
    assert np.signbit(got.numpy().view("float32")).tolist() == [False] * 4
    assert np.signbit(want.numpy().view("float32")).tolist() == [False] * 4
