"""Factorisations and solutions block by block: sizes around a block, against NumPy and SciPy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import everygrad as eg
from everygrad import linalg
from everygrad.backends import base
from everygrad.backends.webgpu.solver.jacobi import MOST, PAIRS
from everygrad.backends.webgpu.solver.matrices import BLOCK, TILE
from everygrad.errors import ArgumentError, DeviceError
from tests.support.checks import without_kernel

pytestmark = pytest.mark.skipif(
    "webgpu" not in os.environ.get("EVERYGRAD_TEST_DEVICES", ""),
    reason="this run does not promise webgpu (EVERYGRAD_TEST_DEVICES)",
)
SIZES = (1, BLOCK - 1, BLOCK, BLOCK + 1, TILE + 3, 3 * BLOCK)


def on(x: Any) -> Any:
    return eg.tensor(np.asarray(x, np.float32), device="webgpu")


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def positive(n: int, *batch: int) -> Any:
    x = drawn(*batch, n, n)
    return x @ np.swapaxes(x, -1, -2) / n + np.eye(n, dtype=np.float32)


def close(got: Any, want: Any, terms: int) -> None:
    """To a few roundings of sums of so many terms."""
    scale = float(np.abs(want).max()) or 1.0
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=2e-6 * scale * terms**0.5)


@pytest.mark.parametrize("n", SIZES)
def test_cholesky(n: int) -> None:
    x = positive(n, 2)
    garbage = x + np.triu(np.full((n, n), np.nan, np.float32), 1)  # only the lower half is read
    close(linalg.cholesky(on(garbage)), np.linalg.cholesky(x.astype(np.float64)), n)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems(n: int, upper: bool, unit: bool) -> None:
    """The other triangle and a unit diagonal are not read; the matrix may be a transposed view."""
    a, b = 0.3 * drawn(2, n, n) / n**0.5 + 2 * np.eye(n, dtype=np.float32), drawn(2, n, 5, seed=1)
    half = (np.triu if upper else np.tril)(a.astype(np.float64))
    if unit:
        half = half - np.eye(n) * half + np.eye(n)
        a = a * (1 - np.eye(n, dtype=np.float32))
    want = np.linalg.solve(half, b)
    for given in (on(a), on(np.swapaxes(a, -1, -2)).matrix_transpose()):
        got = linalg.solve_triangular(given, on(b), upper=upper, unitriangular=unit)
        close(got, want, n)


@pytest.mark.parametrize("shape", [(n, n) for n in SIZES] + [(BLOCK + 9, 3), (5, TILE + 9)])
def test_lu_chooses_lapacks_pivots(shape: tuple[int, int]) -> None:
    x = drawn(2, *shape)
    packed, pivots = linalg.lu_factor(on(x))
    want = [scipy.linalg.lu_factor(m.astype(np.float64)) for m in x]
    np.testing.assert_array_equal(pivots.numpy() - 1, np.stack([w[1] for w in want]))
    close(packed, np.stack([w[0] for w in want]), 4 * max(shape))


def test_lu_of_columns_without_a_pivot_goes_on() -> None:
    x = drawn(BLOCK + 5, BLOCK + 5)
    x[:, [0, BLOCK + 1]] = 0.0
    p, lower, upper = linalg.lu(on(x))
    close(p @ lower @ upper, x, x.shape[0])
    assert upper.numpy()[0, 0] == 0.0


@pytest.mark.parametrize("n", SIZES)
def test_solve_and_inv(n: int) -> None:
    a, b = drawn(2, n, n) / n**0.5 + 3 * np.eye(n, dtype=np.float32), drawn(2, n, 4, seed=1)
    close(linalg.solve(on(a), on(b)), np.linalg.solve(a.astype(np.float64), b), n)
    close(linalg.inv(on(a)), np.linalg.inv(a.astype(np.float64)), n)
    sign, size = np.linalg.slogdet(a.astype(np.float64))
    close(linalg.slogdet(on(a)).logabsdet, size, n)
    np.testing.assert_array_equal(linalg.slogdet(on(a)).sign.numpy(), sign)


@pytest.mark.parametrize("shape", [(n, n) for n in SIZES] + [(TILE + 40, BLOCK + 1), (9, 70)])
def test_qr_has_lapacks_signs(shape: tuple[int, int]) -> None:
    x = drawn(2, *shape) + 3 * np.eye(*shape, dtype=np.float32)
    q, r = linalg.qr(on(x))
    want = np.linalg.qr(x.astype(np.float64))
    close(q, want.Q, 4 * max(shape))
    close(r, want.R, 4 * max(shape))


def test_qr_whose_q_is_square() -> None:
    m, n = TILE + 11, BLOCK + 3
    x = drawn(m, n)
    q, r = linalg.qr(on(x), mode="complete")
    assert q.shape == (m, m)
    assert not np.tril(r.numpy(), -1).any()
    close(q @ r, x, m)
    close(q.matrix_transpose() @ q, np.eye(m), m)


def test_reflections_of_zeros_have_lapacks_signs() -> None:
    x = np.array([[0, 1, 2], [3, 0, 0], [0, 0, 0]], np.float32)
    want = np.linalg.qr(x).R
    np.testing.assert_allclose(linalg.qr(on(x)).R.numpy(), want)
    with without_kernel("cpu", "qr"):
        np.testing.assert_allclose(linalg.qr(eg.tensor(x)).R.numpy(), want)


# --- eigenvalues and singular values -------------------------------------------------------------


def with_values(values: Any, shape: tuple[int, int], symmetric: bool) -> Any:
    """A matrix with these eigenvalues, or singular values."""
    m, n = shape
    u = np.linalg.qr(drawn(m, m).astype(np.float64)).Q[:, : len(values)]
    v = u if symmetric else np.linalg.qr(drawn(n, n, seed=1).astype(np.float64)).Q
    x = (u * values) @ v[:, : len(values)].T
    return ((x + x.T) / 2 if symmetric else x).astype(np.float32)


SPECTRA: dict[str, Callable[[int], Any]] = {
    "even": lambda n: np.arange(n) + 1.0,
    "graded": lambda n: 10.0 ** -np.linspace(0, 12, n),
    "in pairs": lambda n: np.arange(n) // 2 + 1.0,
    "few": lambda n: np.where(np.arange(n) < 5, 5.0 - np.arange(n), 0.0),
    "zero": np.zeros,
    "large": lambda n: 1e15 * np.arange(n),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("n", [1, 2, PAIRS + 1, 2 * PAIRS + 2])
def test_eigenvalues(name: str, n: int) -> None:
    signs = np.where(np.arange(n) % 3 == 1, -1.0, 1.0)
    x = with_values(SPECTRA[name](n) * signs, (n, n), symmetric=True)
    garbage = x + np.triu(np.full((n, n), np.nan, np.float32), 1)  # only the lower half is read
    values, vectors = (t.numpy() for t in linalg.eigh(on(garbage)))
    scale = float(np.abs(x).max()) or 1.0
    want = np.linalg.eigvalsh(x.astype(np.float64))
    np.testing.assert_allclose(values, want, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(x @ vectors, vectors * values, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(n), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("shape", [(1, 1), (PAIRS + 1, PAIRS + 1), (70, 5), (5, 70), (90, 67)])
@pytest.mark.parametrize("whole", [False, True])
def test_singular_values(name: str, shape: tuple[int, int], whole: bool) -> None:
    k = min(shape)
    x = with_values(SPECTRA[name](k), shape, symmetric=False)
    u, values, vh = (t.numpy() for t in linalg.svd(on(x), full_matrices=whole))
    want = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    scale = float(want.max()) or 1.0
    np.testing.assert_allclose(values, want, rtol=0, atol=2e-6 * scale)
    np.testing.assert_allclose((u[:, :k] * values) @ vh[:k], x, rtol=0, atol=2e-6 * scale)
    for vectors in (u, vh.T):
        unit = np.eye(vectors.shape[1])
        np.testing.assert_allclose(vectors.T @ vectors, unit, rtol=0, atol=1e-5)
        assert not whole or vectors.shape[0] == vectors.shape[1]


def test_too_many_columns_for_rotations_are_refused_by_name() -> None:
    with pytest.raises(DeviceError, match=f"eigh: webgpu takes matrices of up to {MOST} columns"):
        linalg.eigh(eg.zeros((MOST + 1, MOST + 1), device="webgpu"))


# --- what they have in common --------------------------------------------------------------------

FAILING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "cholesky": (linalg.cholesky, "cholesky: a matrix is not positive definite"),
    "inv": (linalg.inv, "inv: a matrix is singular"),
    "solve_triangular": (
        lambda x: linalg.solve_triangular(x, x, upper=True),
        "solve_triangular: a matrix is singular",
    ),
}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [(0, 0), (3, 1)])
def test_rotations_refuse_what_is_not_finite(bad: float, at: tuple[int, int]) -> None:
    x = positive(6, 2)
    x[1][at] = x[1][at[::-1]] = bad
    for fn in (lambda t: linalg.eigh(t)[1], lambda t: linalg.svd(t)[0], linalg.svdvals):
        out = fn(on(x))
        with pytest.raises(ArgumentError, match="the iteration does not converge"):
            out.numpy()
        got = out.numpy()
        assert np.isfinite(got[0]).all()
        assert np.isnan(got[1]).all()


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("at", [0, BLOCK, 2 * BLOCK])
@pytest.mark.parametrize("compiled", [False, True])
def test_one_bad_matrix_is_refused_at_the_next_read(name: str, at: int, compiled: bool) -> None:
    fn, message = FAILING[name]
    x = positive(2 * BLOCK + 1, 2)
    x[1, at, :] = x[1, :, at] = 0.0
    out = (eg.jit(fn) if compiled else fn)(on(x))
    with pytest.raises(ArgumentError, match=message):
        out.numpy()
    got = out.numpy()  # once
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()


def test_launches_grow_with_the_number_of_blocks() -> None:
    """Not with the number of columns."""
    counts = {}
    for n in (2 * BLOCK, 4 * BLOCK, 8 * BLOCK):
        x = on(positive(n))
        with base.get("webgpu").launches() as names:
            linalg.cholesky(x).numpy(), linalg.solve(x, x).numpy(), linalg.qr(x).R.numpy()
        counts[n // BLOCK] = len(names)
    assert counts[4] <= 2 * counts[2]
    assert counts[8] <= 2 * counts[4]
    assert counts[8] <= 20 * 8


@pytest.mark.parametrize(
    "fn", [linalg.cholesky, linalg.inv, lambda x: linalg.qr(x).R, linalg.eigvalsh]
)
def test_derivatives_and_compiled_functions(fn: Callable[[Any], Any]) -> None:
    """To second order, against the CPU's in float64. Eigenvalues are kept apart: derivatives are
    divided by their differences."""
    x = positive(BLOCK + 2)
    if fn is linalg.eigvalsh:
        x = with_values(np.arange(BLOCK + 2.0), x.shape, symmetric=True)
    weights = drawn(BLOCK + 2, BLOCK + 2, seed=3)

    def loss(x: Any, w: Any) -> Any:
        return (eg.sin(fn(x)) * w).sum()

    def twice(x: Any, w: Any) -> Any:
        return eg.grad(lambda x: (eg.grad(loss)(x, w) * w).sum())(x)

    wide = [eg.tensor(a.astype(np.float64)) for a in (x, weights)]
    for derivative in (eg.grad(loss), twice):
        want = derivative(*wide).numpy()
        eager = derivative(on(x), on(weights))
        scale = float(np.abs(want).max())
        np.testing.assert_allclose(eager.numpy(), want, rtol=0, atol=1e-4 * scale)
        np.testing.assert_allclose(
            eg.jit(derivative)(on(x), on(weights)).numpy(), eager.numpy(), rtol=0,
            atol=2e-5 * scale)  # fmt: skip


def test_tall_matrices() -> None:
    """A software adapter cuts long loops off: kernels stay below that, or refuse."""
    x = drawn(12_000, BLOCK + 1)
    close(linalg.qr(on(x)).R, np.linalg.qr(x.astype(np.float64)).R, 1000)
    want, pivots = scipy.linalg.lu_factor(x.astype(np.float64))
    packed = linalg.lu_factor(on(x))
    np.testing.assert_array_equal(packed.pivots.numpy() - 1, pivots)
    close(packed.LU, want, 1000)
    if base.get("webgpu").gpu.is_software:
        for fn in (linalg.qr, linalg.lu_factor):
            with pytest.raises(DeviceError, match=r"matrices of this size take \d+ turns"):
                fn(eg.zeros((100_000, 2), device="webgpu"))


def test_more_matrices_than_a_launch_takes(monkeypatch: Any) -> None:
    gpu = base.get("webgpu").gpu
    x = positive(3, 10)
    given = on(x)
    monkeypatch.setattr(gpu.limits, "groups", 4)
    close(linalg.cholesky(given), np.linalg.cholesky(x), 3)
    close(linalg.inv(given), np.linalg.inv(x), 3)
