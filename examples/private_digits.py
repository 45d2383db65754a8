"""Differentially private training: every example's own gradient, clipped, summed, with noise.

    python examples/private_digits.py [--device webgpu] [--eager] [--steps 400] [--rate 0.1]
                                      [--noise 2.0] [--clip 1.0] [--delta 1e-4] [--seed 0]

DP-SGD on scikit-learn's handwritten digits. Each example joins a step by chance; `vmap` of `grad`
gives a gradient for each, none of which counts for more than `--clip`, and noise covers what one
alone could have changed. So what an observer of the trained weights can learn about any one digit
is bounded by epsilon, which an accountant of Rényi divergences (NumPy, below) adds up over the
steps: a smaller epsilon is more privacy.

Prints epsilon and the accuracy on digits the network has not seen, beside the accuracy of the same
training without clipping and noise.

At full size: 94.4 % at epsilon 4.72 and delta 1e-4, and 97.6 % with no privacy, in seconds (93.6 to
94.7 % and 96.9 to 97.3 % with seeds 1 to 3). Epsilon is that of one run: choosing among several by
their accuracy, as was done for the defaults here, costs privacy that it does not count.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import everygrad as eg
from everygrad import nn, optim
from everygrad.nn import functional as F

Weights = list[eg.Tensor]  # weight and bias of each layer in turn
HIDDEN = 64


def load(device: str) -> Any:
    """Images (count, 64) and labels to train on, then a quarter of both held out."""
    digits = load_digits()
    images = (digits.data / 16.0 - 0.3).astype(np.float32)
    parts = train_test_split(
        images, digits.target, test_size=0.25, random_state=0, stratify=digits.target
    )
    train_x, test_x, train_y, test_y = (eg.tensor(part, device=device) for part in parts)
    return train_x, train_y, test_x, test_y


def starting_weights(seed: int, device: str) -> Weights:
    """Those of two linear layers, as plain tensors: functions of them can be differentiated."""
    eg.manual_seed(seed)
    layers = [nn.Linear(64, HIDDEN), nn.Linear(HIDDEN, 10)]
    drawn = [p.detach() for layer in layers for p in layer.parameters()]
    return [p.to(device).requires_grad_() for p in drawn]


def network(weights: Weights, x: eg.Tensor) -> eg.Tensor:
    w1, b1, w2, b2 = weights
    out: eg.Tensor = F.linear(eg.tanh(F.linear(x, w1, b1)), w2, b2)
    return out


def loss_of_one(weights: Weights, x: eg.Tensor, y: eg.Tensor) -> eg.Tensor:
    """The cross entropy of one image (64,) and its label."""
    out: eg.Tensor = F.cross_entropy(network(weights, x[None]), y[None])
    return out


# --- the private gradient --------------------------------------------------------------------


def private_sum(
    weights: Weights, x: eg.Tensor, y: eg.Tensor, real: eg.Tensor, clip: float, noise: float
) -> Weights:
    """The sum of the examples' gradients, each no longer than `clip`, plus noise.

    `real` is 1 for examples and 0 for padding. Without a clip (infinity) there is no noise either.
    """
    one_by_one = eg.vmap(eg.grad(loss_of_one), in_axes=(None, 0, 0))(weights, x, y)
    squares = [(g * g).reshape(len(x), -1).sum(axis=1) for g in one_by_one]
    length = eg.sqrt(eg.stack(squares).sum(axis=0))  # of all weights' gradients as one vector
    factor = real if math.isinf(clip) else real * (clip / length.clip(min=clip))
    sums = [eg.tensordot(factor, g, axes=1) for g in one_by_one]
    if math.isinf(clip):
        return sums
    return [g + noise * clip * eg.randn(g.shape, device=g.device) for g in sums]


def draws(count: int, share: float, seed: int) -> Iterator[tuple[Any, Any]]:
    """Which examples take part in a step, each by chance: the accountant relies on that.

    As many as chance gives; padded to a multiple of 64, so that few shapes are compiled.
    """
    rng = np.random.default_rng(seed)
    while True:
        chosen = np.flatnonzero(rng.random(count) < share)
        size = max(64, -(-len(chosen) // 64) * 64)
        index, real = np.zeros(size, np.int64), np.zeros(size, np.float32)
        index[: len(chosen)], real[: len(chosen)] = chosen, 1
        yield index, real


def train(weights: Weights, data: Any, options: argparse.Namespace, clip: float) -> None:
    """The weights are changed in place."""
    x, y = data[:2]
    opt = optim.SGD(weights, lr=options.learning_rate, momentum=0.9)
    mean = 1 / (options.rate * len(x))  # of the expected size: the true one is private too

    def step(index: eg.Tensor, real: eg.Tensor) -> None:
        sums = private_sum(weights, x[index], y[index], real, clip, options.noise)
        for w, g in zip(weights, sums, strict=True):
            w.grad = g * mean
        opt.step()

    run = step if options.eager else eg.jit(step)
    source = draws(len(x), options.rate, options.seed)
    for _ in range(options.steps):
        index, real = next(source)
        run(eg.tensor(index, device=options.device), eg.tensor(real, device=options.device))


# --- the accountant --------------------------------------------------------------------------


def renyi(order: int, rate: float, noise: float) -> float:
    """The Rényi divergence of one step at an order, a whole number of at least 2.

    Mironov, Talwar and Zhang (2019): the moment of a mixture of two Gaussians, binomially expanded.
    """
    powers = np.arange(order + 1)
    choose = [math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
              for k in range(order + 1)]  # fmt: skip
    chances = powers * math.log(rate) + (order - powers) * math.log1p(-rate)
    terms = np.array(choose) + chances + powers * (powers - 1) / (2 * noise**2)
    largest = terms.max()
    return float(largest + np.log(np.exp(terms - largest).sum())) / (order - 1)


def epsilon(steps: int, rate: float, noise: float, delta: float) -> float:
    """What (epsilon, delta) the steps amount to, at the order that says least."""
    found = []
    for order in range(2, 257):
        total = steps * (renyi(order, rate, noise) if rate < 1 else order / (2 * noise**2))
        # Canonne, Kamath and Steinke (2020), a little tighter than total + log(1 / delta) / ...
        gap = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        found.append(max(0.0, total + gap))
    return min(found)


def accuracy(weights: Weights, data: Any) -> float:
    """The share of held-out digits that are named rightly."""
    x, y = data[2:]
    with eg.no_grad():
        guesses = network(weights, x).argmax(axis=1)
        right: float = (guesses == y).astype("float32").mean().item()
    return right


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu, webgpu or cuda (default: cpu)")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--steps", type=int, default=400, help="of training (default: 400)")
    numbers = {
        "rate": (0.1, "chance of an example to take part in a step"),
        "noise": (2.0, "standard deviation of the noise, in lengths of --clip"),
        "clip": (1.0, "length that no example's gradient exceeds"),
        "delta": (1e-4, "chance at which epsilon may not hold; below 1 / examples"),
        "learning-rate": (0.2, "of the descent, with momentum"),
    }
    for name, (default, about) in numbers.items():
        about = f"{about} (default: {default})"
        parser.add_argument(f"--{name}", type=float, default=default, help=about)
    parser.add_argument("--seed", type=int, default=0, help="of weights, examples and noise")
    options = parser.parse_args(given)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    for name in ("noise", "clip", "learning_rate"):
        if not 0 < getattr(options, name) < math.inf:
            parser.error(f"--{name.replace('_', '-')} must be a number above 0")
    for name in ("rate", "delta"):
        if not 0 < getattr(options, name) <= 1:
            parser.error(f"--{name} must be above 0 and at most 1")
    return options


def main() -> int:
    options = arguments()
    data = load(options.device)
    for clip in (options.clip, math.inf):
        weights = starting_weights(options.seed, options.device)
        begun = time.perf_counter()
        train(weights, data, options, clip)
        reached, seconds = accuracy(weights, data), time.perf_counter() - begun
        found = epsilon(options.steps, options.rate, options.noise, options.delta)
        said = (
            f"epsilon {found:.2f} at delta {options.delta:g}" if clip < math.inf else "no privacy"
        )
        print(f"{said}: held-out accuracy {100 * reached:.2f} % ({seconds:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
