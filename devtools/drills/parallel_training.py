"""50 steps of a small GPT on simulated ranks, in every way there is, beside one process.

    python -m devtools.drills.parallel_training [--shard 1/8] [word ...]
    mpiexec -n 2 python -m devtools.drills.parallel_training [--shard 1/8] [word ...]

Under mpiexec the ranks are processes, and the cases those that have as many; more ranks than
cores take `--oversubscribe`. Shards are parts of the cases, to be run at once: each ends with one
line that says how many there were, how many were wrong, and the largest difference.
The short form is `tests/distributed/test_equal_to_one_process.py`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

import everygrad.distributed as dist
from tests.distributed import small_gpt

STEPS, SAME = small_gpt.STEPS, 1e-12


Case = tuple[str, Callable[..., list[float]], dict[str, int], tuple[Any, ...]]


def cases() -> list[Case]:
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


def chosen(words: Sequence[str], shard: str, ranks: int) -> list[Case]:
    """The cases whose names have all words, and of these part i of n; of several processes, those
    that have as many ranks."""
    fitting = [
        case
        for case in cases()
        if ranks in (1, prod(case[2].values())) and all(w in f"{case[2]} {case[0]}" for w in words)
    ]
    random.Random(0).shuffle(fitting)  # the same on all ranks; every part has some of every kind
    part, _, parts = shard.partition("/")
    return fitting[int(part) - 1 :: int(parts)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("words", nargs="*", help="cases whose names have all of them")
    parser.add_argument("--shard", default="1/1", help="i/n: part i of n, from 1 on")
    given = parser.parse_args()
    ranks = dist.world_size()  # 1: they are simulated
    say = partial(print, flush=True) if dist.rank() == 0 else lambda *_: None
    want = small_gpt.losses_of_one_process(STEPS)
    picked = chosen(given.words, given.shard, ranks)
    gaps, raised = [0.0], 0
    for name, run, axes, rest in picked:
        begun = time.process_time()
        try:
            count = prod(axes.values())
            found = [run(axes, *rest)] if ranks > 1 else dist.run_local(run, count, axes, *rest)
        except Exception as error:
            if ranks > 1:  # the other ranks are somewhere else now
                raise
            raised += 1
            say(f"{axes} {name}: {type(error).__name__}: {error}")
            continue
        gap = max(abs(a - b) for losses in found for a, b in zip(losses, want, strict=True))
        gaps.append(gap)
        seconds = time.process_time() - begun
        say(f"{axes} {name}: {gap:.1e} {'' if gap <= SAME else 'WRONG'} ({seconds:.1f} s)")
    wrong = sum(not gap <= SAME for gap in gaps)
    say(
        f"shard {given.shard}, {ranks} processes: {len(picked)} cases, {wrong} differ by more than "
        f"{SAME}, {raised} raised; the largest difference is {max(gaps):.1e}"
    )
    return 1 if wrong or raised else 0


if __name__ == "__main__":
    sys.exit(main())
