"""`python -m benchmarks.models`: training steps of whole networks beside PyTorch.

Every peer has a process of its own, one after the other, from the same weights on the same batch;
the losses of the first steps are compared. Prints a table for each device, which `--write` puts
into MODELS.md, in the place of that device's part. Exit status 1 when a peer failed or disagreed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.gather import say
from benchmarks.harness.machine import describe
from benchmarks.harness.process import ROOT
from benchmarks.models import Model, all_models
from benchmarks.models.run import PEERS
from benchmarks.report import table

PAGE = ROOT / "benchmarks" / "MODELS.md"
DEVICES = ("cpu", "cuda", "webgpu")
LIMIT_S = 400.0


@dataclass(frozen=True)
class Figures:
    """What one peer's process said, or why it said nothing."""

    found: dict[str, Any]
    failure: str = ""

    @property
    def step_s(self) -> float:
        return statistics.median(self.found["times"])


def peers_of(model: Model, device: str) -> list[str]:
    """PyTorch has no WebGPU; channels last is for images on CUDA."""
    if device == "webgpu":
        return ["everygrad", "everygrad.jit"]
    image = device == "cuda" and model.name.startswith("resnet")
    peers = [name for name in PEERS if name != "torch.channels_last" or image]
    if model.differentiates_inputs:  # torch.compile has no second derivatives
        peers = [name for name in peers if name not in ("torch.compile", "torch.everygrad")]
    return peers


def run(
    model: Model, device: str, peer: str, threads: int, profiles: str | None, cold: bool,
    processor: bool = False,
) -> Figures:  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.models.run", model.name, device, peer]
    if processor:
        command += ["--processor"]
    if profiles and device == "cuda":
        command += ["--profile", os.path.join(profiles, f"{model.name}.{peer}.txt")]
    names = ("OMP", "MKL", "OPENBLAS")
    environment = os.environ | {f"{n}_NUM_THREADS": str(threads) for n in names}
    with tempfile.TemporaryDirectory(prefix="everygrad-models-") as cache:
        if cold:
            environment |= {"EVERYGRAD_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, text=True, timeout=LIMIT_S,
                                  capture_output=True, check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            return Figures({}, f"no result within {LIMIT_S:g} s")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return Figures({}, f"exit {done.returncode}: {done.stderr.strip()[-1500:]}")
    return Figures(json.loads(lines[-1]))


def disagreement(model: Model, figures: dict[str, Figures]) -> list[str]:
    """Peers whose losses are not PyTorch's, or the first one's where PyTorch is not there."""
    able = {name: f for name, f in figures.items() if not f.failure}
    referee = "torch" if "torch" in able else next(iter(able), "")
    lines = []
    for name, f in able.items():
        ours, theirs = f.found["losses"], able[referee].found["losses"]
        if not all(
            abs(a - b) <= model.tolerance * max(abs(b), 1e-3)
            for a, b in zip(ours, theirs, strict=True)
        ):
            lines.append(f"{model.name}: {name} {ours} differs from {referee} {theirs}")
    return lines


def rate(model: Model, seconds: float) -> str:
    return f"{model.units / seconds:,.0f} {model.unit}/s" if model.units else "-"


def rows_of(model: Model, figures: dict[str, Figures]) -> list[list[str]]:
    peers = [f.step_s for name, f in figures.items() if name.startswith("torch") and not f.failure]
    best = min(peers, default=None)
    rows = []
    for name, f in figures.items():
        if f.failure:
            rows.append([model.name, name, "failed", "", "", "", "", ""])
            continue
        over = f"{f.step_s / best:.2f}" if best else "-"
        rows.append([
            model.name, name, f"{f.step_s * 1e3:.2f}", over, rate(model, f.step_s),
            f"{f.found['first_s']:.2f}", f"{f.found['peak'] / 2**20:,.0f}",
            f"{model.flops / f.step_s / 1e12:.0f}" if model.flops else "",
        ])  # fmt: skip
    return rows


HEAD = ["model", "peer", "ms a step", "over the best of PyTorch", "rate", "first call s",
        "peak MiB", "TFLOP/s"]  # fmt: skip


def part(device: str, models: list[Model], all_rows: list[list[str]], notes: list[str]) -> str:
    asked = []
    for m in models:
        wanted = "; ".join(f"{k} {v}" for k, v in m.asked.items()) or "nothing"
        asked.append(f"- `{m.name}`: {m.about}; {m.precision}; asked: {wanted}")
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [f"## {device}", "", f"Written by `make bench-models` on {date}.", "", *notes, "",
             *table([HEAD, *all_rows]), "", *asked, ""]  # fmt: skip
    return "\n".join(lines)


def write(device: str, text: str) -> None:
    """Put a device's part in its place on the page."""
    head = "# Whole networks beside PyTorch\n\nMilliseconds are medians of rounds; `peak` is the most memory in use at once by CUDA's\nallocators, what the pool took on WebGPU, and what the process grew by at most on the CPU. Losses of the first steps agree, or the run fails.\n\n"  # noqa: E501  # text of a page
    parts: dict[str, str] = {}
    if PAGE.exists():
        for piece in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
            parts[piece.partition("\n")[0]] = "## " + piece.rstrip() + "\n"
    parts[device] = text
    body = "\n".join(parts[name] for name in DEVICES if name in parts)
    PAGE.write_text(head + body, encoding="utf-8")


def _names(value: str) -> list[str]:
    return [name for name in value.split(",") if name]


def main(argv: Sequence[str] | None = None) -> int:
    models = all_models()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    add = parser.add_argument
    add("--device", choices=DEVICES, default="cpu")
    add("--only", type=_names, metavar="NAMES", help=f"models: {', '.join(models)}")
    add("--peers", type=_names, metavar="NAMES", default=list(PEERS), help=", ".join(PEERS))
    add("--threads", type=int, default=2)
    add("--profiles", metavar="FOLDER", help="write the kernels of each step there (CUDA)")
    add("--cold", action="store_true", help="empty caches of compiled code for each peer")
    add("--processor", action="store_true", help="count seconds of the processor (CPU)")
    add("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    args = parser.parse_args(argv)
    for name in args.only or ():
        if name not in models:
            parser.error(f"no model {name!r}: there are {', '.join(models)}")
    chosen = [m for m in models.values() if args.device in m.devices]
    chosen = [m for m in chosen if args.only is None or m.name in args.only]
    rows: list[list[str]] = []
    problems: list[str] = []
    versions: dict[str, str] = {}
    for model in chosen:
        figures: dict[str, Figures] = {}
        for peer in peers_of(model, args.device):
            if peer in args.peers:
                figures[peer] = run(
                    model, args.device, peer, args.threads, args.profiles, args.cold, args.processor
                )
                said = figures[peer].failure
                say(f"{model.name} {peer}: "
                    + (said or f"{figures[peer].step_s * 1e3:.2f} ms"))  # fmt: skip
                problems += [f"{model.name} {peer}: {said}"] if said else []
        for figure in figures.values():
            versions |= figure.found.get("versions", {})
        problems += disagreement(model, figures)
        rows += rows_of(model, figures)
    machine = [f"- {line}" for line in describe(versions, args.threads)]
    if args.processor:
        machine.append("- Times are seconds of the processor, not of the clock")
    said = ["", "Failures:", "", *(f"    {line}" for p in problems for line in p.splitlines())]
    text = part(args.device, chosen, rows, machine) + ("\n".join(said) if problems else "")
    print(text)
    if args.write:
        write(args.device, text)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
