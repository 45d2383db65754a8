"""What `import everygrad` costs over `import numpy`, each in a fresh interpreter."""

from __future__ import annotations

import json
import statistics
import subprocess
from dataclasses import dataclass

from benchmarks.process import ROOT, PeerError, Setup

ALLOWED_S = 0.1
# Packages that drive a device, generate code or are a peer: none belongs in a plain import.
HEAVY = ("wgpu", "cupy", "llvmlite", "torch", "jax", "scipy", "matplotlib")

_PROGRAM = """
import json, sys, time
start = time.perf_counter()
import {module}
print(json.dumps([time.perf_counter() - start, sorted(sys.modules.keys() & set({heavy!r}))]))
"""


@dataclass(frozen=True)
class ImportTimes:
    ours_s: float
    numpy_s: float
    heavy: list[str]

    @property
    def met(self) -> bool:
        return self.ours_s <= self.numpy_s + ALLOWED_S and not self.heavy


def _import(module: str, setup: Setup) -> tuple[float, list[str]]:
    command = [setup.python("everygrad"), "-c", _PROGRAM.format(module=module, heavy=HEAVY)]
    done = subprocess.run(
        command, env=setup.environment(), cwd=ROOT, text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise PeerError(f"import {module}: exit {done.returncode}\n{done.stderr}")
    seconds, heavy = json.loads(done.stdout)
    return seconds, heavy


def import_times(setup: Setup, rounds: int) -> ImportTimes:
    """Medians of alternating fresh imports, after one of each to warm the disk cache."""
    ours: list[float] = []
    numpy: list[float] = []
    _import("numpy", setup)
    _, heavy = _import("everygrad", setup)
    for _ in range(rounds):
        numpy.append(_import("numpy", setup)[0])
        ours.append(_import("everygrad", setup)[0])
    return ImportTimes(statistics.median(ours), statistics.median(numpy), heavy)
