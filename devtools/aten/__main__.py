"""python -m devtools.aten [--only NAME ...] [--samples N] [--write]: the table beside PyTorch."""

from __future__ import annotations

import argparse
import time
import warnings
from contextlib import suppress

import torch

from devtools.aten import report, samples
from devtools.aten.checking import Log, RefusedByPyTorchError, check_call
from devtools.aten.more_rows import MORE
from devtools.aten.rows import LEFT_OUT, ROWS, Maker, dtypes_of


def rows(log: Log) -> None:
    """Every row in every dtype that PyTorch takes."""
    for name, given in (ROWS | MORE).items():
        base, _, kind = name.rpartition(".")
        target = getattr(getattr(torch.ops.aten, base), kind)
        for dtype in dtypes_of(name):
            for row in given if (name, dtype) not in LEFT_OUT else ():
                jit = dtype is torch.float32 and not base.startswith("sym_")
                try:
                    drawn = row(Maker(dtype))
                except (RuntimeError, TypeError):  # PyTorch draws no such tensors
                    continue
                with suppress(RefusedByPyTorchError):
                    check_call(log, target, drawn, jit)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m devtools.aten", description=__doc__)
    parser.add_argument("--only", nargs="*", help="ops by PyTorch's names in op_db")
    parser.add_argument("--samples", type=int, default=4, help="of each op and dtype")
    parser.add_argument("--write", action="store_true", help="write benchmarks/ATEN.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = time.process_time()
    logs = {name: Log() for name in ("rows", "forward", "backward", "backward, not decomposed")}
    by_rows, forward, backward, whole = logs.values()
    if not given.only:
        rows(by_rows)
    shown = dict.fromkeys(logs, 0)
    for name in given.only or samples.names():
        samples.check(forward, name, given.samples, backward=False, core=True)
        samples.check(backward, name, given.samples, backward=True, core=True)
        samples.check(whole, name, given.samples, backward=True, core=False)
        for kind, log in logs.items():
            for line in log.wrong[shown[kind] :]:
                print(line[:600], flush=True)
            shown[kind] = len(log.wrong)
    for kind, log in logs.items():
        for name, at in sorted(log.missing.items()):
            print("missing", kind, name, sorted(at)[:2])
    for log in logs.values():
        print(f"{sum(log.checked.values())} nodes of {len(log.checked)} overloads equal PyTorch's, "
              f"{len(log.wrong)} differ")  # fmt: skip
    print(f"{time.process_time() - start:.0f} s")
    if given.write:
        report.write(logs, given.samples)
    return 1 if any(log.wrong for log in logs.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
