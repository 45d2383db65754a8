"""Our time against others': which peers are matched, and what one workload's times say."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.harness.measure import Result
from benchmarks.peers import FLOOR
from benchmarks.workloads import Workload


@dataclass(frozen=True)
class Match:
    """`ours` against the fastest of `rivals`; `target` bounds the ratio, None leaves it open."""

    title: str
    ours: str
    rivals: tuple[str, ...]
    target: Callable[[Workload], float | None]


EAGER = Match("Eager: everygrad over PyTorch eager", "everygrad", ("torch",), lambda w: w.target)
JIT = Match(
    "Compiled: `eg.jit` over the fastest of PyTorch eager, torch.compile and JAX",
    "everygrad.jit",
    ("torch", "torch.compile", "jax"),
    lambda w: w.jit_target,
)
WEBGPU = Match(
    "WebGPU: `eg.jit` over tinygrad's TinyJit",
    "everygrad.webgpu.jit",
    ("tinygrad",),
    lambda w: 1.0,
)
COPY = Match(
    "Memory: `eg.jit` over a copy of the same bytes (each input read, each gradient written)",
    "everygrad.jit",
    (FLOOR,),
    lambda w: w.floor_target,
)


def matches(labels: list[str]) -> list[Match]:
    """Those whose two sides take part; else the first peer against all others."""
    found = [m for m in (EAGER, JIT, WEBGPU) if m.ours in labels and set(m.rivals) & set(labels)]
    if found or len(labels) < 2:
        return found
    rest = tuple(labels[1:])
    return [Match(f"{labels[0]} over the fastest of the others", labels[0], rest, lambda w: None)]


@dataclass(frozen=True)
class Verdict:
    """What one workload's times say of a match. `met` is None when nothing can be said."""

    best: str = ""
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    target: float | None = None
    met: bool | None = None

    @property
    def missed(self) -> bool:
        """A target was set and not shown to be met."""
        return self.target is not None and self.met is not True


def judge(match: Match, result: Result) -> Verdict:
    target = match.target(result.workload)
    rivals = [label for label in match.rivals if label in result.times]
    if match.ours not in result.times or not rivals:
        return Verdict(target=target)
    best = min(rivals, key=result.median)
    ours, theirs = result.times[match.ours], result.times[best]
    ratio = statistics.median(ours) / statistics.median(theirs)
    met = None
    if target is not None and result.trusted:
        met = ratio <= target
        # The fastest may be the one that is missing: a win over the others shows nothing.
        if met and len(rivals) < len(match.rivals):
            met = None
    return Verdict(best, ratio, _spread(ours, theirs), target, met)


def _spread(ours: list[float], theirs: list[float]) -> tuple[float, float] | None:
    """Quartiles of the ratio taken round by round: how far to trust it."""
    if len(ours) < 2:
        return None
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, high
