"""Linear systems: triangular matrices, LU with pivoting, solve, inv, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import abs as absolute, imag, real, where
from everygrad.ops.index.gather import taken_along
from everygrad.ops.linalg.checks import (
    SINGULAR,
    adjoint,
    broadcast_batch,
    checked,
    columns,
    diagonal_of,
    ensure,
    firm,
    identity,
    over_leading,
    rounded,
    rows,
    together,
    unrolled,
    widened,
)
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.python.creation import arange, zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.record.splits import leading, solve_axes
from everygrad.ops.shape.joining import concat, tril, triu

# --- triangular systems --------------------------------------------------------------------------


def _substituted(a: Tensor, b: Tensor, upper: bool, unit: bool) -> Tensor:
    """Forward substitution, one row after the other; upper matrices are flipped first."""
    n = a.shape[-1]
    unrolled("solve_triangular", a, n)
    if upper:
        flipped = _substituted(a.flip((-2, -1)), b.flip(-2), False, unit)
        return flipped.flip(-2)
    if not n:
        return b
    found = []
    for k in range(n):
        row = rows(b, 0, 1)
        found.append(row if unit else row / columns(rows(a, 0, 1), 0, 1))
        rest = n - k - 1
        b = rows(b, 1, rest) - columns(rows(a, 1, rest), 0, 1) * found[-1]
        a = columns(rows(a, 1, rest), 1, rest)
    return concat(found, axis=-2)


def _triangular_portable(a: Tensor, b: Tensor, upper: bool, unit: bool) -> Tensor:
    out = _substituted(a, b, upper, unit)
    return out if unit else _regular("solve_triangular", out, a)


def _regular(op: str, x: Tensor, triangle: Tensor) -> Tensor:
    """x, if no triangular matrix has a 0 on its diagonal."""
    ok = (diagonal_of(triangle) != 0).all(axis=-1, keepdims=True).expand_dims(-1)
    return ensure(x, ok, f"{op}: {SINGULAR}", ArgumentError)


def _half(x: Tensor, upper: bool, unit: bool) -> Tensor:
    """The elements that a triangular solver reads, the others zero."""
    if upper:
        return triu(x, 1 if unit else 0)
    return tril(x, -1 if unit else 0)


def _triangular_da(g: Tensor, out: Tensor, a: Tensor, upper: bool, unit: bool) -> Tensor:
    back = apply(TRIANGULAR, adjoint(a), g, upper=not upper, unit=unit)
    return -_half(matmul(back, adjoint(out)), upper, unit)


def _triangular_jvp(
    out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any], upper: bool, unit: bool
) -> Tensor:
    (a, b), (da, db) = inputs, tangents
    moved = zeros(b.shape, b.dtype, b.device) if db is None else db
    if da is not None:
        moved = moved - matmul(_half(da, upper, unit), out)
    return apply(TRIANGULAR, a, moved, upper=upper, unit=unit)


TRIANGULAR: Kernel = Kernel(
    "solve_triangular",
    _triangular_portable,
    ("a", "b"),
    (
        _triangular_da,
        lambda g, a, upper, unit: apply(TRIANGULAR, adjoint(a), g, upper=not upper, unit=unit),
    ),
    jvp=_triangular_jvp,
    batch=over_leading(lambda: TRIANGULAR),
    result=lambda a, b, upper, unit: (b.shape, b.dtype),
    failure=SINGULAR,
    splits=solve_axes,
)


def triangular(a: Tensor, b: Tensor, upper: bool, unit: bool = False) -> Tensor:
    """a^-1 b for triangular matrices whose batches broadcast."""
    a, b = broadcast_batch("solve_triangular", a, b)
    return apply(TRIANGULAR, a, b, upper=upper, unit=unit)


def _fits(op: str, a: Tensor, b: Tensor, left: bool) -> None:
    need = b.shape[-2] if left else b.shape[-1]
    if a.shape[-1] != need:
        raise ShapeError(
            f"{op}: a matrix of {a.shape} does not fit a right side of {b.shape}: "
            f"sizes {a.shape[-1]} and {need} differ"
        )


def solve_triangular(
    A: Tensor,  # noqa: N803  # PyTorch's names
    B: Tensor,  # noqa: N803
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    """X with A X = B, or X A = B if not `left`; only one triangle of A is read. A `unitriangular`
    matrix has ones on its diagonal, whatever stands there."""
    a, b = together("solve_triangular", A, B)
    dtype = a.dtype
    a, b = checked("solve_triangular", a, square=True), checked("solve_triangular", b)
    _fits("solve_triangular", a, b, left)
    if left:
        return rounded(triangular(a, b, bool(upper), bool(unitriangular)), dtype)
    transposed = triangular(
        a.matrix_transpose(), b.matrix_transpose(), not upper, bool(unitriangular)
    )
    return rounded(transposed.matrix_transpose(), dtype)


def _firmer(x: Tensor) -> Tensor:
    """`firm`, of what is not to be refused."""
    return firm(x) if x.dtype.is_differentiable and x.shape[-1:] == x.shape[-2:-1] else x


def _steady(n: int, seed: int = 0) -> Any:
    """A matrix far from singular."""
    return s.real(n, n, seed=seed) * 0.5 + 2 * np.eye(n)


register(
    TRIANGULAR,
    solve_triangular,
    reference="tests.support.references.linalg:solve_triangular",
    namespace="linalg",
    kinds="float",
    samples=lambda: iter(
        (
            sample(_steady(3), s.real(3, 2), upper=False),
            sample(
                np.stack([_steady(2), _steady(2, 1)]),
                s.real(3, 2),
                upper=True,
                left=False,
                unitriangular=True,
            ),
        )
    ),
    refuses=(
        refuse(
            ShapeError,
            r"solve_triangular: needs square matrices, got shape \(2, 3\)",
            s.real(2, 3),
            s.real(2, 2),
            upper=True,
        ),
        refuse(ShapeError, "sizes 2 and 3 differ", s.real(2, 2), s.real(3, 2), upper=True),
        refuse(DtypeError, "solve_triangular: does not take int64", s.integers(2, 2),
               s.integers(2, 2), upper=True),
    ),
)  # fmt: skip


# --- LU ------------------------------------------------------------------------------------------


def _magnitude(x: Tensor) -> Tensor:
    """What LAPACK chooses pivots by."""
    return absolute(real(x)) + absolute(imag(x)) if x.dtype.is_complex else absolute(x)


def _eliminated(x: Tensor) -> Tensor:
    """Gaussian elimination with partial pivoting, in place of x: one column after the other."""
    m, n = x.shape[-2:]
    count = min(m, n)
    unrolled("lu_factor", x, count)
    down = arange(m, device=x.device).reshape(m, 1)
    across = arange(n, device=x.device)
    pivots = []
    for k in range(count):
        candidates = where(down >= k, _magnitude(columns(x, k, 1).detach()), -1.0)
        pivot = candidates.argmax(axis=-2, keepdims=True)
        pivots.append(pivot)
        order = where(down == k, pivot, where(down == pivot, k, down))
        x = taken_along(x, order, axis=-2)
        corner = columns(rows(x, k, 1), k, 1)
        scale = columns(x, k, 1) / where(corner == 0, 1.0, corner)
        scale = where((down > k) & (corner != 0), scale, 0.0)
        rest = where(across > k, rows(x, k, 1), 0.0)
        x = where((down > k) & (across == k) & (corner != 0), scale, x - scale * rest)
    return concat([x, _column(pivots, x)], axis=-1)


def _column(pivots: list[Tensor], x: Tensor) -> Tensor:
    """The rows exchanged, as a last column."""
    shape = (*x.shape[:-2], x.shape[-2] - len(pivots), 1)
    rest = zeros(shape, x.dtype, x.device)
    return concat([*(p.astype(x.dtype) for p in pivots), rest], axis=-2)


def unpacked(packed: Tensor) -> tuple[Tensor, Tensor]:
    """L with its ones, and U."""
    m, n = packed.shape[-2], packed.shape[-1] - 1
    k = min(m, n)
    lower = tril(columns(packed, 0, k), -1)
    ones = identity(max(m, k), packed)
    return lower + columns(rows(ones, 0, m), 0, k), triu(columns(rows(packed, 0, k), 0, n))


def pivots_of(packed: Tensor) -> Tensor:
    """The rows exchanged with each row in turn, counted from 0."""
    m, n = packed.shape[-2], packed.shape[-1] - 1
    column = rows(columns(packed, n, 1), 0, min(m, n))
    column = real(column) if column.dtype.is_complex else column
    return column.reshape(column.shape[:-1]).astype(dtypes.int64)


def _ordered(x: Tensor, packed: Tensor) -> Tensor:
    """The rows of x in the order that pivoting gave them."""
    order = apply(ROW_ORDER, pivots_of(packed), size=x.shape[-2])
    return taken_along(x, order.expand_dims(-1), axis=-2)


def permutation(packed: Tensor) -> Tensor:
    """P of x = P L U."""
    m = packed.shape[-2]
    order = apply(ROW_ORDER, pivots_of(packed), size=m)
    places = arange(m, device=packed.device).reshape(m, 1)
    return (places == order.expand_dims(-2)).astype(packed.dtype)


def _lu_dx(g: Tensor, out: Tensor) -> Tensor:
    """The square part by triangular solves, the part beyond it first."""
    m, n = out.shape[-2], out.shape[-1] - 1
    k = min(m, n)
    lower, upper = unpacked(out)
    gl = tril(columns(g, 0, k), -1)
    gu = triu(columns(rows(g, 0, k), 0, n))
    first, left = rows(lower, 0, k), columns(upper, 0, k)
    gl1, gu1 = rows(gl, 0, k), columns(gu, 0, k)
    beyond = None
    if m > k:
        back = _from_right(left, rows(gl, k, m - k))
        gu1 = gu1 - matmul(adjoint(rows(lower, k, m - k)), back)
        beyond = back
    elif n > k:
        back = triangular(adjoint(first), columns(gu, k, n - k), upper=True, unit=True)
        gl1 = gl1 - matmul(back, adjoint(columns(upper, k, n - k)))
        beyond = back
    inner = tril(matmul(adjoint(first), gl1), -1) + triu(matmul(gu1, adjoint(left)))
    inner = triangular(adjoint(first), inner, upper=True, unit=True)
    inner = _from_right(left, inner)
    if beyond is not None:
        inner = concat([inner, beyond], axis=-2 if m > k else -1)
    return matmul(permutation(out.detach()), inner)


def _from_right(upper: Tensor, x: Tensor) -> Tensor:
    """x times the inverse of the conjugate transpose of an upper matrix."""
    return adjoint(triangular(upper, adjoint(x), upper=True))


def _lu_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    m, n = out.shape[-2], out.shape[-1] - 1
    k = min(m, n)
    lower, upper = unpacked(out)
    moved = _ordered(tangents[0], out)
    first, left = rows(lower, 0, k), columns(upper, 0, k)
    inner = triangular(first, columns(rows(moved, 0, k), 0, k), upper=False, unit=True)
    inner = _over(left, inner)
    dl = matmul(first, tril(inner, -1))
    du = matmul(triu(inner), left)
    if m > k:
        below = rows(moved, k, m - k) - matmul(rows(lower, k, m - k), du)
        dl = concat([dl, _over(left, below)], axis=-2)
    elif n > k:
        right = columns(moved, k, n - k) - matmul(dl, columns(upper, k, n - k))
        du = concat([du, triangular(first, right, upper=False, unit=True)], axis=-1)
    zero = zeros((*out.shape[:-2], m, 1), out.dtype, out.device)
    return concat([_grown(dl, m, n) + _grown(du, m, n), zero], axis=-1)


def _over(upper: Tensor, x: Tensor) -> Tensor:
    """x times the inverse of an upper matrix."""
    transposed = triangular(upper.matrix_transpose(), x.matrix_transpose(), upper=False)
    return transposed.matrix_transpose()


def _grown(x: Tensor, m: int, n: int) -> Tensor:
    """x with rows and columns of zeros up to (m, n)."""
    more = (*((0, 0),) * (x.ndim - 2), (0, m - x.shape[-2]), (0, n - x.shape[-1]))
    return x.pad(more)


LU: Kernel = Kernel(
    "lu_factor",
    _eliminated,
    ("x",),
    (_lu_dx,),
    jvp=_lu_jvp,
    batch=over_leading(lambda: LU),
    result=lambda x: ((*x.shape[:-1], x.shape[-1] + 1), x.dtype),
    splits=leading(2),
)


def _lexsort_rows_portable(pivots: Tensor, size: int) -> Tensor:
    places = arange(size, device=pivots.device)
    order = places.broadcast_to((*pivots.shape[:-1], size))
    for k in range(pivots.shape[-1]):
        p = columns(pivots, k, 1)
        here, there = columns(order, k, 1), taken_along(order, p, axis=-1)
        order = where(places == k, there, where(places == p, here, order))
    return order


ROW_ORDER: Kernel = Kernel(
    "lexsort_rows",
    _lexsort_rows_portable,
    ("pivots",),
    constant=True,
    batch=lambda xs, size: apply(ROW_ORDER, xs[0], size=size),
    result=lambda pivots, size: ((*pivots.shape[:-1], size), pivots.dtype),
)
register(
    ROW_ORDER,
    lambda pivots, size: apply(ROW_ORDER, pivots, size=size),
    reference="tests.support.references.linalg:lexsort_rows",
    namespace="internal",
    samples=lambda: iter((sample(np.array([2, 2, 2]), 4), sample(np.array([[1, 1], [0, 1]]), 2))),
)


class LUFactorResult(NamedTuple):
    """L below the diagonal (ones on it are not stored), U on and above it; pivots count from 1."""

    LU: Tensor
    pivots: Tensor


def lu_factor(A: Tensor) -> LUFactorResult:  # noqa: N803  # PyTorch's name
    """The LU factors of A in one matrix, and the row each row was exchanged with, counted from 1:
    what lu_solve takes."""
    x = checked("lu_factor", A)
    packed = apply(LU, x)
    return LUFactorResult(
        rounded(columns(packed, 0, x.shape[-1]), A.dtype), pivots_of(packed).detach() + 1
    )


register(
    LU,
    lu_factor,
    reference="tests.support.references.linalg:lu_factor",
    tested_as=lambda x: lu_factor(x).LU,
    namespace="linalg",
    kinds="float",
    samples=lambda: iter(
        (sample(s.real(3, 3)), sample(s.real(2, 3)), sample(s.real(2, 3, 2, seed=1)))
    ),
    refuses=(
        refuse(ShapeError, "lu_factor: needs matrices, 2 dimensions or more", s.real(3)),
        refuse(DtypeError, "lu_factor: does not take int64", s.integers(2, 2)),
    ),
)


class LUResult(NamedTuple):
    """A = P @ L @ U."""

    P: Tensor
    L: Tensor
    U: Tensor


@composite(
    methods=(),
    namespace="linalg",
    kinds="float",
    reference="tests.support.references.linalg:lu",
    tested_as=lambda x: lu(x)[1:],
    samples=lambda: iter((sample(s.real(3, 3)), sample(s.real(2, 3, seed=1)))),
    refuses=(refuse(ShapeError, "lu: needs matrices", s.real(3)),),
)
def lu(A: Tensor) -> LUResult:  # noqa: N803  # PyTorch's name
    """A = P @ L @ U with a permutation P, L lower with ones on its diagonal and U upper."""
    packed = apply(LU, checked("lu", A))
    lower, upper = unpacked(packed)
    order = permutation(packed.detach())
    return LUResult(*(rounded(t, A.dtype) for t in (order, lower, upper)))


@composite(
    methods=(),
    namespace="linalg",
    kinds="float",
    reference="tests.support.references.linalg:lu_solve",
    samples=lambda: iter((sample(_steady(3), np.array([2, 2, 3]), s.real(3, 2)),)),
    refuses=(
        refuse(ShapeError, "sizes 2 and 3 differ", s.real(2, 2), np.array([1, 2]), s.real(3, 2)),
        refuse(DtypeError, "pivots must be integers", s.real(2, 2), s.real(2), s.real(2, 2)),
    ),
)
def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor) -> Tensor:  # noqa: N803  # PyTorch's names
    """X with A X = B, from lu_factor(A)."""
    a, b = together("lu_solve", LU, B)
    dtype = a.dtype
    a, b = checked("lu_solve", a, square=True), checked("lu_solve", b)
    _fits("lu_solve", a, b, left=True)
    if not pivots.dtype.is_integer or pivots.shape != a.shape[:-1]:
        raise DtypeError(
            f"lu_solve: pivots must be integers of shape {a.shape[:-1]}, got "
            f"{pivots.dtype}{list(pivots.shape)}"
        )
    order = apply(ROW_ORDER, pivots.astype(dtypes.int64) - 1, size=a.shape[-1])
    a, b = broadcast_batch("lu_solve", a, b)
    b = taken_along(b, order.expand_dims(-1), axis=-2)
    b = triangular(a, b, upper=False, unit=True)
    return rounded(triangular(a, b, upper=True), dtype)


# --- solve and inv -------------------------------------------------------------------------------


def _solve_portable(a: Tensor, b: Tensor, op: str = "solve") -> Tensor:
    packed = apply(LU, a)
    factors = columns(packed, 0, a.shape[-1])
    factors = _regular(op, factors, factors)
    b = triangular(factors, _ordered(b, packed), upper=False, unit=True)
    return triangular(factors, b, upper=True)


def _solve_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    (a, b), (da, db) = inputs, tangents
    moved = zeros(b.shape, b.dtype, b.device) if db is None else db
    return apply(SOLVE, a, moved if da is None else moved - matmul(da, out))


class _Solve(Kernel):
    """Both gradients come from one solution, which each rule by itself would find again."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        out, a, _ = self.restore(node, create_graph)
        of_a, of_b = node.parents
        moved = apply(SOLVE, adjoint(a), g)
        return (
            None if of_a is None else -matmul(moved, adjoint(out)),
            None if of_b is None else moved,
        )


SOLVE: Kernel = _Solve(
    "solve",
    _solve_portable,
    ("a", "b"),
    (
        lambda g, out, a: -matmul(apply(SOLVE, adjoint(a), g), adjoint(out)),
        lambda g, a: apply(SOLVE, adjoint(a), g),
    ),
    jvp=_solve_jvp,
    batch=over_leading(lambda: SOLVE),
    result=lambda a, b: (b.shape, b.dtype),
    failure=SINGULAR,
    splits=solve_axes,
)


def solve(x1: Tensor, x2: Tensor) -> Tensor:
    """X with x1 X = x2. One-dimensional x2 is a vector, any other a batch of matrices. A singular
    matrix is refused."""
    a, b = together("solve", x1, x2)
    dtype = a.dtype
    a, b = checked("solve", a, square=True), widened(b)
    vector = b.ndim == 1
    b = b.expand_dims(-1) if vector else checked("solve", b)
    _fits("solve", a, b, left=True)
    out = rounded(apply(SOLVE, *broadcast_batch("solve", a, b)), dtype)
    return out.squeeze(-1) if vector else out


register(
    SOLVE,
    solve,
    reference="tests.support.references.linalg:solve",
    tested_as=lambda a, b: solve(_firmer(a), b),
    namespace="linalg",
    kinds="float",
    samples=lambda: iter(
        (
            sample(s.real(3, 3), s.real(3, 2)),
            sample(s.real(2, 2, 2), s.real(2)),
            sample(s.real(0, 0), s.real(0, 2)),
        )
    ),
    refuses=(
        refuse(ShapeError, "solve: needs square matrices", s.real(2, 3), s.real(2, 2)),
        refuse(ShapeError, "solve: .* sizes 2 and 3 differ", s.real(2, 2), s.real(3)),
        refuse(DtypeError, "solve: does not take int64", s.integers(2, 2), s.integers(2, 2)),
    ),
)

INV: Kernel = Kernel(
    "inv",
    lambda x: _solve_portable(x, identity(x.shape[-1], x).broadcast_to(x.shape), "inv"),
    ("x",),
    (lambda g, out: -matmul(matmul(adjoint(out), g), adjoint(out)),),
    jvp=lambda out, inputs, tangents: -matmul(matmul(out, tangents[0]), out),
    batch=over_leading(lambda: INV),
    result=lambda x: (x.shape, x.dtype),
    failure=SINGULAR,
    splits=leading(2),
)


def inv(x: Tensor) -> Tensor:
    """The inverse of each matrix; solve() is quicker and more exact where one is applied."""
    return rounded(apply(INV, checked("inv", x, square=True)), x.dtype)


register(
    INV,
    inv,
    reference="tests.support.references.linalg:inv",
    tested_as=lambda x: inv(_firmer(x)),
    namespace="linalg",
    kinds="float",
    samples=lambda: iter((sample(s.real(3, 3)), sample(s.real(2, 2, 2)), sample(s.real(0, 0)))),
    refuses=(
        refuse(ShapeError, r"inv: needs square matrices, got shape \(2, 3\)", s.real(2, 3)),
        refuse(DtypeError, "inv: does not take bool", s.booleans(2, 2)),
    ),
)


@composite(
    methods=(),
    namespace="linalg",
    kinds="float",
    reference="tests.support.references.linalg:cholesky_solve",
    samples=lambda: iter(
        (
            sample(s.real(3, 2), _steady(3)),
            sample(s.real(2, 2, 1), _steady(2), upper=True),
        )
    ),
    refuses=(refuse(ShapeError, "sizes 2 and 3 differ", s.real(3, 2), s.real(2, 2)),),
)
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:  # noqa: N803
    """X with A X = B, from L = cholesky(A), or from its conjugate transpose if `upper`."""
    b, factor = together("cholesky_solve", B, L)
    dtype = b.dtype
    factor, b = checked("cholesky_solve", factor, square=True), checked("cholesky_solve", b)
    _fits("cholesky_solve", factor, b, left=True)
    lower = adjoint(factor) if upper else factor
    b = triangular(lower, b, upper=False)
    return rounded(triangular(adjoint(lower), b, upper=True), dtype)
