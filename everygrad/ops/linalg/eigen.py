"""Eigenvalues and eigenvectors.

Vectors are determined only up to a phase, and up to a rotation where values are equal. A derivative
that depends on that choice is refused (`ensure`) rather than made up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import abs as absolute, imag, maximum, real, where
from everygrad.ops.linalg.checks import (
    NOT_FINITE,
    adjoint,
    as_kind,
    checked,
    diagonal_matrix,
    diagonal_of,
    ensure,
    eps_of,
    largest,
    moves_unless_empty,
    over_leading,
    real_part,
    rounded,
    unless_empty,
    widening,
)
from everygrad.ops.linalg.jacobi import eigh_portable
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.linalg.parts import parts
from everygrad.ops.linalg.solve import SOLVE
from everygrad.ops.python.creation import arange
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import refuse, register, sample
from everygrad.ops.record.splits import leading
from everygrad.ops.shape.joining import concat

_REPEATED = (
    "{0}: equal {1} leave their {2} undetermined, and a result depends on the choice; make the "
    "values differ, or use only what does not depend on it"
)
_PHASE = (
    "{0}: the result depends on the phase of complex {1}, which is arbitrary; use what does not "
    "depend on it, such as their absolute values"
)


def close_pairs(values: Tensor) -> Tensor:
    """Which pairs of values count as equal, each with itself among them; not differentiated."""
    values = values.detach()
    gaps = absolute(values.expand_dims(-1) - values.expand_dims(-2))
    size = absolute(values).max(axis=-1, keepdims=True).expand_dims(-1)
    # rounding splits equal values by up to three eps of the largest for 3 of them, five for 200
    return gaps <= size * (4.0 * math.sqrt(values.shape[-1]) * eps_of(values))


def apart(op: str, what: tuple[str, str], values: Tensor, *used: Tensor) -> list[Tensor]:
    """Matrices with a column for each value, if those of equal values are zero: nothing else can be
    told from a dependence on the choice of vectors."""
    count = close_pairs(values).astype(dtypes.int64).sum(axis=-1)
    repeated = (count > 1).expand_dims(-2)
    made = []
    for x in used:
        some = absolute(x.detach()) > largest(x) * (10.0 * eps_of(x))
        made.append(ensure(x, (repeated & some).logical_not(), _REPEATED.format(op, *what)))
    return made


def phaseless(op: str, what: str, x: Tensor, diagonal: Tensor, beside: Tensor) -> Tensor:
    """x, if a diagonal that says how the result changes with the phase is real; `beside` is the
    gradient of the values. Where a result depends on them alone, x is no more than rounding."""
    if not x.dtype.is_complex:
        return x
    turn = absolute(imag(diagonal.detach())).expand_dims(-1)
    size = maximum(largest(x), largest(beside.expand_dims(-1)))
    ok = turn <= size * (eps_of(x) ** 0.5) + 1e-30
    return ensure(x, ok, _PHASE.format(op, what))


def inverse_gaps(values: Tensor) -> Tensor:
    """1 / (values_j - values_i); 0 where they are equal."""
    near = close_pairs(values)
    gaps = values.expand_dims(-2) - values.expand_dims(-1)
    return where(near, 0.0, 1.0 / where(near, 1.0, gaps))


# --- Hermitian matrices --------------------------------------------------------------------------

_EIGEN = ("eigenvalues", "eigenvectors")


def _split(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Values, in the dtype of the vectors, and vectors."""
    values, vectors = parts(packed, (-1, 0, -1), (-1, 1, packed.shape[-2]))
    return values, vectors


def _eigh_vjp_portable(g: Tensor, out: Tensor) -> Tensor:
    (values, vectors), (gw, gv) = _split(out), _split(g)
    values = real_part(values)
    (gv,) = apart("eigh", _EIGEN, values, gv)
    inner = matmul(adjoint(vectors), gv)
    inner = phaseless("eigh", "eigenvectors", inner, diagonal_of(inner), gw)
    inner = (inner - adjoint(inner)) * 0.5 * as_kind(inverse_gaps(values), inner)
    inner = inner + diagonal_matrix(as_kind(real_part(gw), inner))
    return matmul(matmul(vectors, inner), adjoint(vectors))


def hermitian(x: Tensor) -> Tensor:
    return (x + adjoint(x)) * 0.5


def _eigh_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    values, vectors = _split(out)
    values = real_part(values)
    inner = matmul(matmul(adjoint(vectors), hermitian(tangents[0])), vectors)
    moved = as_kind(real_part(diagonal_of(inner)), out).expand_dims(-1)
    (inner,) = apart("eigh", _EIGEN, values, inner)
    inner = inner * as_kind(inverse_gaps(values), inner)
    return concat([moved, matmul(vectors, inner)], axis=-1)


def _empty_or(portable: Any) -> Any:
    """A definition by iteration, for matrices that have elements."""
    return lambda x: portable(x) if x.shape[-1] else x.pad((*((0, 0),) * (x.ndim - 1), (0, 1)))


# no rules: differentiated again through the portable definition
EIGH_VJP: Kernel = Kernel(
    "eigh_vjp",
    _eigh_vjp_portable,
    ("g", "out"),
    batch=over_leading(lambda: EIGH_VJP),
    splits=leading(2, 2),
)
EIGH: Kernel = Kernel(
    "eigh",
    _empty_or(eigh_portable),
    ("x",),
    (unless_empty(lambda g, out, x: apply(EIGH_VJP, g, out)),),
    jvp=moves_unless_empty(_eigh_jvp),
    batch=over_leading(lambda: EIGH),
    result=lambda x: ((*x.shape[:-1], x.shape[-1] + 1), x.dtype),
    failure=NOT_FINITE,
    splits=leading(2),
)


class EighResult(NamedTuple):
    """The Array API's names."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _lower(op: str, x: Tensor, triangle: str) -> Tensor:
    """A matrix of which the lower triangle is the one to read."""
    if triangle not in ("L", "U", "l", "u"):
        raise ArgumentError(f'{op}: UPLO must be "L" or "U", got {triangle!r}')
    return adjoint(x) if triangle in "Uu" and x.ndim > 1 else x


def eigh(x: Tensor, UPLO: str = "L") -> EighResult:  # noqa: N803  # everybody's name
    """Eigenvalues of Hermitian matrices, rising, and orthonormal eigenvectors in columns. Only the
    lower triangle is read (with "U" the upper one), and the gradient is Hermitian; one that depends
    on the choice of vectors for equal values, or on their phase, is refused."""
    values, vectors = _split(apply(EIGH, checked("eigh", _lower("eigh", x, UPLO), square=True)))
    return EighResult(rounded(real_part(values), x.dtype), rounded(vectors, x.dtype))


def _spread(x: Tensor) -> Tensor:
    """A Hermitian matrix with eigenvalues apart from each other: what tests decompose."""
    if not x.dtype.is_differentiable or x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        return x
    steps = arange(x.shape[-1], device=x.device).astype(x.dtype) * 2
    return hermitian(x) * 0.25 + diagonal_matrix(steps)


def squared(x: Tensor) -> Tensor:
    """What does not depend on signs and phases."""
    x = absolute(x)
    return x * x


def of_squares(op: Kernel, g: Tensor, out: Tensor, **params: Any) -> Tensor:
    """A gradient by way of the squares of a result: signs make no difference to it."""
    return apply(op, g * out, out, **params)


def _eigh_tested(x: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = eigh(_spread(x))
    return values, squared(vectors)


register(
    EIGH,
    eigh,
    reference="tests.support.references.linalg:eigh",
    tested_as=_eigh_tested,
    namespace="linalg",
    kinds="float",
    iterative=True,
    samples=lambda: iter((sample(s.real(3, 3)), sample(s.real(2, 2, 2)))),
    refuses=(
        refuse(ShapeError, r"eigh: needs square matrices, got shape \(2, 3\)", s.real(2, 3)),
        refuse(DtypeError, "eigh: does not take int64", s.integers(2, 2)),
    ),
)
register(
    EIGH_VJP,
    widening(lambda g, out: apply(EIGH_VJP, g, out)),
    reference="tests.support.references.linalg:eigh_vjp",
    tested_as=widening(lambda g, x: of_squares(EIGH_VJP, g, apply(EIGH, _spread(x)))),
    namespace="internal",
    iterative=True,
    samples=lambda: iter(
        (
            sample(s.real(3, 4), s.real(3, 3, seed=1)),
            sample(s.real(2, 2, 3), s.real(2, 2, 2, seed=1)),
        )
    ),
)


def _eigvalsh_dx(g: Tensor, x: Tensor) -> Tensor:
    _, vectors = _split(apply(EIGH, x))
    scaled = vectors * as_kind(g, x).expand_dims(-2)
    return matmul(scaled, adjoint(vectors))


def _eigvalsh_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    _, vectors = _split(apply(EIGH, inputs[0]))
    inner = matmul(matmul(adjoint(vectors), hermitian(tangents[0])), vectors)
    return real_part(diagonal_of(inner))


EIGVALSH: Kernel = Kernel(
    "eigvalsh",
    lambda x: real_part(_split(apply(EIGH, x))[0]),
    ("x",),
    (_eigvalsh_dx,),
    jvp=_eigvalsh_jvp,
    batch=over_leading(lambda: EIGVALSH),
    result=lambda x: (x.shape[:-1], dtypes.real_of(x.dtype)),
    failure=NOT_FINITE,
    splits=leading(2),
)


def eigvalsh(x: Tensor, UPLO: str = "L") -> Tensor:  # noqa: N803
    """Eigenvalues of Hermitian matrices, rising. Only the lower triangle is read, or with "U" the
    upper one. Where values are
    equal the derivative is one of several, as that of a maximum is at a tie."""
    lower = checked("eigvalsh", _lower("eigvalsh", x, UPLO), square=True)
    return rounded(apply(EIGVALSH, lower), x.dtype)


register(
    EIGVALSH,
    eigvalsh,
    reference="tests.support.references.linalg:eigvalsh",
    tested_as=lambda x: eigvalsh(_spread(x)),
    namespace="linalg",
    kinds="float",
    samples=lambda: iter((sample(s.real(2, 2, 2)),)),
    refuses=(refuse(ShapeError, "eigvalsh: needs square matrices", s.real(2, 3)),),
)


# --- general matrices ----------------------------------------------------------------------------


def _nowhere(op: str) -> Any:
    def refused(x: Tensor) -> Tensor:
        raise DeviceError(
            f"{op}: {x.device} has no solver for eigenvalues of general matrices; move the tensor "
            f'with to("cpu"), or use eigh() for symmetric ones'
        )

    return refused


def _as_input(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of a real input is real."""
    return gradient if x.dtype.is_complex else real(gradient)


def _eig_dx(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    (values, vectors), (gw, gv) = _split(out), _split(g)
    (gv,) = apart("eig", _EIGEN, values, gv)
    inner = matmul(adjoint(vectors), gv)
    diagonal = diagonal_of(inner)
    inner = phaseless("eig", "eigenvectors", inner, diagonal, gw)
    length = as_kind(real(diagonal), inner).expand_dims(-2)  # eigenvectors keep their length
    inner = inner - matmul(adjoint(vectors), vectors) * length
    inner = inner * inverse_gaps(values).conj() + diagonal_matrix(gw)
    return _as_input(apply(SOLVE, adjoint(vectors), matmul(inner, adjoint(vectors))), x)


def _eig_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    values, vectors = _split(out)
    moved = tangents[0].astype(out.dtype)
    inner = apply(SOLVE, vectors, matmul(moved, vectors))
    dw = diagonal_of(inner).expand_dims(-1)
    (inner,) = apart("eig", _EIGEN, values, inner)
    dv = matmul(vectors, inner * inverse_gaps(values))
    length = as_kind(real((vectors.conj() * dv).sum(axis=-2, keepdims=True)), dv)
    return concat([dw, dv - vectors * length], axis=-1)


EIG: Kernel = Kernel(
    "eig",
    _nowhere("eig"),
    ("x",),
    (unless_empty(_eig_dx),),
    jvp=moves_unless_empty(_eig_jvp),
    batch=over_leading(lambda: EIG),
    result=lambda x: ((*x.shape[:-1], x.shape[-1] + 1), dtypes.complex_of(x.dtype)),
    failure=NOT_FINITE,
    splits=leading(2),
)


class EigResult(NamedTuple):
    """In no particular order; A @ eigenvectors = eigenvectors * eigenvalues."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def eig(A: Tensor) -> EigResult:  # noqa: N803  # PyTorch's name
    """Eigenvalues of square matrices, and eigenvectors of length 1 in columns: complex, in LAPACK's
    order. A derivative that depends on the phase of the vectors, or on their choice where values
    are equal, is refused."""
    return EigResult(*_split(apply(EIG, checked("eig", A, square=True))))


_ABSENT = {"webgpu": "eig.*: webgpu has no solver for eigenvalues of general matrices"}


def _eig_tested(x: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = eig(_lopsided(x))
    return values, rounded(squared(vectors), x.dtype)


def _lopsided(x: Tensor) -> Tensor:
    """A matrix with real eigenvalues apart from each other, not symmetric."""
    if not x.dtype.is_differentiable or x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        return x
    steps = arange(x.shape[-1], device=x.device).astype(x.dtype) * 2
    return x * 0.125 + diagonal_matrix(steps)


register(
    EIG,
    eig,
    reference="tests.support.references.linalg:eig",
    tested_as=_eig_tested,
    namespace="linalg",
    kinds="float",
    opaque=True,
    absent=_ABSENT,
    samples=lambda: iter((sample(s.real(3, 3)), sample(s.real(2, 2, 2)))),
    refuses=(refuse(ShapeError, "eig: needs square matrices", s.real(2, 3)),),
)


def _steady(packed: Tensor) -> Tensor:
    """Eigenvectors whose phase cannot move: to what depends on them its gradient is exactly 0."""
    _, vectors = _split(packed)
    turn = (vectors.detach().conj() * vectors).sum(axis=-2, keepdims=True)  # 1, but to derivatives
    return vectors * (turn.conj() / as_kind(absolute(turn), turn))


def _eigvals_dx(g: Tensor, x: Tensor) -> Tensor:
    back = adjoint(_steady(apply(EIG, x)))
    return _as_input(apply(SOLVE, back, g.expand_dims(-1) * back), x)


def _eigvals_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    vectors = _steady(apply(EIG, inputs[0]))
    inner = apply(SOLVE, vectors, matmul(tangents[0].astype(out.dtype), vectors))
    return diagonal_of(inner)


EIGVALS: Kernel = Kernel(
    "eigvals",
    _nowhere("eigvals"),
    ("x",),
    (_eigvals_dx,),
    jvp=_eigvals_jvp,
    batch=over_leading(lambda: EIGVALS),
    result=lambda x: (x.shape[:-1], dtypes.complex_of(x.dtype)),
    failure=NOT_FINITE,
    splits=leading(2),
)


def eigvals(A: Tensor) -> Tensor:  # noqa: N803  # PyTorch's name
    """Eigenvalues of square matrices: complex, in LAPACK's order."""
    return apply(EIGVALS, checked("eigvals", A, square=True))


register(
    EIGVALS,
    eigvals,
    reference="tests.support.references.linalg:eigvals",
    tested_as=lambda x: eigvals(_lopsided(x)),
    namespace="linalg",
    kinds="float",
    opaque=True,
    absent=_ABSENT,
    samples=lambda: iter((sample(s.real(3, 3)), sample(s.real(2, 2, 2)))),
    refuses=(refuse(ShapeError, "eigvals: needs square matrices", s.real(2, 3)),),
)
