"""Training that is saved, loaded in another process and taken up again is bit-identical."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg

ROOT = Path(__file__).parents[2]
STEPS, STOP = 30, 13


class Run:
    """A network with dropout and batch norm, AdamW, a falling rate, data drawn from a generator."""

    def __init__(self, device: str, jitted: bool) -> None:
        eg.manual_seed(7)
        nn = eg.nn
        self.model = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3)
        ).to(device)
        self.optimizer = eg.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.data = eg.Generator(11)
        self.device = device
        self.position = {"step": 0, "losses": []}
        self.step = eg.jit(self._step) if jitted else self._step

    def _step(self, x: eg.Tensor, y: eg.Tensor) -> eg.Tensor:
        self.optimizer.zero_grad()
        loss = eg.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "random": eg.default_generator,
            "data": self.data,
            "position": self.position,
        }

    def train_until(self, last: int) -> None:
        while self.position["step"] < last:
            x = eg.randn((8, 6), generator=self.data).to(self.device)
            y = eg.randint(0, 3, (8,), generator=self.data).to(self.device)
            self.position["losses"].append(float(self.step(x, y).item()).hex())
            self.position["step"] += 1
            for group in self.optimizer.param_groups:
                group["lr"] = 1e-2 * 0.97 ** self.position["step"]


def take_up(before: str, after: str, device: str, jitted: bool) -> None:
    """What the second process does."""
    run = Run(device, jitted)
    eg.manual_seed(999)  # what it draws must come from the file
    eg.load(before, into=run.state())
    assert run.position["step"] == STOP
    run.train_until(STEPS)
    eg.save(after, run.state())


def equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            equal(x, y)
    elif isinstance(a, eg.Tensor):
        assert a.dtype is b.dtype
        np.testing.assert_array_equal(a.numpy(), b.numpy(), strict=True)
    else:
        assert a == b


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_thirty_steps_are_thirteen_and_seventeen(tmp_path: Path, device: str, jitted: bool) -> None:
    whole = Run(device, jitted)
    whole.train_until(STEPS)
    eg.save(tmp_path / "whole", whole.state())

    first = Run(device, jitted)
    first.train_until(STOP)
    eg.save(tmp_path / "before", first.state())
    code = (
        "import sys; from tests.io.test_resume import take_up; "
        "take_up(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == 'True')"
    )
    names = [str(tmp_path / "before"), str(tmp_path / "after"), device, str(jitted)]
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *names],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    one, two = eg.load(tmp_path / "whole"), eg.load(tmp_path / "after")
    assert len(set(one["position"]["losses"])) == STEPS
    equal(one, two)


def test_taking_up_in_place(tmp_path: Path, device: str) -> None:
    """A compiled step that exists already goes on from what was loaded into its tensors."""
    run = Run(device, jitted=True)
    run.train_until(STOP)
    eg.save(tmp_path / "before", run.state())
    run.train_until(STEPS)
    eg.save(tmp_path / "once", run.state())
    eg.load(tmp_path / "before", into=run.state())
    assert run.position["step"] == STOP
    assert len(run.position["losses"]) == STOP
    run.train_until(STEPS)
    eg.save(tmp_path / "twice", run.state())
    equal(eg.load(tmp_path / "once"), eg.load(tmp_path / "twice"))
