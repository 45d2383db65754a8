"""One answer to "does anyone else hold this?": in place where counts prove it, never elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from everygrad.core import ownership

ROOT = Path(__file__).parents[2]
STEPS = """
import sys
if sys.argv[1:] == ["free-threaded"]:
    sys._is_gil_enabled = lambda: False
import numpy as np
import everygrad as eg
from everygrad.core import ownership

print(ownership.RELIABLE)
eg.manual_seed(0)
model = eg.nn.Sequential(eg.nn.Linear(40, 300), eg.nn.Tanh(), eg.nn.Linear(300, 40))
opt = eg.optim.AdamW(model.parameters(), lr=0.01)
x = eg.tensor(np.linspace(-1, 1, 4000, dtype=np.float32).reshape(100, 40))

def step():
    loss = ((model(x) - x) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss

compiled = eg.jit(step)
for turn in range(4):
    step()
    compiled()
large = eg.ones((1 << 18,))
name = large
large += 1.0
large[5] = 7.0
row = eg.zeros((3, 4))
for part in row:
    assert part.shape == (4,)
print([float(p.sum()) for p in model.parameters()], float(large.sum()), name is large)
"""


def run(*kind: str) -> list[str]:
    command = [sys.executable, "-c", STEPS, *kind]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_without_reliable_counts_nothing_is_written_in_place_and_all_is_right() -> None:
    """A free-threaded build, as far as the package can tell."""
    usual, careful = run(), run("free-threaded")
    assert usual[0] == "True"
    assert careful[0] == "False"
    assert careful[1] == usual[1]


def test_counts_are_read_in_one_module_only() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "everygrad").rglob("*.py"))
        # but for its name, by which jit refuses the function
        if re.search(r'getrefcount(?!")', path.read_text(encoding="utf-8"))
    ]
    assert found == ["everygrad/core/ownership.py"]


def test_counts_taken_under_a_hook_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ownership.calibrated(3) == 3 or not ownership.RELIABLE or ownership.calls_are_hooked()
    monkeypatch.setattr(ownership, "calls_are_hooked", lambda: True)
    assert ownership.calibrated(3) < 0
