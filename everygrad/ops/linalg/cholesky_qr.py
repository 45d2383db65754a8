"""Cholesky and QR, and products of Householder reflections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import abs as absolute, imag, sqrt, where
from everygrad.ops.linalg.checks import (
    NOT_POSITIVE,
    adjoint,
    as_kind,
    checked,
    columns,
    diagonal_matrix,
    diagonal_of,
    ensure,
    eps_of,
    identity,
    over_leading,
    real_part,
    rounded,
    rows,
    together,
    unknown,
    unrolled,
    widened,
    widening,
)
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.linalg.parts import parts
from everygrad.ops.linalg.solve import triangular
from everygrad.ops.python.creation import zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.record.splits import leading
from everygrad.ops.shape.joining import concat, tril, triu

# --- Cholesky ------------------------------------------------------------------------------------


def _cholesky_portable(x: Tensor) -> Tensor:
    """One column after the other, each taken out of what is left."""
    n = x.shape[-1]
    unrolled("cholesky", x, n)
    found, corners = [], []
    for k in range(n):
        column = columns(x, 0, 1)
        corner = real_part(rows(column, 0, 1))
        corners.append(corner)
        below = rows(column, 1, n - k - 1) / as_kind(sqrt(corner), x)
        part = concat([as_kind(sqrt(corner), x), below], axis=-2)
        found.append(_below(part, k))
        rest = columns(rows(x, 1, n - k - 1), 1, n - k - 1)
        x = rest - matmul(below, adjoint(below))
    if not found:
        return x
    ok = (concat(corners, axis=-1) > 0).all(axis=-1, keepdims=True)
    return ensure(concat(found, axis=-1), ok, f"cholesky: {NOT_POSITIVE}", ArgumentError)


def _below(x: Tensor, count: int) -> Tensor:
    """x under `count` rows of zeros."""
    return x.pad((*((0, 0),) * (x.ndim - 2), (count, 0), (0, 0)))


def _lower_half(x: Tensor) -> Tensor:
    """The lower triangle, with half of the diagonal."""
    return tril(x, -1) + diagonal_matrix(diagonal_of(x) * 0.5)


def _cholesky_vjp_portable(g: Tensor, out: Tensor) -> Tensor:
    inner = _lower_half(matmul(adjoint(out), tril(g)))
    inner = triangular(adjoint(out), inner, upper=True)
    inner = adjoint(triangular(adjoint(out), adjoint(inner), upper=True))
    return (inner + adjoint(inner)) * 0.5


def _cholesky_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    inner = (tangents[0] + adjoint(tangents[0])) * 0.5
    inner = triangular(out, inner, upper=False)
    inner = adjoint(triangular(out, adjoint(inner), upper=False))
    return matmul(out, _lower_half(inner))


# gradients: no rules, differentiated again through the portable definition
CHOLESKY_VJP: Kernel = Kernel(
    "cholesky_vjp",
    _cholesky_vjp_portable,
    ("g", "out"),
    batch=over_leading(lambda: CHOLESKY_VJP),
    splits=leading(2, 2),
)
CHOLESKY: Kernel = Kernel(
    "cholesky",
    _cholesky_portable,
    ("x",),
    (lambda g, out: apply(CHOLESKY_VJP, g, out),),
    jvp=_cholesky_jvp,
    batch=over_leading(lambda: CHOLESKY),
    result=lambda x: (x.shape, x.dtype),
    failure=NOT_POSITIVE,
    splits=leading(2),
)


def cholesky(x: Tensor, *, upper: bool = False) -> Tensor:
    """L with x = L L^H, lower, or its conjugate transpose if `upper`. x is taken to be Hermitian:
    only its lower triangle is read, and its gradient is Hermitian."""
    lower = rounded(apply(CHOLESKY, checked("cholesky", x, square=True)), x.dtype)
    return adjoint(lower) if upper else lower


def _positive(x: Tensor) -> Tensor:
    """A positive definite matrix from any: what tests decompose."""
    if not x.dtype.is_differentiable or x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        return x
    return (x + adjoint(x)) * 0.125 + 2 * identity(x.shape[-1], x)


register(
    CHOLESKY,
    cholesky,
    reference="tests.support.references.linalg:cholesky",
    tested_as=lambda x, **options: cholesky(_positive(x), **options),
    namespace="linalg",
    kinds="float",
    samples=lambda: iter(
        (sample(s.real(3, 3)), sample(s.real(2, 2, 2), upper=True), sample(s.real(0, 0)))
    ),
    refuses=(
        refuse(ShapeError, r"cholesky: needs square matrices, got shape \(2, 3\)", s.real(2, 3)),
        refuse(DtypeError, "cholesky: does not take int64", s.integers(2, 2)),
    ),
)
register(
    CHOLESKY_VJP,
    widening(lambda g, out: apply(CHOLESKY_VJP, g, out)),
    reference="tests.support.references.linalg:cholesky_vjp",
    tested_as=widening(lambda g, x: apply(CHOLESKY_VJP, g, apply(CHOLESKY, _positive(x)))),
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(3, 3), s.real(3, 3, seed=1)),
            sample(s.real(2, 2, 2), s.real(2, 2, 2, seed=1)),
        )
    ),
)


# --- QR ------------------------------------------------------------------------------------------


def _reflection(column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """v, tau and beta with (1 - conj(tau) v v^H) column = beta e1, by LAPACK's choice of signs."""
    alpha, rest = rows(column, 0, 1), rows(column, 1, column.shape[-2] - 1)
    if not rest.shape[-2] and not column.dtype.is_complex:
        return alpha * 0 + 1, alpha * 0, alpha
    imaginary = imag(alpha) if alpha.dtype.is_complex else 0.0
    below = absolute(rest) if rest.dtype.is_complex else rest
    tail = (below * below).sum(axis=-2, keepdims=True) + imaginary * imaginary
    first = real_part(alpha)
    still = tail == 0  # nothing to reflect: the derivative of the root must not see 0
    size = sqrt(where(still, 1.0, tail + first * first))
    beta = as_kind(where(first < 0, size, -size), column)
    scale = where(still, 1.0, alpha - beta)
    tau = where(still, 0.0, (beta - alpha) / beta)
    v = concat([alpha * 0 + 1, rest / scale], axis=-2)
    return v, tau, where(still, alpha, beta)


def _reflect(x: Tensor, v: Tensor, tau: Tensor) -> Tensor:
    """(1 - tau v v^H) x."""
    return x - tau * v * matmul(adjoint(v), x)


def householder(x: Tensor, op: str) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """R of a tall matrix, and the reflections that made it."""
    m, n = x.shape[-2:]
    unrolled(op, x, n)
    found, made = [], []
    for k in range(n):
        v, tau, beta = _reflection(columns(x, 0, 1))
        made.append((v, tau))
        conjugate = tau.conj() if tau.dtype.is_complex else tau
        x = _reflect(columns(x, 1, n - k - 1), v, conjugate)
        row = concat([beta, rows(x, 0, 1)], axis=-1)
        found.append(row.pad((*((0, 0),) * (x.ndim - 1), (k, 0))))
        x = rows(x, 1, m - k - 1)
    return (concat(found, axis=-2) if found else x), made


def reflected(unit: Tensor, made: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The product of reflections, the first one leftmost, times `unit`."""
    m = unit.shape[-2]
    for v, tau in reversed(made):
        top = m - v.shape[-2]
        reflected = _reflect(rows(unit, top, m - top), v, tau)
        unit = concat([rows(unit, 0, top), reflected], axis=-2) if top else reflected
    return unit


def _unit(x: Tensor, m: int, n: int) -> Tensor:
    """The first n columns of a unit matrix of m rows, for each matrix of a batch."""
    return columns(identity(m, x), 0, n).broadcast_to((*x.shape[:-2], m, n))


def _qr_portable(x: Tensor) -> Tensor:
    m, n = x.shape[-2:]
    upper, made = householder(x, "qr")
    return concat([reflected(_unit(x, m, n), made), upper.reshape((*x.shape[:-2], n, n))], axis=-2)


def _parts(packed: Tensor) -> tuple[Tensor, Tensor]:
    n = packed.shape[-1]
    m = packed.shape[-2] - n
    q, r = parts(packed, (-2, 0, m), (-2, m, n))
    return q, r


def _full_rank(x: Tensor, upper: Tensor) -> Tensor:
    """x, if the derivative of a QR with this R exists."""
    sizes = absolute(diagonal_of(upper.detach()))
    if not sizes.size:
        return x
    low = sizes.max(axis=-1, keepdims=True) * (eps_of(x) * upper.shape[-1])
    ok = (sizes > low).all(axis=-1, keepdims=True).expand_dims(-1)
    return ensure(
        x,
        ok,
        "qr: columns that are not independent have no derivative; use svd() or pinv()",
    )


def _qr_vjp_portable(g: Tensor, out: Tensor) -> Tensor:
    (q, r), (gq, gr) = _parts(out), _parts(g)
    gr = triu(gr)
    inner = matmul(r, adjoint(gr)) - matmul(adjoint(gq), q)
    low = tril(inner, -1)
    inner = low + adjoint(low) + diagonal_matrix(as_kind(real_part(diagonal_of(inner)), inner))
    made = _full_rank(gq + matmul(q, inner), r)
    return adjoint(triangular(r, adjoint(made), upper=True))


def _qr_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    q, r = _parts(out)
    moved = _full_rank(tangents[0], r)
    moved = triangular(r.matrix_transpose(), moved.matrix_transpose(), upper=False)
    moved = moved.matrix_transpose()  # dA R^-1
    inner = matmul(adjoint(q), moved)
    low = tril(inner, -1)
    turn = low - adjoint(low)
    if inner.dtype.is_complex:
        diagonal = diagonal_of(inner)
        turn = turn + diagonal_matrix(diagonal - as_kind(real_part(diagonal), inner))
    dq = moved - matmul(q, inner) + matmul(q, turn)
    return concat([dq, matmul(inner - turn, r)], axis=-2)


def _qr_dx(g: Tensor, out: Tensor) -> Tensor:
    return apply(QR_VJP, g, out)


QR_VJP: Kernel = Kernel(
    "qr_vjp",
    _qr_vjp_portable,
    ("g", "out"),
    batch=over_leading(lambda: QR_VJP),
    splits=leading(2, 2),
)
QR: Kernel = Kernel(
    "qr",
    _qr_portable,
    ("x",),
    (_qr_dx,),
    jvp=_qr_jvp,
    batch=over_leading(lambda: QR),
    result=lambda x: ((*x.shape[:-2], x.shape[-2] + x.shape[-1], x.shape[-1]), x.dtype),
    splits=leading(2),
)


def _complete_portable(x: Tensor) -> Tensor:
    m, n = x.shape[-2:]
    upper, made = householder(x, "qr")
    q = reflected(_unit(x, m, m), made)
    r = upper.reshape((*x.shape[:-2], n, n))
    return concat([q, concat([r, zeros((*x.shape[:-2], m - n, n), x.dtype, x.device)], -2)], -1)


def _reduced(both: Tensor, n: int) -> Tensor:
    """As `QR` packs it, without the columns that complete Q."""
    return concat([columns(both, 0, n), rows(columns(both, both.shape[-2], n), 0, n)], axis=-2)


def _complete_dx(g: Tensor, out: Tensor, shape: Shape) -> Tensor:
    m, n = shape[-2:]
    unused = (columns(g, n, m - n).detach() == 0).all(axis=(-2, -1), keepdims=True)
    used = ensure(
        _reduced(g, n),
        unused,
        'qr: the columns that mode="complete" adds to Q are any that are orthogonal, and a result '
        'depends on them; use mode="reduced"',
    )
    return _qr_dx(used, _reduced(out, n))


def _complete_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    """Of the added columns nothing is known."""
    m, n = inputs[0].shape[-2:]
    dq, dr = _parts(_qr_jvp(_reduced(out, n), inputs, tangents))
    added = unknown((*out.shape[:-1], m - n), out)
    below = zeros((*out.shape[:-2], m - n, n), out.dtype, out.device)
    return concat([dq, added, concat([dr, below], axis=-2)], axis=-1)


QR_COMPLETE: Kernel = Kernel(
    "qr_complete",
    _complete_portable,
    ("x",),
    (_complete_dx,),
    jvp=_complete_jvp,
    batch=over_leading(lambda: QR_COMPLETE),
    result=lambda x: ((*x.shape[:-1], x.shape[-2] + x.shape[-1]), x.dtype),
    splits=leading(2),
)


class QRResult(NamedTuple):
    """x = Q @ R."""

    Q: Tensor
    R: Tensor


def _tall(x: Tensor) -> tuple[Tensor, Tensor]:
    return _parts(apply(QR, x))


def qr(x: Tensor, *, mode: str = "reduced") -> QRResult:
    """x = Q @ R with orthonormal columns in Q and an upper R. Q has as many columns as x has rows
    or columns, whichever are fewer ("reduced"), or is square ("complete"); a derivative that
    depends on the columns added then is refused. The signs are LAPACK's."""
    if mode not in ("reduced", "complete"):
        raise ArgumentError(f'qr: mode must be "reduced" or "complete", got {mode!r}')
    wide = checked("qr", x)
    m, n = wide.shape[-2:]
    if m > n and mode == "complete":
        both = apply(QR_COMPLETE, wide)
        q, r = columns(both, 0, m), columns(both, m, n)
    elif m >= n:
        q, r = _tall(wide)
    else:  # the first columns make Q, and the others are seen through it
        q, first = _tall(columns(wide, 0, m))
        r = concat([first, matmul(adjoint(q), columns(wide, m, n - m))], axis=-1)
    return QRResult(rounded(q, x.dtype), rounded(r, x.dtype))


register(
    QR,
    qr,
    reference="tests.support.references.linalg:qr",
    tested_as=lambda x, **options: qr(_uneven(x), **options),
    namespace="linalg",
    kinds="float",
    samples=lambda: iter((sample(s.real(3, 2)), sample(s.real(2, 3)), sample(s.real(2, 2, 2)))),
    refuses=(
        refuse(ShapeError, "qr: needs matrices", s.real(3)),
        refuse(ArgumentError, 'qr: mode must be "reduced" or "complete"', s.real(2, 2), mode="r"),
    ),
)

register(
    QR_VJP,
    widening(lambda g, out: apply(QR_VJP, g, out)),
    reference="tests.support.references.linalg:qr_vjp",
    tested_as=widening(lambda g, x: apply(QR_VJP, g, apply(QR, _uneven(x)))),
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(5, 2), s.real(3, 2, seed=1)),
            sample(s.real(2, 5, 2), s.real(2, 3, 2, seed=1)),
        )
    ),
)
register(
    QR_COMPLETE,
    lambda x: qr(x, mode="complete"),
    reference="tests.support.references.linalg:qr_complete",
    tested_as=lambda x: _determined(*qr(_uneven(x), mode="complete")),
    namespace="internal",
    samples=lambda: iter((sample(s.real(3, 2)), sample(s.real(2, 3, 2)))),
)


def _determined(q: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Without the columns that complete Q."""
    return columns(q, 0, r.shape[-1]), r


def _uneven(x: Tensor) -> Tensor:
    """x with more on its diagonal: its columns stay independent when tests make its rows equal."""
    if not x.dtype.is_differentiable or x.ndim < 2:
        return x
    m, n = x.shape[-2:]
    return x * 0.25 + 2 * columns(rows(identity(max(m, n), x), 0, m), 0, n)


@composite(
    methods=(),
    namespace="linalg",
    kinds="float",
    reference="tests.support.references.linalg:householder_product",
    samples=lambda: iter((sample(s.real(3, 2), s.real(2)), sample(s.real(2, 2, 2), s.real(2, 1)))),
    refuses=(
        refuse(ShapeError, "householder_product: .* rows than columns", s.real(2, 3), s.real(2)),
        refuse(ShapeError, "householder_product: tau of", s.real(3, 2), s.real(3)),
    ),
)
def householder_product(A: Tensor, tau: Tensor) -> Tensor:  # noqa: N803  # PyTorch's name
    """The first columns of (1 - tau_1 v_1 v_1^H)(1 - tau_2 v_2 v_2^H)..., v_i being column i of A
    below its diagonal, with a one on it."""
    x, t = together("householder_product", A, tau)
    dtype = x.dtype
    x, t = checked("householder_product", x), widened(t)
    m, n = x.shape[-2:]
    if m < n:
        raise ShapeError(f"householder_product: {x.shape} has fewer rows than columns")
    if not t.ndim or t.shape[:-1] != x.shape[:-2] or t.shape[-1] > n:
        raise ShapeError(
            f"householder_product: tau of {t.shape} does not fit {x.shape}: it needs the same "
            f"leading axes, and at most {n} numbers"
        )
    made = []
    for k in range(t.shape[-1]):
        one = _unit(x, 1, 1)
        v = concat([one, rows(columns(x, k, 1), k + 1, m - k - 1)], axis=-2)
        made.append((v, columns(t, k, 1).expand_dims(-1)))
    return rounded(reflected(_unit(x, m, n), made), dtype)
