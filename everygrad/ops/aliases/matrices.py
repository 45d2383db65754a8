"""Products and decompositions in PyTorch's spellings: addmm, baddbmm, logdet and others."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.record.arguments import taking
from everygrad.ops.record.spec import REGISTRY


def _op(name: str, *args: Any, **kwargs: Any) -> Any:
    return REGISTRY[name].function(*args, **kwargs)


def _sum(x: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """beta * x + alpha * product; with beta 0 whatever x holds is left out."""
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product + (x * 0 if shapes.size_of(x.shape) == 0 else 0)
    return (x if beta == 1 else x * beta) + product


@taking
def addmm(x: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * x + alpha * (mat1 @ mat2): one kernel inside eg.jit."""
    return _sum(x, matmul(mat1, mat2), beta, alpha)


@taking
def addmv(x: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * x + alpha * (mat @ vec)."""
    return _sum(x, matmul(mat, vec), beta, alpha)


@taking
def addr(x: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * x + alpha * outer(vec1, vec2)."""
    return _sum(x, vec1.expand_dims(1) * vec2, beta, alpha)


@taking
def baddbmm(
    x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta * x + alpha * (batch1 @ batch2), matrix by matrix."""
    return _sum(x, matmul(batch1, batch2), beta, alpha)


@taking
def addbmm(
    x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta * x + alpha * the sum of batch1 @ batch2 over the batch."""
    return _sum(x, matmul(batch1, batch2).sum(axis=0), beta, alpha)


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices, in the cheapest order."""
    if not matrices:
        raise ArgumentError("chain_matmul: takes at least one matrix")
    out: Tensor = matrices[0] if len(matrices) == 1 else _op("multi_dot", list(matrices))
    return out


@taking
def cross(x: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The vectors at right angles to x and other along `dim`, or along the first axis of size 3."""
    if dim is None:
        shape = shapes.broadcast("cross", x.shape, other.shape)
        if 3 not in shape:
            raise ShapeError(f"cross: no axis of {shape} has size 3")
        dim = shape.index(3)
    out: Tensor = _op("cross", x, other, axis=dim)
    return out


@taking
def logdet(x: Tensor) -> Tensor:
    """The logarithm of the determinant; NaN where that is negative."""
    sign, size = _op("slogdet", x)
    return where(sign < 0, math.nan, size)


@taking
def trace(x: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    if x.ndim != 2:
        raise ShapeError(f"trace: takes a matrix, got shape {x.shape}; linalg.trace takes batches")
    out: Tensor = _op("trace", x)
    return out


@taking
def cholesky_inverse(x: Tensor, upper: bool = False) -> Tensor:
    """The inverse of a matrix whose Cholesky factor is x."""
    rows = x.shape[-1]
    identity = x.detach() * 0 + _op("diag", x.reshape(-1)[:1].detach().expand(rows) * 0 + 1)
    out: Tensor = _op("cholesky_solve", identity, x, upper)
    return out


@taking
def nuclear_norm(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The sum of the singular values of a matrix."""
    return _matrix_norm("nuc", x, dim, keepdim)


@taking
def frobenius_norm(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The root of the sum of the squares of a matrix."""
    return _matrix_norm("fro", x, dim, keepdim)


def _matrix_norm(order: Any, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """The norm of the matrices that lie along two axes."""
    axes = shapes.axis_tuple((-2, -1) if dim is None else dim, x.ndim, "norm")
    if len(axes) != 2:
        raise ShapeError(f"norm: a norm of matrices takes two axes, got {dim}")
    out: Tensor = _op("matrix_norm", x.moveaxis(axes, (-2, -1)), ord=order)
    return reduce(lambda t, a: t.expand_dims(a), sorted(axes), out) if keepdim else out


@taking
def norm(
    x: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """The norm of all elements, of vectors along one axis, or of matrices along two.

    ord  2 for vectors and "fro" for matrices if not given; a number, inf, "fro" or "nuc"
    """
    x = x if dtype is None else x.astype(dtype)
    two = isinstance(dim, tuple | list) and len(dim) == 2
    if isinstance(ord, str) or (ord is not None and (two or (dim is None and x.ndim == 2))):
        return _matrix_norm(ord, x, dim, keepdim)
    axis = tuple(dim) if isinstance(dim, list) else dim
    power = 2 if ord is None else ord
    out: Tensor = _op("vector_norm", x, axis=axis, keepdims=keepdim, ord=power)
    return out


@taking
def vander(x: Tensor, N: int | None = None) -> Tensor:  # noqa: N803  # PyTorch's name
    """Powers of each element, from 0 up to N - 1, in a new last axis."""
    count = x.shape[-1] if N is None else N
    powers = [x * 0 + 1]
    for _ in range(count - 1):
        powers.append(powers[-1] * x)
    out: Tensor = _op("stack", powers[:count], axis=-1)
    return out


def _square(op: str, x: Tensor, front: tuple[int, ...], back: tuple[int, ...]) -> Tensor:
    """A tensor as the matrix it stands for; its two sides must be alike."""
    rows, columns = shapes.size_of(front), shapes.size_of(back)
    if rows != columns:
        raise ShapeError(f"{op}: {x.shape} is no square: {front} and {back} differ in size")
    return x.reshape((rows, columns))


@taking
def tensorinv(x: Tensor, ind: int = 2) -> Tensor:
    """The inverse of the linear map that a tensor is, from its axes behind `ind` to those before.

    `tensordot(tensorinv(x, ind), x, ind)` is the identity.
    """
    if ind < 1:
        raise ArgumentError(f"tensorinv: ind must be positive, got {ind}")
    front, back = x.shape[:ind], x.shape[ind:]
    out: Tensor = _op("inv", _square("tensorinv", x, front, back))
    return out.reshape((*back, *front))


@taking
def tensorsolve(x: Tensor, other: Tensor, dims: Any = None) -> Tensor:
    """The tensor whose product with x over its last axes is `other`."""
    if dims is not None:
        axes = shapes.axis_tuple(dims, x.ndim, "tensorsolve")
        x = x.moveaxis(axes, tuple(range(x.ndim - len(axes), x.ndim)))
    front, back = x.shape[: other.ndim], x.shape[other.ndim :]
    if front != other.shape:
        raise ShapeError(f"tensorsolve: {x.shape} does not begin with the shape {other.shape}")
    out: Tensor = _op("solve", _square("tensorsolve", x, front, back), other.reshape(-1))
    return out.reshape(back)


@taking
def adjoint(x: Tensor) -> Tensor:
    """The last two axes exchanged, and complex numbers conjugated."""
    turned: Tensor = x.mT
    return turned.conj() if x.dtype.is_complex else turned
