"""Linear algebra against PyTorch, to second order, real and complex; what must be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import linalg
from everygrad.backends import base
from everygrad.backends.cpu.solver import batched_lapack, lapack
from everygrad.errors import ArgumentError, DeviceError, GradientError, ShapeError
from everygrad.ops.linalg.einsum import contraction_path
from everygrad.ops.record.spec import REGISTRY
from tests.support.checks import close, without_kernel


def matrices(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    made = rng.normal(size=shape)
    return made + 1j * rng.normal(size=shape) if dtype.startswith("c") else made


def absolute_squares(x: Any) -> Any:
    return abs(x) * abs(x)


def hermitian(x: Any) -> Any:
    return x + (x.mT.conj() if isinstance(x, torch.Tensor) else conj(x.mT))


def conj(x: Any) -> Any:
    return x.conj() if x.dtype.is_complex else x


def positive(x: Any) -> Any:
    return x @ (x.mT.conj() if isinstance(x, torch.Tensor) else conj(x.mT))


def eig_invariants(parts: Any) -> list[Any]:
    return [parts[0], absolute_squares(parts[1])]


def svd_invariants(parts: Any) -> list[Any]:
    u, values, vh = parts
    return [absolute_squares(u), values, absolute_squares(vh), u[..., :1] @ vh[..., :1, :]]


Pair = tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]
CASES: dict[str, Pair] = {
    "inv": (linalg.inv, torch.linalg.inv, [(2, 3, 3)]),
    "solve": (linalg.solve, torch.linalg.solve, [(2, 3, 3), (3, 2)]),
    "solve_right": (
        lambda a, b: linalg.solve_triangular(a, b, upper=True, left=False),
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True, left=False),
        [(3, 3), (2, 2, 3)],
    ),
    "cholesky": (
        lambda x: linalg.cholesky(positive(x)),
        lambda x: torch.linalg.cholesky(positive(x)),
        [(2, 3, 3)],
    ),
    "cholesky_solve": (
        lambda b, x: linalg.cholesky_solve(b, linalg.cholesky(positive(x))),
        lambda b, x: torch.cholesky_solve(b, torch.linalg.cholesky(positive(x))),
        [(3, 2), (3, 3)],
    ),
    "lu": (lambda x: linalg.lu(x)[1:], lambda x: torch.linalg.lu(x)[1:], [(2, 3, 3)]),
    "lu_tall": (lambda x: linalg.lu(x)[1:], lambda x: torch.linalg.lu(x)[1:], [(4, 2)]),
    "lu_wide": (lambda x: linalg.lu(x)[1:], lambda x: torch.linalg.lu(x)[1:], [(2, 4)]),
    "lu_solve": (
        lambda x, b: linalg.lu_solve(*linalg.lu_factor(x), b),
        lambda x, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(x), b),
        [(2, 3, 3), (2, 3, 1)],
    ),
    "qr": (linalg.qr, torch.linalg.qr, [(2, 4, 3)]),
    "qr_square": (linalg.qr, torch.linalg.qr, [(3, 3)]),
    "qr_wide": (linalg.qr, torch.linalg.qr, [(2, 4)]),
    "eigh": (
        lambda x: eig_invariants(linalg.eigh(hermitian(x))),
        lambda x: eig_invariants(torch.linalg.eigh(hermitian(x))),
        [(2, 3, 3)],
    ),
    "eigvalsh": (
        lambda x: linalg.eigvalsh(hermitian(x)),
        lambda x: torch.linalg.eigvalsh(hermitian(x)),
        [(2, 3, 3)],
    ),
    "eig": (
        lambda x: eig_invariants(linalg.eig(x)),
        lambda x: eig_invariants(torch.linalg.eig(x)),
        [(2, 3, 3)],
    ),
    "eigvals": (linalg.eigvals, torch.linalg.eigvals, [(2, 3, 3)]),
    "svd": (
        lambda x: svd_invariants(linalg.svd(x, full_matrices=False)),
        lambda x: svd_invariants(torch.linalg.svd(x, full_matrices=False)),
        [(2, 3, 3)],
    ),
    "svd_tall": (
        lambda x: svd_invariants(linalg.svd(x, full_matrices=False)),
        lambda x: svd_invariants(torch.linalg.svd(x, full_matrices=False)),
        [(4, 2)],
    ),
    "svd_wide": (
        lambda x: svd_invariants(linalg.svd(x, full_matrices=False)),
        lambda x: svd_invariants(torch.linalg.svd(x, full_matrices=False)),
        [(2, 4)],
    ),
    "svdvals": (linalg.svdvals, torch.linalg.svdvals, [(2, 3, 2)]),
    "pinv": (linalg.pinv, torch.linalg.pinv, [(2, 3, 2)]),
    "pinv_wide": (linalg.pinv, torch.linalg.pinv, [(2, 4)]),
    "lstsq": (
        lambda a, b: linalg.lstsq(a, b).solution,
        lambda a, b: torch.linalg.pinv(a) @ b,
        [(4, 2), (4, 3)],
    ),
    "det": (linalg.det, torch.linalg.det, [(2, 3, 3)]),
    "slogdet": (linalg.slogdet, torch.linalg.slogdet, [(2, 3, 3)]),
    "matrix_power": (
        lambda x: linalg.matrix_power(x, -3),
        lambda x: torch.linalg.matrix_power(x, -3),
        [(2, 2, 2)],
    ),
    "matrix_power_0": (
        lambda x: linalg.matrix_power(x, 0) + x,
        lambda x: torch.linalg.matrix_power(x, 0) + x,
        [(2, 2)],
    ),
    "matrix_exp": (linalg.matrix_exp, torch.linalg.matrix_exp, [(2, 3, 3)]),
    "nuclear": (
        lambda x: linalg.matrix_norm(x, ord="nuc"),
        lambda x: torch.linalg.matrix_norm(x, ord="nuc"),
        [(2, 3, 2)],
    ),
    "norm_inf": (
        lambda x: linalg.matrix_norm(x, ord=float("inf")),
        lambda x: torch.linalg.matrix_norm(x, ord=float("inf")),
        [(2, 3, 2)],
    ),
    "vector_norm": (
        lambda x: linalg.vector_norm(x, axis=-1, ord=2.5),
        lambda x: torch.linalg.vector_norm(x, dim=-1, ord=2.5),
        [(2, 3)],
    ),
    "cond": (linalg.cond, torch.linalg.cond, [(3, 2)]),
    "cross": (linalg.cross, torch.linalg.cross, [(2, 3), (2, 3)]),
    "householder_product": (
        linalg.householder_product,
        torch.linalg.householder_product,
        [(2, 4, 3), (2, 2)],
    ),
    "multi_dot": (
        lambda *xs: linalg.multi_dot(xs),
        lambda *xs: torch.linalg.multi_dot(xs),
        [(4,), (4, 3), (3, 5), (5, 2)],
    ),
    "einsum": (
        lambda *xs: eg.einsum("bij,jk,...k->b...i", *xs),
        lambda *xs: torch.einsum("bij,jk,...k->b...i", *xs),
        [(2, 3, 4), (4, 2), (2, 2)],
    ),
    "tensordot": (
        lambda x, y: eg.tensordot(x, y, axes=((0, 2), (1, 0))),
        lambda x, y: torch.tensordot(x, y, dims=((0, 2), (1, 0))),
        [(2, 3, 4), (4, 2, 2)],
    ),
    "kron": (eg.kron, torch.kron, [(2, 2), (2, 3)]),
}


def listed(out: Any) -> list[Any]:
    return [*out] if isinstance(out, list | tuple) else [out]


def weighted(xp: Any, outs: list[Any], weights: list[Any]) -> Any:
    """A real number that depends on every element of every result."""
    total: Any = 0.0
    for out, w in zip(outs, weights, strict=True):
        complex_ = "complex" in str(out.dtype)
        total = total + (xp.real(out * w) if complex_ else out * w).sum()
    return total


def second(fn: Any, xs: list[Any], grad: Any, xp: Any, make: Any) -> list[list[Any]]:
    """Results, first derivatives, and derivatives of a number made of the first ones."""
    outs = listed(fn(*xs))
    rng = np.random.default_rng(3)
    drawn = [rng.normal(size=(2, *o.shape)) for o in outs]
    weights = [_like(make, o, d) for o, d in zip(outs, drawn, strict=True)]
    first = grad(weighted(xp, outs, weights), xs, create_graph=True)
    drawn = [rng.normal(size=(2, *g.shape)) for g in first]
    moves = [_like(make, g, d) for g, d in zip(first, drawn, strict=True)]
    total = weighted(xp, [*first], moves)
    if not total.requires_grad:
        return [outs, [*first], []]
    more = grad(total, xs, allow_unused=True)
    return [outs, [*first], [g for g in more if g is not None]]


def _like(make: Any, x: Any, parts: Any) -> Any:
    return make(parts[0] + 1j * parts[1] if "complex" in str(x.dtype) else parts[0])


class _Torch:
    @staticmethod
    def real(x: Any) -> Any:
        return torch.real(x)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_torch_to_second_order(name: str, dtype: str) -> None:
    ours, theirs, shapes = CASES[name]
    arrays = [matrices(*s, dtype=dtype, seed=i + 1) for i, s in enumerate(shapes)]
    if name == "solve_right":
        arrays[0] = arrays[0] + 2 * np.eye(3)
    xs = [eg.tensor(a, requires_grad=True) for a in arrays]
    got = second(ours, xs, eg.autograd.grad, eg, eg.tensor)
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    want = second(theirs, ts, torch.autograd.grad, _Torch, torch.tensor)
    assert len(got[0]) == len(want[0]) > 0
    for order, (g, w) in enumerate(zip(got, want, strict=True)):
        if order == 2 and len(g) != len(w):  # one says zero by None
            continue
        for a, b in zip(g, w, strict=True):
            scale = max(1.0, float(b.detach().abs().max()))
            close(a * (1 / scale), b.detach().numpy(force=True) / scale, 1e-8, f"order {order}")


# --- what is refused -----------------------------------------------------------------------------


def gradient(fn: Callable[[Any], Any], a: Any) -> Any:
    x = eg.tensor(np.asarray(a), requires_grad=True)
    return eg.autograd.grad(fn(x), [x])[0]


SAME = np.diag([2.0, 2.0, 3.0])


def test_vectors_of_equal_values_have_no_derivative() -> None:
    with pytest.raises(GradientError, match="eigh: equal eigenvalues leave their eigenvectors"):
        gradient(lambda x: linalg.eigh(x).eigenvectors[0, 0], SAME)
    with pytest.raises(GradientError, match="svd: equal singular values"):
        gradient(lambda x: linalg.svd(x).U[0, 1], SAME)
    with pytest.raises(GradientError, match="eig: equal eigenvalues"):
        gradient(lambda x: abs(linalg.eig(x).eigenvectors[0, 0]), SAME)
    with pytest.raises(GradientError, match="equal eigenvalues"):  # A itself, but not to be seen
        gradient(lambda x: ((e := linalg.eigh(x))[1] * e[0] @ e[1].mT)[0, 1], SAME)
    with pytest.raises(GradientError, match="eigh: equal eigenvalues"):
        eg.jvp(linalg.eigh, (eg.tensor(SAME),), (eg.tensor(matrices(3, 3)),))


def test_what_equal_values_leave_determined_has_one() -> None:
    close(gradient(lambda x: linalg.eigvalsh(x).sum(), SAME), np.eye(3), 1e-12)
    close(gradient(lambda x: linalg.svdvals(x).sum(), SAME), np.eye(3), 1e-12)
    close(gradient(lambda x: linalg.eigh(x).eigenvalues[2], SAME), np.diag([0.0, 0, 1]), 1e-12)
    projector = gradient(lambda x: linalg.eigh(x).eigenvectors[2, 2] ** 2, SAME)
    close(projector, np.zeros((3, 3)), 1e-12)  # the vector of the value that stands alone
    close(gradient(lambda x: linalg.matrix_norm(x, ord="nuc"), SAME), np.eye(3), 1e-12)


def test_phases_have_no_derivative() -> None:
    a = matrices(3, 3, dtype="complex128")
    with pytest.raises(GradientError, match=r"eigh: .* the phase of complex eigenvectors"):
        gradient(lambda x: eg.imag(linalg.eigh(hermitian(x)).eigenvectors[0, 0]), a)
    with pytest.raises(GradientError, match=r"eig: .* the phase of complex eigenvectors"):
        gradient(lambda x: eg.imag(linalg.eig(x).eigenvectors[0, 0]), a)
    with pytest.raises(GradientError, match=r"svd: .* the phase of complex singular vectors"):
        gradient(lambda x: eg.imag(linalg.svd(x).U[0, 0]), a)


def test_what_completes_a_basis_has_no_derivative() -> None:
    a = matrices(3, 2)
    with pytest.raises(GradientError, match='qr: the columns that mode="complete" adds'):
        gradient(lambda x: linalg.qr(x, mode="complete").Q[0, 2], a)
    with pytest.raises(GradientError, match="svd: the vectors that full_matrices=True adds"):
        gradient(lambda x: linalg.svd(x).U[0, 2], a)
    with pytest.raises(GradientError, match="svd: the vectors that full_matrices=True adds"):
        gradient(lambda x: linalg.svd(x).Vh[2, 0], a.T)
    for wide in (a, a.T):
        want = gradient(lambda x: linalg.svdvals(x)[0], wide)
        close(gradient(lambda x: linalg.svd(x).S[0], wide), want, 1e-12)
    q = linalg.qr(eg.tensor(a), mode="complete").Q
    close(q.mT @ q, np.eye(3), 1e-12)
    _, (moves, *_) = eg.jvp(linalg.svd, (eg.tensor(a),), (eg.tensor(a),))
    assert eg.isnan(moves).any(axis=0).tolist() == [False, False, True]


def test_dependent_columns_and_lost_directions() -> None:
    with pytest.raises(GradientError, match="qr: columns that are not independent"):
        gradient(lambda x: linalg.qr(x).R[0, 0], np.ones((3, 2)))
    with pytest.raises(GradientError, match="svd: the vectors of a singular value of 0"):
        gradient(lambda x: linalg.svd(x, full_matrices=False).U[2, 1], np.diag([1.0, 0, 0])[:, :2])


def test_refused_inside_jit_too() -> None:
    f = eg.jit(eg.grad(lambda x: linalg.eigh(x).eigenvectors[0, 0]))
    f(eg.tensor(np.diag([1.0, 2.0, 3.0])))
    with pytest.raises(GradientError, match="equal eigenvalues"):
        f(eg.tensor(SAME))


def test_matrices_without_a_solution() -> None:
    ones = eg.ones((2, 2), dtype="float64")
    for fn in (linalg.inv, lambda x: linalg.solve(x, x)):
        with pytest.raises(ArgumentError, match="a matrix is singular; use pinv"):
            fn(ones)
    with pytest.raises(ArgumentError, match="solve_triangular: a matrix is singular"):
        linalg.solve_triangular(ones * 0, ones, upper=True)
    with pytest.raises(ArgumentError, match="cholesky: a matrix is not positive definite"):
        linalg.cholesky(-ones)
    with pytest.raises(ArgumentError, match="svd: the iteration does not converge"):
        linalg.svd(ones * float("nan"))
    with pytest.raises(ArgumentError, match="matrix_exp: the input has a NaN"):
        linalg.matrix_exp(ones * float("inf"))


ZERO, NAN = np.zeros((3, 3)), np.full((3, 3), np.nan)
FAILING: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "solve": (lambda x: linalg.solve(x, x), ZERO),
    "inv": (linalg.inv, ZERO),
    "solve_triangular": (lambda x: linalg.solve_triangular(x, x, upper=True), ZERO),
    "cholesky": (linalg.cholesky, -np.eye(3)),
    "eigh": (linalg.eigh, NAN),
    "eig": (linalg.eig, NAN),
    "eigvals": (linalg.eigvals, NAN),
    "svd": (linalg.svd, NAN),
    "svdvals": (linalg.svdvals, NAN),
    "pinv": (linalg.pinv, NAN),
    "matrix_exp": (linalg.matrix_exp, NAN),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", FAILING)
def test_a_kernel_fails_in_the_words_of_the_record(name: str, compiled: bool) -> None:
    fn, bad = FAILING[name]
    with pytest.raises(ArgumentError) as raised:
        (eg.jit(fn) if compiled else fn)(eg.tensor(bad))
    assert str(raised.value) == f"{name}: {REGISTRY[name].failure}"


@pytest.mark.parametrize("full_matrices", [False, True])
def test_both_forms_of_svd_fail_in_the_same_words(full_matrices: bool) -> None:
    with pytest.raises(ArgumentError) as raised:
        linalg.svd(eg.tensor(NAN[:, :2]), full_matrices=full_matrices)
    assert REGISTRY["svd_complete"].failure == REGISTRY["svd"].failure
    assert str(raised.value) == f"svd: {REGISTRY['svd'].failure}"


@pytest.mark.parametrize(
    "name", [n for n in FAILING if n not in ("eig", "eigvals", "svdvals", "pinv")]
)
def test_a_definition_fails_in_the_words_of_the_record(name: str) -> None:
    fn, bad = FAILING[name]
    with without_kernel("cpu", name), pytest.raises(ArgumentError) as raised:
        fn(eg.tensor(bad))
    assert str(raised.value) == f"{name}: {REGISTRY[name].failure}"


def test_every_record_that_fails_is_among_them() -> None:
    failing = {name for name, op in REGISTRY.items() if op.failure}
    # LAPACK's eigvalsh gives NaN; svd's other form has its name
    assert failing == {*FAILING, "eigvalsh", "svd_complete"}


def test_loops_are_unrolled_so_far() -> None:
    """On a device without LAPACK."""
    x = eg.ones((65, 65), device="null")
    for name, fn in (("cholesky", linalg.cholesky), ("eigh", linalg.eigh), ("svd", linalg.svd)):
        with pytest.raises(DeviceError, match=f"{name}: null has no kernel .* up to 64 columns"):
            fn(x)


# --- edges ---------------------------------------------------------------------------------------


def test_a_singular_matrix_has_a_determinants_derivative() -> None:
    a = matrices(3, 3)
    a[2] = a[0] + a[1]
    t = torch.tensor(a, requires_grad=True)
    torch.linalg.det(t).backward()
    close(gradient(linalg.det, a), t.grad.numpy(), 1e-10)
    sign, size = linalg.slogdet(eg.zeros((2, 2)))
    assert (sign.item(), size.item()) == (0.0, float("-inf"))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3), (0, 0)])
def test_norms_of_empty_matrices(shape: tuple[int, ...]) -> None:
    """NumPy and PyTorch agree on 0; the least of nothing is refused."""
    x = eg.zeros(shape)
    for order in ("fro", "nuc", 1, 2, float("inf")):
        got = linalg.matrix_norm(x, ord=order)
        np.testing.assert_array_equal(got.numpy(), np.zeros(shape[:-2]))
    for order in (2, 1, 0, 3, 0.5):
        assert linalg.vector_norm(x, ord=order).item() == 0.0
    with pytest.raises(ShapeError, match="has no elements"):
        linalg.matrix_norm(x, ord=-2)
    with pytest.raises(ShapeError, match=r"norm: shape .* has no elements"):
        linalg.vector_norm(x, ord=float("inf"))


def test_empty_matrices() -> None:
    none = eg.zeros((0, 0), dtype="float64")
    assert linalg.det(none).item() == 1.0
    assert linalg.inv(none).shape == linalg.cholesky(none).shape == (0, 0)
    assert linalg.eigh(none).eigenvalues.shape == (0,)
    assert linalg.svd(eg.zeros((3, 0))).U.shape == (3, 3)
    assert [t.shape for t in linalg.qr(eg.zeros((2, 0, 3)))] == [(2, 0, 0), (2, 0, 3)]
    assert linalg.pinv(eg.zeros((0, 3))).shape == (3, 0)
    assert linalg.matrix_rank(eg.zeros((2, 3))).item() == 0
    assert linalg.matrix_exp(none).shape == (0, 0)


WITH_GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "inv": linalg.inv,
    "det": linalg.det,
    "cholesky": linalg.cholesky,
    "qr": lambda x: linalg.qr(x).R,
    "lu": lambda x: linalg.lu(x).L,
    "eigh": lambda x: linalg.eigh(x).eigenvectors,
    "eigvals": lambda x: abs(linalg.eigvals(x)),
    "svd": lambda x: linalg.svd(x).U,
    "pinv": linalg.pinv,
    "matrix_exp": linalg.matrix_exp,
}


@pytest.mark.parametrize("name", WITH_GRADIENTS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 2, 2), (2, 0, 0)])
def test_gradients_of_empty_matrices(name: str, shape: tuple[int, ...]) -> None:
    assert gradient(lambda x: WITH_GRADIENTS[name](x).sum(), np.zeros(shape)).shape == shape
    x = eg.zeros(shape)
    out, moved = eg.jvp(WITH_GRADIENTS[name], (x,), (x,))
    assert out.shape == moved.shape


@pytest.mark.parametrize("n", [5, 40, 130])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_larger_matrices(n: int, dtype: str) -> None:
    """Sizes at which BLAS is called directly, and blocks are used."""
    tolerance = 1e-3 if dtype in ("float32", "complex64") else 1e-10
    a = matrices(2, n, n, dtype=dtype).astype(dtype)
    firm = (a / n + np.eye(n)).astype(dtype)
    b = matrices(2, n, 3, dtype=dtype, seed=1).astype(dtype)
    x, y = eg.tensor(a), eg.tensor(b)
    for upper in (False, True):
        for unit in (False, True):
            half = np.triu(firm) if upper else np.tril(firm)
            if unit:
                half[:, range(n), range(n)] = 1
            out = linalg.solve_triangular(eg.tensor(firm), y, upper=upper, unitriangular=unit)
            close(eg.tensor(half) @ out, b, tolerance)
            assert str(out.dtype) == dtype
    p, low, up = linalg.lu(x)
    close(p @ low @ up, a, tolerance)
    factors, pivots = linalg.lu_factor(x)
    close(x @ linalg.lu_solve(factors, pivots, y), b, tolerance)
    theirs = torch.linalg.lu_factor(torch.tensor(a))
    np.testing.assert_array_equal(pivots.numpy(), theirs.pivots.numpy())


def test_without_openblas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NumPy built with another BLAS: the same results by NumPy alone."""
    a, b = matrices(2, 30, 30), matrices(2, 30, 2, seed=1)
    with_it = lapack.lu_factor(a), lapack.solve_triangular(a, b, True, False)
    monkeypatch.setattr(batched_lapack, "library", lambda: None)
    for got, want in zip(
        (lapack.lu_factor(a), lapack.solve_triangular(a, b, True, False)), with_it, strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())


def test_shapes_the_standard_asks_for() -> None:
    x = eg.tensor(matrices(2, 4, 3))
    assert [t.shape for t in linalg.svd(x)] == [(2, 4, 4), (2, 3), (2, 3, 3)]
    assert [t.shape for t in linalg.svd(x, full_matrices=False)] == [(2, 4, 3), (2, 3), (2, 3, 3)]
    assert [t.shape for t in linalg.qr(x, mode="complete")] == [(2, 4, 4), (2, 4, 3)]
    assert linalg.qr(x)._fields == ("Q", "R")
    assert linalg.svd(x)._fields == ("U", "S", "Vh")
    u, values, vh = linalg.svd(x)
    close(u[..., :3] * values.expand_dims(-2) @ vh, x, 1e-12)
    assert linalg.matrix_rank(eg.ones((3, 3)), rtol=eg.tensor(0.1)).item() == 1
    assert linalg.trace(eg.ones((2, 2), dtype="int8")).dtype is eg.int64
    assert linalg.diagonal(x, offset=-1).shape == (2, 3)


def test_matrix_exp_of_large_and_small() -> None:
    for scale in (1e-8, 1.0, 30.0):
        a = matrices(4, 4) * scale
        want = torch.linalg.matrix_exp(torch.tensor(a)).numpy()
        got = linalg.matrix_exp(eg.tensor(a))
        close(got * (1 / np.abs(want).max()), want / np.abs(want).max(), 1e-11)
        kernels = base.get("cpu").kernels
        kernel = kernels.pop("matrix_exp")
        try:
            portable = linalg.matrix_exp(eg.tensor(a))
        finally:
            kernels["matrix_exp"] = kernel
        close(portable * (1 / np.abs(want).max()), want / np.abs(want).max(), 1e-11)


# --- einsum --------------------------------------------------------------------------------------

EQUATIONS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iij->j", [(3, 3, 2)]),
    ("...ij,...jk->...ik", [(5, 1, 2, 3), (4, 3, 2)]),
    ("ij,kj,lk,ml->mi", [(2, 3), (4, 3), (5, 4), (6, 5)]),
    ("ab,cd,ef->", [(2, 3), (3, 2), (2, 2)]),
    ("i,j", [(2,), (3,)]),
    ("ba", [(2, 3)]),
    ("b...a->...", [(2, 3, 4)]),
    ("aab,bcc->ac", [(2, 2, 3), (3, 4, 4)]),
    ("ab,bc,cd,de,ef,fg,gh->ah", [(2, 3), (3, 4), (4, 2), (2, 5), (5, 2), (2, 3), (3, 2)]),
    (",a->a", [(), (3,)]),
    ("ij,ij->ij", [(2, 1), (1, 3)]),
    ("ij,kj->ik", [(2, 1), (4, 3)]),
    ("ij,jk->ik", [(2, 0), (0, 3)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation: str, shapes: Any) -> None:
    arrays = [matrices(*s, seed=i) for i, s in enumerate(shapes)]
    want = torch.einsum(equation, *map(torch.tensor, arrays)).numpy()
    close(eg.einsum(equation, *map(eg.tensor, arrays)), want, 1e-12)


def test_einsum_chooses_the_cheap_order() -> None:
    sizes = {"a": 100, "b": 2, "c": 100, "d": 2}
    path = contraction_path([("a", "b"), ("b", "c"), ("c", "d")], ("a", "d"), sizes)
    assert path[0] == (1, 2)  # (b, c) with (c, d): 400, not 20000
    chain = [(chr(97 + i), chr(98 + i)) for i in range(8)]
    sizes = {chr(97 + i): 2 if i % 2 else 50 for i in range(9)}
    path = contraction_path(chain, ("a", "i"), sizes)
    assert len(path) == 7
    assert cost(chain, ("a", "i"), sizes, path) < cost(
        chain, ("a", "i"), sizes, ((0, 1), *((0, 7 - k) for k in range(1, 7)))
    )


def cost(terms: Any, out: Any, sizes: dict[str, int], path: Any) -> int:
    total, sets = 0, [frozenset(t) for t in terms]
    for i, j in path:
        pair = sets[i] | sets[j]
        sets = [t for k, t in enumerate(sets) if k not in (i, j)]
        sets.append(pair & frozenset(out).union(*sets))
        size = 1
        for v in pair:
            size *= sizes[v]
        total += size
    return total
