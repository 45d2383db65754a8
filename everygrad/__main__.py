"""`python -m everygrad doctor`: what works on this machine. `python -m everygrad onnx FILE`: what
is in an ONNX file, and whether it runs here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from everygrad.tools import doctor

_DOCTOR = (
    "Prints versions, devices, why a device is missing and how to get it; runs a self-test on each "
    "device found and measures its elementary functions. The exit status is 0 if all that was "
    "found works, 1 otherwise."
)
_ONNX = (
    "Prints the inputs, outputs and operators of an ONNX file and what of it is missing here, and "
    "runs it on zeros on every device found. The exit status is 0 if nothing is missing and it "
    "ran on the first device, 1 otherwise."
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
    two = commands.add_parser("onnx", help="what is in an ONNX file", description=_ONNX)
    two.add_argument("file", type=Path, help="the .onnx file")
    two.add_argument(
        "--size", action="append", default=[], help="NAME=NUMBER for a size that is open (else 1)"
    )
    two.add_argument(
        "--device", action="append", choices=doctor.DEVICES, help="only this one; may be repeated"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    options = parsed(arguments)
    if options.command == "onnx":
        return _onnx(options)
    return doctor.main(
        options.device or doctor.DEVICES,
        quick=options.quick,
        json_output=options.json,
        table=options.accuracy_table,
        here=options.here,
    )


def _onnx(options: argparse.Namespace) -> int:
    try:
        report = import_module("everygrad.interop.onnx.report")
    except ModuleNotFoundError as error:
        if error.name not in ("onnx", "google"):
            raise
        print("the onnx package is missing: pip install 'everygrad[onnx]'", file=sys.stderr)
        return 1
    status: int = report.main(options.file, options.device or doctor.DEVICES, options.size)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
