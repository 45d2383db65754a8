"""A Neural ODE: learn the law of motion of a spiral from noisy points along it.

    python examples/neural_ode.py [--device webgpu] [--eager] [--steps 4000] [--span 50]
                                  [--batch 64] [--width 64] [--noise 0.02] [--seed 0]

A point moves by dy/dt = A (y · y · y), a spiral into the origin. A network takes the place of the
right-hand side; a Runge-Kutta solver of fourth order, written in ops, follows it from a known point
over the next `--span` times, and the gradient of the distance to what was seen there runs back
through the solver.

Prints how far the learnt motion is from the true one over the whole time, started from the first
point, and from a start that was never seen.

At full size the mean distance from the first point falls from 3.37 to 0.065 on a path that begins
at distance 2, and is 0.092 from the unseen start; with seeds 1 and 2 it ends at 0.12 and 0.13, and
at 0.13 and 0.18 from the unseen start. 4000 steps take 22 s on two cores.
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

TRUE = np.array([[-0.1, 2.0], [-2.0, -0.1]])  # A
START, UNSEEN = (2.0, 0.0), (1.2, 1.2)
TIMES, INTERVAL = 500, 0.02  # of what is seen: ten units of time
RATE = 1e-2

Motion = Callable[[eg.Tensor], eg.Tensor]


def follow(motion: Motion, y: eg.Tensor, count: int) -> eg.Tensor:
    """Where points (batch, 2) are after 0, 1, ... count intervals: (count + 1, batch, 2)."""
    path = [y]
    for _ in range(count):
        k1 = motion(y)
        k2 = motion(y + INTERVAL / 2 * k1)
        k3 = motion(y + INTERVAL / 2 * k2)
        k4 = motion(y + INTERVAL * k3)
        y = y + INTERVAL / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(y)
    out: eg.Tensor = eg.stack(path)
    return out


def true_path(start: Sequence[float]) -> Any:
    """The true motion at all times, (TIMES, 2), by the same solver in float64."""
    law = eg.tensor(TRUE.T)

    def motion(y: eg.Tensor) -> eg.Tensor:
        out: eg.Tensor = (y**3) @ law
        return out

    return follow(motion, eg.tensor(np.array([start])), TIMES - 1).numpy()[:, 0]


class Law(nn.Module):
    """The motion as a network: of the cubes of a place, which is all it is told of the law."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, y: eg.Tensor) -> eg.Tensor:
        out: eg.Tensor = self.layers(y**3)
        return out


def train(
    law: nn.Module, options: argparse.Namespace, report: Callable[[str], object] = print
) -> list[float]:
    """The mean loss of each tenth of the training."""
    rng = np.random.default_rng(options.seed)
    seen = true_path(START) + options.noise * rng.standard_normal((TIMES, 2))
    path = eg.tensor(seen.astype(np.float32), device=options.device)
    opt = optim.Adam(law.parameters(), lr=RATE)
    schedule = optim.lr_scheduler.CosineAnnealingLR(opt, options.steps)

    def step(first: eg.Tensor) -> eg.Tensor:
        """Learn from the stretches of the path that begin at the times `first`."""
        times = first[None, :] + eg.arange(options.span + 1, device=first.device)[:, None]
        loss = (follow(law, path[first], options.span) - path[times]).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    run = step if options.eager else eg.jit(step)
    found, means = list[eg.Tensor](), list[float]()
    for i in range(1, options.steps + 1):
        first = rng.integers(0, TIMES - options.span, options.batch)
        found.append(run(eg.tensor(first, device=options.device)).detach())
        schedule.step()
        if i * 10 % options.steps < 10:  # the end of a tenth: reading waits for the device
            means.append(eg.stack(found).mean().item())
            report(f"step {i:6}: mean distance {means[-1]:.4f}")
            found.clear()
    return means


def error(law: nn.Module, start: Sequence[float], device: str) -> float:
    """The mean distance between the learnt and the true motion over all times."""
    with eg.no_grad():
        place = eg.tensor([list(start)], device=device)
        found = follow(law, place, TIMES - 1).to("cpu").numpy()[:, 0]
    return float(np.linalg.norm(found - true_path(start), axis=1).mean())


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu, webgpu or cuda (default: cpu)")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    sizes = {
        "steps": (4000, "of training"),
        "span": (50, "intervals the solver follows in training"),
        "batch": (64, "stretches of the path a step learns from"),
        "width": (64, "of the network"),
    }
    for name, (default, about) in sizes.items():
        about = f"{about} (default: {default})"
        parser.add_argument(f"--{name}", type=int, default=default, help=about)
    parser.add_argument("--noise", type=float, default=0.02, help="on what is seen (default: 0.02)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, noise and stretches")
    options = parser.parse_args(given)
    for name in sizes:
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.span >= TIMES:
        parser.error(f"--span must be below the {TIMES} times that are seen")
    if not options.noise >= 0:
        parser.error("--noise must be at least 0")
    return options


def build(options: argparse.Namespace) -> Law:
    eg.manual_seed(options.seed)
    return Law(options.width).to(options.device)


def main() -> int:
    options = arguments()
    law = build(options)
    print(f"mean distance before training: {error(law, START, options.device):.4f}")
    begun = time.perf_counter()
    train(law, options)
    seconds = time.perf_counter() - begun
    print(f"trained in {seconds:.1f} s ({1e3 * seconds / options.steps:.2f} ms a step)")
    for name, start in (("the first point", START), ("an unseen start", UNSEEN)):
        print(f"mean distance from {name}: {error(law, start, options.device):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
