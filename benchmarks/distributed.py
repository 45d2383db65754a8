"""Collectives and the launcher beside PyTorch's gloo and torchrun, on one machine.

    python -m benchmarks.distributed [--rounds 5] [--link 1gbit [--batch 64 --batch 512]] [--write]

Two processes sum 16 MB of float32 (4 million numbers): everygrad under its launcher, by the MPI
wheel of PyPI, and PyTorch under torchrun, by gloo. Both take turns and the best of all rounds
counts. The start is the time from the command to the first line of the user's script.

With `--link`, as root, both also train a network with 42 MB of gradients on two simulated hosts
(`devtools.simulated_hosts`: network namespaces, a core each, joined by a link of that rate in each
direction), in turns, `--link-rounds` times, with each size of batch: a larger one has more work
to hide communication behind. What communication adds to a step, beyond the same step
without it, is exposed: it was not hidden behind backward. Steps with and without take turns.
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
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

from devtools.simulated_hosts import INTERFACE, Hosts, two_hosts

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


LAYERS, WIDTH = 10, 1024  # 42 MB of float32
BATCHES = [64, 256, 1024]  # rows a rank; BATCH in the scripts
STEPS = 8

# Steps without and with communication take turns, so that both see the same load of the machine.
TIMED = f"""
def sent():
    return int(open("/sys/class/net/{INTERFACE}/statistics/tx_bytes").read())

for i in range({STEPS + 1}):
    for together in (False, True):
        meet()
        before, begun = sent(), time.perf_counter()
        run(together)
        seconds = time.perf_counter() - begun
        if i:
            name = b"with" if together else b"without"
            os.write(1, b"%s %f %d\\n" % (name, seconds, sent() - before))
"""

OUR_NETWORK = f"""
import os, time
import numpy as np
import everygrad as eg
dist = eg.distributed
mesh = dist.Mesh({{"data": dist.world_size()}})
rng = np.random.default_rng(0)
x = eg.tensor(rng.normal(size=(BATCH, {WIDTH})).astype("float32"))

def meet():
    dist.barrier(mesh)
"""

OUR_COMPILED = f"""{OUR_NETWORK}
shape = ({WIDTH}, {WIDTH})
ws = [eg.tensor(rng.normal(size=shape).astype("float32") / 32, requires_grad=True)
      for _ in range({LAYERS})]
sgd = eg.optim.SGD(ws, lr=1e-3)

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

compiled = eg.jit(step)

def run(together):
    compiled(x, together).item()
{TIMED}"""

OUR_EAGER = f"""{OUR_NETWORK}
from contextlib import nullcontext
layers = []
for _ in range({LAYERS}):
    layers += [eg.nn.Linear({WIDTH}, {WIDTH}, bias=False), eg.nn.Tanh()]
model = dist.DataParallel(eg.nn.Sequential(*layers), mesh)
sgd = eg.optim.SGD(model.parameters(), lr=1e-3)

def run(together):
    with nullcontext() if together else model.no_sync():
        sgd.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        sgd.step()
{TIMED}"""

THEIR_TRAINING = f"""
import os, time
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
x = torch.randn(BATCH, {WIDTH})
meet = dist.barrier

def run(together):
    with nullcontext() if together else model.no_sync():
        sgd.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        sgd.step()
{TIMED}
dist.destroy_process_group()
"""
TRAININGS = {
    "everygrad, compiled": OUR_COMPILED,
    "everygrad, eager": OUR_EAGER,
    "PyTorch DDP": THEIR_TRAINING,
}


def output_of(
    command: list[str], script: str, env: dict[str, str] | None = None, **more: str
) -> str:
    with tempfile.TemporaryDirectory(prefix="everygrad-bench-") as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        around = {**os.environ, "BEGUN": str(time.time()), "PYTHONPATH": str(ROOT)}
        around |= {**(env or {}), **more}
        done = subprocess.run(
            [*command, str(path)], env=around, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Exposed(NamedTuple):
    """Of one training, medians over its steps: seconds without and with communication, what the
    latter adds to the step before it, and bytes that a rank sends in a step."""

    alone: float
    whole: float
    added: float
    sent: float


def exposed(hosts: Hosts, name: str, batch: int) -> Exposed:
    """Train on both hosts."""
    script = TRAININGS[name].replace("BATCH", str(batch))
    env = {"OMPI_MCA_btl": "self,tcp", "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
    if "torch" in script:
        env |= {"WORLD_SIZE": "2", "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": "29400"}
        with ThreadPoolExecutor(2) as both:
            ranks = [
                both.submit(output_of, [*hosts.inside(i), sys.executable], script, env, RANK=str(i))
                for i in range(2)
            ]
            said = "".join(rank.result() for rank in ranks)
    else:
        command = [*hosts.inside(0), sys.executable, "-m", "everygrad.launch", "-n", "2"]
        said = output_of([*command, "--hosts", hosts.file], script, env, **hosts.environment)
    found = {
        kind: [(float(a), int(b)) for a, b in re.findall(rf"\b{kind} ([\d.e-]+) (\d+)", said)]
        for kind in ("with", "without")
    }
    if not len(found["with"]) == len(found["without"]) == 2 * STEPS:
        raise RuntimeError(f"{name}: {STEPS} steps of two ranks should be here:\n{said}")
    pairs = zip(found["with"], found["without"], strict=True)
    return Exposed(
        statistics.median(seconds for seconds, _ in found["without"]),
        statistics.median(seconds for seconds, _ in found["with"]),
        statistics.median(a - b for (a, _), (b, _) in pairs),
        statistics.median(count for _, count in found["with"]),
    )


def link_table(rate: str, rounds: int, batches: list[int]) -> list[str]:
    """The lines of the table of trainings over a link."""
    lines = [
        f"42 MB of gradients between two simulated hosts, whose link carries {rate} in each "
        f"direction; medians of the steps of a run, of {rounds} runs in turns:",
        "",
        "| | batch | run | a step alone, ms | with communication | exposed | MB sent a rank |",
        "|---|---|---|---|---|---|---|",
    ]
    most = 0.0
    with two_hosts(rate) as hosts:
        for batch, i, name in product(batches, range(rounds), TRAININGS):
            found = exposed(hosts, name, batch)
            most = max(most, found.sent)
            times = " | ".join(f"{1e3 * seconds:.0f}" for seconds in found[:3])
            lines.append(f"| {name} | {batch} | {i + 1} | {times} | {found.sent / 1e6:.1f} |")
            print(lines[-1], flush=True)
    bits = float(rate.removesuffix("gbit")) * 1e9 if rate.endswith("gbit") else None
    if bits is not None:
        floor = 8e3 * most / bits
        lines += [
            "",
            f"The link takes {floor:.0f} ms for what a rank sends, and the other direction as long "
            "at the same time. Exposed is what is left of that, and of the time before the first "
            "bucket is there, behind the rest of backward: a slower step hides more.",
        ]
    return lines


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
    parser.add_argument("--link-rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, action="append", help="rows a rank; several times")
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
        lines += ["", *link_table(given.link, given.link_rounds, given.batch or BATCHES)]
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
