"""`python -m everygrad doctor`: what works on this machine, what does not, and the cure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from everygrad.tools import doctor

_DOCTOR = (
    "Prints versions, devices, why a device is missing and how to get it; runs a self-test on each "
    "device found and measures its elementary functions. The exit status is 0 if all that was "
    "found works, 1 otherwise."
)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m everygrad", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("doctor", help="what works on this machine", description=_DOCTOR)
    one.add_argument("--quick", action="store_true", help="leave the accuracy out")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.add_argument(
        "--accuracy-table", action="store_true", help="print docs/accuracy.md for this machine"
    )
    one.add_argument(
        "--device", action="append", choices=doctor.DEVICES, help="only this one; may be repeated"
    )
    one.add_argument(
        "--here", action="store_true", help="test in this process, which a bad driver may end"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    options = parsed(arguments)
    return doctor.main(
        options.device or doctor.DEVICES,
        quick=options.quick,
        json_output=options.json,
        table=options.accuracy_table,
        here=options.here,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
