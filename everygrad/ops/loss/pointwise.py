"""Losses of each element by itself: distances, and likelihoods under a distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from everygrad.compiler.expr import call
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import abs, clamp, maximum, sign, where
from everygrad.ops.elementwise.math import exp, log, log1p, softplus
from everygrad.ops.loss.losses import check_alike, reduced, weighted
from everygrad.ops.record import samples as s
from everygrad.ops.record.arguments import tensor_of
from everygrad.ops.record.families import Function, check_kind, elementwise
from everygrad.ops.record.spec import composite, refuse, sample

_X, _Y = s.real(2, 3), s.real(2, 3, seed=1)


def _refusals(name: str, *more: Any) -> tuple[Any, ...]:
    """A target that would broadcast, a reduction that is none."""
    return (
        refuse(ShapeError, rf"{name}: .*\(2, 3\) and .*\(3,\) must have the same", _X, _Y[0]),
        refuse(ArgumentError, f"{name}: reduction must be", _X, _Y, reduction="avg"),
        *more,
    )


def _samples(**options: Any) -> Any:
    def make() -> Any:
        yield sample(_X, _Y, **options)
        yield sample(_X[0], _Y[0], reduction="none", **options)

    return make


def _difference(op: str, x: Tensor, target: Tensor) -> Tensor:
    check_alike(op, x, target)
    off = x - target
    check_kind(op, off.dtype, "real float")
    return off


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:l1_loss",
    torch="torch.nn.functional:l1_loss",
    samples=_samples(),
    refuses=_refusals("l1_loss"),
    precision="float32",
)
def l1_loss(
    x: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """The absolute difference, averaged, summed or as it is; its slope at 0 is 0. `weight` has one
    for each element."""
    return weighted(abs(_difference("l1_loss", x, target)), weight, reduction, "l1_loss")


# one kernel each, eager too; a bound is a second input, so that it is no part of the code
_smooth: Function = elementwise(
    "smooth_distance",
    lambda x, beta: where(abs(x) < beta, x * x * (0.5 / beta), abs(x) - 0.5 * beta),
    (lambda g, x, beta: g * where(abs(x) < beta, x / beta, sign(x)), None),
    kinds="real float",
    doc="|x| - beta / 2; below beta x**2 / (2 beta).",
    methods=(),
    namespace="internal",
    reference=lambda x, beta: np.where(np.abs(x) < beta, x * x / (2 * beta), np.abs(x) - beta / 2),
    samples=lambda: iter((sample(_X, 0.8),)),
)
_huber: Function = elementwise(
    "huber_distance",
    lambda x, delta: where(abs(x) <= delta, 0.5 * x * x, delta * (abs(x) - 0.5 * delta)),
    (lambda g, x, delta: g * where(abs(x) <= delta, x, sign(x) * delta), None),
    kinds="real float",
    doc="x**2 / 2; beyond delta it goes on as a line.",
    methods=(),
    namespace="internal",
    reference=lambda x, delta: np.where(
        np.abs(x) <= delta, x * x / 2, delta * (np.abs(x) - delta / 2)
    ),
    samples=lambda: iter((sample(_X, 0.8),)),
)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:smooth_l1_loss",
    torch="torch.nn.functional:smooth_l1_loss",
    samples=_samples(beta=0.8),
    refuses=_refusals(
        "smooth_l1_loss", refuse(ArgumentError, "smooth_l1_loss: beta must", _X, _Y, beta=-1.0)
    ),
    precision="float32",
)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """The absolute difference less beta / 2; below beta its square / (2 beta)."""
    if not beta >= 0:
        raise ArgumentError(f"smooth_l1_loss: beta must not be negative, got {beta!r}")
    off = _difference("smooth_l1_loss", x, target)
    loss = abs(off) if beta == 0 else _smooth(off, float(beta))
    return reduced(loss, reduction, "smooth_l1_loss")


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:huber_loss",
    torch="torch.nn.functional:huber_loss",
    samples=_samples(delta=0.8),
    refuses=_refusals(
        "huber_loss", refuse(ArgumentError, "huber_loss: delta must", _X, _Y, delta=0.0)
    ),
    precision="float32",
)
def huber_loss(
    x: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """Half the squared difference; beyond delta it goes on as a line. `weight` has a factor for
    each element: as in PyTorch, a mean is that of the products."""
    if not delta > 0:
        raise ArgumentError(f"huber_loss: delta must be positive, got {delta!r}")
    off = _difference("huber_loss", x, target)
    out = _huber(off, float(delta))
    if weight is not None:
        check_alike("huber_loss", out, weight, "weight")
        out = out * weight
    return reduced(out, reduction, "huber_loss")


# --- two classes ---------------------------------------------------------------------------------

_LOWEST = -100.0  # of a logarithm, as PyTorch's: a wrong certainty costs this much, not infinity
_LEAST = 1e-12  # of a probability that something is divided by


def _entropy(x: Any, target: Any) -> Any:
    yes, no = call("max", call("log", x), _LOWEST), call("max", call("log1p", -x), _LOWEST)
    return -(target * yes + (1.0 - target) * no)


def _entropy_dx(g: Any, x: Any, target: Any) -> Any:
    rest = 1.0 - target
    yes = where(target == 0, 0.0, target / maximum(x, _LEAST))
    no = where(rest == 0, 0.0, rest / maximum(1.0 - x, _LEAST))
    return g * (no - yes)


def _entropy_dt(g: Any, x: Any) -> Any:
    return g * (maximum(log1p(-x), _LOWEST) - maximum(log(x), _LOWEST))


BINARY_ENTROPY: Function = elementwise(
    "binary_entropy",
    _entropy,
    (_entropy_dx, _entropy_dt),
    kinds="real float",
    doc="-(target log(x) + (1 - target) log(1 - x)), logarithms being -100 at least.",
    methods=(),
    namespace="internal",
    reference="tests.support.references.neural:binary_entropy",
    samples=lambda: iter(
        (
            sample(s.real(2, 3, low=0.1, high=0.9), s.real(2, 3, low=0.0, high=1.0, seed=1)),
            sample(s.real(3, low=0.1, high=0.9), s.real(low=0.2, high=0.8)),
        )
    ),
)


def _weighed(op: str, loss: Tensor, weight: Tensor | None) -> Tensor:
    """The loss times weights that broadcast to it."""
    if weight is None:
        return loss
    out = loss * weight
    if out.shape != loss.shape:
        raise ShapeError(f"{op}: weight {weight.shape} does not broadcast to {loss.shape}")
    return out


_P, _T = s.real(2, 3, low=0.1, high=0.9), s.real(2, 3, low=0.0, high=1.0, seed=1)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:binary_cross_entropy",
    torch="tests.support.references.neural:torch_binary_cross_entropy",
    samples=lambda: iter(
        (
            sample(_P, _T),
            sample(_P, _T, s.real(3, low=0.5, seed=2), reduction="none"),
        )
    ),
    refuses=_refusals(
        "binary_cross_entropy",
        refuse(ShapeError, "binary_cross_entropy: weight .* does not", _P[0], _T[0], _P),
    ),
    precision="float32",
)
def binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(target log(x) + (1 - target) log(1 - x)) of probabilities x in [0, 1].

    A logarithm is -100 at least, so that the loss is finite. From logits the next one is safer.
    """
    op = "binary_cross_entropy"
    check_kind(op, x.dtype, "real float")
    check_alike(op, x, target)
    return reduced(_weighed(op, BINARY_ENTROPY(x, target.astype(x.dtype)), weight), reduction, op)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:binary_cross_entropy_with_logits",
    torch="tests.support.references.neural:torch_binary_cross_entropy_with_logits",
    samples=lambda: iter(
        (
            sample(_X, _T),
            sample(_X, _T, _P, reduction="none", pos_weight=s.real(3, low=0.5, seed=2)),
        )
    ),
    refuses=_refusals(
        "binary_cross_entropy_with_logits",
        refuse(ShapeError, "pos_weight .* does not broadcast", _X[0], _T[0], pos_weight=_P),
    ),
    precision="float32",
)
def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """The cross entropy of target with sigmoid(x), without overflow; positives by `pos_weight`."""
    op = "binary_cross_entropy_with_logits"
    check_kind(op, x.dtype, "real float")
    check_alike(op, x, target)
    target = target.astype(x.dtype)
    below = softplus(-x)  # -log(sigmoid(x))
    if pos_weight is not None:
        below = below * ((pos_weight - 1.0) * target + 1.0)
        if below.shape != x.shape:
            raise ShapeError(f"{op}: pos_weight {pos_weight.shape} does not broadcast to {x.shape}")
    loss = (1.0 - target) * x + below
    return reduced(_weighed(op, loss, weight), reduction, op)


# --- distributions -------------------------------------------------------------------------------


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:kl_div",
    torch="torch.nn.functional:kl_div",
    samples=lambda: iter(
        (
            sample(_X, _P, reduction="batchmean"),
            sample(s.real(), s.real(low=0.3, seed=1), reduction="batchmean"),
            sample(_X, _Y, log_target=True, reduction="none"),
        )
    ),
    refuses=_refusals("kl_div"),
    precision="float32",
)
def kl_div(x: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target (log(target) - x): how far x, logarithms of probabilities, is from target.

    0 where the target is 0. With `log_target` the target is a logarithm too. "batchmean" sums, and
    divides by the size of axis 0: the divergence itself; "mean" also averages within each example.
    A number is its own sum.
    """
    check_kind("kl_div", x.dtype, "real float")
    check_alike("kl_div", x, target)
    if log_target:
        loss = exp(target) * (target - x)
    else:
        some = target != 0  # below 0 it is NaN
        loss = where(some, target * log(where(some, target, 1.0)), 0.0) - target * x
    if reduction != "batchmean":
        return reduced(loss, reduction, "kl_div")
    return loss.sum() / x.shape[0] if x.ndim else loss


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:gaussian_nll_loss",
    torch="torch.nn.functional:gaussian_nll_loss",
    samples=lambda: iter(
        (
            sample(_X, _Y, s.real(2, 1, low=0.3, seed=2), full=True, reduction="sum"),
            sample(_X, _Y, s.real(2, low=0.3, seed=2), reduction="none"),
            sample(_X, _Y, s.real(1, 3, low=0.3, seed=2)),
        )
    ),
    refuses=(
        refuse(ShapeError, "gaussian_nll_loss: prediction", _X, _Y[0], _P),
        refuse(ShapeError, "gaussian_nll_loss: var .* must be", _X, _Y, s.real(4)),
        refuse(ArgumentError, "gaussian_nll_loss: reduction", _X, _Y, _P, reduction="avg"),
        refuse(ArgumentError, "gaussian_nll_loss: eps must", _X, _Y, _P, eps=0.0),
    ),
    precision="float32",
)
def gaussian_nll_loss(
    x: Tensor,
    target: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """(log(var) + (x - target)^2 / var) / 2: target under normals of mean x and variance `var`.

    var is a number, has x's shape, or that with an axis of 1, or without the last one. Variances
    below `eps` count as eps, with a derivative as if they did not. `full` adds log(2 pi) / 2.
    """
    op = "gaussian_nll_loss"
    if not eps > 0:
        raise ArgumentError(f"{op}: eps must be positive, got {eps!r}")
    off = _difference(op, x, target)
    if isinstance(var, Tensor | np.ndarray):
        var = _variance(op, x, tensor_of(op, var, x))
        low = clamp(var.detach(), min=eps)
        var = var + (low - var.detach())
    else:
        var = x.detach() * 0.0 + max(float(var), eps)
    loss = 0.5 * (log(var) + off * off / var)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction, op)


def _variance(op: str, x: Tensor, var: Tensor) -> Tensor:
    if var.ndim == x.ndim:
        other = [n for n, size in zip(var.shape, x.shape, strict=True) if n != size]
        if other in ([], [1]):
            return var
    if x.ndim and var.shape == x.shape[:-1]:
        return var.expand_dims(-1)
    raise ShapeError(
        f"{op}: var {var.shape} must be {x.shape}, or that with an axis of 1, or without the last"
    )


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:poisson_nll_loss",
    torch="torch.nn.functional:poisson_nll_loss",
    samples=lambda: iter(
        (
            sample(_X, s.real(2, 3, low=0.2, high=4.0, seed=1)),
            sample(_P, s.real(2, 3, low=1.5, seed=1), log_input=False, full=True, reduction="sum"),
        )
    ),
    refuses=_refusals("poisson_nll_loss"),
    precision="float32",
)
def poisson_nll_loss(
    x: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """exp(x) - target x: counts under Poisson distributions whose rates have the logarithm x.

    Without `log_input` x is the rate: x - target log(x + eps). `full` adds Stirling's approximation
    of log(target!) where the target is above 1.
    """
    check_kind("poisson_nll_loss", x.dtype, "real float")
    check_alike("poisson_nll_loss", x, target)
    target = target.astype(x.dtype)
    loss = exp(x) - target * x if log_input else x - target * log(x + eps)
    if full:
        many = target > 1
        count = where(many, target, 1.0)
        rest = count * log(count) - count + 0.5 * log(2 * math.pi * count)
        loss = loss + where(many, rest, 0.0)
    return reduced(loss, reduction, "poisson_nll_loss")
