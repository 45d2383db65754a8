"""Factorisations and least squares, by what no choice of signs, phases or order changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.makers.complexes import of_parts, of_torchs_parts
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Given, Problem


def _dtype(d: Draw) -> str:
    return d.dtype(halves=0, wide=0.5)


def _is_complex(d: Draw) -> bool:
    return d.chance(0.3) and not d.device.startswith("webgpu")  # which has none of them


def _orthogonal(d: Draw, batch: tuple[int, ...], n: int, whole: bool) -> Any:
    a = d._values.standard_normal((*batch, n, n))
    if whole:
        a = a + 1j * d._values.standard_normal((*batch, n, n))
    return np.linalg.qr(a)[0]


def _spaced(d: Draw, batch: tuple[int, ...], n: int) -> Any:
    """Values between 1 and 4 that keep apart, in any order."""
    steps = 1 + 3 * (np.arange(n) + 0.6 * d._values.random((*batch, n))) / n
    return d._values.permuted(steps, axis=-1)


def _sizes(d: Draw) -> tuple[int, int, tuple[int, ...]]:
    most = d.pick((6, 24, 40, 70, 110))  # gradients change their ways at 32
    batch = d.shape(d.pick((0, 1, 1, 2)), d.pick((3, 60)) if most < 70 else 3)
    least = 33 if most >= 70 else 1
    return d.size(most, least), d.size(most, least), tuple(max(1, n) for n in batch)


def _parts(d: Draw, a: Any, dtype: str, whole: bool) -> list[Given]:
    """A matrix, or its real and imaginary part."""
    arrays = (a.real, a.imag) if whole else (a.real,)
    return [d.given(part, dtype, repeats=False) for part in arrays]


def _rectangular(d: Draw, m: int, n: int, batch: tuple[int, ...], whole: bool) -> Any:
    """Singular values that keep apart, and from zero."""
    k = min(m, n)
    u, v = (_orthogonal(d, batch, size, whole) for size in (m, n))
    return u[..., :k] * _spaced(d, batch, k)[..., None, :] @ v.conj().swapaxes(-1, -2)[..., :k, :]


Fn = Callable[..., Any]


def _problem(inputs: list[Given], f: Fn, g: Fn, whole: bool, count: int) -> Problem:
    return Problem(
        inputs,
        of_parts(f, count) if whole else f,
        of_torchs_parts(g, count) if whole else g,
        floor=1.0,
        looseness=16.0,  # what lies near to each other mixes
        dtype=inputs[0].array.dtype.name,
    )


def qr(d: Draw) -> Problem:
    """With a diagonal of R that is positive."""
    (m, n, batch), dtype, whole = _sizes(d), _dtype(d), _is_complex(d)
    if m < n and d.chance(0.6):
        m, n = n, m
    a = _rectangular(d, m, n, batch, whole)
    mode = d.pick(("reduced", "reduced", "complete"))
    k = min(m, n)  # of a complete Q the other columns may be any

    def ours(x: Any) -> Any:
        q, r = eg.linalg.qr(x, mode=mode)
        q, r = q[..., :k], r[..., :k, :]
        signs = eg.sign(eg.real(eg.diagonal(r, axis1=-2, axis2=-1))).detach()
        return [q * signs[..., None, :], r * signs[..., None]]

    def theirs(x: Any) -> Any:
        q, r = torch.linalg.qr(x)
        signs = torch.sign(r.diagonal(dim1=-2, dim2=-1).real).detach()
        return [q * signs[..., None, :], r * signs[..., None]]

    inputs = _parts(d, a, dtype, whole)
    if mode == "complete":  # whose derivative NumPy and PyTorch have not
        inputs = [replace(g, grad=False) for g in inputs]
    return _problem(inputs, ours, theirs, whole, 1)


def eigh(d: Draw) -> Problem:
    (n, _, batch), dtype, whole = _sizes(d), _dtype(d), _is_complex(d)
    v = _orthogonal(d, batch, n, whole)
    a = v * _spaced(d, batch, n)[..., None, :] @ v.conj().swapaxes(-1, -2)

    def ours(x: Any) -> Any:
        values, vectors = eg.linalg.eigh((x + eg.conj(x).mT) / 2)
        return [values, eg.real(eg.conj(vectors) * vectors)]

    def theirs(x: Any) -> Any:
        values, vectors = torch.linalg.eigh((x + x.mH) / 2)
        return [values, (vectors.conj() * vectors).real]

    return _problem(_parts(d, a, dtype, whole), ours, theirs, whole, 1)


def svd(d: Draw) -> Problem:
    (m, n, batch), dtype, whole = _sizes(d), _dtype(d), _is_complex(d)
    a = _rectangular(d, m, n, batch, whole)

    def ours(x: Any) -> Any:
        u, s, vh = eg.linalg.svd(x, full_matrices=False)
        return [s, eg.real(eg.conj(u) * u), eg.real(eg.conj(vh) * vh)]

    def theirs(x: Any) -> Any:
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        return [s, (u.conj() * u).real, (vh.conj() * vh).real]

    return _problem(_parts(d, a, dtype, whole), ours, theirs, whole, 1)


def _nearest(a: Any, b: Any) -> list[Any]:
    x = torch.linalg.pinv(a) @ b
    left = a @ x - b
    return [x, (left * left.conj()).real.sum(-2)]


def lstsq(d: Draw) -> Problem:
    """By the pseudo-inverse: the smallest of the nearest solutions."""
    (m, n, batch), dtype, whole = _sizes(d), _dtype(d), _is_complex(d)
    a, k = _rectangular(d, m, n, batch, whole), d.size(9)
    residuals = m > n and d.chance(0.5)
    b = d._values.uniform(-1, 1, (*batch, m, k)) + 1j * d._values.uniform(-1, 1, (*batch, m, k))
    return _problem(
        [*_parts(d, a, dtype, whole), *_parts(d, b, dtype, whole)],
        lambda x, y: list(eg.linalg.lstsq(x, y))[: 1 + residuals],
        lambda x, y: _nearest(x, y)[: 1 + residuals],
        whole,
        2,
    )


def lu(d: Draw) -> Problem:
    """Of matrices whose rows are far from a tie: one large element in each column."""
    (n, _, _), dtype, whole = _sizes(d), _dtype(d), _is_complex(d)
    batch = d.pick(((), (2,), (50,), (3, 4)))
    a = d._values.uniform(-1, 1, (*batch, n, n)) + 1j * d._values.uniform(-1, 1, n) * whole
    a = a / n + 4 * np.eye(n)[::-1]
    return _problem(
        _parts(d, a, dtype, whole),
        lambda x: list(eg.linalg.lu(x))[1:],
        lambda x: list(torch.linalg.lu(x))[1:],
        whole,
        1,
    )


def slogdet(d: Draw) -> Problem:
    (n, _, batch), dtype, whole = _sizes(d), _dtype(d), _is_complex(d)
    a = _rectangular(d, n, n, batch, whole)
    return _problem(
        _parts(d, a, dtype, whole),
        lambda x: list(eg.linalg.slogdet(x)),
        lambda x: list(torch.linalg.slogdet(x)),
        whole,
        1,
    )


def triangular(d: Draw) -> Problem:
    """With a diagonal that is not read."""
    (n, k, batch), dtype, whole = _sizes(d), _dtype(d), _is_complex(d)
    upper, shape = d.chance(0.5), (*batch, n, n)
    a = d._values.uniform(-1, 1, shape) / n + 1j * d._values.uniform(-1, 1, shape) / n
    b = d._values.uniform(-1, 1, (*batch, n, k)) + 1j * d._values.uniform(-1, 1, (*batch, n, k))
    return _problem(
        [*_parts(d, a, dtype, whole), *_parts(d, b, dtype, whole)],
        lambda x, y: eg.linalg.solve_triangular(x, y, upper=upper, unitriangular=True),
        lambda x, y: torch.linalg.solve_triangular(x, y, upper=upper, unitriangular=True),
        whole,
        2,
    )


SECTION = OpSection(
    "factorisations",
    (
        "batched_lapack",
        "factorisations",
        "jacobi",
        "lapack",
        "matrices",
        "matrix_kernels",
        "native_factors",
        "native_gradients",
        "native_lstsq",
    ),
    {
        "qr": (1, qr),
        "eigh": (1, eigh),
        "svd": (1, svd),
        "lstsq": (1, lstsq),
        "lu": (1, lu),
        "slogdet": (0.5, slogdet),
        "unitriangular": (0.5, triangular),
    },
)
