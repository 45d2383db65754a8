"""Functions of matrices: determinants, powers, the exponential; norms, and products of vectors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply, operands
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import abs as absolute, ceil, imag, isfinite, maximum, where
from everygrad.ops.elementwise.math import log, log2
from everygrad.ops.linalg.checks import (
    NO_POWERS,
    adjoint,
    as_kind,
    checked,
    columns,
    diagonal_of,
    ensure,
    eps_of,
    firm,
    identity,
    largest,
    over_leading,
    real_part,
    rounded,
    rows,
    widening,
)
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.linalg.parts import parts
from everygrad.ops.linalg.solve import INV, LU, SOLVE, inv, pivots_of
from everygrad.ops.linalg.svd import SVD
from everygrad.ops.python.creation import arange, zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.record.splits import leading
from everygrad.ops.shape.joining import concat, stack
from everygrad.ops.shape.movement import slice_axis

# --- determinants --------------------------------------------------------------------------------


def _corners(x: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonal of U, and the sign of the rows' order, which is real."""
    packed = apply(LU, x)
    places = arange(x.shape[-1], device=x.device)
    moved = (pivots_of(packed.detach()) != places).astype(dtypes.int64).sum(axis=-1)
    sign = where(moved % 2 == 0, 1.0, -1.0)
    return diagonal_of(columns(packed, 0, x.shape[-1])), sign


def _det_portable(x: Tensor) -> Tensor:
    corners, sign = _corners(x)
    return corners.prod(axis=-1) * sign.astype(x.dtype)


DET: Kernel = Kernel(
    "det",
    _det_portable,
    ("x",),
    (lambda g, x: _as_matrix(g) * adjoint(apply(ADJUGATE, x)),),
    jvp=lambda out, inputs, tangents: (
        apply(ADJUGATE, inputs[0]) * tangents[0].matrix_transpose()
    ).sum(axis=(-2, -1)),
    batch=over_leading(lambda: DET),
    result=lambda x: (x.shape[:-2], x.dtype),
    splits=leading(2),
)


def _as_matrix(x: Tensor) -> Tensor:
    return x.expand_dims((-2, -1))


def _adjugate_portable(x: Tensor) -> Tensor:
    """det(U) det(V^H) V diag(products of the other values) U^H: right for singular matrices."""
    n = x.shape[-1]
    packed = apply(SVD, x)
    u, v = rows(packed, 0, n), rows(packed, n + 1, n)
    values = real_part(rows(packed, n, 1))
    places = arange(n, device=x.device)
    others = where(places == places.reshape(-1, 1), 1.0, values).prod(axis=-1)
    turn = apply(DET, u) * apply(DET, adjoint(v))
    return matmul(v * as_kind(others, v).expand_dims(-2), adjoint(u)) * _as_matrix(turn)


def _inverse(x: Tensor, out: Tensor) -> Tensor:
    """x^-1 from its adjugate, which is det(x) x^-1. Singular matrices, whose determinant is no more
    than rounding, are refused."""
    n = x.shape[-1]
    det = matmul(rows(x, 0, 1), columns(out, 0, 1))
    least = largest(x) * largest(out) * (16.0 * n * eps_of(x))
    det = ensure(
        det,
        absolute(det.detach()) > least,
        "det: a singular matrix has no second derivative here; add to its diagonal",
    )
    return out / det


def _adjugate_dx(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    if x.shape[-1] < 2:  # 1, whatever x is
        return zeros(x.shape, x.dtype, x.device)
    back, h = adjoint(_inverse(x, out)), adjoint(out)
    total = (g * (out.conj() if out.dtype.is_complex else out)).sum(axis=(-2, -1), keepdims=True)
    return back * total - matmul(matmul(h, g), back)


def _adjugate_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    if out.shape[-1] < 2:
        return zeros(out.shape, out.dtype, out.device)
    inner = matmul(_inverse(inputs[0], out), tangents[0])
    total = diagonal_of(inner).sum(axis=-1)
    return out * _as_matrix(total) - matmul(inner, out)


ADJUGATE: Kernel = Kernel(
    "adjugate",
    _adjugate_portable,
    ("x",),
    (_adjugate_dx,),
    jvp=_adjugate_jvp,
    batch=over_leading(lambda: ADJUGATE),
    result=lambda x: (x.shape, x.dtype),
    splits=leading(2),
)
register(
    ADJUGATE,
    lambda x: rounded(apply(ADJUGATE, checked("adjugate", x, square=True)), x.dtype),
    reference=lambda x: np.linalg.det(_firm(x))[..., None, None] * np.linalg.inv(_firm(x)),
    tested_as=lambda x: rounded(apply(ADJUGATE, checked("adjugate", firm(x))), x.dtype),
    namespace="internal",
    iterative=True,
    samples=lambda: iter((sample(s.real(3, 3)),)),
)


def _firm(x: Any) -> Any:
    return x * 0.25 + 2 * np.eye(x.shape[-1])


def det(x: Tensor) -> Tensor:
    """The determinant. Singular matrices have a derivative too; a second one, only others."""
    return rounded(apply(DET, checked("det", x, square=True)), x.dtype)


register(
    DET,
    det,
    reference=np.linalg.det,
    namespace="linalg",
    kinds="float",
    samples=lambda: iter((sample(s.real(3, 3)), sample(s.real(2, 2, 2)), sample(s.real(0, 0)))),
    refuses=(
        refuse(ShapeError, r"det: needs square matrices, got shape \(2, 3\)", s.real(2, 3)),
        refuse(DtypeError, "det: does not take int64", s.integers(2, 2)),
    ),
)


def _slogdet_portable(x: Tensor) -> Tensor:
    corners, sign = _corners(x)
    size = absolute(corners)
    gone = size == 0
    signs = where(gone, 0.0, corners / as_kind(where(gone, 1.0, size), x))
    total = log(size).sum(axis=-1)
    return stack([signs.prod(axis=-1) * sign.astype(x.dtype), as_kind(total, x)], axis=-1)


def _slogdet_vjp_portable(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    last = g.ndim - 1
    gs, gl = slice_axis(g, last, 0, 1), real_part(slice_axis(g, last, 1, 1))
    scale = as_kind(gl, x)
    if x.dtype.is_complex:
        sign = slice_axis(out, last, 0, 1)
        scale = scale + as_kind(imag(gs * sign.conj()), x) * 1j
    return scale.expand_dims(-1) * adjoint(apply(INV, x))


def _slogdet_jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
    total = diagonal_of(apply(SOLVE, inputs[0], tangents[0])).sum(axis=-1, keepdims=True)
    sign = slice_axis(out, out.ndim - 1, 0, 1)
    size = as_kind(real_part(total), out)
    turn = sign * (total - size)  # zero for real numbers
    return concat([turn, size], axis=-1)


# no rules: differentiated again through the portable definition
SLOGDET_VJP: Kernel = Kernel(
    "slogdet_vjp",
    _slogdet_vjp_portable,
    ("g", "out", "x"),
    batch=over_leading(lambda: SLOGDET_VJP),
    splits=leading(1, 1, 2),
)
SLOGDET: Kernel = Kernel(
    "slogdet",
    _slogdet_portable,
    ("x",),
    (lambda g, out, x: apply(SLOGDET_VJP, g, out, x),),
    jvp=_slogdet_jvp,
    batch=over_leading(lambda: SLOGDET),
    result=lambda x: ((*x.shape[:-2], 2), x.dtype),
    splits=leading(2),
)


class SlogdetResult(NamedTuple):
    """The Array API's names."""

    sign: Tensor
    logabsdet: Tensor


def slogdet(x: Tensor) -> SlogdetResult:
    """The sign of the determinant, complex of length 1 for complex matrices, and the logarithm of
    its absolute value: 0 and -inf for singular matrices."""
    both = apply(SLOGDET, checked("slogdet", x, square=True))
    sign, size = parts(both, (-1, 0, -1), (-1, 1, -1))
    return SlogdetResult(rounded(sign, x.dtype), rounded(real_part(size), x.dtype))


register(
    SLOGDET,
    slogdet,
    reference=lambda x: tuple(np.linalg.slogdet(_firm(x))),
    tested_as=lambda x: slogdet(firm(x) if _is_square(x) else x),
    namespace="linalg",
    kinds="float",
    samples=lambda: iter((sample(s.real(3, 3)), sample(s.real(2, 2, 2)), sample(s.real(0, 0)))),
    refuses=(
        refuse(ShapeError, "slogdet: needs square matrices", s.real(2, 3)),
        refuse(DtypeError, "slogdet: does not take int64", s.integers(2, 2)),
    ),
)
register(
    SLOGDET_VJP,
    widening(lambda g, out, x: apply(SLOGDET_VJP, g, out, x)),
    reference=lambda g, x: g[..., 1, None, None] * np.linalg.inv(_firm(x)).mT,
    tested_as=widening(lambda g, x: apply(SLOGDET_VJP, g, apply(SLOGDET, firm(x)), firm(x))),
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(2), s.real(3, 3, seed=1)),
            sample(s.real(2, 2), s.real(2, 3, 3, seed=1)),
        )
    ),
)


def _is_square(x: Tensor) -> bool:
    return x.dtype.is_differentiable and x.ndim > 1 and x.shape[-1] == x.shape[-2]


# --- powers and the exponential ------------------------------------------------------------------


@composite(
    methods=(),
    namespace="linalg",
    kinds="float",
    reference="tests.support.references.linalg:matrix_power",
    tested_as=lambda x, n: matrix_power(firm(x) if _is_square(x) else x, n),
    samples=lambda: iter((sample(s.real(2, 2), 5), sample(s.real(2, 2, 2), -2))),
    refuses=(
        refuse(ShapeError, "matrix_power: needs square matrices", s.real(2, 3), 2),
        refuse(ArgumentError, "matrix_power: n must be an integer", s.real(2, 2), 1.5),
    ),
)
def matrix_power(x: Tensor, n: int) -> Tensor:
    """x @ x @ ..., n times; the inverse to the power -n where n is negative."""
    count = shapes.as_int(n, "matrix_power", "n")
    square = checked("matrix_power", x, square=True)
    if count < 0:
        square, count = inv(square), -count
    made: Tensor | None = None
    while count:
        if count % 2:
            made = square if made is None else matmul(made, square)
        count //= 2
        if count:
            square = matmul(square, square)
    if made is None:  # n is 0; x is still what the result depends on
        made = square * 0 + identity(x.shape[-1], square)
    return rounded(made, x.dtype)


PADE = (
    *(64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000),
    *(10559470521600, 670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1),
)
PADE_REACH = 5.371920351148152  # the 1-norm up to which degree 13 has the precision of float64
_SQUARINGS = 24  # of the portable definition: more than any matrix with a finite result needs


def _exp_portable(x: Tensor) -> Tensor:
    """As many squarings for all matrices, of which each takes part in its own."""
    if not x.size:
        return x
    size = absolute(x.detach()).sum(axis=-2, keepdims=True).max(axis=-1, keepdims=True)
    x = ensure(x, isfinite(size), f"matrix_exp: {NO_POWERS}", ArgumentError)
    steps = ceil(log2(maximum(size / PADE_REACH, 1.0)))
    out = _pade(x / as_kind(2.0**steps, x))
    for step in range(_SQUARINGS):
        out = where(steps > step, matmul(out, out), out)
    return out


def _pade(x: Tensor) -> Tensor:
    b = [v / PADE[0] for v in PADE]
    one = identity(x.shape[-1], x)
    x2 = matmul(x, x)
    x4 = matmul(x2, x2)
    x6 = matmul(x4, x2)
    odd = matmul(x6, b[13] * x6 + b[11] * x4 + b[9] * x2)
    odd = matmul(x, odd + b[7] * x6 + b[5] * x4 + b[3] * x2 + b[1] * one)
    even = matmul(x6, b[12] * x6 + b[10] * x4 + b[8] * x2)
    even = even + b[6] * x6 + b[4] * x4 + b[2] * x2 + b[0] * one
    return apply(SOLVE, even - odd, even + odd)


def _along(x: Tensor, moved: Tensor) -> Tensor:
    """How exp(x) moves as x moves: a corner of the exponential of a matrix twice as large."""
    n = x.shape[-1]
    top = concat([x, moved], axis=-1)
    below = concat([x * 0, x], axis=-1)
    both = apply(MATRIX_EXP, concat([top, below], axis=-2))
    return columns(rows(both, 0, n), n, n)


MATRIX_EXP: Kernel = Kernel(
    "matrix_exp",
    _exp_portable,
    ("x",),
    (lambda g, x: _along(adjoint(x), g),),
    jvp=lambda out, inputs, tangents: _along(inputs[0], tangents[0]),
    batch=over_leading(lambda: MATRIX_EXP),
    result=lambda x: (x.shape, x.dtype),
    failure=NO_POWERS,
    constants={"pade": PADE, "pade_reach": PADE_REACH},
    splits=leading(2),
)


def matrix_exp(x: Tensor) -> Tensor:
    """1 + x + x @ x / 2 + ...: scaling and squaring, with a Pade approximant of degree 13."""
    return rounded(apply(MATRIX_EXP, checked("matrix_exp", x, square=True)), x.dtype)


register(
    MATRIX_EXP,
    matrix_exp,
    reference="scipy.linalg:expm",
    namespace="linalg",
    kinds="float",
    samples=lambda: iter((sample(s.real(3, 3, high=1.0)), sample(s.real(2, 2, 2)))),
    refuses=(refuse(ShapeError, "matrix_exp: needs square matrices", s.real(2, 3)),),
)


# --- chains --------------------------------------------------------------------------------------


def _cheapest(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where to split each stretch of a chain; matrix i is (sizes[i], sizes[i + 1])."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    splits: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            options = {
                k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1]
                for k in range(i, j)
            }
            splits[i, j] = min(options, key=options.__getitem__)
            cost[i, j] = options[splits[i, j]]
    return splits


@composite(
    methods=(),
    namespace="linalg",
    kinds="numeric",
    reference="tests.support.references.linalg:multi_dot",
    samples=lambda: iter(
        (
            sample([s.real(2, 3), s.real(3, 1, seed=1), s.real(1, 2, seed=2)]),
            sample([s.real(3), s.real(3, 2, seed=1), s.real(2, seed=2)]),
        )
    ),
    refuses=(
        refuse(ArgumentError, "multi_dot: needs two tensors or more, got 1", [s.real(2, 2)]),
        refuse(ShapeError, r"multi_dot: .*\(2, 3\) @ \(2, 2\)", [s.real(2, 3), s.real(2, 2)]),
    ),
)
def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of a chain of matrices in the order that costs least; the first may be a row and
    the last a column, given as vectors."""
    if len(tensors) < 2:
        raise ArgumentError(f"multi_dot: needs two tensors or more, got {len(tensors)}")
    chain = list(operands("multi_dot", *tensors))
    row, column = chain[0].ndim == 1, chain[-1].ndim == 1
    chain[0] = chain[0].expand_dims(0) if row else chain[0]
    chain[-1] = chain[-1].expand_dims(-1) if column else chain[-1]
    for a, b in itertools.pairwise(chain):
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise ShapeError(f"multi_dot: {a.shape} @ {b.shape} do not fit as matrices in a chain")
    splits = _cheapest([chain[0].shape[0], *(t.shape[1] for t in chain)])

    def product(i: int, j: int) -> Tensor:
        if i == j:
            return chain[i]
        return matmul(product(i, splits[i, j]), product(splits[i, j] + 1, j))

    out = product(0, len(chain) - 1)
    drop = tuple(axis for axis, one in ((0, row), (1, column)) if one)
    return out.squeeze(drop) if drop else out
