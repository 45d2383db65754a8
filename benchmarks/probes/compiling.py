"""How long compiling takes for programs that are long in Python: RK4 loops, unrolled by the trace.

`python -m benchmarks.probes.compiling [--warm]` prints processor seconds of the first call, the
least of three processes each, with an empty disk cache or, warm, with everything in it. 1,000 steps
forward may take 5 s, 200 with backward 3 s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import everygrad as eg

FORWARD, BACKWARD = 1000, 200
RUNS = 3


def rk4(f: Callable[[Any], Any], y: Any, steps: int, h: float = 0.01) -> Any:
    for _ in range(steps):
        k1 = f(y)
        k2 = f(y + 0.5 * h * k1)
        k3 = f(y + 0.5 * h * k2)
        k4 = f(y + h * k3)
        y = y + (h / 6) * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def number(w: Any, n: int) -> Any:
    return rk4(lambda y: w.sum() * eg.sin(y) - y, eg.ones(()), n)


def vector(w: Any, n: int) -> Any:
    return rk4(lambda y: w[0] * eg.sin(y) - y, w[1] * 1.0, n).sum()


def network(w: Any, n: int) -> Any:
    return rk4(lambda y: eg.tanh(y @ w) @ w, w[:3] * 1.0, n).sum()


def pendulum(w: Any, n: int) -> Any:
    q, p = w[0] * 1.0, w[1] * 1.0
    for _ in range(n):
        k = [(p, -eg.sin(q))]
        for c in (0.5, 0.5, 1.0):
            dq, dp = k[-1]
            k.append((p + c * 0.01 * dp, -w[2] * eg.sin(q + c * 0.01 * dq)))
        q = q + 0.01 / 6 * (k[0][0] + 2 * k[1][0] + 2 * k[2][0] + k[3][0])
        p = p + 0.01 / 6 * (k[0][1] + 2 * k[1][1] + 2 * k[2][1] + k[3][1])
    return q.sum() + p.sum()


PROGRAMS = {f.__name__: f for f in (number, vector, network, pendulum)}


def first_call(name: str, backward: bool) -> float:
    """Processor seconds; what is made once in a process is made before."""

    def step(w: Any, n: int) -> Any:
        loss = PROGRAMS[name](w, n)
        if not backward:
            return loss
        w.grad = None
        loss.backward()
        return loss, w.grad

    w = eg.tensor(np.linspace(0.1, 0.6, 16).reshape(4, 4), dtype="float32", requires_grad=backward)
    eg.jit(lambda w: step(w, 1))(w)
    compiled = eg.jit(lambda w: step(w, BACKWARD if backward else FORWARD))
    start = time.process_time()
    compiled(w)
    return time.process_time() - start


def measured(name: str, way: str, cache: str) -> float:
    command = [sys.executable, "-m", "benchmarks.probes.compiling", "--only", name, "--way", way]
    environment = os.environ | {"EVERYGRAD_CACHE_DIR": cache}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm", action="store_true", help="with a full disk cache")
    parser.add_argument("--only", help="one program, in this process")
    parser.add_argument("--way", choices=("forward", "backward"), default="forward")
    given = parser.parse_args()
    if given.only:
        print(first_call(given.only, given.way == "backward"))
        return
    print(f"{'':>10} {FORWARD:>6} forward {BACKWARD:>6} with backward")
    for name in PROGRAMS:
        least = []
        for way in ("forward", "backward"):
            with tempfile.TemporaryDirectory() as kept:
                runs = []
                for _ in range(RUNS + given.warm):
                    with tempfile.TemporaryDirectory() as fresh:
                        runs.append(measured(name, way, kept if given.warm else fresh))
                least.append(min(runs[given.warm :]))
        print(f"{name:>10} {least[0]:>14.2f} {least[1]:>20.2f}", flush=True)


if __name__ == "__main__":
    main()
