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
    n = d.size(most, 33 if most == LARGEST else 1)  # gradients change their ways at 32
    batch = d.shape(d.pick((0, 1, 1, 2)), d.pick((3, 20, 90)) if n < 33 else 3)
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


_KINDS = {"float32": "complex64", "float64": "complex128"}
_NORMS = ("backward", "backward", "ortho", "forward")


def _parts_of(out: Any, lib: Any) -> list[Any]:
    """As real numbers, so that there are gradients."""
    return [lib.real(out), lib.imag(out)] if "complex" in str(out.dtype) else [out]


def _lengths(d: Draw, axes: int) -> tuple[int, ...]:
    shape = list(d.shape(axes, d.elements(1 << 14)))
    if axes > 1 and d.chance(0.2):  # rows of a length that only NumPy serves, on several threads
        shape = [*(1,) * (axes - 2), d.between(200, 400), d.pick((11 * 13, 17 * 23, 509))]
    return tuple(max(1, n) for n in shape)


def fourier(d: Draw) -> Problem:
    """Along one axis, of real and complex numbers, of any length."""
    shape = _lengths(d, d.pick((1, 2, 2, 3)))
    axis = d.between(0, len(shape) - 1)
    if len(shape) > 1 and d.chance(0.05):  # no rows
        shape = tuple(n if k == axis else 0 for k, n in enumerate(shape))
    name, dtype = d.pick(("rfft", "fft", "ifft")), _dtype(d)
    real, norm = name == "rfft" or d.chance(0.3), d.pick(_NORMS)
    length = math.sqrt(shape[axis])

    def ours(x: eg.Tensor) -> Any:
        wide = x if real else x.astype(_KINDS[dtype])
        return _parts_of(getattr(eg.fft, name)(wide, axis=axis, norm=norm), eg)

    def theirs(x: torch.Tensor) -> Any:
        if not x.numel():  # which MKL refuses
            n = shape[axis] // 2 + 1 if name == "rfft" else shape[axis]
            out = torch.zeros([n if k == axis else m for k, m in enumerate(shape)]) + x.sum()
            return [out, out]
        return _parts_of(getattr(torch.fft, name)(x, dim=axis, norm=norm) + 0j, torch)

    x = d.floats(shape, dtype, -1, 1)
    return Problem((x,), ours, theirs, floor=length, dtype=dtype)


def several_axes(d: Draw) -> Problem:
    """Along some axes, one after the other, of real and complex numbers."""
    shape = tuple(max(1, n) for n in d.shape(d.pick((2, 3, 3)), d.elements(1 << 13)))
    axes = tuple(d.permuted(len(shape))[: d.between(1, len(shape))])
    name, dtype, norm = d.pick(("fftn", "ifftn", "rfftn")), _dtype(d), d.pick(_NORMS)
    real = name == "rfftn" or d.chance(0.3)

    def ours(x: eg.Tensor) -> Any:
        wide = x if real else x.astype(_KINDS[dtype])
        return _parts_of(getattr(eg.fft, name)(wide, axes=axes, norm=norm), eg)

    def theirs(x: torch.Tensor) -> Any:
        return _parts_of(getattr(torch.fft, name)(x, dim=axes, norm=norm) + 0j, torch)

    x = d.floats(shape, dtype, -1, 1)
    return Problem((x,), ours, theirs, floor=math.sqrt(math.prod(shape)), dtype=dtype)


def inverse(d: Draw) -> Problem:
    shape = tuple(max(2, n) for n in d.shape(d.pick((1, 2)), d.elements(1 << 13)))
    axis, dtype, norm = d.between(0, len(shape) - 1), _dtype(d), d.pick(_NORMS)
    n = 2 * (shape[axis] - 1) + d.between(0, 1)
    if len(shape) > 1 and d.chance(0.05):  # no rows
        shape = tuple(n if k == axis else 0 for k, n in enumerate(shape))

    def ours(a: eg.Tensor, b: eg.Tensor) -> eg.Tensor:
        whole = a.astype(_KINDS[dtype]) + b.astype(_KINDS[dtype]) * 1j
        return eg.fft.irfft(whole, n=n, axis=axis, norm=norm)

    def theirs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if not a.numel():  # which MKL refuses
            sizes = [n if k == axis else m for k, m in enumerate(shape)]
            return torch.zeros(sizes) + a.sum() + b.sum()
        return torch.fft.irfft(torch.complex(a, b), n=n, dim=axis, norm=norm)

    inputs = [d.floats(shape, dtype, -1, 1) for _ in range(2)]
    return Problem(inputs, ours, theirs, floor=1.0 if norm == "backward" else n, dtype=dtype)


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
        "fftn": (1, several_axes),
        "irfft": (1, inverse),
    },
)
