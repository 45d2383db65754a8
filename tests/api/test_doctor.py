"""`python -m everygrad doctor`: what it prints, what it survives, and how it ends."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everygrad.__main__ import main
from everygrad.backends import base
from everygrad.tools import accuracy, accuracy_special, doctor

ROOT = Path(__file__).parents[2]
PROMISED = os.environ.get("EVERYGRAD_TEST_DEVICES", "cpu")
webgpu_only = pytest.mark.skipif(
    "webgpu" not in PROMISED, reason="this run does not promise webgpu (EVERYGRAD_TEST_DEVICES)"
)


def run(*arguments: str, path: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    """The doctor in a fresh process, modules in `path` before all others."""
    env = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}", **more}
    command = [sys.executable, "-W", "error", "-m", "everygrad", "doctor", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def report(*arguments: str, **more: Any) -> Any:
    result = run("--json", *arguments, **more)
    assert result.stderr == ""
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    assert found["works"] == (result.returncode == 0)
    return found


def without(tmp_path: Path, module: str) -> Path:
    """A folder that makes `import module` fail."""
    (tmp_path / f"{module}.py").write_text(f"raise ImportError('no {module} here')\n")
    return tmp_path


# --- whole runs ----------------------------------------------------------------------------------


def test_the_whole_report() -> None:
    result = run()
    assert result.returncode == 0, result.stdout + result.stderr
    for wanted in ("Python", "NumPy", "llvmlite", "LLVM", "wgpu", "CuPy", "threads", "disk cache"):
        assert wanted in result.stdout
    assert np.__version__ in result.stdout
    assert "cpu: works" in result.stdout
    assert "cuda: " in result.stdout
    assert "webgpu: works" in result.stdout or "webgpu" not in PROMISED
    for name in (*doctor.SELF_TESTS, *accuracy.FUNCTIONS):
        assert f" {name} " in result.stdout
    assert result.stdout.rstrip().endswith("everything found works")


def test_quick_leaves_the_accuracy_out() -> None:
    found = report("--quick", "--device", "cpu")
    (cpu,) = found["devices"]
    assert [t["name"] for t in cpu["tests"]] == [*doctor.SELF_TESTS]
    assert all(t["ok"] and t["first_ms"] > 0 and t["again_ms"] > 0 for t in cpu["tests"])
    assert cpu["accuracy"] == []


def test_json_has_every_measurement() -> None:
    (cpu,) = report("--device", "cpu")["devices"]
    measured = {(a["function"], a["column"]) for a in cpu["accuracy"]}
    columns = accuracy.columns("cpu")
    assert measured == {(f, c) for f in accuracy.FUNCTIONS for c in columns}
    assert all(a["wrong_nan"] == 0 for a in cpu["accuracy"])


@webgpu_only
def test_webgpu_is_found() -> None:
    (device,) = report("--device", "webgpu")["devices"]
    assert device["found"]
    assert device["facts"]["limits"]["groups"] >= 65535
    flushed = {a["function"] for a in device["accuracy"] if a["flushed"]}
    assert (device["facts"]["subnormals"] != "kept by +, - and *") == ("add" in flushed)
    assert flushed <= accuracy.ENDS_IN_ARITHMETIC
    assert len(device["accuracy"]) == len(accuracy.FUNCTIONS)
    assert all(a["wrong_nan"] == 0 for a in device["accuracy"])


# --- what is missing -----------------------------------------------------------------------------


def test_without_wgpu(tmp_path: Path) -> None:
    found = report("--quick", path=without(tmp_path, "wgpu"))
    assert found["works"]
    assert "no wgpu here" in found["versions"]["wgpu"]["error"]
    webgpu = next(d for d in found["devices"] if d["name"] == "webgpu")
    assert not webgpu["found"]
    assert "no wgpu here" in webgpu["why"]
    assert webgpu["cures"] == ["pip install 'wgpu>=0.32'"]


def test_without_cupy(tmp_path: Path) -> None:
    result = run("--quick", "--device", "cuda", path=without(tmp_path, "cupy"))
    assert result.returncode == 0
    assert "no cupy here" in result.stdout
    assert "cuda: not found" in result.stdout
    assert result.stdout.count("pip install 'everygrad[cuda13]'") == 2


def test_without_llvmlite_the_cpu_fails(tmp_path: Path) -> None:
    found = report("--quick", "--device", "cpu", path=without(tmp_path, "llvmlite"))
    (cpu,) = found["devices"]
    assert not found["works"]
    assert "no llvmlite here" in cpu["tests"][0]["error"]
    assert cpu["cures"] == [doctor.VERSIONS["llvmlite"][1]]


@webgpu_only
@pytest.mark.skipif(sys.platform != "linux", reason="Vulkan's loader is told by its environment")
def test_without_an_adapter(tmp_path: Path) -> None:
    nothing = str(tmp_path / "none.json")
    more = {"VK_DRIVER_FILES": nothing, "VK_ICD_FILENAMES": nothing}
    result = run("--quick", "--device", "webgpu", **more)
    assert result.returncode == 0
    assert "webgpu: not found" in result.stdout
    assert "apt-get install mesa-vulkan-drivers" in result.stdout


@webgpu_only
def test_an_absent_adapter_lists_those_present() -> None:
    result = run("--quick", "--device", "webgpu", EVERYGRAD_WEBGPU_ADAPTER="no such thing")
    assert result.returncode == 0
    assert "present are: " in result.stdout
    assert "unset EVERYGRAD_WEBGPU_ADAPTER" in result.stdout


def test_the_cache_switched_off_or_unusable(tmp_path: Path) -> None:
    off = report("--quick", "--device", "cuda", EVERYGRAD_CACHE="0")["machine"]["cache"]
    assert not off["on"]
    (tmp_path / "file").write_text("")
    more = {"EVERYGRAD_CACHE_DIR": str(tmp_path / "file")}
    bad = report("--quick", "--device", "cuda", **more)["machine"]["cache"]
    assert not bad["on"]
    assert "set EVERYGRAD_CACHE_DIR" in bad["why"]
    wrong = report("--quick", "--device", "cuda", EVERYGRAD_CACHE_MB="many")["machine"]["cache"]
    assert "EVERYGRAD_CACHE_MB=many" in wrong["error"]


# --- what fails ----------------------------------------------------------------------------------


def here(*arguments: str) -> int:
    """The doctor in this process, where things can be replaced."""
    return main(["doctor", "--here", "--quick", "--device", "cpu", *arguments])


def test_a_failing_self_test_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(device: str) -> None:
        raise ArithmeticError("2 + 2\nis 5")

    monkeypatch.setitem(doctor.SELF_TESTS, "add", wrong)
    assert here() == 1
    printed = capsys.readouterr().out
    assert "FAILED: ArithmeticError: 2 + 2 is 5" in printed
    assert "cpu: FAILED" in printed
    assert "jit          ok" in printed


def test_a_device_that_does_not_open_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> Any:
        raise ValueError("a driver's fault")

    monkeypatch.setattr(base, "get", refuse)
    assert here() == 1
    assert "it does not open: ValueError: a driver's fault" in capsys.readouterr().out


def test_wrong_results_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "tensor", lambda x, **_: TwiceAsMuch(x))
    (add, *_) = doctor.self_test("cpu")
    assert not add["ok"]
    assert "off by" in add["error"]


class TwiceAsMuch:
    """A tensor of a device that cannot add."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __add__(self, other: TwiceAsMuch) -> TwiceAsMuch:
        return TwiceAsMuch(2 * (self.values + other.values))

    def numpy(self) -> Any:
        return self.values


@pytest.mark.parametrize("end", ["import os; os.abort()", "raise SystemExit(3)", "print('{}')"])
def test_a_crash_is_a_line(tmp_path: Path, end: str) -> None:
    # the other process loads our sitecustomize, and is ended by it as by a driver
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif '--here' in sys.orig_argv:\n    {end}\n    raise SystemExit(1)\n"
    )
    result = run("--quick", "--device", "cpu", path=tmp_path)
    assert result.returncode == 1
    assert "cpu: FAILED" in result.stdout
    assert "its process ended with status" in result.stdout


def test_a_hanging_driver_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TIME_LIMIT", 0.05)
    device = doctor.examine_apart("cpu", quick=True)
    assert "it hung" in device["broken"]
    assert not doctor.works(device)


def test_a_function_that_raises_is_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "FUNCTIONS", {"sinus": accuracy.Function(np.sin, -1, 1)})
    found = doctor.accuracy_facts("cpu")
    assert "KeyError" in found[0]["error"]
    assert accuracy.table(found)[1] == ["sinus", "FAILED", "FAILED"]
    assert not doctor.works({"found": True, "tests": [], "accuracy": found})


# --- measuring -----------------------------------------------------------------------------------


def test_inputs_are_fixed_and_of_every_kind() -> None:
    for name in accuracy.FUNCTIONS:
        given = accuracy.inputs(name)
        for x, again in zip(given, accuracy.inputs(name), strict=True):
            assert (x.dtype, x.shape) == (np.float32, (accuracy.COUNT,))
            np.testing.assert_array_equal(x, again)
            assert ((x != 0) & (np.abs(x) < 2.0**-126)).any()
            assert np.isnan(x).any()
            assert np.isinf(x).any()
            assert (np.abs(x) > 1e30).any()
            assert (x < 0).any()


def test_errors_are_counted_in_ulp() -> None:
    exact = np.array([1.0, 3.0, 2.0**-130, 1e39, np.nan, np.nan], np.longdouble)
    got = np.array([1.0, 3.0, 2.0**-130, np.inf, np.nan, np.nan], np.float32)
    x = np.ones(6, np.float32)
    assert accuracy.compare(got, exact, [x]) == (0.0, (1.0,), 0.0, False, 0)
    got[1] = np.nextafter(np.float32(3), np.float32(4))
    assert accuracy.compare(got, exact, [x]).normal == 1.0
    got[2] = 0.0
    found = accuracy.compare(got, exact, [x])
    assert (found.subnormal, found.flushed) == (2.0**19, True)
    got[4], got[3] = 0.0, np.finfo(np.float32).max
    found = accuracy.compare(got, exact, [x])
    assert (found.normal, found.wrong_nan) == (1.0, 1)


def test_flushing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not accuracy.flushes("cpu")
    zero = accuracy.tensor(np.zeros(1, np.float32))
    monkeypatch.setattr(accuracy, "tensor", lambda x, **_: zero)
    assert accuracy.flushes("cpu")


def test_compiled_kernels_of_the_cpu_are_accurate() -> None:
    for name, column, error in accuracy.measure_all("cpu"):
        assert isinstance(error, accuracy.Error)
        assert accuracy.fault(name, error) is None, (column, error)
        if name not in accuracy.BOUNDS and column == "cpu (compiled)":
            assert error.normal < 3.1, name


def test_the_doctor_judges_what_it_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A figure above the bound, a wrong NaN, a subnormal lost: FAILED, and the exit status 1."""
    good = accuracy.Error(1.0, (0.5,), 1.0, False, 0)
    assert accuracy.fault("exp", good) is None
    assert accuracy.fault("gelu", good._replace(subnormal=2.0**20, flushed=True)) is None
    bad = {
        "gelu": (good._replace(normal=2e7), "off by 2e[+]07 ulp at 0.5: more than 8"),
        "exp": (good._replace(subnormal=2.0**20, flushed=True), "ulp at subnormal numbers"),
        "log": (good._replace(wrong_nan=3), "NaN where there is a number, .* at 3 inputs"),
        "sin": (good._replace(normal=math.inf), "off by inf ulp"),
        "cos": (good._replace(normal=math.nan), "off by nan ulp"),
    }
    for name, (error, words) in bad.items():
        assert re.search(words, accuracy.fault(name, error) or "")
        monkeypatch.setattr(accuracy, "FUNCTIONS", {name: accuracy.FUNCTIONS[name]})
        monkeypatch.setattr(accuracy, "measure", lambda *_, error=error: error)
        assert main(["doctor", "--here", "--device", "cpu"]) == 1
        out = capsys.readouterr().out
        assert re.search(f"FAILED: {name} on cpu \\(compiled\\): .*{words}", out)
        assert "everything found works" not in out
        assert "something does not work: see FAILED" in out
        assert "cpu: FAILED" in out
        monkeypatch.undo()
    monkeypatch.setattr(accuracy, "FUNCTIONS", {"exp": accuracy.FUNCTIONS["exp"]})
    assert main(["doctor", "--here", "--device", "cpu"]) == 0
    assert "everything found works" in capsys.readouterr().out


def test_the_published_page_is_of_this_program() -> None:
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")]
    heading, elementary = ["function", "---"], list(accuracy.FUNCTIONS)
    assert rows == [*(heading + elementary) * 2, *heading, *accuracy_special.SPECIAL]
    assert "llvmpipe" in page
    assert "python -m everygrad doctor --accuracy-table" in page


def test_the_page_of_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = dict(list(accuracy_special.SPECIAL.items())[:3])  # test_accuracy.py measures them all
    monkeypatch.setattr(accuracy_special, "SPECIAL", some)
    assert here("--accuracy-table") == 0
    page = capsys.readouterr().out
    assert "| function | cpu (compiled) | cpu (numpy) |" in page
    count = 2 * len(accuracy.FUNCTIONS) + len(accuracy_special.SPECIAL)
    assert page.count("\n| ") == count + 3 * 2
