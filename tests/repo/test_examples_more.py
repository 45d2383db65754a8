"""The examples beside the digits and the GPT, at sizes of seconds."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from examples import burgers, dqn, maml, neural_ode, private_digits, sentence_encoder

ROOT = Path(__file__).parents[2]
EXAMPLES = ["burgers", "dqn", "maml", "neural_ode", "private_digits", "sentence_encoder"]


def flags(device: str, jit: bool) -> list[str]:
    return ["--device", device, *([] if jit else ["--eager"])]


def quiet(line: str) -> None:
    """Takes the place of print."""


def run(script: str, *given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / script), *given]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_says_how_it_is_called(name: str) -> None:
    result = run(f"{name}.py", "--help")
    assert result.returncode == 0, result.stderr
    assert "--device" in result.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_states_its_full_size_result(name: str) -> None:
    """Figures that were measured, in the docstring: a percentage, an error or a return."""
    text = (ROOT / "examples" / f"{name}.py").read_text("utf-8").split('"""')[1]
    assert any(letter.isdigit() for letter in text.split("\n\n")[-1])


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        (burgers, ["--viscosity", "0"], "--viscosity must be above 0"),
        (dqn, ["--envs", "0"], "--envs must be at least 1"),
        (maml, ["--points", "0"], "--points must be at least 1"),
        (neural_ode, ["--span", "500"], "--span must be below the 500 times"),
        (private_digits, ["--rate", "0"], "--rate must be above 0 and at most 1"),
        (private_digits, ["--clip", "inf"], "--clip must be a number above 0"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(
    module: Any, given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        module.arguments(given)
    assert said in capsys.readouterr().err


TINY = {
    "burgers": ["--steps", "10", "--points", "64", "--width", "8"],
    "maml": ["--steps", "10", "--tasks", "4"],
    "neural_ode": ["--steps", "10", "--span", "4", "--batch", "8", "--width", "8"],
}


@lru_cache
def curve(name: str, device: str, jit: bool) -> list[float]:
    """The losses of ten steps."""
    given = [*TINY[name], *flags(device, jit)]
    if name == "maml":
        return maml.train(maml.starting_weights(0, device), maml.arguments(given), quiet)
    module: Any = {"burgers": burgers, "neural_ode": neural_ode}[name]
    options = module.arguments(given)
    losses: list[float] = module.train(module.build(options), options, quiet)
    return losses


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_a_curve_is_that_of_the_cpu(name: str, device: str, jit: bool) -> None:
    losses = curve(name, device, jit)
    assert len(losses) == 10
    assert len(set(losses)) == 10
    np.testing.assert_allclose(losses, curve(name, "cpu", False), rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("burgers", TINY["burgers"], "relative error against the exact solution: 0."),
        ("dqn", ["--steps", "10", "--envs", "8", "--width", "8"], "without exploration: "),
        ("maml", TINY["maml"], "error after 10 steps on an unseen sine: "),
        ("neural_ode", TINY["neural_ode"], "mean distance from an unseen start: "),
        ("private_digits", ["--steps", "10"], "no privacy: held-out accuracy "),
    ],
)
def test_an_example_as_a_program(name: str, given: list[str], said: str) -> None:
    result = run(f"{name}.py", *given)
    assert result.returncode == 0, result.stderr
    assert said in result.stdout


# --- Burgers' equation -----------------------------------------------------------------------


def test_the_exact_solution_solves_burgers_equation() -> None:
    x, t = (a.ravel() for a in np.meshgrid(np.linspace(-0.9, 0.9, 7), np.linspace(0.1, 0.9, 5)))
    viscosity, h = 0.1, 1e-4

    def u(dx: float = 0.0, dt: float = 0.0) -> Any:
        return burgers.exact(x + dx, t + dt, viscosity)

    u_t, u_x = (u(dt=h) - u(dt=-h)) / (2 * h), (u(dx=h) - u(dx=-h)) / (2 * h)
    u_xx = (u(dx=h) - 2 * u() + u(dx=-h)) / h**2
    np.testing.assert_allclose(u_t + u() * u_x, viscosity / np.pi * u_xx, atol=1e-5)
    assert np.abs(u()).max() > 0.5


def test_the_residual_is_that_of_finite_differences() -> None:
    wave = burgers.build(burgers.arguments(["--width", "8"])).to(dtype="float64")
    place, h = np.random.default_rng(0).uniform(0.1, 0.9, (20, 2)), 1e-4

    def u(dx: float = 0.0, dt: float = 0.0) -> Any:
        return wave(eg.tensor(place + np.array([dx, dt]))).detach().numpy()

    u_t, u_x = (u(dt=h) - u(dt=-h)) / (2 * h), (u(dx=h) - u(dx=-h)) / (2 * h)
    u_xx = (u(dx=h) - 2 * u() + u(dx=-h)) / h**2
    found = burgers.residual(wave, eg.tensor(place), 0.1).detach().numpy()
    np.testing.assert_allclose(found, u_t + u() * u_x - 0.1 / np.pi * u_xx, atol=1e-6)


def test_a_network_learns_burgers_equation() -> None:
    sizes = ["--points", "128", "--width", "16", "--viscosity", "0.3", "--steps", "300"]
    options = burgers.arguments(sizes)
    wave = burgers.build(options)
    before = burgers.error(wave, options)
    losses = burgers.train(wave, options, quiet)
    assert len(losses) == 10
    assert losses[-1] < 0.5 * losses[0]
    assert burgers.error(wave, options) < 0.4 * before


# --- DQN -------------------------------------------------------------------------------------


def test_a_cart_moves_by_newtons_laws() -> None:
    """At rest, the accelerations of cart and pole by hand; and the ends of an episode."""
    carts = eg.tensor(np.array([[0.0, 0.0, 0.0, 0.0], [2.39, 5.0, 0.0, 0.0], [0, 0, 0.2, 3.0]]))
    after, failed = dqn.push(carts, eg.tensor([1, 1, 0]))
    spin = -(10 / 1.1) / (0.5 * (4 / 3 - 0.1 / 1.1))
    speed = 10 / 1.1 - 0.1 * 0.5 * spin / 1.1
    np.testing.assert_allclose(after.numpy()[0], [0, 0.02 * speed, 0, 0.02 * spin], rtol=1e-12)
    assert failed.tolist() == [False, True, True]


DQN = ["--envs", "32", "--batch", "64", "--memory", "8192", "--width", "32"]


def test_the_dqn_learns_to_balance() -> None:
    learner = dqn.Learner(dqn.arguments([*DQN, "--steps", "600"]))
    means = dqn.train(learner, quiet)
    assert len(means) == 10
    assert means[-1] > 2 * means[0]  # chance gives about 22
    assert dqn.evaluate(learner, 20) > 2 * means[0]


@pytest.mark.parametrize("jit", [False, True])
def test_the_dqn_plays_and_remembers_on_every_device(device: str, jit: bool) -> None:
    learner = dqn.Learner(dqn.arguments([*DQN, "--steps", "10", *flags(device, jit)]))
    before = [p.to("cpu").detach().numpy() for p in learner.model.parameters()]
    assert len(dqn.train(learner, quiet)) == 10
    after = [p.to("cpu").detach().numpy() for p in learner.model.parameters()]
    assert all((a != b).any() for a, b in zip(after, before, strict=True))
    held = np.abs(learner.memory.to("cpu").numpy()).sum(axis=(1, 2)) > 0
    assert held.tolist() == [True] * 10 + [False] * (learner.slots - 10)


def test_a_transition_is_remembered_as_it_was() -> None:
    options = dqn.arguments(["--envs", "4", "--steps", "3", "--batch", "4", "--memory", "12"])
    learner = dqn.Learner(options)
    step, now = eg.jit(learner.step), learner.begin()
    for i in range(3):
        before = now.cart.numpy()
        now = step(now)
        row = learner.memory[i].numpy()
        np.testing.assert_allclose(row[:, :4], before)
        after, failed = dqn.push(eg.tensor(row[:, :4]), eg.tensor(row[:, 8].astype(np.int64)))
        np.testing.assert_allclose(row[:, 4:8], after.numpy(), rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(row[:, 9] > 0, failed.numpy())
    assert now.steps.item() == 3


# --- MAML ------------------------------------------------------------------------------------


def test_the_meta_gradient_is_that_of_finite_differences() -> None:
    """The gradient runs through the inner step, not only to the weights after it."""
    weights = [w.detach().astype("float64") for w in maml.starting_weights(0, "cpu")]
    task = [t.astype("float64") for t in maml.tasks(np.random.default_rng(0), 3, 5, "cpu")]
    slopes = eg.grad(maml.meta_loss)(weights, *task)
    rng = np.random.default_rng(1)
    along = [eg.tensor(rng.standard_normal(w.shape)) for w in weights]
    h = 1e-5
    ahead, behind = (
        maml.meta_loss([w + s * h * d for w, d in zip(weights, along, strict=True)], *task)
        for s in (1, -1)
    )
    expected = ((ahead - behind) / (2 * h)).item()
    found = sum((g * d).sum().item() for g, d in zip(slopes, along, strict=True))
    assert abs(found - expected) < 1e-7 * max(1.0, abs(expected))


def test_maml_learns_to_adapt() -> None:
    options = maml.arguments(["--steps", "1500", "--tasks", "10"])
    weights = maml.starting_weights(0, "cpu")
    assert len(maml.train(weights, options, quiet)) == 10
    before, after, later = (maml.evaluate(weights, options, n) for n in (0, 1, 5))
    assert after < 0.6 * before
    assert later < 0.4 * before


# --- differential privacy --------------------------------------------------------------------


def test_each_gradient_is_clipped_and_padding_counts_for_nothing(device: str) -> None:
    rng = np.random.default_rng(0)
    weights = private_digits.starting_weights(0, device)
    x = eg.tensor(rng.standard_normal((6, 64)).astype(np.float32), device=device)
    y = eg.tensor(rng.integers(0, 10, 6), device=device)
    clip, expected = 0.5, [np.zeros(w.shape) for w in weights]
    for i in range(4):  # one by one, by the ordinary backward pass
        for w in weights:
            w.grad = None
        private_digits.loss_of_one(weights, x[i], y[i]).backward()
        own = [w.grad.to("cpu").numpy() for w in weights if w.grad is not None]
        assert len(own) == 4
        length = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in own))
        assert length > clip
        expected = [e + g * clip / length for e, g in zip(expected, own, strict=True)]
    real = eg.tensor([1.0] * 4 + [0.0] * 2, device=device)
    found = private_digits.private_sum(weights, x, y, real, clip, 0.0)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.detach().to("cpu").numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_the_noise_has_the_size_the_accountant_counts_on() -> None:
    eg.manual_seed(0)
    weights = private_digits.starting_weights(0, "cpu")
    x, y = eg.zeros((2, 64)), eg.tensor([0, 1])
    noisy = private_digits.private_sum(weights, x, y, eg.zeros((2,)), clip=0.5, noise=3.0)
    values = np.concatenate([g.detach().numpy().ravel() for g in noisy])
    assert len(values) == 64 * 64 + 64 + 640 + 10
    assert abs(values.std() / 1.5 - 1) < 0.05
    assert abs(values.mean()) < 0.1


@pytest.mark.parametrize(("order", "rate", "noise"), [(2, 0.1, 1.0), (5, 0.01, 0.8), (20, 0.3, 4)])
def test_the_renyi_divergence_is_that_of_its_integral(
    order: int, rate: float, noise: float
) -> None:
    """Of the densities with and without one example, by a fine sum."""
    z = np.linspace(-12 * noise, 12 * noise + 2 * order, 400_001)
    without = np.exp(-(z**2) / (2 * noise**2)) / (noise * np.sqrt(2 * np.pi))
    ratio = 1 - rate + rate * np.exp((2 * z - 1) / (2 * noise**2))
    moment = np.sum(without * ratio**order) * (z[1] - z[0])
    expected = np.log(moment) / (order - 1)
    np.testing.assert_allclose(private_digits.renyi(order, rate, noise), expected, rtol=1e-6)


def test_epsilon_falls_with_noise_and_grows_with_steps() -> None:
    base = private_digits.epsilon(400, 0.1, 2.0, 1e-4)
    assert private_digits.epsilon(400, 0.1, 4.0, 1e-4) < base < 5
    assert private_digits.epsilon(800, 0.1, 2.0, 1e-4) > base
    assert private_digits.epsilon(400, 0.2, 2.0, 1e-4) > base
    assert private_digits.epsilon(400, 0.1, 2.0, 1e-6) > base


@pytest.mark.parametrize("noise", [0.7, 2.0, 5.0, 20.0])
def test_epsilon_is_never_below_the_exact_one_of_the_gaussian_mechanism(noise: float) -> None:
    """One step of all examples; its delta at an epsilon is known (Balle and Wang, 2018)."""

    def normal(z: float) -> float:
        return 0.5 * math.erfc(-z / math.sqrt(2))

    found = private_digits.epsilon(1, 1.0, noise, 1e-5)
    deltas = [
        normal(0.5 / noise - e * noise) - math.exp(e) * normal(-0.5 / noise - e * noise)
        for e in (found, 0.75 * found)
    ]
    assert 0 < deltas[0] < 1e-5 < deltas[1]  # it holds, and a quarter less would not


def private_weights(device: str, jit: bool, steps: int) -> list[eg.Tensor]:
    options = private_digits.arguments(["--steps", str(steps), *flags(device, jit)])
    weights = private_digits.starting_weights(0, device)
    private_digits.train(weights, private_digits.load(device), options, options.clip)
    return weights


def test_private_training_learns_digits() -> None:
    reached = private_digits.accuracy(private_weights("cpu", True, 60), private_digits.load("cpu"))
    assert reached > 0.8
    assert private_digits.epsilon(60, 0.1, 2.0, 1e-4) < 2


@pytest.mark.parametrize("jit", [False, True])
def test_private_training_gives_the_weights_of_the_cpu(device: str, jit: bool) -> None:
    found, expected = private_weights(device, jit, 3), private_weights("cpu", False, 3)
    assert len(found) == 4
    for one, other in zip(found, expected, strict=True):
        numbers = one.to("cpu").detach().numpy()
        np.testing.assert_allclose(numbers, other.detach().numpy(), rtol=1e-3, atol=1e-5)


# --- the Neural ODE --------------------------------------------------------------------------


def test_the_solver_is_of_fourth_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a rotation, whose motion is known: half the interval, a sixteenth of the error."""
    turn = eg.tensor(np.array([[0.0, -1.0], [1.0, 0.0]]))
    errors = []
    for count in (10, 20):
        monkeypatch.setattr(neural_ode, "INTERVAL", 1 / count)
        end = neural_ode.follow(lambda y: y @ turn, eg.tensor(np.array([[1.0, 0.0]])), count)[-1]
        errors.append(np.abs(end.numpy()[0] - [np.cos(1), -np.sin(1)]).max())
    assert 14 < errors[0] / errors[1] < 18


def test_a_neural_ode_learns_the_spiral() -> None:
    sizes = ["--steps", "400", "--span", "10", "--batch", "64", "--width", "32"]
    options = neural_ode.arguments(sizes)
    law = neural_ode.build(options)
    losses = neural_ode.train(law, options, quiet)
    assert len(losses) == 10
    assert losses[-1] < 0.5 * losses[0]
    path = neural_ode.true_path(neural_ode.START)
    true = path**3 @ neural_ode.TRUE.T
    found = law(eg.tensor(path.astype(np.float32))).detach().numpy()
    assert np.linalg.norm(found - true) < 0.2 * np.linalg.norm(true)


# --- the sentence encoder --------------------------------------------------------------------

REFERENCE = json.loads((Path(__file__).parent / "minilm_reference.json").read_text("utf-8"))["rows"]


def the_encoder(device: str, jit: bool = False) -> sentence_encoder.SentenceEncoder:
    if find_spec(sentence_encoder.PACKAGE) is None:
        if device == "cuda":  # GPU machines may have no way to install more
            pytest.skip(f"{sentence_encoder.PACKAGE} is not installed on this GPU machine")
        pytest.fail(f"{sentence_encoder.PACKAGE} is missing: tools/bootstrap.sh dev")
    return opened(device, jit)


@lru_cache
def opened(device: str, jit: bool) -> sentence_encoder.SentenceEncoder:
    return sentence_encoder.SentenceEncoder(sentence_encoder.model_folder(), device, jit)


def test_the_tokens_are_those_of_the_original_tokenizer() -> None:
    encoder = the_encoder("cpu")
    assert len(REFERENCE) == 12
    for row in REFERENCE:
        assert encoder.tokens(row["sentence"]) == row["tokens"]


@pytest.mark.parametrize("jit", [False, True])
def test_sentences_have_the_vectors_of_sentence_transformers(jit: bool) -> None:
    found = the_encoder("cpu", jit).encode([row["sentence"] for row in REFERENCE], batch=5)
    expected = np.array([row["vector"] for row in REFERENCE])
    assert expected.shape == (12, 384)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_every_device_gives_the_vectors_of_sentence_transformers(device: str) -> None:
    rows = REFERENCE[:3]
    found = the_encoder(device).encode([row["sentence"] for row in rows])
    np.testing.assert_allclose(found, np.array([row["vector"] for row in rows]), rtol=0, atol=1e-5)


def test_the_sentence_encoder_as_a_program() -> None:
    the_encoder("cpu")  # or say what is missing
    result = run("sentence_encoder.py")
    assert result.returncode == 0, result.stderr
    table = [line.split("   ")[0].split() for line in result.stdout.splitlines()]
    assert table[0][:3] == ["1.0000", "0.6660", "0.1046"]  # as its documentation prints them
    assert table[2][:3] == ["0.1046", "0.1411", "1.0000"]
    ranked = run("sentence_encoder.py", "--query", "Who went to see the football match?")
    assert ranked.stdout.splitlines()[0].endswith("He drove to the stadium.")
