"""Linear algebra by NumPy's LAPACK, on batches of matrices.

Arrays are float32, float64 or complex: half floats were widened before. An error of LAPACK becomes
an ArgumentError with the op's name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.gemm.blas import matmul
from everygrad.backends.cpu.runtime.addresses import address_of
from everygrad.backends.cpu.solver import batched_lapack
from everygrad.compiler.thresholds import edge
from everygrad.core.context import records
from everygrad.core.shapes import size_of
from everygrad.errors import ArgumentError, EverygradError

# multiply-adds of one matrix up to which native code computes gradients, in float64 without BLAS
SMALL_GRADIENT = edge(__name__, "SMALL_GRADIENT", 1 << 15, "products")
_ROW_MAJOR, _NO_TRANS, _LEFT = 101, 111, 141  # of CBLAS
_UPPER, _LOWER, _PLAIN, _UNIT = 121, 122, 131, 132
_ADDRESS = ctypes.c_void_p
_INT = ctypes.c_int64
# the ufuncs that NumPy's functions call, which take twice as long around them; None where a later
# NumPy has none
_UFUNCS = getattr(np.linalg, "_umath_linalg", None)


def _ufunc(
    name: str, of_reals: str, of_complex: str, public: Callable[..., Any]
) -> Callable[..., Any]:
    """A ufunc of NumPy's on matrices, in double precision as NumPy calls it: its results, in the
    dtype of the first array. Where it fails there is NaN, and NumPy's own function tells why."""
    inside = getattr(_UFUNCS, name, None)
    if inside is None:
        return public

    def run(*arrays: Any) -> Any:
        dtype = arrays[0].dtype
        try:
            out = inside(*arrays, signature=of_complex if dtype.kind == "c" else of_reals)
        except RuntimeWarning:  # raised by a filter: there would be NaN
            return public(*arrays)
        first = out[0] if type(out) is tuple else out
        if not first.size or _has_nan(first):
            return public(*arrays)
        if type(out) is tuple:
            return tuple([part.astype(_kind(dtype, part), copy=False) for part in out])
        return out.astype(dtype, copy=False)

    return run


def _has_nan(x: Any) -> bool:
    """Whether NaN is in the first of each matrix's elements, or each row's of a matrix."""
    first = x.item(0)
    if first != first:
        return True
    return x.ndim > 1 and bool(np.count_nonzero(np.isnan(x[..., 0])))  # any() takes 1 us


def _kind(dtype: Any, x: Any) -> Any:
    """The dtype of a result: real where x is."""
    return dtype if x.dtype.kind == dtype.kind else np.zeros((), dtype).real.dtype


_cholesky = _ufunc("cholesky_lo", "d->d", "D->D", np.linalg.cholesky)
_inv = _ufunc("inv", "d->d", "D->D", np.linalg.inv)
_solve = _ufunc("solve", "dd->d", "DD->D", np.linalg.solve)
_eigh = _ufunc("eigh_lo", "d->dd", "D->dD", np.linalg.eigh)


class _Named:
    """A block in which errors of LAPACK are the op's. A class: a generator takes 1 us more."""

    __slots__ = ("op",)

    def __init__(self, op: str) -> None:
        self.op = op

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, *rest: object) -> None:
        if isinstance(error, np.linalg.LinAlgError):
            raise ArgumentError(records.failure(self.op)) from None


# --- functions of NumPy's OpenBLAS that NumPy does not expose ------------------------------------


def solve_triangular(a: Any, b: Any, upper: bool, unit: bool) -> Any:
    """Uses trsm if the matrices are large enough, else LAPACK's general solver."""
    n = a.shape[-1]
    if not unit and np.count_nonzero(at := a.diagonal(0, -2, -1)) < at.size:
        raise ArgumentError(records.failure("solve_triangular"))
    if b.size and batched_lapack.serves(a):
        return _trsm(a, b, upper, unit)
    # not a product: what is not read may be infinite
    part = np.where(batched_lapack.triangle(n, upper, unit), a, 0)
    if unit:
        part[..., range(n), range(n)] = 1
    return _solve(part, b)


def _trsm(a: Any, b: Any, upper: bool, unit: bool) -> Any:
    letter = batched_lapack.LETTERS[a.dtype.char]
    call = getattr(batched_lapack.library(), f"scipy_cblas_{letter}trsm64_")
    one: Any = {"s": ctypes.c_float(1), "d": ctypes.c_double(1)}.get(letter)
    if one is None:
        held = np.ones((), a.dtype)
        one = _ADDRESS(address_of(held))
    rows, out = np.ascontiguousarray(a).reshape((-1, *a.shape[-2:])), batched_lapack.matrices(b)
    sides = (_ROW_MAJOR, _LEFT, _UPPER if upper else _LOWER, _NO_TRANS, _UNIT if unit else _PLAIN)
    m, n = (_INT(size) for size in out.shape[-2:])

    def substitute(i: int) -> None:
        at = (_ADDRESS(address_of(rows[i])), m, _ADDRESS(address_of(out[i])), n)
        call(*sides, m, n, one, *at)

    batched_lapack.each(out, substitute)
    return out.reshape(b.shape)


def lu_factor(x: Any) -> Any:
    """L below the diagonal, U on and above it, and a last column with the rows exchanged."""
    m, n = x.shape[-2:]
    count = size_of(x.shape[:-2])
    one_by_one = batched_lapack.library() is not None and (
        m > batched_lapack.SMALL or count <= min(m, n)
    )
    if x.size and one_by_one:
        return batched_lapack.lu_factor(x)
    out = np.zeros((count, m, n + 1), x.dtype)
    out[:, :, :n], out[:, : min(m, n), n] = _eliminated(x.reshape((count, m, n)))
    return out.reshape((*x.shape[:-1], n + 1))


def _eliminated(x: Any) -> tuple[Any, Any]:
    """Gaussian elimination of all matrices at once, column by column: for many small matrices, and
    for a NumPy without OpenBLAS."""
    work = x.copy()
    count, m, n = work.shape
    each = np.arange(count)
    pivots = np.zeros((count, min(m, n)), np.int64)
    for k in range(min(m, n)):
        column = work[:, k:, k]
        p = pivots[:, k] = k + np.argmax(np.abs(column.real) + np.abs(column.imag), axis=1)
        work[each, k], work[each, p] = work[each, p], work[each, k].copy()
        corner = work[:, k, k, None]
        work[:, k + 1 :, k] /= np.where(corner == 0, 1, corner)
        work[:, k + 1 :, k + 1 :] -= work[:, k + 1 :, k, None] * work[:, k, None, k + 1 :]
    return work, pivots


def lexsort_rows(pivots: Any, size: int) -> Any:
    """The permutation that exchanging rows one after the other makes."""
    flat = pivots.reshape(size_of(pivots.shape[:-1]), pivots.shape[-1])
    order = np.tile(np.arange(size), (len(flat), 1))
    each = np.arange(len(flat))
    for k in range(flat.shape[1]):
        p = flat[:, k]
        order[each, k], order[each, p] = order[each, p], order[each, k].copy()
    return order.reshape((*pivots.shape[:-1], size))


# --- solutions -----------------------------------------------------------------------------------


def solve(a: Any, b: Any) -> Any:
    together = a.shape[:-2] == b.shape[:-2]
    if together and (found := lazy_native.native_lstsq().system(a, b)) is not None:
        return found
    with _Named("solve"):
        if b.size and together and batched_lapack.serves(a):
            return batched_lapack.solve(a, b)
        return _solve(a, b)


def inv(x: Any) -> Any:
    with _Named("inv"):
        return batched_lapack.inv(x) if batched_lapack.serves(x) else _inv(x)


def slogdet(x: Any) -> Any:
    if (found := lazy_native.native_factors().factored("slogdet", x)) is not None:
        return found
    if batched_lapack.serves(x):
        sign, size = _slogdet(batched_lapack.signed_diagonals(*batched_lapack.factored(x)[:2]))
    else:
        sign, size = np.linalg.slogdet(x)
    both = np.empty((*x.shape[:-2], 2), x.dtype)
    both[..., 0], both[..., 1] = (np.reshape(part, x.shape[:-2]) for part in (sign, size))
    return both


def _slogdet(diagonals: Any) -> tuple[Any, Any]:
    with np.errstate(all="ignore"):
        sizes = np.abs(diagonals)
        sign = np.where(sizes == 0, 0, diagonals / sizes).prod(axis=-1)
        return sign, np.log(sizes).sum(axis=-1, dtype=np.float64)


def det(x: Any) -> Any:
    with np.errstate(all="ignore"):
        if batched_lapack.serves(x):
            return _det(*batched_lapack.factored(x)[:2], x.dtype).reshape(x.shape[:-2])
        return np.linalg.det(x)


def _det(work: Any, pivots: Any, dtype: Any) -> Any:
    """The determinant, in float64: a partial product may overflow though the result fits."""
    diagonals = batched_lapack.signed_diagonals(work, pivots)
    return diagonals.prod(axis=-1, dtype=np.result_type(dtype, np.float64)).astype(dtype)


def adjugate(x: Any) -> Any:
    """det(x) x^-1; for singular and nearly singular matrices from their singular values."""
    count, n = size_of(x.shape[:-2]), x.shape[-1]
    if x.size and n**3 <= SMALL_GRADIENT:
        found = lazy_native.native_gradients().gradient(
            "adjugate", x, x, n, n, bounds=_far_bounds(x.dtype)
        )
        if found is not NotImplemented:
            return found
    matrices = x.reshape((count, n, n))
    with np.errstate(all="ignore"):
        size = np.abs(matrices).sum(axis=-1).max(axis=-1, initial=0)
        try:
            inverse, dets = _inverses(matrices)
            far = size * np.abs(inverse).sum(axis=-1).max(axis=-1, initial=0) < _FAR[x.dtype.name]
            out = inverse * dets[:, None, None]
        except np.linalg.LinAlgError:  # one matrix is exactly singular
            far, out = np.zeros(count, bool), np.empty_like(matrices)
        if not far.all():
            out[~far] = _adjugate_of_any(matrices[~far])
    return out.reshape(x.shape)


def _inverses(x: Any) -> tuple[Any, Any]:
    """The inverses of (count, n, n) matrices, and their determinants."""
    if not batched_lapack.serves(x):
        return np.linalg.inv(x), np.linalg.det(x)
    work, pivots, bad = batched_lapack.factored(x)
    if bad.any():
        raise np.linalg.LinAlgError("a pivot is 0")
    dets = _det(work, pivots, x.dtype)
    return batched_lapack.inverse(work, pivots), dets


@cache
def _far_bounds(dtype: Any) -> Any:
    return np.array([0.0, _FAR[dtype.name], 0.0])


_FAR = {"float32": 1e3, "complex64": 1e3, "float64": 1e7, "complex128": 1e7}  # condition numbers


def _adjugate_of_any(x: Any) -> Any:
    u, values, vh = np.linalg.svd(x)
    n = x.shape[-1]
    others = np.where(np.eye(n, dtype=bool), 1, values[..., None, :]).prod(axis=-1)
    turn = np.linalg.det(u) * np.linalg.det(vh)
    return (vh.mT.conj() * others[..., None, :]) @ u.mT.conj() * turn[..., None, None]


def pinv(x: Any, rtol: Any) -> Any:
    with _Named("pinv"):
        return batched_lapack.map_batch(np.linalg.pinv, x, np.broadcast_to(rtol, x.shape[:-2]))


def lstsq(a: Any, b: Any, rtol: float) -> Any:
    """The smallest of the nearest solutions, and below it a row of ranks: gelsy, by a QR whose
    columns are chosen. The definition, by singular values, serves what has no elements and tells
    what is not finite."""
    if not a.size or not b.size or batched_lapack.library() is None:
        return NotImplemented
    out = lazy_native.native_lstsq().of_full_rank(a, b, rtol)
    if out is None:
        return _lstsq_of_any_rank(a, b, rtol)
    left = lazy_native.native_lstsq().unproven(out)
    if left is None:
        return out
    some, sides = (v.reshape((-1, *v.shape[-2:]))[left] for v in (a, b))
    found = _lstsq_of_any_rank(some, sides, rtol)
    if found is NotImplemented:
        return found
    out.reshape((-1, *out.shape[-2:]))[left] = found
    return out


def _lstsq_of_any_rank(a: Any, b: Any, rtol: float) -> Any:
    if lazy_native.native_lstsq().serves(a, b):
        out = lazy_native.native_lstsq().solution(a, b, rtol)
        return NotImplemented if out is None else out
    out = batched_lapack.lstsq(a, b, rtol)
    return out if np.logical_and.reduce(np.isfinite(out), None) else NotImplemented


def lstsq_ranks(packed: Any) -> Any:
    return packed[..., -1, 0].real.astype(np.int64)


def lstsq_residuals(a: Any, x: Any, b: Any) -> Any:
    if a.size and b.size and lazy_native.native_lstsq().serves(a, b):
        return lazy_native.native_lstsq().residuals(a, x, b)
    left = matmul(a, x) - b
    if left.dtype.kind == "c":
        left = np.abs(left)
    left *= left
    return left.sum(axis=-2)


# --- decompositions ------------------------------------------------------------------------------


def cholesky(x: Any) -> Any:
    if (found := lazy_native.native_factors().factored("cholesky", x)) is not None:
        return found
    with _Named("cholesky"):
        return batched_lapack.cholesky(x) if batched_lapack.serves(x) else _cholesky(x)


def qr(x: Any) -> Any:
    """Q's rows, then R's: side by side in one array of m + n rows."""
    m, n = x.shape[-2:]
    if m >= n and (found := lazy_native.native_factors().factored("qr", x)) is not None:
        return found
    if m < n or not x.size or _UFUNCS is None:
        return np.concatenate(np.linalg.qr(x), axis=-2)
    if batched_lapack.serves(x):
        return np.concatenate(batched_lapack.qr(x), axis=-2)
    work = x.astype(np.result_type(x.dtype, np.float64))  # a copy: R is left in it
    scales = _UFUNCS.qr_r_raw(work)
    out = np.empty((*x.shape[:-2], m + n, n), x.dtype)
    out[..., :m, :] = _UFUNCS.qr_reduced(work, scales)
    out[..., m:, :] = np.where(batched_lapack.triangle(n, True, False), work[..., :n, :], 0)
    return out


def qr_complete(x: Any) -> Any:
    """Q and R side by side."""
    return np.concatenate(np.linalg.qr(x, mode="complete"), axis=-1)


def _side_by_side(values: Any, vectors: Any) -> Any:
    """[values | vectors]."""
    n = vectors.shape[-1]
    out = np.empty((*vectors.shape[:-1], n + 1), vectors.dtype)
    out[..., 0], out[..., 1:] = values, vectors
    return out


def eigh(x: Any) -> Any:
    if (found := lazy_native.native_factors().factored("eigh", x)) is not None:
        return found
    with _Named("eigh"):
        return _side_by_side(*batched_lapack.map_batch(_eigh, x))


def eigvalsh(x: Any) -> Any:
    with _Named("eigvalsh"):
        return batched_lapack.map_batch(np.linalg.eigvalsh, x)


def eig(x: Any) -> Any:
    with _Named("eig"):
        values, vectors = batched_lapack.map_batch(np.linalg.eig, x)
    return _side_by_side(values, vectors.astype(np.result_type(x.dtype, np.complex64)))


def eigvals(x: Any) -> Any:
    with _Named("eigvals"):
        return batched_lapack.map_batch(np.linalg.eigvals, x).astype(
            np.result_type(x.dtype, np.complex64)
        )


_thin_svd = _ufunc("svd_s", "d->ddd", "D->DdD", partial(np.linalg.svd, full_matrices=False))


def svd(x: Any) -> Any:
    """U's rows, one of singular values, then V's rows, each of k elements."""
    found = lazy_native.native_factors().factored("svd", x)
    if found is None:
        return _svd_by_lapack(x)
    row = x.shape[-2]
    if x.ndim == 2:
        first = found.item(row * found.shape[-1]).real
        return found if first == first else _svd_by_lapack(x)
    left = np.isnan(found[..., row, 0].real)
    if np.count_nonzero(left):  # matrices that are nearly of a lower rank
        found[left] = _svd_by_lapack(x[left])
    return found


def _svd_by_lapack(x: Any) -> Any:
    with _Named("svd"):
        u, values, vh = batched_lapack.map_batch(_thin_svd, x)
    m, n = x.shape[-2:]
    out = np.empty((*x.shape[:-2], m + 1 + n, min(m, n)), x.dtype)
    out[..., :m, :], out[..., m, :] = u, values
    out[..., m + 1 :, :] = vh.mT.conj() if x.dtype.kind == "c" else vh.mT
    return out


def svd_complete(x: Any) -> Any:
    """[U, values, V^H] one after the other, flat."""
    with _Named("svd"):
        u, values, vh = np.linalg.svd(x)
    m, n = x.shape[-2:]
    flat = ((u, m * m), (values, min(m, n)), (vh, n * n))
    parts = [np.asarray(part, x.dtype).reshape((*x.shape[:-2], size)) for part, size in flat]
    return np.concatenate(parts, axis=-1)


def svdvals(x: Any) -> Any:
    with _Named("svdvals"):
        return batched_lapack.map_batch(np.linalg.svdvals, x)


# --- the matrix exponential ----------------------------------------------------------------------


def matrix_exp(x: Any) -> Any:
    """Scaling and squaring: a Pade approximant of x / 2^s, squared s times, with s per matrix."""
    if not x.size:
        return x.copy()
    size = np.abs(x).sum(axis=-2).max(axis=-1)
    if not np.isfinite(size).all():
        raise ArgumentError(records.failure("matrix_exp"))
    known = records.by_name["matrix_exp"].constants
    steps = np.ceil(np.log2(np.maximum(size / known["pade_reach"], 1))).astype(np.int64)
    with np.errstate(all="ignore"):
        out = _pade((x / 2.0 ** steps[..., None, None]).astype(x.dtype), known["pade"])
        for step in range(int(steps.max())):
            out = np.where((step < steps)[..., None, None], out @ out, out)
    return out


def _pade(x: Any, coefficients: Sequence[int]) -> Any:
    b = [v / coefficients[0] for v in coefficients]
    one = np.eye(x.shape[-1], dtype=x.dtype)
    x2 = x @ x
    x4 = x2 @ x2
    x6 = x4 @ x2
    odd = x6 @ (b[13] * x6 + b[11] * x4 + b[9] * x2)
    odd = x @ (odd + b[7] * x6 + b[5] * x4 + b[3] * x2 + b[1] * one)
    even = x6 @ (b[12] * x6 + b[10] * x4 + b[8] * x2)
    even = even + b[6] * x6 + b[4] * x4 + b[2] * x2 + b[0] * one
    return np.linalg.solve(even - odd, even + odd)


# --- checks --------------------------------------------------------------------------------------


def check_true(ok: Any, what: str, error: type[EverygradError]) -> Any:
    """Returns `ok` if all of it is true."""
    if not ok.all():
        raise error(what)
    return ok


def ensure(x: Any, ok: Any, what: str, error: type[EverygradError]) -> Any:
    """Returns x if all of `ok` is true."""
    check_true(ok, what, error)
    return x


KERNELS: dict[str, Callable[..., Any]] = {
    "solve_triangular": solve_triangular,
    "lu_factor": lu_factor,
    "lexsort_rows": lexsort_rows,
    "solve": solve,
    "inv": inv,
    "det": det,
    "slogdet": slogdet,
    "adjugate": adjugate,
    "pinv": pinv,
    "lstsq": lstsq,
    "lstsq_ranks": lstsq_ranks,
    "lstsq_residuals": lstsq_residuals,
    "cholesky": cholesky,
    "qr": qr,
    "qr_complete": qr_complete,
    "eigh": eigh,
    "eigvalsh": eigvalsh,
    "eig": eig,
    "eigvals": eigvals,
    "svd": svd,
    "svd_complete": svd_complete,
    "svdvals": svdvals,
    "matrix_exp": matrix_exp,
    "check_true": check_true,
    "ensure": ensure,
}
