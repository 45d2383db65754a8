"""Ten thousand different compiled functions in one process: memory must be flat after the bound.

    python -m devtools.drills.memory [--functions 10000] [--code-mb 64] [--live] [--device cpu]

Functions differ in a constant, a shape or their form: elementwise, reductions, matrix products,
gradients, and large eager ops beside them. `--live` holds all of them, and calls old ones again, so
that only the bound makes room; without it each is dropped after its calls. Prints a table, and ends
with status 1 where memory grew by more than a fifth from the third row on.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.backends.code_cache import code_cache
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.core.config import config

ROWS = 20


def resident() -> float:
    """Megabytes of memory that the process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)


def made(i: int, device: str) -> tuple[Any, tuple[Any, ...], Any]:
    """A function of its own for each number, arguments, and what NumPy says of them."""
    c, form = 1.0 + i / 4096, i % 5
    n = 8 + i % 977 if form == 1 else 64
    x = np.linspace(-1, 1, n, dtype=np.float32)
    t = eg.tensor(x, device=device)
    if form == 0:
        return eg.jit(lambda x: x * c + x * x), (t,), x * c + x * x
    if form == 1:
        return eg.jit(lambda x: (x * 2.0 + c).sum()), (t,), (x * 2.0 + c).sum()
    if form == 2:
        square = t.reshape(8, 8)
        want = (x.reshape(8, 8) @ x.reshape(8, 8)) * c
        return eg.jit(lambda x: (x @ x) * c), (square,), want
    if form == 3:
        return eg.jit(eg.grad(lambda x: (x * x * c).sum())), (t,), 2 * c * x
    return eg.jit(lambda x: eg.softmax(x * c, axis=0)), (t,), _softmax(x * c)


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max())
    return e / e.sum()


def check(function: Any, args: tuple[Any, ...], want: Any) -> None:
    for _ in range(2):
        np.testing.assert_allclose(function(*args).detach().numpy(), want, rtol=2e-4, atol=1e-5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--functions", type=int, default=10_000)
    parser.add_argument("--code-mb", type=int, default=64)
    parser.add_argument("--live", action="store_true", help="hold every function")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    config.code_bytes = given.code_mb << 20
    large = eg.tensor(np.linspace(0, 1, 1 << 15, dtype=np.float32))
    start, rows, held = time.process_time(), [], []
    print(f"{'functions':>9} {'resident MB':>12} {'kept MB':>8} {'modules':>8} {'CPU s':>7}")
    for i in range(given.functions):
        held.append(made(i, given.device))
        check(*held[-1])
        if i % 97 == 0:  # eager kernels of other layouts come and go too
            (large[: 20_000 + i] * 2.0).sum()
        if given.live and i % 10 == 0:
            check(*held[i // 2])  # dropped long ago: compiled again
        if not given.live:
            held.clear()
        if (i + 1) % max(1, given.functions // ROWS) == 0:
            gc.collect()
            engine().free_dropped()
            rows.append(resident())
            took = time.process_time() - start
            print(
                f"{i + 1:>9,} {rows[-1]:>12.1f} {code_cache.total() / (1 << 20):>8.1f} "
                f"{engine().loaded:>8} {took:>7.0f}",
                flush=True,
            )
    flat = max(rows[2:]) <= 1.2 * rows[2]
    print("memory is flat" if flat else "MEMORY GROWS")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
