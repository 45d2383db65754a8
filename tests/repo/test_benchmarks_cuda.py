"""`python -m benchmarks.cuda`: its verdicts, its page, and that its peers do the same work."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from benchmarks import cuda
from benchmarks.cuda import EAGER, GPT2, JIT, TORCH, Found, Trial
from benchmarks.harness import worker
from benchmarks.harness.agree import disagreements
from benchmarks.peers import everygrad_eager, everygrad_jit, torch_eager
from benchmarks.workloads import CUDA_WORKLOADS, CURVE, CURVES, Workload

SMALL = {"layers": 2, "heads": 2, "width": 32, "vocab": 61, "tokens": 16, "batch": 2}
TINY = replace(CURVE, settings=CURVE.settings | SMALL | {"precision": "f32", "feeds": 5})


def trial(median: float = 1.0, losses: tuple[float, ...] = (2.0, 1.0), peak: int = 0) -> Trial:
    return Trial([3.0, 1.0], list(losses), peak, 2 * peak, [median] * 3)


def tiny(module: Any, workload: Workload = TINY) -> Any:
    return module.STEPS[workload.kind](workload.data())


@pytest.mark.parametrize("module", [everygrad_eager, everygrad_jit])
def test_a_tied_gpt_is_pytorchs(module: ModuleType) -> None:
    ours, theirs = tiny(module), tiny(torch_eager)
    for text in TINY.data().arrays["text"][:2]:
        for step in (ours, theirs):
            step.feed(text)
            step.run()
        assert ours.value() == pytest.approx(theirs.value(), rel=1e-5)
    assert "head.weight" not in dict(ours.step.model.named_parameters() if module is everygrad_jit
                                     else ours.model.named_parameters())  # fmt: skip
    assert not disagreements(ours.outputs(), theirs.outputs(), 1e-3)


def test_half_floats_are_half_floats_for_all() -> None:
    half = replace(TINY, settings=TINY.settings | {"precision": "bf16"})
    values = []
    for module in (everygrad_eager, torch_eager):
        full, less = tiny(module), tiny(module, half)
        full.run()
        less.run()
        assert full.value() != less.value()
        values.append(less.value())
    assert values[0] == pytest.approx(values[1], rel=1e-2)


class Fake(ModuleType):
    """A peer without a GPU."""

    STEPS = everygrad_eager.STEPS
    waits = 0

    def wait(self) -> None:
        self.waits += 1

    def peak(self) -> int:
        return 7

    def held(self) -> int:
        return 8


def test_a_trial_and_a_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(TINY, steps=2, check_steps=2)
    monkeypatch.setitem(worker.EVERY, "cuda.curve.f32", short)
    fake = Fake("fake")
    asked = worker.Worker(fake)
    answer = asked.answer({"trial": "cuda.curve.f32", "rounds": 3})
    found = Trial(**answer)
    assert (len(found.steps_s), len(found.losses), len(found.times)) == (2, 2, 3)
    assert (found.peak, found.held) == (7, 8)
    assert found.losses[1] < found.losses[0]
    assert fake.waits == 1 + 2 * 2 + 2 * 3  # at the start, then on both sides of what is timed
    losses = asked.answer({"curve": "cuda.curve.f32"})["losses"]
    assert len(losses) == 5
    assert losses[-1] < losses[0]


def test_who_differs_is_named() -> None:
    workload = CUDA_WORKLOADS[GPT2]
    trials = {TORCH: trial(), JIT: trial(losses=(2.01, 1.01)), EAGER: trial(losses=(2.0, 1.5))}
    (line,) = cuda.disagreements(workload, trials)
    assert line.startswith("everygrad.cuda differs from torch.cuda on gpt2: losses [2.0, 1.5]")
    nan = cuda.disagreements(workload, {TORCH: trial(), JIT: trial(losses=(2.0, float("nan")))})
    assert len(nan) == 1


def test_verdicts() -> None:
    assert cuda.jit_met(GPT2, {JIT: trial(0.032)}) is True
    assert cuda.jit_met(GPT2, {JIT: trial(0.033)}) is False
    assert cuda.jit_met(GPT2, {}) is None
    assert cuda.eager_met({EAGER: trial(1.0), TORCH: trial(1.0)}) is True
    assert cuda.eager_met({EAGER: trial(1.1), TORCH: trial(1.0)}) is False
    curves = {f"{TORCH} bf16": [5.0, 4.0], f"{TORCH} f32": [5.0, 4.1]}
    assert cuda.curve_met(curves) is None
    assert cuda.curve_met(curves | {f"{JIT} bf16": [5.0, 4.19]}) is True
    assert cuda.curve_met(curves | {f"{JIT} bf16": [5.0, 4.3]}) is False


def test_the_page() -> None:
    runs = {JIT: trial(0.030, peak=2**33), TORCH: trial(0.045), cuda.COMPILED: trial(peak=2**34)}
    found = Found(list(runs), {GPT2: runs}, {f"{JIT} bf16": [1.0] * 200}, ["jax: broke"])
    page = cuda.render(found, "today", ["a GPU"])
    assert "30.0 (30.0-30.0) |" in page
    assert "546,133" in page  # 16 x 1024 tokens in 30 ms
    assert "Peak memory at most torch.compile's: yes" in page
    assert "    jax: broke" in page
    assert cuda.missed(found) is False
    assert set(cuda.curves_of(TORCH, True)) == set(CURVES)
    assert cuda.curves_of(TORCH, False) == []


@pytest.mark.parametrize("wrong", [["--only", "nothing"], ["--peers", "x"], ["--rounds", "0"]])
def test_wrong_arguments_are_named(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        cuda.main(wrong)
