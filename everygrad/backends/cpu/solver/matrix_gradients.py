"""The gradients of factorisations: what their rules say, in one native function for small matrices
(`native_gradients`), by NumPy for others, in a fifth of the calls.

A kernel serves the plain case, in which all values are apart, all ranks are full and nothing
depends on a phase. Of any other it says NotImplemented: the definition in ops then looks closer,
and refuses what has no derivative by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.solver.lapack import SMALL_GRADIENT, inv, solve_triangular


@lru_cache(maxsize=64)
def _masks(n: int, dtype: Any) -> tuple[Any, Any, Any]:
    """Factors that keep the lower triangle; that without its diagonal; and half of the diagonal
    with all below it."""
    lower = np.tril(np.ones((n, n), dtype))
    below = np.tril(lower, -1)
    return lower, below, (lower + below) / 2


def _adjoint(x: Any) -> Any:
    return x.mT.conj() if x.dtype.kind == "c" else x.mT


def _eps(dtype: Any) -> float:
    return float(np.finfo(dtype).eps)


def _on_diagonal(x: Any, values: Any) -> None:
    """Adds values to the diagonals of x, in its memory; x is contiguous."""
    n = x.shape[-1]
    x.reshape((*x.shape[:-2], n * n), copy=False)[..., :: n + 1] += values


def cholesky_vjp(g: Any, out: Any) -> Any:
    if not out.size:
        return np.zeros_like(out)
    n = out.shape[-1]
    if n**3 <= SMALL_GRADIENT:
        return lazy_native.native_gradients().gradient("cholesky", g, out, n, n)
    lower, _, half = _masks(out.shape[-1], out.real.dtype)
    upper = _adjoint(out)
    inner = solve_triangular(upper, (upper @ (g * lower)) * half, upper=True, unit=False)
    inner = _adjoint(solve_triangular(upper, _adjoint(inner), upper=True, unit=False))
    inner = inner + _adjoint(inner)
    inner *= 0.5
    return inner


def qr_vjp(g: Any, out: Any) -> Any:
    if not out.size:
        return NotImplemented
    n = out.shape[-1]
    m = out.shape[-2] - n
    if m * n * n <= SMALL_GRADIENT:
        return lazy_native.native_gradients().gradient("qr", g, out, m, n)
    (q, r), (gq, gr) = ((x[..., :m, :], x[..., m:, :]) for x in (out, g))
    sizes = np.abs(r.diagonal(axis1=-2, axis2=-1))
    if not (sizes > sizes.max(axis=-1, keepdims=True) * (_eps(out.dtype) * n)).all():
        return NotImplemented
    lower, below, _ = _masks(n, out.real.dtype)
    inner = r @ _adjoint(gr * lower.T) - _adjoint(gq) @ q
    low = inner * below
    both = low + _adjoint(low)
    _on_diagonal(both, inner.diagonal(axis1=-2, axis2=-1).real)
    made = gq + q @ both
    return _adjoint(solve_triangular(r, _adjoint(made), upper=True, unit=False))


def _gaps(values: Any) -> Any:
    """values_j - values_i, with infinity on the diagonal; None where two count as equal."""
    n = values.shape[-1]
    gaps = values[..., None, :] - values[..., None]
    _on_diagonal(gaps, np.inf)
    size = np.abs(values).max(axis=-1)[..., None, None]
    near = size * (4.0 * math.sqrt(n) * _eps(values.dtype))
    return gaps if (np.abs(gaps) > near).all() else None


def _phaseless(x: Any, diagonal: Any, beside: Any) -> bool:
    """Whether a diagonal that says how the result changes with the phase is real."""
    if x.dtype.kind != "c":
        return True
    size = np.maximum(np.abs(x).max(axis=(-2, -1)), np.abs(beside).max(axis=-1))[..., None]
    return bool((np.abs(diagonal.imag) <= size * _eps(x.dtype) ** 0.5 + 1e-30).all())


def eigh_vjp(g: Any, out: Any) -> Any:
    n = out.shape[-2]
    if n**3 <= SMALL_GRADIENT:
        return lazy_native.native_gradients().gradient("eigh", g, out, n, n)
    values, vectors = out[..., 0].real, out[..., 1:]
    gw, gv = g[..., 0], g[..., 1:]
    gaps = _gaps(values)
    if gaps is None:
        return NotImplemented
    back = _adjoint(vectors)
    inner = back @ gv
    if not _phaseless(inner, inner.diagonal(axis1=-2, axis2=-1), gw):
        return NotImplemented
    inner = (inner - _adjoint(inner)) / (gaps * 2)
    _on_diagonal(inner, gw.real)
    return vectors @ inner @ back


def svd_vjp(g: Any, out: Any, m: int) -> Any:
    k = out.shape[-1]
    n = out.shape[-2] - m - 1
    if m * n * k <= SMALL_GRADIENT:
        return lazy_native.native_gradients().gradient("svd", g, out, m, n)
    u, values, v = out[..., :m, :], out[..., m, :].real, out[..., m + 1 :, :]
    gu, gs, gv = g[..., :m, :], g[..., m, :], g[..., m + 1 :, :]
    gaps = _gaps(values)
    size = values.max(axis=-1, keepdims=True)
    if gaps is None or not (values > size * (_eps(values.dtype) * max(m, n))).all():
        return NotImplemented
    uh, vh = _adjoint(u), _adjoint(v)
    left, right = uh @ gu, vh @ gv
    phases = left.diagonal(axis1=-2, axis2=-1)
    if out.dtype.kind == "c":
        phase = phases + right.diagonal(axis1=-2, axis2=-1)
        if not (_phaseless(left, phase, gs) and _phaseless(right, phase, gs)):
            return NotImplemented
    across, down = values[..., None, :], values[..., None]
    inner = (left - _adjoint(left)) * across + down * (right - _adjoint(right))
    inner /= gaps * (across + down)
    diagonal = gs.real
    if out.dtype.kind == "c":
        diagonal = diagonal + 1j * phases.imag / values
    _on_diagonal(inner, diagonal)
    inner = u @ inner
    if m > k:
        inner += (gu - u @ left) / across
    made = inner @ vh
    if n > k:
        made += u @ _adjoint((gv - v @ right) / across)
    return made


def slogdet_vjp(g: Any, out: Any, x: Any) -> Any:
    n = x.shape[-1]
    if x.size and n**3 <= SMALL_GRADIENT:
        found = lazy_native.native_gradients().gradient("slogdet", g, x, n, n, (out,))
        if found is not NotImplemented:
            return found
    scale = g[..., 1].real
    if x.dtype.kind == "c":
        scale = scale + 1j * (g[..., 0] * out[..., 0].conj()).imag
    return scale[..., None, None] * _adjoint(inv(x))


def lstsq_vjp(g: Any, out: Any, a: Any, b: Any, rtol: float) -> Any:
    """Where all ranks are full; `rtol` was looked at when they were found."""
    m, n = a.shape[-2:]
    k = b.shape[-1]
    if not a.size or not b.size or m * n * (min(m, n) + k) > SMALL_GRADIENT:
        return NotImplemented
    native = lazy_native.native_gradients()
    return native.gradient("lstsq", g, a, m, n, (b, out), k=k, width=n + k)


KERNELS: dict[str, Callable[..., Any]] = {
    "cholesky_vjp": cholesky_vjp,
    "qr_vjp": qr_vjp,
    "eigh_vjp": eigh_vjp,
    "svd_vjp": svd_vjp,
    "slogdet_vjp": slogdet_vjp,
    "lstsq_vjp": lstsq_vjp,
}
