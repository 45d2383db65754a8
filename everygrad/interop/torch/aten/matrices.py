"""Factorisations and solutions of linear equations."""

from __future__ import annotations

from typing import Any

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.registry import Result, aten
from everygrad.ops.aliases.with_info import inv_ex, lu_factor_ex
from everygrad.ops.python.creation import zeros
from everygrad.ops.record.spec import REGISTRY


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


@aten("_linalg_eigh.default", wants_result=True)
def linalg_eigh(
    x: Tensor,
    uplo: str = "L",
    compute_v: bool = True,
    *,
    result: list[Result],
) -> list[Tensor]:
    half = x.tril() if uplo.upper() == "L" else x.triu().mT.conj()
    below = half - _op("diag_embed")(half.diagonal(0, -2, -1))
    whole = half + below.mT.conj()
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
    if adjoint:
        raise NotImplementedError("linalg_lu_solve: adjoint=True is not supported")
    if not left:
        return linalg_lu_solve(factors, pivots, b.mT).mT
    out: Tensor = _op("lu_solve")(factors, pivots, b)
    return out


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


@aten("_linalg_det.default")
def linalg_det(x: Tensor) -> list[Tensor]:
    factors, pivots, _ = lu_factor_ex(x.mT)
    return [_op("det")(x), factors.mT, pivots]


@aten("_linalg_slogdet.default")
def linalg_slogdet(x: Tensor) -> list[Tensor]:
    factors, pivots, _ = lu_factor_ex(x.mT)
    return [*_op("slogdet")(x), factors.mT, pivots]


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
