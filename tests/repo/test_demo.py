"""The demo, as `make demo` runs it, but shorter."""

import os
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import matplotlib.image
import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]


def command(folder: Path) -> list[str]:
    script = ROOT / "examples/digits.py"
    return [sys.executable, "-W", "error", str(script), "--out", str(folder)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command(folder), *options],
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_short_demo_learns_and_writes_its_files(tmp_path: Path) -> None:
    result = run(tmp_path, "--epochs", "4", "--target", "90")
    assert result.returncode == 0, result.stderr
    percent = float(result.stdout.split("held-out accuracy: ")[1].split(" %")[0])
    assert percent >= 90
    assert "epoch 4: " in result.stderr  # no terminal: a line for each epoch, and no bar
    assert "%|" not in result.stderr
    picture = matplotlib.image.imread(tmp_path / "digits.png")
    assert min(picture.shape[:2]) >= 500
    assert picture[..., :3].std() > 0.05  # something is drawn
    weights = load_file(tmp_path / "digits.safetensors")
    assert weights["10.weight"].shape == (10, 128)
    assert all(np.isfinite(w).all() for w in weights.values())
    assert {path.name for path in tmp_path.iterdir()} == {
        "digits",  # the run's log and checkpoints
        "digits.png",
        "digits.safetensors",
    }


def test_a_terminal_shows_a_bar_to_its_end(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    shown = b""
    try:
        with subprocess.Popen(
            [*command(tmp_path), "--epochs", "1", "--target", "10"],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            # the terminal ends with an error once the process has let go of it
            with suppress(OSError):
                while part := os.read(ours, 4096):
                    shown += part
        assert process.returncode == 0
    finally:
        os.close(ours)
    assert b"100%|" in shown
    assert b"step/s" in shown


def test_an_interrupted_demo_is_resumed_to_the_same_weights(tmp_path: Path) -> None:
    """Ctrl-C behind the first epoch, then the rest, beside a run that is not stopped."""
    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    whole = run(tmp_path / "whole", "--epochs", "3", "--target", "50")
    assert whole.returncode == 0, whole.stderr
    with subprocess.Popen(
        [*command(tmp_path / "parts"), "--epochs", "3", "--target", "50"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "epoch 1" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "--resume goes on" in said
    rest = run(tmp_path / "parts", "--epochs", "3", "--target", "50", "--resume")
    assert rest.returncode == 0, rest.stderr
    one, other = (load_file(tmp_path / f / "digits.safetensors") for f in ("whole", "parts"))
    assert set(one) == set(other)
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_the_compiled_demo_learns_as_the_eager_one_does(tmp_path: Path) -> None:
    said = []
    for folder, options in (("eager", ["--no-jit"]), ("jit", [])):
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
