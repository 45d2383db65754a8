"""Factorisations, what they solve, and Fourier transforms: batches, rows of any length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Given, Problem

LARGEST = 90  # rows of a matrix


def _matrix(d: Draw, dtype: str, symmetric: bool = False) -> tuple[Given, int, tuple[int, ...]]:
    """Well-conditioned matrices: something small beside the identity."""
    most = LARGEST if d.chance(0.3) else 30
    n = d.size(most)
    batch = d.shape(d.pick((0, 1, 1, 2)), d.pick((3, 20, 90)))
    a = d._values.uniform(-1, 1, (*batch, n, n)) / math.sqrt(n)
    if symmetric:
        a = a @ a.swapaxes(-1, -2)
    return d.given(a + 2 * np.eye(n), dtype, repeats=False), n, batch


def _dtype(d: Draw) -> str:
    return d.dtype(halves=0, wide=0.5)


def solve(d: Draw) -> Problem:
    dtype = _dtype(d)
    a, n, batch = _matrix(d, dtype)
    b = d.floats((*batch, n, d.size(20)), dtype, -1, 1)
    return Problem(
        (a, b), eg.linalg.solve, torch.linalg.solve, floor=0.5, looseness=8.0, dtype=dtype
    )  # rounding grows with the condition


UNARY = {"inv": torch.linalg.inv, "det": torch.linalg.det, "cholesky": torch.linalg.cholesky}


def unary(d: Draw) -> Problem:
    name, dtype = d.pick(tuple(UNARY)), _dtype(d)
    a, _, _ = _matrix(d, dtype, name == "cholesky")

    def symmetric(x: Any) -> Any:
        return (x + x.mT) / 2 if name == "cholesky" else x

    return Problem(
        (a,),
        lambda x: getattr(eg.linalg, name)(symmetric(x)),
        lambda x: UNARY[name](symmetric(x)),
        floor=0.5,
        looseness=8.0,
        dtype=dtype,
    )


def triangular(d: Draw) -> Problem:
    dtype, upper = _dtype(d), d.chance(0.5)
    a, n, batch = _matrix(d, dtype)
    b = d.floats((*batch, n, d.size(20)), dtype, -1, 1)
    return Problem(
        (a, b),
        lambda x, y: eg.linalg.solve_triangular(x, y, upper=upper),
        lambda x, y: torch.linalg.solve_triangular(x, y, upper=upper),
        floor=0.5,
        looseness=8.0,
        dtype=dtype,
    )


def values(d: Draw) -> Problem:
    """Eigenvalues and singular values: unlike vectors, they have no sign to choose."""
    name, dtype = d.pick(("eigvalsh", "svdvals")), _dtype(d)
    a, _, _ = _matrix(d, dtype, True)

    def symmetric(x: Any) -> Any:
        return (x + x.mT) / 2

    return Problem(
        (a,),
        lambda x: getattr(eg.linalg, name)(symmetric(x)),
        lambda x: getattr(torch.linalg, name)(symmetric(x)),
        floor=2.0,
        looseness=16.0,  # neighbours that nearly meet exchange their vectors
        dtype=dtype,
    )


# --- Fourier transforms --------------------------------------------------------------------------


def fourier(d: Draw) -> Problem:
    """Real and complex, of any length; the result as real numbers, so that it has a gradient."""
    shape = tuple(max(2, n) for n in d.shape(d.pick((1, 2, 2, 3)), d.elements(1 << 14)))
    axis = d.between(0, len(shape) - 1)
    name, dtype = d.pick(("rfft", "fft", "ifft")), _dtype(d)
    length = math.sqrt(shape[axis])
    kind = {"float32": "complex64", "float64": "complex128"}[dtype]

    def ours(x: eg.Tensor) -> Any:
        out = getattr(eg.fft, name)(x if name == "rfft" else x.astype(kind), axis=axis)
        return [eg.real(out), eg.imag(out)]

    def theirs(x: torch.Tensor) -> Any:
        wide = (
            x
            if name == "rfft"
            else x.to(torch.complex64 if x.dtype == torch.float32 else torch.complex128)
        )
        out = getattr(torch.fft, name)(wide, dim=axis)
        return [out.real, out.imag]

    x = d.floats(shape, dtype, -1, 1)
    return Problem((x,), ours, theirs, floor=length, dtype=dtype)


def inverse(d: Draw) -> Problem:
    shape = tuple(max(2, n) for n in d.shape(d.pick((1, 2)), d.elements(1 << 13)))
    axis, dtype = d.between(0, len(shape) - 1), _dtype(d)
    kind = {"float32": "complex64", "float64": "complex128"}[dtype]
    n = 2 * (shape[axis] - 1) + d.between(0, 1)

    def ours(a: eg.Tensor, b: eg.Tensor) -> eg.Tensor:
        return eg.fft.irfft(a.astype(kind) + b.astype(kind) * 1j, n=n, axis=axis)

    def theirs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.complex(a, b), n=n, dim=axis)

    inputs = [d.floats(shape, dtype, -1, 1) for _ in range(2)]
    return Problem(inputs, ours, theirs, floor=1.0, dtype=dtype)


SECTION = OpSection(
    "linalg",
    (
        "batched_lapack",
        "cufft",
        "fourier",
        "fourier_plan",
        "factorisations",
        "jacobi",
        "lapack",
        "library_calls",
        "matrices",
        "matrix_kernels",
        "threaded_numpy",
    ),
    {
        "solve": (1, solve),
        "inv": (1.5, unary),
        "solve_triangular": (1, triangular),
        "eigvalsh": (1, values),
        "fft": (2, fourier),
        "irfft": (1, inverse),
    },
)
