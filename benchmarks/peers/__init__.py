"""The peers: each is a module with `VERSIONS`, `STEPS` and `build_chain`, run in its own process.

`STEPS[kind](data)` gives a `Step` for that kind of workload. A peer whose packages need a virtual
environment of their own names its interpreter on the command line: `--python jax=PATH`.
"""

from __future__ import annotations

from typing import Protocol

from benchmarks.workloads import Array

# Name on the command line and in the table -> module that implements it.
MODULES = {
    "everygrad": "benchmarks.peers.everygrad_eager",
    "torch": "benchmarks.peers.torch_eager",
}


class Step(Protocol):
    """One workload in one library, made once from its data and then run again and again."""

    def run(self) -> None:
        """One step. All of its work is done when this returns."""

    def outputs(self) -> dict[str, Array]:
        """What the last step gave, under the same names for all peers.

        `loss`; `grad.NAME`; of a training step also `change.NAME`, how far a weight has moved
        since the start; `hvp.NAME`.
        """
