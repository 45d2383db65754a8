"""Factorisations of small matrices, least squares and their gradients by native code: what the
slower ways give, for every size of vectors, real and complex, alone and in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends.cpu.solver import (
    batched_lapack,
    lapack,
    matrix_gradients,
    native_factors,
    native_lstsq,
)
from everygrad.backends.reference.factor_gradients import WAYS
from everygrad.errors import ArgumentError

SIZES = [
    (1, 1),
    (2, 2),
    (3, 3),
    (5, 3),
    (3, 5),
    (8, 8),
    (9, 4),
    (4, 9),
    (16, 16),
    (17, 17),
    (24, 24),
]
LARGER = [(30, 7), (33, 33), (40, 40), (64, 64)]
BATCHES = [(), (3,), (2, 2)]


def drawn(*shape: int, dtype: str, seed: int = 0) -> Any:
    rng = np.random.default_rng((seed, *shape))
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype in "FD" else real).astype(dtype)


def adjoint(x: Any) -> Any:
    return x.conj().swapaxes(-1, -2)


def positive(x: Any) -> Any:
    n = x.shape[-2]
    return (x @ adjoint(x) + n * np.eye(n)).astype(x.dtype)


def same_signs(packed: Any) -> Any:
    """[values | vectors], of which each vector's sign, or phase, makes the sum of its numbers times
    distinct ones positive."""
    vectors = packed[..., 1:]
    sums = (vectors * np.sqrt(2 + np.arange(vectors.shape[-1]))[:, None]).sum(-2, keepdims=True)
    turned = vectors * (np.abs(sums) / sums)
    return np.concatenate([packed[..., :1], turned], axis=-1).astype(packed.dtype)


def same_signs_of_pairs(packed: Any, m: int) -> Any:
    """U, values and V packed, where U and V have changed their signs, or phases, together."""
    parts = packed[..., :m, :], packed[..., m : m + 1, :], packed[..., m + 1 :, :]
    sums = (parts[2] * np.sqrt(2 + np.arange(parts[2].shape[-2]))[:, None]).sum(-2, keepdims=True)
    turn = np.abs(sums) / sums
    both = parts[0] * turn, parts[1], parts[2] * turn
    return np.concatenate(both, axis=-2).astype(packed.dtype)


FACTORS = ["cholesky", "eigh", "svd", "qr", "slogdet"]
CASES = [(n, s) for n in FACTORS for s in SIZES + LARGER if n != "qr" or s[0] >= s[1]]


@pytest.mark.parametrize("dtype", list("fdFD"))
@pytest.mark.parametrize(("name", "shape"), CASES, ids=str)
def test_factors_are_those_of_the_slower_way(
    monkeypatch: pytest.MonkeyPatch, name: str, shape: Any, dtype: str
) -> None:
    for batch in BATCHES:
        x = drawn(*batch, *shape, dtype=dtype)
        x = x if name in ("svd", "qr") else positive(x)
        kernel = getattr(lapack, name)
        got = kernel(x)
        with monkeypatch.context() as patch:
            patch.setattr(native_factors, "factored", lambda *given: None)
            want = kernel(x)
        if name == "eigh":
            got, want = same_signs(got), same_signs(want)
        if name == "svd":
            got, want = (same_signs_of_pairs(v, shape[0]) for v in (got, want))
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        # rounding alone: both compute in float64 up to 24 columns, the slower way not beyond
        units = 8 if max(shape) <= batched_lapack.SMALL else 100 * max(shape)
        close = units * np.finfo(dtype).eps * np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=close)


def _judge(name: str, got: Any, *given: Any) -> None:
    want = WAYS[name](*given)
    assert got is not NotImplemented
    assert got.shape == want.value.shape
    assert (np.abs(got - want.value) <= want.error).all()


def _phaseless(g: Any, *parts: tuple[slice, Any]) -> None:
    """A gradient that no change of phases of these vectors sees."""
    for where, vectors in parts:
        turn = (vectors.conj() * g[..., where, :]).sum(axis=-2).imag
        g[..., where, :] -= (1j * vectors * turn[..., None, :]).astype(g.dtype)


@pytest.mark.parametrize("dtype", list("fdFD"))
@pytest.mark.parametrize("shape", SIZES + LARGER[:1], ids=str)
def test_gradients_are_those_of_the_definitions(shape: Any, dtype: str) -> None:
    m, n = shape
    is_complex = dtype in "FD"
    for batch in BATCHES:
        x = drawn(*batch, m, n, dtype=dtype)
        out = lapack.svd(x)
        g = drawn(*out.shape, dtype=dtype, seed=1)
        if is_complex:
            u, v = slice(0, m), slice(m + 1, None)
            _phaseless(g, (u, out[..., u, :]), (v, out[..., v, :]))
        _judge("svd_vjp", matrix_gradients.svd_vjp(g, out, m), g, out, m)
        if m >= n:
            out = lapack.qr(x)
            g = drawn(*out.shape, dtype=dtype, seed=2)
            _judge("qr_vjp", matrix_gradients.qr_vjp(g, out), g, out)
        if m != n:
            continue
        x = positive(x)
        out = lapack.cholesky(x)
        g = drawn(*out.shape, dtype=dtype, seed=3)
        _judge("cholesky_vjp", matrix_gradients.cholesky_vjp(g, out), g, out)
        out = lapack.eigh(x)
        g = drawn(*out.shape, dtype=dtype, seed=4)
        if is_complex:
            inner = g[..., 1:].copy()
            _phaseless(inner, (slice(None), out[..., 1:]))
            g[..., 1:], g[..., 0] = inner, g[..., 0].real
        _judge("eigh_vjp", matrix_gradients.eigh_vjp(g, out), g, out)
        out = lapack.slogdet(x)
        g = drawn(*out.shape, dtype=dtype, seed=5)
        _judge("slogdet_vjp", matrix_gradients.slogdet_vjp(g, out, x), g, out, x)


@pytest.mark.parametrize("dtype", list("fdFD"))
@pytest.mark.parametrize("wide", [1, 3, 8])
@pytest.mark.parametrize("shape", [*SIZES, (64, 8), (8, 64)], ids=str)
def test_least_squares_and_their_gradients(
    monkeypatch: pytest.MonkeyPatch, shape: Any, wide: int, dtype: str
) -> None:
    m, n = shape
    for batch in BATCHES:
        a, b = drawn(*batch, m, n, dtype=dtype), drawn(*batch, m, wide, dtype=dtype, seed=1)
        rtol = max(m, n) * float(np.finfo(dtype).eps)
        out = lapack.lstsq(a, b, rtol)
        assert native_lstsq.serves(a, b)
        with monkeypatch.context() as patch:
            patch.setattr(native_lstsq, "of_full_rank", lambda *given: None)
            other = lapack.lstsq(a, b, rtol)
            patch.setattr(native_lstsq, "serves", lambda *given: False)
            np.testing.assert_array_equal(other, lapack.lstsq(a, b, rtol))
        np.testing.assert_array_equal(out[..., -1, :], other[..., -1, :])
        _judge("lstsq", out, a, b, rtol)
        x = out[..., :-1, :]
        found = lapack.lstsq_residuals(a, x, b)
        assert found.dtype == dtype.lower()
        _judge("lstsq_residuals", found, a, x, b)
        g = drawn(*out.shape, dtype=dtype, seed=2)
        _judge("lstsq_vjp", matrix_gradients.lstsq_vjp(g, out, a, b, rtol), g, out, a, b, rtol)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("shape", [(4, 4), (9, 4), (70, 20)], ids=str)
def test_ranks_that_reflections_do_not_prove_are_lapacks(shape: Any, dtype: str) -> None:
    """Singular values on both sides of the bound, one matrix of full rank among them."""
    m, n = shape
    char = np.dtype(dtype).char
    rtol = m * float(np.finfo(dtype).eps)
    u, v = (np.linalg.qr(drawn(s, n, dtype=char, seed=s))[0] for s in (m, n))
    for least in (0.0, rtol / 10, 3 * rtol, 100 * rtol, 1e-2):
        sizes = np.linspace(1.0, 2.0, n)
        sizes[0] = least
        a = np.stack([(u * sizes) @ adjoint(v), (u * np.linspace(1, 2, n)) @ adjoint(v)])
        a, b = a.astype(dtype), drawn(2, m, 3, dtype=char, seed=3)
        out = lapack.lstsq(a, b, rtol)
        assert out[..., -1, 0].real.tolist() == [n - (least < rtol), n]
        _judge("lstsq", out, a, b, rtol)
        for one, left, right in zip(out, a, b, strict=True):
            np.testing.assert_array_equal(one, lapack.lstsq(left, right, rtol))


def test_a_right_side_that_is_no_number_spoils_no_other() -> None:
    a, b = drawn(8, 4, dtype="f"), drawn(8, 2, dtype="f")
    want = lapack.lstsq(a, b, 1e-5)
    b[3, 1] = np.nan
    got = lapack.lstsq(a, b, 1e-5)
    if got is not NotImplemented:  # the definition's, otherwise
        np.testing.assert_allclose(got[:, 0], want[:, 0], rtol=1e-5)
    found = eg.linalg.lstsq(eg.tensor(a), eg.tensor(b)).solution.numpy()
    np.testing.assert_allclose(found[:, 0], want[:-1, 0], rtol=1e-4)
    assert np.isnan(found[:, 1]).all()


@pytest.mark.parametrize("dtype", list("fFd"))
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 5, 5), (2, 2, 24, 24)], ids=str)
def test_systems_are_solved_as_by_lapack(shape: Any, dtype: str) -> None:
    for wide in (1, 3, 9):
        a, b = drawn(*shape, dtype=dtype), drawn(*shape[:-1], wide, dtype=dtype, seed=1)
        got, want = lapack.solve(a, b), np.linalg.solve(*(v.astype(np.promote_types(dtype, "d"))
                                                         for v in (a, b)))  # fmt: skip
        assert got.dtype == dtype
        size = np.linalg.cond(a)[..., None, None] * np.abs(want).max()
        assert (
            np.abs(got - want) <= (size * 1e-15 * 100) + np.finfo(dtype).eps * np.abs(want)
        ).all()


def test_singular_systems_of_a_batch_are_refused() -> None:
    a = np.stack([np.eye(3), np.ones((3, 3))]).astype("f")
    with pytest.raises(ArgumentError, match="singular"):
        lapack.solve(a, np.ones((2, 3, 1), "f"))


def test_a_batch_of_many_calls_is_its_matrices() -> None:
    a, b = drawn(40, 64, 20, dtype="f"), drawn(40, 64, 2, dtype="f", seed=1)
    assert a.size * (20 + 2) > native_lstsq._REFLECTED
    out = lapack.lstsq(a, b, 1e-5)
    for one, left, right in zip(out, a, b, strict=True):
        np.testing.assert_array_equal(one, lapack.lstsq(left, right, 1e-5))


def test_what_has_no_plain_gradient_is_left_to_the_definition() -> None:
    a = np.ones((4, 2))
    b, g = np.ones((4, 1)), np.ones((3, 1))
    out = lapack.lstsq(a, b, 1e-12)
    assert out[-1, 0] == 1
    assert matrix_gradients.lstsq_vjp(g, out, a, b, 1e-12) is NotImplemented
    x = eg.tensor(np.zeros((2, 2)), requires_grad=True)
    size = eg.linalg.slogdet(x).logabsdet
    with pytest.raises(ArgumentError, match="singular"):
        size.backward()
    x = eg.tensor(np.diag([1.0, 2.0, 0.0]), requires_grad=True)
    eg.linalg.det(x).backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.diag([0.0, 0.0, 2.0]), atol=1e-12)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 33, 64])
def test_eigenvectors_of_matrices_with_equal_and_no_eigenvalues(n: int, size: float) -> None:
    """Within what rounding to float32 alone makes of results in float64."""
    q = np.linalg.qr(drawn(n, n, dtype="d"))[0]
    steps = np.arange(n) // 3
    made = (np.ones((n, n)), np.eye(n), np.zeros((n, n)), np.diag(steps[::-1]),
            (q * steps) @ q.T, (q * 10.0 ** -np.arange(n)) @ q.T)  # fmt: skip
    for x in made:
        x = (size * (x + x.T) / 2).astype("f")
        assert native_factors.serves(x, "eigh")
        out = lapack.eigh(x).astype("d")
        values, vectors = out[:, 0], out[:, 1:]
        want = np.linalg.eigvalsh(x.astype("d"))
        assert np.abs(values - want).max() <= 1e-7 * np.abs(want).max()
        assert np.abs(vectors.T @ vectors - np.eye(n)).max() <= 3e-7
        assert np.abs((vectors * values) @ vectors.T - x).max() <= 4e-7 * np.abs(want).max()


@pytest.mark.parametrize("shape", [(4, 4), (16, 16), (40, 24), (24, 40), (64, 64)], ids=str)
def test_singular_vectors_of_any_condition(shape: Any) -> None:
    """On both sides of what native code leaves to LAPACK, alone and in one batch."""
    m = shape[0]
    k = min(shape)
    u, v = (np.linalg.qr(drawn(s, k, dtype="d", seed=s))[0] for s in shape)
    made = [(u * np.geomspace(1.0, least, k)) @ v.T for least in (1.0, 1e-3, 1e-4, 1e-6, 1e-12)]
    made += [np.ones(shape), 1e-30 * made[1], 1e30 * made[1]]
    x = np.stack(made).astype("f")
    for out, one in zip(lapack.svd(x), x, strict=True):
        for found in (out, lapack.svd(one)):
            left, values, right = (p.astype("d") for p in np.split(found, [m, m + 1]))
            want = np.linalg.svd(one.astype("d"), compute_uv=False)
            assert np.abs(values - want).max() <= 1e-7 * want[0]
            for vectors in (left, right):
                assert np.abs(vectors.T @ vectors - np.eye(k)).max() <= 3e-7
            assert np.abs((left * values) @ right.T - one).max() <= 4e-7 * want[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["eigh", "svd"])
def test_numbers_that_are_none_are_refused(name: str, bad: float) -> None:
    with pytest.raises(ArgumentError, match="does not converge"):
        getattr(eg.linalg, name)(eg.tensor(np.full((3, 3), bad)))
    with pytest.raises(ArgumentError, match="not positive definite"):
        eg.linalg.cholesky(eg.tensor(-np.eye(3)))
