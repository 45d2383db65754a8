"""The peers: each is a module with `VERSIONS` and `STEPS`, run in its own process.

`STEPS[kind](data)` gives a `Step` for that kind of workload. `missing()`, where a module has it,
says what the peer lacks to run here, or "". `trivial(shape, add)`, of a peer that compiles, gives
a compiled function of nothing, or of x + 1, to call. `build_chain`, of an eager peer, makes the
long chain. Those on CUDA hand work over without waiting: `wait()` waits for all of it, `peak()`
tells the most bytes of the GPU in use at once, `held()` those of the pool they are from.
"""

from __future__ import annotations

from typing import Protocol

from benchmarks.workloads import Array

# Name on the command line and in the table -> module that implements it.
MODULES = {
    "everygrad": "benchmarks.peers.everygrad_eager",
    "everygrad.jit": "benchmarks.peers.everygrad_jit",
    "torch": "benchmarks.peers.torch_eager",
    "torch.compile": "benchmarks.peers.torch_compiled",
    "jax": "benchmarks.peers.jax_jit",
}
# The same on a GPU through WebGPU, or on Mesa's software adapter: a contest of their own.
WEBGPU_MODULES = {
    "everygrad.webgpu": "benchmarks.peers.everygrad_webgpu",
    "everygrad.webgpu.jit": "benchmarks.peers.everygrad_webgpu_jit",
    "tinygrad": "benchmarks.peers.tinygrad_webgpu",
}
# On an NVIDIA GPU: a contest of its own too.
CUDA_MODULES = {
    "everygrad.cuda": "benchmarks.peers.everygrad_cuda",
    "everygrad.cuda.jit": "benchmarks.peers.everygrad_cuda_jit",
    "torch.cuda": "benchmarks.peers.torch_cuda",
    "torch.cuda.compile": "benchmarks.peers.torch_cuda_compiled",
    "jax.cuda": "benchmarks.peers.jax_cuda",
}
# Peers that compile a function as a whole, and those whose engine builds a graph op by op.
COMPILED = ("everygrad.jit", "torch.compile", "jax")
EAGER = ("everygrad", "torch")

# Interpreters from the repository's root, where a peer's packages need an environment of their own.
PYTHONS = {"jax": ".venv-jax/bin/python", "tinygrad": ".venv-tinygrad/bin/python"}

# What points a peer's disk cache at a folder. JAX keeps none unless told to.
CACHES = {
    "everygrad": "EVERYGRAD_CACHE_DIR",
    "everygrad.jit": "EVERYGRAD_CACHE_DIR",
    "torch.compile": "TORCHINDUCTOR_CACHE_DIR",
}

# No library, but a copy of the bytes a workload cannot avoid moving: the floor under all of them.
FLOOR = "copy"
FLOOR_MODULE = "benchmarks.peers.copy_floor"

# All that a worker can be.
ALL_MODULES = MODULES | WEBGPU_MODULES | CUDA_MODULES | {FLOOR: FLOOR_MODULE}


class Step(Protocol):
    """One workload in one library, made once from its data and then run again and again."""

    def run(self) -> None:
        """One step. All of its work is done when this returns."""

    def outputs(self) -> dict[str, Array]:
        """What the last step gave, under the same names for all peers.

        `loss`; `grad.NAME`; of a training step also `change.NAME`, how far a weight has moved
        since the start; `hvp.NAME`.
        """


class Trained(Step, Protocol):
    """A step with a loss, whose batch may be another each time."""

    def value(self) -> float:
        """The last step's loss; waits for it."""

    def feed(self, text: Array) -> None:
        """Train on these tokens next: each predicts the one after it."""
