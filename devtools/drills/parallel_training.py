"""50 steps of a small GPT on simulated ranks, in every way there is, beside one process.

    python -m devtools.drills.parallel_training [word ...]
    mpiexec -n 2 python -m devtools.drills.parallel_training [word ...]

Under mpiexec the ranks are processes, and the cases those that have as many.
The short form is `tests/distributed/test_equal_to_one_process.py`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import everygrad.distributed as dist
from tests.distributed import small_gpt

STEPS, SAME = small_gpt.STEPS, 1e-12


def cases() -> list[tuple[str, Callable[..., list[float]], dict[str, int], tuple[Any, ...]]]:
    """A name, the function, the mesh, and the rest of the function's arguments."""
    made: list[Any] = []
    meshes: list[dict[str, int]] = [
        {"data": n, "model": m} for n, m in product((1, 2, 4, 8), (1, 2, 4)) if n * m <= 8
    ]
    for axes, level, jit in product(meshes, (0, 1, 2, 3), (False, True)):
        made.append((f"ZeRO {level}, jit {jit}", small_gpt.losses, axes, (level, STEPS, jit)))
    schedules = ("gpipe", "1f1b", "interleaved")
    for data, model, ranks, schedule in product((1, 2), (1, 2), (1, 2, 4), schedules):
        stages = max(ranks, 4) if schedule == "interleaved" else ranks
        levels = (0, 1, 2, 3) if data * model * ranks <= 8 else ()
        for level, jit in product(levels, (False, True)):
            axes = {"data": data, "pipe": ranks, "model": model}
            rest = (schedule, 4, stages, level, STEPS, jit)
            name = f"{schedule}, ZeRO {level}, jit {jit}"
            made.append((name, small_gpt.pipeline_losses, axes, rest))
    return made


def main(words: list[str]) -> int:
    """`words`: only cases whose names have all of them."""
    want = small_gpt.losses_of_one_process(STEPS)
    failed = 0
    ranks = dist.world_size()  # 1: they are simulated
    chosen = [case for case in cases() if all(w in f"{case[2]} {case[0]}" for w in words)]
    for name, run, axes, rest in chosen:
        count = prod(axes.values())
        if ranks not in (1, count):
            continue
        begun = time.process_time()
        found = [run(axes, *rest)] if ranks > 1 else dist.run_local(run, count, axes, *rest)
        gap = max(abs(a - b) for losses in found for a, b in zip(losses, want, strict=True))
        failed += gap > SAME
        seconds = time.process_time() - begun
        print(f"{axes} {name}: {gap:.1e} {'' if gap <= SAME else 'WRONG'} ({seconds:.1f} s)")
    print(f"{failed} of {len(chosen)} differ by more than {SAME}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
