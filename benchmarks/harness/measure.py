"""Checks that the peers agree on a workload, then times their rounds in turn."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.harness.agree import disagreements, load
from benchmarks.harness.load import QUIET
from benchmarks.harness.process import Peer, PeerError
from benchmarks.peers import CACHES, FLOOR
from benchmarks.workloads import Array, Workload

# A thread pool spins a while before it sleeps; the next peer starts when it has.
PAUSE_S = 0.05
# After a disturbed round: the neighbour may be gone by then.
RETRY_S = 0.5
# First calls are taken this often, in a new process each; one that takes longer than LONG_S once.
FIRSTS, LONG_S = 3, 2.0
# Whose results the others' are held against, where it takes part.
REFEREE = "torch"


@dataclass(frozen=True)
class Plan:
    """How long to measure. `patience_s`: how long to wait, a workload, for a quiet machine.

    `first`: take first calls in new processes with empty disk caches, and again with full ones.
    """

    rounds: int = 15
    warmup_s: float = 0.5
    patience_s: float = 60.0
    pause_s: float = PAUSE_S
    first: bool = False


@dataclass
class Start:
    """Seconds of each step from the very first, one list a new process."""

    cold: list[list[float]] = field(default_factory=list)
    warm: list[list[float]] = field(default_factory=list)

    @property
    def cold_s(self) -> float:
        return statistics.median(steps[0] for steps in self.cold)

    @property
    def warm_s(self) -> float | None:
        """With compiled code on disk; None for a peer that keeps none."""
        return statistics.median(steps[0] for steps in self.warm) if self.warm else None

    @property
    def second_s(self) -> float:
        """The second step, cold: a compiler may leave work to it."""
        return statistics.median(steps[1] for steps in self.cold)


@dataclass
class Result:
    """One workload's times by peer label, and why a peer has none."""

    workload: Workload
    times: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, Start] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    disturbed: int = 0

    def median(self, label: str) -> float:
        return statistics.median(self.times[label])

    @property
    def trusted(self) -> bool:
        """Whether most rounds were quiet, so that the median is of a quiet one."""
        return bool(self.times) and 2 * self.disturbed < len(next(iter(self.times.values())))


def _check(workload: Workload, peer: Peer, path: Path) -> list[float]:
    steps: list[float] = peer.ask(check=workload.name, to=str(path))["steps_s"]
    return steps


def _starts(workload: Workload, peer: Peer, path: Path) -> Start:
    """First calls in new processes: with an empty cache, then with what that one left there."""
    start = Start()
    while len(start.cold) < (1 if start.cold and start.cold_s > LONG_S else FIRSTS):
        cache = path.parent / f"{path.stem}.{len(start.cold)}"
        cache.mkdir(mode=0o700)
        peer.restart(cache)
        start.cold.append(_check(workload, peer, path))
        if peer.name in CACHES:
            peer.restart(cache)
            start.warm.append(_check(workload, peer, path))
    return start


def _one_start(workload: Workload, peer: Peer, path: Path) -> Start:
    """The first call in this process, caches as they are found."""
    return Start(cold=[_check(workload, peer, path)])


def check(workload: Workload, peers: list[Peer], result: Result, plan: Plan) -> None:
    """Runs a few steps in every peer; notes the first calls, who failed and who disagrees."""
    take = _starts if plan.first else _one_start
    saved: dict[str, dict[str, Array]] = {}
    with tempfile.TemporaryDirectory(prefix="everygrad-bench-") as folder:
        for i, peer in enumerate(peers):
            path = Path(folder) / f"{i}.npz"
            try:
                peer.revive()
                result.first[peer.label] = take(workload, peer, path)
                saved[peer.label] = load(path)
            except PeerError as error:
                result.failures[peer.label] = str(error)
        referee = REFEREE if REFEREE in saved else next(iter(saved), "")
        for label in saved:
            lines = disagreements(saved[label], saved[referee], workload.tolerance)
            if lines:
                result.failures[label] = "\n".join(f"differs from {referee}: {x}" for x in lines)


@dataclass(frozen=True)
class Round:
    """One turn of every peer: seconds a step by label, and the worst load by other processes."""

    times: dict[str, float]
    others: float

    @property
    def quiet(self) -> bool:
        return self.others <= QUIET


def take_rounds(take: Callable[[int], Round], plan: Plan) -> list[Round]:
    """`plan.rounds` quiet rounds, or the quietest found when patience ran out."""
    taken: list[Round] = []
    deadline = time.monotonic() + plan.patience_s
    while sum(r.quiet for r in taken) < plan.rounds:
        if len(taken) >= plan.rounds and time.monotonic() > deadline:
            break
        taken.append(take(len(taken)))
        if not taken[-1].quiet and time.monotonic() < deadline:
            time.sleep(RETRY_S)
    return sorted(taken, key=lambda r: r.others)[: plan.rounds]


def peer_round(
    workload: Workload, peers: list[Peer], result: Result, pause_s: float, number: int
) -> Round:
    """Every peer's turn; who goes first alternates, so that drift favours nobody."""
    times: dict[str, float] = {}
    others = 0.0
    able = [peer for peer in peers if peer.label not in result.failures]
    for peer in able if number % 2 == 0 else reversed(able):
        time.sleep(pause_s)
        try:
            answer = peer.ask(run=workload.name, steps=workload.steps, rounds=1)
        except PeerError as error:
            result.failures[peer.label] = str(error)
            continue
        times[peer.label] = answer["times"][0]
        others = max(others, answer["others"][0])
    return Round(times, others)


def _warm_up(workload: Workload, peers: list[Peer], result: Result, plan: Plan) -> None:
    for peer in peers:
        if peer.label in result.failures:
            continue
        try:
            peer.revive()
            peer.ask(run=workload.name, steps=workload.steps, rounds=0, warmup_s=plan.warmup_s)
        except PeerError as error:
            result.failures[peer.label] = str(error)


def measure(workload: Workload, peers: list[Peer], plan: Plan) -> Result:
    """Checks, warms up, and takes the rounds of one workload; one peer's failure is its own."""
    result = Result(workload)
    copies = [p for p in peers if p.name == FLOOR and workload.floor_target is not None]
    libraries = [p for p in peers if p.name != FLOOR]
    check(workload, libraries, result, plan)
    timed = libraries + copies
    _warm_up(workload, timed, result, plan)
    rounds = take_rounds(partial(peer_round, workload, timed, result, plan.pause_s), plan)
    able = [peer.label for peer in timed if peer.label not in result.failures]
    result.times = {label: [r.times[label] for r in rounds] for label in able}
    result.disturbed = sum(not r.quiet for r in rounds)
    return result
