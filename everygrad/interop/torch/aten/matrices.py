"""Factorisations and solutions of linear equations."""

from __future__ import annotations

from typing import Any

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.torch.aten.memory import row_major
from everygrad.interop.torch.aten.registry import Result, aten
from everygrad.ops.aliases.with_info import inv_ex, lu_factor_ex
from everygrad.ops.elementwise.basic import maximum, where
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.python.creation import arange, eye, zeros
from everygrad.ops.record.spec import REGISTRY
from everygrad.ops.shape.joining import concat


def _op(name: str) -> Any:
    return REGISTRY[name].function


def _fine(x: Tensor) -> Tensor:
    """The number that says that all went well; what fails raises here."""
    return zeros(x.shape[:-2], dtypes.int32, x.device)


@aten("linalg_inv_ex.default")
def linalg_inv_ex(x: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    found = inv_ex(x, check_errors=check_errors)
    return found.inverse, found.info


@aten("linalg_cholesky_ex.default")
def linalg_cholesky_ex(
    x: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    return _op("cholesky")(x, upper=upper), _fine(x)


@aten("cholesky.default")
def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    out: Tensor = _op("cholesky")(x, upper=upper)
    return out


@aten("cholesky_solve.default")
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    out: Tensor = _op("cholesky_solve")(b, factor, upper)
    return out


@aten("_linalg_svd.default", wants_result=True)
def linalg_svd(
    x: Tensor,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
    result: list[Result],
) -> list[Tensor]:
    if compute_uv:
        return list(_op("svd")(x, full_matrices=full_matrices))
    left, right = (zeros(r.shape, r.dtype, x.device) for r in (result[0], result[2]))
    return [left, _op("svdvals")(x), right]


def _mirrored(x: Tensor, uplo: str) -> Tensor:
    """The hermitian matrix of which x holds one half."""
    half = x.tril() if uplo.upper() == "L" else x.triu().mT.conj()
    below = half - _op("diag_embed")(half.diagonal(0, -2, -1))
    found: Tensor = half + below.mT.conj()
    return found


@aten("_linalg_eigh.default", wants_result=True)
def linalg_eigh(
    x: Tensor,
    uplo: str = "L",
    compute_v: bool = True,
    *,
    result: list[Result],
) -> list[Tensor]:
    whole = _mirrored(x, uplo)
    if compute_v:
        return list(_op("eigh")(whole))
    return [_op("eigvalsh")(whole), zeros(result[1].shape, result[1].dtype, x.device)]


@aten("linalg_eig.default")
def linalg_eig(x: Tensor) -> list[Tensor]:
    return list(_op("eig")(x))


@aten("linalg_eigvals.default")
def linalg_eigvals(x: Tensor) -> Tensor:
    out: Tensor = _op("eigvals")(x)
    return out


@aten("linalg_qr.default", wants_result=True)
def linalg_qr(x: Tensor, mode: str = "reduced", *, result: list[Result]) -> list[Tensor]:
    if mode == "r":
        first = zeros(result[0].shape, result[0].dtype, x.device)
        return [first, _op("qr")(x, mode="reduced").R]
    return list(_op("qr")(x, mode=mode))


@aten("linalg_lu_factor_ex.default")
def linalg_lu_factor_ex(
    x: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> list[Tensor]:
    return list(lu_factor_ex(x, check_errors=check_errors))


@aten("linalg_lu_solve.default")
def linalg_lu_solve(
    factors: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """X of A X = B, of X A = B, or of these with A's conjugate transpose."""
    if left and not adjoint:
        out: Tensor = _op("lu_solve")(factors, pivots, b)
        return out
    one = eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
    inverse = _op("lu_solve")(factors, pivots, one.broadcast_to(factors.shape))
    inverse = inverse.mT.conj() if adjoint else inverse
    return matmul(inverse, b) if left else matmul(b, inverse)


@aten("_linalg_solve_ex.default", wants_result=True)
def linalg_solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False, result: list[Result]
) -> list[Tensor]:
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    given = b.expand_dims(-1) if vector else b
    out = _op("solve")(a, given) if left else _op("solve")(a.mT, given.mT).mT
    out = out.squeeze(-1) if vector else out
    factors, pivots, info = lu_factor_ex(a if left else a.mT)
    shaped = [x.reshape(r.shape) for x, r in zip((factors, pivots, info), result[1:], strict=True)]
    return [out, *shaped]


def _factors(x: Tensor, inputs: list[Result]) -> list[Tensor]:
    """PyTorch factorises the transpose of a matrix that lies in memory row by row."""
    by_rows = row_major(inputs[0]) and not x.dtype.is_complex
    return list(lu_factor_ex(x.mT if by_rows else x))[:2]


@aten("_linalg_det.default", wants_inputs=True)
def linalg_det(x: Tensor, *, inputs: list[Result]) -> list[Tensor]:
    return [_op("det")(x), *_factors(x, inputs)]


@aten("_linalg_slogdet.default", wants_inputs=True)
def linalg_slogdet(x: Tensor, *, inputs: list[Result]) -> list[Tensor]:
    return [*_op("slogdet")(x), *_factors(x, inputs)]


@aten("lu_unpack.default", wants_result=True)
def lu_unpack(
    factors: Tensor,
    pivots: Tensor,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
    *,
    result: list[Result],
) -> list[Tensor]:
    m, n = factors.shape[-2:]
    least = min(m, n)
    found = [zeros(r.shape, r.dtype, factors.device) for r in result]
    if unpack_pivots:
        # a matrix whose factors are identities is a permutation: solving for it turns it around
        one = eye(m, dtype=factors.dtype, device=factors.device)
        more = arange(least + 1, m + 1, dtype=pivots.dtype, device=pivots.device)
        all_pivots = concat([pivots, more.broadcast_to((*pivots.shape[:-1], m - least))], axis=-1)
        batch = one.broadcast_to((*factors.shape[:-2], m, m))
        found[0] = _op("lu_solve")(batch, all_pivots, batch).mT
    if unpack_data:
        below = factors[..., :, :least].tril(-1)
        found[1] = below + eye(m, least, dtype=factors.dtype, device=factors.device)
        found[2] = factors[..., :least, :].triu()
    return found


@aten("linalg_pinv.atol_rtol_tensor")
def linalg_pinv(
    x: Tensor,
    *,
    atol: Tensor | None = None,
    rtol: Tensor | None = None,
    hermitian: bool = False,
) -> Tensor:
    """What is small beside the largest singular value counts as 0. Of a hermitian matrix the part
    above the diagonal is not read."""
    if hermitian:
        values, vectors = _op("eigh")(_mirrored(x, "L"))
        s, u = values.abs(), vectors
        vh = (vectors * values.sign().expand_dims(-2)).mT.conj()
    else:
        u, s, vh = _op("svd")(x, full_matrices=False)
    usual = max(x.shape[-2:]) * dtypes.finfo(s.dtype).eps if atol is None else 0.0
    relative = usual if rtol is None else rtol.expand_dims(-1)
    limit = s.max(axis=-1, keepdims=True) * relative if s.shape[-1] else s
    if atol is not None:
        limit = maximum(limit, atol.expand_dims(-1))
    inverse = where(s > limit, 1 / s, 0.0)
    found: Tensor = matmul(vh.mT.conj() * inverse.expand_dims(-2), u.mT.conj())
    return found


@aten("linalg_solve_triangular.default")
def linalg_solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    out: Tensor = _op("solve_triangular")(a, b, upper=upper, left=left, unitriangular=unitriangular)
    return out


@aten("triangular_solve.default")
def triangular_solve(
    b: Tensor,
    a: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    matrix, above = (a.mT, not upper) if transpose else (a, upper)
    solve = _op("solve_triangular")
    return solve(matrix, b, upper=above, unitriangular=unitriangular), a


@aten("linalg_matrix_exp.default")
def linalg_matrix_exp(x: Tensor) -> Tensor:
    out: Tensor = _op("matrix_exp")(x)
    return out


@aten("linalg_householder_product.default")
def linalg_householder_product(x: Tensor, tau: Tensor) -> Tensor:
    out: Tensor = _op("householder_product")(x, tau)
    return out


@aten("linalg_cross.default")
def linalg_cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    out: Tensor = _op("cross")(x, y, axis=dim)
    return out


@aten("_linalg_check_errors.default")
def linalg_check_errors(info: Tensor, api_name: str, *, is_matrix: bool) -> None:
    return None


@aten("linalg_lu.default")
def linalg_lu(x: Tensor, *, pivot: bool = True) -> list[Tensor]:
    if not pivot:
        raise ArgumentError("linalg_lu: pivot=False is not supported; rows are always exchanged")
    return list(_op("lu")(x))


@aten("cholesky_inverse.default")
def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    one = eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    found: Tensor = _op("cholesky_solve")(one.broadcast_to(factor.shape), factor, upper)
    return found
