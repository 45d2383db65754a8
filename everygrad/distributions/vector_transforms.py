"""Maps of vectors and matrices: softmax, stick breaking, Cholesky factors, and joins by parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core.shapes import size_of
from everygrad.core.tensor import Tensor
from everygrad.distributions import constraints
from everygrad.distributions.constraints import Constraint
from everygrad.distributions.distribution import Shape, sum_rightmost
from everygrad.distributions.transforms import Transform
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.math import softplus
from everygrad.ops.linalg.checks import diagonal_matrix, diagonal_of, identity
from everygrad.ops.linalg.cholesky_qr import cholesky
from everygrad.ops.python.creation import tensor, zeros
from everygrad.ops.shape.joining import concat, stack, tril


class SoftmaxTransform(Transform):
    """y = softmax(x) along the last axis; no bijection, since a shift of x makes no difference."""

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return _with_axes("SoftmaxTransform", shape, 1)

    inverse_shape = forward_shape


def _with_axes(owner: str, shape: Sequence[int], count: int) -> Shape:
    if len(shape) < count:
        raise ShapeError(f"{owner}: needs {count} axes or more, got shape {tuple(shape)}")
    return tuple(shape)


class StickBreakingTransform(Transform):
    """From vectors of n numbers to simplices of n + 1, a piece of what is left at a time.

    >>> import everygrad as eg
    >>> eg.distributions.StickBreakingTransform()(eg.zeros((2,)))
    tensor([0.3333, 0.3333, 0.3333])
    """

    domain = constraints.real_vector
    codomain = constraints.simplex
    bijective = True

    def _offset(self, like: Tensor, size: int) -> Tensor:
        """log of how many pieces are left at each place: 0 gives equal pieces."""
        return tensor(np.log(np.arange(size, 0, -1)), like.dtype, like.device)

    def _call(self, x: Tensor) -> Tensor:
        t = x - self._offset(x, x.shape[-1])
        log_left = (-softplus(t)).cumsum(-1)  # of the stick, after each piece
        first = log_left[..., :1] * 0.0
        before = concat([first, log_left], axis=-1)
        piece = concat([-softplus(-t), first], axis=-1)
        return (before + piece).exp()

    def _inverse(self, y: Tensor) -> Tensor:
        head = y[..., :-1]
        left = 1.0 - head.cumsum(-1)
        left = left.clamp(dtypes.finfo(y.dtype).smallest_normal)
        return head.log() - left.log() + self._offset(y, head.shape[-1])

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        t = x - self._offset(x, x.shape[-1])
        return (-t - softplus(-t) + y[..., :-1].log()).sum(axis=-1)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        sizes = _with_axes("StickBreakingTransform", shape, 1)
        return (*sizes[:-1], sizes[-1] + 1)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        sizes = _with_axes("StickBreakingTransform", shape, 1)
        return (*sizes[:-1], sizes[-1] - 1)


class LowerCholeskyTransform(Transform):
    """From square matrices to lower-triangular ones with a positive diagonal: exp of it.

    No bijection: what stands above the diagonal makes no difference.
    """

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return tril(x, -1) + diagonal_matrix(diagonal_of(x).exp())

    def _inverse(self, y: Tensor) -> Tensor:
        return tril(y, -1) + diagonal_matrix(diagonal_of(y).log())


class PositiveDefiniteTransform(Transform):
    """From square matrices to positive-definite ones: L L^T of `LowerCholeskyTransform`'s L."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        lower = LowerCholeskyTransform()(x)
        return lower @ lower.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform()._inverse(cholesky(y))


class CorrCholeskyTransform(Transform):
    """From vectors of n (n - 1) / 2 numbers to Cholesky factors of n x n correlation matrices.

    tanh makes them partial correlations; row by row each takes its share of what is left of 1.
    """

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        limit = 1.0 - dtypes.finfo(x.dtype).eps
        size = self.forward_shape(x.shape)[-1]
        r = _to_lower(x.tanh().clamp(-limit, limit), size)
        left = (1.0 - r * r).sqrt().cumprod(-1)  # of each row's norm, after each entry
        ones = left[..., :1] * 0.0 + 1.0
        return (r + identity(size, x)) * concat([ones, left[..., :-1]], axis=-1)

    def _inverse(self, y: Tensor) -> Tensor:
        used = 1.0 - (y * y).cumsum(-1)
        left = concat([used[..., :1] * 0.0 + 1.0, used[..., :-1]], axis=-1)
        size = y.shape[-1]
        y_low, left_low = _from_lower(y, size), _from_lower(left, size)
        return (y_low / left_low.sqrt()).atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # y[i, j] is r[i, j] times the root of what is left; dr/dx = 1 - tanh(x)**2
        left = 1.0 - (y * y).cumsum(-1)
        below = _from_lower(left, y.shape[-1], -2)
        stick = 0.5 * below.log().sum(axis=-1)
        return stick - 2.0 * (x + softplus(-2.0 * x) - math.log(2.0)).sum(axis=-1)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        sizes = _with_axes("CorrCholeskyTransform", shape, 1)
        n = round((0.25 + 2 * sizes[-1]) ** 0.5 + 0.5)
        if n * (n - 1) // 2 != sizes[-1]:
            raise ShapeError(
                f"CorrCholeskyTransform: vectors have n (n - 1) / 2 numbers, got {sizes[-1]}"
            )
        return (*sizes[:-1], n, n)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        sizes = _with_axes("CorrCholeskyTransform", shape, 2)
        if sizes[-1] != sizes[-2]:
            raise ShapeError(f"CorrCholeskyTransform: needs square matrices, got shape {sizes}")
        n = sizes[-1]
        return (*sizes[:-2], n * (n - 1) // 2)


def _places(size: int, offset: int, device: str) -> Tensor:
    """Flat indices of the entries on and below a diagonal, row by row."""
    rows, columns = np.tril_indices(size, offset)
    return tensor(rows * size + columns, dtypes.int64, device)


def _from_lower(matrix: Tensor, size: int, offset: int = -1) -> Tensor:
    """The entries on and below a diagonal as vectors, row by row."""
    flat = matrix.reshape((*matrix.shape[:-2], size * size))
    return flat.index_select(_places(size, offset, matrix.device), axis=flat.ndim - 1)


def _to_lower(vector: Tensor, size: int) -> Tensor:
    """Vectors as the entries strictly below the diagonal, zeros elsewhere."""
    # one gather: entry 0 of the padded vector stands for all zeros
    table = np.zeros((size, size), np.int64)
    rows, columns = np.tril_indices(size, -1)
    table[rows, columns] = np.arange(1, len(rows) + 1)
    batch = vector.shape[:-1]
    padded = concat([zeros((*batch, 1), vector.dtype, vector.device), vector], axis=-1)
    index = tensor(table.reshape(-1), dtypes.int64, vector.device)
    return padded.index_select(index, axis=padded.ndim - 1).reshape((*batch, size, size))


# --- other shapes, and joins by parts ------------------------------------------------------------


class ReshapeTransform(Transform):
    """Events of shape `in_shape` as events of shape `out_shape`, of as many elements."""

    bijective = True
    parameters = ("in_shape", "out_shape")

    def __init__(
        self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if size_of(self.in_shape) != size_of(self.out_shape):
            raise ShapeError(
                f"ReshapeTransform: in_shape {self.in_shape} and out_shape {self.out_shape} have "
                "different numbers of elements"
            )

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return constraints.independent(constraints.real, len(self.in_shape))

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return zeros(x.shape[: x.ndim - len(self.in_shape)], x.dtype, x.device)

    def _swapped(self, shape: Sequence[int], old: Shape, new: Shape) -> Shape:
        cut = len(shape) - len(old)
        if cut < 0 or tuple(shape[cut:]) != old:
            raise ShapeError(f"ReshapeTransform: events have shape {old}, got {tuple(shape)}")
        return (*shape[:cut], *new)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return self._swapped(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        return self._swapped(shape, self.out_shape, self.in_shape)


class _ByParts(Transform):
    """Transforms of the parts of a tensor along an axis."""

    transforms: list[Transform]
    dim: int
    parameters: tuple[str, ...] = ("transforms", "dim")

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(t.bijective for t in self.transforms)

    def _split(self, x: Tensor) -> list[Tensor]:
        raise NotImplementedError

    def _join(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def _call(self, x: Tensor) -> Tensor:
        parts = self._split(x)
        return self._join([t(p) for t, p in zip(self.transforms, parts, strict=True)])

    def _inverse(self, y: Tensor) -> Tensor:
        parts = self._split(y)
        return self._join([t.inv(p) for t, p in zip(self.transforms, parts, strict=True)])

    def _checked(self, x: Tensor) -> int:
        if not -x.ndim <= self.dim < x.ndim:
            raise ShapeError(
                f"{type(self).__name__}: dim {self.dim} is outside the axes of shape {x.shape}"
            )
        return self.dim % x.ndim


class CatTransform(_ByParts):
    """Transforms of parts of `lengths` along axis `dim`, joined again.

    >>> import everygrad as eg
    >>> from everygrad.distributions import AffineTransform, CatTransform, ExpTransform
    >>> CatTransform([ExpTransform(), AffineTransform(0.0, 2.0)], lengths=[1, 2])(eg.ones((3,)))
    tensor([2.7183, 2.    , 2.    ])
    """

    parameters = ("transforms", "dim", "lengths")

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(cache_size)
        self.transforms = [t.with_cache(cache_size) for t in tseq]
        self.lengths = list(lengths) if lengths is not None else [1] * len(self.transforms)
        self.dim = dim
        if len(self.lengths) != len(self.transforms):
            raise ArgumentError(
                f"CatTransform: {len(self.transforms)} transforms, but {len(self.lengths)} lengths"
            )

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)

    def _split(self, x: Tensor) -> list[Tensor]:
        axis = self._checked(x)
        if x.shape[axis] != sum(self.lengths):
            raise ShapeError(
                f"CatTransform: lengths {self.lengths} sum to {sum(self.lengths)}, but axis "
                f"{self.dim} of shape {x.shape} has {x.shape[axis]}"
            )
        return x.split(self.lengths, axis)

    def _join(self, parts: list[Tensor]) -> Tensor:
        return concat(parts, axis=self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        found = []
        dims = self.domain.event_dim
        pairs = zip(self.transforms, self._split(x), self._split(y), strict=True)
        for t, before, after in pairs:
            own = t.log_abs_det_jacobian(before, after)
            found.append(sum_rightmost(own, dims - t.domain.event_dim))
        dim = self.dim - x.ndim if self.dim >= 0 else self.dim
        dim += dims
        if dim < 0:
            return concat(found, axis=dim)
        total: Any = sum(found)
        made: Tensor = total
        return made


class StackTransform(_ByParts):
    """A transform for each slice along axis `dim`, stacked again."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms = [t.with_cache(cache_size) for t in tseq]
        self.dim = dim

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return constraints.stack([t.codomain for t in self.transforms], self.dim)

    def _split(self, x: Tensor) -> list[Tensor]:
        axis = self._checked(x)
        if x.shape[axis] != len(self.transforms):
            raise ShapeError(
                f"StackTransform: {len(self.transforms)} transforms, but axis {self.dim} of shape "
                f"{x.shape} has {x.shape[axis]}"
            )
        first = x.moveaxis(axis, 0)
        return [first[i] for i in range(first.shape[0])]

    def _join(self, parts: list[Tensor]) -> Tensor:
        return stack(parts, axis=self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        pairs = zip(self.transforms, self._split(x), self._split(y), strict=True)
        return stack([t.log_abs_det_jacobian(a, b) for t, a, b in pairs], axis=self.dim)
