"""Numbered checkpoints: which are kept, which is the latest, and writing beside the training."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, FileError, MissingFileError, ShapeError
from everygrad.io import checkpoints as module
from everygrad.io.checkpoints import Checkpoints

ROOT = Path(__file__).parents[2]


def steps_of(folder: Path) -> list[int]:
    return [step for step, _ in module.numbered(folder)]


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut off":
        del data[len(data) // 2 :]
    elif how == "empty":
        data.clear()
    elif how == "a bit of the header":
        data[60] ^= 1
    else:
        data[-1] ^= 1
    path.write_bytes(data)


# --- the latest ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut off", "empty", "a bit of the header", "a bit of the tensors"])
def test_damaged_ones_are_passed_over_aloud(tmp_path: Path, how: str) -> None:
    made = Checkpoints(tmp_path, keep_last=None)
    for step in (2, 9, 10, 11):
        made.save(step, {"step": step, "w": eg.full((1000,), step)})
    damage(made.paths()[-1], how)
    damage(made.paths()[-2], how)
    live = {"step": 0, "w": eg.zeros((1000,), dtype=eg.int64)}
    with pytest.warns(UserWarning, match=r"passed over .*step-000000\d+\.safetensors") as seen:
        assert eg.load_latest(tmp_path, into=live) is live
    assert len(seen) == 2
    assert live["step"] == 9  # and not 2: numbers, not text
    assert live["w"].tolist() == [9] * 1000


def test_when_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"no checkpoint in .*: there is none"):
        eg.load_latest(tmp_path)
    with pytest.raises(MissingFileError, match="load_latest: there is no file"):
        eg.load_latest(tmp_path / "none")
    Checkpoints(tmp_path).save(1, {})
    damage(tmp_path / "step-00000001.safetensors", "empty")
    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(FileError, match=r"none is whole: step-00000001\.safetensors"),
    ):
        eg.load_latest(tmp_path)


def test_a_whole_one_that_does_not_fit_raises(tmp_path: Path) -> None:
    """It is no reason to train on from an older one."""
    made = Checkpoints(tmp_path)
    made.save(1, eg.nn.Linear(3, 2))
    made.save(2, eg.nn.Linear(4, 2))
    with pytest.raises(ShapeError, match=r"weight has shape \(2, 4\), not \(2, 3\)"):
        eg.load_latest(tmp_path, into=eg.nn.Linear(3, 2))


def test_other_files_are_let_alone(tmp_path: Path) -> None:
    for name in ("step-x.safetensors", "step-00000009.safetensors.bak", "notes.txt"):
        (tmp_path / name).write_text("mine")
    made = Checkpoints(tmp_path, keep_last=1)
    made.save(1, {"step": 1})
    made.save(2, {"step": 2})
    assert eg.load_latest(tmp_path) == {"step": 2}
    assert len(os.listdir(tmp_path)) == 4


# --- what is kept --------------------------------------------------------------------------------

METRICS = {1: 0.5, 2: 0.2, 3: None, 4: math.nan, 5: 0.3, 6: 0.9, 7: 0.2, 8: 0.4}


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "best", "kept"),
    [
        (1, 0, "min", [8]),
        (3, 0, "min", [6, 7, 8]),
        (2, 1, "min", [7, 8]),
        (2, 2, "min", [2, 7, 8]),
        (2, 1, "max", [6, 7, 8]),
        (1, 2, "max", [1, 6, 8]),
        (None, 1, "max", [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["one object", "a new one each time"])
def test_what_is_kept(
    tmp_path: Path, keep_last: Any, keep_best: int, best: str, kept: list[int], again: bool
) -> None:
    def opened() -> Checkpoints:
        return Checkpoints(tmp_path, keep_last=keep_last, keep_best=keep_best, best=best)

    made = opened()
    for step, metric in METRICS.items():
        made = opened() if again else made
        made.save(step, {"step": step}, metric=metric)
    assert steps_of(tmp_path) == kept
    wanted = 7 if best == "min" else 6
    found = made.best_path()
    assert found is not None
    assert (eg.load(found)["step"] == wanted) == (wanted in kept)


def test_later_ones_of_another_run(tmp_path: Path) -> None:
    """They are let alone, and the new one is not deleted for being older."""
    for step in (10, 20):
        Checkpoints(tmp_path).save(step, {})
    made = Checkpoints(tmp_path, keep_last=1)
    with pytest.warns(UserWarning, match="has a checkpoint of step 20, which load_latest prefers"):
        made.save(11, {})
    made.save(12, {})  # it is said once
    assert steps_of(tmp_path) == [12, 20]


def test_settings_are_checked(tmp_path: Path) -> None:
    for wrong, name in (
        ({"keep_last": 0}, "keep_last"),
        ({"keep_last": True}, "keep_last"),
        ({"keep_best": -1}, "keep_best"),
        ({"best": "least"}, "best"),
    ):
        with pytest.raises(ArgumentError, match=f"Checkpoints: {name} must be"):
            Checkpoints(tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="step must be at least 0, got -1"):
        Checkpoints(tmp_path).save(-1, {})


# --- writing beside the training -----------------------------------------------------------------


class Disk:
    """A disk that writes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.fails: Exception | None = None
        self.threads: list[str] = []
        real = module.write

        def write(*args: Any) -> None:
            self.threads.append(threading.current_thread().name)
            assert self.go.wait(60)
            if self.fails is not None:
                raise self.fails
            real(*args)

        monkeypatch.setattr(module, "write", write)


def test_a_step_goes_on_while_the_last_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """What is written is what was there when save was called, though all of it changes at once:
    by a compiled step, which writes parameters in place where nobody else holds them."""
    model = eg.nn.Linear(512, 512).to(device)
    optimizer = eg.optim.AdamW(model.parameters(), lr=0.1)

    @eg.jit
    def step(x: eg.Tensor) -> eg.Tensor:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, array = eg.randn((4, 512), device=device), np.zeros(3)
    for _ in range(3):
        step(x)
    disk = Disk(monkeypatch)
    made = Checkpoints(tmp_path, asynchronous=True)
    wanted = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    moments = [
        {k: v.numpy().copy() for k, v in s.items()}
        for s in optimizer.state_dict()["state"].values()
    ]
    made.save(3, {"model": model, "optimizer": optimizer, "array": array})
    for _ in range(5):
        step(x)  # nothing is on the disk yet
    array += 1
    assert steps_of(tmp_path) == []
    disk.go.set()
    made.close()
    assert disk.threads == ["everygrad-checkpoints"]
    found = eg.load_latest(tmp_path)
    for name, values in wanted.items():
        np.testing.assert_array_equal(found["model"][name].numpy(), values)
        assert (model.state_dict()[name].numpy() != values).any()
    for saved, held in zip(found["optimizer"]["state"].values(), moments, strict=True):
        for name, values in held.items():
            np.testing.assert_array_equal(saved[name].numpy(), values)
    assert found["array"].tolist() == [0.0] * 3


def test_one_writes_and_one_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    made = Checkpoints(tmp_path, keep_last=None, asynchronous=True)
    made.save(1, {})
    while not disk.threads:  # the first is with the disk
        threading.Event().wait(0.01)
    made.save(2, {})
    with pytest.warns(UserWarning, match="step 2 is not written"):
        made.save(3, {})
    disk.go.set()
    made.wait()
    assert steps_of(tmp_path) == [1, 3]


def test_errors_come_with_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    disk.go.set()
    made = Checkpoints(tmp_path, asynchronous=True)
    for ask in (made.wait, made.close, made.load_latest, lambda: made.save(3, {})):
        disk.fails = OSError(28, "No space left on device")
        made.save(1, {})
        with made._lock:
            made._lock.wait_for(lambda: not made._busy)
        with pytest.raises(OSError, match="No space left"):
            ask()
        made.close()  # it is said once
    disk.fails = None
    made.save(2, {"step": 2})
    assert made.load_latest() == {"step": 2}


def test_the_end_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended the block says more than what the disk said."""
    disk = Disk(monkeypatch)
    disk.go.set()
    disk.fails = OSError(28, "No space left on device")

    def block(own: Exception | None) -> None:
        with Checkpoints(tmp_path, asynchronous=True) as made:
            made.save(4, {})
            if own is not None:
                raise own

    with pytest.raises(KeyError, match="its own"):
        block(KeyError("its own"))
    with pytest.raises(OSError, match="No space left"):
        block(None)


def test_a_program_that_ends_at_once_has_saved(tmp_path: Path) -> None:
    code = (
        "import sys, everygrad as eg; made = eg.io.Checkpoints(sys.argv[1], asynchronous=True); "
        "made.save(7, {'step': 7, 'w': eg.ones((2_000_000,))})"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=env, check=True, timeout=120)
    found = eg.load_latest(tmp_path)
    assert found["step"] == 7
    assert (found["w"].numpy() == 1).all()
