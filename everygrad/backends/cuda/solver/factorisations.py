"""Linear algebra inside graphs: factorisations and solutions by cuSOLVER and cuBLAS, enqueued on
the stream while the host does not wait. The next read raises an error for a bad matrix.

The libraries' matrices are column-major. A row-major matrix read so is its transpose, and where the
transpose serves as well nothing is copied: a Cholesky factor, an inverse, a determinant, a
triangular system. Other results are column-major, and their strides say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.driver import cusolver
from everygrad.backends.cuda.solver.matrix_kernels import (
    Stretch,
    addresses,
    copy_strided,
    determinants,
    keep_lower,
    mark_failures,
    put_pivots,
    refuse_zeros,
    take_triangle,
    unit_matrices,
)
from everygrad.core.context import records
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import collapse, row_major
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

# measured on an H200
_SATURATING = 600  # columns from which one matrix saturates the GPU as well as a batch of two
_LU_SATURATING = 200  # the same for LU, whose batched routine scales with the square
_SMALL = 32  # columns up to which LU of one matrix is a batch of one
_TINY = 16  # columns up to which cuBLAS inverts in one kernel
_LOOP = 64  # matrices that are looped over where no routine takes a batch


def _facts(x: CudaArray) -> tuple[DType, int, int, int]:
    """The dtype, the number of matrices, their rows and columns."""
    *batch, m, n = x.shape
    return FROM_NP[x.dtype], size_of(tuple(batch)), m, n


def _transposed(x: CudaArray) -> CudaArray:
    """The transpose of each matrix."""
    shape, strides = x.shape, x.strides
    return x.view((*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))


def _by_columns(memory: CudaArray, shape: Shape) -> CudaArray:
    """Memory of column-major matrices viewed as an array of this shape."""
    m, n = shape[-2:]
    outer = tuple(m * n * s for s in row_major(shape[:-2]))
    return memory.view(shape, (*outer, 1, m))


def _by_rows(dev: Cuda, x: CudaArray) -> CudaArray:
    """A contiguous copy."""
    dtype, _, m, n = _facts(x)
    out: CudaArray = dev.empty(x.shape, dtype)
    copy_strided(dev, x, out.ptr, (m * n, n, 1))
    return out


def _call(dev: Cuda, routine: str, dtype: DType, numbers: tuple[int, ...], *at: int) -> None:
    dev.gpu.call(dev.gpu.driver.cusolver.routine(routine, dtype, *numbers), *at)


def _workspace(dev: Cuda, routine: str, dtype: DType, *sizes: int) -> tuple[int, int]:
    """The address of a routine's workspace, and its number of elements."""
    count = max(1, dev.gpu.driver.cusolver.elements(routine, dtype, *sizes))
    return dev.gpu.workspace(count * dtype.itemsize), count


def _one_by_one(count: int, n: int) -> bool:
    """Whether to loop over matrices rather than to use a batched routine."""
    return count == 1 or count * _SATURATING < n


def _each(count: int, *stretches: tuple[int, int]) -> Iterator[list[int]]:
    """The addresses of each matrix in turn; a stretch is a first address and a stride in bytes."""
    for k in range(count):
        yield [first + k * step for first, step in stretches]


# --- Cholesky ------------------------------------------------------------------------------------


def cholesky(dev: Cuda, x: CudaArray) -> CudaArray:
    """The upper factor of the transpose, which is the lower one in row-major order."""
    dtype, count, n, _ = _facts(x)
    out = _by_rows(dev, x)
    info: CudaArray = dev.empty((count,), dtypes.int32)
    step = n * n * dtype.itemsize
    if _one_by_one(count, n):
        work, work_size = _workspace(dev, "potrf", dtype, cusolver.UPPER, n, n)
        numbers = (cusolver.UPPER, n, n, work_size)
        for matrix, word in _each(count, (out.ptr, step), (info.ptr, 4)):
            _call(dev, "potrf", dtype, numbers, matrix, work, word)
    else:
        at = addresses(dev, count, (out.ptr, step)).ptr
        numbers = (cusolver.UPPER, n, n, count)
        _call(dev, "potrfBatched", dtype, numbers, at, info.ptr, out.ptr)
    keep_lower(dev, out, info, records.failure("cholesky"))
    return out


# --- LU, and what is solved by it----------------------------------------------------------------


class _Factors(NamedTuple):
    """The LU factors of column-major matrices: their memory, the pivots, and words that say whether
    a pivot is 0. `lists`: the addresses of the matrices, where a batched routine was used."""

    memory: CudaArray  # of all matrices, as (matrices, columns, rows)
    pivots: CudaArray
    info: CudaArray
    lists: CudaArray | None

    @property
    def step(self) -> int:
        """Bytes from one matrix to the next."""
        _, columns, m = self.memory.shape
        return int(columns * m * self.memory.dtype.itemsize)


def _lu(dev: Cuda, x: CudaArray, spare: int = 0) -> _Factors:
    """The factors of each matrix, with `spare` columns after them. A batch of small square ones is
    factored at once."""
    dtype, count, m, n = _facts(x)
    memory: CudaArray = dev.empty((count, n + spare, m), dtype)
    pivots: CudaArray = dev.empty((count, min(m, n)), dtypes.int32)
    info: CudaArray = dev.empty((count,), dtypes.int32)
    made = _Factors(memory, pivots, info, None)
    copy_strided(dev, x, memory.ptr, ((n + spare) * m, 1, m))
    at_once = n <= _SMALL if count == 1 else count > (n / _LU_SATURATING) ** 2
    if m != n or not at_once:
        work, _ = _workspace(dev, "getrf", dtype, m, n, m)
        stretches = ((memory.ptr, made.step), (pivots.ptr, 4 * min(m, n)), (info.ptr, 4))
        for matrix, rows, word in _each(count, *stretches):
            _call(dev, "getrf", dtype, (m, n, m), matrix, work, rows, word)
        return made
    lists = addresses(dev, count, (memory.ptr, made.step))
    given = (lists.ptr, pivots.ptr, info.ptr, memory.ptr)
    _call(dev, "getrfBatched", dtype, (n, n, count), *given)
    return made._replace(lists=lists)


def _stretch(results: CudaArray, size: int | None = None) -> Stretch:
    """The results of matrices along the first axis: so many elements of each, or all."""
    step = size_of(results.shape[1:])
    return Stretch(results.ptr, step, step if size is None else size)


def _lu_solve(dev: Cuda, f: _Factors, right: CudaArray) -> None:
    """Replace right sides by solutions, column-major as (matrices, columns, rows)."""
    dtype = FROM_NP[right.dtype]
    count, columns, n = right.shape
    step = columns * n * dtype.itemsize
    numbers = (cusolver.PLAIN, n, columns, n, n)
    if f.lists is not None:
        at = addresses(dev, count, (right.ptr, step)).ptr
        given = (f.lists.ptr, f.pivots.ptr, at, f.memory.ptr, right.ptr)
        _call(dev, "getrsBatched", dtype, (*numbers, count), *given)
        return
    word: CudaArray = dev.empty((1,), dtypes.int32)  # for argument errors, which cannot occur
    stretches = ((f.memory.ptr, f.step), (f.pivots.ptr, 4 * n), (right.ptr, step))
    for matrix, rows, b in _each(count, *stretches):
        _call(dev, "getrs", dtype, numbers, matrix, rows, b, word.ptr)


def lu_factor(dev: Cuda, x: CudaArray) -> CudaArray:
    """L and U in one matrix, and a last column with the pivots."""
    n = x.shape[-1]
    f = _lu(dev, x, spare=1)
    put_pivots(dev, f.memory, f.pivots)
    mark_failures(dev, x, f.info, _stretch(f.memory, n * x.shape[-2]), None)
    return _by_columns(f.memory, (*x.shape[:-1], n + 1))


def solve(dev: Cuda, a: CudaArray, b: CudaArray) -> CudaArray:
    dtype, count, n, columns = _facts(b)
    f = _lu(dev, a)
    out: CudaArray = dev.empty((count, columns, n), dtype)
    copy_strided(dev, b, out.ptr, (columns * n, 1, n))
    _lu_solve(dev, f, out)
    mark_failures(dev, a, f.info, _stretch(out), records.failure("solve"))
    return _by_columns(out, b.shape)


def inv(dev: Cuda, x: CudaArray) -> CudaArray:
    """The inverse of the transpose, which is that of x in row-major order."""
    dtype, count, n, _ = _facts(x)
    if n <= _TINY:
        return _inverted_at_once(dev, x)
    f = _lu(dev, _transposed(x))
    out = unit_matrices(dev, count, n, dtype)
    _lu_solve(dev, f, out)
    mark_failures(dev, x, f.info, _stretch(out), records.failure("inv"))
    return out.view(x.shape, None)


def _inverted_at_once(dev: Cuda, x: CudaArray) -> CudaArray:
    dtype, count, n, _ = _facts(x)
    x = x if x.is_contiguous else _by_rows(dev, x)
    out: CudaArray = dev.empty(x.shape, dtype)
    info: CudaArray = dev.empty((count,), dtypes.int32)
    step = n * n * dtype.itemsize
    lists = addresses(dev, count, (x.ptr, step), (out.ptr, step))
    given = (lists.ptr, lists.ptr + 8 * count, info.ptr, x.ptr, out.ptr)
    _call(dev, "matinvBatched", dtype, (n, n, n, count), *given)
    mark_failures(dev, x, info, Stretch(out.ptr, n * n, n * n), records.failure("inv"))
    return out


def _determinant(dev: Cuda, x: CudaArray, logs: bool) -> CudaArray:
    dtype, *_ = _facts(x)
    f = _lu(dev, _transposed(x))
    shape = (*x.shape[:-2], 2) if logs else x.shape[:-2]
    out: CudaArray = dev.empty(shape, dtype)
    determinants(dev, f.memory, f.pivots, out, logs)
    numbers = 2 if logs else 1
    mark_failures(dev, x, f.info, Stretch(out.ptr, numbers, numbers), None)
    return out


# --- triangular systems --------------------------------------------------------------------------


class _Triangles(NamedTuple):
    """Triangular matrices as cuBLAS takes them: transposed or not, strides in elements."""

    array: CudaArray
    by_columns: bool
    leading: int  # from one stored row or column to the next
    step: int  # from one matrix to the next


def _triangles(dev: Cuda, a: CudaArray) -> _Triangles:
    """The matrices in place where cuBLAS can address them; else a copy."""
    n = a.shape[-1]
    down, along = a.strides[-2:]
    _, ((*outer, step),) = collapse(a.shape[:-2], [a.strides[:-2]])
    if not outer and step >= 0:
        if along == 1 and down >= n:
            return _Triangles(a, False, down, step)
        if down == 1 and along >= n:
            return _Triangles(a, True, along, step)
    return _Triangles(_by_rows(dev, a), False, n, n * n)


def solve_triangular(dev: Cuda, a: CudaArray, b: CudaArray, upper: bool, unit: bool) -> CudaArray:
    """Solve x^T a^T = b^T, which is a x = b in row-major order."""
    dtype, count, n, columns = _facts(b)
    if not unit:
        refuse_zeros(dev, a, records.failure("solve_triangular"))
    t = _triangles(dev, a)
    out = _by_rows(dev, b)
    is_upper = upper == t.by_columns  # as it is stored
    how = (
        cusolver.RIGHT,
        cusolver.UPPER if is_upper else cusolver.LOWER,
        cusolver.TRANSPOSED if t.by_columns else cusolver.PLAIN,
        cusolver.UNIT if unit else cusolver.NOT_UNIT,
    )
    numbers = (*how, columns, n, t.leading, columns)
    steps = (t.step * dtype.itemsize, n * columns * dtype.itemsize)
    stretches = tuple(zip((t.array.ptr, out.ptr), steps, strict=True))
    if _one_by_one(count, n):
        for one in _each(count, *stretches):
            _call(dev, "trsm", dtype, numbers, *one)
    else:
        lists = addresses(dev, count, *stretches)
        given = (lists.ptr, lists.ptr + 8 * count, t.array.ptr, out.ptr)
        _call(dev, "trsmBatched", dtype, (*numbers, count), *given)
    return out


# --- QR ------------------------------------------------------------------------------------------


def _qr(dev: Cuda, x: CudaArray, complete: bool) -> CudaArray:
    """Householder reflections in the place of Q, R copied out, then Q over the reflections: R is
    below Q, or to the right of a square Q."""
    dtype, count, m, n = _facts(x)
    rows, columns = (m, m + n) if complete else (m + n, n)
    memory: CudaArray = dev.empty((count, columns, rows), dtype)
    copy_strided(dev, x, memory.ptr, (rows * columns, 1, rows))
    scale: CudaArray = dev.empty((count, n), dtype)
    word: CudaArray = dev.empty((1,), dtypes.int32)
    size, wide = dtype.itemsize, m if complete else n
    stretches = ((memory.ptr, rows * columns * size), (scale.ptr, n * size))
    work, work_size = _workspace(dev, "geqrf", dtype, m, n, rows)
    for matrix, factors in _each(count, *stretches):
        _call(dev, "geqrf", dtype, (m, n, rows, work_size), matrix, factors, work, word.ptr)
    take_triangle(dev, memory, n, m if complete else n, m * rows if complete else m)
    work, work_size = _workspace(dev, "orgqr", dtype, m, wide, n, rows)
    for matrix, factors in _each(count, *stretches):
        _call(dev, "orgqr", dtype, (m, wide, n, rows, work_size), matrix, factors, work, word.ptr)
    return _by_columns(memory, (*x.shape[:-2], rows, columns))


class _Factorisation(NamedTuple):
    """How an op is computed, and of which matrices the library takes a batch at once."""

    compute: Callable[..., Any]
    batches: str = "all"  # or "square", or "none"

    def loops(self, m: int, n: int) -> bool:
        """Whether matrices of this size are computed one by one."""
        return self.batches == "none" or (self.batches == "square" and m != n)


_DIRECT = {
    "cholesky": _Factorisation(cholesky),
    "lu_factor": _Factorisation(lu_factor, batches="square"),
    "solve": _Factorisation(solve),
    "inv": _Factorisation(inv),
    "det": _Factorisation(partial(_determinant, logs=False)),
    "slogdet": _Factorisation(partial(_determinant, logs=True)),
    "solve_triangular": _Factorisation(solve_triangular),
    "qr": _Factorisation(partial(_qr, complete=False), batches="none"),
    "qr_complete": _Factorisation(partial(_qr, complete=True), batches="none"),
}


def serves(dev: Cuda, op: str, shape: Shape) -> bool:
    """Whether an op on matrices of this shape is implemented here."""
    if op not in _DIRECT or dev.gpu.driver.cusolver is None:
        return False
    *batch, m, n = shape
    return not _DIRECT[op].loops(m, n) or size_of(tuple(batch)) <= _LOOP


def compute(dev: Cuda, op: str, *arrays: CudaArray, **params: Any) -> CudaArray:
    """The result of a supported op, computed now or when the recording runs."""
    out: CudaArray = _DIRECT[op].compute(dev, *arrays, **params)
    return out
