"""benchmarks/SWEEP.md: a part for each device, written by the command that ran there."""

from __future__ import annotations

import platform
import re
from datetime import UTC, datetime
from pathlib import Path

from devtools.sweep.branches import Ran
from devtools.sweep.pool import Figures

PAGE = Path(__file__).parents[2] / "benchmarks" / "SWEEP.md"
HEAD = """# Sweeps

Shapes drawn around the numbers at which each kernel generator changes its ways, every op that can
reach it, eager and compiled, values and gradients, each element against float64 by PyTorch. Written
by `make sweep`; what differs is kept in tests/sweep_cases.jsonl and replayed by `make test`.
"""


def figures_text(figures: Figures) -> str:
    """What a sweep did, as Markdown."""
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
        "",
        "| section | cases | differ |",
        "| --- | ---: | ---: |",
    ]
    lines += [f"| {s} | {n} | {failed.get(s, 0)} |" for s, n in sorted(figures.cases.items())]
    return "\n".join(lines)


def branches_text(ran: list[Ran]) -> str:
    """Which branches ran, file by file, as Markdown."""
    lines = [
        "| file | lines | ran | branches | taken | never taken |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for r in ran:
        shown = ", ".join(f"{a}→{b}" if b > 0 else f"{a}→end" for a, b in r.missing[:8])
        more = f" and {len(r.missing) - 8} more" if len(r.missing) > 8 else ""
        lines.append(
            f"| {r.file} | {r.lines} | {r.ran} | {r.branches} | {r.taken} | {shown}{more} |"
        )
    sums = [sum(r[k] for r in ran) for k in (1, 2, 3, 4)]
    lines.append(f"| all | {' | '.join(map(str, sums))} | |")
    return "\n".join(lines)


def write(name: str, text: str, path: Path = PAGE) -> None:
    """Replace the part called `name`, or add it."""
    page = path.read_text() if path.exists() else HEAD
    part = f"\n## {name}\n\n{text}\n"
    found = re.search(rf"\n## {re.escape(name)}\n.*?(?=\n## |\Z)", page, re.DOTALL)
    page = (
        page[: found.start()] + part + page[found.end() :]
        if found
        else page.rstrip("\n") + "\n" + part
    )
    path.write_text(page)
