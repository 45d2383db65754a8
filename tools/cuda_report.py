"""Runs every test that names "cuda" on this machine's GPU, and writes benchmarks/CUDA-TESTS.md.

    make test-cuda                      # or: python3 tools/cuda_report.py [pytest's options]

CI has no GPU: this is run by hand where there is one, and the page it writes is committed.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "benchmarks" / "CUDA-TESTS.md"
os.environ["EVERYGRAD_TEST_DEVICES"] = "cpu,cuda"
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402  # the tests read the environment when they are imported

from everygrad.backends import base  # noqa: E402


class Outcomes:
    """Counts what pytest reports, by file."""

    def __init__(self) -> None:
        self.by_file: dict[str, Counter[str]] = {}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        file = report.nodeid.split("::")[0]
        self.by_file.setdefault(file, Counter())[report.outcome] += 1
        if report.failed:
            self.failed.append(report.nodeid)


def page(outcomes: Outcomes) -> str:
    """The report as Markdown."""
    driver = base.get("cuda").gpu.driver  # type: ignore[attr-defined]
    total = sum(outcomes.by_file.values(), Counter())
    lines = [
        "# Tests on CUDA",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- device: {driver.name} ({driver.arch}, {driver.multiprocessors} multiprocessors)",
        f"- NVRTC {'.'.join(map(str, driver.nvrtc.version))}, Python {sys.version.split()[0]}",
        f"- passed {total['passed']}, failed {total['failed']}, skipped {total['skipped']}",
        "",
        "| file | passed | failed | skipped |",
        "| --- | ---: | ---: | ---: |",
    ]
    for file, found in sorted(outcomes.by_file.items()):
        lines.append(f"| {file} | {found['passed']} | {found['failed']} | {found['skipped']} |")
    if outcomes.failed:
        lines += ["", "Failed:", "", *(f"- `{name}`" for name in sorted(outcomes.failed))]
    lines += ["", "Made by `make test-cuda`, which runs every test that takes a device on it.", ""]
    return "\n".join(lines)


def main(options: list[str]) -> int:
    base.get("cuda")  # absent: said here, not a thousand times
    outcomes = Outcomes()
    spread = ["-n", "8", "--dist", "worksteal"] if find_spec("xdist") else []
    given = [
        "-q",
        "-k",
        "cuda",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:benchmark",
        *spread,
        str(ROOT / "tests"),
        *options,
    ]
    code = pytest.main(given, plugins=[outcomes])
    PAGE.write_text(page(outcomes), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
