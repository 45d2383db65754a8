"""Training on simulated ranks gives the losses of one process on the same batches.

`python -m devtools.drills.parallel_training` runs more steps of more combinations.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

import everygrad.distributed as dist
from tests.distributed import small_gpt

SAME = 1e-12
SHORT = 4  # steps; one combination of each kind runs all

# (mesh, level of ZeRO with 0 for plain data parallel, steps, compiled)
DATA: list[tuple[dict[str, int], int, int, bool]] = [
    ({"data": 1}, 0, SHORT, False),
    ({"data": 2}, 0, small_gpt.STEPS, False),
    ({"data": 2}, 0, SHORT, True),
    ({"data": 4}, 0, SHORT, False),
    ({"data": 8}, 0, SHORT, False),
    ({"data": 2}, 1, SHORT, True),
    ({"data": 2}, 2, SHORT, True),
    ({"data": 4}, 2, SHORT, False),
    ({"data": 2}, 3, small_gpt.STEPS, False),
    ({"data": 1, "model": 2}, 0, small_gpt.STEPS, False),
    ({"data": 1, "model": 4}, 0, SHORT, False),
    ({"data": 2, "model": 2}, 1, SHORT, False),
    ({"data": 2, "model": 2}, 3, SHORT, True),
    ({"data": 1, "model": 2}, 3, SHORT, True),
]
# (mesh, schedule, microbatches, stages, level, steps, compiled)
PIPES: list[tuple[dict[str, int], str, int, int, int, int, bool]] = [
    ({"pipe": 1}, "gpipe", 4, 1, 0, SHORT, False),
    ({"pipe": 1}, "interleaved", 4, 4, 0, SHORT, False),
    ({"pipe": 2}, "gpipe", 4, 2, 0, SHORT, True),
    ({"pipe": 2}, "1f1b", 4, 2, 0, small_gpt.STEPS, False),
    ({"pipe": 2}, "1f1b", 4, 2, 0, SHORT, True),
    ({"pipe": 4}, "1f1b", 3, 4, 0, SHORT, False),
    ({"pipe": 2}, "interleaved", 4, 4, 0, SHORT, False),
    ({"pipe": 2}, "interleaved", 4, 4, 0, SHORT, True),
    ({"data": 2, "pipe": 2}, "1f1b", 2, 2, 0, SHORT, False),
    ({"data": 2, "pipe": 2}, "1f1b", 2, 2, 2, SHORT, True),
    ({"data": 2, "pipe": 2}, "interleaved", 2, 4, 3, SHORT, False),
    ({"data": 2, "pipe": 2, "model": 2}, "1f1b", 2, 2, 3, SHORT, False),
    ({"data": 2, "pipe": 2, "model": 2}, "1f1b", 2, 2, 3, SHORT, True),
]


def ranks_of(axes: dict[str, int]) -> int:
    return prod(axes.values())


def check(found: list[list[float]]) -> None:
    """Every rank's losses beside those of one process."""
    want = small_gpt.losses_of_one_process(small_gpt.STEPS)
    for losses in found:
        gaps = [abs(a - b) for a, b in zip(losses, want, strict=False)]
        assert len(gaps) >= SHORT
        assert max(gaps) < SAME


def shown(case: tuple[Any, ...]) -> str:
    mesh = "x".join(f"{name}{size}" for name, size in case[0].items())
    return "-".join([mesh, *(str(part) for part in case[1:])])


@pytest.mark.parametrize("case", DATA, ids=shown)
def test_data_and_tensor_parallel(case: tuple[dict[str, int], int, int, bool]) -> None:
    axes, level, steps, jit = case
    check(dist.run_local(small_gpt.losses, ranks_of(axes), axes, level, steps, jit))


@pytest.mark.parametrize("case", PIPES, ids=shown)
def test_pipelines(case: tuple[dict[str, int], str, int, int, int, int, bool]) -> None:
    axes, *rest = case
    check(dist.run_local(small_gpt.pipeline_losses, ranks_of(axes), axes, *rest))
