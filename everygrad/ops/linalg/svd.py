"""Singular values, and what is made of them: the pseudo-inverse and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import DtypeError, ShapeError
from everygrad.ops.elementwise.basic import abs as absolute, maximum, where
from everygrad.ops.linalg.checks import (
    NOT_FINITE,
    adjoint,
    as_kind,
    checked,
    columns,
    diagonal_matrix,
    diagonal_of,
    ensure,
    eps_of,
    largest,
    moves_unless_empty,
    over_leading,
    real_part,
    rounded,
    rows,
    unknown,
    unless_empty,
    widening,
)
from everygrad.ops.linalg.cholesky_qr import QR, QR_COMPLETE
from everygrad.ops.linalg.eigen import apart, inverse_gaps, of_squares, phaseless, squared
from everygrad.ops.linalg.jacobi import svd_portable
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.linalg.parts import parts
from everygrad.ops.python.creation import arange, full
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.record.splits import leading
from everygrad.ops.shape.joining import concat

_SINGULAR = ("singular values", "singular vectors")


def _parts(packed: Tensor, shape: shapes.Shape) -> tuple[Tensor, Tensor, Tensor]:
    """U, the values in U's dtype, and V."""
    m, n = shape[-2:]
    u, values, v = parts(packed, (-2, 0, m), (-2, m, -1), (-2, m + 1, n))
    return u, values, v


def _over(x: Tensor, values: Tensor) -> Tensor:
    """The columns of x divided by the values; columns of zeros stay so even for values of 0."""
    low = values.detach().max(axis=-1, keepdims=True) * (eps_of(x) * max(x.shape[-2:]))
    gone = (values.detach() <= low).expand_dims(-2)
    some = absolute(x.detach()) > largest(x) * (10.0 * eps_of(x))
    x = ensure(
        x,
        (gone & some).logical_not(),
        "svd: the vectors of a singular value of 0 are undetermined, and a result depends on them; "
        "use only those of values above 0",
    )
    return x * as_kind(where(gone, 0.0, 1.0 / where(gone, 1.0, values.expand_dims(-2))), x)


def _beyond(x: Tensor, vectors: Tensor) -> Tensor:
    """The part of x outside the space of the vectors."""
    return x - matmul(vectors, matmul(adjoint(vectors), x))


def _square_gaps(values: Tensor) -> Tensor:
    """1 / (s_j^2 - s_i^2), 0 where they are equal."""
    sums = values.expand_dims(-2) + values.expand_dims(-1)
    safe = where(sums == 0, 1.0, sums)
    return inverse_gaps(values) / safe


def _svd_vjp_portable(g: Tensor, out: Tensor, m: int) -> Tensor:
    n = out.shape[-2] - m - 1
    shape = (*out.shape[:-2], m, n)
    (u, values, v), (gu, gs, gv) = _parts(out, shape), _parts(g, shape)
    values = real_part(values)
    size = as_kind(values, u).expand_dims(-2)
    gu, gv = apart("svd", _SINGULAR, values, gu, gv)
    left, right = matmul(adjoint(u), gu), matmul(adjoint(v), gv)
    phase = diagonal_of(left + right)
    left, right = (phaseless("svd", "singular vectors", x, phase, gs) for x in (left, right))
    phases = diagonal_of(left)
    left, right = left - adjoint(left), right - adjoint(right)
    gaps = as_kind(_square_gaps(values), u)
    inner = left * gaps * size + adjoint(size) * (right * gaps)
    diagonal = as_kind(real_part(gs), u)
    if u.dtype.is_complex:
        turn = (phases - as_kind(real_part(phases), u)).expand_dims(-2)
        diagonal = diagonal + _over(turn, values).reshape(diagonal.shape)
    inner = matmul(u, inner + diagonal_matrix(diagonal))
    if m > n:
        inner = inner + _over(_beyond(gu, u), values)
    made = matmul(inner, adjoint(v))
    if n > m:
        made = made + matmul(u, adjoint(_over(_beyond(gv, v), values)))
    return made


def _svd_dx(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    return apply(SVD_VJP, g, out, m=x.shape[-2])


def _svd_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    (x,), (moved,) = inputs, tangents
    u, values, v = _parts(out, x.shape)
    m, n = x.shape[-2:]
    values = real_part(values)
    size = as_kind(values, u).expand_dims(-2)
    inner = matmul(matmul(adjoint(u), moved), v)
    diagonal = diagonal_of(inner)
    ds = as_kind(real_part(diagonal), u)
    (inner,) = apart("svd", _SINGULAR, values, inner)
    gaps = as_kind(_square_gaps(values), u)
    left, right = inner * size, adjoint(size) * inner
    left, right = (left + adjoint(left)) * gaps, (right + adjoint(right)) * gaps
    if u.dtype.is_complex:
        turn = _over((diagonal - ds).expand_dims(-2), values).reshape(ds.shape)
        left = left + diagonal_matrix(turn)
    du, dv = matmul(u, left), matmul(v, right)
    if m > n:
        du = du + _over(_beyond(matmul(moved, v), u), values)
    if n > m:
        dv = dv + _over(_beyond(matmul(adjoint(moved), u), v), values)
    return concat([du, ds.expand_dims(-2), dv], axis=-2)


def _svd_shape(x: Any) -> tuple[shapes.Shape, dtypes.DType]:
    m, n = x.shape[-2:]
    return (*x.shape[:-2], m + 1 + n, min(m, n)), x.dtype


# no rules: differentiated again through the portable definition; m: how many rows are U's
SVD_VJP: Kernel = Kernel(
    "svd_vjp",
    _svd_vjp_portable,
    ("g", "out"),
    batch=over_leading(lambda: SVD_VJP),
    splits=leading(2, 2),
)
SVD: Kernel = Kernel(
    "svd",
    lambda x: svd_portable(x, QR),
    ("x",),
    (unless_empty(_svd_dx),),
    jvp=moves_unless_empty(_svd_jvp),
    batch=over_leading(lambda: SVD),
    result=_svd_shape,
    failure=NOT_FINITE,
    splits=leading(2),
)


def _completed(x: Tensor) -> Tensor:
    """Householder reflections of the vectors there are have the others in their last columns."""
    m, n = x.shape[-2:]
    u, values, v = _parts(apply(SVD, x), x.shape)
    u, v = _completed_columns(u), _completed_columns(v)
    batch = x.shape[:-2]
    parts = (u.reshape((*batch, m * m)), values, adjoint(v).reshape((*batch, n * n)))
    return concat(parts, axis=-1)


def _completed_columns(x: Tensor) -> Tensor:
    m, k = x.shape[-2:]
    if m == k:
        return x
    return concat([x, columns(apply(QR_COMPLETE, x), k, m - k)], axis=-1)


def _all_parts(flat: Tensor, shape: shapes.Shape) -> tuple[Tensor, Tensor, Tensor]:
    """U, the values, and V^H, as `SVD_COMPLETE` packs them."""
    m, n = shape[-2:]
    k, batch = min(m, n), shape[:-2]
    u = columns(flat, 0, m * m).reshape((*batch, m, m))
    vh = columns(flat, m * m + k, n * n).reshape((*batch, n, n))
    return u, columns(flat, m * m, k), vh


def _reduced(flat: Tensor, shape: shapes.Shape) -> Tensor:
    """As `SVD` packs it, without the vectors that complete U or V."""
    u, values, vh = _all_parts(flat, shape)
    k = min(shape[-2:])
    parts = [columns(u, 0, k), values.expand_dims(-2), adjoint(rows(vh, 0, k))]
    return concat(parts, axis=-2)


def _complete_dx(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    shape = x.shape
    gu, _, gvh = _all_parts(g.detach(), shape)
    m, n = shape[-2:]
    added = columns(gu, n, m - n) if m > n else rows(gvh, m, n - m)
    used = ensure(
        _reduced(g, shape),
        (added == 0).all(axis=(-2, -1), keepdims=True),
        "svd: the vectors that full_matrices=True adds are any that are orthogonal, and a result "
        "depends on them; use full_matrices=False",
    )
    return _svd_dx(used, _reduced(out, shape), x)


def _complete_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    """Of the added vectors nothing is known."""
    shape = inputs[0].shape
    m, n = shape[-2:]
    du, ds, dv = _parts(_svd_jvp(_reduced(out, shape), inputs, tangents), shape)
    if m > n:
        du = concat([du, unknown((*shape[:-1], m - n), out)], axis=-1)
    else:
        dv = concat([dv, unknown((*shape[:-2], n, n - m), out)], axis=-1)
    parts = (du.reshape((*shape[:-2], m * m)), ds, adjoint(dv).reshape((*shape[:-2], n * n)))
    return concat(parts, axis=-1)


def _complete_shape(x: Any) -> tuple[shapes.Shape, dtypes.DType]:
    m, n = x.shape[-2:]
    return (*x.shape[:-2], m * m + min(m, n) + n * n), x.dtype


SVD_COMPLETE: Kernel = Kernel(
    "svd_complete",
    _completed,
    ("x",),
    (unless_empty(_complete_dx),),
    jvp=moves_unless_empty(_complete_jvp),
    batch=over_leading(lambda: SVD_COMPLETE),
    result=_complete_shape,
    failure=NOT_FINITE,
    splits=leading(2),
)


class SVDResult(NamedTuple):
    """x = U @ diag(S) @ Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def svd(x: Tensor, *, full_matrices: bool = True) -> SVDResult:
    """x = U @ diag(S) @ Vh, singular values S falling. U and Vh are square, or have as many vectors
    as there are values if not `full_matrices`. A derivative that depends on the choice of vectors
    for equal values, on their phase, or on those added to make them square, is refused."""
    wide = checked("svd", x)
    m, n = wide.shape[-2:]
    if full_matrices and m != n:
        u, values, vh = _all_parts(apply(SVD_COMPLETE, wide), wide.shape)
    else:
        u, values, v = _parts(apply(SVD, wide), wide.shape)
        vh = adjoint(v)
    return SVDResult(*(rounded(t, x.dtype) for t in (u, real_part(values), vh)))


def stepped(x: Tensor) -> Tensor:
    """Singular values apart from each other and from 0: what tests decompose."""
    if not x.dtype.is_differentiable or x.ndim < 2:
        return x
    m, n = x.shape[-2:]
    steps = diagonal_matrix(arange(max(m, n), device=x.device).astype(x.dtype) * 2 + 2)
    return x * 0.25 + columns(rows(steps, 0, m), 0, n)


def _svd_tested(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _determined(*svd(stepped(x), full_matrices=False))


def _determined(u: Tensor, values: Tensor, vh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Without the vectors that complete U or V, and without signs."""
    k = values.shape[-1]
    return squared(columns(u, 0, k)), values, squared(rows(vh, 0, k))


register(
    SVD,
    svd,
    reference="tests.support.references.linalg:svd",
    tested_as=_svd_tested,
    namespace="linalg",
    kinds="float",
    samples=lambda: iter((sample(s.real(3, 2)), sample(s.real(2, 2, 3)))),
    refuses=(
        refuse(ShapeError, "svd: needs matrices, 2 dimensions or more", s.real(3)),
        refuse(DtypeError, "svd: does not take int64", s.integers(2, 2)),
    ),
)
register(
    SVD_VJP,
    widening(lambda g, out, m: apply(SVD_VJP, g, out, m=m)),
    reference="tests.support.references.linalg:svd_vjp",
    tested_as=widening(lambda g, x, m: of_squares(SVD_VJP, g, apply(SVD, stepped(x)), m=m)),
    namespace="internal",
    iterative=True,
    samples=lambda: iter(
        (
            sample(s.real(6, 2), s.real(3, 2, seed=1), 3),
            sample(s.real(6, 2), s.real(2, 3, seed=1), 2),
            sample(s.real(2, 6, 2), s.real(2, 3, 2, seed=1), 3),
        )
    ),
)
register(
    SVD_COMPLETE,
    lambda x: svd(x, full_matrices=True),
    reference="tests.support.references.linalg:svd",
    tested_as=lambda x: _determined(*svd(stepped(x))),
    namespace="internal",
    samples=lambda: iter((sample(s.real(3, 2)),)),
)


def _svdvals_dx(g: Tensor, x: Tensor) -> Tensor:
    u, _, v = _parts(apply(SVD, x), x.shape)
    return matmul(u * as_kind(g, u).expand_dims(-2), adjoint(v))


def _svdvals_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    u, _, v = _parts(apply(SVD, inputs[0]), inputs[0].shape)
    return real_part(diagonal_of(matmul(matmul(adjoint(u), tangents[0]), v)))


SVDVALS: Kernel = Kernel(
    "svdvals",
    lambda x: real_part(_parts(apply(SVD, x), x.shape)[1]),
    ("x",),
    (_svdvals_dx,),
    jvp=_svdvals_jvp,
    batch=over_leading(lambda: SVDVALS),
    result=lambda x: ((*x.shape[:-2], min(x.shape[-2:])), dtypes.real_of(x.dtype)),
    failure=NOT_FINITE,
    splits=leading(2),
)


def svdvals(x: Tensor) -> Tensor:
    """Singular values, falling. Where some are equal the derivative is one of several, as that of a
    maximum is at a tie."""
    return rounded(apply(SVDVALS, checked("svdvals", x)), x.dtype)


register(
    SVDVALS,
    svdvals,
    reference="tests.support.references.linalg:svdvals",
    tested_as=lambda x: svdvals(stepped(x)),
    namespace="linalg",
    kinds="float",
    samples=lambda: iter((sample(s.real(2, 2, 3)),)),
    refuses=(refuse(ShapeError, "svdvals: needs matrices", s.real(3)),),
)


# --- the pseudo-inverse --------------------------------------------------------------------------


def _cutoff(values: Tensor, rtol: Tensor) -> Tensor:
    """Which values count as above 0."""
    most = values.max(axis=-1, keepdims=True) if values.shape[-1] else values
    return values > most * rtol.expand_dims(-1)


def _pinv_portable(x: Tensor, rtol: Tensor) -> Tensor:
    u, values, v = _parts(apply(SVD, x), x.shape)
    values = real_part(values)
    kept = _cutoff(values, rtol)
    scale = where(kept, 1.0 / where(kept, values, 1.0), 0.0)
    return matmul(v * as_kind(scale, v).expand_dims(-2), adjoint(u))


def _pinv_dx(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    p, ph, gh = out, adjoint(out), adjoint(g)
    first = gh - matmul(x, matmul(p, gh))
    second = gh - matmul(matmul(gh, p), x)
    made = matmul(matmul(first, p), ph) + matmul(ph, matmul(p, second))
    return made - matmul(matmul(ph, g), ph)


def _pinv_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    x, moved = inputs[0], tangents[0]
    p, ph, back = out, adjoint(out), adjoint(moved)
    first = back - matmul(matmul(back, x), p)
    second = back - matmul(p, matmul(x, back))
    made = matmul(p, matmul(ph, first)) + matmul(matmul(second, ph), p)
    return made - matmul(matmul(p, moved), p)


PINV: Kernel = Kernel(
    "pinv",
    _pinv_portable,
    ("x", "rtol"),
    (_pinv_dx, None),
    jvp=_pinv_jvp,
    batch=over_leading(lambda: PINV),
    result=lambda x, rtol: ((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype),
    failure=NOT_FINITE,
    splits=leading(2, 0),
)


def tolerance(x: Tensor, rtol: Any) -> Tensor:
    """What part of the largest singular value counts as 0, for each matrix."""
    if rtol is None:
        rtol = max(x.shape[-2:]) * eps_of(x)
    dtype = dtypes.real_of(x.dtype)
    if not isinstance(rtol, Tensor):
        rtol = full((), float(rtol), dtype, x.device)
    return rtol.astype(dtype).detach().broadcast_to(x.shape[:-2])


def _relative(x: Tensor, rtol: Any, atol: Any) -> Any:
    """What part of the largest singular value counts as 0: `rtol` of it or `atol`."""
    if atol is None:
        return rtol
    largest = apply(SVDVALS, x.detach()).max(axis=-1)
    part = atol / where(largest > 0, largest, 1.0)
    return part if rtol is None else maximum(part, rtol)


def pinv(
    x: Tensor,
    *,
    rtol: float | Tensor | None = None,
    atol: float | Tensor | None = None,
    hermitian: bool = False,
) -> Tensor:
    """The pseudo-inverse. Singular values up to `rtol` times the largest, or up to `atol`, count as
    0; by default, what rounding leaves of 0. `hermitian` says what x is, and changes nothing."""
    wide = checked("pinv", x)
    rtol = _relative(wide, rtol, atol)
    return rounded(apply(PINV, wide, tolerance(wide, rtol)), x.dtype)


register(
    PINV,
    pinv,
    reference="tests.support.references.linalg:pinv",
    tested_as=lambda x, **options: pinv(stepped(x), **options),
    namespace="linalg",
    kinds="float",
    samples=lambda: iter((sample(s.real(3, 2)), sample(s.real(2, 2, 3)))),
    refuses=(refuse(ShapeError, "pinv: needs matrices", s.real(3)),),
)


@composite(
    methods=(),
    namespace="linalg",
    kinds="float",
    flat=True,
    gives="index",
    reference="tests.support.references.linalg:matrix_rank",
    tested_as=lambda x, **options: matrix_rank(stepped(x), **options),
    samples=lambda: iter((sample(s.real(3, 2)),)),
    refuses=(refuse(ShapeError, "matrix_rank: needs matrices", s.real(3)),),
)
def matrix_rank(
    x: Tensor,
    *,
    rtol: float | Tensor | None = None,
    atol: float | Tensor | None = None,
    hermitian: bool = False,
) -> Tensor:
    """How many singular values are above `rtol` times the largest and above `atol`; by default,
    above what rounding leaves of 0. `hermitian` says what x is, and changes nothing."""
    wide = checked("matrix_rank", x).detach()
    rtol = _relative(wide, rtol, atol)
    return rank_of(apply(SVDVALS, wide), wide, rtol)


def rank_of(values: Tensor, x: Tensor, rtol: float | Tensor | None) -> Tensor:
    return _cutoff(values, tolerance(x, rtol)).astype(dtypes.int64).sum(axis=-1)
