"""Saving and loading a gigabyte, beside the disk's own rate, safetensors and PyTorch.

    python -m benchmarks.files [--rounds 9] [--megabytes 1024] [--folder .] [--write]

Each round does everything once, in another order. The disk's rate is a plain write with fsync, and
a plain read into new memory, of the same bytes. "Cold" reads come from the disk: the system's cache
of the file is dropped first. Writers that call no fsync are timed with one. `--write` puts the
table into benchmarks/FILES.md.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch

import everygrad as eg
from benchmarks.harness import load, machine

PAGE = Path(__file__).parent / "FILES.md"
PARTS = 64
BLOCK = 1 << 24
GOAL = 0.8
Work = Callable[[], Any]


def raw_write(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    for array in arrays.values():
        data = array.reshape(-1).view(np.uint8).data
        at = 0
        while at < len(data):
            at += os.write(file, data[at : at + BLOCK])
    os.fsync(file)
    os.close(file)


def raw_read(path: Path) -> np.ndarray[Any, Any]:
    file = os.open(path, os.O_RDONLY)
    out = np.empty(os.fstat(file).st_size, np.uint8)
    at = 0
    while at < len(out):
        at += os.readv(file, [out.data[at : at + BLOCK]])
    os.close(file)
    return out


def synced(path: Path, write: Work) -> None:
    write()
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def dropped(path: Path) -> None:
    """The system forgets what it holds of a file."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


class Bench:
    """All ways of writing and reading the same gigabyte."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        rng = np.random.default_rng(0)
        count = (megabytes << 18) // PARTS
        self.arrays = {
            f"layer{i}.weight": rng.random((count // 64, 64), dtype=np.float32)
            for i in range(PARTS)
        }
        self.bytes = sum(a.nbytes for a in self.arrays.values())
        ours = {k: eg.tensor(a) for k, a in self.arrays.items()}
        theirs = {k: torch.from_numpy(a) for k, a in self.arrays.items()}
        self.raw, self.ours = folder / "raw", folder / "ours.safetensors"
        self.package, self.torch = folder / "package.safetensors", folder / "torch.pt"
        self.writes: dict[str, tuple[Path, Work]] = {
            "the disk: write, fsync": (self.raw, lambda: raw_write(self.raw, self.arrays)),
            "eg.save": (self.ours, lambda: eg.save(self.ours, ours)),
            "safetensors save_file, fsync": (
                self.package,
                lambda: synced(
                    self.package, lambda: safetensors.numpy.save_file(self.arrays, self.package)
                ),
            ),
            "torch.save, fsync": (
                self.torch,
                lambda: synced(self.torch, lambda: torch.save(theirs, self.torch)),
            ),
        }
        self.reads: dict[str, tuple[Path, Work]] = {
            "the disk: read": (self.raw, lambda: raw_read(self.raw)),
            "eg.load": (self.ours, lambda: eg.load(self.ours)),
            "eg.load(verify=False)": (self.ours, lambda: eg.load(self.ours, verify=False)),
            "eg.load(mmap=True, verify=True)": (
                self.ours,
                lambda: eg.load(self.ours, mmap=True, verify=True),
            ),
            "eg.load of PyTorch's file": (self.torch, lambda: eg.load(self.torch)),
            "safetensors load_file": (
                self.package,
                lambda: safetensors.numpy.load_file(self.package),
            ),
            "torch.load": (self.torch, lambda: torch.load(self.torch)),
        }

    def rate(self, work: Work) -> float:
        """Gigabytes a second."""
        start = time.perf_counter()
        made = work()
        seconds = time.perf_counter() - start
        del made
        return self.bytes / 1e9 / seconds

    def round(self, rng: random.Random) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {"write": {}, "cold": {}, "warm": {}}
        for name, (path, work) in rng.sample([*self.writes.items()], len(self.writes)):
            path.unlink(missing_ok=True)
            os.sync()
            found["write"][name] = self.rate(work)
        for path, _ in self.reads.values():
            dropped(path)
            raw_read(path)  # some disks are slow at what they have just written
        for name, (path, work) in rng.sample([*self.reads.items()], len(self.reads)):
            dropped(path)
            found["cold"][name] = self.rate(work)
            found["warm"][name] = self.rate(work)
        return found


def table(rounds: list[dict[str, dict[str, float]]], kind: str, title: str) -> list[str]:
    """One row a way: its median rate, and the median of its shares of the disk's in each round."""
    first, *others = sorted(
        rounds[0][kind], key=lambda n: (not n.startswith("the disk"), not n.startswith("eg."), n)
    )
    lines = [f"| {title} | GB/s | of the disk's |", "|---|---:|---:|"]
    for name in (first, *others):
        rates = [r[kind][name] for r in rounds]
        shares = [r[kind][name] / r[kind][first] for r in rounds]
        lines.append(f"| {name} | {median(rates):.2f} | {100 * median(shares):.0f} % |")
    return [*lines, ""]


def page(rounds: list[dict[str, dict[str, float]]], size: int, others: float) -> str:
    versions = {
        "everygrad": eg.__version__,
        "safetensors": safetensors.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    lines = [
        "# Files",
        "",
        f"{size / 1e9:.2f} GB of float32 in {PARTS} tensors, medians of {len(rounds)} rounds; "
        f"`python -m benchmarks.files --write`.",
        f"The goal: saving and loading at {100 * GOAL:.0f} % of the disk's rate. Only `eg.save`",
        "and `eg.load` compute and compare checksums; only `eg.save` replaces files as a whole.",
        "",
        *table(rounds, "write", "write"),
        *table(rounds, "cold", "read from the disk"),
        *table(rounds, "warm", "read from the system's cache"),
        *machine.describe(versions, 0)[:3],
        f"Others kept {others:.2f} of a core busy meanwhile.",
    ]
    return "\n".join(lines) + "\n"


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="everygrad-files-") as name:
        bench = Bench(Path(name), options.megabytes)
        bench.round(random.Random(0))  # files are there, and libraries are loaded
        mark = load.Mark.now()
        rounds = [bench.round(random.Random(i)) for i in range(options.rounds)]
        text = page(rounds, bench.bytes, mark.others())
    print(text)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
