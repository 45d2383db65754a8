"""Collectives and the launcher beside PyTorch's gloo and torchrun, on one machine.

    python -m benchmarks.distributed [--rounds 5] [--write]

Two processes sum 16 MB of float32 (4 million numbers): everygrad under its launcher, by the MPI
wheel of PyPI, and PyTorch under torchrun, by gloo. Both take turns and the best of all rounds
counts. The start is the time from the command to the first line of the user's script.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COUNT = 4 << 20
CALLS = 10
TABLE = Path(__file__).parent / "DISTRIBUTED.md"
ROOT = Path(__file__).parents[1]

OURS = f"""
import os, time
print("begun", time.time() - float(os.environ["BEGUN"]), flush=True)
import everygrad as eg
dist = eg.distributed
mesh = dist.Mesh({{"data": dist.world_size()}})
x = eg.ones(({COUNT},))
for _ in range(2):
    dist.all_reduce(x, mesh, "data")
for _ in range(3):
    start = time.perf_counter()
    for _ in range({CALLS}):
        dist.all_reduce(x, mesh, "data")
    print("seconds", (time.perf_counter() - start) / {CALLS}, flush=True)
"""

THEIRS = f"""
import os, time
print("begun", time.time() - float(os.environ["BEGUN"]), flush=True)
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones({COUNT})
for _ in range(2):
    dist.all_reduce(x)
for _ in range(3):
    start = time.perf_counter()
    for _ in range({CALLS}):
        dist.all_reduce(x)
    print("seconds", (time.perf_counter() - start) / {CALLS}, flush=True)
dist.destroy_process_group()
"""


def measured(command: list[str], script: str) -> tuple[float, float]:
    """The latest start of a rank and the best seconds of a sum, of one run."""
    with tempfile.TemporaryDirectory(prefix="everygrad-bench-") as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        env = {**os.environ, "BEGUN": str(time.time()), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, str(path)], env=env, capture_output=True, text=True, check=False
        )
    begun = [float(s) for s in re.findall(r"begun ([\d.e-]+)", done.stdout)]
    seconds = [float(s) for s in re.findall(r"seconds ([\d.e-]+)", done.stdout)]
    if done.returncode or len(begun) != 2 or not seconds:
        raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return max(begun), min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write DISTRIBUTED.md")
    given = parser.parse_args()
    ours = [sys.executable, "-m", "everygrad.launch", "-n", "2"]
    theirs = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    rounds: dict[str, list[tuple[float, float]]] = {"everygrad": [], "PyTorch": []}
    for _ in range(given.rounds):
        rounds["everygrad"].append(measured(ours, OURS))
        rounds["PyTorch"].append(measured(theirs, THEIRS))
    lines = ["| | start, s | all_reduce of 16 MB, ms | GB/s |", "|---|---|---|---|"]
    for name, found in rounds.items():
        start, seconds = (min(values) for values in zip(*found, strict=True))
        lines.append(
            f"| {name} | {start:.2f} | {seconds * 1e3:.2f} | {4 * COUNT / seconds / 1e9:.2f} |"
        )
    text = "\n".join(lines)
    print(text)
    if given.write:
        load = os.getloadavg()[0]
        words = (
            f"# Two processes on one machine\n\n`python -m benchmarks.distributed --rounds "
            f"{given.rounds} --write`, best of all rounds, {platform.processor() or 'CPU'}, "
            f"{os.cpu_count()} cores, load average {load:.1f} at the end.\n\n{text}\n"
        )
        TABLE.write_text(words, encoding="utf-8")


if __name__ == "__main__":
    main()
