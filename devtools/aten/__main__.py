"""python -m devtools.aten [--only NAME] [--samples N]: the whole table beside PyTorch."""

from __future__ import annotations

import argparse
import time

import torch

from devtools.aten import samples
from devtools.aten.checking import Log


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m devtools.aten", description=__doc__)
    parser.add_argument("--only", nargs="*", help="ops by PyTorch's names in op_db")
    parser.add_argument("--samples", type=int, default=4, help="of each op and dtype")
    parser.add_argument("--forward", action="store_true", help="leave the backward graphs out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    log, start = Log(), time.process_time()
    shown = 0
    for name in given.only or samples.names():
        for line in log.wrong[shown:]:
            print(line[:600], flush=True)
        shown = len(log.wrong)
        for core in (True, False):
            samples.check(log, name, given.samples, False, core)
            if not given.forward:
                samples.check(log, name, given.samples, True, core)
    for line in log.wrong[shown:]:
        print(line[:600])
    for name, at in sorted(log.missing.items()):
        print("missing", name, sorted(at)[:2])
    print(f"{sum(log.checked.values())} nodes of {len(log.checked)} overloads equal PyTorch's, "
          f"{len(log.wrong)} differ, {len(log.drawn)} overloads draw random numbers; "
          f"{sum(log.untraced.values())} samples PyTorch cannot trace; "
          f"{time.process_time() - start:.0f} s")  # fmt: skip
    return 1 if log.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
