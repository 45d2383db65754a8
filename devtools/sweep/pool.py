"""Runs cases in processes of their own until the time is over; notes what fails, crashes, hangs."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devtools.sweep.processors import here

ROOT = Path(__file__).parents[2]
RUN = 150  # cases of one process: compiled code is kept as long as the process
PATIENCE = 300.0  # seconds for one case, after which it is said to hang


@dataclass
class Failure:
    """A case that differs, crashes or hangs."""

    kept: dict[str, Any]
    title: str
    differences: list[str]


@dataclass
class Figures:
    """What a sweep did."""

    device: str
    cases: Counter[str] = field(default_factory=Counter)  # by section
    ops: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    first: int = 0
    last: int = 0


class Deadline:
    """When to stop: after so many minutes, or at once where somebody interrupts."""

    def __init__(self, minutes: float | None) -> None:
        self.end = None if minutes is None else time.monotonic() + 60 * minutes

    def is_over(self) -> bool:
        return self.end is not None and time.monotonic() >= self.end

    def stop(self) -> None:
        self.end = time.monotonic()


@dataclass(frozen=True)
class Plan:
    """What to run."""

    device: str
    sections: Sequence[str]
    start: int
    largest: int
    minutes: float | None = None
    cases: int | None = None
    jobs: int = 1
    branches: str = ""  # the folder where branches are noted
    cache: str = ""  # the folder for compiled code; without one, none is kept on disk
    patience: float = PATIENCE


def sweep(plan: Plan, tell: Callable[[Failure], None]) -> Figures:
    """Check cases until there were enough, or the time is over."""
    figures = Figures(plan.device, first=plan.start)
    begun = time.monotonic()
    end = Deadline(plan.minutes)
    starts = iter(range(plan.start, plan.start + (plan.cases or 1 << 60), RUN))
    lock = threading.Lock()
    broken: list[Exception] = []

    def work() -> None:
        try:
            runs()
        except Exception as error:
            broken.append(error)

    def runs() -> None:
        while not broken and not end.is_over():
            with lock:
                start = next(starts, None)
            if start is None:
                return
            count = RUN if plan.cases is None else min(RUN, plan.start + plan.cases - start)
            _some(plan, start, count, end, figures, lock, tell)

    threads = [threading.Thread(target=work) for _ in range(plan.jobs)]
    for t in threads:
        t.start()
    for t in threads:
        try:
            t.join()
        except KeyboardInterrupt:  # what was found so far is worth telling
            end.stop()
            t.join()
    if broken:
        raise broken[0]
    figures.seconds = time.monotonic() - begun
    return figures


def replay(plan: Plan, kept: dict[str, Any]) -> Figures:
    """One case that was kept."""
    figures = Figures(kept["device"], first=kept["seed"])
    command = _command(plan, kept["device"], kept["processor"], kept["seed"], 1)
    again = [*command, "--kept", json.dumps(kept)]
    _watch(again, plan, Deadline(None), figures, threading.Lock(), lambda f: None)
    return figures


def _command(plan: Plan, device: str, processor: str, start: int, count: int) -> list[str]:
    given = [sys.executable, "-m", "devtools.sweep.worker", "--device", device]
    given += ["--processor", processor]
    given += ["--sections", ",".join(plan.sections), "--start", str(start)]
    given += ["--count", str(count), "--largest", str(plan.largest)]
    return [*given, "--branches", plan.branches] if plan.branches else given


def _some(
    plan: Plan,
    start: int,
    count: int,
    end: Deadline,
    figures: Figures,
    lock: threading.Lock,
    tell: Callable[[Failure], None],
) -> None:
    """`count` cases from `start` on; a case that ends its process is noted, the rest goes on."""
    stop = start + count
    processors = here() if plan.device == "cpu" else ["this"]
    processor = processors[start // RUN % len(processors)]  # of all cases of a run
    while start < stop and not end.is_over():
        command = _command(plan, plan.device, processor, start, stop - start)
        last = _watch(command, plan, end, figures, lock, tell)
        start = last + 1


def _watch(
    command: list[str],
    plan: Plan,
    end: Deadline,
    figures: Figures,
    lock: threading.Lock,
    tell: Callable[[Failure], None],
) -> int:
    """The last case that a process began. The user's cache of compiled code is left alone: random
    shapes would push out what programs use."""
    cache = {"EVERYGRAD_CACHE_DIR": plan.cache} if plan.cache else {"EVERYGRAD_CACHE": "0"}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt is the sweep's to handle
        env={
            **os.environ,
            **cache,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
    )
    errors: list[str] = []
    with process:
        lines: queue.Queue[str | None] = queue.Queue()
        readers = (_reader(process.stdout, lines.put), _reader(process.stderr, errors.append))
        last, open_case, why = _followed(process, lines, plan, end, figures, lock, tell)
        process.wait()
        for reader in readers:
            reader.join()
    tail = "".join(e for e in errors if e)[-1500:]
    if last is None:
        raise RuntimeError(f"a worker ended before its first case: {tail}")
    if open_case is not None and (why or process.returncode != 0):
        what = why or f"the process ended with {process.returncode}: {tail}"
        _count(figures, lock, open_case, [what], tell)
    return last


def _followed(
    process: subprocess.Popen[str],
    lines: queue.Queue[str | None],
    plan: Plan,
    end: Deadline,
    figures: Figures,
    lock: threading.Lock,
    tell: Callable[[Failure], None],
) -> tuple[int | None, dict[str, Any] | None, str]:
    """The last case that was begun, the case that was not finished, and why."""
    last: int | None = None
    open_case: dict[str, Any] | None = None
    while True:
        try:
            line = lines.get(timeout=plan.patience)
        except queue.Empty:
            process.kill()
            return last, open_case, f"hangs: no answer for {plan.patience:.0f} s"
        if line is None:
            return last, open_case, ""
        said = json.loads(line)
        if "begun" in said:
            last, open_case = said["begun"], said
            continue
        assert open_case is not None
        _count(figures, lock, open_case, said["differences"], tell)
        open_case = None
        if end.is_over():
            process.terminate()  # between two cases: nothing is lost
            return last, None, ""


def _reader(stream: Any, put: Callable[[Any], None]) -> threading.Thread:
    """A thread that hands lines over, then None."""

    def read() -> None:
        for line in stream:
            put(line)
        put(None)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _count(
    figures: Figures,
    lock: threading.Lock,
    case: dict[str, Any],
    differences: list[str],
    tell: Callable[[Failure], None],
) -> None:
    with lock:
        figures.cases[case["kept"]["section"]] += 1
        figures.ops[f"{case['kept']['section']}: {case['kept']['op']}"] += 1
        figures.last = max(figures.last, case["begun"])
        if differences:
            failure = Failure(case["kept"], case["title"], differences)
            figures.failures.append(failure)
            tell(failure)
