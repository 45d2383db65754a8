"""The machine the figures belong to, in words."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def _first(path: str, key: str) -> str:
    """The value of the first `key: value` line of a /proc file; "" where there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(key))
    return next(values, "")


def cpu() -> str:
    return _first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _vectors() -> str:
    flags = _first("/proc/cpuinfo", "flags").split()
    return next((name for name in ("avx512f", "avx2", "avx") if name in flags), "no AVX")


def _memory() -> str:
    kilobytes = _first("/proc/meminfo", "MemTotal").partition(" ")[0]
    return f"{int(kilobytes) / 2**20:.0f} GiB memory" if kilobytes else "memory unknown"


def describe(versions: dict[str, str], threads: int) -> list[str]:
    """A few lines for the head of the report."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        f"CPU: {cpu()}, {cores} cores ({_vectors()}), {_memory()}",
        f"System: {platform.system()} {platform.release()} {platform.machine()}, "
        f"Python {platform.python_version()}",
        "Versions: " + ", ".join(f"{name} {v}" for name, v in sorted(versions.items())),
        f"Threads: {threads} a peer, one peer at a time; "
        f"load average at the end {os.getloadavg()[0]:.2f}",
    ]
