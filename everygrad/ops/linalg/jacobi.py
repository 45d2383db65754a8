"""Eigenvalues and singular values by Jacobi's rotations, in tensor ops: for devices without LAPACK.

Half of the rows are paired with the other half, all pairs are rotated at once, and the partners
change as in a tournament until each has met each: one sweep. A fixed number of sweeps, so that
nothing is read on the host; convergence is quadratic, and the number is what the dtype needs.
"""

from __future__ import annotations

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import abs as absolute, isfinite, sqrt, where
from everygrad.ops.index.gather import taken
from everygrad.ops.linalg.checks import (
    NOT_FINITE,
    adjoint,
    as_kind,
    columns,
    diagonal_of,
    ensure,
    identity,
    real_part,
    rows,
    unrolled,
)
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.python.creation import arange, tensor, zeros
from everygrad.ops.record.families import Kernel
from everygrad.ops.shape.joining import concat


def _finite(op: str, x: Tensor) -> Tensor:
    """x, if LAPACK would take it."""
    ok = isfinite(absolute(x)).all(axis=(-2, -1), keepdims=True)
    return ensure(x, ok, f"{op}: {NOT_FINITE}", ArgumentError)


def _sweeps(x: Tensor, n: int) -> int:
    """One more than was enough for every matrix tried; a single pair is done at once."""
    few = dtypes.real_of(x.dtype) is dtypes.float32
    return (2 if few else 3) + n.bit_length() if n > 2 else 2


def _rounds(n: int) -> tuple[int, list[int]]:
    """How many rounds a tournament of n (even) has, and who sits where in the next one: the first
    stays, the others move on by one place round the table."""
    half = n // 2
    table = [*range(half), *range(n - 1, half - 1, -1)]  # along one side, and back on the other
    moved = [table[0], table[-1], *table[1:-1]]
    seat = {who: table[i] for i, who in enumerate(moved)}
    return n - 1, [next(w for w in range(n) if seat[w] == place) for place in range(n)]


def _rotation(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The cosine, and the sine with its phase, that take c out of [[a, c], [conj(c), b]]."""
    size = absolute(c)
    still = size == 0
    slope = (b - a) / where(still, 1.0, 2.0 * size)
    tangent = where(slope >= 0, 1.0, -1.0) / (absolute(slope) + sqrt(1.0 + slope * slope))
    cosine = where(still, 1.0, 1.0 / sqrt(1.0 + tangent * tangent))
    phase = c / as_kind(where(still, 1.0, size), c)
    return as_kind(cosine, c), phase * as_kind(where(still, 0.0, cosine * tangent), c)


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Columns of the first half and their partners of the second, rotated."""
    half = x.shape[-1] // 2
    p, q = columns(x, 0, half), columns(x, half, half)
    cosine, sine = cosine.expand_dims(-2), sine.expand_dims(-2)
    back = sine.conj() if sine.dtype.is_complex else sine
    return concat([cosine * p - back * q, sine * p + cosine * q], axis=-1)


def _even(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """x with a row or column of zeros more where there is an odd number of them."""
    odd = x.shape[-1] % 2
    return x.pad(tuple((0, odd if a - x.ndim in axes else 0) for a in range(x.ndim)))


def _ranked(values: Tensor, descending: bool) -> Tensor:
    """A permutation matrix: x @ it has the columns of x in the order of the values."""
    n = values.shape[-1]
    mine, other = values.expand_dims(-1), values.expand_dims(-2)
    place = arange(n, device=values.device)
    before = other > mine if descending else other < mine
    before = before | ((other == mine) & (place < place.reshape(n, 1)))
    rank = before.astype("int64").sum(axis=-1)
    return rank.expand_dims(-1) == place


def eigh_portable(x: Tensor) -> Tensor:
    """[values | vectors], the values rising; the lower triangle is what counts."""
    n = x.shape[-1]
    unrolled("eigh", x, n)
    lower = where(_is_lower(x), x, 0.0)
    strict = where(_is_lower(x, -1), x, 0.0)
    x = _finite("eigh", lower + adjoint(strict))
    if n < 2:
        return concat([as_kind(real_part(x), x), identity(n, x).broadcast_to(x.shape)], axis=-1)
    x = _even(x, (-1, -2))
    size = x.shape[-1]
    vectors = identity(size, x).broadcast_to(x.shape)
    rounds, seats = _rounds(size)
    order = tensor(seats, device=x.device)
    half = size // 2
    for _ in range(_sweeps(x, n) * rounds):
        diagonal = real_part(diagonal_of(x))
        cross = diagonal_of(columns(rows(x, 0, half), half, half))
        cosine, sine = _rotation(columns(diagonal, 0, half), columns(diagonal, half, half), cross)
        x = _turned(x, cosine, sine)
        x = adjoint(_turned(adjoint(x), cosine, sine))
        vectors = taken(_turned(vectors, cosine, sine), order, axis=-1)
        x = taken(taken(x, order, axis=-1), order, axis=-2)
    values = real_part(diagonal_of(x))
    # each is back in its seat after a sweep: the row of zeros, if there was one, is the last
    values, vectors = columns(values, 0, n), columns(rows(vectors, 0, n), 0, n)
    chosen = _ranked(values, descending=False).astype(x.dtype)
    both = concat([as_kind(values, x).expand_dims(-2), vectors], axis=-2)
    both = matmul(both, chosen)
    first = adjoint(rows(both, 0, 1))
    return concat([as_kind(real_part(first), x), rows(both, 1, n)], axis=-1)


def _is_lower(x: Tensor, k: int = 0) -> Tensor:
    n = x.shape[-1]
    place = arange(n, device=x.device)
    return place <= place.reshape(n, 1) + k


def svd_portable(x: Tensor, qr: Kernel) -> Tensor:
    """U's rows, one of singular values, then V's rows: one-sided rotations of the columns make
    them orthogonal, and a QR of these gives U, whole even where values are 0."""
    m, n = x.shape[-2:]
    if m < n:
        transposed = svd_portable(adjoint(x), qr)
        return concat(
            [rows(transposed, n + 1, m), rows(transposed, n, 1), rows(transposed, 0, n)], axis=-2
        )
    unrolled("svd", x, n)
    if n == 0:
        return zeros((*x.shape[:-2], m + 1, 0), x.dtype, x.device)
    x = _finite("svd", x)
    vectors = identity(n, x).broadcast_to((*x.shape[:-2], n, n))
    both = concat([x, vectors], axis=-2)
    if n > 1:
        both = _orthogonal(_even(both, (-1,)), m, _sweeps(x, n))
    both = columns(both, 0, n)
    size = _sizes(rows(both, 0, m))
    both = matmul(both, _ranked(size, descending=True).astype(x.dtype))
    made = apply(qr, rows(both, 0, m))
    corner = diagonal_of(rows(made, m, n)).expand_dims(-2)
    values = absolute(corner)
    still = values == 0
    sign = where(still, 1.0, corner / as_kind(where(still, 1.0, values), x))
    return concat([rows(made, 0, m) * sign, as_kind(values, x), rows(both, m, n)], axis=-2)


def _sizes(x: Tensor) -> Tensor:
    """The squared length of each column."""
    x = absolute(x)
    return (x * x).sum(axis=-2)


def _orthogonal(both: Tensor, m: int, sweeps: int) -> Tensor:
    """The first m rows of the columns made orthogonal, the rows below rotated with them."""
    size = both.shape[-1]
    half = size // 2
    rounds, seats = _rounds(size)
    order = tensor(seats, device=both.device)
    for _ in range(sweeps * rounds):
        x = rows(both, 0, m)
        p, q = columns(x, 0, half), columns(x, half, half)
        cross = ((p.conj() if p.dtype.is_complex else p) * q).sum(axis=-2)
        cosine, sine = _rotation(_sizes(p), _sizes(q), cross)
        both = taken(_turned(both, cosine, sine), order, axis=-1)
    return both
