"""What a call of a compiled function costs that has nothing to do; run in the peer's process.

`python -m benchmarks.probes.overhead everygrad.jit` prints one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.harness.load import QUIET, Mark
from benchmarks.harness.process import Setup
from benchmarks.peers import COMPILED, MODULES

OURS, ALLOWED_S = "everygrad.jit", 10e-6
BATCHES, CALLS = 15, 1000


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    add: bool
    bound: bool  # whether ALLOWED_S holds for it


CASES = {
    "x, shape ()": Case((), add=False, bound=True),
    "x, shape (4,)": Case((4,), add=False, bound=True),
    "x + 1, shape (4,)": Case((4,), add=True, bound=False),
}


@dataclass(frozen=True)
class Overhead:
    """Seconds a call, by case; the median of batches."""

    peer: str
    seconds: dict[str, float]
    others: float

    def met(self, case: str) -> bool | None:
        """None where nothing is asked, or when other processes took part of the machine."""
        if self.peer != OURS or not CASES[case].bound or self.others > QUIET:
            return None
        return self.seconds[case] <= ALLOWED_S


def _batch(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def measure(peer: str) -> Overhead:
    """The times in this process."""
    module = importlib.import_module(MODULES[peer])
    calls = {name: module.trivial(case.shape, case.add) for name, case in CASES.items()}
    for call in calls.values():
        _batch(call)
    mark = Mark.now()
    seconds = {
        name: statistics.median(_batch(call) for _ in range(BATCHES))
        for name, call in calls.items()
    }
    return Overhead(peer, seconds, mark.others())


def overhead(peer: str, setup: Setup) -> Overhead:
    """The same in a new process of that peer's interpreter."""
    return Overhead(**json.loads(setup.run_module(peer, "benchmarks.probes.overhead", peer)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=COMPILED)
    print(json.dumps(asdict(measure(parser.parse_args().peer))))


if __name__ == "__main__":
    main()
