"""Linear algebra and Fourier transforms by cuSOLVER, cuBLAS and cuFFT.

Factorisations and solutions are called directly (`factorisations`). The others, and all of them on
a machine that lacks a library, go through CuPy: arrays are shared without a copy, CuPy works on our
stream with our memory, and its results are adopted. A compiled function calls the same functions
between its graphs (`graph/library_calls`). Without a GPU the portable definitions are used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.cupy_interop import as_cupy, is_eager, on_our_stream
from everygrad.backends.cuda.driver.memory import Storage
from everygrad.backends.cuda.kernels.gather import check_true
from everygrad.backends.cuda.solver import factorisations, matrix_kernels
from everygrad.core.context import records
from everygrad.core.shapes import size_of
from everygrad.errors import ArgumentError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


def _from_cupy(dev: Cuda, cupy: Any, x: Any) -> CudaArray:
    """CuPy's array as ours, sharing its memory."""
    if not x.flags.c_contiguous:  # ascontiguousarray would make a 0-d array 1-d
        x = cupy.ascontiguousarray(x)
    dtype = np.dtype(x.dtype)
    if not x.size:
        return CudaArray(dev.device, x.shape, dtype, None)
    storage = Storage(dev.gpu, x.data, x.data.ptr, x.nbytes)
    return CudaArray(dev.device, x.shape, dtype, storage)


def _kernel(op: str) -> Callable[..., Any]:
    """The kernel of an op, where there is a library and the arrays have elements."""

    def kernel(dev: Cuda, *arrays: CudaArray, **params: Any) -> Any:
        if any(a.storage is None for a in arrays):
            return NotImplemented
        if factorisations.serves(dev, op, arrays[0].shape):
            return factorisations.compute(dev, op, *arrays, **params)
        if not is_eager(dev):
            return NotImplemented
        with on_our_stream(dev) as cupy:
            return _from_cupy(
                dev, cupy, computed(dev, op, [as_cupy(cupy, a) for a in arrays], params, cupy)
            )

    return kernel


# --- failures ------------------------------------------------------------------------------------


def computed(dev: Cuda, op: str, arrays: Sequence[Any], params: dict[str, Any], cupy: Any) -> Any:
    """An op by its library, on CuPy's arrays. Failures are ArgumentErrors, as on the CPU: a kernel
    checks, and the next read raises it. Iterative ops wait, and may raise at once."""
    function, succeeded, iterates = LIBRARY[op]
    if succeeded is None:
        return function(cupy, *arrays, **params)
    message = records.failure(op.removesuffix("_complete"))
    if iterates:
        with import_module("cupyx").errstate(linalg="raise"):
            try:
                out = function(cupy, *arrays, **params)
            except np.linalg.LinAlgError:
                raise ArgumentError(message) from None
    else:
        out = function(cupy, *arrays, **params)
    ok = succeeded(cupy, arrays, params, out)
    check_true(dev, _from_cupy(dev, cupy, ok.reshape(-1)), message, ArgumentError)
    return out


# which matrices have a result


def _positive(cupy: Any, arrays: Sequence[Any], params: dict[str, Any], out: Any) -> Any:
    """cuSOLVER leaves NaN or the number itself on the diagonal where it would take the root of a
    negative one."""
    return (cupy.diagonal(out, 0, -2, -1).real > 0).all(axis=-1)


def _without_zeros(cupy: Any, arrays: Sequence[Any], params: dict[str, Any], out: Any) -> Any:
    return (cupy.diagonal(arrays[0], 0, -2, -1) != 0).all(axis=-1) | params["unit"]


def _finite_input(cupy: Any, arrays: Sequence[Any], params: dict[str, Any], out: Any) -> Any:
    return cupy.isfinite(arrays[0]).all(axis=(-2, -1))


def _finite_result(cupy: Any, arrays: Sequence[Any], params: dict[str, Any], out: Any) -> Any:
    """Dividing by a pivot of 0 is not finite."""
    ok = cupy.isfinite(out).all(axis=(-2, -1))
    for x in arrays:  # NaN from NaN is not a failure
        ok = ok | ~cupy.isfinite(x).all(axis=(-2, -1))
    return ok


# --- loops over matrices -------------------------------------------------------------------------


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
    """A batch at once; a single matrix as 2-D, which has a faster routine."""
    solve_triangular = import_module("cupyx.scipy.linalg").solve_triangular
    batch = () if size_of(a.shape[:-2]) == 1 else a.shape[:-2]
    left, right = (x.reshape((*batch, *x.shape[-2:])) for x in (a, b))
    out = solve_triangular(left, right, lower=not upper, unit_diagonal=unit, check_finite=False)
    return out.reshape(b.shape)


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


def _real_dft(cupy: Any, x: Any, axis: int) -> Any:
    """cuFFT reads real numbers in aligned pairs."""
    return cupy.fft.rfft(x.copy() if x.data.ptr % (2 * x.dtype.itemsize) else x, axis=axis)


def _half_dft(cupy: Any, x: Any, axis: int, size: int) -> Any:
    return cupy.fft.irfft(x, size, axis=axis, norm="forward")


class LibraryOp(NamedTuple):
    """`function` is called with CuPy, its arrays, and the parameters. `succeeded` says which
    matrices have a result; the op's record says what is wrong with one that has none."""

    function: Callable[..., Any]
    succeeded: Callable[..., Any] | None = None
    iterates: bool = False  # waits for the result, and may raise at once


def _solving(function: Callable[..., Any]) -> LibraryOp:
    return LibraryOp(function, _finite_result)


def _iterating(function: Callable[..., Any]) -> LibraryOp:
    return LibraryOp(function, _finite_input, iterates=True)


LIBRARY: dict[str, LibraryOp] = {
    "solve_triangular": LibraryOp(_solve_triangular, _without_zeros),
    "lu_factor": LibraryOp(_lu_factor),
    "solve": _solving(lambda cupy, a, b: cupy.linalg.solve(a, b)),
    "inv": _solving(lambda cupy, x: cupy.linalg.inv(x)),
    "det": LibraryOp(lambda cupy, x: cupy.linalg.det(x)),
    "slogdet": LibraryOp(_slogdet),
    "cholesky": LibraryOp(lambda cupy, x: cupy.linalg.cholesky(x), _positive),
    "qr": LibraryOp(lambda cupy, x: cupy.concatenate(cupy.linalg.qr(x), axis=-2)),
    "qr_complete": LibraryOp(
        lambda cupy, x: cupy.concatenate(cupy.linalg.qr(x, mode="complete"), axis=-1)
    ),
    "eigh": _iterating(_eigh),
    "eigvalsh": _iterating(lambda cupy, x: cupy.linalg.eigvalsh(x)),
    "eig": _iterating(_eig),
    "eigvals": _iterating(lambda cupy, x: _complex(x, cupy.linalg.eigvals(x))),
    "svd": _iterating(_svd),
    "svd_complete": _iterating(_svd_complete),
    "svdvals": _iterating(lambda cupy, x: cupy.linalg.svd(x, compute_uv=False)),
    "dft": LibraryOp(_dft),
    "real_dft": LibraryOp(_real_dft),
    "half_dft": LibraryOp(_half_dft),
}
KERNELS: dict[str, Callable[..., Any]] = {
    **{op: _kernel(op) for op in LIBRARY},
    "lexsort_rows": matrix_kernels.lexsort_rows,
}
