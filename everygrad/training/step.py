"""One step of training as a function of batches, which `eg.jit` compiles as a whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

from everygrad._jit.jit import jit
from everygrad.amp.policy import autocast
from everygrad.autograd.modes import no_grad
from everygrad.autograd.trees import leaves_of, map_leaves
from everygrad.core.tensor import Tensor
from everygrad.nn.module import Module
from everygrad.nn.utils import clip_grad_norm_, clip_grad_value_
from everygrad.optim import GradScaler, Optimizer
from everygrad.optim.swa_utils import AveragedModel

Compute = Callable[[Any, Any], tuple[Tensor, Any, Any]]  # (model, batch) -> loss, output, target


class Parts(NamedTuple):
    """What a step is made of."""

    model: Module
    optimizer: Optimizer
    compute: Compute
    dtype: Any = None  # of autocast
    scaler: GradScaler | None = None
    ema: AveragedModel | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    outputs: bool = False  # also return what the model gave, for metrics
    compiled: bool = True


def _cast(dtype: Any) -> Any:
    return nullcontext() if dtype is None else autocast(dtype=dtype)


def train_step(parts: Parts) -> Callable[[list[Any]], tuple[Tensor, Any, list[Any]]]:
    """A function of the batches of one step: the mean loss, the norm of the gradients before they
    were clipped (None without `clip_norm`), and outputs with targets if asked for.

    Several batches are one step of the optimiser: their gradients are added up.
    """
    # names of this function, not attributes: a compiled step guards only what it reads
    model, optimizer, compute, dtype, scaler, ema, clip_norm, clip_value, outputs, _ = parts

    def step(batches: list[Any]) -> tuple[Tensor, Any, list[Any]]:
        optimizer.zero_grad()
        total: Any = None
        kept = []
        for batch in batches:
            with _cast(dtype):
                loss, output, target = compute(model, batch)
            share = loss if len(batches) == 1 else loss / len(batches)
            (share if scaler is None else scaler.scale(share)).backward()
            total = share.detach() if total is None else total + share.detach()
            if outputs:
                kept.append((map_leaves(_detached, output), target))
        if scaler is not None and (clip_norm is not None or clip_value is not None):
            scaler.unscale_(optimizer)
        norm = None
        if clip_norm is not None:
            norm = clip_grad_norm_(model.parameters(), clip_norm)
        if clip_value is not None:
            clip_grad_value_(model.parameters(), clip_value)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if ema is not None:
            ema.update_parameters(model)
        return total, norm, kept

    return jit(step) if parts.compiled else step


def eval_step(
    model: Any, compute: Compute, dtype: Any, compiled: bool
) -> Callable[[Any], tuple[Tensor, Any, Any]]:
    """A function of one batch: its loss, the output and the target, without gradients."""

    def step(batch: Any) -> tuple[Tensor, Any, Any]:
        with no_grad(), _cast(dtype):
            return compute(model, batch)

    return jit(step) if compiled else step


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def moved(batch: Any, device: str) -> Any:
    """A batch with its tensors on a device."""
    return map_leaves(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch)


def size_of(batch: Any) -> int:
    """How many examples a batch has: the first axis of its first tensor."""
    for x in leaves_of(batch):
        if isinstance(x, Tensor) and x.ndim:
            return x.shape[0]
    return 1
