"""`python -m benchmarks.webgpu`: what a GPU does through WebGPU, and the MLP step beside tinygrad.

Prints Markdown. Needs nothing but everygrad: a peer that is not there is named, and left out. On a
software adapter the work is smaller, and nothing is asked but to be faster than tinygrad. Exit
status 1 when a peer failed or disagreed; with `--strict` also when a target was missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import report as text
from benchmarks.compare import WEBGPU, judge
from benchmarks.gather import gather, say
from benchmarks.machine import describe
from benchmarks.measure import Plan
from benchmarks.peers import WEBGPU_MODULES
from benchmarks.peers.everygrad_webgpu import VERSIONS, gpu, missing
from benchmarks.process import Setup
from benchmarks.rates import Rate, rates
from benchmarks.report import Report
from benchmarks.workloads import Workload, select

SOFTWARE_STEPS = 5  # of a round: one takes a tenth of a second there
PARTS = ("rates", "mlp")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    about = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webgpu", description=about)
    parser.add_argument("--only", choices=PARTS, help="one part instead of both")
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
    report = contest(args) if args.only in (None, "mlp") else Report([], 0)
    report.machine = [adapter(), *describe(report.versions | VERSIONS, Setup().threads)]
    print("\n".join([*text.head(report), *table(found), text.body(report).rstrip()]))
    failed = bool(report.problems) or any(r.failures for r in report.results)
    slow = any(r.met is False for r in found)
    slow |= any(judge(WEBGPU, r).met is False for r in report.results)
    return int(failed or (args.strict and slow))


if __name__ == "__main__":
    sys.exit(main())
