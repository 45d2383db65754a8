"""Distances between all pairs of vectors, and the losses of margins with several labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, OutOfRangeError, ShapeError
from everygrad.ops.elementwise.basic import minimum, where
from everygrad.ops.elementwise.math import relu
from everygrad.ops.index.gather import CHECK_RANGE, take_along_axis, taken
from everygrad.ops.linalg.checks import constant
from everygrad.ops.loss.losses import check_alike, reduced
from everygrad.ops.python.creation import arange
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.reduce.norms_and_counts import norm
from everygrad.ops.reduce.scans import cumulative_prod


def _check_vectors(op: str, x: Tensor, y: Tensor) -> None:
    check_kind(op, x.dtype, "real float")
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"{op}: takes (..., n, size) and (..., m, size), got {x.shape} and {y.shape}"
        )
    shapes.broadcast(op, x.shape[:-2], y.shape[:-2])


@composite(
    kinds="real float",
    methods=(),
    torch=None,  # it has no second derivative there
    reference=lambda x, y, p=2.0: np.linalg.norm(x[..., :, None, :] - y[..., None, :, :], p, -1),
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(3, 3, seed=1)),
            sample(s.real(2, 1, 2), s.real(2, 2, seed=1), 1.0),
        )
    ),
    refuses=(
        refuse(ShapeError, "cdist: takes .* got", s.real(2, 3), s.real(2, 2)),
        refuse(ShapeError, "cdist: cannot broadcast", s.real(2, 1, 2), s.real(3, 1, 2)),
    ),
)
def cdist(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """(..., n, m): the p-norm of the difference of each vector of x (..., n, size) and each of y
    (..., m, size). The derivative is 0 where they are the same. PyTorch's `compute_mode` chooses
    nothing here: differences are always taken."""
    _check_vectors("cdist", x, y)
    return norm(x.expand_dims(-2) - y.expand_dims(-3), p, -1)


@composite(
    kinds="real float",
    methods=(),
    torch=None,
    reference=lambda x, p=2.0: np.array(
        [np.linalg.norm(x[i] - x[j], p) for i in range(len(x)) for j in range(i + 1, len(x))]
    ),
    samples=lambda: iter((sample(s.real(3, 2)), sample(s.real(3, 2), 3.0))),
    refuses=(refuse(ShapeError, "pdist: takes .* got", s.real(3)),),
)
def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms of the differences of all pairs of rows, the first of which changes slowest."""
    check_kind("pdist", x.dtype, "real float")
    if x.ndim != 2:
        raise ShapeError(f"pdist: takes a matrix of rows, got {x.shape}")
    first, second = (constant(i, x.device) for i in np.triu_indices(x.shape[0], 1))
    return norm(taken(x, first, axis=0) - taken(x, second, axis=0), p, -1)


_X = s.real(2, 4)
_LABELS = np.array([[3, 0, -1, 1], [2, -1, -1, -1]])


@composite(
    kinds="real float",
    methods=(),
    torch=None,  # it has no second derivative
    reference="tests.support.references.neural:multilabel_margin_loss",
    samples=lambda: iter(
        (sample(_X, _LABELS), sample(_X[0], _LABELS[0]), sample(_X, _LABELS, reduction="none"))
    ),
    refuses=(
        refuse(ShapeError, "multilabel_margin_loss: .* needs labels of", _X, _LABELS[0]),
        refuse(OutOfRangeError, "multilabel_margin_loss: label 4", _X, _LABELS + 1),
        refuse(DtypeError, "multilabel_margin_loss: labels must be integers", _X, s.real(2, 4)),
    ),
)
def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The sum of max(0, 1 - x[label] + x) over an example's labels and the classes that are none
    of them, over the number of classes. Labels come first in a row; -1 ends them."""
    op = "multilabel_margin_loss"
    check_kind(op, x.dtype, "real float")
    if not target.dtype.is_integer:
        raise DtypeError(f"{op}: labels must be integers, got {target.dtype}")
    if x.ndim not in (1, 2) or target.shape != x.shape:
        raise ShapeError(f"{op}: {x.shape} needs labels of {x.shape}, got {target.shape}")
    classes = x.shape[-1]
    given = cumulative_prod((target >= 0).astype(dtypes.int64), axis=-1) != 0
    labels = where(given, target.astype(dtypes.int64), 0)
    labels = apply(CHECK_RANGE, labels, size=classes, what=f"{op}: label")
    named = (labels.expand_dims(-1) == arange(classes, device=x.device)) & given.expand_dims(-1)
    others = named.any(axis=-2, keepdims=True).logical_not() & given.expand_dims(-1)
    over = relu(1.0 - take_along_axis(x, labels, axis=-1).expand_dims(-1) + x.expand_dims(-2))
    return reduced(where(others, over, 0.0).sum(axis=(-2, -1)) / classes, reduction, op)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) for a function d of two tensors,
    the Euclidean distance of the last axis by default. With `swap` the negative may be as near to
    the positive as to the anchor."""
    op = "triplet_margin_with_distance_loss"
    check_alike(op, anchor, positive)
    check_alike(op, anchor, negative)
    if margin <= 0:
        raise ArgumentError(f"{op}: margin must be above 0, got {margin}")
    far = distance_function or (lambda a, b: norm(a - b + 1e-6, 2.0, -1))
    near, away = far(anchor, positive), far(anchor, negative)
    away = minimum(away, far(positive, negative)) if swap else away
    return reduced(relu(near - away + margin), reduction, op)
