"""Starts the peers a report asks for, and fills in what they measure."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from benchmarks import report as text
from benchmarks.harness.measure import Plan, measure
from benchmarks.harness.process import Peer, PeerError, Setup
from benchmarks.peers import FLOOR
from benchmarks.report import Report
from benchmarks.workloads import Workload


def say(line: str) -> None:
    """A line for who watches; the report goes to stdout."""
    print(line, file=sys.stderr, flush=True)


def _greet(report: Report, name: str, label: str, setup: Setup, stack: ExitStack) -> Peer | None:
    """The peer, running; None when it cannot run here, and the report says why."""
    try:
        peer = Peer(name, label, setup)
        stack.callback(peer.close)
        answer = peer.ask(hello=True)
    except PeerError as error:
        report.missing[label] = str(error)
        return None
    if answer["missing"]:
        report.missing[label] = answer["missing"]
        return None
    report.versions |= answer["versions"]
    return peer


def gather(report: Report, workloads: list[Workload], setup: Setup, plan: Plan) -> None:
    """Fills in what the peers measure, which versions they are, and which are missing."""
    with ExitStack() as stack:
        named = [(label.partition("#")[0], label) for label in report.labels]
        greeted = [_greet(report, name, label, setup, stack) for name, label in named]
        peers = [peer for peer in greeted if peer is not None]
        report.labels = [peer.label for peer in peers]
        for label, why in report.missing.items():
            say(f"{label} is missing: {why.strip().splitlines()[-1]}")
        if any(w.floor_target is not None for w in workloads):
            copy = _greet(report, FLOOR, FLOOR, setup, stack)
            peers += [copy] if copy is not None else []
        for workload in workloads if report.labels else []:
            result = measure(workload, peers, plan)
            report.results.append(result)
            say(text.progress(result, report.labels))
