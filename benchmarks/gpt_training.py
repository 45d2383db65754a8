"""The whole training loop of examples/gpt.py beside PyTorch, eager and compiled.

    python -m benchmarks.gpt_training [--rounds 8] [--steps 10] [--only NAMES] [--write]

A step is everything the example does: a batch of windows from the memory-mapped token file by the
loader, forward, backward, clipping, AdamW, warm-up and cosine, and an average of the weights. Every
peer starts from the same weights and sees the same windows in the same order, and the losses of the
first steps must agree. Each runs in a process of its own; they take turns, a round of some steps
each, and the best round of each counts: what else runs on the machine slows single rounds down,
never speeds one up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import everygrad as eg
from benchmarks.harness.machine import cpu
from examples import gpt

TABLE = Path(__file__).parent / "TRAINING.md"
CHECKED = 5  # steps whose losses are compared
SETTINGS: list[str] = ["--steps", "1000"]  # for the schedule; sizes are the example's own
PEERS = {
    "everygrad.jit": "one `eg.jit` of the whole step",
    "torch": "eager, fused AdamW",
    "torch.compile, loss": "compiled forward and backward; clipping, fused AdamW and EMA eager",
    "torch.compile, step": "one compiled graph of the whole step, as a function of its parameters",
}


def order(windows: int) -> list[int]:
    """Where the windows begin: the same for all peers."""
    chosen = np.random.default_rng(0).permutation(windows)
    return [int(i) for i in chosen]


# --- the peers: each gives an endless iterator, which makes a step and gives the loss ------------

Steps = Iterator[Any]


def everygrad_steps(text: gpt.Text, options: argparse.Namespace) -> Steps:
    run = gpt.Run(text, options)
    data = eg.data.TokenDataset(text.learnt, options.tokens, stride=1)
    loader: Any = eg.data.DataLoader(data, options.batch, sampler=order(len(data)), drop_last=True)
    for x, y in gpt.without_end(loader):
        yield run.step(x, y)


def torch_steps(text: gpt.Text, options: argparse.Namespace, how: str) -> Steps:
    twin = import_module("benchmarks.gpt_torch")
    weights = {k: v.numpy() for k, v in gpt.Run(text, options).model.state_dict().items()}
    step: Callable[[Any, Any], Any] = twin.make_step(how, weights, options)
    data = eg.data.TokenDataset(text.learnt, options.tokens, stride=1)
    loader = twin.loader(data, options.batch, order(len(data)))
    for x, y in gpt.without_end(loader):
        yield step(x, y)


def serve(name: str, folder: Path) -> None:
    """Answer each line of stdin, a number of steps, with their losses and the seconds."""
    text, options = gpt.Text(folder), gpt.arguments(SETTINGS)
    if name == "everygrad.jit":
        steps = everygrad_steps(text, options)
    else:
        steps = torch_steps(text, options, name.removeprefix("torch").removeprefix(".compile, "))
    for line in sys.stdin:
        start, before = time.perf_counter(), time.process_time()
        found = list(islice(steps, int(line)))
        losses = [float(loss.item()) for loss in found]
        seconds, busy = time.perf_counter() - start, time.process_time() - before
        print(json.dumps({"losses": losses, "seconds": seconds, "busy": busy}), flush=True)


# --- the parent ----------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Peer:
    """A process that makes steps when asked."""

    def __init__(self, name: str, folder: Path, threads: int, passive: bool) -> None:
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        settings = dict.fromkeys(names, str(threads))
        if passive:
            settings["OMP_WAIT_POLICY"] = "PASSIVE"
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpt_training", "--serve", name, str(folder)],
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, steps: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: exit status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def measure(
    names: list[str], rounds: int, steps: int, threads: int, passive: bool
) -> dict[str, Any]:
    """For each peer its first losses, and the milliseconds a step of every round."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(i) for i in range(len(names))]
        peers = [Peer(n, f, threads, passive) for n, f in zip(names, folders, strict=True)]
        try:
            for peer in peers:
                begun = peer.ask(CHECKED)  # traces and compiles
                found[peer.name] = {"losses": begun["losses"], "first": begun["seconds"]}
                found[peer.name] |= {"wall": [], "busy": []}
                print(
                    f"{peer.name}: first steps {begun['seconds']:.1f} s",
                    file=sys.stderr,
                    flush=True,
                )
            agree({name: found[name]["losses"] for name in names})
            for count in range(rounds):
                for peer in peers:
                    answer = peer.ask(steps)
                    for key, value in (("wall", answer["seconds"]), ("busy", answer["busy"])):
                        found[peer.name][key].append(1e3 * value / steps)
                last = ", ".join(f"{name} {found[name]['wall'][-1]:.0f} ms" for name in names)
                say(f"round {count + 1}: {last}")
        finally:
            for peer in peers:
                peer.close()
    return found


def agree(losses: dict[str, list[float]]) -> None:
    """Whether all peers train the same model on the same data, to float32's rounding."""
    (first, expected), *rest = losses.items()
    for name, values in rest:
        if not np.allclose(values, expected, rtol=2e-4, atol=0):
            raise RuntimeError(f"{name} gives {values}, {first} {expected}")


def table(found: dict[str, Any]) -> str:
    lines = [
        "| peer | best, ms a step | median | processor time, best | against everygrad |",
        "|---|---:|---:|---:|---:|",
    ]
    ours = min(next(iter(found.values()))["wall"])
    for name, of in found.items():
        best, middle, busy = min(of["wall"]), statistics.median(of["wall"]), min(of["busy"])
        lines.append(f"| {name} | {best:.1f} | {middle:.1f} | {busy:.1f} | {best / ours:.2f} |")
    return "\n".join(lines)


def page(found: dict[str, Any], args: argparse.Namespace) -> str:
    torch: Any = import_module("torch")
    how = " --passive" if args.passive else ""
    about = "\n".join(f"- {name}: {PEERS[name]}" for name in found)
    return (
        "# The GPT example's training loop\n\n"
        "4 layers, width 128, 16 x 128 letters a step: loader, forward, backward, clipping, AdamW, "
        f"warm-up and cosine, EMA. By `python -m benchmarks.gpt_training{how} --write`: "
        f"{args.rounds} rounds of {args.steps} steps, the peers in turn, each in a process of its "
        f"own with {args.threads} threads, from the same weights on the same windows; the losses "
        f"of the first {CHECKED} steps agree to 2e-4.\n\n"
        f"{cpu()}, {os.cpu_count()} cores, shared with other work (load average at the end "
        f"{os.getloadavg()[0]:.1f}); Python {platform.python_version()}, torch "
        f"{torch.__version__}.\n\n{table(found)}\n\n{about}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10, help="steps a round (default: 10)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--passive",
        action="store_true",
        help="OpenMP's threads sleep at barriers: for a machine that others keep busy, where one "
        "that spins takes the core from the one it waits for",
    )
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--serve", nargs=2, metavar=("PEER", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve[0], Path(args.serve[1]))
        return
    found = measure(args.only, args.rounds, args.steps, args.threads, args.passive)
    print(table(found))
    if args.write:
        TABLE.write_text(page(found, args), encoding="utf-8")


if __name__ == "__main__":
    main()
