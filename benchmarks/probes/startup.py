"""What `import everygrad` costs over `import numpy`, each in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import partial
from statistics import median
from tempfile import gettempdir

from benchmarks.harness.load import Mark
from benchmarks.harness.measure import Plan, Round, take_rounds
from benchmarks.harness.process import ROOT, PeerError, Setup

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
    """Medians; `heavy` are the packages of HEAVY that `import everygrad` loaded."""

    ours_s: float
    numpy_s: float
    heavy: list[str]
    trusted: bool

    @property
    def met(self) -> bool | None:
        """None when no quiet machine was found."""
        if not self.trusted:
            return None
        return self.ours_s <= self.numpy_s + ALLOWED_S and not self.heavy


def _import(module: str, setup: Setup) -> tuple[float, list[str]]:
    command = [setup.python("everygrad"), "-c", _PROGRAM.format(module=module, heavy=HEAVY)]
    # compiled files are what an installed package has; the environment may forbid writing them
    cache = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": gettempdir() + "/everygrad-pyc"}
    environment = {**setup.environment("everygrad"), **cache}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise PeerError(f"import {module}: exit {done.returncode}\n{done.stderr}")
    seconds, heavy = json.loads(done.stdout)
    return seconds, heavy


def _round(setup: Setup, _number: int) -> Round:
    mark = Mark.now()
    times = {module: _import(module, setup)[0] for module in ("numpy", "everygrad")}
    return Round(times, mark.others())


def import_times(setup: Setup, plan: Plan) -> ImportTimes:
    """Alternating fresh imports, after one of each to warm the disk cache."""
    _import("numpy", setup)
    _, heavy = _import("everygrad", setup)
    rounds = take_rounds(partial(_round, setup), plan)
    ours, numpy = (median(r.times[m] for r in rounds) for m in ("everygrad", "numpy"))
    return ImportTimes(ours, numpy, heavy, 2 * sum(r.quiet for r in rounds) > len(rounds))
