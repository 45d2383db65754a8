"""Linear algebra: results by np.linalg in float64, judged by what must hold of them.

Factors are not unique (signs, orders, vectors of equal values), and solutions of ill-conditioned
systems are far from one another; so these are judged by what they are made for: A X = B, A = Q R.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from everygrad.backends.reference.tolerance import Difference, Expected, Way, off, unit

_SLACK = 64.0  # times the size of a matrix times its norm times the rounding


class Claim(NamedTuple):
    """Something that must hold of a result: how far it is from it, and how far it may be."""

    what: str
    distance: Any
    allowed: Any


def _wide(x: Any) -> Any:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _norm(x: Any) -> Any:
    """The Frobenius norm of each matrix, with its two axes kept."""
    return np.sqrt((np.abs(x) ** 2).sum(axis=(-2, -1), keepdims=True))


def _adjoint(x: Any) -> Any:
    return x.swapaxes(-1, -2).conj()


def _limit(x: Any, size: Any = 1.0) -> Any:
    """What rounding may do to what is made of an array's last axes."""
    return _SLACK * max(1, *x.shape[-2:]) * unit(x.dtype) * size


def _orthonormal(what: str, x: Any, like: Any) -> Claim:
    inner = _adjoint(x) @ x
    return Claim(f"{what}^H {what} - 1", np.abs(inner - np.eye(x.shape[-1])), _limit(like))


def _triangle(what: str, x: Any, upper: bool) -> Claim:
    """What must be 0, exactly."""
    return Claim(what, np.abs(np.tril(x, -1) if upper else np.triu(x, 1)), 0.0)


# --- claims --------------------------------------------------------------------------------------


def _triangular_part(a: Any, upper: bool, unit: bool) -> Any:
    a = np.triu(a) if upper else np.tril(a)
    if unit:
        a[..., range(a.shape[-1]), range(a.shape[-1])] = 1
    return a


def _solves(got: Any, a: Any, b: Any) -> Iterator[Claim]:
    x, left, right = _wide(got), _wide(a), _wide(b)
    size = _norm(left) * _norm(x) + _norm(right)
    yield Claim("a x - b", np.abs(left @ x - right), _limit(a, size))


def _solves_triangle(got: Any, a: Any, b: Any, upper: bool, unit: bool) -> Iterator[Claim]:
    yield from _solves(got, _triangular_part(a, upper, unit), b)


def _inverts(got: Any, x: Any) -> Iterator[Claim]:
    inverse, held = _wide(got), _wide(x)
    size = _norm(held) * _norm(inverse)
    yield Claim("x inv - 1", np.abs(held @ inverse - np.eye(x.shape[-1])), _limit(x, size))


def _cholesky(got: Any, x: Any) -> Iterator[Claim]:
    low, held = _wide(got), _wide(x)
    roots = np.sqrt(np.abs(np.diagonal(held, axis1=-2, axis2=-1)))
    size = roots[..., :, None] * roots[..., None, :]
    yield Claim("L L^H - x", np.abs(np.tril(low @ _adjoint(low) - held)), _limit(x, size))
    yield _triangle("L above its diagonal", low, False)


def _qr_claims(q: Any, r: Any, x: Any) -> Iterator[Claim]:
    yield Claim("Q R - x", np.abs(q @ r - _wide(x)), _limit(x, _norm(_wide(x))))
    yield _orthonormal("Q", q, x)
    yield _triangle("R below its diagonal", r, True)


def _qr(got: Any, x: Any) -> Iterator[Claim]:
    got, m = _wide(got), x.shape[-2]
    yield from _qr_claims(got[..., :m, :], got[..., m:, :], x)


def _qr_complete(got: Any, x: Any) -> Iterator[Claim]:
    got, m = _wide(got), x.shape[-2]
    yield from _qr_claims(got[..., :m], got[..., m:], x)


def _hermitian(x: Any) -> Any:
    """The matrix whose lower triangle this one has."""
    held = _wide(x)
    low = np.tril(held, -1)
    diagonal = np.diagonal(held, axis1=-2, axis2=-1).real
    return low + _adjoint(low) + diagonal[..., None] * np.eye(x.shape[-1])


def _eigh(got: Any, x: Any) -> Iterator[Claim]:
    values, vectors = _wide(got)[..., :1].swapaxes(-1, -2).real, _wide(got)[..., 1:]
    held = _hermitian(x)
    size = _limit(x, _norm(held))
    yield Claim("x V - V w", np.abs(held @ vectors - vectors * values), size)
    yield _orthonormal("V", vectors, x)
    yield Claim("w falls", np.maximum(-np.diff(values, axis=-1), 0), size)


def _spectrum(values: Any, x: Any, held: Any) -> Claim:
    trace = np.trace(held, axis1=-2, axis2=-1)
    size = _limit(x, _norm(held)[..., 0, 0]) * x.shape[-1]
    return Claim("sum(w) - trace(x)", np.abs(values.sum(axis=-1) - trace), size)


def _eig(got: Any, x: Any) -> Iterator[Claim]:
    values, vectors = _wide(got)[..., :1].swapaxes(-1, -2), _wide(got)[..., 1:]
    held = _wide(x)
    yield Claim("x V - V w", np.abs(held @ vectors - vectors * values), _limit(x, _norm(held)))
    lengths = np.sqrt((np.abs(vectors) ** 2).sum(axis=-2))
    yield Claim("|v| - 1", np.abs(lengths - 1), _limit(x))
    yield _spectrum(values[..., 0, :], x, held)


def _eigvals(got: Any, x: Any) -> Iterator[Claim]:
    values, held = _wide(got), _wide(x)
    shifted = held[..., None, :, :] - values[..., None, None] * np.eye(x.shape[-1])
    least = np.linalg.svd(shifted, compute_uv=False)[..., -1]
    size = _limit(x, _norm(held)[..., 0])
    yield Claim("the least singular value of x - w", least, size)
    yield _spectrum(values, x, held)


def _svd_claims(u: Any, values: Any, v: Any, x: Any) -> Iterator[Claim]:
    """`values` as a row, `v` with the right vectors as columns."""
    k = values.shape[-1]
    made = (u[..., :k] * values) @ _adjoint(v[..., :k])
    size = _limit(x, _norm(_wide(x)))
    yield Claim("U S V^H - x", np.abs(made - _wide(x)), size)
    yield _orthonormal("U", u, x)
    yield _orthonormal("V", v, x)
    yield Claim("S rises", np.maximum(np.diff(values.real, axis=-1), 0), size)
    yield Claim("S below 0", np.maximum(-values.real, 0), 0.0)


def _svd(got: Any, x: Any) -> Iterator[Claim]:
    got, m = _wide(got), x.shape[-2]
    yield from _svd_claims(got[..., :m, :], got[..., m : m + 1, :], got[..., m + 1 :, :], x)


def _svd_complete(got: Any, x: Any) -> Iterator[Claim]:
    (m, n), got, batch = x.shape[-2:], _wide(got), x.shape[:-2]
    u = got[..., : m * m].reshape((*batch, m, m))
    values = got[..., None, m * m : m * m + min(m, n)]
    v = _adjoint(got[..., m * m + min(m, n) :].reshape((*batch, n, n)))
    yield from _svd_claims(u, values, v, x)


def _lu(got: Any, x: Any) -> Iterator[Claim]:
    m, n = x.shape[-2:]
    k = min(m, n)
    held, made = _wide(x).copy(), _wide(got)
    pivots = made[..., :k, n].real
    yield Claim("pivots that are no rows below", np.abs(pivots - _rows_below(pivots, m)), 0.0)
    order = lexsort_rows(_rows_below(pivots, m).astype(np.int64), m)
    held = np.take_along_axis(held, order[..., None], axis=-2)
    low = np.tril(made[..., :, :k], -1) + np.eye(m, k)
    high = np.triu(made[..., :k, :n])
    size = _norm(low) * _norm(high)
    yield Claim("L U - P x", np.abs(low @ high - held), _limit(x, size))
    yield Claim("|L| beyond 1", np.maximum(np.abs(low) - 1.5, 0), 0.0)


def _rows_below(pivots: Any, rows: int) -> Any:
    """The nearest whole numbers that a pivot may be."""
    return np.clip(np.rint(pivots), np.arange(pivots.shape[-1]), rows - 1)


CLAIMS: dict[str, Callable[..., Iterator[Claim]]] = {
    "solve": _solves,
    "solve_triangular": _solves_triangle,
    "inv": _inverts,
    "cholesky": _cholesky,
    "qr": _qr,
    "qr_complete": _qr_complete,
    "eigh": _eigh,
    "eig": _eig,
    "eigvals": _eigvals,
    "svd": _svd,
    "svd_complete": _svd_complete,
    "lu_factor": _lu,
}


def broken(name: str, got: Any, arrays: Any, params: dict[str, Any]) -> Difference | None:
    """The first claim that does not hold of a result; none are made of what is not finite."""
    if not got.size or not all(np.isfinite(a).all() for a in arrays):
        return None
    with np.errstate(all="ignore"):
        for what, distance, allowed in CLAIMS[name](got, *arrays, **params):
            allowed = np.broadcast_to(allowed, distance.shape)
            bad = ~(distance <= allowed)
            if bad.any():
                at = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
                count = int(np.count_nonzero(bad))
                return Difference(at, distance[at], 0, float(allowed[at]), count, what)
    return None


# --- values that are determined ------------------------------------------------------------------


def _values(x: Any) -> Any:
    return np.linalg.svd(_wide(x), compute_uv=False)


def _others(values: Any, gone: int) -> Any:
    """The product of all but the `gone` smallest singular values."""
    kept = values[..., : max(0, values.shape[-1] - gone)]
    return kept.prod(axis=-1)


def _det(x: Any) -> Expected:
    value = np.linalg.det(_wide(x)) if x.shape[-1] else np.ones(x.shape[:-2])
    values = _values(x)
    most = values[..., 0] if x.shape[-1] else 0.0
    return Expected(value, _limit(x, most * _others(values, 1) * x.shape[-1]) + off(value, x.dtype))


def _slogdet(x: Any) -> Expected:
    sign, size = np.linalg.slogdet(_wide(x))
    value = np.stack((sign, size.astype(sign.dtype)), axis=-1)
    if not x.shape[-1]:
        return Expected(value, off(value, x.dtype))
    values = _values(x)
    lost = _limit(x, values[..., 0] / values[..., -1])  # relative, of the determinant
    error = np.where(lost < 0.5, lost, np.inf)[..., None]
    return Expected(value, error + off(value, x.dtype, 4.0))


def _adjugate(x: Any) -> Expected:
    u, values, vh = np.linalg.svd(_wide(x))
    n = x.shape[-1]
    others = np.where(np.eye(n, dtype=bool), 1, values[..., None, :]).prod(axis=-1)
    turn = np.linalg.det(u) * np.linalg.det(vh)
    value = (_adjoint(vh) * others[..., None, :]) @ _adjoint(u) * turn[..., None, None]
    if not n:
        return Expected(value)
    condition = np.minimum(values[..., 0] / values[..., -1], 1 / unit(x.dtype) ** 0.5)
    size = condition * _others(values, 1) + n * values[..., 0] * _others(values, 2)
    return Expected(value, _limit(x, size)[..., None, None] + off(value, x.dtype))


def _pinv(x: Any, rtol: Any) -> Expected:
    held = _wide(x)
    rtol = np.broadcast_to(_wide(rtol).real, x.shape[:-2])
    value = np.linalg.pinv(held, rtol)
    if not x.size:
        return Expected(value)
    values = _values(x)
    bar = rtol * values[..., 0]
    near = np.abs(values - bar[..., None]) <= _limit(x, values[..., :1])
    size = _norm(value) ** 2 * _norm(held)
    undecided = near.any(axis=-1)[..., None, None]
    return Expected(value, np.where(undecided, np.inf, _limit(x, size)) + off(value, x.dtype))


def _spectral(fn: Any) -> Way:
    """Of values that move no further than the matrix does."""

    def run(x: Any) -> Expected:
        value = fn(_wide(x))
        return Expected(value, _limit(x, _norm(_wide(x))[..., 0]) + np.zeros(value.shape))

    return run


def _matrix_exp(x: Any) -> Expected:
    """A Taylor series of x / 2^s, squared s times; the error grows with each squaring."""
    held = _wide(x)
    if not x.size:
        return Expected(held)
    n, norm = x.shape[-1], np.abs(held).sum(axis=-2).max(axis=-1, initial=0)
    steps = np.ceil(np.log2(np.maximum(norm, 1e-30) / 0.5)).clip(0).astype(int)[..., None, None]
    small = held / 2.0**steps
    term = out = np.broadcast_to(np.eye(n, dtype=held.dtype), held.shape)
    for k in range(1, 20):
        term = term @ small / k
        out = out + term
    error = _limit(x, np.ones(norm.shape))[..., None, None]
    for step in range(int(steps.max(initial=0))):
        going, size = step < steps, _norm(out)
        error = np.where(going, 2 * size * error + _limit(x, size**2) / 8, error)
        out = np.where(going, out @ out, out)
    return Expected(out, np.broadcast_to(error, out.shape) + off(out, x.dtype))


def lexsort_rows(pivots: Any, size: int) -> Any:
    """The permutation that exchanging rows one after the other makes."""
    flat = pivots.reshape((-1, pivots.shape[-1])) if pivots.size else pivots.reshape((0, 0))
    orders = np.tile(np.arange(size, dtype=np.int64), (*pivots.shape[:-1], 1))
    if not orders.size:
        return orders
    for order, exchanges in zip(orders.reshape((-1, size)), flat, strict=False):
        for k, p in enumerate(exchanges.tolist()):
            order[[k, p]] = order[[p, k]]
    return orders


WAYS: dict[str, Way] = {
    "det": _det,
    "slogdet": _slogdet,
    "adjugate": _adjugate,
    "pinv": _pinv,
    "eigvalsh": _spectral(lambda x: np.linalg.eigvalsh(_hermitian(x))),
    "svdvals": _spectral(lambda x: np.linalg.svd(x, compute_uv=False)),
    "matrix_exp": _matrix_exp,
    "lexsort_rows": lambda pivots, size: Expected(lexsort_rows(pivots, size)),
}


# --- values of what is judged by claims ----------------------------------------------------------


def _beside(values: Any, vectors: Any) -> Any:
    return np.concatenate((values[..., None].astype(vectors.dtype), vectors), axis=-1)


def _thin_svd(x: Any) -> Any:
    u, values, vh = np.linalg.svd(x, full_matrices=False)
    return np.concatenate((u, values[..., None, :].astype(u.dtype), _adjoint(vh)), axis=-2)


def _whole_svd(x: Any) -> Any:
    u, values, vh = np.linalg.svd(x)
    m, n = x.shape[-2:]
    flat = ((u, m * m), (values.astype(u.dtype), min(m, n)), (vh, n * n))
    return np.concatenate([part.reshape((*x.shape[:-2], size)) for part, size in flat], axis=-1)


def _eliminated(x: Any) -> Any:
    """Gaussian elimination with the largest pivots; of complex numbers by |re| + |im|."""
    m, n = x.shape[-2:]
    out = np.zeros((*x.shape[:-1], n + 1), x.dtype)
    for at in np.ndindex(x.shape[:-2]):
        work = x[at].copy()
        for k in range(min(m, n)):
            column = work[k:, k]
            p = k + int(np.argmax(np.abs(column.real) + np.abs(column.imag)))
            work[[k, p]] = work[[p, k]]
            out[(*at, k, n)] = p
            if work[k, k] != 0:
                work[k + 1 :, k] /= work[k, k]
            work[k + 1 :, k + 1 :] -= np.outer(work[k + 1 :, k], work[k, k + 1 :])
        out[(*at, slice(None), slice(n))] = work
    return out


CHOSEN: dict[str, Callable[..., Any]] = {
    "solve": np.linalg.solve,
    "solve_triangular": lambda a, b, upper, unit: np.linalg.solve(
        _triangular_part(a, upper, unit), b
    ),
    "inv": np.linalg.inv,
    "cholesky": np.linalg.cholesky,
    "qr": lambda x: np.concatenate(np.linalg.qr(x), axis=-2),
    "qr_complete": lambda x: np.concatenate(np.linalg.qr(x, mode="complete"), axis=-1),
    "eigh": lambda x: _beside(*np.linalg.eigh(_hermitian(x))),
    "eig": lambda x: _beside(*(part.astype(np.complex128) for part in np.linalg.eig(x))),
    "eigvals": lambda x: np.linalg.eigvals(x).astype(np.complex128),
    "svd": _thin_svd,
    "svd_complete": _whole_svd,
    "lu_factor": _eliminated,
}


def chosen(name: str, arrays: Any, params: dict[str, Any]) -> Any:
    """One of the results that would be right."""
    return CHOSEN[name](*[_wide(a) for a in arrays], **params)
