"""Loader throughput on 1 MB samples, beside torch.utils.data.

    python -m benchmarks.loader [--rounds 5] [--samples 512] [--write]

An item is a float32 array of 512 x 512 with a light transform, a batch has 8 of them. Both loaders
read the same dataset with the same workers, forked. They take turns, and the best round of each
counts: what else runs on the machine slows single rounds down, never speeds one up. The consumer
sums one row of each batch, so that the batch really is there.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data

import everygrad as eg

SIDE = 512
BATCH = 8
WORKERS = (1, 2)
TABLE = Path(__file__).parent / "LOADER.md"


class Images:
    """Items that cost a read of memory and a scale: what a decoded image is normalised with."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._images = np.random.default_rng(0).random((16, SIDE, SIDE), np.float32)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self._images[index % len(self._images)]
        return (image - np.float32(0.5)) * np.float32(2.0), index


def rate(loader: Any) -> float:
    """Samples per second over one pass, without the start of the workers."""
    batches = iter(loader)
    next(batches)
    count, start = 0, time.perf_counter()
    for images, _ in batches:
        assert float(images[-1, -1].sum()) != 0.0
        count += len(images)
    return count / (time.perf_counter() - start)


def loaders(samples: int, workers: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers, "prefetch_factor": 2}
    fork = {**settings, "multiprocessing_context": "fork"}
    torch_data: Any = Images(samples)
    return {
        "everygrad, processes": eg.data.DataLoader(Images(samples), **fork),
        "everygrad, threads": eg.data.DataLoader(Images(samples), workers="thread", **settings),
        "PyTorch, processes": torch.utils.data.DataLoader(torch_data, **fork),
    }


def measure(samples: int, rounds: int) -> dict[int, dict[str, float]]:
    """The best rate of each loader, by number of workers."""
    best: dict[int, dict[str, float]] = {}
    for workers in WORKERS:
        found = best.setdefault(workers, {})
        for _ in range(rounds):
            for name, loader in loaders(samples, workers).items():
                found[name] = max(found.get(name, 0.0), rate(loader))
    return best


def table(best: dict[int, dict[str, float]]) -> str:
    lines = ["| loader | " + " | ".join(f"{w} worker{'s'[: w - 1]}" for w in best) + " |"]
    lines.append("|---|" + "---:|" * len(best))
    for name in best[WORKERS[0]]:
        lines.append(f"| {name} | " + " | ".join(f"{best[w][name]:.0f}" for w in best) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    args = parser.parse_args()
    text = table(measure(args.samples, args.rounds))
    print(text)
    if args.write:
        TABLE.write_text(
            f"# Loader throughput\n\nSamples of 1 MB per second (more is better), by "
            f"`python -m benchmarks.loader --write`: the best of {args.rounds} rounds of "
            f"{args.samples} samples, the loaders in turn. Python {platform.python_version()}, "
            f"torch {torch.__version__}, {torch.get_num_threads()} cores, shared with other "
            f"work.\n\n{text}\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
