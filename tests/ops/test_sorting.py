"""Sorting, searching, counting, unique elements: edge cases, PyTorch and NumPy as referees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import dtypes
from everygrad.errors import TraceError
from tests.support.beside_torch import beside
from tests.support.checks import close, fitted, is_narrow, values, without_kernel

RNG = np.random.default_rng(11)
NAN, INF = math.nan, math.inf
ORDERED = [d.name for d in dtypes.ALL if not d.is_complex]


def here(x: Any, device: str) -> Any:
    return eg.tensor(fitted(x, device), device=device)


# --- sorting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ORDERED)
def test_sort_is_stable_in_every_dtype(dtype: str, device: str) -> None:
    if is_narrow(device) and dtype == "float64":
        pytest.skip("no float64 on this device")
    x = RNG.integers(0, 4, (3, 11)).astype(dtypes.as_dtype(dtype).np)
    t = eg.tensor(x, device=device)
    wide = x.astype(np.float64)
    close(t.argsort(), np.argsort(wide, axis=1, kind="stable"), 0)
    falling = np.argsort(-wide, axis=1, kind="stable")
    close(t.argsort(descending=True), falling, 0)
    assert t.sort(axis=0).dtype is t.dtype
    close(t.sort(axis=0), np.sort(wide, axis=0), 0)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 16, 17, 100])
def test_sizes_and_special_values(n: int, device: str) -> None:
    """The network has a power of two of places; NaN, infinities and signed zeros among them."""
    x = fitted(RNG.choice([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.0], (2, n)), device)
    t = here(x, device)
    order = np.argsort(x, axis=1, kind="stable")
    close(t.argsort(), order, 0)
    close(t.sort(), np.take_along_axis(x, order, 1), 0)
    turned = n - 1 - np.flip(np.argsort(np.flip(x, 1), axis=1, kind="stable"), 1)
    close(t.argsort(descending=True), turned, 0)


def test_extreme_integers(device: str) -> None:
    """The padding of the network is made of the same numbers."""
    for dtype in ("int8", "int64", "uint64"):
        facts = np.iinfo(dtype)
        x = np.array([facts.max, facts.min, 1, facts.max, facts.min], dtype)
        t = eg.tensor(x, device=device)
        assert t.argsort().tolist() == [1, 4, 2, 0, 3]
        assert t.argsort(descending=True).tolist() == [0, 3, 2, 1, 4]


def test_portable_network_on_the_cpu() -> None:
    x = eg.tensor(RNG.normal(size=(4, 300)))
    want = x.argsort(axis=0), x.argsort(), x.argsort(descending=True)
    with without_kernel("cpu", "argsort"):
        got = x.argsort(axis=0), x.argsort(), x.argsort(descending=True)
    for g, w in zip(got, want, strict=True):
        close(g, w, 0)


def test_sorted_values_have_derivatives(device: str) -> None:
    x = RNG.normal(size=(3, 5))
    beside(device, lambda t: t.sort(axis=0) ** 2, lambda t: torch.sort(t, 0).values ** 2, x)
    beside(device, lambda t: t.topk(3), lambda t: torch.topk(t, 3), x)
    beside(
        device,
        lambda t: t.topk(2, axis=0, largest=False),
        lambda t: torch.topk(t, 2, 0, largest=False),
        x,
    )
    beside(device, lambda t: t.kthvalue(2), lambda t: torch.kthvalue(t, 2), x)
    beside(
        device,
        lambda t: t.kthvalue(3, axis=0, keepdims=True),
        lambda t: torch.kthvalue(t, 3, 0, keepdim=True),
        x,
    )
    beside(device, eg.msort, torch.msort, x)


@pytest.mark.parametrize("largest", [True, False])
def test_topk_takes_the_first_of_equal_elements(largest: bool, device: str) -> None:
    """As the order has it, however few are asked for."""
    x = fitted(RNG.integers(0, 4, (3, 40)) * 1.0, device)
    for rows in (x, x.astype(np.int32), np.where(x == 0, NAN, x)):
        t = here(rows, device)
        for k in (1, 5, 9, 10, 11, 40):
            got = t.topk(k, largest=largest)
            close(got.indices, t.argsort(descending=largest)[:, :k], 0)
            close(got.values, t.sort(descending=largest)[:, :k], 0)
        close(t.T.topk(3, axis=0, largest=largest).indices.T, t.topk(3, largest=largest).indices, 0)


def test_topk_of_all_and_none(device: str) -> None:
    x = here(np.array([[2.0, 3.0, 1.0]]), device)
    assert x.topk(0).values.shape == (1, 0)
    assert x.topk(3).indices.tolist() == [[1, 0, 2]]


@pytest.mark.parametrize("fn", [eg.sort, eg.argsort, lambda x: eg.topk(x, 2).values])
def test_order_inside_jit_and_vmap(fn: Any, device: str) -> None:
    x = here(RNG.normal(size=(3, 5)), device)
    want = fn(x)
    compiled = eg.jit(fn)
    for _ in range(2):
        close(compiled(x), want, 0)
    close(eg.vmap(fn)(x), want, 0)
    close(eg.vmap(fn, in_axes=1)(x.T), want, 0)


# --- searching -----------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 33])
def test_searchsorted(n: int, side: str, device: str) -> None:
    rows = np.sort(RNG.integers(0, 9, n).astype(np.float32))
    wanted = np.array([[-1, 0, 3, 4.5], [8, 9, INF, -INF]], np.float32)
    got = eg.searchsorted(here(rows, device), here(wanted, device), side=side)
    close(got, np.searchsorted(rows, wanted, side), 0)
    assert got.dtype is eg.int64
    shuffled = RNG.permutation(n)
    back = np.argsort(shuffled)
    got = eg.searchsorted(
        here(rows[shuffled], device), here(wanted, device), side=side, sorter=here(back, device)
    )
    close(got, np.searchsorted(rows, wanted, side), 0)


def test_searchsorted_of_several_rows(device: str) -> None:
    rows = np.sort(RNG.normal(size=(2, 3, 6)).astype(np.float32))
    wanted = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    for right in (False, True):
        got = here(rows, device).searchsorted(here(wanted, device), "right" if right else "left")
        want = torch.searchsorted(torch.tensor(rows), torch.tensor(wanted), right=right)
        close(got, want.numpy(), 0)
        edges, xs = rows[0, 0], wanted
        got = eg.bucketize(here(xs, device), here(edges, device), right=right)
        want = torch.bucketize(torch.tensor(xs), torch.tensor(edges), right=right)
        close(got, want.numpy(), 0)


def test_numbers_are_searched_for(device: str) -> None:
    x = here(np.array([1.0, 2.0, 3.0]), device)
    assert x.searchsorted(2.5).item() == 2
    assert eg.isin(2, x).item() is True
    assert eg.bucketize(0.0, x).item() == 0


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "bool", "complex64"])
def test_isin(dtype: str, device: str) -> None:
    x, some = (RNG.integers(0, 6, n).astype(dtype) for n in ((3, 4), 5))
    x[0, 0] = some[0]
    for invert in (False, True):
        got = eg.isin(eg.tensor(x, device=device), eg.tensor(some, device=device), invert=invert)
        np.testing.assert_array_equal(values(got), np.isin(x, some, invert=invert))


# --- counting ------------------------------------------------------------------------------------


def test_bincount(device: str) -> None:
    x = RNG.integers(0, 7, 20)
    close(eg.bincount(here(x, device)), np.bincount(x), 0)
    close(eg.bincount(here(x.astype(np.uint8), device), minlength=12), np.bincount(x, None, 12), 0)
    assert eg.bincount(eg.zeros((0,), "int64", device)).shape == (0,)
    weights = RNG.normal(size=20)
    t = eg.tensor(fitted(weights, device), device=device, requires_grad=True)
    out = eg.bincount(here(x, device), t)
    close(out, np.bincount(x, weights), 1e-12)
    out[3].backward()
    np.testing.assert_array_equal(values(t.grad), x == 3)
    with pytest.raises(TraceError, match="bincount: the size of the result depends on values"):
        eg.jit(eg.bincount)(here(x, device))


@pytest.mark.parametrize("density", [False, True])
def test_histogram(density: bool, device: str) -> None:
    x = fitted(RNG.normal(size=(4, 8)), device)
    x[0] = fitted(np.round(x[0], 1), device)  # some on the edges given below
    weights = fitted(RNG.uniform(0.5, 1, (4, 8)), device)
    edges = fitted(np.array([-2.0, -0.55, 0.0, 0.35, 1.5]), device)
    cases: list[tuple[Any, Any]] = [(5, None), (4, (-1.05, 1.05)), (edges, None)]
    for bins, limits in cases:
        ours = here(bins, device) if isinstance(bins, np.ndarray) else bins
        got = eg.histogram(here(x, device), ours, range=limits, density=density)
        want = np.histogram(x, bins, range=limits, density=density)
        close(got.hist, want[0], 1e-6)
        close(got.bin_edges, want[1], 1e-6)
        got = eg.histogram(here(x, device), ours, here(weights, device), limits, density)
        want = np.histogram(x, bins, limits, density, weights)
        close(got.hist, want[0], 1e-6)
    same = eg.histogram(eg.ones((3,), device=device) * 2, 4)
    assert same.hist.tolist() == [0, 0, 3, 0]
    assert same.bin_edges.tolist() == [1.5, 1.75, 2.0, 2.25, 2.5]
    assert eg.histogram(eg.zeros((0,), device=device), 2).hist.tolist() == [0, 0]


def test_weights_of_a_histogram_have_derivatives(device: str) -> None:
    x = here(np.array([0.1, 0.9, 0.5, 7.0]), device)
    weights = eg.ones((4,), x.dtype, device, requires_grad=True)
    eg.histogram(x, 2, weights, range=(0.0, 1.0)).hist[1].backward()
    assert weights.grad.tolist() == [0, 1, 1, 0]


# --- unique --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint32", "float32", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), ()])
def test_unique_in_every_form(shape: Any, dtype: str, device: str) -> None:
    x = np.asarray(RNG.integers(0, 4, shape)).astype(dtype)
    if dtype == "complex64":
        x = np.asarray(x + 1j * RNG.integers(0, 2, shape)).astype(dtype)
    t = eg.tensor(x, device=device)
    found, first, inverse, counts = np.unique(x, True, True, True)
    every = eg.unique_all(t)
    np.testing.assert_array_equal(values(every.values), found)
    np.testing.assert_array_equal(values(every.indices), first)
    np.testing.assert_array_equal(values(every.inverse_indices), inverse.reshape(shape))
    np.testing.assert_array_equal(values(every.counts), counts)
    assert every.values.dtype is t.dtype
    np.testing.assert_array_equal(values(eg.unique_counts(t).counts), counts)
    np.testing.assert_array_equal(
        values(eg.unique_inverse(t).inverse_indices), inverse.reshape(shape)
    )
    np.testing.assert_array_equal(values(eg.unique_values(t)), found)


def test_every_nan_is_one_of_its_own(device: str) -> None:
    x = here(np.array([NAN, 1.0, NAN, 1.0, 0.0, -0.0]), device)
    found = eg.unique_all(x)
    close(found.values, [0, 1, NAN, NAN], 0)
    assert found.counts.tolist() == [2, 2, 1, 1]
    assert found.inverse_indices.tolist() == [2, 1, 3, 1, 0, 0]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unique_slices(axis: int, device: str) -> None:
    x = RNG.integers(0, 2, (5, 3, 2))
    got = eg.unique(here(x, device), return_inverse=True, return_counts=True, axis=axis)
    want = torch.unique(torch.tensor(x), return_inverse=True, return_counts=True, dim=axis)
    for g, w in zip(got, want, strict=True):
        close(g, w.numpy(), 0)


@pytest.mark.parametrize("name", ["unique", "unique_all", "nonzero", "argwhere"])
def test_sizes_by_values_are_refused_by_name(name: str, device: str) -> None:
    x = here(np.array([[1.0, 0.0, 1.0]]), device)
    for transformed in (eg.jit(getattr(eg, name)), eg.vmap(getattr(eg, name))):
        with pytest.raises(TraceError, match=f"{name}: the size of the result depends on values"):
            transformed(x)
