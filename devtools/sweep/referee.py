"""What PyTorch computes of a problem in float64, and how much rounding may change each element."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch

from devtools.sweep.problem import Given, Problem

TRIALS = 3  # of rounded inputs
MANY = 24  # where a result differs: the chance to be lucky in all of them is none
BLUR = 0.05
# while rounding is tried out: nudges every element of an array by one unit, up or down
_nudge: ContextVar[Callable[[Any], Any] | None] = ContextVar("nudge", default=None)
# whether something differs and is looked at a second time
_judging: ContextVar[bool] = ContextVar("judging", default=False)


class _Rounded(torch.autograd.Function):
    """Forward and backward are rounded apart: what cancels exactly in a derivative does not cancel
    in the numbers that a kernel computes for it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:  # type: ignore[override]
        return _nudged(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
        return _nudged(g)


def _nudged(x: Any) -> Any:
    nudge = _nudge.get()
    return x if nudge is None else x * torch.from_numpy(nudge(np.ones(x.shape))).to(x.dtype)


def rounded(x: Any) -> Any:
    """A value on the way, as rounding may leave it. Nudged inputs do not show what rounding in
    between does where equal values cancel: the mean of equal rows is subtracted from them."""
    return x if _nudge.get() is None else _Rounded.apply(x)


def softmax(x: Any, axis: int, log: bool = False) -> Any:
    """Where rounding is tried out, by its formula: the sum that gradients subtract is rounded."""
    if _nudge.get() is None or not x.numel():
        return torch.log_softmax(x, axis) if log else torch.softmax(x, axis)
    apart = x - x.amax(axis, True).detach()
    exps = torch.exp(apart)
    if log:
        return apart - rounded(torch.log(exps.sum(axis, True)))
    return exps / rounded(exps.sum(axis, True))


class KinkError(Exception):
    """Two elements share a maximum but for rounding, and the gradient belongs to either."""


def amax(x: Any, axis: int) -> Any:
    """The largest, along an axis that stays; near a kink, many trials refuse to judge."""
    if _judging.get() and x.shape[axis] > 1:
        first, second = torch.topk(x.detach(), 2, axis).values.unbind(axis)
        if bool((first - second <= 64 * 2.0**-23 * first.abs()).any()):
            raise KinkError
    return torch.amax(x, axis, True)


class Answer(NamedTuple):
    """Results, then gradients of the inputs that have one (None where nothing depends on it), and
    for each element of all of them what errors are measured by."""

    outs: list[Any]
    grads: list[Any]
    scales: list[Any]


def as_list(outs: Any) -> list[Any]:
    return list(outs) if isinstance(outs, list | tuple) else [outs]


def _leaf(g: Given, change: Callable[[Any], Any], dtype: Any) -> tuple[Any, Any]:
    """The leaf that is differentiated, and what the function is given."""
    array = g.memory if g.inside else g.array
    wide = change(array.astype(np.float64)).astype(dtype) if g.is_float else array
    leaf = torch.from_numpy(np.array(wide, order="C")).reshape(array.shape)
    if g.is_float and g.grad:
        leaf.requires_grad_()
    if not g.inside:
        return leaf, leaf
    seen = g.view(leaf, torch.permute, lambda t: torch.flip(t, (-1,)), torch.broadcast_to)
    return leaf, seen


def _run(
    problem: Problem,
    weights: list[Any],
    change: Callable[[Any], Any] = lambda a: a,
    dtype: Any = np.float64,
) -> tuple[list[Any], list[Any]]:
    """Results and gradients, with `change` of all floating inputs and of the weights."""
    pairs = [_leaf(g, change, dtype) for g in problem.inputs]
    outs = as_list(problem.theirs(*(seen for _, seen in pairs)))
    leaves = [leaf for leaf, _ in pairs if leaf.requires_grad]
    some = [k for k, o in enumerate(outs) if o.requires_grad]
    grads: list[Any] = [None] * len(leaves)
    if some and leaves:
        given = [torch.from_numpy(np.asarray(change(weights[k]))).to(outs[k].dtype) for k in some]
        given = [w.reshape(outs[k].shape) for w, k in zip(given, some, strict=True)]
        chosen = [outs[k] for k in some]
        grads = list(torch.autograd.grad(chosen, leaves, given, allow_unused=True))
    return (
        [o.detach().numpy() for o in outs],
        [None if x is None else x.detach().numpy() for x in grads],
    )


def shapes_of(problem: Problem) -> list[tuple[int, ...]]:
    """Of the results."""
    pairs = [_leaf(g, lambda a: a, np.float64) for g in problem.inputs]
    return [tuple(o.shape) for o in as_list(problem.theirs(*(seen for _, seen in pairs)))]


def answer(problem: Problem, weights: list[Any], seed: int, trials: int = TRIALS) -> Answer:
    """`weights`: what results are multiplied by before they are summed and differentiated. With
    many trials it raises a KinkError where rounding decides whose a gradient is."""
    token = _judging.set(trials >= MANY)
    try:
        outs, grads = _run(problem, weights)
    finally:
        _judging.reset(token)
    if problem.scale == "exact":
        return Answer(outs, grads, [None] * (len(outs) + len(grads)))
    if problem.scale == "sums":
        sizes, slopes = _run(problem, weights, np.abs)
        return Answer(outs, grads, [*sizes, *slopes])
    sizes = [None if v is None else np.abs(np.nan_to_num(v)) for v in (*outs, *grads)]
    if problem.scale == "plain":
        places = range(len(outs), len(sizes))
        return Answer(outs, grads, [_more(s, k in places) for k, s in enumerate(sizes)])
    rng = np.random.default_rng(seed)
    spread = _spread(problem, weights, [*outs, *grads], rng, trials)
    return Answer(
        outs, grads, [_sum(a, b, problem.floor) for a, b in zip(sizes, spread, strict=True)]
    )


def _more(size: Any, is_gradient: bool) -> Any:
    return None if size is None else size + 1.0 * is_gradient


def _sum(a: Any, b: Any, floor: float) -> Any:
    return None if a is None else a + b + floor


def _spread(
    problem: Problem, weights: list[Any], right: list[Any], rng: Any, trials: int
) -> list[Any]:
    """How far float32 is from float64, with inputs that were rounded, in epsilons: what the op
    makes of rounding, whatever it is made of."""
    eps = 2.0**-23

    def nudged(a: Any) -> Any:
        return a * (1 + eps * rng.choice((-1.0, 1.0), a.shape))

    squares: list[Any] = [None if v is None else np.zeros(v.shape) for v in right]
    for _ in range(trials):
        token = _nudge.set(nudged)
        try:
            made = [v for part in _run(problem, weights, nudged, np.float32) for v in part]
        finally:
            _nudge.reset(token)
        for k, (now, want) in enumerate(zip(made, right, strict=True)):
            if now is not None and want.dtype.kind == "f":
                with np.errstate(invalid="ignore", over="ignore"):
                    squares[k] += np.nan_to_num((now - want) / eps) ** 2
    spread = [None if s is None else np.sqrt(s / trials) for s in squares]
    # few trials: an element that was lucky each time is not more exact than the others
    return [s if s is None or not s.size else s + BLUR * s.mean() for s in spread]
