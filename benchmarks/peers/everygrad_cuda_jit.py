"""everygrad, each eager step passed through `eg.jit` unchanged, on an NVIDIA GPU."""

from __future__ import annotations

from benchmarks.peers import everygrad_jit
from benchmarks.peers.everygrad_cuda import (
    DEVICE,
    VERSIONS as VERSIONS,
    held as held,
    missing as missing,
    peak as peak,
    wait as wait,
)

STEPS = everygrad_jit.steps(DEVICE)
