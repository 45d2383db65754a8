"""everygrad, each eager step passed through `eg.jit` unchanged; `STEPS` on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import everygrad as eg
from benchmarks.peers import everygrad_eager
from benchmarks.peers.everygrad_eager import VERSIONS as VERSIONS
from benchmarks.workloads import Array, Data

_JIT: Callable[..., Callable[..., Any]] | None = getattr(eg, "jit", None)


def missing() -> str:
    return "" if _JIT else "this everygrad has no eg.jit"


def _jit(fn: Callable[..., Any]) -> Callable[..., Any]:
    if _JIT is None:
        raise NotImplementedError(missing())
    return _JIT(fn)


class Jitted:
    """An eager step whose `compute` is compiled; its result goes where eager puts it."""

    def __init__(self, step: Any) -> None:
        self.step: Any = step
        self.compiled = _jit(step.compute)

    def run(self) -> None:
        self.step.result = self.compiled()

    def value(self) -> float:
        found: float = self.step.value()
        return found

    def feed(self, text: Array) -> None:
        self.step.feed(text)

    def outputs(self) -> dict[str, Array]:
        found: dict[str, Array] = self.step.outputs()
        return found


def _jitted(make: Callable[[Data], everygrad_eager.Computed]) -> Callable[[Data], Jitted]:
    return lambda data: Jitted(make(data))


def steps(device: str) -> dict[str, Callable[[Data], Jitted]]:
    """Every kind of workload on one device."""
    return {kind: _jitted(make) for kind, make in everygrad_eager.steps(device).items()}


STEPS = steps("cpu")


def trivial(shape: tuple[int, ...], add: bool) -> Callable[[], object]:
    """A call of a compiled function that does nothing, or adds 1."""
    x = eg.ones(shape)
    fn = _jit((lambda x: x + 1) if add else (lambda x: x))
    return lambda: fn(x)
