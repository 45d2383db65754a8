"""`python -m benchmarks.cuda`: everygrad on an NVIDIA GPU beside PyTorch, torch.compile and JAX.

Every peer has a process of its own, one after the other, on the same data. Prints Markdown; with
`--write` it becomes CUDA.md. `--curve` adds the losses of 200 steps of training beside PyTorch's.
Exit status 1 when a peer is missing, failed or disagreed; with `--strict` also when a target was
missed.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.gather import say
from benchmarks.harness.machine import describe
from benchmarks.harness.process import ROOT, Peer, PeerError, Setup
from benchmarks.peers import CUDA_MODULES
from benchmarks.peers.everygrad_cuda import device, missing
from benchmarks.report import ms, table, yes
from benchmarks.workloads import CUDA_WORKLOADS, CURVE, Workload

RESULTS = ROOT / "benchmarks" / "CUDA.md"
EAGER, JIT, TORCH, COMPILED, _JAX = CUDA_MODULES
GPT2 = "cuda.gpt2"
ROUNDS = 11
THREADS = 8
# Milliseconds a step that are asked of `eg.jit`: for GPT-2 what torch.compile takes, 507k tokens/s.
ASKED_MS = {GPT2: 32.3, "cuda.gelu.8192": 0.25, "cuda.mlp.4096": 0.6, "cuda.chain64": 0.06}
FIRST_S = 5.0  # GPT-2's first step
# A curve is within the noise of bfloat16 if it is no further from PyTorch's than twice what
# PyTorch's own bfloat16 is from its float32.
NOISE = 2.0


@dataclass(frozen=True)
class Trial:
    """One peer's figures of one workload."""

    steps_s: list[float]  # the first ones, one by one
    losses: list[float]  # of those
    peak: int  # bytes in use at once, at most
    held: int  # bytes of the pool they are from
    times: list[float]  # seconds a step, by round

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.times) < 2:
            return self.times[0], self.times[0]
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return low, high


@dataclass
class Found:
    """What one run found out; `trials` by workload and peer, `curves` by peer and precision."""

    peers: list[str]
    trials: dict[str, dict[str, Trial]] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


# --- measuring -----------------------------------------------------------------------------------


def _ask(found: Found, peer: Peer, **request: Any) -> dict[str, Any] | None:
    try:
        peer.revive()
        return peer.ask(**request)
    except PeerError as error:
        found.failures.append(f"{peer.label}: {error}")
        say(found.failures[-1][-2000:])
        return None


def _visit(found: Found, name: str, names: list[str], curves: list[str], rounds: int) -> None:
    """One peer's process from its start to its end."""
    peer = Peer(name, name, Setup(THREADS))
    try:
        hello = _ask(found, peer, hello=True)
        if hello is None or hello["missing"]:
            if hello is not None:
                found.failures.append(f"{name} is missing: {hello['missing']}")
            return
        found.versions |= hello["versions"]
        for workload in names:
            answer = _ask(found, peer, trial=workload, rounds=rounds)
            if answer is not None:
                trial = Trial(**answer)
                found.trials.setdefault(workload, {})[name] = trial
                say(f"{name} {workload}: {ms(trial.median)} ms, first {trial.steps_s[0]:.2f} s")
        for curve in curves:
            answer = _ask(found, peer, curve=curve)
            if answer is not None:
                found.curves[f"{name} {curve.rpartition('.')[2]}"] = answer["losses"]
    finally:
        peer.close()


def curves_of(peer: str, wanted: bool) -> list[str]:
    """The training runs a peer takes part in."""
    runs = {JIT: ["cuda.curve.bf16"], TORCH: ["cuda.curve.bf16", "cuda.curve.f32"]}
    return runs.get(peer, []) if wanted else []


def gather(peers: list[str], names: list[str], rounds: int, curve: bool) -> Found:
    found = Found(peers)
    for peer in peers:
        _visit(found, peer, names, curves_of(peer, curve), rounds)
    for name, trials in found.trials.items():
        found.failures += disagreements(CUDA_WORKLOADS[name], trials)
    return found


def disagreements(workload: Workload, trials: dict[str, Trial]) -> list[str]:
    """Peers whose losses of the first steps are not those of PyTorch, or of the first there is."""
    referee = TORCH if TORCH in trials else next(iter(trials))
    wanted = trials[referee].losses
    return [
        f"{label} differs from {referee} on {workload.name}: losses {trial.losses}, not {wanted}"
        for label, trial in trials.items()
        if not all(
            abs(a - b) <= workload.tolerance * abs(b)
            for a, b in zip(trial.losses, wanted, strict=True)
        )
    ]


# --- what it comes to ----------------------------------------------------------------------------


def tokens(workload: Workload) -> int:
    return int(workload.settings["batch"] * workload.settings["tokens"])


def times(found: Found) -> list[str]:
    """Every workload with every peer, and whether what is asked was reached."""
    rows = [["workload", *found.peers, "asked of jit", "met", "eager no slower"]]
    for name, trials in found.trials.items():
        cells = []
        for peer in found.peers:
            trial = trials.get(peer)
            if trial is None:
                cells.append("-")
            else:
                low, high = (ms(s) for s in trial.quartiles)
                cells.append(f"{ms(trial.median)} ({low}-{high})")
        asked = [f"<= {ASKED_MS[name]:g}", yes(jit_met(name, trials)), yes(eager_met(trials))]
        rows.append([name.removeprefix("cuda."), *cells, *asked])
    about = [f"- `{w.name}`: {w.about}" for n, w in CUDA_WORKLOADS.items() if n in found.trials]
    head = "Milliseconds a step: the median of the rounds, and their quartiles. A round's steps are"
    return ["", head, "handed over one after the other and waited for at its end.", "",
            *table(rows), "", *about]  # fmt: skip


def jit_met(name: str, trials: dict[str, Trial]) -> bool | None:
    return trials[JIT].median * 1e3 <= ASKED_MS[name] if JIT in trials else None


def eager_met(trials: dict[str, Trial]) -> bool | None:
    if EAGER not in trials or TORCH not in trials:
        return None
    return trials[EAGER].median <= trials[TORCH].median


def training(found: Found) -> list[str]:
    """Tokens a second, memory and first steps of GPT-2."""
    trials = found.trials.get(GPT2)
    if not trials:
        return []
    count = tokens(CUDA_WORKLOADS[GPT2])
    rows = [["GPT-2 124M", "tokens/s", "peak GiB", "held GiB", "first step s", "second s"]]
    for peer, trial in trials.items():
        first, second = trial.steps_s[:2]
        memory = (f"{n / 2**30:.2f}" if n else "-" for n in (trial.peak, trial.held))
        rows.append([peer, f"{count / trial.median:,.0f}", *memory, f"{first:.2f}",
                     f"{second:.2f}"])  # fmt: skip
    lines = ["", *table(rows), ""]
    lines.append("`peak`: the most memory in use at once; `held`: what the pool it is from took.")
    if JIT in trials:
        first = trials[JIT].steps_s[0]
        lines.append(f"First step of `eg.jit` at most {FIRST_S:g} s: {yes(first <= FIRST_S)}.")
        if COMPILED in trials:
            less = trials[JIT].peak <= trials[COMPILED].peak
            lines.append(f"Peak memory at most torch.compile's: {yes(less)}.")
    return lines


def apart(a: list[float], b: list[float]) -> float:
    """The largest difference between two curves."""
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def curve_met(curves: dict[str, list[float]]) -> bool | None:
    """Whether ours stays as near to PyTorch's as the noise of bfloat16; None: not all were run."""
    needed = (f"{JIT} bf16", f"{TORCH} bf16", f"{TORCH} f32")
    if any(name not in curves for name in needed):
        return None
    ours, theirs, reference = (curves[name] for name in needed)
    return apart(ours, theirs) <= NOISE * apart(theirs, reference)


def curve(found: Found) -> list[str]:
    """The losses of training from the same weights on the same tokens."""
    if not found.curves:
        return []
    shown = (0, 9, 49, 99, 149, 199)
    rows = [[f"loss at step of {CURVE.about}", *(str(i + 1) for i in shown)]]
    for name, losses in found.curves.items():
        rows.append([name, *(f"{losses[i]:.4f}" for i in shown)])
    lines = ["", *table(rows), ""]
    met = curve_met(found.curves)
    if met is not None:
        theirs = found.curves[f"{TORCH} bf16"]
        ours = apart(found.curves[f"{JIT} bf16"], theirs)
        noise = apart(theirs, found.curves[f"{TORCH} f32"])
        lines.append(
            f"Largest difference over {CURVE.steps} steps: `eg.jit` from PyTorch, both in bf16, "
            f"{ours:.4f}; PyTorch's bf16 from its float32 {noise:.4f}. "
            f"At most {NOISE:g} times that: {yes(met)}."
        )
    return lines


def render(found: Found, date: str, machine: list[str]) -> str:
    lines = ["# On CUDA", "", f"Written by `make bench-cuda` on {date}.", ""]
    lines += [f"- {line}" for line in machine]
    if found.trials:
        lines += times(found)
    lines += training(found) + curve(found)
    if found.failures:
        said = [line for failure in found.failures for line in failure.strip().splitlines()]
        lines += ["", "Failures:", "", *(f"    {line}" for line in said)]
    return "\n".join(lines) + "\n"


def missed(found: Found) -> bool:
    """Whether something asked was not reached."""
    verdicts = [curve_met(found.curves)]
    for name, trials in found.trials.items():
        verdicts += [jit_met(name, trials), eager_met(trials)]
    return False in verdicts


# --- the command ---------------------------------------------------------------------------------


def _names(value: str) -> list[str]:
    return [name for name in value.split(",") if name]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    about = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=about)
    short = [name.removeprefix("cuda.") for name in CUDA_WORKLOADS]
    add = parser.add_argument
    add("--only", type=_names, metavar="NAMES", default=short,
        help=f"workloads, comma-separated: {', '.join(short)}; or none")  # fmt: skip
    add("--peers", type=_names, metavar="NAMES", default=list(CUDA_MODULES),
        help=f"comma-separated: {', '.join(CUDA_MODULES)}")  # fmt: skip
    add("--rounds", type=int, default=ROUNDS, help=f"of each peer (default: {ROUNDS})")
    add("--curve", action="store_true", help="also 200 steps of training beside PyTorch's")
    add("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    add("--strict", action="store_true", help="a missed target is a failure too")
    args = parser.parse_args(argv)
    for name in args.peers:
        if name not in CUDA_MODULES:
            parser.error(f"no peer {name!r}: there are {', '.join(CUDA_MODULES)}")
    for name in [] if args.only == ["none"] else args.only:
        if name not in short:
            parser.error(f"no workload {name!r}: there are {', '.join(short)}")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if why := missing():
        say(why)
        return 2
    names = [] if args.only == ["none"] else [f"cuda.{name}" for name in args.only]
    found = gather(args.peers, names, args.rounds, args.curve)
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = render(found, date, [*device(), *describe(found.versions, THREADS)])
    print(page, end="")
    if args.write:
        RESULTS.write_text(page, encoding="utf-8")
        say(f"wrote {RESULTS.relative_to(ROOT)}")
    return int(bool(found.failures) or (args.strict and missed(found)))


if __name__ == "__main__":
    sys.exit(main())
