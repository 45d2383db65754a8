"""A chain of a million ops: built, taken backward, deleted; run as a module in its own process.

`python -m benchmarks.probes.longchain everygrad 1000000` prints one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.load import Mark
from benchmarks.harness.process import Setup
from benchmarks.peers import EAGER, MODULES
from benchmarks.workloads import Array

# Near 1, so that a million factors neither overflow nor vanish, but each one tells.
WIDTH, A, B = 4, 1 + 2**-20, 1e-6
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
    others: float

    @property
    def engine_s(self) -> float:
        """What the engine answers for: backward, and both deletions."""
        return self.backward_s + self.delete_after_s + self.delete_s


def linear(short: ChainTimes, long: ChainTimes) -> bool:
    allowed = LINEAR * (long.length / short.length) / (LENGTHS[1] / LENGTHS[0])
    return long.engine_s <= allowed * short.engine_s


def met(short: ChainTimes, long: ChainTimes) -> bool:
    return long.engine_s <= LIMIT_S and linear(short, long)


def _peak_mb() -> int:
    """The most memory this program held; 0 where the system does not say.

    Not getrusage, which counts what the parent held before it started us.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:"))


def _check(peer: str, length: int, gradient: Array) -> None:
    """Exactly: every library multiplies the same float32 numbers in the same order."""
    factors = np.full(length // 2, A, np.float32)
    wanted = np.full(WIDTH, np.multiply.accumulate(factors)[-1])
    if not np.array_equal(gradient, wanted):
        raise ValueError(f"{peer}: gradient of {length} ops is {gradient}, not {wanted}")


def time_chain(peer: str, length: int) -> ChainTimes:
    """The times in this process."""
    module = importlib.import_module(MODULES[peer])
    clock, mark = time.perf_counter, Mark.now()
    t0 = clock()
    x, y = module.build_chain(length, WIDTH, A, B)
    t1 = clock()
    y.sum().backward()
    t2 = clock()
    del y
    t3 = clock()
    _check(peer, length, x.grad.numpy())
    del x
    x, y = module.build_chain(length, WIDTH, A, B)
    t4 = clock()
    del x, y
    t5 = clock()
    return ChainTimes(
        peer, length, t1 - t0, t2 - t1, t3 - t2, t5 - t4, _peak_mb(), mark.others()
    )  # fmt: skip


def long_chains(peer: str, setup: Setup, lengths: tuple[int, ...] = LENGTHS) -> list[ChainTimes]:
    """One fresh process a length, so that neither inherits the other's memory."""
    module = "benchmarks.probes.longchain"
    found = [setup.run_module(peer, module, peer, str(length)) for length in lengths]
    return [ChainTimes(**json.loads(text)) for text in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=EAGER)
    parser.add_argument("length", type=int)
    args = parser.parse_args()
    print(json.dumps(asdict(time_chain(args.peer, args.length))))


if __name__ == "__main__":
    main()
