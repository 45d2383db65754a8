"""References for linear algebra, by NumPy, SciPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def _torch(x: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x))


def solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    out = torch.linalg.solve_triangular(
        _torch(a), _torch(b), upper=upper, left=left, unitriangular=unitriangular
    )
    return out.numpy()


def lexsort_rows(pivots: Any, size: int) -> Any:
    out = np.zeros((*pivots.shape[:-1], size), np.int64)
    for place in np.ndindex(pivots.shape[:-1]):
        order = list(range(size))
        for k, p in enumerate(pivots[place]):
            order[k], order[p] = order[p], order[k]
        out[place] = order
    return out


def lu_factor(a: Any) -> Any:
    return torch.linalg.lu_factor(_torch(a)).LU.numpy()


def lu(a: Any) -> Any:
    return tuple(t.numpy() for t in torch.linalg.lu(_torch(a))[1:])


def lu_solve(factors: Any, pivots: Any, b: Any) -> Any:
    return torch.linalg.lu_solve(_torch(factors), _torch(pivots).int(), _torch(b)).numpy()


def cholesky_solve(b: Any, factor: Any, upper: bool = False) -> Any:
    half = np.triu(factor) if upper else np.tril(factor)
    adjoint = half.mT.conj()
    return np.linalg.solve(adjoint @ half if upper else half @ adjoint, b)


def _firm(x: Any) -> Any:
    return x * 0.25 + 2 * np.eye(x.shape[-1])


def solve(a: Any, b: Any) -> Any:
    a = _firm(a)
    return np.linalg.solve(a, b[:, None])[..., 0] if b.ndim == 1 else np.linalg.solve(a, b)


def inv(x: Any) -> Any:
    return np.linalg.inv(_firm(x))


def cholesky(x: Any, *, upper: bool = False) -> Any:
    out = np.linalg.cholesky((x + x.mT.conj()) * 0.125 + 2 * np.eye(x.shape[-1]))
    return out.mT.conj() if upper else out


def _gradient(fn: Any, g: Any, x: Any, squares: bool = False) -> Any:
    """PyTorch's gradient of x from that of what fn makes of it, packed, or of half its squares."""
    t = _torch(x).requires_grad_()
    out = fn(t)
    seed = _torch(g) * out.detach() if squares else _torch(g)
    return torch.autograd.grad(out, t, seed)[0].numpy()


def cholesky_vjp(g: Any, x: Any) -> Any:
    made = (x + x.mT) * 0.125 + 2 * np.eye(x.shape[-1])
    return _gradient(torch.linalg.cholesky, g, made)


def qr_vjp(g: Any, x: Any) -> Any:
    made = x * 0.25 + 2 * np.eye(*x.shape[-2:])
    return _gradient(lambda t: torch.cat(torch.linalg.qr(t), -2), g, made)


def eigh_vjp(g: Any, x: Any) -> Any:
    def packed(t: Any) -> Any:
        values, vectors = torch.linalg.eigh(t)
        return torch.cat([values[..., None], vectors], -1)

    out = _gradient(packed, g, _hermitian(x), squares=True)
    return (out + out.mT) / 2


def svd_vjp(g: Any, x: Any, m: int) -> Any:
    def packed(t: Any) -> Any:
        u, values, vh = torch.linalg.svd(t, full_matrices=False)
        return torch.cat([u, values[..., None, :], vh.mT], -2)

    return _gradient(packed, g, _stepped(x), squares=True)


def qr_complete(x: Any) -> Any:
    q, r = np.linalg.qr(x * 0.25 + 2 * np.eye(*x.shape[-2:]), mode="complete")
    return q[..., : x.shape[-1]], r


def qr(x: Any, *, mode: str = "reduced") -> Any:
    return tuple(np.linalg.qr(x * 0.25 + 2 * np.eye(*x.shape[-2:]), mode=mode))


def householder_product(a: Any, tau: Any) -> Any:
    return torch.linalg.householder_product(_torch(a), _torch(tau)).numpy()


def _hermitian(x: Any) -> Any:
    return (x + x.mT.conj()) * 0.125 + np.diag(2.0 * np.arange(x.shape[-1]))


def eigh(x: Any) -> Any:
    values, vectors = np.linalg.eigh(_hermitian(x))
    return values, np.abs(vectors) ** 2


def eigvalsh(x: Any) -> Any:
    return np.linalg.eigvalsh(_hermitian(x))


def _lopsided(x: Any) -> Any:
    return x * 0.125 + np.diag(2.0 * np.arange(x.shape[-1]))


def eig(x: Any) -> Any:
    values, vectors = np.linalg.eig(_lopsided(x))
    return values.astype(np.complex128), np.abs(vectors) ** 2


def eigvals(x: Any) -> Any:
    return np.linalg.eigvals(_lopsided(x)).astype(np.complex128)


def _stepped(x: Any) -> Any:
    m, n = x.shape[-2:]
    return x * 0.25 + np.diag(2.0 * np.arange(max(m, n)) + 2)[:m, :n]


def svd(x: Any) -> Any:
    u, values, vh = np.linalg.svd(_stepped(x), full_matrices=False)
    return np.abs(u) ** 2, values, np.abs(vh) ** 2


def svdvals(x: Any) -> Any:
    return np.linalg.svd(_stepped(x), compute_uv=False)


def pinv(x: Any) -> Any:
    return np.linalg.pinv(_stepped(x))


def matrix_rank(x: Any) -> Any:
    return np.linalg.matrix_rank(_stepped(x))


def lstsq(a: Any, b: Any) -> Any:
    a = _stepped(a)
    x = np.linalg.pinv(a) @ b
    if a.shape[-2] <= a.shape[-1]:
        return x
    return x, (np.abs(a @ x - b) ** 2).sum(axis=-2)


def lstsq_vjp(g: Any, a: Any, b: Any) -> Any:
    a, g = _stepped(a), g[..., :-1, :]
    p = np.linalg.pinv(a)
    x, of_b = p @ b, p.mT.conj() @ g
    of_a = (b - a @ x) @ (p @ of_b).mT.conj() - of_b @ x.mT.conj()
    of_a = of_a + p.mT.conj() @ x @ (g - a.mT.conj() @ of_b).mT.conj()
    return np.concatenate([of_a, of_b], axis=-1)


def matrix_power(x: Any, n: int) -> Any:
    return np.linalg.matrix_power(_firm(x), n)


def cond(x: Any, p: Any = None) -> Any:
    return np.linalg.cond(_stepped(x), p)


def einsum(equation: str, *xs: Any) -> Any:
    return np.einsum(equation, *xs)


def multi_dot(tensors: Any) -> Any:
    return np.linalg.multi_dot(tensors)
