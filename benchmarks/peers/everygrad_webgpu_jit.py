"""everygrad, each eager step passed through `eg.jit` unchanged, on WebGPU."""

from __future__ import annotations

from benchmarks.peers import everygrad_jit
from benchmarks.peers.everygrad_webgpu import (
    DEVICE,
    VERSIONS as VERSIONS,
    missing as missing,
    waited,
)

STEPS = waited(everygrad_jit.steps(DEVICE))
