"""Times of gathers, scatters and copies on one device, to compare two commits:

    python -m benchmarks.probes.indexing cuda

prints microseconds a call, each the least of several rounds. Run it on both, in turns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np

import everygrad as eg
from everygrad.backends import base

_ROUNDS, _CALLS = 20, 20


def cases(device: str) -> dict[str, Callable[[], object]]:
    rng = np.random.default_rng(0)

    def floats(*shape: int, dtype: str = "float32") -> eg.Tensor:
        return eg.tensor(rng.standard_normal(shape).astype(np.float32), device=device).astype(dtype)

    def indices(below: int, *shape: int) -> eg.Tensor:
        return eg.tensor(rng.integers(0, below, shape), device=device)

    table, wide, half = floats(50_000, 256), floats(4096, 512), floats(50_000, 256, dtype="float16")
    rows, picks = indices(50_000, 16_384), indices(512, 4096, 256)
    few, many, crowded = indices(1024, 32), indices(50_000, 8192), indices(100, 16_384)
    zeros, small = floats(1024, 512), floats(100, 256)
    adds, fills, heaps = floats(32, 512), floats(8192, 256), floats(16_384, 256)
    parts = [floats(2048, n) for n in (256, 512, 128)]
    return {
        "take of rows": lambda: eg.take(table, rows, axis=0),
        "take of rows, float16": lambda: eg.take(half, rows, axis=0),
        "gather": lambda: eg.gather(wide, picks, axis=1),
        "index_add, 32 indices": lambda: zeros.index_add(0, few, adds),
        "index_add, sorted": lambda: table.index_add(0, many, fills),
        "index_add, crowded": lambda: small.index_add(0, crowded, heaps),
        "concat of columns": lambda: eg.concat(parts, axis=1),
        "pad": lambda: eg.pad(wide, ((1, 1), (1, 1))),
    }


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    backend = base.get(device)
    for name, work in cases(device).items():
        best = float("inf")
        for _ in range(_ROUNDS):
            backend.synchronize()
            start = perf_counter()
            for _ in range(_CALLS):
                work()
            backend.synchronize()
            best = min(best, (perf_counter() - start) / _CALLS)
        print(f"{name:24s} {1e6 * best:10.1f} us")


if __name__ == "__main__":
    main()
