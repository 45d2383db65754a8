"""Collectives and the launcher beside PyTorch's gloo and torchrun, on one machine.

    python -m benchmarks.distributed [--rounds 5] [--link 1gbit] [--write]

Two processes sum 16 MB of float32 (4 million numbers): everygrad under its launcher, by the MPI
wheel of PyPI, and PyTorch under torchrun, by gloo. Both take turns and the best of all rounds
counts. The start is the time from the command to the first line of the user's script.

With `--link`, as root, both also train a network with 42 MB of gradients in a network namespace
whose one interface is limited to that rate (tc's tbf). What communication adds to a step, beyond
the same step without it, is exposed: it was not hidden behind backward.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COUNT = 4 << 20
CALLS = 10
TABLE = Path(__file__).parent / "DISTRIBUTED.md"
ROOT = Path(__file__).parents[1]

OURS = f"""
import os, time
os.write(1, b"begun %f\\n" % (time.time() - float(os.environ["BEGUN"])))
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
    os.write(1, b"seconds %f\\n" % ((time.perf_counter() - start) / {CALLS}))
"""

THEIRS = f"""
import os, time
os.write(1, b"begun %f\\n" % (time.time() - float(os.environ["BEGUN"])))
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
    os.write(1, b"seconds %f\\n" % ((time.perf_counter() - start) / {CALLS}))
dist.destroy_process_group()
"""


LAYERS, WIDTH, BATCH = 10, 1024, 64  # 42 MB of float32

OUR_TRAINING = f"""
import os, time
names = (b"without", b"with")
import numpy as np
import everygrad as eg
dist = eg.distributed
mesh = dist.Mesh({{"data": dist.world_size()}})
rng = np.random.default_rng(0)
shape = ({WIDTH}, {WIDTH})
ws = [eg.tensor(rng.normal(size=shape).astype("float32") / 32, requires_grad=True)
      for _ in range({LAYERS})]
sgd = eg.optim.SGD(ws, lr=1e-3)
x = eg.tensor(rng.normal(size=({BATCH}, {WIDTH})).astype("float32"))

def step(x, together):
    sgd.zero_grad()
    h = x
    for w in ws:
        h = eg.tanh(h @ w)
    loss = (h * h).mean()
    loss.backward()
    if together:
        for w in reversed(ws):
            w.grad = dist.all_reduce(w.grad, mesh, "data", "mean")
    sgd.step()
    return loss

run = eg.jit(step)
for together in (False, True):
    run(x, together).item()
    for _ in range(6):
        start = time.perf_counter()
        run(x, together).item()
        os.write(1, b"%s %f\\n" % (names[together], time.perf_counter() - start))
    dist.barrier()
"""

THEIR_TRAINING = f"""
import os, time
names = (b"without", b"with")
from contextlib import nullcontext
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = []
for _ in range({LAYERS}):
    layers += [torch.nn.Linear({WIDTH}, {WIDTH}, bias=False), torch.nn.Tanh()]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn({BATCH}, {WIDTH})
for together in (False, True):
    for i in range(7):
        start = time.perf_counter()
        with nullcontext() if together else model.no_sync():
            sgd.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            sgd.step()
        if i:
            os.write(1, b"%s %f\\n" % (names[together], time.perf_counter() - start))
    dist.barrier()
dist.destroy_process_group()
"""


@contextmanager
def limited_link(rate: str) -> Iterator[list[str]]:
    """What to put before a command so that it runs on a link of this rate."""
    name = f"everygrad-{os.getpid()}"
    inside = ["ip", "netns", "exec", name]
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        limit = f"tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 20ms"
        subprocess.run([*inside, *limit.split()], check=True)
        yield inside
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def output_of(command: list[str], script: str, **more: str) -> str:
    with tempfile.TemporaryDirectory(prefix="everygrad-bench-") as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        env = {**os.environ, "BEGUN": str(time.time()), "PYTHONPATH": str(ROOT), **more}
        done = subprocess.run(
            [*command, str(path)], env=env, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def exposed(command: list[str], script: str, **more: str) -> tuple[float, float]:
    """Seconds of a step without communication, and what communication adds; medians."""
    said = output_of(command, script, **more)
    found = {
        kind: statistics.median(float(s) for s in re.findall(rf"\b{kind} ([\d.e-]+)", said))
        for kind in ("with", "without")
    }
    return found["without"], found["with"] - found["without"]


def measured(command: list[str], script: str) -> tuple[float, float]:
    """The latest start of a rank and the best seconds of a sum, of one run."""
    said = output_of(command, script)
    begun = [float(s) for s in re.findall(r"begun ([\d.e-]+)", said)]
    seconds = [float(s) for s in re.findall(r"seconds ([\d.e-]+)", said)]
    if len(begun) != 2:
        raise RuntimeError(f"{command}: two ranks should have begun:\n{said}")
    return max(begun), min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--link", help="a rate, such as 1gbit: needs root")
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
    if given.link:
        lines += ["", f"42 MB of gradients over a link of {given.link}:", ""]
        lines += ["| | a step alone, ms | exposed communication, ms |", "|---|---|---|"]
        with limited_link(given.link) as inside:
            tcp = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
            found_here = {
                "everygrad": exposed([*inside, *ours], OUR_TRAINING, **tcp),
                "PyTorch DDP": exposed([*inside, *theirs], THEIR_TRAINING, GLOO_SOCKET_IFNAME="lo"),
            }
        for name, (alone, added) in found_here.items():
            lines.append(f"| {name} | {alone * 1e3:.0f} | {added * 1e3:.0f} |")
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
