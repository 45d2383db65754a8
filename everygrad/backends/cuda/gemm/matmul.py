"""Matrix products: cuBLASLt for real and complex floats, a tiled kernel of our own for integers
(and for all on the dry device, which has no library)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.driver.cublaslt import BIAS_ALIGNMENT, GemmProblem, aux_step, uses
from everygrad.backends.cuda.kernels.copy_kernels import copied
from everygrad.backends.cuda.source.c_types import LAYOUTS, accumulator_dtype
from everygrad.backends.cuda.source.render import cast, constant, instruction
from everygrad.backends.cuda.source.writer import (
    BLOCK,
    KernelWriter,
    WrittenKernel,
    extent,
    is_wide,
)
from everygrad.backends.strided_views import permute_dims, reshape
from everygrad.compiler.expr import Inst
from everygrad.compiler.thresholds import edge
from everygrad.core import shapes
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import broadcast_strides, collapse
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

TILE = edge(__name__, "TILE", 64, "size")  # rows and columns of results for one block
DEPTH = edge(__name__, "DEPTH", 16, "size")  # terms of a tile that are in shared memory at a time
_EACH = edge(__name__, "_EACH", 4, "size")  # rows and columns of results for one thread
_SIDES_ALIGNED = 512  # bytes; side results behind a product are aligned as arrays are
WITH_EPILOGUES = (dtypes.float32, dtypes.float16, dtypes.bfloat16)


def _multiply_add(dtype: DType, a: str, b: str, c: str) -> str:
    product = instruction(Inst("mul", dtype, (0, 1)), [a, b], [dtype, dtype])
    return instruction(Inst("add", dtype, (0, 1)), [c, f"({product})"], [dtype, dtype])


def _write_tiles(
    dtype: DType, batch: Shape, sizes: tuple[int, int, int], x: Shape, y: Shape
) -> WrittenKernel:
    """`x` and `y` are strides: of the batch, then of the two axes."""
    rows, columns, terms = sizes
    count = size_of(batch)
    lay, total = LAYOUTS[dtype], accumulator_dtype(dtype)
    register = LAYOUTS[total].register
    reach = (extent((*batch, rows, terms), x), extent((*batch, terms, columns), y))
    w = KernelWriter("matmul", is_wide(*reach, count * rows * columns))
    w.pointer(lay.memory, "x")
    w.pointer(lay.memory, "y")
    w.pointer(lay.memory, "out", written=True)
    w.number(rows, "rows")
    w.number(columns, "columns")
    w.number(terms, "terms")
    w.number(count, "count")
    xm, xk = (w.number(s) for s in x[-2:])
    yk, yn = (w.number(s) for s in y[-2:])
    w.add(
        f"__shared__ alignas(16) char shared[{2 * TILE * DEPTH * total.itemsize}];",
        f"{register}* left = ({register}*)shared;",
        f"{register}* right = left + {TILE * DEPTH};",
        f"const int tx = threadIdx.x % {TILE // _EACH}, ty = threadIdx.x / {TILE // _EACH};",
        f"const {w.index} m0 = ({w.index})blockIdx.y * {TILE}, "
        f"n0 = ({w.index})blockIdx.x * {TILE};",
        f"for ({w.index} b = blockIdx.z; b < count; b += gridDim.z) {{",
    )
    lines, names = w.split("b", batch, "i")
    w.add(
        *lines,
        f"const auto* px = x + ({w.address(names, x[:-2])});",
        f"const auto* py = y + ({w.address(names, y[:-2])});",
        f"{register} acc[{_EACH}][{_EACH}];",
        f"for (int i = 0; i < {_EACH}; ++i)",
        f"  for (int j = 0; j < {_EACH}; ++j) acc[i][j] = {constant(0, total)};",
        f"for ({w.index} k0 = 0; k0 < terms; k0 += {DEPTH}) {{",
        "  __syncthreads();",
        f"  for (int t = threadIdx.x; t < {TILE * DEPTH}; t += {BLOCK}) {{",
        f"    const {w.index} m = m0 + t / {DEPTH}, k = k0 + t % {DEPTH};",
        "    const bool there = m < rows && k < terms;",
        f"    left[t % {DEPTH} * {TILE} + t / {DEPTH}] = there ? "
        f"{cast(lay.load.format(f'px[m * {xm} + k * {xk}]'), dtype, total)} : "
        f"{constant(0, total)};",
        f"    const {w.index} n = n0 + t % {TILE}, l = k0 + t / {TILE};",
        "    const bool inside = n < columns && l < terms;",
        f"    right[t] = inside ? "
        f"{cast(lay.load.format(f'py[l * {yk} + n * {yn}]'), dtype, total)} : "
        f"{constant(0, total)};",
        "  }",
        "  __syncthreads();",
        f"  for (int k = 0; k < {DEPTH}; ++k)",
        f"    for (int i = 0; i < {_EACH}; ++i)",
        f"      for (int j = 0; j < {_EACH}; ++j) {{",
        f"        const {register} u = left[k * {TILE} + ty * {_EACH} + i];",
        f"        const {register} v = right[k * {TILE} + tx * {_EACH} + j];",
        f"        acc[i][j] = {_multiply_add(total, 'u', 'v', 'acc[i][j]')};",
        "      }",
        "}",
        f"for (int i = 0; i < {_EACH}; ++i)",
        f"  for (int j = 0; j < {_EACH}; ++j) {{",
        f"    const {w.index} m = m0 + ty * {_EACH} + i, n = n0 + tx * {_EACH} + j;",
        f"    if (m < rows && n < columns) out[(b * rows + m) * columns + n] = "
        f"{lay.store.format(cast('acc[i][j]', total, dtype, rounds=False))};",
        "  }",
        "}",
    )
    return w.finish((-(-columns // TILE), -(-rows // TILE), min(count, 65535)))


# --- by cuBLASLt ---------------------------------------------------------------------------------


class MatrixLayout(NamedTuple):
    """A matrix as cuBLASLt takes it: stored transposed or not, with the stride of stored rows."""

    transposed: bool
    step: int


def matrix_layout(shape: Shape, strides: Shape) -> MatrixLayout | None:
    """The layout of a matrix (rows, columns); None where it must be copied first."""
    rows, columns = shape
    down, along = strides
    if (along == 1 or columns == 1) and (down >= columns or rows == 1):
        return MatrixLayout(False, max(down if rows > 1 else 0, columns))
    if (down == 1 or rows == 1) and (along >= rows or columns == 1):
        return MatrixLayout(True, max(along if columns > 1 else 0, rows))
    return None


def _laid_out(dev: Cuda, a: CudaArray) -> tuple[CudaArray, MatrixLayout]:
    side = matrix_layout(a.shape[-2:], a.strides[-2:])
    if side is None or min(a.strides[:-2], default=0) < 0:
        a = copied(dev, a)
        side = MatrixLayout(False, a.shape[-1])
    return a, side


def _alignment(*addresses: int) -> int:
    """The largest power of two up to 16 that divides all."""
    combined = 16
    for address in addresses:
        combined |= address
    return combined & -combined


def _by_library(
    dev: Cuda, x: CudaArray, y: CudaArray, batch: Shape, bias: CudaArray | None = None
) -> CudaArray:
    dtype = FROM_NP[x.dtype]
    (x, left), (y, right) = _laid_out(dev, x), _laid_out(dev, y)
    m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
    out: CudaArray = dev.empty((*batch, m, n), dtype)
    sides = [broadcast_strides(a.shape[:-2], a.strides[:-2], batch) for a in (x, y)]
    sizes, steps = collapse(batch, sides)
    size = dtype.itemsize
    rest = sizes[:-1]  # axes of the batch that one call does not cover
    each = m * n * sizes[-1]
    for i, place in enumerate(np.ndindex(*rest)):
        start_x, start_y = (
            a.ptr + size * sum(p * s for p, s in zip(place, step, strict=False))
            for a, step in zip((x, y), steps, strict=True)
        )
        target = out.ptr + size * each * i
        problem = GemmProblem(
            *(m, n, k, dtype, left.step, right.step, n, left.transposed, right.transposed),
            batch=sizes[-1],
            stride_a=steps[0][-1],
            stride_b=steps[1][-1],
            stride_d=m * n,
            tf32=dev.tf32,
            epilogue="none" if bias is None else "bias",
            alignment=_alignment(start_x, start_y, target),
        )
        _put(dev, problem, start_x, start_y, target, 0 if bias is None else bias.ptr)
    return out


def _put(
    dev: Cuda, problem: GemmProblem, x: int, y: int, out: int, bias: int = 0, aux: int = 0
) -> None:
    """Launch one product of cuBLASLt on these addresses."""
    lt = dev.gpu.driver.lt
    plan = lt.plan(problem)
    # tuning may still choose another algorithm
    may_need = plan.workspace or (plan.is_large and not plan.tuned)
    space = dev.gpu.workspace(lt.workspace) if may_need else 0
    dev.gpu.call(lt.run, plan, dev.gpu.driver.stream, x, y, 0, out, bias, aux, space)


# --- with an epilogue that has operands or results of its own -------------------------------------


class MatrixOperand(NamedTuple):
    """A matrix in memory: its address, or its offset from an aligned one."""

    shape: Shape
    strides: Shape
    address: int


def problem_with(
    epilogue: str, dtype: DType, x: MatrixOperand, y: MatrixOperand, tf32: bool
) -> GemmProblem | None:
    """x @ y with an epilogue; None where an operand must be copied first."""
    left, right = (matrix_layout(a.shape, a.strides) for a in (x, y))
    if left is None or right is None:
        return None
    (m, k), (_, n) = x.shape, y.shape
    return GemmProblem(
        *(m, n, k, dtype, left.step, right.step, n, left.transposed, right.transposed),
        tf32=tf32,
        epilogue=epilogue,
        aux_ld=aux_step(epilogue, n),
        alignment=_alignment(x.address, y.address),
    )


class ResultSlice(NamedTuple):
    """One of several results in a flat array: its offset and its number of elements."""

    at: int
    size: int


class EpilogueResults(NamedTuple):
    """The product, the aux that its epilogue stores for backward, and sums; in elements."""

    product: ResultSlice
    aux: ResultSlice
    sums: ResultSlice

    @property
    def size(self) -> int:
        return max(p.at + p.size for p in self)

    @property
    def is_one(self) -> bool:
        """Whether there is nothing but the product."""
        return not (self.aux.size or self.sums.size)


def results(epilogue: str, m: int, n: int, dtype: DType) -> EpilogueResults:
    """Where a product (m, n) with an epilogue puts its results."""
    step = _SIDES_ALIGNED // dtype.itemsize
    use, ld = uses(epilogue), aux_step(epilogue, n)
    bits = ld if "relu" in epilogue else ld * dtype.itemsize * 8
    aux = m * bits // 8 // dtype.itemsize if use.writes_aux else 0
    sums = {"": 0, "m": m, "n": n}[use.sums]
    behind = -(-m * n // step) * step
    return EpilogueResults(
        ResultSlice(0, m * n),
        ResultSlice(behind, aux),
        ResultSlice(-(-(behind + aux) // step) * step, sums),
    )


def matmul_epilogue(
    dev: Cuda, x: CudaArray, y: CudaArray, *others: CudaArray, epilogue: str
) -> Any:
    """x @ y of matrices, with an epilogue. `others` are the bias and the aux that it reads. Several
    results are in one flat array, as `results` says. NotImplemented where an operand must be copied
    first."""
    dtype, use = FROM_NP[x.dtype], uses(epilogue)
    (m, _), (_, n) = x.shape, y.shape
    left, right = (MatrixOperand(a.shape, a.strides, a.ptr) for a in (x, y))
    problem = problem_with(epilogue, dtype, left, right, dev.tf32)
    if problem is None:
        return NotImplemented
    where = results(epilogue, m, n, dtype)
    out: CudaArray = dev.empty((m, n) if where.is_one else (where.size,), dtype)
    given = [a.ptr for a in others]
    bias = given.pop(0) if use.reads_bias else out.ptr + where.sums.at * dtype.itemsize
    aux = given.pop(0) if use.reads_aux else out.ptr + where.aux.at * dtype.itemsize
    if not (use.reads_bias or use.sums):
        bias = 0
    if not (use.reads_aux or use.writes_aux):
        aux = 0
    _put(dev, problem, x.ptr, y.ptr, out.ptr, bias, aux)
    return out


# --- the ops -------------------------------------------------------------------------------------


def matmul(dev: Cuda, x: CudaArray, y: CudaArray) -> CudaArray:
    if x.shape[-1] != y.shape[-2]:
        raise ValueError("inner sizes differ")
    if len(y.shape) == 2 and len(x.shape) > 2 and x.is_contiguous:  # as one taller matrix
        tall = reshape(dev, x, (size_of(x.shape[:-1]), x.shape[-1]))
        return reshape(dev, matmul(dev, tall, y), (*x.shape[:-1], y.shape[-1]))
    batch = shapes.broadcast("matmul", x.shape[:-2], y.shape[:-2])
    shape = (*batch, x.shape[-2], y.shape[-1])
    dtype = FROM_NP[x.dtype]
    if not size_of(shape):
        return dev.empty(shape, dtype)
    if x.storage is None or y.storage is None:
        return dev.full(shape, 0, dtype)
    if dtype.is_differentiable and dev.gpu.driver.lt is not None:
        return _by_library(dev, x, y, batch)
    return _by_tiles(dev, x, y, batch)


def _by_tiles(dev: Cuda, x: CudaArray, y: CudaArray, batch: Shape) -> CudaArray:
    dtype = FROM_NP[x.dtype]
    sides = [broadcast_strides(a.shape[:-2], a.strides[:-2], batch) for a in (x, y)]
    sizes, steps = collapse(batch, sides)
    out: CudaArray = dev.empty((*batch, x.shape[-2], y.shape[-1]), dtype)
    left, right = (*steps[0], *x.strides[-2:]), (*steps[1], *y.strides[-2:])
    matrix = (x.shape[-2], y.shape[-1], x.shape[-1])
    key = ("matmul", dtype, sizes, matrix, left, right)
    kernel = dev.planned(key, lambda: _write_tiles(dtype, sizes, matrix, left, right))
    dev.gpu.launch(kernel, x.ptr, y.ptr, out.ptr)
    return out


def linear(dev: Cuda, x: CudaArray, w: CudaArray) -> CudaArray:
    return matmul(dev, x, permute_dims(dev, w, (1, 0)))


def linear_weight(dev: Cuda, v: CudaArray, x: CudaArray) -> CudaArray:
    rows = size_of(x.shape[:-1])
    flat = reshape(dev, v, (rows, v.shape[-1]))
    return matmul(dev, permute_dims(dev, flat, (1, 0)), reshape(dev, x, (rows, x.shape[-1])))


def linear_bias(dev: Cuda, x: CudaArray, w: CudaArray, b: CudaArray) -> Any:
    """The product with a bias epilogue; NotImplemented where cuBLASLt does not take it."""
    serves = FROM_NP[x.dtype] in WITH_EPILOGUES and dev.gpu.driver.lt is not None
    aligned = b.ptr % BIAS_ALIGNMENT == 0 and b.strides == (1,)
    whole = x.storage is not None and w.storage is not None and x.is_contiguous
    if not (serves and aligned and whole):
        return NotImplemented
    tall = reshape(dev, x, (size_of(x.shape[:-1]), x.shape[-1]))
    out = _by_library(dev, tall, permute_dims(dev, w, (1, 0)), (), b)
    return reshape(dev, out, (*x.shape[:-1], w.shape[0]))
