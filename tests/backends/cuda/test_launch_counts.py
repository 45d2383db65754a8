"""How many kernels a step of each optimiser launches on CUDA: as docs/training.md says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import optim
from everygrad.backends import base

DRY = "cuda:dry"
SHAPES = [(256, 256), (256,), (300, 64), (33,), (3, 5, 7), (64, 64)] * 4
MATRICES = [(64, 128), (128, 64), (96, 96), (32, 48), (48, 32), (80, 16)] * 4
PAGE = Path(__file__).parents[3] / "docs" / "training.md"
ROW = re.compile(r"^\| (\w[\w, ]*) \| (\d+)(?: \+ (\d+))? \| (\d+) \|$", re.MULTILINE)
TABLE = {
    name: (int(eager), int(scalars or 0), int(jit))
    for names, eager, scalars, jit in ROW.findall(PAGE.read_text())
    for name in names.split(", ")
}


@pytest.fixture
def gpu() -> Any:
    return base.get(DRY)


def put_grads(params: list[eg.Tensor]) -> None:
    for p in params:
        p.grad = eg.tensor(np.ones(p.shape, np.float32), device=DRY)


@pytest.mark.parametrize("name", TABLE)
def test_launches_are_as_documented(gpu: Any, name: str) -> None:
    shapes = MATRICES if name == "Muon" else SHAPES
    params = [eg.tensor(np.ones(s, np.float32), device=DRY).requires_grad_() for s in shapes]
    opt = getattr(optim, name)(params)
    driver = gpu.gpu.driver
    for _ in range(3):
        put_grads(params)
        before = driver.launches
        opt.step()
    names = [*(driver.launches - before).elements()]
    updates, scalars, compiled = TABLE[name]
    if opt.reduces:
        assert len(opt._compiled.latest.replay.steps()) == updates
    else:
        found = [n.startswith("multi_tensor") for n in names]
        assert (sum(found), len(found) - sum(found)) == (updates, scalars)
    step = eg.jit(lambda: opt.step())
    put_grads(params)
    step()
    assert len(step.latest.replay.steps()) == compiled


@pytest.mark.parametrize("name", ["AdamW", "LAMB", "Adafactor", "Adam8bit", "Muon"])
def test_launches_do_not_grow_with_the_parameters(gpu: Any, name: str) -> None:
    counts = []
    for times in (2, 6):  # of one matrix alone, nothing is stacked
        shapes = (MATRICES if name == "Muon" else SHAPES)[:6] * times
        params = [eg.tensor(np.ones(s, np.float32), device=DRY).requires_grad_() for s in shapes]
        opt = getattr(optim, name)(params)
        step = eg.jit(lambda opt=opt: opt.step())
        for _ in range(2):
            put_grads(params)
            step()
        counts.append(len(step.latest.replay.steps()))
    # Muon's few matrices are one stack, many are one for each of the four shapes
    assert counts[1] <= (4 * 28 if name == "Muon" else counts[0])


def test_every_optimiser_is_documented() -> None:
    kinds = {n for n in optim.__all__ if isinstance(getattr(optim, n), type)}
    steps = {n for n in kinds if issubclass(getattr(optim, n), optim.Optimizer)}
    assert set(TABLE) == steps - {"Optimizer", "LBFGS"}


def test_other_choices_of_parameters_are_not_compiled_for_ever(gpu: Any) -> None:
    params = [
        eg.tensor(np.ones((4, 4), np.float32), device=DRY).requires_grad_() for _ in range(12)
    ]
    opt = optim.Adafactor(params)
    for k in range(12):
        opt.zero_grad()
        put_grads(params[k : k + 1])
        with gpu.launches() as names:
            opt.step()
    assert opt._compiled.count <= 8
    assert len(names) > 5  # op by op
