"""Run the zoo, or the architectures named: python -m devtools.zoo [NAME ...]"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings

import torch

from devtools.zoo.check import check
from devtools.zoo.report import PAGE, page
from devtools.zoo.table import CASES


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m devtools.zoo", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="architectures; none: all, and the page is written"
    )
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch (default: 2)")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    unknown = [name for name in options.names if name not in CASES]
    if unknown or options.list:
        print(f"there are {', '.join(CASES)}")
        return bool(unknown)
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
