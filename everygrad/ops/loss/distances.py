"""Distances and similarities of vectors, and the losses that rank by them."""

from __future__ import annotations

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, AxisError, DtypeError, OutOfRangeError, ShapeError
from everygrad.ops.elementwise.basic import clamp, minimum, rsqrt, where
from everygrad.ops.elementwise.math import relu, softplus
from everygrad.ops.index.gather import CHECK_RANGE, gather, taken
from everygrad.ops.loss.losses import check_alike, reduced
from everygrad.ops.python.creation import arange
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.reduce.norms_and_counts import norm

_X, _Y, _Z = s.real(2, 3), s.real(2, 3, seed=1), s.real(2, 3, seed=2)
_SIGNS = np.array([1, -1])


def _full(x: Tensor) -> Tensor:
    """Half floats widened: the least norms that are told from 0 are below what they hold."""
    return x.astype(dtypes.float32) if x.dtype.itemsize < 4 else x


@composite(
    scalar_rows="row",
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:normalize",
    torch="torch.nn.functional:normalize",
    samples=lambda: iter((sample(_X), sample(_X, 3.0, 0), sample(_X, 1.0, -1))),
    refuses=(refuse(AxisError, "normalize: axis 2", _X, axis=2),),
    precision="float32",
)
def normalize(x: Tensor, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """x over its p-norm along the axis, which counts as `eps` at least."""
    check_kind("normalize", x.dtype, "real float")
    at = shapes.axis_index(axis, x.ndim, "normalize")
    wide = _full(x)
    return (wide / clamp(norm(wide, p, at, keepdims=True), min=eps)).astype(x.dtype)


@composite(
    scalar_rows="row",
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:cosine_similarity",
    torch="torch.nn.functional:cosine_similarity",
    samples=lambda: iter((sample(_X, _Y), sample(s.real(2, 1, 3), _Y, axis=-1))),
    refuses=(
        refuse(ShapeError, "cosine_similarity: cannot broadcast", _X, s.real(2, 2)),
        refuse(AxisError, "cosine_similarity: axis 2", _X, _Y, axis=2),
    ),
    precision="float32",
)
def cosine_similarity(x1: Tensor, x2: Tensor, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along the axis; x1 and x2 broadcast.

    A norm below `eps` counts as eps.
    """
    check_kind("cosine_similarity", x1.dtype, "real float")
    check_kind("cosine_similarity", x2.dtype, "real float")
    shape = shapes.broadcast("cosine_similarity", x1.shape, x2.shape)
    at = shapes.axis_index(axis, len(shape), "cosine_similarity")
    dtype = dtypes.promote(x1.dtype, x2.dtype)
    one, two = _full(x1).broadcast_to(shape), _full(x2).broadcast_to(shape)
    sizes = clamp(norm(one, 2.0, at), min=eps) * clamp(norm(two, 2.0, at), min=eps)
    return ((one * two).sum(axis=at) / sizes).astype(dtype)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:pairwise_distance",
    torch="torch.nn.functional:pairwise_distance",
    samples=lambda: iter((sample(_X, _Y), sample(_X, _Y[0], 3.0, keepdims=True))),
    refuses=(
        refuse(ShapeError, "pairwise_distance: cannot broadcast", _X, s.real(2, 2)),
        refuse(ShapeError, "pairwise_distance: needs vectors", s.real(), s.real()),
    ),
    precision="float32",
)
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis; x1 and x2 broadcast."""
    check_kind("pairwise_distance", x1.dtype, "real float")
    check_kind("pairwise_distance", x2.dtype, "real float")
    if not shapes.broadcast("pairwise_distance", x1.shape, x2.shape):
        raise ShapeError("pairwise_distance: needs vectors along the last axis, got shape ()")
    dtype = dtypes.promote(x1.dtype, x2.dtype)
    return norm(_full(x1) - _full(x2) + eps, p, -1, keepdims).astype(dtype)


# --- losses --------------------------------------------------------------------------------------


def _check_signs(op: str, y: Tensor, shape: shapes.Shape) -> None:
    if y.shape != shape:
        raise ShapeError(f"{op}: target {y.shape} must have shape {shape}, of 1 and -1")


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:cosine_embedding_loss",
    torch="torch.nn.functional:cosine_embedding_loss",
    samples=lambda: iter(
        (sample(_X, _Y, _SIGNS, margin=-0.9), sample(_X, _Y, -_SIGNS, reduction="none"))
    ),
    refuses=(
        refuse(ShapeError, "cosine_embedding_loss: .*must have the same", _X, _Y[:1], _SIGNS),
        refuse(ShapeError, "cosine_embedding_loss: target .* must have", _X, _Y, _SIGNS[:1]),
        refuse(ShapeError, "takes vectors", s.real(), s.real(), _SIGNS),
    ),
    precision="float32",
)
def cosine_embedding_loss(
    x1: Tensor, x2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - the cosine of x1 and x2 where target is 1; where it is -1, what is above `margin`.

    Vectors lie along the last axis, (batch, size) or one alone.
    """
    op = "cosine_embedding_loss"
    check_kind(op, x1.dtype, "real float")
    check_alike(op, x1, x2, "x2")
    if x1.ndim not in (1, 2):
        raise ShapeError(f"{op}: takes vectors (batch, size) or (size,), got {x1.shape}")
    _check_signs(op, target, x1.shape[:-1])
    one, two = _full(x1), _full(x2)
    least = 1e-12  # PyTorch's, for vectors of zeros
    sizes = ((one * one).sum(axis=-1) + least) * ((two * two).sum(axis=-1) + least)
    cosine = ((one * two).sum(axis=-1) * rsqrt(sizes)).astype(x1.dtype)
    loss = where(target == 1, 1.0 - cosine, where(target == -1, relu(cosine - margin), 0.0))
    return reduced(loss, reduction, op)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:triplet_margin_loss",
    torch="torch.nn.functional:triplet_margin_loss",
    samples=lambda: iter(
        (
            sample(_X, _Y, _Z, margin=3.0),
            sample(_X, _Y, _Z, margin=4.0, p=3.0, swap=True, reduction="none"),
        )
    ),
    refuses=(
        refuse(ShapeError, "triplet_margin_loss: .*positive .*must have the same", _X, _Y[:1], _Z),
        refuse(ShapeError, "triplet_margin_loss: .*negative .*must have the same", _X, _Y, _Z[0]),
        refuse(ArgumentError, "triplet_margin_loss: margin must", _X, _Y, _Z, margin=-1.0),
    ),
    precision="float32",
)
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin), distances by the last axis.

    With `swap` the negative's distance is the smaller of those to the anchor and to the positive.
    """
    op = "triplet_margin_loss"
    check_kind(op, anchor.dtype, "real float")
    check_alike(op, anchor, positive, "positive")
    check_alike(op, anchor, negative, "negative")
    if not margin > 0:
        raise ArgumentError(f"{op}: margin must be positive, got {margin!r}")
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(relu(near - far + margin), reduction, op)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:margin_ranking_loss",
    torch="torch.nn.functional:margin_ranking_loss",
    samples=lambda: iter(
        (
            sample(_X[:, 0], _Y[:, 0], _SIGNS, margin=3.0),
            sample(_X[:, 0], _Y[:, 0], -_SIGNS, reduction="none"),
        )
    ),
    refuses=(
        refuse(ShapeError, "margin_ranking_loss: .*must have the same", _X, _Y[0], _SIGNS),
        refuse(ShapeError, "margin_ranking_loss: target .* must have", _X, _Y, _SIGNS),
    ),
    precision="float32",
)
def margin_ranking_loss(
    x1: Tensor, x2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, -target (x1 - x2) + margin): 1 asks that x1 is the larger, -1 that x2 is."""
    op = "margin_ranking_loss"
    check_kind(op, x1.dtype, "real float")
    check_alike(op, x1, x2, "x2")
    _check_signs(op, target, x1.shape)
    return reduced(relu(target.astype(x1.dtype) * (x2 - x1) + margin), reduction, op)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:hinge_embedding_loss",
    torch="torch.nn.functional:hinge_embedding_loss",
    samples=lambda: iter(
        (
            sample(_X[:, 0], _SIGNS, margin=3.0),
            sample(_X[:, 0], -_SIGNS, margin=0.5, reduction="none"),
        )
    ),
    refuses=(refuse(ShapeError, "hinge_embedding_loss: target .* must have", _X, _SIGNS),),
    precision="float32",
)
def hinge_embedding_loss(
    x: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """x where target is 1, max(0, margin - x) where it is -1: distances of what is alike or not."""
    check_kind("hinge_embedding_loss", x.dtype, "real float")
    _check_signs("hinge_embedding_loss", target, x.shape)
    alike = where(target != -1, x, 0.0)
    apart = where(target != 1, relu(margin - x), 0.0)
    return reduced(alike + apart, reduction, "hinge_embedding_loss")


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:soft_margin_loss",
    torch="torch.nn.functional:soft_margin_loss",
    samples=lambda: iter((sample(_X[:, 0], _SIGNS), sample(_X[:, 0], -_SIGNS, reduction="none"))),
    refuses=(refuse(ShapeError, "soft_margin_loss: target .* must have", _X, _SIGNS),),
    precision="float32",
)
def soft_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target x)), the target being 1 or -1."""
    check_kind("soft_margin_loss", x.dtype, "real float")
    _check_signs("soft_margin_loss", target, x.shape)
    return reduced(softplus(-target.astype(x.dtype) * x), reduction, "soft_margin_loss")


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:multi_margin_loss",
    torch=None,  # it has no second derivative
    samples=lambda: iter(
        (
            sample(_X, np.array([2, 0]), 2, 0.7, s.real(3, low=0.5, seed=3)),
            sample(_X[0], np.array(1)),
        )
    ),
    refuses=(
        refuse(OutOfRangeError, "multi_margin_loss: label 3", _X, np.array([0, 3])),
        refuse(ShapeError, "multi_margin_loss: .* needs labels of", _X, np.array([0])),
        refuse(ArgumentError, "multi_margin_loss: p must be 1 or 2", _X, np.array([0, 1]), 3),
        refuse(DtypeError, "multi_margin_loss: labels must be integers", _X, s.real(2)),
        refuse(ShapeError, "weight .* must have", _X, np.array([0, 1]), weight=s.real(2)),
    ),
    precision="float32",
)
def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of max(0, margin - x[label] + x) ** p, that of the label left out.

    Scores are (batch, classes) or (classes,); `weight` is by the label's class.
    """
    op = "multi_margin_loss"
    check_kind(op, x.dtype, "real float")
    if p not in (1, 2):
        raise ArgumentError(f"{op}: p must be 1 or 2, got {p!r}")
    if not target.dtype.is_integer:
        raise DtypeError(f"{op}: labels must be integers, got {target.dtype}")
    if x.ndim not in (1, 2) or target.shape != x.shape[:-1]:
        raise ShapeError(f"{op}: {x.shape} needs labels of {x.shape[:-1]}, got {target.shape}")
    classes = x.shape[-1]
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(f"{op}: weight {weight.shape} must have shape {(classes,)}")
    labels = apply(CHECK_RANGE, target.astype(dtypes.int64), size=classes, what=f"{op}: label")
    own = gather(x, labels.expand_dims(-1), axis=x.ndim - 1)
    over = relu(x - own + margin)
    over = over if p == 1 else over * over
    over = over if weight is None else over * taken(weight, labels).expand_dims(-1)
    others = labels.expand_dims(-1) != arange(classes, device=x.device)
    return reduced(where(others, over, 0.0).sum(axis=-1) / classes, reduction, op)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:multilabel_soft_margin_loss",
    torch="torch.nn.functional:multilabel_soft_margin_loss",
    samples=lambda: iter(
        (sample(_X, np.array([[1, 0, 1], [0, 1, 1]]), s.real(3, low=0.5), reduction="none"),)
    ),
    refuses=(refuse(ShapeError, "multilabel_soft_margin_loss: .*must have", _X, _Y[0]),),
    precision="float32",
)
def multilabel_soft_margin_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The mean over classes, the last axis, of the cross entropy of sigmoid(x) with target."""
    op = "multilabel_soft_margin_loss"
    check_kind(op, x.dtype, "real float")
    check_alike(op, x, target)
    loss = (1.0 - target.astype(x.dtype)) * x + softplus(-x)
    if weight is not None:
        if shapes.broadcast(op, weight.shape, x.shape) != x.shape:
            raise ShapeError(f"{op}: weight {weight.shape} does not broadcast to {x.shape}")
        loss = loss * weight
    return reduced(loss.mean(axis=-1), reduction, op)
