"""JAX on an NVIDIA GPU: steps are handed over, and waited for together."""

from __future__ import annotations

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else three quarters of the GPU

import jax  # type: ignore[import-not-found]  # where there is a GPU, there is one

from benchmarks.peers import jax_jit

VERSIONS = jax_jit.VERSIONS
STEPS = jax_jit.STEPS
jax_jit.finish = lambda out: out


def missing() -> str:
    return "" if jax.default_backend() == "gpu" else "this JAX finds no GPU"


def wait() -> None:
    # what a device does is done in the order it was asked for
    jax.block_until_ready(jax.device_put(0.0) + 1.0)


def peak() -> int:
    return int(jax.local_devices()[0].memory_stats()["peak_bytes_in_use"])


def held() -> int:
    """0: it does not always tell."""
    return int(jax.local_devices()[0].memory_stats().get("peak_pool_bytes", 0))
