"""everygrad, eager, on WebGPU: every step waits until the GPU is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from benchmarks.peers import Step, everygrad_eager
from benchmarks.workloads import Array, Data
from everygrad.backends import base
from everygrad.errors import DeviceError

DEVICE = "webgpu"
VERSIONS = everygrad_eager.VERSIONS | {"wgpu": metadata.version("wgpu")}


def missing() -> str:
    """What the device lacks to be opened, or ""."""
    try:
        wait()
    except DeviceError as error:
        return str(error)
    return ""


def gpu() -> Any:
    """The device that a plain "webgpu" opens."""
    backend: Any = base.get(DEVICE)
    return backend.gpu


def wait() -> None:
    gpu().wait()


class Waited:
    """A step that hands its commands over, and then waits for them."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def run(self) -> None:
        self.step.run()
        wait()

    def outputs(self) -> dict[str, Array]:
        return self.step.outputs()


def _waited(make: Callable[[Data], Step]) -> Callable[[Data], Step]:
    return lambda data: Waited(make(data))


def waited(steps: Mapping[str, Callable[[Data], Step]]) -> dict[str, Callable[[Data], Step]]:
    return {kind: _waited(make) for kind, make in steps.items()}


STEPS = waited(everygrad_eager.steps(DEVICE))
