"""Checks that the peers agree on a workload, then times their rounds in turn."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.agree import disagreements, load
from benchmarks.load import QUIET
from benchmarks.process import Peer, PeerError
from benchmarks.workloads import Workload

# A thread pool spins a while before it sleeps; the next peer starts when it has.
PAUSE_S = 0.05
# After a disturbed round: the neighbour may be gone by then.
RETRY_S = 0.5


@dataclass(frozen=True)
class Plan:
    """How long to measure. `patience_s`: how long to wait, a workload, for a quiet machine."""

    rounds: int = 15
    warmup_s: float = 0.5
    patience_s: float = 60.0
    pause_s: float = PAUSE_S


@dataclass
class Result:
    """One workload's times by peer label, ours first, or why there are none."""

    workload: Workload
    times: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    disturbed: int = 0
    problem: str = ""

    def median(self, label: str) -> float:
        return statistics.median(self.times[label])

    @property
    def best(self) -> str:
        """The label of the fastest peer other than ours; "" when we ran alone."""
        return min(list(self.times)[1:], key=self.median, default="")

    @property
    def ratio(self) -> float | None:
        """Our median over the fastest peer's."""
        return self.median(next(iter(self.times))) / self.median(self.best) if self.best else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Quartiles of the ratio taken round by round: how far to trust it."""
        if not self.best or len(self.times[self.best]) < 2:
            return None
        ours, theirs = self.times[next(iter(self.times))], self.times[self.best]
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, high

    @property
    def trusted(self) -> bool:
        """Whether most rounds were quiet, so that the median is of a quiet one."""
        return bool(self.times) and 2 * self.disturbed < len(next(iter(self.times.values())))

    @property
    def met(self) -> bool | None:
        """None when nothing can be said: no peer to compare with, or no quiet machine."""
        if self.ratio is None or not self.trusted:
            return None
        return self.ratio <= self.workload.target


def check(workload: Workload, peers: list[Peer], result: Result) -> str:
    """Runs a few steps in every peer; what they disagree on, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        saved = {}
        for i, peer in enumerate(peers):
            path = Path(folder) / f"{i}.npz"
            answer = peer.ask(check=workload.name, to=str(path))
            result.first[peer.label] = answer["first_s"]
            saved[peer.label] = load(path)
    ours = peers[0].label
    lines = []
    for peer in peers[1:]:
        found = disagreements(saved[ours], saved[peer.label], workload.tolerance)
        lines += [f"{ours} and {peer.label} disagree: {line}" for line in found]
    return "\n".join(lines)


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


def peer_round(workload: Workload, peers: list[Peer], pause_s: float, number: int) -> Round:
    """Every peer's turn; who goes first alternates, so that drift favours nobody."""
    times: dict[str, float] = {}
    others = 0.0
    for peer in peers if number % 2 == 0 else reversed(peers):
        time.sleep(pause_s)
        answer = peer.ask(run=workload.name, rounds=1)
        times[peer.label] = answer["times"][0]
        others = max(others, answer["others"][0])
    return Round(times, others)


def measure(workload: Workload, peers: list[Peer], plan: Plan) -> Result:
    """Checks, warms up, and takes the rounds of one workload."""
    result = Result(workload)
    try:
        for peer in peers:
            peer.revive()
        result.problem = check(workload, peers, result)
        if result.problem:
            return result
        for peer in peers:
            peer.ask(run=workload.name, rounds=0, warmup_s=plan.warmup_s)
        rounds = take_rounds(partial(peer_round, workload, peers, plan.pause_s), plan)
        result.times = {peer.label: [r.times[peer.label] for r in rounds] for peer in peers}
        result.disturbed = sum(not r.quiet for r in rounds)
    except PeerError as error:
        result.problem = str(error)
    return result
