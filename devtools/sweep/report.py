"""benchmarks/SWEEP.md: a part for each device, written by the command that ran there."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from devtools.sweep.branches import BACKENDS, Ran
from devtools.sweep.pool import Figures
from devtools.sweep.unreached import reason_for

PAGE = Path(__file__).parents[2] / "benchmarks" / "SWEEP.md"
BRANCHES = PAGE.with_name("BRANCHES.md")
BRANCHES_HEAD = """# Branches of kernel generators that no shape reached

Branch coverage of everygrad/backends during `make sweep ARGS="--branches ..."`: a part for each
device, written by the command that ran there. A sweep draws what it checks against PyTorch: what
no shape reaches (refusals, other processors, forks, bounds of memory) is declared with its reason
in `devtools/sweep/unreached.py`, and counted here by it.
"""
HEAD = """# Sweeps

Shapes drawn around the numbers at which each kernel generator changes its ways, every op that can
reach it, eager and compiled, values and gradients, each element against float64 by PyTorch. Written
by `make sweep`; what differs is kept in tests/sweep_cases.jsonl and replayed by `make test`.
"""


def figures_text(figures: Figures, ran: Sequence[Ran] = ()) -> str:
    """What a sweep did, as Markdown; `ran`: of the generators' files, if that was counted."""
    total = sum(figures.cases.values())
    failed: dict[str, int] = {}
    for f in figures.failures:
        failed[f.kept["section"]] = failed.get(f.kept["section"], 0) + 1
    lines = [
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {platform.machine()}, "
        f"Python {platform.python_version()}",
        f"- {total} cases of {len(figures.ops)} ops in {figures.seconds / 60:.0f} minutes, "
        f"seeds {figures.first} to {figures.last}",
        f"- cases that differ: {len(figures.failures)}",
        *_branches_line(ran),
        "",
        "| section | cases | differ |",
        "| --- | ---: | ---: |",
    ]
    lines += [f"| {s} | {n} | {failed.get(s, 0)} |" for s, n in sorted(figures.cases.items())]
    return "\n".join(lines)


def _branches_line(ran: Sequence[Ran]) -> list[str]:
    if not ran:
        return []
    taken, total = sum(r.taken for r in ran), sum(r.branches for r in ran)
    return [f"- branches of generators that ran: {taken} of {total} (BRANCHES.md)"]


def branches_text(device: str, ran: list[Ran], figures: Figures) -> str:
    """Which branches ran, file by file, and every one that did not, as Markdown."""
    sums = [sum(r[k] for r in ran) for k in (1, 2, 3, 4)]
    lines = [
        f"{sum(figures.cases.values())} cases in {figures.seconds / 60:.0f} minutes took {sums[3]} "
        f"of {sums[2]} branches; the import of a module counts.",
        "",
        "| file | lines | ran | branches | taken |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [f"| {r.file} | {r.lines} | {r.ran} | {r.branches} | {r.taken} |" for r in ran]
    lines += [f"| all | {' | '.join(map(str, sums))} |", ""]
    untaken = []
    for r in ran:
        source = (BACKENDS / r.file).read_text().splitlines()
        untaken += [Untaken(r.file, at, to, source[at - 1].strip()) for at, to in r.missing]
    return "\n".join(lines) + "\n" + untaken_text(device, untaken)


class Untaken(NamedTuple):
    """A branch that no case took: from a line to another, negative for the end of a function."""

    file: str
    at: int
    to: int
    line: str


def untaken_text(device: str, untaken: Sequence[Untaken]) -> str:
    """How many branches no shape can take, by the reason, and every other one, as Markdown."""
    reasons: Counter[str] = Counter()
    listed = []
    for u in untaken:
        reason = reason_for(device, u.file, u.line, u.at)
        reasons[reason] += bool(reason)
        if not reason:
            where = f"to {u.to}" if u.to > 0 else "to the end"
            listed.append(f"- {u.file}:{u.at} {where}: `{u.line}`")
    lines = ["Not to be taken by a shape (`devtools/sweep/unreached.py` says which):", ""]
    lines += ["| branches | why |", "| ---: | --- |"]
    lines += [f"| {count} | {reason} |" for reason, count in reasons.most_common() if reason]
    return "\n".join([*lines, "", f"Never taken, {len(listed)}:", "", *listed])


def write(name: str, text: str, path: Path = PAGE, head: str = HEAD) -> None:
    """Replace the part called `name`, or add it; a page that is not there begins with `head`."""
    page = path.read_text() if path.exists() else head
    part = f"\n## {name}\n\n{text}\n"
    found = re.search(rf"\n## {re.escape(name)}\n.*?(?=\n## |\Z)", page, re.DOTALL)
    page = (
        page[: found.start()] + part + page[found.end() :]
        if found
        else page.rstrip("\n") + "\n" + part
    )
    path.write_text(page)
