"""What sharing a small tensor with PyTorch costs, by DLPack on the CPU: microseconds, the least.

`python -m benchmarks.probes.dlpack`: processor time of one thread, after so many calls that native
code does ours. NumPy's row is what PyTorch's own part takes, and 0.1 us of NumPy's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import everygrad as eg
from everygrad.backends.cpu import lazy_native
from everygrad.core.fast_calls import LOADED_MANY

ROUNDS, CALLS = 60, 2000


def _least(call: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        begun = time.process_time_ns()
        for _ in range(CALLS):
            call()
        times.append(time.process_time_ns() - begun)
    return min(times) / CALLS / 1e3


def main() -> None:
    torch.set_num_threads(1)
    lazy_native.warm_up()
    share = torch.utils.dlpack.from_dlpack
    print("| | in | out | of it `__dlpack__` |\n| --- | ---: | ---: | ---: |")
    nothing = _least(lambda: None)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
        theirs = torch.ones(4, 4, dtype=dtype)
        mine = eg.from_dlpack(theirs)
        for _ in range(LOADED_MANY + 1):
            eg.from_dlpack(theirs)
            share(mine)
        calls: tuple[Callable[[], object], ...] = (
            lambda t=theirs: eg.from_dlpack(t),
            lambda t=mine: share(t),
            lambda t=mine: t.__dlpack__(max_version=(1, 0)),
        )
        row = " | ".join(f"{_least(call) - nothing:.2f}" for call in calls)
        print(f"| {str(dtype).removeprefix('torch.')} | {row} |")
    array = eg.ones((4, 4))._data
    out, part = (
        _least(call) - nothing
        for call in (lambda: share(array), lambda: array.__dlpack__(max_version=(1, 0)))
    )
    print(f"| NumPy's float32 | | {out:.2f} | {part:.2f} |")


if __name__ == "__main__":
    main()
