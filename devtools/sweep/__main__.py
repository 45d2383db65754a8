"""Random shapes around the numbers at which kernels change their ways: `make sweep`.

    make sweep ARGS="--minutes 60"                    # the CPU
    make sweep ARGS="--minutes 30 --device webgpu"
    python3 -m devtools.sweep --device cuda --minutes 10
    make sweep ARGS="--replay"                        # what was kept in tests/sweep_cases.jsonl

What differs is kept there; figures go to benchmarks/SWEEP.md. `--branches` also counts which
branches of everygrad/backends ran, and lists the others in benchmarks/BRANCHES.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from devtools.sweep import branches, report
from devtools.sweep.kept import FILE, record, recorded
from devtools.sweep.pool import Failure, Figures, Plan, replay, sweep
from devtools.sweep.registry import SECTIONS


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make sweep ARGS=...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cpu", help="cpu, webgpu, cuda")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--cases", type=int, default=None, help="stop after so many")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="only these, by comma")
    parser.add_argument("--largest", type=int, default=1 << 21, help="elements of an array")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--branches", action="store_true", help="count the branches that ran")
    parser.add_argument("--replay", nargs="?", const=str(FILE), help="check what was kept, again")
    parser.add_argument("--keep", default=str(FILE), help="where to keep what differs")
    parser.add_argument("--no-write", action="store_true", help="leave files alone")
    options = parser.parse_args(arguments)
    unknown = {*options.sections.split(",")} - {*SECTIONS}
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if options.minutes is None and options.cases is None and not options.replay:
        parser.error("how long? --minutes or --cases")
    return options


def show(failure: Failure) -> None:
    print(f"# {failure.kept['section']}, {failure.kept['device']}: {failure.title}")
    for line in failure.differences:
        print(f"#   {line}")
    sys.stdout.flush()


def again(options: argparse.Namespace) -> int:
    """Check every case of a file."""
    plan = Plan(options.device, options.sections.split(","), 0, options.largest)
    cases, bad = list(recorded(Path(options.replay))), 0
    for kept in cases:
        for failure in replay(plan, kept).failures:
            bad += 1
            show(failure)
    print(f"{len(cases)} cases, {bad} of them differ")
    return 1 if bad else 0


def finish(options: argparse.Namespace, figures: Figures, folder: str) -> None:
    """Print the figures, and write them."""
    ran = branches.gathered(folder, options.device.split(":")[0]) if options.branches else []
    text = report.figures_text(figures, ran)
    print(text)
    if options.no_write:
        return
    report.write(options.device, text)
    if ran:
        listed = report.branches_text(options.device.split(":")[0], ran, figures)
        report.write(options.device, listed, report.BRANCHES, report.BRANCHES_HEAD)


def main(arguments: Sequence[str]) -> int:
    """1 if a case differs."""
    options = parsed(arguments)
    if options.replay:
        return again(options)

    def tell(failure: Failure) -> None:
        show(failure)
        if not options.no_write:
            record(failure.kept, failure.differences[0], Path(options.keep))

    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(
            options.device,
            options.sections.split(","),
            options.start,
            options.largest,
            options.minutes,
            options.cases,
            options.jobs,
            folder if options.branches else "",
            # kernels of the CPU are each for one shape, those of GPUs for many
            f"{folder}/cache" if options.device != "cpu" else "",
        )
        figures = sweep(plan, tell)
        finish(options, figures, folder)
    return 1 if figures.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
