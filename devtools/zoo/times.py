"""Twelve architectures by `torch.compile`, with this library and with inductor: how long they take.

    python -m devtools.zoo --times [NAME ...] [--stage first|rounds] [--missing] [--minutes 11]

`first` measures first calls, with empty caches on disk, and leaves the caches filled. `rounds`
starts both peers from these, each in a process of its own, and times them in turns. What was
measured is kept in build/zoo-times.json, from which the page is written: the stages of one
architecture need not come at once. Inductor takes half an hour to compile all of them: with
`--missing` and `--minutes`, a call does what no earlier one has done, begins nothing new after so
many minutes, and says what is left.
"""

from __future__ import annotations

import compileall
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from devtools.zoo.timed_cases import CASES

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build/zoo-times.json"
CACHES = ROOT / "build/zoo-times-caches"
PAGE = ROOT / "benchmarks/ZOO-TIMES.md"
OURS, THEIRS = "everygrad", "inductor"
KINDS = ("inference", "training")
STAGES = ("first", "rounds")
ROUNDS, ROUND_S = 8, 0.4
MEAN, MOST, FIRST = 0.9, 1.2, 1 / 3  # what is asked for: mean, each, first call
_COLUMNS = (("", 1e3, MOST), (" alone", 1e3, MOST), (" first", 1, FIRST))  # unit, bound
APART = 2e-3  # by which the peers' results may differ

_HEAD = """# Networks by `torch.compile`, beside inductor

Written by `python -m devtools.zoo --times`. Twelve architectures of transformers, timm, torchvision
and PyTorch itself in small (`devtools/zoo/timed_cases.py`) on the CPU in float32. **Inference** is
a forward pass without gradients, **training** a whole step: forward, backward and PyTorch's own
fused AdamW. Times are milliseconds, the least of all runs in {rounds} rounds in turns, each
compiler in a process of its own. A ratio is everygrad's time by inductor's. What is empty or not in
the table was not measured yet; first calls and runs may have been timed on different days.

- **two threads**: by the clock. **Others** is how many cores other processes kept busy meanwhile:
  where that is not near 0, the time says little, and least of all about whoever waits at barriers.
- **one thread** (`--threads 1`): processor time, which is nearly the same on a busy machine.
- **first call**: seconds of the first run with empty caches on disk, on one core, on a machine with
  other work. Dynamo leaves a frame with an LSTM to PyTorch where inductor is asked, which then has
  nothing to compile; everygrad compiles it.

"""


class Peer:
    """A worker's process."""

    def __init__(self, name: str, peer: str, kind: str, threads: int = 2) -> None:
        folder = CACHES / name / peer / kind
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "devtools.zoo.timed_worker", name, peer, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "ZOO_THREADS": str(threads),
                "EVERYGRAD_CACHE_DIR": str(folder),
                "TORCHINDUCTOR_CACHE_DIR": str(folder),
            },
        )

    def ask(self, **asked: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(map(str, self.process.args[2:]))} has died")  # type: ignore[index]
        return json.loads(line)

    def close(self) -> None:
        self.process.communicate()


def first(name: str, kind: str) -> dict[str, Any]:
    """Seconds of both peers' first calls, and what they computed."""
    found: dict[str, Any] = {}
    # to bytecode, as PyTorch's modules are and ours once they are installed
    if not compileall.compile_dir(ROOT / "everygrad", quiet=1):
        raise RuntimeError("everygrad's modules cannot be compiled to bytecode")
    for peer in (OURS, THEIRS):
        shutil.rmtree(CACHES / name / peer / kind, ignore_errors=True)
        with ExitStack() as stack:
            worker = Peer(name, peer, kind)
            stack.callback(worker.close)
            answer = worker.ask(first=True)
        found[f"{peer} first"] = answer["seconds"]
        found[f"{peer} result"] = answer["result"]
    return found


def rounds(name: str, kind: str, threads: int) -> dict[str, Any]:
    """Seconds of a run by both peers, taken in turns."""
    with ExitStack() as stack:
        if threads == 1:  # as a machine with one core: nobody starts another thread then
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {min(before)})
            stack.callback(os.sched_setaffinity, 0, before)
        workers = {peer: Peer(name, peer, kind, threads) for peer in (OURS, THEIRS)}
        times: dict[str, list[float]] = {peer: [] for peer in workers}
        others: list[float] = []
        for worker in workers.values():
            stack.callback(worker.close)
            worker.ask(first=True)
            worker.ask(seconds=ROUND_S)
        for turn in range(ROUNDS):
            for peer in (OURS, THEIRS) if turn % 2 else (THEIRS, OURS):
                answer = workers[peer].ask(seconds=ROUND_S)
                times[peer].append(min(answer["times"]))
                others.append(answer["others"])
    if threads == 1:
        return {f"{peer} alone": min(found) for peer, found in times.items()}
    least = {peer: min(found) for peer, found in times.items()}
    return {**least, "others": statistics.fmean(others)}


def measure(
    names: Iterable[str],
    stages: Sequence[str],
    threads: int,
    missing: bool = False,
    minutes: float = math.inf,
) -> None:
    """Measure, keep, and write the page."""
    end = time.monotonic() + 60 * minutes
    columns = {"first": " first", "rounds": " alone" if threads == 1 else ""}
    todo = [(name, kind, stage) for name in names for kind in KINDS for stage in stages]
    left = []
    for name, kind, stage in todo:
        if missing and ratio(known().get(name, {}).get(kind, {}), columns[stage]) is not None:
            continue
        if time.monotonic() > end:
            left.append(f"{name} {kind} ({stage})")
            continue
        found = first(name, kind) if stage == "first" else rounds(name, kind, threads)
        kept = known()
        kept.setdefault(name, {}).setdefault(kind, {}).update(found)
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(kept, indent=1))
        PAGE.write_text(page(kept), encoding="utf-8")
        said = {key: value for key, value in found.items() if "result" not in key}
        print(f"{name:12} {kind:10}", {k: round(v, 4) for k, v in said.items()}, flush=True)
    print(f"{PAGE} is up to date" + (f"; left: {', '.join(left)}" if left else ""))


def known() -> dict[str, Any]:
    """What was measured so far; in a fresh checkout, what the page says of it."""
    if KEPT.exists():
        found: dict[str, Any] = json.loads(KEPT.read_text())
        return found
    return read_page(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}


# --- the page --------------------------------------------------------------------------------


def page(kept: dict[str, Any]) -> str:
    """The whole page."""
    rows = [row for kinds in kept.values() for row in kinds.values()]
    lines = [
        _HEAD.format(rounds=ROUNDS),
        _summary("Two threads", rows, "", MEAN, MOST),
        _summary("One thread", rows, " alone", MEAN, MOST),
        _summary("First call", rows, " first", FIRST, FIRST),
        "",
        "| architecture | | two threads | inductor | ratio | others "
        "| one thread | inductor | ratio | first call | inductor | ratio |",
        f"|---|---|{'---:|' * 10}",
        *(_row(name, kind, row) for name in CASES for kind, row in kept.get(name, {}).items()),
        "",
    ]
    made = ("torch", "transformers", "timm", "torchvision")
    shown = ", ".join(f"{name} {version(name)}" for name in made if find_spec(name))
    lines.append(f"With {shown}; Python {platform.python_version()}.")
    return "\n".join(lines) + "\n"


def read_page(text: str) -> dict[str, Any]:
    """The rows that a page was written from, as exactly as it says them."""
    kept: dict[str, Any] = {}
    for line in text.splitlines():
        cells = [cell.strip().strip("*") for cell in line.split("|")[1:-1]]
        if len(cells) != 2 + 3 * len(_COLUMNS) + 1 or cells[1] not in KINDS:
            continue
        row = kept.setdefault(cells[0].partition(" (")[0], {}).setdefault(cells[1], {})
        del cells[:2]
        for what, scale, _ in _COLUMNS:
            if cells[0]:
                row |= {
                    p + what: float(c) / scale for p, c in zip((OURS, THEIRS), cells, strict=False)
                }
            del cells[:3]
            others = cells.pop(0) if not what else ""
            if others:
                row["others"] = float(others)
    return kept


def _summary(
    title: str, rows: Sequence[dict[str, float]], what: str, mean: float, most: float
) -> str:
    found = [r for row in rows if (r := ratio(row, what)) is not None]
    if not found:
        return f"- {title}: not measured."
    return (
        f"- {title}: {len(found)} ratios, geometric mean **{geometric(found):.2f}** (at most "
        f"{mean:.2f} is asked for), largest {max(found):.2f} (at most {most:.2f})."
    )


def geometric(numbers: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, numbers)))


def ratio(row: dict[str, float], what: str) -> float | None:
    """Everygrad's time by inductor's; `what` was measured: "" by the clock, " alone", " first"."""
    if OURS + what not in row:
        return None
    return row[OURS + what] / row[THEIRS + what]


def _row(name: str, kind: str, row: dict[str, float]) -> str:
    cells = [name, kind]
    for what, scale, most in _COLUMNS:
        found = ratio(row, what)
        if found is None:
            cells += ["", "", ""]
        else:
            digits = 1 if what == " first" else 2
            cells += [f"{scale * row[peer + what]:.{digits}f}" for peer in (OURS, THEIRS)]
            cells.append(f"{found:.2f}" if found <= most else f"**{found:.2f}**")
        if not what:
            cells.append(f"{row['others']:.1f}" if "others" in row else "")
    if f"{OURS} result" in row:
        a, b = row[f"{OURS} result"], row[f"{THEIRS} result"]
        if abs(a - b) > APART * max(abs(a), abs(b)):
            cells[0] += f" (**differs: {a:.6g} and {b:.6g}**)"
    return f"| {' | '.join(cells)} |"
