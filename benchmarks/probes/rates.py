"""What one WebGPU device does in a second: products, bytes moved, compiled steps.

Several calls are handed over, then the GPU is waited for; of the rounds the median is taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

import everygrad as eg
from benchmarks.peers import everygrad_jit
from benchmarks.peers.everygrad_webgpu import DEVICE, gpu, wait
from benchmarks.workloads import WORKLOADS

WAKE_S = 0.5
ROUND_S, MOST_CALLS = 0.1, 200  # how long a round should take, and how many calls it may have
FLOAT = 4  # bytes
# Asked of a real GPU; a software adapter has no bound.
ASKED_TFLOPS = {4096: 20.0}
ASKED_SHARE = 0.6  # of a copy's bytes a second, by the compiled gelu loss
ASKED_COMMAND_S = 15e-6  # a command of the compiled GPT step


@dataclass(frozen=True)
class Sizes:
    """How large the work is: a software adapter would need minutes for what a GPU needs."""

    products: tuple[int, ...]
    square: int
    rounds: int

    @classmethod
    def of(cls, software: bool) -> Sizes:
        return cls((256, 512), 1024, 3) if software else cls((1024, 2048, 4096), 8192, 7)


@dataclass(frozen=True)
class Timed:
    """Seconds a call: all of it, and the part in which Python hands it over."""

    whole: float
    host: float


@dataclass(frozen=True)
class Rate:
    """One line of the table. `met` is None where nothing is asked."""

    what: str
    seconds: float
    rate: str
    asked: str = "-"
    met: bool | None = None


def timed(fn: Callable[[], object], rounds: int) -> Timed:
    """The median round, after calls that compile, settle, and wake the GPU: an idle one takes
    some tenths of a second to run at its full clock."""
    fn()
    wait()
    woken = time.perf_counter() + WAKE_S
    while True:
        start = time.perf_counter()
        fn()
        wait()
        once = time.perf_counter() - start
        if time.perf_counter() > woken:
            break
    calls = max(1, min(MOST_CALLS, math.ceil(ROUND_S / once)))
    taken = [_round(fn, calls) for _ in range(rounds)]
    return Timed(median(t.whole for t in taken), median(t.host for t in taken))


def _round(fn: Callable[[], object], calls: int) -> Timed:
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    handed = time.perf_counter() - start
    wait()
    return Timed((time.perf_counter() - start) / calls, handed / calls)


def _random(*shape: int) -> eg.Tensor:
    return eg.tensor(np.random.default_rng(0).random(shape, np.float32), device=DEVICE)


def product(size: int, rounds: int, software: bool) -> Rate:
    a, b = _random(size, size), _random(size, size)
    seconds = timed(lambda: a @ b, rounds).whole
    rate = 2 * size**3 / seconds
    asked = None if software else ASKED_TFLOPS.get(size)
    met = None if asked is None else rate >= asked * 1e12
    shown = "-" if asked is None else f">= {asked:g}"
    return Rate(f"float32 matmul {size}", seconds, _flops(rate), shown, met)


def _flops(per_second: float) -> str:
    """In the unit that suits: a software adapter is a thousand times slower."""
    tera = per_second / 1e12
    return f"{tera:.1f} TFLOP/s" if tera >= 0.1 else f"{per_second / 1e9:.1f} GFLOP/s"


def _moved(seconds: float, arrays: int, square: int) -> float:
    """Bytes a second, of whole arrays read or written."""
    return arrays * square**2 * FLOAT / seconds


def buffer_copy(square: int, rounds: int) -> float:
    """Seconds of a copy of one buffer into another, which no kernel does."""
    opened, size = gpu(), square**2 * FLOAT
    source, target = opened.pool.take(size), opened.pool.take(size)
    return timed(lambda: opened.copy(source, target, 0, size), rounds).whole


def add_one(square: int, rounds: int) -> float:
    x = _random(square, square)
    return timed(lambda: x + 1.0, rounds).whole


def gelu_loss(square: int, rounds: int) -> float:
    """mean(gelu(x * w + b)) compiled, backward to all three: three arrays read, three written."""
    make = WORKLOADS["pointwise"].make
    data = make(np.random.default_rng(0), {"size": square, "rows": False})
    step = everygrad_jit.steps(DEVICE)["pointwise"](data)
    return timed(step.run, rounds).whole


def memory(sizes: Sizes, software: bool) -> list[Rate]:
    """A plain copy, an op that is bound by memory, and the compiled loss as a share of a copy."""
    square, rounds = sizes.square, sizes.rounds
    of = f"{square} x {square}"
    copy, one, loss = (f(square, rounds) for f in (buffer_copy, add_one, gelu_loss))
    moved = [_moved(s, arrays, square) / 1e9 for s, arrays in ((copy, 2), (one, 2), (loss, 6))]
    shown = [f"{gigabytes:.1f} GB/s" for gigabytes in moved]
    share = moved[2] / moved[0]
    asked = "-" if software else f">= {ASKED_SHARE:.0%}"
    met = None if software else share >= ASKED_SHARE
    return [
        Rate(f"buffer copy {of}", copy, shown[0]),
        Rate(f"x + 1, {of}", one, shown[1]),
        Rate(
            f"gelu loss compiled, {of}", loss, f"{shown[2]}, {share:.0%} of the copy's", asked, met
        ),
    ]


def compiled_step(name: str, rounds: int, asked_s: float | None = None) -> Rate:
    """A workload's compiled step: how many commands it is, and what one costs."""
    workload = WORKLOADS[name]
    step = everygrad_jit.steps(DEVICE)[workload.kind](workload.data())
    found = timed(step.run, rounds)
    compiled: Any = step.compiled
    commands = len(compiled.latest.replay.log)
    each = found.whole / commands
    rate = (
        f"{commands} commands, {each * 1e6:.1f} us each "
        f"({found.host / commands * 1e6:.1f} us to hand over)"
    )
    asked = "-" if asked_s is None else f"<= {asked_s * 1e6:g} us"
    met = None if asked_s is None else each <= asked_s
    return Rate(f"{name} step compiled", found.whole, rate, asked, met)


def rates(say: Callable[[str], None]) -> list[Rate]:
    """All of them, on the device that a plain "webgpu" opens."""
    software = gpu().is_software
    sizes = Sizes.of(software)
    found: list[Rate] = []
    makers: list[Callable[[], list[Rate]]] = [
        *(lambda n=n: [product(n, sizes.rounds, software)] for n in sizes.products),
        lambda: memory(sizes, software),
        lambda: [compiled_step("gpt", sizes.rounds, None if software else ASKED_COMMAND_S)],
        lambda: [compiled_step("mlp.adamw", sizes.rounds)],
    ]
    for make in makers:
        for rate in make():
            say(f"{rate.what}: {rate.seconds * 1e3:.3f} ms, {rate.rate}")
            found.append(rate)
    return found
