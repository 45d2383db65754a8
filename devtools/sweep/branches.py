"""Which branches of the generators ran: branch coverage of everygrad/backends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BACKENDS = ROOT / "everygrad" / "backends"
_CURE = "the branches of generators are counted by the package coverage: pip install coverage"


class Ran(NamedTuple):
    """What of one file ran. `missing`: branches (line, line it never went to)."""

    file: str
    lines: int
    ran: int
    branches: int
    taken: int
    missing: list[tuple[int, int]]


@contextmanager
def noted(folder: str) -> Iterator[None]:
    """While it is open, branches of the backends are noted, in a file of its own in `folder`."""
    try:
        import coverage
    except ImportError:
        raise SystemExit(_CURE) from None
    counted = coverage.Coverage(
        data_file=f"{folder}/branches",
        data_suffix=True,
        branch=True,
        source=[str(BACKENDS)],
        config_file=False,
    )
    counted.start()
    from everygrad.backends import thread_pool

    # what compiles runs on a thread of its own, without Python's hooks: here, where it is seen
    thread_pool._Uninterrupted.run = lambda self, work: work()  # type: ignore[method-assign]
    try:
        yield
    finally:
        counted.stop()
        counted.save()


def gathered(folder: str, kind: str) -> list[Ran]:
    """What all processes of a sweep ran of a device's files and of those that all share."""
    import coverage

    counted = coverage.Coverage(
        data_file=f"{folder}/branches", branch=True, source=[str(BACKENDS)], config_file=False
    )
    counted.combine([folder], keep=True)
    out = Path(folder) / "branches.json"
    counted.json_report(outfile=str(out), ignore_errors=True)
    found = []
    for name, file in sorted(json.loads(out.read_text())["files"].items()):
        s = file["summary"]
        missing = [tuple(pair) for pair in file["missing_branches"]]
        short = str((Path.cwd() / name).resolve().relative_to(BACKENDS))
        if "/" in short and not short.startswith(f"{kind}/"):
            continue
        found.append(
            Ran(
                short,
                s["num_statements"],
                s["covered_lines"],
                s["num_branches"],
                s["covered_branches"],
                missing,
            )
        )
    return found
