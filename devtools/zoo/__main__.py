"""Run the zoo, or the architectures named: python -m devtools.zoo [NAME ...]

With --times, how long twelve of them take beside inductor.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import warnings

import torch

from devtools.zoo.check import check
from devtools.zoo.report import PAGE, page
from devtools.zoo.table import CASES
from devtools.zoo.timed_cases import CASES as TIMED
from devtools.zoo.times import STAGES, measure


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m devtools.zoo", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="architectures; none: all, and the page is written"
    )
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--times", action="store_true", help="time it beside inductor")
    parser.add_argument("--stage", choices=STAGES, help="of --times (default: both)")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch (default: 2)")
    parser.add_argument("--missing", action="store_true", help="of --times: not what was measured")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after them")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    cases = TIMED if options.times else CASES
    unknown = [name for name in options.names if name not in cases]
    if unknown or options.list:
        print(f"there are {', '.join(cases)}")
        return bool(unknown)
    if options.times:
        stages = [options.stage] if options.stage else STAGES
        measure(options.names or TIMED, stages, options.threads, options.missing, options.minutes)
        return 0
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=UserWarning)  # the libraries' own
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(options.threads)
    outcomes = []
    for name in options.names or CASES:
        outcome = check(CASES[name])
        outcomes.append(outcome)
        shown = "  ".join(f"{key} {value:.0e}" for key, value in outcome.differences.items())
        print(f"{name:14} {outcome.seconds:4.0f} s  {shown}", flush=True)
        for fault in outcome.faults():
            print(f"{'':14} WRONG  {fault[:600]}", flush=True)
    if not options.names:
        PAGE.write_text(page(outcomes), encoding="utf-8")
        print(f"wrote {PAGE}")
    right = sum(outcome.right for outcome in outcomes)
    print(f"{right} of {len(outcomes)} are right")
    return 0 if right == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
