"""Gradients of a batch that is too large to be computed at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad.autograd.trees import flatten, unflatten
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError


def accumulate_gradients(loss_fn: Callable[..., Tensor], *batch: Any, steps: int) -> Tensor:
    """Add up the gradients of a batch's mean loss, one of `steps` equal parts at a time.

    `loss_fn` gives the mean loss of what it is called with. Tensors in `batch` are divided along
    their first axis; everything else is given to each part. Returns the mean loss. Inside
    `eg.jit`, with an optimiser's step behind it, it is one compiled step that needs the memory of
    one part.

    >>> import everygrad as eg
    >>> w = eg.tensor(1.0, requires_grad=True)
    >>> loss = eg.optim.accumulate_gradients(
    ...     lambda x: (w * x).mean(), eg.tensor([1.0, 2.0, 3.0, 6.0]), steps=2
    ... )
    >>> loss, w.grad
    (tensor(3.), tensor(3.))
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ArgumentError(
            f"accumulate_gradients: steps must be a positive integer, got {steps!r}"
        )
    leaves, tree = flatten(batch)
    sizes = {t.shape[0] if t.ndim else 0 for t in leaves if isinstance(t, Tensor)}
    if len(sizes) != 1:
        raise ShapeError(
            f"accumulate_gradients: needs tensors with one size of the first axis, "
            f"got {sorted(sizes)}"
        )
    (size,) = sizes
    if not size or size % steps:
        raise ShapeError(
            f"accumulate_gradients: {size} examples cannot be divided into {steps} equal parts"
        )
    part = size // steps
    total: Any = None
    for i in range(steps):
        own = [t[i * part : (i + 1) * part] if isinstance(t, Tensor) else t for t in leaves]
        loss = loss_fn(*unflatten(tree, own)) / steps
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    mean: Tensor = total
    return mean
