"""`python -m benchmarks.webgpu`: what a GPU does through WebGPU, where the time of a GPT step goes,
and the MLP step beside tinygrad.

Prints Markdown. Needs nothing but everygrad: a peer that is not there is named, and left out. On a
software adapter the work is smaller, and nothing is asked but to be faster than tinygrad. Exit
status 1 when a peer failed or disagreed; with `--strict` also when a target was missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks import report as text
from benchmarks.compare import WEBGPU, judge
from benchmarks.harness.gather import gather, say
from benchmarks.harness.machine import describe
from benchmarks.harness.measure import Plan
from benchmarks.harness.process import Setup
from benchmarks.peers import WEBGPU_MODULES, everygrad_jit
from benchmarks.peers.everygrad_webgpu import DEVICE, VERSIONS, gpu, missing
from benchmarks.probes.rates import Rate, Sizes, rates, timed
from benchmarks.report import Report
from benchmarks.workloads import WORKLOADS, Workload, select
from everygrad.backends.webgpu.driver.timing import FEATURE, device_time, device_times

SOFTWARE_STEPS = 5  # of a round: one takes a tenth of a second there
PARTS = ("rates", "gpt", "mlp")
SHOWN = 15  # commands of the GPT step, the most expensive first
TIMED_CALLS = 5  # of which each command's shortest time is taken


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    about = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webgpu", description=about)
    parser.add_argument("--only", choices=PARTS, help="one part instead of all")
    parser.add_argument(
        "--commands", type=int, default=SHOWN, metavar="N",
        help=f"of the GPT step, the N most expensive (default: {SHOWN})",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=7, help="of each peer (default: 7)")
    parser.add_argument(
        "--patience", type=float, default=30.0, metavar="SECONDS",
        help="how long to wait, a workload, for a quiet machine (default: 30)",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="a missed target is a failure too")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


def adapter() -> str:
    """The device that is measured, in words."""
    info = gpu().adapter.info
    named = f"{info['device']} ({info['backend_type']}, {info['adapter_type']})"
    return f"Adapter: {named}, driver {info['description'] or 'unknown'}"


def table(found: list[Rate]) -> list[str]:
    rows = [["on one device", "ms", "rate", "asked", "met"]]
    for r in found:
        met = "-" if r.met is None else text.yes(r.met)
        rows.append([r.what, text.ms(r.seconds), r.rate, r.asked, met])
    return ["", *text.table(rows)] if found else []


class Cost(NamedTuple):
    """What equal commands cost the GPU in one step."""

    what: str
    count: int
    seconds: float  # all of them
    nbytes: int  # of the buffers of one

    @property
    def row(self) -> list[str]:
        each = self.seconds / self.count
        moved = f"{self.nbytes / each / 1e9:.0f}" if each else "-"
        return [
            self.what,
            str(self.count),
            *(f"{s * 1e6:.1f}" for s in (each, self.seconds)),
            moved,
        ]


def costs(replay: Any, call: Callable[[], object]) -> list[Cost]:
    """The commands of a compiled function, equal ones together, the most expensive first."""
    calls = [device_times(replay, call) for _ in range(TIMED_CALLS)]
    shortest = [min(seconds for _, seconds in same) for same in zip(*calls, strict=True)]
    sizes = [n for c, n in zip(replay.log, replay.step_bytes(), strict=True) if c.kernel]
    found: dict[tuple[str, int], list[float]] = {}
    for (what, _), seconds, nbytes in zip(calls[0], shortest, sizes, strict=True):
        found.setdefault((what, nbytes), []).append(seconds)
    made = [Cost(what, len(s), sum(s), nbytes) for (what, nbytes), s in found.items()]
    return sorted(made, key=lambda cost: -cost.seconds)


def anatomy(shown: int) -> list[str]:
    """The compiled GPT step: what a command costs to hand over, in all, and on the GPU."""
    workload = WORKLOADS["gpt"]
    step = everygrad_jit.steps(DEVICE)[workload.kind](workload.data())
    found = timed(step.run, Sizes.of(gpu().is_software).rounds)
    compiled: Any = step.compiled
    replay = compiled.latest.replay
    count = len(replay.log)
    each = [f"{s / count * 1e6:.1f}" for s in (found.host, found.whole)]
    said = f"GPT step: {count} commands, {each[0]} us each to hand over, {each[1]} us each in all"
    if FEATURE not in gpu().features:
        return ["", f"{said}; this device does not tell the time of each ({FEATURE})."]
    whole = min(device_time(replay, step.run) for _ in range(TIMED_CALLS)) / count * 1e6
    spent = costs(replay, step.run)
    apart = sum(cost.seconds for cost in spent) / count * 1e6
    rows = [["command", "times", "us each", "us in all", "GB/s of its buffers"]]
    rows += [cost.row for cost in spent[:shown]]
    said += f"; the GPU takes {whole:.1f} us each, {apart:.1f} if it runs them one by one."
    return ["", said, "", *text.table(rows)]


def contest(args: argparse.Namespace) -> Report:
    """The MLP step in each peer that is there."""
    steps = SOFTWARE_STEPS if gpu().is_software else None
    workloads = [_shortened(w, steps) for w in select(["mlp"])]
    plan = Plan(rounds=args.rounds, warmup_s=0.5, patience_s=args.patience)
    report = Report(list(WEBGPU_MODULES), plan.rounds)
    gather(report, workloads, Setup(), plan)
    return report


def _shortened(workload: Workload, steps: int | None) -> Workload:
    return workload if steps is None else replace(workload, steps=steps)


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if why := missing():
        say(why)
        return 2
    found = rates(say) if args.only in (None, "rates") else []
    parts = anatomy(args.commands) if args.only in (None, "gpt") else []
    report = contest(args) if args.only in (None, "mlp") else Report([], 0)
    report.machine = [adapter(), *describe(report.versions | VERSIONS, Setup().threads)]
    print("\n".join([*text.head(report), *table(found), *parts, text.body(report).rstrip()]))
    failed = bool(report.problems) or any(r.failures for r in report.results)
    slow = any(r.met is False for r in found)
    slow |= any(judge(WEBGPU, r).met is False for r in report.results)
    return int(failed or (args.strict and slow))


if __name__ == "__main__":
    sys.exit(main())
