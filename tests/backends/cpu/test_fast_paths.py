"""Fast paths of the CPU: matrices one by one on all cores, splits without copies, rows of half
floats, and the accuracy of gelu far below 0."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.backends import thread_pool
from everygrad.backends.cpu.solver import batched_lapack, lapack
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.activations import gelu_tanh

DTYPES = ("float32", "float64", "complex64", "complex128")
BATCHES = ((), (3,), (2, 2))


def _matrices(dtype: str, *shape: int) -> Any:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) / shape[-1] ** 0.5
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape) / shape[-1] ** 0.5
    return x.astype(dtype)


def _near(got: Any, want: Any, dtype: str, units: float = 1e4) -> None:
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= units * np.finfo(dtype).eps * np.abs(want).max()


# --- matrices too large for NumPy's loop ---------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_solutions(dtype: str, batch: tuple[int, ...]) -> None:
    n = batched_lapack.SMALL + 9
    a, b = _matrices(dtype, *batch, n, n), _matrices(dtype, *batch, n, 7)
    wide = a.astype(np.result_type(dtype, np.float64))
    _near(lapack.solve(a, b), np.linalg.solve(wide, b), dtype)
    _near(lapack.inv(a), np.linalg.inv(wide), dtype)
    dets = np.linalg.det(wide)
    _near(lapack.det(a), np.asarray(dets), dtype)
    _near(lapack.adjugate(a), np.linalg.inv(wide) * dets[..., None, None], dtype)
    sign, size = np.linalg.slogdet(wide)
    _near(lapack.slogdet(a), np.stack((sign, size.astype(sign.dtype)), -1), dtype)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_factors(dtype: str, batch: tuple[int, ...]) -> None:
    n, more = batched_lapack.SMALL + 5, 6
    a = _matrices(dtype, *batch, n + more, n)
    packed = lapack.qr(a)
    q, r = packed[..., : n + more, :], packed[..., n + more :, :]
    _near(q @ r, a, dtype)
    _near(q.mT.conj() @ q, np.broadcast_to(np.eye(n, dtype=dtype), r.shape), dtype)
    assert not np.tril(r, -1).any()
    firm = (a.mT.conj() @ a + np.eye(n)).astype(dtype)
    low = lapack.cholesky(firm)
    _near(low @ low.mT.conj(), firm, dtype)
    assert not np.triu(low, 1).any()
    for got, want in zip(
        batched_lapack.map_batch(np.linalg.eigh, firm), np.linalg.eigh(firm), strict=True
    ):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
    _near(lapack.svdvals(a), np.linalg.svdvals(a), np.linalg.svdvals(a).dtype.name)


def test_what_has_no_solution_is_refused() -> None:
    x = np.zeros((2, 30, 30), np.float32)
    x[0] = np.eye(30)
    with pytest.raises(ArgumentError, match="inv: a matrix is singular"):
        lapack.inv(x)
    with pytest.raises(ArgumentError, match="solve: a matrix is singular"):
        lapack.solve(x, x)
    with pytest.raises(ArgumentError, match="cholesky: a matrix is not positive definite"):
        lapack.cholesky(-x)
    assert lapack.det(x).tolist() == [1.0, 0.0]
    assert lapack.slogdet(x).tolist() == [[1.0, 0.0], [0.0, -np.inf]]


def test_a_determinant_that_fits_though_its_products_do_not() -> None:
    x = np.diag(np.float32([1e30] * 5 + [1e-30] * 5 + [1] * 20))
    np.testing.assert_allclose(lapack.det(x), 1, rtol=1e-5)


@pytest.mark.parametrize("which", [(True, True), (True, False), (False, True)])
def test_gradients_of_solve(which: tuple[bool, bool]) -> None:
    data = _matrices("float64", 2, 30, 30), _matrices("float64", 2, 30, 3)
    ours = [eg.tensor(a, requires_grad=w) for a, w in zip(data, which, strict=True)]
    theirs = [torch.tensor(a, requires_grad=w) for a, w in zip(data, which, strict=True)]
    (eg.linalg.solve(*ours) ** 2).sum().backward()
    (torch.linalg.solve(*theirs) ** 2).sum().backward()
    for x, t, w in zip(ours, theirs, which, strict=True):
        assert (x.grad is not None) is (t.grad is not None) is w
        if x.grad is not None and t.grad is not None:
            np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-8)


# --- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gradients_of_some_of_many_parts(axis: int) -> None:
    """Unused parts have gradient 0, and higher orders work."""
    data = np.random.default_rng(0).random((40, 30, 20))
    x = eg.tensor(data, requires_grad=True)
    parts = eg.unbind(x, axis)
    assert len(parts) == data.shape[axis]
    loss = (parts[3] ** 3 * parts[5]).sum() + (parts[3] * 2).sum()
    (first,) = eg.autograd.grad(loss, [x], create_graph=True)
    (second,) = eg.autograd.grad((first * first).sum(), [x])
    t = torch.tensor(data, requires_grad=True)
    them = t.unbind(axis)
    theirs = (them[3] ** 3 * them[5]).sum() + (them[3] * 2).sum()
    (one,) = torch.autograd.grad(theirs, [t], create_graph=True)
    (two,) = torch.autograd.grad((one * one).sum(), [t])
    np.testing.assert_allclose(first.detach().numpy(), one.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(second.numpy(), two.numpy(), rtol=1e-12)


def test_parts_share_memory_and_keep_their_values() -> None:
    x = eg.tensor(np.arange(6.0))
    first, *_ = eg.unbind(x)
    left, right = eg.split(x, 3)
    assert first.shape == ()
    assert np.shares_memory(left.numpy(), x.numpy())
    x += 1
    assert first.item() == 0
    assert left.tolist() == [0, 1, 2]
    assert right.tolist() == [3, 4, 5]


# --- rows of half floats -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_half_rows_are_rounded_once(dtype: str, axis: int) -> None:
    """Half floats give the float32 result, rounded once."""
    x = (eg.tensor(np.random.default_rng(0).standard_normal((70, 33)).astype("f")) * 3).astype(
        dtype
    )
    wide = x.astype("float32")
    for fn in (eg.softmax, eg.log_softmax):
        got, want = fn(x, axis=axis), fn(wide, axis=axis)
        assert str(got.dtype) == dtype
        step = 2.0 ** (-11 if dtype == "float16" else -8)
        sizes = np.abs(want.numpy())
        off = np.abs(got.astype("float32").numpy() - want.numpy())
        assert (off <= 1.01 * step * sizes + 6e-8).all()


# --- gelu ----------------------------------------------------------------------------------------


def _gelu(x: float) -> Any:
    return x * mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2


def _by_tanh(x: float) -> Any:
    inside = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf(0.044715) * mpmath.mpf(x) ** 3)
    return x / (1 + mpmath.exp(-2 * inside))


@pytest.mark.parametrize(("dtype", "low", "units"), [("float32", -13, 4), ("float64", -37, 4)])
@pytest.mark.parametrize("count", [50, 40000])
def test_gelu_keeps_its_digits_far_below_0(
    dtype: str, low: float, units: float, count: int
) -> None:
    x = np.linspace(low, 6, count).astype(dtype)
    got = eg.gelu(eg.tensor(x)).numpy()
    with mpmath.workdps(40):
        for at in range(0, count, count // 50):
            want = _gelu(float(x[at]))
            assert abs(float(got[at]) - want) <= units * np.finfo(dtype).eps * abs(want)


@pytest.mark.parametrize(("dtype", "low"), [("float32", -8), ("float64", -17)])
def test_gelu_by_tanh_keeps_most_digits(dtype: str, low: float) -> None:
    """An exponent of some hundreds has an error of as many units in the last place."""
    x = np.linspace(low, 6, 50).astype(dtype)
    got = gelu_tanh(eg.tensor(x)).numpy()
    with mpmath.workdps(40):
        for value, ours in zip(x, got, strict=True):
            want = _by_tanh(float(value))
            assert abs(float(ours) - want) <= 1000 * np.finfo(dtype).eps * abs(want)


# --- gradients of layer_norm ---------------------------------------------------------------------


def _layer_norm_gradients(a: Any, w: Any, seed: Any) -> tuple[Any, Any, Any]:
    """Written out in 80 bits: sums over 5,000 rows cost PyTorch's float64 some digits too."""
    x, scale, g = (v.astype(np.longdouble) for v in (a, w, seed))
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + np.longdouble(1e-5))
    unit, by_unit = centred * inverse, g * scale
    means = (v.mean(-1, keepdims=True) for v in (by_unit, by_unit * unit))
    by_x = inverse * (by_unit - next(means) - unit * next(means))
    rows = tuple(range(x.ndim - 1))
    return by_x, (g * unit).sum(rows), g.sum(rows)


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4), (64, 1000), (5000, 33), (40, 5000)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_layer_norm(dtype: str, shape: tuple[int, ...]) -> None:
    """All three by one kernel: the written-out ones, the same bits on any number of threads, and
    near those of one input at a time."""
    rng = np.random.default_rng(0)
    a, seed = rng.standard_normal((2, *shape)).astype(dtype)
    w, b = rng.standard_normal((2, shape[-1])).astype(dtype)

    def gradients(wants: tuple[int, ...]) -> list[Any]:
        xs = [eg.tensor(v) for v in (a, w, b)]
        leaves = [xs[i].requires_grad_() for i in wants]
        out = eg.layer_norm(xs[0], shape[-1:], xs[1], xs[2])
        return [g.numpy() for g in eg.autograd.grad(out, leaves, eg.tensor(seed))]

    got, threads = gradients((0, 1, 2)), thread_pool.num_threads()
    thread_pool.set_num_threads(1)
    try:
        alone = gradients((0, 1, 2))
    finally:
        thread_pool.set_num_threads(threads)
    apart = [gradients((i,))[0] for i in range(3)]
    for one, same, by_itself, wanted in zip(
        got, alone, apart, _layer_norm_gradients(a, w, seed), strict=True
    ):
        assert np.array_equal(one, same)
        for found in (one, by_itself):
            off = np.abs(found - wanted).max()
            assert off <= 16 * np.finfo(dtype).eps * np.abs(wanted).max()
