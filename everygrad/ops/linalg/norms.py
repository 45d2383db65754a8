"""Norms and condition numbers of matrices, traces, cross products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import operands
from everygrad.errors import ArgumentError, AxisError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import abs as absolute
from everygrad.ops.linalg.checks import checked, rounded
from everygrad.ops.linalg.solve import inv
from everygrad.ops.linalg.svd import stepped, svdvals
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.reduce.norms_and_counts import norm
from everygrad.ops.shape.diagonals import diagonal as any_diagonal
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import slice_axis

_ORDERS = ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)


@composite(
    methods=(),
    namespace="linalg",
    kinds="float",
    reference=lambda x, **options: np.linalg.vector_norm(x, **options),
    samples=lambda: iter((sample(s.real(2, 3)), sample(s.real(2, 3), axis=-1, ord=3))),
    refuses=(refuse(DtypeError, "vector_norm: does not take int64", s.integers(3)),),
)
def vector_norm(x: Tensor, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm of the elements along the axes as one vector: see `norm`."""
    axis = shapes.reduction_axes(axis, x.ndim, "vector_norm")
    check_kind("vector_norm", x.dtype, "float")
    return norm(x, ord, axis, keepdims)


def _matrix_norm(x: Tensor, order: Any) -> Tensor:
    """With both axes kept; nothing has the norm 0, but no smallest part."""
    if 0 in x.shape[-2:] and order in (1, 2, math.inf):
        return absolute(x).sum(axis=(-2, -1), keepdims=True)
    if order == "fro":
        return norm(x, 2.0, (-2, -1), keepdims=True)
    if order == "nuc":
        return svdvals(x).sum(axis=-1, keepdims=True).expand_dims(-1)
    if abs(order) == 2:
        values = svdvals(x).expand_dims(-1)
        return (values.max if order > 0 else values.min)(axis=-2, keepdims=True)
    sums = absolute(x).sum(axis=-2 if abs(order) == 1 else -1, keepdims=True)
    return (sums.max if order > 0 else sums.min)(axis=(-2, -1), keepdims=True)


@composite(
    methods=(),
    namespace="linalg",
    kinds="float",
    reference=lambda x, **options: np.linalg.matrix_norm(x, **options),
    samples=lambda: iter(
        (
            sample(s.real(2, 3)),
            sample(s.real(2, 2, 3), ord="nuc", keepdims=True),
            sample(s.real(3, 2), ord=1),
            sample(s.real(2, 3), ord=-2),
        )
    ),
    refuses=(
        refuse(ArgumentError, "matrix_norm: ord must be one of .*, got 3", s.real(2, 2), ord=3),
        refuse(ShapeError, "matrix_norm: needs matrices", s.real(3)),
    ),
)
def matrix_norm(
    x: Tensor,
    *,
    keepdims: bool = False,
    ord: float | str = "fro",
    axis: tuple[int, int] = (-2, -1),
    dtype: Any = None,
) -> Tensor:
    """The norm of each matrix: "fro" of all elements as one vector, "nuc" the sum of singular
    values, 2 and -2 the largest and the smallest of them, 1 and -1 the largest and the smallest
    sum of a column's magnitudes, inf and -inf of a row's. `axis` are the axes of the matrices."""
    x = x if dtype is None else x.astype(dtype)
    if axis != (-2, -1) and x.ndim > 1:
        at = shapes.axis_tuple(axis, x.ndim, "matrix_norm")
        if len(at) != 2:
            raise AxisError(f"matrix_norm: a matrix has two axes, got {axis!r}")
        out = matrix_norm(x.moveaxis(at, (-2, -1)), keepdims=True, ord=ord)
        return out.moveaxis((-2, -1), at) if keepdims else out.squeeze((-2, -1))
    if ord not in _ORDERS:
        raise ArgumentError(
            f"matrix_norm: ord must be one of {', '.join(map(str, _ORDERS))}, got {ord!r}"
        )
    out = _matrix_norm(checked("matrix_norm", x), ord)
    out = rounded(out, x.dtype)
    return out if keepdims else out.squeeze((-2, -1))


@composite(
    methods=(),
    namespace="linalg",
    kinds="float",
    reference="tests.support.references.linalg:cond",
    tested_as=lambda x, p=None: cond(stepped(x), p),
    samples=lambda: iter((sample(s.real(3, 2)), sample(s.real(2, 2, 2), 1))),
    refuses=(
        refuse(ShapeError, "cond: needs square matrices", s.real(2, 3), "fro"),
        refuse(ArgumentError, "cond: p must be", s.real(2, 2), 3),
    ),
)
def cond(A: Tensor, p: float | str | None = None) -> Tensor:  # noqa: N803  # PyTorch's name
    """The condition number in a norm of `matrix_norm`; by default, the largest singular value over
    the smallest."""
    order = 2 if p is None else p
    if order not in _ORDERS:
        raise ArgumentError(f"cond: p must be None or one of {', '.join(map(str, _ORDERS))}, "
                            f"got {p!r}")  # fmt: skip
    if order in (2, -2):
        values = svdvals(checked("cond", A))
        most, least = values.max(axis=-1), values.min(axis=-1)
        return rounded(most / least if order == 2 else least / most, A.dtype)
    x = checked("cond", A, square=True)
    out = matrix_norm(x, ord=order) * matrix_norm(inv(x), ord=order)
    return rounded(out, A.dtype)


# --- traces, diagonals, cross products -----------------------------------------------------------


@composite(
    methods=(),
    namespace="linalg",
    name="linalg_diagonal",
    reference=lambda x, offset=0: np.diagonal(x, offset, -2, -1),
    samples=lambda: iter((sample(s.real(2, 3)), sample(s.real(2, 2, 3), offset=1))),
    refuses=(refuse(ShapeError, "diagonal: needs matrices", s.real(3)),),
)
def diagonal(x: Tensor, *, offset: int = 0) -> Tensor:
    """The diagonal of each matrix; a positive offset lies above."""
    if x.ndim < 2:
        raise ShapeError(f"diagonal: needs matrices, 2 dimensions or more, got shape {x.shape}")
    return any_diagonal(x, offset, -2, -1)


@composite(
    methods=(),
    namespace="linalg",
    gives="accumulated",
    reference=lambda x, offset=0: np.trace(x, offset, -2, -1),
    samples=lambda: iter((sample(s.real(2, 3)), sample(s.real(2, 2, 3), offset=-1))),
    refuses=(refuse(ShapeError, "trace: needs matrices", s.real(3)),),
)
def trace(x: Tensor, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum along the diagonal of each matrix; integers are summed in 64 bits."""
    if x.ndim < 2:
        raise ShapeError(f"trace: needs matrices, 2 dimensions or more, got shape {x.shape}")
    return any_diagonal(x, offset, -2, -1).sum(axis=-1, dtype=dtype)


def _turned(x: Tensor, axis: int, by: int) -> Tensor:
    """The three elements along an axis, the first `by` of them at the end."""
    parts = (slice_axis(x, axis, by, 3 - by), slice_axis(x, axis, 0, by))
    return concat(parts, axis=axis)


@composite(
    methods=(),
    namespace="linalg",
    kinds="numeric",
    reference=lambda x, y, axis=-1: np.cross(x, y, axis=axis),
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(3, seed=1)),
            sample(s.real(3, 2), s.real(3, 2, seed=1), axis=0),
        )
    ),
    refuses=(
        refuse(ShapeError, "cross: axis -1 has sizes 2 and 3", s.real(2), s.real(3)),
        refuse(DtypeError, "cross: does not take bool", s.booleans(3), s.booleans(3)),
    ),
)
def cross(x1: Tensor, x2: Tensor, *, axis: int = -1) -> Tensor:
    """The vectors at right angles to x1 and x2 along an axis of size 3; other axes broadcast."""
    x, y = operands("cross", x1, x2)
    check_kind("cross", x.dtype, "numeric")
    sizes = [t.shape[shapes.axis_index(axis, t.ndim, "cross")] for t in (x, y)]
    if sizes != [3, 3]:
        raise ShapeError(f"cross: axis {axis} has sizes {sizes[0]} and {sizes[1]}, which must be 3")
    shape = shapes.broadcast("cross", x.shape, y.shape)
    x, y = x.broadcast_to(shape), y.broadcast_to(shape)
    at = shapes.axis_index(axis, len(shape), "cross")
    return _turned(x, at, 1) * _turned(y, at, 2) - _turned(x, at, 2) * _turned(y, at, 1)
