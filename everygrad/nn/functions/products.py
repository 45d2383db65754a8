"""Products with weights: bilinear, a linear layer under a cross entropy, lines with time first."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ShapeError
from everygrad.ops.linalg.matmul import linear as _linear, linear_bias, matmul
from everygrad.ops.loss.losses import cross_entropy
from everygrad.ops.nn.conv_nd import conv1d


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight^T + bias, the weight being (out features, in features).

    >>> import everygrad as eg
    >>> eg.nn.functional.linear(eg.ones((2, 3)), eg.ones((4, 3))).shape
    (2, 4)
    """
    given, wanted = x.shape, weight.shape
    if len(wanted) != 2 or not given or given[-1] != wanted[1]:
        raise ShapeError(f"linear: a weight (out, in) of shape {wanted} does not take x of {given}")
    if bias is not None and bias.shape != wanted[:1]:
        raise ShapeError(f"linear: bias {bias.shape} must have shape {wanted[:1]}")
    if len(given) > 1:
        return _linear(x, weight) if bias is None else linear_bias(x, weight, bias)
    out = matmul(x, weight.permute_dims((1, 0)))
    return out if bias is None else out + bias


def bilinear(x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1^T weight[k] x2 + bias[k] for each k; the weight is (out, in1, in2).

    >>> import everygrad as eg
    >>> eg.nn.functional.bilinear(eg.ones((5, 2)), eg.ones((5, 3)), eg.ones((4, 2, 3))).shape
    (5, 4)
    """
    if weight.ndim != 3 or x1.shape[:-1] != x2.shape[:-1] or not x1.ndim or not x2.ndim:
        raise ShapeError(
            f"bilinear: x1 {x1.shape} and x2 {x2.shape} must be (*, in1) and (*, in2) for a "
            f"weight (out, in1, in2), got {weight.shape}"
        )
    out, in1, in2 = weight.shape
    if (x1.shape[-1], x2.shape[-1]) != (in1, in2):
        raise ShapeError(
            f"bilinear: a weight (out, in1, in2) of {weight.shape} does not take x1 {x1.shape} "
            f"and x2 {x2.shape}"
        )
    if bias is not None and bias.shape != (out,):
        raise ShapeError(f"bilinear: bias {bias.shape} must have shape {(out,)}")
    halves = matmul(x2.reshape(-1, in2), weight.reshape(out * in1, in2).mT)
    halves = halves.reshape(*x1.shape[:-1], out, in1)
    found: Tensor = (halves * x1.expand_dims(-2)).sum(axis=-1)
    return found if bias is None else found + bias


def linear_cross_entropy(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Tensor:
    """The cross entropy of linear(x, linear_weight, linear_bias) with the target.

    A weight (classes, *places, features) gives logits (batch, classes, *places). `options` choose
    how PyTorch splits the product; here they make no difference.

    >>> import everygrad as eg
    >>> F = eg.nn.functional
    >>> f"{F.linear_cross_entropy(eg.ones((2, 3)), eg.ones((4, 3)), eg.tensor([0, 3])):.4f}"
    '1.3863'
    """
    shape, features = linear_weight.shape[:-1], linear_weight.shape[-1]
    bias = None if linear_bias is None else linear_bias.reshape(-1)
    logits = linear(x, linear_weight.reshape(-1, features), bias)
    if len(shape) > 1:
        logits = logits.reshape(*x.shape[:-1], *shape)
    ignored = -100 if ignore_index is None else ignore_index
    out: Tensor = cross_entropy(logits, target, weight, ignored, reduction, label_smoothing)
    return out


def conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution over (time, batch, channels), the weight being (width, in, out).

    >>> import everygrad as eg
    >>> F = eg.nn.functional
    >>> F.conv_tbc(eg.ones((5, 2, 3)), eg.ones((3, 3, 4)), eg.zeros((4,)), pad=1).shape
    (5, 2, 4)
    """
    if x.ndim != 3 or weight.ndim != 3 or x.shape[2] != weight.shape[1]:
        raise ShapeError(
            f"conv_tbc: takes (time, batch, channels) and a weight (width, in, out), got "
            f"{x.shape} and {weight.shape}"
        )
    lines, kernel = x.permute_dims((1, 2, 0)), weight.permute_dims((2, 1, 0))
    out: Tensor = conv1d(lines, kernel, bias, 1, pad)
    return out.permute_dims((2, 0, 1))
