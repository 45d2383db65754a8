"""everygrad, eager, on an NVIDIA GPU."""

from __future__ import annotations

from typing import Any

from benchmarks.peers import everygrad_eager
from everygrad.backends import base
from everygrad.errors import DeviceError

DEVICE = "cuda"
VERSIONS = everygrad_eager.VERSIONS
STEPS = everygrad_eager.steps(DEVICE)


def missing() -> str:
    """What the device lacks to be opened, or ""."""
    try:
        wait()
    except DeviceError as error:
        return str(error)
    return ""


def backend() -> Any:
    return base.get(DEVICE)


def wait() -> None:
    backend().synchronize()


def peak() -> int:
    found: int = backend().gpu.memory.statistics()["peak"]
    return found


def held() -> int:
    found: int = backend().gpu.memory.statistics()["held"]
    return found


def device() -> list[str]:
    """The GPU in words."""
    driver = backend().gpu.driver
    major, minor = divmod(driver.version, 1000)
    return [
        f"GPU: {driver.name} ({driver.arch}, {driver.multiprocessors} multiprocessors), "
        f"driver for CUDA {major}.{minor // 10}, "
        f"NVRTC {'.'.join(map(str, driver.nvrtc.version))}"
    ]
