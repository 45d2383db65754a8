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
PRODUCTS = """
import sys
from devtools.sweep import processors
processors.play(sys.argv[1])
import ml_dtypes
import numpy as np
import everygrad as eg

rng = np.random.default_rng(0)
for dtype, unit in ((np.float16, 2.0**-11), (ml_dtypes.bfloat16, 2.0**-8)):
    for m, k, n in ((70, 64, 65), (65, 67, 70), (9, 5, 3)):
        a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n)))
        want = a.astype(np.float64) @ b.astype(np.float64)
        for f in (eg.matmul, eg.jit(eg.matmul)):
            got = f(eg.tensor(a), eg.tensor(b)).astype("float64").numpy()
            assert (np.abs(got - want) <= 1.01 * unit * np.abs(want) + 1e-4).all(), (dtype, m, k, n)
    x = rng.standard_normal((1, 5, 20, 20)).astype(dtype)
    w = rng.standard_normal((7, 5, 3, 3)).astype(dtype)
    exact = [eg.tensor(v.astype(np.float64)) for v in (x, w)]
    want = eg.conv2d(*exact, padding=1).numpy()
    for f in (eg.conv2d, eg.jit(eg.conv2d)):
        got = f(eg.tensor(x), eg.tensor(w), padding=1).astype("float64").numpy()
        assert (np.abs(got - want) <= 1.01 * unit * np.abs(want) + 1e-4).all(), dtype
print("done")
"""


@pytest.mark.parametrize("processor", sorted({*here()}))
def test_float16_is_rounded_once_on_every_processor(processor: str) -> None:
    """Processors without F16C have no instruction for it: kernels would not link."""
    run(HALVES, processor)


@pytest.mark.parametrize("processor", sorted({*here()}))
def test_products_of_halves_on_every_processor(processor: str) -> None:
    """Without dot products of bfloat16, and without F16C, operands are widened."""
    run(PRODUCTS, processor)


def run(script: str, processor: str) -> None:
    """In a process in which LLVM says that this is another processor."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EVERYGRAD_CACHE": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", script, processor],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.stdout.strip() == "done", ran.stderr[-2000:]
