"""Linear algebra and Fourier transforms by cuSOLVER, cuBLAS and cuFFT, as CuPy calls them.

Arrays are handed over without a copy, CuPy works on our stream with our memory, and what it makes
is taken over. While a compiled function is recorded, and without a GPU, the portable definitions
serve.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.guest import is_eager, on_our_stream
from everygrad.backends.cuda.memory import Storage
from everygrad.shapes import size_of


def _serves(dev: Any, *arrays: CudaArray) -> bool:
    """Whether there are a GPU and elements to work on, now."""
    full = all(a.storage is not None for a in arrays)
    return full and is_eager(dev)


def _lent(cupy: Any, x: CudaArray) -> Any:
    """An array as CuPy's, on the same memory; CuPy must not write to it."""
    storage = x.storage
    assert storage is not None
    memory = cupy.cuda.UnownedMemory(storage.ptr, storage.size, storage)
    at = cupy.cuda.MemoryPointer(memory, x.offset * x.dtype.itemsize)
    steps = tuple(s * x.dtype.itemsize for s in x.strides)
    return cupy.ndarray(x.shape, x.dtype, memptr=at, strides=steps)


def _taken(dev: Any, cupy: Any, x: Any) -> CudaArray:
    """CuPy's array as ours, on its memory."""
    if not x.flags.c_contiguous:  # of a 0-d array ascontiguousarray makes one of one element
        x = cupy.ascontiguousarray(x)
    dtype = np.dtype(x.dtype)
    if not x.size:
        return CudaArray(dev.device, x.shape, dtype, None)
    storage = Storage(dev.gpu, x.data, x.data.ptr, x.nbytes)
    return CudaArray(dev.device, x.shape, dtype, storage)


def _by_cupy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel from a function of CuPy, its arrays, and parameters."""

    def kernel(dev: Any, *arrays: CudaArray, **params: Any) -> Any:
        if not _serves(dev, *arrays):
            return NotImplemented
        with on_our_stream(dev) as cupy:
            return _taken(dev, cupy, fn(cupy, *(_lent(cupy, a) for a in arrays), **params))

    return kernel


# --- one matrix after the other ------------------------------------------------------------------


def _matrices(x: Any) -> Any:
    return x.reshape((size_of(x.shape[:-2]), *x.shape[-2:]))


def _lu_factor(cupy: Any, x: Any) -> Any:
    """L and U in one matrix, and a last column with the rows exchanged."""
    lu_factor = import_module("cupyx.scipy.linalg").lu_factor
    m, n = x.shape[-2:]
    out = cupy.zeros((*x.shape[:-1], n + 1), x.dtype)
    for one, place in zip(_matrices(x), _matrices(out), strict=True):
        with warnings.catch_warnings():  # of a zero on the diagonal: U has it
            warnings.simplefilter("ignore", RuntimeWarning)
            factors, pivots = lu_factor(one, check_finite=False)
        place[:, :n] = factors
        place[: min(m, n), n] = pivots
    return out


def _solve_triangular(cupy: Any, a: Any, b: Any, upper: bool, unit: bool) -> Any:
    solve_triangular = import_module("cupyx.scipy.linalg").solve_triangular
    out = cupy.empty(b.shape, b.dtype)
    for one, right, place in zip(_matrices(a), _matrices(b), _matrices(out), strict=True):
        place[...] = solve_triangular(
            one, right, lower=not upper, unit_diagonal=unit, check_finite=False
        )
    return out


# --- packed results ------------------------------------------------------------------------------


def _adjoint(x: Any) -> Any:
    return x.swapaxes(-1, -2).conj()


def _slogdet(cupy: Any, x: Any) -> Any:
    sign, size = cupy.linalg.slogdet(x)
    return cupy.stack((sign.astype(x.dtype), size.astype(x.dtype)), axis=-1)


def _eigh(cupy: Any, x: Any) -> Any:
    values, vectors = cupy.linalg.eigh(x)
    return cupy.concatenate((values[..., None].astype(x.dtype), vectors), axis=-1)


def _complex(x: Any, made: Any) -> Any:
    return made.astype(np.result_type(x.dtype, np.complex64), copy=False)


def _eig(cupy: Any, x: Any) -> Any:
    values, vectors = cupy.linalg.eig(x)
    return cupy.concatenate((_complex(x, values)[..., None], _complex(x, vectors)), axis=-1)


def _svd(cupy: Any, x: Any) -> Any:
    u, values, vh = cupy.linalg.svd(x, full_matrices=False)
    return cupy.concatenate((u, values[..., None, :].astype(x.dtype), _adjoint(vh)), axis=-2)


def _svd_complete(cupy: Any, x: Any) -> Any:
    batch = x.shape[:-2]
    parts = [p.astype(x.dtype).reshape((*batch, -1)) for p in cupy.linalg.svd(x)]
    return cupy.concatenate(parts, axis=-1)


# --- transforms ----------------------------------------------------------------------------------


def _dft(cupy: Any, x: Any, axis: int, inverse: bool) -> Any:
    if inverse:
        return cupy.fft.ifft(x, axis=axis, norm="forward")
    return cupy.fft.fft(x, axis=axis)


def _half_dft(cupy: Any, x: Any, axis: int, size: int) -> Any:
    return cupy.fft.irfft(x, size, axis=axis, norm="forward")


KERNELS: dict[str, Callable[..., Any]] = {
    "solve_triangular": _by_cupy(_solve_triangular),
    "lu_factor": _by_cupy(_lu_factor),
    "solve": _by_cupy(lambda cupy, a, b: cupy.linalg.solve(a, b)),
    "inv": _by_cupy(lambda cupy, x: cupy.linalg.inv(x)),
    "det": _by_cupy(lambda cupy, x: cupy.linalg.det(x)),
    "slogdet": _by_cupy(_slogdet),
    "cholesky": _by_cupy(lambda cupy, x: cupy.linalg.cholesky(x)),
    "qr": _by_cupy(lambda cupy, x: cupy.concatenate(cupy.linalg.qr(x), axis=-2)),
    "qr_complete": _by_cupy(
        lambda cupy, x: cupy.concatenate(cupy.linalg.qr(x, mode="complete"), axis=-1)
    ),
    "eigh": _by_cupy(_eigh),
    "eigvalsh": _by_cupy(lambda cupy, x: cupy.linalg.eigvalsh(x)),
    "eig": _by_cupy(_eig),
    "eigvals": _by_cupy(lambda cupy, x: _complex(x, cupy.linalg.eigvals(x))),
    "svd": _by_cupy(_svd),
    "svd_complete": _by_cupy(_svd_complete),
    "svdvals": _by_cupy(lambda cupy, x: cupy.linalg.svd(x, compute_uv=False)),
    "dft": _by_cupy(_dft),
    "real_dft": _by_cupy(lambda cupy, x, axis: cupy.fft.rfft(x, axis=axis)),
    "half_dft": _by_cupy(_half_dft),
}
