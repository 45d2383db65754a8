"""Random programs, run in every way there is, and compared: `make fuzz`.

Each program comes from one integer. One that differs from itself is shrunk and printed as Python,
and its seed is kept in tests/fuzz_seeds.txt, whose programs every `make test` runs again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from devtools.fuzz.check import Failure, check
from devtools.fuzz.generate import generate
from devtools.fuzz.makers import MAKERS
from devtools.fuzz.program import Program
from devtools.fuzz.shrink import shrink, still_fails
from devtools.fuzz.ways import DEVICES, NARROW, WAYS

SEEDS = Path(__file__).parents[2] / "tests" / "fuzz_seeds.txt"


def program_of(seed: int, narrow: bool = False) -> Program:
    """The program of a seed; `narrow` for devices without float64."""
    return generate(seed, MAKERS, narrow)


def recorded(path: Path = SEEDS) -> list[int]:
    """The seeds that once failed."""
    if not path.exists():
        return []
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [int(line) for line in lines if line]


def record(seed: int, failure: Failure, path: Path = SEEDS) -> None:
    if seed not in recorded(path):
        with path.open("a") as file:
            file.write(f"{seed}  # {failure.way}, {failure.what}: {failure.kind}\n")


def snippet(program: Program, failure: Failure) -> str:
    """Python that runs on its own and shows the difference; but for devices, the program alone."""
    if failure.way in DEVICES:
        return f"{program.text()}\n# on {failure.way}, against the CPU"
    return "\n".join(
        (
            program.text(),
            "",
            "from devtools.fuzz.ways import WAYS, Case",
            f'for pair in WAYS["{failure.way}"](Case(f, args)):',
            '    print(pair.what, *(f"got {g}\\n  should be {w}"',
            "          for g, w in zip(pair.got, pair.want)), sep='\\n  ')",
        )
    )


def report(seed: int, program: Program, failures: Sequence[Failure], small: Program) -> str:
    """A failing seed, and the program its first failure was shrunk to."""
    failure = failures[0]
    again = next(iter(check(small, [failure.way])), failure)
    lines = [f"# seed {seed} differs:", *(f"#   {f}" for f in failures)]
    lines += [f"# smallest: {again}".replace("\n", "\n#   "), snippet(small, failure)]
    return "\n".join(lines)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=...", description=__doc__)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=None, help="how many; without end if absent")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--ways", default=",".join(WAYS), help="only these, by comma")
    parser.add_argument("--draw", type=int, help="so many of them for each program, by its seed")
    parser.add_argument("--device", choices=tuple(DEVICES), help="there, against the CPU")
    parser.add_argument("--without", default="", help="leave out programs with these ops")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="time for each failure")
    parser.add_argument("--no-record", action="store_true", help="leave tests/fuzz_seeds.txt alone")
    return parser.parse_args(arguments)


def seeds_of(options: argparse.Namespace) -> Iterable[int]:
    """Seeds until there are enough, or the time is over; a line now and then says where it is."""
    begun = last = time.monotonic()
    seed = options.start
    while options.seeds is None or seed < options.start + options.seeds:
        yield seed
        seed += 1
        now = time.monotonic()
        if now - last > 10:
            last = now
            print(f"{seed - options.start} programs, to seed {seed - 1}, {now - begun:.0f} s")
        if options.minutes is not None and now - begun > 60 * options.minutes:
            break
    print(f"{seed - options.start} programs, seeds {options.start} to {seed - 1}")


def main(arguments: Sequence[str]) -> int:
    """1 if a program differs."""
    options = parsed(arguments)
    ways = [options.device] if options.device else options.ways.split(",")
    narrow = options.device in NARROW
    left_out = set(options.without.split(","))
    failed = 0
    seen: set[object] = set()
    for seed in seeds_of(options):
        program = program_of(seed, narrow)
        if left_out & {s.op for s in program.steps}:
            continue
        few = options.draw is not None and options.draw < len(ways)
        failures = check(program, Random(seed).sample(ways, options.draw) if few else ways)
        if failures:
            failed += 1
            if not options.no_record and not options.device:
                record(seed, failures[0])
            small = shrink(program, still_fails(failures[0]), options.shrink_seconds)
            alike: tuple[str, ...] = (failures[0].way, failures[0].kind)
            if failures[0].kind in ("difference", "shape"):
                alike += tuple(s.op for s in small.steps)
            if alike in seen:
                print(f"# seed {seed} differs as an earlier one: {failures[0]}")
            else:
                print(report(seed, program, failures, small), flush=True)
            seen.add(alike)
            if not options.keep_going:
                break
    if failed:
        print(f"{failed} failing seed(s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
