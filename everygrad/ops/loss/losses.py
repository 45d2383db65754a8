"""Losses. None broadcasts a prediction against its target."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends import base
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, OutOfRangeError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import CHECK_RANGE, gather, scatter_add, taken
from everygrad.ops.nn.softmax_and_norm import LOG_SOFTMAX_VJP, log_softmax
from everygrad.ops.python.creation import zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel, check_kind
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.record.splits import label_axes, label_grad_axes, summed_axes


def reduced(loss: Tensor, reduction: str, op: str) -> Tensor:
    """The loss of each element averaged, summed, or as it is."""
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ArgumentError(f'{op}: reduction must be "mean", "sum" or "none", got {reduction!r}')


def weighted(loss: Tensor, weight: Tensor | None, reduction: str, op: str) -> Tensor:
    """As `reduced`, with a weight for each element: a mean is that of the weights."""
    if weight is None:
        return reduced(loss, reduction, op)
    check_alike(op, loss, weight, "weight")
    total = reduced(loss * weight, "sum" if reduction == "mean" else reduction, op)
    return total / weight.sum() if reduction == "mean" else total


def check_alike(op: str, x: Tensor, target: Tensor, what: str = "target") -> None:
    """Refuse to broadcast: a column against a row would be a table of differences."""
    if x.shape != target.shape:
        raise ShapeError(
            f"{op}: prediction {x.shape} and {what} {target.shape} must have the same shape: "
            f"reshape() or expand() one of them"
        )


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.basic:mse_loss",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(2, 3, seed=1)),
            sample(s.real(3), s.real(3, seed=1), reduction="sum"),
            sample(s.real(3), s.real(3, seed=1), reduction="none"),
        )
    ),
    refuses=(
        refuse(
            ShapeError,
            r"mse_loss: .*\(2, 3\) and .*\(3,\) must have the same shape",
            s.real(2, 3),
            s.real(3),
        ),
        refuse(ArgumentError, "mse_loss: reduction must be", s.real(3), s.real(3), reduction="avg"),
    ),
    precision="float32",
)
def mse_loss(
    x: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """The squared difference, averaged, summed or as it is; `weight` has one for each element."""
    check_alike("mse_loss", x, target)
    off = x - target
    check_kind("mse_loss", off.dtype, "real float")
    return weighted(off * off, weight, reduction, "mse_loss")


# --- cross entropy -------------------------------------------------------------------------------


def _counted(target: Tensor, classes: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Which labels count, and the labels with 0 for the others."""
    counted = target != ignore_index
    labels = where(counted, target, 0)
    # the gather that follows checks too, but would name another op
    labels = apply(CHECK_RANGE, labels, size=classes, what="cross_entropy: label")
    return counted, labels


def _nll_gather(logs: Tensor, target: Tensor, axis: int, ignore_index: int) -> Tensor:
    counted, labels = _counted(target, logs.shape[axis], ignore_index)
    picked = gather(logs, labels.expand_dims(axis), axis).squeeze(axis)
    return where(counted, -picked, zeros((), logs.dtype, logs.device))


def _nll_scatter(v: Tensor, target: Tensor, axis: int, classes: int, ignore_index: int) -> Tensor:
    counted, labels = _counted(target, classes, ignore_index)
    v = where(counted, -v, zeros((), v.dtype, v.device))
    shape = (*v.shape[:axis], classes, *v.shape[axis:])
    empty = zeros(shape, v.dtype, v.device)
    return scatter_add(empty, labels.expand_dims(axis), v.expand_dims(axis), axis)


# minus the logarithm that each label names, 0 where it is ignored; compilers see what it is made of
NLL_GATHER: Kernel = Kernel(
    "nll_gather",
    _nll_gather,
    ("logs", "target"),
    (
        lambda g, target, shape, axis, ignore_index: apply(
            NLL_SCATTER,
            g,
            target,
            axis=axis,
            classes=shape[axis],
            ignore_index=ignore_index,
        ),
        None,
    ),
    linear=(0,),
    precision="float32",
    splits=label_axes,
)
# its transpose: minus v where the labels are, 0 elsewhere
NLL_SCATTER: Kernel = Kernel(
    "nll_scatter",
    _nll_scatter,
    ("v", "target"),
    (
        lambda g, target, axis, ignore_index: apply(
            NLL_GATHER, g, target, axis=axis, ignore_index=ignore_index
        ),
        None,
    ),
    linear=(0,),
    splits=label_grad_axes,
)


def _softmax_cross_entropy_vjp(
    g: Tensor, x: Tensor, target: Tensor, axis: int, ignore_index: int
) -> Tensor:
    of = {"axis": axis, "classes": x.shape[axis], "ignore_index": ignore_index}
    spread = apply(NLL_SCATTER, g, target, **of)
    return apply(LOG_SOFTMAX_VJP, spread, log_softmax(x, axis=axis), axis=axis)


# nll_gather of log_softmax, for devices on which one kernel does both
SOFTMAX_CROSS_ENTROPY: Kernel = Kernel(
    "softmax_cross_entropy",
    lambda x, target, axis, ignore_index: apply(
        NLL_GATHER, log_softmax(x, axis=axis), target, axis=axis, ignore_index=ignore_index
    ),
    ("x", "target"),
    (
        lambda g, x, target, axis, ignore_index: apply(
            SOFTMAX_CROSS_ENTROPY_VJP, g, x, target, axis=axis, ignore_index=ignore_index
        ),
        None,
    ),
    precision="float32",
    splits=label_axes,
)
SOFTMAX_CROSS_ENTROPY_VJP: Kernel = Kernel(
    "softmax_cross_entropy_vjp",
    _softmax_cross_entropy_vjp,
    ("g", "x", "target"),
    splits=label_grad_axes,
)
COUNT_LABELS: Kernel = Kernel(
    "count_labels",
    lambda target, ignore_index, dtype: (target != ignore_index).astype(dtype).sum(),
    ("target",),
    constant=True,
    splits=summed_axes,
)
_SOME = np.array([0, 2, -100])
register(
    NLL_GATHER,
    lambda logs, target, axis, ignore_index: apply(
        NLL_GATHER, logs, target, axis=axis, ignore_index=ignore_index
    ),
    namespace="internal",
    reference="tests.support.references.basic:nll_gather",
    samples=lambda: iter(
        (
            sample(s.real(3, 4), _SOME, axis=1, ignore_index=-100),
            sample(s.real(3, 4), np.array([0, 2, 1]), axis=1, ignore_index=2),
            sample(s.real(3, 2), _SOME[:2], axis=0, ignore_index=-100),
            sample(s.real(2, 3, 2), np.array([[0, 1], [2, 2]]), axis=1, ignore_index=1),
        )
    ),
    refuses=(
        refuse(
            OutOfRangeError,
            "cross_entropy: label 4 is out of range for an axis of size 4",
            s.real(1, 4),
            np.array([4]),
            axis=1,
            ignore_index=-100,
        ),
    ),
)
register(
    NLL_SCATTER,
    lambda v, target, axis, classes, ignore_index: apply(
        NLL_SCATTER, v, target, axis=axis, classes=classes, ignore_index=ignore_index
    ),
    namespace="internal",
    reference="tests.support.references.basic:nll_scatter",
    samples=lambda: iter(
        (
            sample(s.real(3), _SOME, axis=1, classes=4, ignore_index=-100),
            sample(s.real(2, 2), np.array([[0, 1], [2, 2]]), axis=1, classes=3, ignore_index=0),
        )
    ),
)
register(
    SOFTMAX_CROSS_ENTROPY,
    lambda x, target, axis, ignore_index: apply(
        SOFTMAX_CROSS_ENTROPY, x, target, axis=axis, ignore_index=ignore_index
    ),
    namespace="internal",
    reference="tests.support.references.basic:softmax_cross_entropy",
    samples=lambda: iter(
        (
            sample(s.real(3, 4), _SOME, axis=1, ignore_index=-100),
            sample(s.real(3, 5), np.array([0, 2, 1]), axis=1, ignore_index=2),
            sample(s.real(4), np.array(1), axis=0, ignore_index=-100),
            sample(s.real(2, 3, 2), np.array([[0, 1], [2, 2]]), axis=1, ignore_index=1),
        )
    ),
    refuses=(
        refuse(
            OutOfRangeError,
            "cross_entropy: label 4 is out of range for an axis of size 4",
            s.real(1, 4),
            np.array([4]),
            axis=1,
            ignore_index=-100,
        ),
    ),
)
register(
    COUNT_LABELS,
    lambda target, ignore_index, dtype: apply(
        COUNT_LABELS, target, ignore_index=ignore_index, dtype=dtype
    ),
    namespace="internal",
    reference=lambda target, ignore_index, dtype: np.array(
        (target != ignore_index).sum(), dtype.np
    ),
    samples=lambda: iter((sample(_SOME, ignore_index=-100, dtype=dtypes.float32),)),
)


def _entropy_samples() -> Any:
    labels = np.array([0, 2])
    yield sample(s.real(2, 3), labels)
    yield sample(s.real(2, 3), labels.astype(np.int32), reduction="sum")
    yield sample(s.real(2, 3), labels.astype(np.uint8), reduction="none")
    yield sample(s.real(4, 3), np.array([0, -100, 1, 2]))
    yield sample(s.real(2, 3, 2), np.array([[0, 1], [2, 2]]))
    yield sample(s.real(2, 3), labels, label_smoothing=0.1)
    yield sample(s.real(3), np.array(1))
    yield sample(s.real(2, 3), np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]))
    yield sample(s.real(2, 3), labels, weight=np.array([1.0, 2.0, 0.5]))


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.basic:cross_entropy",
    samples=_entropy_samples,
    refuses=(
        refuse(
            OutOfRangeError,
            "cross_entropy: label 3 is out of range for an axis of size 3",
            s.real(2, 3),
            np.array([0, 3]),
        ),
        refuse(
            OutOfRangeError,
            "cross_entropy: label -1 is out of range",
            s.real(2, 3),
            np.array([0, -1]),
        ),
        refuse(
            ShapeError, "cross_entropy: .* needs labels of shape", s.real(2, 3), np.array([0, 1, 2])
        ),
        refuse(DtypeError, "cross_entropy: labels must be integers", s.real(2, 3), s.booleans(2)),
        refuse(
            ArgumentError,
            "label_smoothing must be between 0 and 1",
            s.real(2, 3),
            np.array([0, 1]),
            label_smoothing=2.0,
        ),
    ),
    precision="float32",
)
def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The cross entropy of logits x, classes along axis 1, with labels or class probabilities."""
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(
            f"cross_entropy: label_smoothing must be between 0 and 1, got {label_smoothing}"
        )
    if x.ndim == 0:
        raise ShapeError("cross_entropy: a 0-d tensor has no classes")
    axis = 1 if x.ndim > 1 else 0
    if target.dtype.is_float and target.shape == x.shape:
        logs = log_softmax(x, axis=axis)
        return _soft_entropy(logs, target, weight, axis, reduction, label_smoothing)
    known = base.get(x.device).kernels
    whole = "softmax_cross_entropy" in known and not label_smoothing and x.dtype.is_float
    logs = x if whole else log_softmax(x, axis=axis)
    op = SOFTMAX_CROSS_ENTROPY if whole else NLL_GATHER
    rest = (weight, axis, ignore_index, reduction, label_smoothing)
    return _labelled("cross_entropy", op, logs, target, *rest)


def _labelled(
    op: str,
    of: Kernel,
    logs: Tensor,
    target: Tensor,
    weight: Tensor | None,
    axis: int,
    ignore_index: int,
    reduction: str,
    smoothing: float = 0.0,
) -> Tensor:
    """The loss of labels under the logarithms of probabilities; `of` gives each example's, and may
    be one that takes logits."""
    shape = logs.shape
    wanted = shape[:axis] + shape[axis + 1 :]
    if not target.dtype.is_integer:
        raise DtypeError(f"{op}: labels must be integers, got {target.dtype}")
    if target.shape != wanted:
        raise ShapeError(f"{op}: {shape} needs labels of shape {wanted}, got {target.shape}")
    target = target.astype(dtypes.int64)  # where ignore_index fits, whatever the labels came in
    loss = apply(of, logs, target, axis=axis, ignore_index=ignore_index)
    share: Tensor | None = None  # of each example
    if weight is not None:
        _check_weight(op, weight, shape[axis])
        counted, labels = _counted(target, shape[axis], ignore_index)
        share = counted.astype(logs.dtype) * taken(weight, labels)
        loss = loss * share
    if smoothing:
        spread = -logs if weight is None else -logs * _classes(weight, len(shape), axis)
        # a mean, not a sum divided: of many classes the sum is beyond float16
        even = spread.mean(axis=axis) * (target != ignore_index).astype(logs.dtype)
        loss = (1 - smoothing) * loss + smoothing * even
    if reduction != "mean":
        return reduced(loss, reduction, op)
    if share is not None:
        return loss.sum() / share.sum()
    return loss.sum() / apply(COUNT_LABELS, target, ignore_index=ignore_index, dtype=logs.dtype)


def _check_weight(op: str, weight: Tensor, classes: int) -> None:
    if weight.shape != (classes,):
        raise ShapeError(f"{op}: weight {weight.shape} must have shape {(classes,)}")


def _classes(weight: Tensor, ndim: int, axis: int) -> Tensor:
    return weight.reshape((-1,) + (1,) * (ndim - axis - 1))


def _soft_entropy(
    logs: Tensor, target: Tensor, weight: Tensor | None, axis: int, reduction: str, smoothing: float
) -> Tensor:
    if smoothing:
        target = target * (1 - smoothing) + smoothing / logs.shape[axis]
    if weight is not None:
        _check_weight("cross_entropy", weight, logs.shape[axis])
        logs = logs * _classes(weight, logs.ndim, axis)
    return reduced(-(logs * target).sum(axis=axis), reduction, "cross_entropy")


_LABELS = np.array([0, 2])


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:nll_loss",
    torch="tests.support.references.neural:torch_nll_loss",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), _LABELS, s.real(3, low=0.5, seed=1)),
            sample(s.real(2, 3, 2), np.array([[0, 1], [2, -100]])),
        )
    ),
    refuses=(
        refuse(OutOfRangeError, "nll_loss: label 3 is out of range", s.real(2, 3), _LABELS + 1),
        refuse(ShapeError, "nll_loss: .* needs labels of shape", s.real(2, 3), _LABELS[:1]),
        refuse(ShapeError, "nll_loss: weight .* must", s.real(2, 3), _LABELS, s.real(2)),
        refuse(DtypeError, "nll_loss: labels must be integers", s.real(2, 3), s.real(2)),
    ),
    precision="float32",
)
def nll_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Minus what x, logarithms of probabilities with classes along axis 1, has at each label.

    The mean is weighted; labels equal to `ignore_index` do not count.
    """
    check_kind("nll_loss", x.dtype, "real float")
    if x.ndim == 0:
        raise ShapeError("nll_loss: a 0-d tensor has no classes")
    axis = 1 if x.ndim > 1 else 0
    if target.dtype.is_integer:
        counted = target != ignore_index
        labels = where(counted, target, 0)
        labels = apply(CHECK_RANGE, labels, size=x.shape[axis], what="nll_loss: label")
        target = where(counted, labels, target)
    return _labelled("nll_loss", NLL_GATHER, x, target, weight, axis, ignore_index, reduction)
