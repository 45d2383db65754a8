"""`python -m everygrad.launch -n 4 [--hosts file] [--max-restarts 2] train.py args`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from everygrad.errors import EverygradError
from everygrad.launch.launcher import Job, run


def parsed(arguments: Sequence[str]) -> Job:
    parser = argparse.ArgumentParser(
        "python -m everygrad.launch",
        description="Run a script on several ranks, through mpiexec.",
    )
    parser.add_argument("-n", type=int, required=True, metavar="RANKS", help="how many processes")
    parser.add_argument("--hosts", metavar="FILE", help="a line a host: name slots=N")
    parser.add_argument(
        "--max-restarts", type=int, default=0, metavar="N", help="starts after the first one"
    )
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    given = parser.parse_args(arguments)
    if given.n < 1:
        parser.error(f"-n: at least 1 rank, got {given.n}")
    if given.max_restarts < 0:
        parser.error(f"--max-restarts: from 0 on, got {given.max_restarts}")
    return Job(given.n, given.script, given.arguments, given.hosts, given.max_restarts)


def main() -> int:
    job = parsed(sys.argv[1:])
    try:
        return run(job)
    except EverygradError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
