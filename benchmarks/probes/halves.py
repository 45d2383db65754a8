"""Products, convolutions and autocast in 16-bit floats, beside PyTorch in the same process.

    python -m benchmarks.probes.halves 1 products convolutions autocast    # on one thread

Calls of both libraries take turns; of each the median is printed, in ms.
"""

# ruff: noqa: B023  # each case is timed before the loop that makes it goes on
from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn as tnn
from torch.nn import functional as torch_functional

import everygrad as eg
from everygrad.backends import thread_pool

BUDGET_S, LEAST_CALLS = 0.2, 5  # for each way of one case
PRODUCTS = [
    ((64, 64), (64, 64)),
    ((256, 256), (256, 256)),
    ((512, 512), (512, 512)),
    ((1024, 1024), (1024, 1024)),
    ((4096, 128), (128, 128)),
    ((32, 128, 64), (32, 64, 128)),
    ((255, 257), (257, 259)),
    ((100, 1000), (1000, 10)),
    ((1024, 1024), (1024,)),
]
CONVOLUTIONS = [  # image, kernel, stride, padding
    ((8, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    ((8, 64, 56, 56), (256, 64, 1, 1), 1, 0),
    ((8, 256, 14, 14), (256, 256, 3, 3), 1, 1),
    ((8, 512, 7, 7), (2048, 512, 1, 1), 1, 0),
    ((8, 128, 28, 28), (128, 128, 3, 3), 2, 1),
    ((4, 37, 28, 28), (53, 37, 3, 3), 1, 1),
]


class Row(NamedTuple):
    """One line: what was timed, and ms of PyTorch, of eager ops and of a compiled function."""

    what: str
    torch: float
    eager: float
    compiled: float

    def __str__(self) -> str:
        by = [f"{t:9.3f} ({t / self.torch:4.2f})" for t in (self.eager, self.compiled)]
        return f"{self.what:56} {self.torch:9.3f} {' '.join(by)}"


def timed(what: str, *ways: Callable[[], object]) -> Row:
    """The ways in turn, each after two calls that compile and settle."""
    for way in ways:
        way(), way()
    taken: list[list[float]] = [[] for _ in ways]
    end = time.perf_counter() + BUDGET_S * len(ways)
    while time.perf_counter() < end or len(taken[0]) < LEAST_CALLS:
        for way, times in zip(ways, taken, strict=True):
            start = time.perf_counter()
            way()
            times.append(time.perf_counter() - start)
    return Row(what, *(1e3 * median(times) for times in taken))


def both(shape: Sequence[int], dtype: str) -> tuple[Any, Any]:
    """The same numbers as tensors of both libraries."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return torch.tensor(x).to(getattr(torch, dtype)), eg.tensor(x).astype(dtype)


def products() -> Iterator[Row]:
    for dtype in ("bfloat16", "float16"):
        for left, right in PRODUCTS:
            (ta, a), (tb, b) = both(left, dtype), both(right, dtype)
            compiled = eg.jit(lambda a, b: a @ b)
            name = f"{dtype} {left} @ {right}"
            yield timed(name, lambda: ta @ tb, lambda: a @ b, lambda: compiled(a, b))
        (ta, a), (tb, b) = both((512, 256), dtype), both((512, 384), dtype)
        compiled = eg.jit(lambda a, b: a.mT @ b)
        name = f"{dtype} (512, 256) transposed @ (512, 384)"
        yield timed(name, lambda: ta.mT @ tb, lambda: a.mT @ b, lambda: compiled(a, b))


def convolutions() -> Iterator[Row]:
    for dtype in ("bfloat16", "float16"):
        for image, kernel, stride, padding in (
            CONVOLUTIONS if dtype == "bfloat16" else CONVOLUTIONS[-1:]
        ):
            (tx, x), (tw, w) = both(image, dtype), both(kernel, dtype)
            how = {"stride": stride, "padding": padding}

            def forward(x: Any, w: Any) -> Any:
                return eg.conv2d(x, w, **how)

            def backward(x: Any, w: Any) -> Any:
                y, back = eg.vjp(forward, x, w)
                return y, *back(y)

            def torch_backward() -> Any:
                leaves = [t.detach().requires_grad_() for t in (tx, tw)]
                y = torch_functional.conv2d(*leaves, **how)
                return torch.autograd.grad(y, leaves, y.detach())

            name = f"{dtype} {image} * {kernel}, stride {stride}"
            compiled, step = eg.jit(forward), eg.jit(backward)
            given = lambda: torch_functional.conv2d(tx, tw, **how)  # noqa: E731
            yield timed(name, given, lambda: forward(x, w), lambda: compiled(x, w))
            yield timed(
                "  and gradients", torch_backward, lambda: backward(x, w), lambda: step(x, w)
            )


def mlp(nn: Any) -> Any:
    return nn.Sequential(
        nn.Linear(784, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)
    )


def cnn(nn: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def transformer(nn: Any) -> Any:
    """A layer of PyTorch's, and a classifier of every token."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Linear(256, 10))


def autocast() -> Iterator[Row]:
    for make, shape in ((mlp, (128, 784)), (cnn, (32, 3, 32, 32)), (transformer, (8, 128, 256))):
        theirs, ours = make(tnn), make(eg.nn)
        tx, x = both(shape, "float32")
        their_sgd = torch.optim.SGD(theirs.parameters(), lr=0.01)
        sgd = eg.optim.SGD(ours.parameters(), lr=0.01)

        def their_step() -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (theirs(tx).float() ** 2).mean()
            their_sgd.zero_grad()
            loss.backward()
            their_sgd.step()
            return loss

        def step(x: Any) -> Any:
            with eg.autocast():
                loss = (ours(x).astype("float32") ** 2).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            return loss

        def their_inference() -> Any:
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                return theirs(tx)

        def inference(x: Any) -> Any:
            with eg.no_grad(), eg.autocast():
                return ours(x)

        compiled, replay = eg.jit(step), eg.jit(inference)
        yield timed(f"{make.__name__} training", their_step, lambda: step(x), lambda: compiled(x))
        name = f"{make.__name__} inference"
        yield timed(name, their_inference, lambda: inference(x), lambda: replay(x))


SECTIONS = {"products": products, "convolutions": convolutions, "autocast": autocast}


def main(threads: int, names: Sequence[str]) -> None:
    torch.set_num_threads(threads)
    thread_pool.set_num_threads(threads)
    print(f"{f'ms, threads: {threads}':56} {'PyTorch':>9} {'eager':>16} {'compiled':>16}")
    for name in names or SECTIONS:
        for row in SECTIONS[name]():
            print(row, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
