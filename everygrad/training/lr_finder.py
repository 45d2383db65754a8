"""The learning-rate finder: rates that grow from step to step, and the loss at each."""

from __future__ import annotations

import math
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad.errors import ArgumentError
from everygrad.ops.random import generators
from everygrad.training import plots
from everygrad.training.step import Parts, moved, train_step

if TYPE_CHECKING:
    from everygrad.training.trainer import Trainer


class Finding(NamedTuple):
    """Rates, smoothed losses, and the rate where the loss falls fastest.

    >>> import everygrad as eg
    >>> eg.training.Finding([0.1, 1.0], [2.0, 1.0], 0.1).suggestion
    0.1
    """

    rates: list[float]
    losses: list[float]
    suggestion: float

    def plot(self, path: Any) -> Path:
        """Draw losses over rates, with the suggestion marked."""
        made, axes = plots.figure("Finding.plot", 1)
        axes[0].semilogx(self.rates, self.losses)
        axes[0].axvline(self.suggestion, linestyle="--", color="grey")
        axes[0].set(xlabel="learning rate", ylabel="smoothed loss")
        axes[0].set_title(f"steepest at {self.suggestion:.3g}", loc="left")
        where = Path(path)
        made.savefig(where, dpi=120)
        return where


def find_lr(
    trainer: Trainer,
    train: Any,
    min_lr: float = 1e-7,
    max_lr: float = 1.0,
    steps: int = 100,
    smoothing: float = 0.9,
    diverged: float = 4.0,
) -> Finding:
    """Rates from `min_lr` to `max_lr` in equal factors, a step of training at each.

    Losses are averaged with `smoothing`; the search ends where they exceed `diverged` times the
    least. Model, optimiser, loader and random numbers are put back.
    """
    if not 0 < min_lr < max_lr:
        raise ArgumentError(f"find_lr: needs 0 < min_lr < max_lr, got {min_lr} and {max_lr}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 2:
        raise ArgumentError(f"find_lr: steps must be an integer of at least 2, got {steps!r}")
    if not 0 <= smoothing < 1:
        raise ArgumentError(f"find_lr: smoothing must lie from 0 to below 1, got {smoothing!r}")
    if not diverged > 1:
        raise ArgumentError(f"find_lr: diverged must be above 1, got {diverged!r}")
    put_back = _held(trainer, train)
    try:
        return _search(trainer, train, (min_lr, max_lr), steps, smoothing, diverged)
    finally:
        put_back()


def _held(trainer: Trainer, train: Any) -> Any:
    """A function that makes everything what it is now."""
    model = {k: v.detach() for k, v in trainer.model.state_dict().items()}
    held: tuple[Any, ...] = (trainer.optimizer, trainer.scaler, train)
    parts = [p for p in held if _has_state(p)]
    states = [p.state_dict() for p in parts]
    random = generators.default_generator.get_state()
    training = trainer.model.training
    gradients = [(p, p.grad) for p in trainer.model.parameters()]

    def put_back() -> None:
        trainer.model.load_state_dict(model)
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        for p, g in gradients:
            p.grad = g
        generators.default_generator.set_state(random)
        trainer.model.train(training)

    return put_back


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "load_state_dict", None))


def _search(
    trainer: Trainer,
    train: Any,
    limits: tuple[float, float],
    steps: int,
    smoothing: float,
    diverged: float,
) -> Finding:
    low, high = limits
    step = train_step(
        Parts(
            *(trainer.model, trainer.optimizer, trainer.compute, trainer.autocast, trainer.scaler),
            *(None, trainer.clip_norm, trainer.clip_value, False, trainer.compiled),
        )
    )
    trainer.model.train()
    batches = chain.from_iterable(repeat(train))  # as many epochs as the steps need
    rates: list[float] = []
    losses: list[float] = []
    mean = 0.0
    for i in range(steps):
        rate = low * (high / low) ** (i / (steps - 1))
        for group in trainer.optimizer.param_groups:
            group["lr"] = rate
        near = [moved(next(batches), trainer.device()) for _ in range(trainer.accumulate)]
        loss = float(step(near)[0].item())
        if not math.isfinite(loss):
            break
        mean = smoothing * mean + (1 - smoothing) * loss
        rates.append(rate)
        losses.append(mean / (1 - smoothing ** (i + 1)))
        if losses[-1] > diverged * min(losses):
            break
    if len(rates) < 2:
        raise ArgumentError(
            f"find_lr: the loss is not finite at the first rates, from {low}; begin with a smaller "
            "min_lr"
        )
    return Finding(rates, losses, _steepest(rates, losses))


def _steepest(rates: list[float], losses: list[float]) -> float:
    """The rate where the loss falls fastest, over a tenth of the search at a time: a single step
    says little where batches and dropout make losses noisy."""
    span = max(1, len(rates) // 10)
    slopes = {
        rates[i + span // 2]: losses[i + span] - losses[i]
        for i in range(min(span, len(rates) - span - 1), len(rates) - span)
    }
    return min(slopes, key=slopes.__getitem__)
