"""Gradients of factorisations, and least squares, by np.linalg in float64.

Matrices are inverted as a whole, where kernels solve triangles; what rounding may do grows with the
condition of what is inverted, and with the smallest gap between two values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad.backends.reference.tolerance import Expected, Way, off, unit

_SLACK = 64.0  # times the size of a matrix times its norm times the rounding


def _wide(x: Any) -> Any:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _adjoint(x: Any) -> Any:
    return x.swapaxes(-1, -2).conj()


def _norm(x: Any) -> Any:
    return np.sqrt((np.abs(x) ** 2).sum(axis=(-2, -1), keepdims=True))


def _within(value: Any, like: Any, *factors: Any) -> Expected:
    """A value that may be off by the rounding of `like` times these sizes."""
    error = _SLACK * max(1, *like.shape[-2:]) * unit(like.dtype)
    for size in factors:
        error = error * size
    return Expected(value, np.broadcast_to(error, value.shape) + off(value, like.dtype))


def _half_above(x: Any) -> Any:
    """The upper triangle and its adjoint, the real part of the diagonal once."""
    upper = np.triu(x, 1)
    diagonal = np.diagonal(x, axis1=-2, axis2=-1).real
    return upper + _adjoint(upper) + diagonal[..., None] * np.eye(x.shape[-1])


def _cholesky_vjp(g: Any, out: Any) -> Expected:
    if not out.size:
        return Expected(_wide(out))
    low, slope = _wide(out), np.tril(_wide(g))
    inverse = np.linalg.inv(low)
    inner = np.tril(_adjoint(low) @ slope)
    inner = inner - 0.5 * np.diagonal(inner, axis1=-2, axis2=-1)[..., None] * np.eye(low.shape[-1])
    made = _adjoint(inverse) @ inner @ inverse
    sizes = _norm(inverse) ** 3, _norm(low) ** 2, _norm(slope)
    return _within((made + _adjoint(made)) / 2, out, *sizes)


def _qr_vjp(g: Any, out: Any) -> Expected:
    n = out.shape[-1]
    m = out.shape[-2] - n
    if not out.size:
        return Expected(_wide(out)[..., :m, :])
    q, r = _wide(out)[..., :m, :], _wide(out)[..., m:, :]
    of_q, of_r = _wide(g)[..., :m, :], np.triu(_wide(g)[..., m:, :])
    inverse = np.linalg.inv(r)
    both = _half_above(of_r @ _adjoint(r) - _adjoint(q) @ of_q)
    made = (of_q + q @ both) @ _adjoint(inverse)
    sizes = _norm(of_q) + _norm(r) * _norm(of_r), _norm(inverse) ** 2, 1 + _norm(r)
    return _within(made, out, *sizes)


def _gaps(values: Any) -> tuple[Any, Any]:
    """1 / (value j - value i), 0 where they are equal; and the size of the largest."""
    gaps = values[..., None, :] - values[..., :, None]
    near = 1e-12 * np.abs(values).max(axis=-1, keepdims=True)[..., None]
    inverse = np.where(np.abs(gaps) > near, 1 / np.where(gaps == 0, 1, gaps), 0.0)
    return inverse, np.abs(inverse).max(axis=(-2, -1), keepdims=True)


def _eigh_vjp(g: Any, out: Any) -> Expected:
    if not out.size:
        return Expected(_wide(out)[..., 1:])
    values, vectors = _wide(out)[..., 0].real, _wide(out)[..., 1:]
    of_values, of_vectors = _wide(g)[..., 0].real, _wide(g)[..., 1:]
    inverse, largest = _gaps(values)
    inner = _adjoint(vectors) @ of_vectors
    inner = 0.5 * (inner - _adjoint(inner)) * inverse
    inner = inner + of_values[..., None] * np.eye(values.shape[-1])
    size = np.abs(values).max(axis=-1)[..., None, None]
    return _within(vectors @ inner @ _adjoint(vectors), out, _norm(_wide(g)),
                   (1 + largest) * (1 + largest * size))  # fmt: skip


def _svd_vjp(g: Any, out: Any, m: int) -> Expected:
    k = out.shape[-1]
    n = out.shape[-2] - m - 1
    if not out.size:
        return Expected(np.zeros((*out.shape[:-2], m, n), _wide(out).dtype))
    parts = [(x[..., :m, :], x[..., m, :].real, x[..., m + 1 :, :]) for x in map(_wide, (out, g))]
    (u, values, v), (of_u, of_values, of_v) = parts
    inverse, largest = _gaps(values)
    sums = values[..., None, :] + values[..., :, None]
    scale = 1 / values[..., None, :]
    left, right = _adjoint(u) @ of_u, _adjoint(v) @ of_v
    inner = (left - _adjoint(left)) * values[..., None, :]
    inner = inner + values[..., :, None] * (right - _adjoint(right))
    inner = inner * inverse / sums
    turned = np.diagonal(left, axis1=-2, axis2=-1).imag / values if out.dtype.kind == "c" else 0.0
    inner = inner + (of_values + 1j * turned if out.dtype.kind == "c" else of_values)[
        ..., None
    ] * np.eye(k)
    made = u @ inner @ _adjoint(v)
    made = made + (of_u - u @ left) * scale @ _adjoint(v)
    made = made + u @ _adjoint((of_v - v @ right) * scale)
    most = np.abs(scale).max(axis=(-2, -1), keepdims=True)
    size = np.abs(values).max(axis=-1)[..., None, None]
    worst = 1 + largest + most
    return _within(made, out, _norm(_wide(g)), worst * (1 + worst * size))


def _slogdet_vjp(g: Any, out: Any, x: Any) -> Expected:
    if not x.size:
        return Expected(_wide(x))
    inverse = np.linalg.inv(_wide(x))
    scale = _wide(g)[..., 1].real
    if x.dtype.kind == "c":
        scale = scale + 1j * (_wide(g)[..., 0] * _wide(out)[..., 0].conj()).imag
    scale = scale[..., None, None]
    value = scale * _adjoint(inverse)
    return _within(value, x, np.abs(scale), _norm(inverse) ** 2, 1 + _norm(_wide(x)))


# --- least squares -------------------------------------------------------------------------------


def _lstsq(a: Any, b: Any, rtol: float) -> Expected:
    """The smallest of the nearest solutions, and below it a row of ranks."""
    left, right = _wide(a), _wide(b)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    width = b.shape[-1]
    if not left.size:
        return Expected(np.zeros((*batch, a.shape[-1] + 1, width), right.dtype))
    inverse = np.linalg.pinv(left, rcond=rtol)
    ranks = np.linalg.matrix_rank(left, tol=None, rtol=rtol)[..., None, None]
    x = np.broadcast_to(inverse @ right, (*batch, a.shape[-1], width))
    row = np.broadcast_to(ranks, (*batch, 1, width)).astype(x.dtype)
    condition = 1 + _norm(left) * _norm(inverse)
    found = _within(x, a, condition**2, _norm(inverse) * _norm(right))
    error = np.concatenate((found.error, np.zeros(row.shape)), axis=-2)
    return Expected(np.concatenate((x, row), axis=-2), error)


def _lstsq_vjp(g: Any, out: Any, a: Any, b: Any, rtol: float) -> Expected:
    """The gradients of a and b side by side."""
    left, right, slope = _wide(a), _wide(b), _wide(g)[..., :-1, :]
    shape = (*a.shape[:-1], a.shape[-1] + b.shape[-1])
    if not left.size:
        return Expected(np.zeros(shape, left.dtype))
    inverse, x = np.linalg.pinv(left, rcond=rtol), _wide(out)[..., :-1, :]
    of_b = _adjoint(inverse) @ slope
    of_a = (right - left @ x) @ _adjoint(inverse @ of_b) - of_b @ _adjoint(x)
    of_a = of_a + _adjoint(inverse) @ x @ _adjoint(slope - _adjoint(left) @ of_b)
    condition = 1 + _norm(left) * _norm(inverse)
    sizes = 1 + _norm(inverse) * _norm(right) + _norm(x)
    return _within(
        np.concatenate([of_a, of_b], axis=-1),
        a,
        condition**3,
        (1 + _norm(inverse)) * _norm(slope) * sizes,
    )


def _lstsq_residuals(a: Any, x: Any, b: Any) -> Expected:
    left = np.abs(_wide(a) @ _wide(x) - _wide(b))
    sizes = np.abs(_wide(a)) @ np.abs(_wide(x)) + np.abs(_wide(b))
    c = _SLACK * max(1, *a.shape[-2:]) * unit(a.dtype)
    value = (left * left).sum(axis=-2)
    return Expected(value, c * (sizes * (left + c * sizes)).sum(axis=-2) + off(value, a.dtype))


WAYS: dict[str, Way] = {
    "cholesky_vjp": _cholesky_vjp,
    "qr_vjp": _qr_vjp,
    "eigh_vjp": _eigh_vjp,
    "svd_vjp": _svd_vjp,
    "slogdet_vjp": _slogdet_vjp,
    "lstsq": _lstsq,
    "lstsq_vjp": _lstsq_vjp,
    "lstsq_ranks": lambda packed: Expected(packed[..., -1, 0].real.astype(np.int64)),
    "lstsq_residuals": _lstsq_residuals,
}
