"""`python -m benchmarks`: measures, prints the table, and with `--write` keeps it.

Exit status 1 when a peer is missing, failed or disagreed; with `--strict` also when a target was
missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import report as text
from benchmarks.harness.gather import gather, say
from benchmarks.harness.machine import describe
from benchmarks.harness.measure import Plan
from benchmarks.harness.process import ROOT, PeerError, Setup
from benchmarks.peers import COMPILED, EAGER, MODULES, WEBGPU_MODULES
from benchmarks.probes.longchain import long_chains
from benchmarks.probes.overhead import overhead
from benchmarks.probes.startup import import_times
from benchmarks.report import Report
from benchmarks.workloads import WORKLOADS, Workload, select

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
NOTES = ROOT / "benchmarks" / "NOTES.md"
FULL = Plan()
QUICK = Plan(rounds=3, warmup_s=0.1, patience_s=2.0)
# What `--only` may name besides workloads.
EXTRAS = ("import", "overhead")
KNOWN = (*MODULES, *WEBGPU_MODULES)


def _names(value: str) -> list[str]:
    return [name for name in value.split(",") if name]


def _python(value: str) -> tuple[str, str]:
    peer, _, path = value.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{value!r}: write PEER=PATH")
    return peer, path


def _rounds(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r}: a whole number from 1")
    return int(value)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "--only",
        type=_names,
        default=[],
        metavar="NAMES",
        help=f"workloads, comma-separated: {', '.join(WORKLOADS)}; {', '.join(EXTRAS)}",
    )
    add(
        "--peers",
        type=_names,
        default=list(EAGER),
        metavar="NAMES",
        help=f"comma-separated: {', '.join(KNOWN)}; or all, which are those of the CPU "
        f"(default: {','.join(EAGER)})",
    )
    add(
        "--python",
        type=_python,
        action="append",
        default=[],
        metavar="PEER=PATH",
        help="the interpreter a peer runs in; may be repeated",
    )
    add("--rounds", type=_rounds, help=f"rounds a peer (default: {FULL.rounds})")
    add(
        "--patience",
        type=float,
        metavar="SECONDS",
        help="how long to wait, a workload, for other processes to leave the machine alone "
        f"(default: {FULL.patience_s:g})",
    )
    add("--threads", type=_rounds, default=2, help="threads a peer (default: %(default)s)")
    add("--quick", action="store_true", help=f"{QUICK.rounds} rounds, little warm-up or patience")
    add(
        "--first",
        action="store_true",
        help="first calls in new processes with empty disk caches, and again with full ones",
    )
    add("--slow", action="store_true", help="also the chain of 1,000,000 ops")
    add("--strict", action="store_true", help="a missed target is a failure too")
    add("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    args = parser.parse_args(argv)
    if args.peers == ["all"]:
        args.peers = list(MODULES)
    return args


def _labels(names: list[str]) -> list[str]:
    """The peers' column names; a peer that runs twice gets a number."""
    return [n if n not in names[:i] else f"{n}#{i + 1}" for i, n in enumerate(names)]


def _plan(args: argparse.Namespace) -> Plan:
    plan = replace(QUICK if args.quick else FULL, first=args.first)
    if args.rounds is not None:
        plan = replace(plan, rounds=args.rounds)
    if args.patience is not None:
        plan = replace(plan, patience_s=args.patience)
    return plan


def _extras(report: Report, setup: Setup, plan: Plan, args: argparse.Namespace) -> None:
    """The import time, empty calls and, if asked for, the long chain."""
    present = [name for name in dict.fromkeys(args.peers) if name in report.labels]
    try:
        if "everygrad" in present and (not args.only or "import" in args.only):
            report.imports = import_times(setup, plan)
        if not args.only or "overhead" in args.only:
            report.overheads = [overhead(name, setup) for name in present if name in COMPILED]
        if args.slow:
            for peer in (name for name in present if name in EAGER):
                say(f"long chain: {peer}")
                report.chains += long_chains(peer, setup)
    except PeerError as error:
        report.problems.append(str(error))


def _workloads(args: argparse.Namespace) -> list[Workload]:
    """Those asked for; ValueError when a name is of no workload or of no peer."""
    for name in args.peers:
        if name not in KNOWN:
            raise ValueError(f"no peer {name!r}: there are {', '.join(KNOWN)}, all")
    named = [name for name in args.only if name not in EXTRAS]
    return select(named) if named or not args.only else []


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    plan, setup = _plan(args), Setup(args.threads, tuple(args.python))
    report = Report(_labels(args.peers), plan.rounds, plan.first)
    try:
        workloads = _workloads(args)
    except ValueError as error:
        say(str(error))
        return 2
    gather(report, workloads, setup, plan)
    _extras(report, setup, plan, args)
    report.machine = describe(report.versions, args.threads)
    print(text.render(report), end="")
    if args.write:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        notes = NOTES.read_text(encoding="utf-8")  # what the figures cannot say, kept by hand
        RESULTS.write_text(text.markdown(report, date) + "\n" + notes, encoding="utf-8")
        say(f"wrote {RESULTS.relative_to(ROOT)}")
    return int(report.failed or (args.strict and report.missed))


if __name__ == "__main__":
    sys.exit(main())
