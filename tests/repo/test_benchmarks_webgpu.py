"""`python -m benchmarks.webgpu`: its peers, its table, and that its steps are the CPU's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import webgpu
from benchmarks.compare import WEBGPU, judge, matches
from benchmarks.harness.agree import disagreements
from benchmarks.harness.measure import Plan, Result
from benchmarks.harness.process import ROOT, Setup
from benchmarks.peers import WEBGPU_MODULES, everygrad_eager, everygrad_jit
from benchmarks.probes import rates
from benchmarks.probes.rates import Rate, Sizes
from benchmarks.report import Report
from benchmarks.workloads import WORKLOADS
from tests.conftest import DEVICES

MLP = WORKLOADS["mlp"]
needs_webgpu = pytest.mark.skipif("webgpu" not in DEVICES, reason="this run promises no webgpu")


def test_ours_compiled_is_held_against_tinygrad() -> None:
    assert matches(list(WEBGPU_MODULES)) == [WEBGPU]
    times = {"everygrad.webgpu": [9.0], "everygrad.webgpu.jit": [1.0], "tinygrad": [2.0]}
    verdict = judge(WEBGPU, Result(MLP, times))
    assert (verdict.best, verdict.ratio, verdict.met) == ("tinygrad", 0.5, True)
    assert judge(WEBGPU, Result(MLP, times | {"tinygrad": [0.5]})).met is False
    del times["tinygrad"]
    assert judge(WEBGPU, Result(MLP, times)).met is None


def test_a_peer_in_an_environment_of_its_own_sees_the_repository_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    setup = Setup()
    assert setup.python("everygrad.webgpu.jit") == sys.executable
    assert setup.environment("everygrad.webgpu.jit")["PYTHONPATH"] == f"{ROOT}:/elsewhere"
    assert setup.python("tinygrad").endswith(".venv-tinygrad/bin/python")
    assert setup.environment("tinygrad")["PYTHONPATH"] == str(ROOT)


def test_the_table_says_what_was_asked_and_met() -> None:
    found = [
        Rate("product", 0.001, "26.6 TFLOP/s", ">= 20", True),
        Rate("loss", 0.0034, "470 GB/s", ">= 60%", False),
        Rate("copy", 0.5, "3 GB/s"),
    ]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in webgpu.table(found)[3:]]
    assert rows == [
        ["product", "1.000", "26.6 TFLOP/s", ">= 20", "yes"],
        ["loss", "3.400", "470 GB/s", ">= 60%", "NO"],
        ["copy", "500.0", "3 GB/s", "-", "-"],
    ]


def test_a_software_adapter_gets_less_to_do() -> None:
    small, large = Sizes.of(software=True), Sizes.of(software=False)
    assert max(small.products) < min(large.products)
    assert large.products[-1] == 4096
    assert large.square == 8192


@needs_webgpu
@pytest.mark.parametrize("name", ["mlp.adamw", "hvp"])
@pytest.mark.parametrize("steps", [everygrad_eager.steps, everygrad_jit.steps])
def test_a_step_on_the_gpu_is_the_cpus(name: str, steps: Callable[[str], dict[str, Any]]) -> None:
    workload = WORKLOADS[name]
    there = steps("webgpu")[workload.kind](workload.data())
    here = everygrad_eager.steps("cpu")[workload.kind](workload.data())
    there.run()
    here.run()
    assert not disagreements(there.outputs(), here.outputs(), workload.tolerance)


@needs_webgpu
def test_a_compiled_step_tells_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "ROUND_S", 0.0)
    found = rates.compiled_step("chain64", 1, asked_s=3600.0)
    commands = int(found.rate.partition(" ")[0])
    assert 1 <= commands <= 64
    assert found.met is True
    assert found.seconds > 0


@needs_webgpu
def test_a_contest_without_tinygrad_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def gathered(report: Report, workloads: object, setup: Setup, plan: Plan) -> None:
        assert plan.rounds == 2
        report.labels.remove("tinygrad")
        report.missing["tinygrad"] = f"{tmp_path}/python does not run"
        times = {label: [0.1, 0.1] for label in report.labels}
        report.results.append(Result(MLP, times))

    monkeypatch.setattr(webgpu, "gather", gathered)
    assert webgpu.main(["--only", "mlp", "--rounds", "2"]) == 0
    shown = capsys.readouterr().out
    assert f"- `tinygrad`: {tmp_path}/python does not run" in shown
    assert "| mlp " in shown
    assert shown.startswith("- Adapter: ")
