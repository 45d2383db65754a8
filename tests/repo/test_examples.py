"""The examples on every device and both ways of running: the same seed, the same curve."""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import everygrad as eg
from examples import digits, gpt, lstm, resnet, vae

ROOT = Path(__file__).parents[2]
SIZES = {"layers": 2, "heads": 2, "width": 32, "tokens": 16, "batch": 4, "steps": 20, "seed": 3}
TINY = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]


@lru_cache
def text() -> gpt.Text:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return gpt.Text(Path(folder.name))


def gpt_run(device: str = "cpu", jit: bool = True, *more: str) -> gpt.Run:
    how = ["--device", device, "--jit" if jit else "--no-jit"]
    return gpt.Run(text(), gpt.arguments([*TINY, *how, *more]))


@lru_cache
def gpt_curve(device: str, jit: bool) -> list[float]:
    run = gpt_run(device, jit)
    gpt.train(run, until=20)
    return run.losses


@lru_cache
def digits_curve(device: str, jit: bool) -> tuple[list[float], float]:
    """The losses of six steps on part of the digits, and the accuracy on others."""
    eg.manual_seed(0)
    train, held_out = digits.load()
    model = digits.network().to(device)
    trainer = digits.make_trainer(model, 2, jit=jit, log_every=1, progress="none")
    part = eg.data.Subset(train, range(3 * digits.BATCH))
    history = digits.fit(trainer, part, held_out, epochs=2)
    return [row["loss"] for row in history if "loss" in row], history[-1]["val_accuracy"]


@pytest.mark.parametrize("jit", [False, True])
def test_the_gpt_learns_and_its_curve_is_the_cpus(device: str, jit: bool) -> None:
    losses = gpt_curve(device, jit)
    assert len(losses) == 20
    assert np.mean(losses[-5:]) < 0.95 * np.mean(losses[:5])
    np.testing.assert_allclose(losses, gpt_curve("cpu", False), rtol=1e-3)


@pytest.mark.parametrize("jit", [False, True])
def test_the_digits_are_learnt_as_on_the_cpu(device: str, jit: bool) -> None:
    losses, accuracy = digits_curve(device, jit)
    expected, reached = digits_curve("cpu", False)
    assert len(losses) == 6
    assert losses[-1] < 0.8 * losses[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    assert abs(accuracy - reached) <= 0.01


def test_a_seed_gives_the_same_weights_and_batches_on_every_device(device: str) -> None:
    here, there = gpt_run("cpu"), gpt_run(device)
    weights = there.model.state_dict()
    assert {value.device for value in weights.values()} == {device}
    for name, value in here.model.state_dict().items():
        np.testing.assert_array_equal(weights[name].to("cpu").numpy(), value.numpy())
    other = gpt_run(device, True, "--seed", "4")
    (first, _), (again, _), (else_, _) = (next(iter(r.loader)) for r in (here, there, other))
    assert again.device == device
    np.testing.assert_array_equal(first.numpy(), again.to("cpu").numpy())
    assert (first.numpy() != else_.to("cpu").numpy()).any()


@pytest.mark.parametrize("jit", [False, True])
def test_a_gpt_goes_on_from_its_checkpoint_bit_by_bit(
    device: str, jit: bool, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "last.safetensors"
    whole, begun, rest = (gpt_run(device, jit) for _ in range(3))
    gpt.train(whole, until=12)
    gpt.train(begun, until=7, checkpoint=checkpoint)
    rest.resume(checkpoint)
    assert len(rest.losses) == 7
    gpt.train(rest, until=12)
    assert rest.losses == whole.losses
    one, other = (run.average.state_dict() for run in (whole, rest))
    for name, value in one.items():
        np.testing.assert_array_equal(other[name].to("cpu").numpy(), value.to("cpu").numpy())
    assert rest.schedule.get_last_lr() == whole.schedule.get_last_lr()


def test_a_gpt_is_one_compiled_function() -> None:
    """Clipping, the schedule and the average change from step to step, and nothing is traced."""
    run = gpt_run("cpu", True)
    gpt.train(run, until=6)
    assert run.step.count == 1
    weight, mean = run.model.head.weight, run.average.module.head.weight
    assert np.abs(weight.detach().numpy() - mean.detach().numpy()).max() > 0


def test_a_causal_model_does_not_see_what_follows() -> None:
    """`write` fills the window with letters behind the last one: they must change nothing."""
    model = gpt_run().model
    window = np.array(eg.data.read_tokens(text().learnt)[None, :16], np.int64)
    before = model(eg.tensor(window)).detach().numpy()
    window[0, 9:] = 0
    after = model(eg.tensor(window)).detach().numpy()
    np.testing.assert_allclose(after[0, :9], before[0, :9], rtol=1e-5, atol=1e-6)
    assert np.abs(after[0, 9:] - before[0, 9:]).max() > 1e-2


def test_an_embedding_of_many_letters_has_the_cpus_gradient(device: str) -> None:
    """A batch as large as the example's own: the tiny one above takes another kernel."""
    rng = np.random.default_rng(0)
    letters, weights = rng.integers(0, 50, (16, 128)), rng.standard_normal((50, 8), np.float32)
    found = []
    for place in ("cpu", device):
        table = eg.tensor(weights, device=place, requires_grad=True)
        rows = eg.nn.functional.embedding(eg.tensor(letters, device=place), table)
        (rows * rows).sum().backward()
        assert table.grad is not None
        found.append(table.grad.to("cpu").numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


# short enough for every device: what to call, and how many steps that makes
SHORT = {
    "resnet": (resnet, ["--small", "--epochs", "1", "--images", "64"], 4),
    "lstm": (lstm, ["--small", "--steps", "5"], 5),
    "vae": (vae, ["--small", "--epochs", "1"], 15),
}


@lru_cache
def short_run(name: str, device: str, jit: bool) -> tuple[int, dict[str, float]]:
    """The steps of a short run, and the numbers at its end."""
    example, given, _ = SHORT[name]
    how = ["--device", device, "--jit" if jit else "--no-jit"]
    trainer = example.train(example.arguments([*given, *how]))
    numbers = {k: v for row in trainer.history for k, v in row.items() if "loss" in k}
    return trainer.step, numbers


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("jit", [False, True])
def test_an_example_learns_as_on_the_cpu(name: str, device: str, jit: bool) -> None:
    steps, numbers = short_run(name, device, jit)
    _, expected = short_run(name, "cpu", False)
    assert steps == SHORT[name][2]
    assert "val_loss" in numbers
    assert {k: pytest.approx(v, rel=1e-3) for k, v in expected.items()} == numbers


@pytest.mark.parametrize(
    ("script", "said", "low", "high"),
    [
        ("resnet.py", "held-out accuracy: ", 25.0, 100.0),  # chance: 12.5
        ("lstm.py", "accuracy on unseen strings: ", 85.0, 100.0),  # chance: 50
        ("vae.py", "bound on unseen digits: ", 50.0, 300.0),  # 530 before the first step
    ],
)
def test_an_example_as_a_program(
    script: str, said: str, low: float, high: float, tmp_path: Path
) -> None:
    result = run(script, "--small", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    number = re.match(r"[\d.]+", result.stdout.split(said)[1])
    assert number is not None
    assert low <= float(number[0]) <= high
    picture = matplotlib.image.imread((tmp_path / script).with_suffix(".png"))
    assert min(picture.shape[:2]) >= 400
    assert picture[..., :3].std() > 0.05  # something is drawn


@pytest.mark.parametrize("script", ["digits.py", "gpt.py", "lstm.py", "resnet.py", "vae.py"])
def test_an_example_says_how_it_is_called(script: str) -> None:
    result = run(script, "--help")
    assert result.returncode == 0, result.stderr
    assert all(f"--{name}" in result.stdout for name in ("device", "jit", "out"))


def test_brackets_are_balanced_or_not() -> None:
    """By the definition: take matching neighbours away until nothing changes."""
    stream = iter(lstm.Strings(20, seed=0))
    seen = []
    for tokens, count, good in (next(stream) for _ in range(300)):
        left = "".join(lstm.BRACKETS[t - 1] for t in tokens[:count])
        for _ in range(count):
            left = left.replace("()", "").replace("[]", "").replace("{}", "")
        assert (left == "") == bool(good)
        assert not tokens[count:].any()
        seen.append(good)
    assert 100 < sum(seen) < 200


def test_a_resnet_18_has_its_parameters() -> None:
    names = dict(resnet.ResNet18(1000).named_parameters())
    assert sum(p.size for p in names.values()) == 11_689_512
    assert names["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1)


def run(script: str, *given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / script), *given]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def test_the_gpt_as_a_program(tmp_path: Path) -> None:
    result = run("gpt.py", *TINY, "--sample", "30", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "100%|" in result.stderr  # the progress bar reached its end
    before, sample = result.stdout.split("sample:\n")
    assert "letters of" in before
    assert "held out" in before
    assert len(sample.split("\nwritten: ")[0]) == 30
    picture = matplotlib.image.imread(tmp_path / "gpt-loss.png")
    assert min(picture.shape[:2]) >= 500
    assert picture[..., :3].std() > 0.05  # something is drawn


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--width", "30", "--heads", "4"], "--width 30 is not a multiple of --heads 4"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--sample", "-1"], "--sample must be at least 0"),
        (["--tokens", "1"], "--tokens must be at least 2"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        gpt.arguments(given)
    assert said in capsys.readouterr().err
