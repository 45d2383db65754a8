"""Factorisations that say by a number, not by an error, that a matrix is singular."""

from __future__ import annotations

from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import arange, eye, zeros
from everygrad.ops.record.arguments import taking
from everygrad.ops.record.spec import REGISTRY


class LUFactorExResult(NamedTuple):
    """What lu_factor gives, and which diagonal element of U is the first that is 0, from 1."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


class InvExResult(NamedTuple):
    """The inverses, and for each matrix 0 or which diagonal element of U is the first that is 0."""

    inverse: Tensor
    info: Tensor


class SolveExResult(NamedTuple):
    """The solutions, and for each matrix 0 or the first diagonal element of U that is 0."""

    result: Tensor
    info: Tensor


def _op(name: str, *args: Any, **kwargs: Any) -> Any:
    return REGISTRY[name].function(*args, **kwargs)


def _info(factors: Tensor) -> Tensor:
    """For each matrix the first diagonal element that is 0, counted from 1; 0 if none is."""
    diagonal = _op("linalg_diagonal", factors.detach())
    n = diagonal.shape[-1]
    if not n:
        return zeros(diagonal.shape[:-1], dtype=dtypes.int32, device=factors.device)
    places = arange(1, n + 1, dtype=dtypes.int32, device=factors.device)
    first = where(diagonal == 0, places, n + 1).min(axis=-1)
    return where(first > n, 0, first).astype(dtypes.int32)


@taking
def lu_factor_ex(A: Tensor, *, check_errors: bool = False) -> LUFactorExResult:  # noqa: N803
    """`lu_factor`, and whether U is singular."""
    factors, pivots = _op("lu_factor", A)
    return LUFactorExResult(factors, pivots, _info(factors))


def _regular(A: Tensor) -> tuple[Tensor, Tensor]:  # noqa: N803
    """A with the identity in place of its singular matrices, and which those are."""
    info = _info(_op("lu_factor", A.detach())[0])
    identity = eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return where((info == 0).reshape((*info.shape, 1, 1)), A, identity), info


@taking
def inv_ex(A: Tensor, *, check_errors: bool = False) -> InvExResult:  # noqa: N803
    """`inv`, and whether each matrix is singular: the inverse of such a one is the identity."""
    regular, info = _regular(A)
    return InvExResult(_op("inv", A if check_errors else regular), info)


@taking
def solve_ex(A: Tensor, B: Tensor, *, check_errors: bool = False) -> SolveExResult:  # noqa: N803
    """`solve`, and whether each matrix is singular: the solution of such a one is B."""
    regular, info = _regular(A)
    return SolveExResult(_op("solve", A if check_errors else regular, B), info)
