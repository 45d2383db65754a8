"""A copy of the bytes a workload cannot avoid moving: each input read once, each gradient written.

NumPy's copy, which releases the interpreter lock, on as many threads as the peers have; its
destinations are memory that has been written before, so no page is made while timing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from benchmarks.peers import Step
from benchmarks.workloads import Array, Data

VERSIONS: dict[str, str] = {}
THREADS = int(os.environ["OMP_NUM_THREADS"])


class Copy:
    """x, w and b to three arrays of their sizes; every thread takes a block of rows of each."""

    def __init__(self, data: Data) -> None:
        pairs = [(np.full_like(data.arrays[name], 1.0), data.arrays[name]) for name in "xwb"]
        self.blocks = [
            [(to[rows], source[rows]) for to, source in pairs for rows in [_share(len(to), i)]]
            for i in range(THREADS)
        ]
        self.pool = ThreadPoolExecutor(max(1, THREADS - 1))

    def run(self) -> None:
        # This thread does the last share itself: one fewer to wake.
        others = [self.pool.submit(_copy, pairs) for pairs in self.blocks[:-1]]
        _copy(self.blocks[-1])
        wait(others)

    def outputs(self) -> dict[str, Array]:
        return {}


def _share(rows: int, i: int) -> slice:
    return slice(rows * i // THREADS, rows * (i + 1) // THREADS)


def _copy(pairs: list[tuple[Array, Array]]) -> None:
    for to, source in pairs:
        np.copyto(to, source)


STEPS: dict[str, Callable[[Data], Step]] = {"pointwise": Copy}
