"""The demo, as `make demo` runs it, but shorter."""

import os
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-W",
        "error",
        ROOT / "examples/digits.py",
        "--out",
        folder,
        *options,
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_short_demo_learns_and_writes_its_files(tmp_path: Path) -> None:
    result = run(tmp_path, "--epochs", "4", "--target", "90")
    assert result.returncode == 0, result.stderr
    percent = float(result.stdout.split("held-out accuracy: ")[1].split(" %")[0])
    assert percent >= 90
    assert "100%|" in result.stderr  # the progress bar reached its end
    for name in ("loss.png", "predictions.png"):
        picture = matplotlib.image.imread(tmp_path / name)
        assert min(picture.shape[:2]) >= 500
        assert picture[..., :3].std() > 0.05  # something is drawn
    weights = load_file(tmp_path / "digits.safetensors")
    assert weights["10.weight"].shape == (10, 128)
    assert all(np.isfinite(w).all() for w in weights.values())
    assert not list(tmp_path.glob(".*.tmp"))


def test_the_compiled_demo_learns_as_the_eager_one_does(tmp_path: Path) -> None:
    said = []
    for folder, options in (("eager", []), ("jit", ["--jit"])):
        (tmp_path / folder).mkdir()
        result = run(tmp_path / folder, "--epochs", "2", "--target", "80", *options)
        assert result.returncode == 0, result.stderr
        said.append(result.stdout)
    assert "(cpu, eager: " in said[0]
    assert "(cpu, compiled: " in said[1]
    percents = [float(s.split("held-out accuracy: ")[1].split(" %")[0]) for s in said]
    assert abs(percents[0] - percents[1]) <= 1
    one, other = (load_file(tmp_path / f / "digits.safetensors") for f in ("eager", "jit"))
    assert all(np.abs(one[name] - other[name]).max() < 1e-2 for name in one)


def test_a_demo_that_misses_its_target_says_so(tmp_path: Path) -> None:
    result = run(tmp_path, "--epochs", "1", "--target", "100")
    assert result.returncode == 1
    assert "below the 100 % it should reach" in result.stderr


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, "--device", "tpu")
    assert result.returncode != 0
    assert "device 'tpu' is not available" in result.stderr
