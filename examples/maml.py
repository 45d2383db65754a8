"""MAML: learn starting weights from which a few points of a new sine are enough.

    python examples/maml.py [--device webgpu] [--eager] [--steps 15000] [--tasks 25] [--points 10]
                            [--seed 0]

A task is a sine of its own amplitude and phase, of which `--points` points are known. The inner
loop takes one step of gradient descent on these; the outer loop differentiates the loss after that
step with respect to the weights before it: a gradient of a gradient. Both are written for one task,
and `vmap` runs them for all tasks at once.

Prints the mean squared error on unseen tasks, before and after they are adapted to.

At full size the error is 2.82 before, 0.31 after one step, 0.098 after five and 0.080 after ten,
though training only ever took one; with seeds 1 and 2, 0.33 and 0.31 after one step. 15,000 steps
of 25 tasks take 27 s on two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import everygrad as eg
from everygrad import nn, optim

Weights = list[eg.Tensor]  # weight and bias of each layer in turn
HIDDEN = 40
INNER_RATE, RATE = 0.01, 3e-3


def tasks(rng: np.random.Generator, count: int, points: int, device: str) -> Any:
    """Points to adapt to and points to judge by: x, y, x, y, each (tasks, points, 1)."""
    amplitude = rng.uniform(0.1, 5.0, (count, 1, 1))
    phase = rng.uniform(0.0, np.pi, (count, 1, 1))
    x = rng.uniform(-5.0, 5.0, (count, 2 * points, 1))
    y = amplitude * np.sin(x + phase)
    parts = (x[:, :points], y[:, :points], x[:, points:], y[:, points:])
    return [eg.tensor(part.astype(np.float32), device=device) for part in parts]


def starting_weights(seed: int, device: str) -> Weights:
    """Those of three linear layers, as plain tensors: functions of them can be differentiated."""
    eg.manual_seed(seed)
    layers = [nn.Linear(1, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 1)]
    drawn = [p.detach() for layer in layers for p in layer.parameters()]
    return [p.to(device).requires_grad_() for p in drawn]


def network(weights: Weights, x: eg.Tensor) -> eg.Tensor:
    w1, b1, w2, b2, w3, b3 = weights
    x = eg.tanh(nn.functional.linear(x, w1, b1))
    x = eg.tanh(nn.functional.linear(x, w2, b2))
    out: eg.Tensor = nn.functional.linear(x, w3, b3)
    return out


def error(weights: Weights, x: eg.Tensor, y: eg.Tensor) -> eg.Tensor:
    out: eg.Tensor = ((network(weights, x) - y) ** 2).mean()
    return out


def adapted(weights: Weights, x: eg.Tensor, y: eg.Tensor, steps: int = 1) -> Weights:
    """The weights after some steps of gradient descent on one task."""
    for _ in range(steps):
        slopes = eg.grad(error)(weights, x, y)
        weights = [w - INNER_RATE * g for w, g in zip(weights, slopes, strict=True)]
    return weights


def error_after(weights: Weights, *task: eg.Tensor, steps: int = 1) -> eg.Tensor:
    """The error on the second half of a task's points, once adapted to the first."""
    x, y, other_x, other_y = task
    return error(adapted(weights, x, y, steps), other_x, other_y)


def meta_loss(weights: Weights, *task: eg.Tensor, steps: int = 1) -> eg.Tensor:
    """The mean of `error_after` over all tasks, of which the weights are the same."""

    def one(*task: eg.Tensor) -> eg.Tensor:
        return error_after(weights, *task, steps=steps)

    out: eg.Tensor = eg.vmap(one)(*task).mean()
    return out


def train(
    weights: Weights, options: argparse.Namespace, report: Callable[[str], object] = print
) -> list[float]:
    """The mean meta loss of each tenth of the training; the weights are changed in place."""
    opt = optim.Adam(weights, lr=RATE)
    schedule = optim.lr_scheduler.CosineAnnealingLR(opt, options.steps)

    def step(*task: eg.Tensor) -> eg.Tensor:
        loss = meta_loss(weights, *task)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    run = step if options.eager else eg.jit(step)
    rng = np.random.default_rng(options.seed)
    found, means = list[eg.Tensor](), list[float]()
    for i in range(1, options.steps + 1):
        batch = tasks(rng, options.tasks, options.points, options.device)
        found.append(run(*batch).detach())
        schedule.step()
        if i * 10 % options.steps < 10:  # the end of a tenth: reading waits for the device
            means.append(eg.stack(found).mean().item())
            report(f"step {i:6}: error after one step {means[-1]:.4f}")
            found.clear()
    return means


def evaluate(weights: Weights, options: argparse.Namespace, steps: int) -> float:
    """The mean error on 1000 unseen tasks after `steps` steps of adapting."""
    batch = tasks(np.random.default_rng(10**6), 1000, options.points, options.device)
    mean: float = meta_loss(weights, *batch, steps=steps).item()
    return mean


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu, webgpu or cuda (default: cpu)")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument(
        "--steps", type=int, default=15000, help="of the outer loop (default: 15000)"
    )
    parser.add_argument("--tasks", type=int, default=25, help="in a step (default: 25)")
    parser.add_argument("--points", type=int, default=10, help="known of a task (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and tasks")
    options = parser.parse_args(given)
    for name in ("steps", "tasks", "points"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return options


def main() -> int:
    options = arguments()
    weights = starting_weights(options.seed, options.device)
    begun = time.perf_counter()
    train(weights, options)
    seconds = time.perf_counter() - begun
    print(f"trained in {seconds:.1f} s ({1e3 * seconds / options.steps:.2f} ms a step)")
    for steps in (0, 1, 5, 10):
        found = evaluate(weights, options, steps)
        print(f"error after {steps:2} steps on an unseen sine: {found:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
