"""Kernels for processors with fewer features than this one, in processes that simulate them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.sweep.processors import here

ROOT = Path(__file__).parents[3]
HALVES = """
import sys
from devtools.sweep import processors
processors.play(sys.argv[1])
import numpy as np
import everygrad as eg

every = np.arange(65536, dtype=np.uint16).view(np.float16)
rng = np.random.default_rng(0)

def same(got, want):
    alike = (got == want) & (np.signbit(got) == np.signbit(want))
    assert (alike | np.isnan(got) & np.isnan(want)).all()

np.seterr(all="ignore")
single, double = eg.jit(lambda x: (x.astype("float32"), x.astype("float64")))(eg.tensor(every))
same(single.numpy(), every.astype(np.float32))
same(double.numpy(), every.astype(np.float64))
some = every.astype(np.float32)
near = [np.nextafter(some, np.float32(s)) for s in (np.inf, -np.inf)]
ties = (some[1:] + some[:-1]) / 2
floats = rng.integers(0, 2**32, 1 << 18, np.uint32).view(np.float32)
floats = np.concatenate([floats, some, *near, ties])
half = eg.jit(lambda x: x.astype("float16"))
same(half(eg.tensor(floats)).numpy(), floats.astype(np.float16))
wide = floats.astype(np.float64)
wide = np.concatenate([wide, np.nextafter(wide, np.inf), np.nextafter(wide, -np.inf)])
same(half(eg.tensor(wide)).numpy(), wide.astype(np.float16))
print("done")
"""


@pytest.mark.parametrize("processor", sorted({*here()}))
def test_float16_is_rounded_once_on_every_processor(processor: str) -> None:
    """Processors without F16C have no instruction for it: kernels would not link."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EVERYGRAD_CACHE": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", HALVES, processor],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.stdout.strip() == "done", ran.stderr[-2000:]
