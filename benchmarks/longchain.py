"""A chain of a million ops: built, taken backward, deleted; run as a module in its own process.

`python -m benchmarks.longchain everygrad 1000000` prints one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import time
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.peers import MODULES
from benchmarks.process import Setup

LENGTHS = (250_000, 1_000_000)
LIMIT_S = 20.0
# Four times the length may take this many times as long (caches) and still count as linear;
# a quadratic engine takes sixteen times.
LINEAR = 6.0


@dataclass(frozen=True)
class ChainTimes:
    """Seconds for each part. `delete_s`: the whole graph, never taken backward."""

    peer: str
    length: int
    build_s: float
    backward_s: float
    delete_after_s: float
    delete_s: float
    peak_mb: int

    @property
    def engine_s(self) -> float:
        """What the engine answers for: backward, and both deletions."""
        return self.backward_s + self.delete_after_s + self.delete_s


def linear(short: ChainTimes, long: ChainTimes) -> bool:
    allowed = LINEAR * (long.length / short.length) / (LENGTHS[1] / LENGTHS[0])
    return long.engine_s <= allowed * short.engine_s


def met(short: ChainTimes, long: ChainTimes) -> bool:
    return long.engine_s <= LIMIT_S and linear(short, long)


def time_chain(peer: str, length: int) -> ChainTimes:
    """The times in this process. The gradient is exactly 1, so it is checked exactly."""
    module = importlib.import_module(MODULES[peer])
    clock = time.perf_counter
    t0 = clock()
    x, y = module.build_chain(length)
    t1 = clock()
    y.sum().backward()
    t2 = clock()
    del y
    t3 = clock()
    if not np.array_equal(x.grad.numpy(), np.ones(4, np.float32)):
        raise ValueError(f"{peer}: gradient of a chain of {length} ops is {x.grad}, not ones")
    del x
    x, y = module.build_chain(length)
    t4 = clock()
    del x, y
    t5 = clock()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return ChainTimes(peer, length, t1 - t0, t2 - t1, t3 - t2, t5 - t4, peak)


def long_chains(peer: str, setup: Setup, lengths: tuple[int, ...] = LENGTHS) -> list[ChainTimes]:
    """One fresh process a length, so that neither inherits the other's memory."""
    module = "benchmarks.longchain"
    found = [setup.run_module(peer, module, peer, str(length)) for length in lengths]
    return [ChainTimes(**json.loads(text)) for text in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=MODULES)
    parser.add_argument("length", type=int)
    args = parser.parse_args()
    print(json.dumps(asdict(time_chain(args.peer, args.length))))


if __name__ == "__main__":
    main()
