"""A process that is killed while it saves leaves the previous checkpoint whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import everygrad as eg
from everygrad.io import files

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills children that were forked")
def test_kills_at_random_instants() -> None:
    """The short form of `python -m devtools.drills.saving`, in a process that can be forked."""
    command = [sys.executable, "-m", "devtools.drills.saving", "--kills", "45", "--megabytes", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    counts = {what: int(n) for n, what in re.findall(r"^ *(\d+)  (.*)$", result.stdout, re.M)}
    assert counts["kills"] == 45
    assert counts["half a file was left beside it"] > 0  # some of them hit


def test_a_save_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    eg.save(path, {"step": 1, "w": eg.ones((1000,))})
    for name in ("fsync", "replace", "pwrite"):

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, name, full)
            with pytest.raises(OSError, match="No space"):
                eg.save(path, {"step": 2, "w": eg.zeros((1000,))})
        assert os.listdir(tmp_path) == ["x.safetensors"]
        assert eg.load(path)["step"] == 1


def test_orphans_are_told_from_files_that_are_written(tmp_path: Path) -> None:
    orphan = tmp_path / ".x.safetensors.0123456789abcdef.tmp"
    other = tmp_path / ".mine.tmp"
    for path in (orphan, other):
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    with files.replacing(tmp_path / "y.safetensors") as file:
        (written,) = [p for p in tmp_path.iterdir() if ".y." in p.name]
        os.utime(written, (0, 0))
        assert files.remove_orphans(tmp_path) == [orphan]
        files.write_at(file, memoryview(b"whole"), 0)
    assert {p.name for p in tmp_path.iterdir()} == {".mine.tmp", "y.safetensors"}
    for name in ("x.safetensors", "y.safetensors"):  # a later save of that name removes its own
        orphan.write_bytes(b"half")
        os.utime(orphan, (0, 0))
        eg.save(tmp_path / name, {"step": 1})
        assert orphan.exists() == (name == "y.safetensors")
        orphan.unlink(missing_ok=True)
    orphan.write_bytes(b"young")
    os.utime(orphan, (time.time() + 60, time.time() + 60))
    assert files.remove_orphans(tmp_path) == []
