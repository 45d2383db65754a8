"""The benchmarks' own logic: who is matched with whom, what counts as met, who is missing."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as program, gpt_training, report as text
from benchmarks.compare import COPY, EAGER, JIT, judge, matches
from benchmarks.harness import measure
from benchmarks.harness.agree import disagreements
from benchmarks.harness.measure import Plan, Result, Start
from benchmarks.harness.process import Peer, PeerError, Setup
from benchmarks.peers import MODULES, everygrad_eager, everygrad_jit
from benchmarks.probes.overhead import CASES, OURS, Overhead
from benchmarks.report import Report
from benchmarks.workloads import WORKLOADS
from examples import gpt

GPT, POINTWISE = WORKLOADS["gpt"], WORKLOADS["pointwise"]


def result(name: str = "gpt", disturbed: int = 0, **seconds: float) -> Result:
    times = {label.replace("_", "."): [s] * 3 for label, s in seconds.items()}
    return Result(WORKLOADS[name], times, disturbed=disturbed)


def test_jit_must_beat_the_fastest_of_three() -> None:
    found = result(everygrad_jit=2.0, torch=3.0, torch_compile=1.0, jax=4.0)
    verdict = judge(JIT, found)
    assert (verdict.best, verdict.ratio, verdict.met) == ("torch.compile", 2.0, False)
    assert verdict.spread == (2.0, 2.0)


def test_a_win_is_open_while_a_rival_is_missing_but_a_loss_is_a_loss() -> None:
    assert judge(JIT, result(everygrad_jit=1.0, torch=3.0, jax=2.0)).met is None
    assert judge(JIT, result(everygrad_jit=3.0, torch=3.0, jax=2.0)).met is False
    won = result(everygrad_jit=1.0, torch=3.0, torch_compile=1.0, jax=2.0)
    assert judge(JIT, won).met is True


def test_nothing_is_said_on_a_busy_machine_or_without_our_figure() -> None:
    assert judge(EAGER, result(disturbed=2, everygrad=1.0, torch=9.0)).met is None
    verdict = judge(JIT, result(torch=1.0))
    assert verdict.ratio is None
    assert verdict.missed


def test_the_floor_bounds_the_pointwise_workload_only() -> None:
    assert judge(COPY, result("pointwise", everygrad_jit=1.2, copy=1.0)).met is True
    assert judge(COPY, result("pointwise", everygrad_jit=1.4, copy=1.0)).met is False
    assert [w.name for w in WORKLOADS.values() if w.floor_target] == ["pointwise"]


def test_matches_follow_the_peers() -> None:
    assert matches(["everygrad", "torch"]) == [EAGER]
    assert matches(list(MODULES)) == [EAGER, JIT]
    assert matches(["everygrad.jit", "jax"]) == [JIT]
    assert [(m.ours, m.rivals) for m in matches(["torch", "torch#2"])] == [("torch", ("torch#2",))]
    assert matches(["torch"]) == []


@pytest.mark.parametrize(("cold", "warm", "word"), [(0.9, 0.2, "yes"), (0.9, 0.4, "NO")])
def test_first_calls_have_their_bounds(cold: float, warm: float, word: str) -> None:
    found = result(everygrad_jit=1.0)
    found.first[OURS] = Start([[cold, 0.01, 0.01]], [[warm, 0.01, 0.01]])
    shown = text.render(Report([OURS], 3, first=True, results=[found]))
    assert f"1 s cold, 0.3 s warm: met {word}." in shown


def test_a_second_step_that_compiles_is_told() -> None:
    found = result(everygrad_jit=1.0)
    found.first[OURS] = Start([[0.5, 0.4, 0.01]])
    assert "second step of `gpt` is slow too: everygrad.jit 400.0 ms" in text.render(
        Report([OURS], 3, results=[found])
    )


def test_only_our_empty_calls_are_bound() -> None:
    seconds = dict.fromkeys(CASES, 20e-6)
    assert [Overhead(OURS, seconds, 0.0).met(case) for case in CASES] == [False, False, None]
    assert {Overhead("jax", seconds, 0.0).met(case) for case in CASES} == {None}
    assert Overhead(OURS, seconds, 1.0).met("x, shape ()") is None


class Fake(Peer):
    """A peer without a process: its outputs, and whether it fails when timed."""

    def __init__(self, name: str, value: float = 1.0, fails: bool = False) -> None:
        self.name = self.label = name
        self.value, self.fails = value, fails

    def revive(self) -> None: ...
    def close(self) -> None: ...

    def ask(self, **request: Any) -> dict[str, Any]:
        if "check" in request:
            np.savez(Path(request["to"]), loss=np.float32(self.value))
            return {"steps_s": [0.1, 0.1]}
        if self.fails:
            raise PeerError("boom")
        return {"times": [0.01] * request["rounds"], "others": [0.0] * request["rounds"]}


def test_one_peers_failure_is_its_own() -> None:
    peers: list[Peer] = [Fake("torch"), Fake("jax", fails=True), Fake("everygrad", value=2.0)]
    found = measure.measure(GPT, peers, Plan(rounds=2, warmup_s=0, pause_s=0))
    assert list(found.times) == ["torch"]
    assert found.failures["jax"] == "boom"
    assert "differs from torch: loss" in found.failures["everygrad"]


def test_peers_that_disagree_are_told_apart_by_name() -> None:
    one, other = {"a": np.ones(3)}, {"a": np.full(3, np.nan), "b": np.ones(3)}
    assert [line.partition(":")[0] for line in disagreements(one, other, 1e-4)] == ["b", "a"]


def test_a_missing_environment_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "EXTRAS", ("nothing",))
    nowhere = f"jax={tmp_path / 'python'}"
    status = program.main(["--only", "nothing", "--peers", "jax", "--python", nowhere])
    shown = capsys.readouterr()
    assert status == 1
    assert "- `jax`: " in shown.out
    assert "does not run" in shown.out
    assert "jax is missing" in shown.err


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--peers", "theano"]) == 2
    assert "no peer 'theano'" in capsys.readouterr().err


def test_jax_has_an_interpreter_of_its_own() -> None:
    assert Setup().python("jax").endswith(".venv-jax/bin/python")
    assert Setup(pythons=(("jax", "/x"),)).python("jax") == "/x"


@pytest.mark.parametrize("name", ["chain64.all", "mlp.adamw", "hvp"])
def test_the_jitted_step_is_the_eager_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a jit that does nothing: the harness around it loses no output."""
    monkeypatch.setattr(everygrad_jit, "_JIT", lambda fn: fn)
    kind = WORKLOADS[name].kind
    eager = everygrad_eager.STEPS[kind](WORKLOADS[name].data())
    jitted = everygrad_jit.STEPS[kind](WORKLOADS[name].data())
    for _ in range(2):
        eager.run()
        jitted.run()
    assert not disagreements(jitted.outputs(), eager.outputs(), 1e-6)


def test_the_training_benchmark_trains_the_same_model_everywhere(tmp_path: Path) -> None:
    """Loader, clipping, schedule and average in PyTorch are those of the example."""
    sizes = {"steps": 30, "layers": 2, "heads": 2, "width": 32, "tokens": 16, "batch": 4}
    options = gpt.arguments([word for k, v in sizes.items() for word in (f"--{k}", str(v))])
    letters = gpt.Text(tmp_path)
    ours = islice(gpt_training.everygrad_steps(letters, options), 20)
    theirs = islice(gpt_training.torch_steps(letters, options, ""), 20)
    losses = {"ours": [x.item() for x in ours], "theirs": [x.item() for x in theirs]}
    assert len(losses["ours"]) == 20
    gpt_training.agree(losses)
    with pytest.raises(RuntimeError, match="theirs gives"):
        gpt_training.agree({**losses, "theirs": [x * 1.001 for x in losses["theirs"]]})
