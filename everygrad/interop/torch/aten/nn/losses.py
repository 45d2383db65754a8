"""Losses, with the backwards that PyTorch names. Reductions are numbers there: 0 none, 1 mean,
2 sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.derivatives import pulled, wide
from everygrad.interop.torch.aten.registry import Result, aten
from everygrad.nn import functional as F
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import exp
from everygrad.ops.index.gather import take, take_along_axis
from everygrad.ops.index.scatter import scatter
from everygrad.ops.python.creation import arange, asarray, ones, zeros

Maybe = Tensor | None
_REDUCTIONS = ("none", "mean", "sum")


def _reduced(x: Tensor, reduction: int) -> Tensor:
    return x if not reduction else x.mean() if reduction == 1 else x.sum()


def _pointwise(
    name: str, function: Callable[..., Any], last: str | None = None, differentiated: bool = True
) -> None:
    """A loss of (input, target), `reduction` and perhaps one more number, and its backward; some
    PyTorch differentiates through its parts instead."""

    def run(x: Tensor, target: Tensor, reduction: int = 1, more: Any = None) -> Tensor:
        options = {} if last is None or more is None else {last: more}
        x, target = wide(x), wide(target)
        out: Tensor = function(x, target, reduction=_REDUCTIONS[reduction], **options)
        return out

    def forward(x: Tensor, target: Tensor, reduction: int = 1, *more: Any, **named: Any) -> Tensor:
        return run(x, target, reduction, *more, *named.values())

    def backward(g: Tensor, x: Tensor, target: Tensor, reduction: int, more: Any = None) -> Tensor:
        (found,) = pulled(lambda x: run(x, target, reduction, more), wide(g), wide(x))
        return found

    aten(f"{name}.default")(forward)
    if differentiated:
        aten(f"{name}_backward.default")(backward)


_pointwise("mse_loss", F.mse_loss)
_pointwise("l1_loss", F.l1_loss, differentiated=False)
_pointwise("smooth_l1_loss", F.smooth_l1_loss, "beta")
_pointwise("huber_loss", F.huber_loss, "delta")
_pointwise("soft_margin_loss", F.soft_margin_loss)


@aten("kl_div.default")
def kl_div(x: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    out: Tensor = F.kl_div(wide(x), wide(target), _REDUCTIONS[reduction], log_target)
    return out


@aten("binary_cross_entropy.default")
def binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Maybe = None, reduction: int = 1
) -> Tensor:
    how = _REDUCTIONS[reduction]
    out: Tensor = F.binary_cross_entropy(wide(x), wide(target), wide(weight), how)
    return out


@aten("binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    g: Tensor, x: Tensor, target: Tensor, weight: Maybe = None, reduction: int = 1
) -> Tensor:
    """PyTorch divides by x (1 - x), but never by less than 1e-12."""
    g, x, target = wide(g), wide(x), wide(target)
    room = (1 - x) * x
    found = g * (x - target) / where(room < 1e-12, 1e-12, room)
    found = found if weight is None else found * wide(weight)
    return found / max(1, x.size) if reduction == 1 else found


@aten("binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Maybe = None,
    pos_weight: Maybe = None,
    reduction: int = 1,
) -> Tensor:
    out: Tensor = F.binary_cross_entropy_with_logits(
        wide(x), wide(target), wide(weight), _REDUCTIONS[reduction], wide(pos_weight)
    )
    return out


@aten("multi_margin_loss.default")
def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Maybe = None,
    reduction: int = 1,
) -> Tensor:
    how = _REDUCTIONS[reduction]
    out: Tensor = F.multi_margin_loss(x, target, int(p), float(margin), weight, how)
    return out


@aten("multi_margin_loss_backward.default")
def multi_margin_loss_backward(
    g: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Maybe = None,
    reduction: int = 1,
) -> Tensor:
    options = (target, p, margin, weight, reduction)
    (found,) = pulled(lambda x: multi_margin_loss(x, *options), g, x)
    return found


@aten("multilabel_margin_loss_forward.default")
def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The second is 1 for the classes that are among the labels, which end at the first -1."""
    named = ((target < 0).astype("int64").cumulative_sum(axis=-1) == 0).astype(x.dtype)
    nothing = zeros(target.shape, x.dtype, x.device)
    places = where(target < 0, 0, target)
    is_target = scatter(nothing, places, named, axis=-1, reduce="amax")
    out: Tensor = F.multilabel_margin_loss(x, target, _REDUCTIONS[reduction])
    return out, is_target


@aten("multilabel_margin_loss_backward.default")
def multilabel_margin_loss_backward(
    g: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    how = _REDUCTIONS[reduction]
    (found,) = pulled(lambda x: F.multilabel_margin_loss(x, target, how), g, x)
    return found


# --- the class that was right --------------------------------------------------------------------


def _weights(x: Tensor, target: Tensor, weight: Maybe, ignore_index: int) -> tuple[Tensor, Tensor]:
    """What each target weighs, 0 if it is ignored, and targets that all name a class."""
    counted = target != ignore_index
    safe: Tensor = where(counted, target, 0)
    each = ones(target.shape, x.dtype, x.device)
    if weight is not None:
        each = take(wide(weight).astype(x.dtype), safe, axis=0)
    return where(counted, each, 0.0), safe


@aten("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss(
    x: Tensor, target: Tensor, weight: Maybe, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The loss, and the sum of the weights that a mean divides by."""
    x = wide(x)
    axis = 0 if x.ndim == 1 else 1
    each, safe = _weights(x, target, weight, ignore_index)
    found = take_along_axis(x, safe.expand_dims(axis), axis=axis).squeeze(axis)
    # where, not a product: an ignored class may be minus infinity
    lost: Tensor = where(each == 0, 0.0, -found * each)
    total = each.sum()
    if reduction == 0:
        nothing = zeros((), x.dtype, x.device)
        return lost, (total if x.ndim == 1 else nothing)
    return (lost.sum() / total if reduction == 1 else lost.sum()), total


@aten("nll_loss_backward.default", "nll_loss2d_backward.default", unread=(1,))
def nll_loss_backward(
    g: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Maybe,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    g, x = wide(g), wide(x)
    axis = 0 if x.ndim == 1 else 1
    each, safe = _weights(x, target, weight, ignore_index)
    if reduction == 1:
        g = g / wide(total_weight)
    slopes: Tensor = where(each == 0, 0.0, -(each * g))
    # compared, not scattered: that is one kernel with the softmax behind it, and one pass over x
    classes = arange(x.shape[axis], dtype=safe.dtype, device=x.device)
    classes = classes.reshape((-1,) + (1,) * (x.ndim - axis - 1))
    at, slopes = safe.expand_dims(axis), slopes.expand_dims(axis)
    found: Tensor = where(classes == at, slopes, 0.0)
    return found


# --- connectionist temporal classification -------------------------------------------------------


@aten("_ctc_loss.default", "_ctc_loss.Tensor", wants_result=True)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
    *,
    result: Sequence[Result],
) -> tuple[Tensor, Tensor]:
    """The second is what PyTorch keeps of the forward algorithm; our backward runs it again."""
    lengths = (input_lengths, target_lengths)
    loss = F.ctc_loss(log_probs, targets, *lengths, blank, "none", zero_infinity)
    return loss, zeros(result[1].shape, result[1].dtype, log_probs.device)


@aten("_ctc_loss_backward.default", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    g: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """PyTorch's is that of the scores before their log_softmax, which leaves it as it is: it has
    the probabilities more, at the times that a sequence has."""
    rest = (targets, input_lengths, target_lengths, blank, "none", zero_infinity)
    (found,) = pulled(lambda x: F.ctc_loss(x, *rest), g, log_probs)
    times = input_lengths
    if not isinstance(times, Tensor):
        times = asarray(np.asarray(times, np.int64), device=g.device)
    steps = arange(log_probs.shape[0], dtype=times.dtype, device=g.device).expand_dims(1)
    lost = (neg_log_likelihood == math.inf) & zero_infinity
    running = (steps < times) & ~lost
    more = where(running.expand_dims(2), exp(log_probs) * g.expand_dims(1), 0.0)
    return found + more
