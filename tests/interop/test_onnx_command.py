"""`python -m everygrad onnx`: what it prints of good files, and one line of bad ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import everygrad as eg
from everygrad import nn
from everygrad.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return eg.io.save_onnx(net, eg.ones((2, 3)), tmp_path / "net.onnx", dynamic={"x": {0: "rows"}})


def test_what_is_in_a_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", str(model), "--device", "cpu", "--size", "rows=5"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:6] == [
        "net.onnx: opset ai.onnx 20, made by everygrad",
        "inputs",
        "  x: float32 [rows, 3]",
        "outputs",
        "  output: float32 [rows, 2]",
        "weights    4",
    ]
    assert lines[6] == "operators  3: Gemm 2, Relu 1"
    assert lines[7] == "missing    nothing"
    assert [line.split()[:3] for line in lines[8:]] == [["cpu", "eager", "first"],
                                                        ["cpu", "jit", "first"]]  # fmt: skip
    assert not err


def test_on_every_device(model: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind = device.split(":")[0]
    assert main(["onnx", str(model), "--device", kind]) == 0
    ran = [line for line in capsys.readouterr().out.splitlines() if line.startswith(kind)]
    assert [line.split()[1] for line in ran] == ["eager", "jit"]


def test_what_is_missing_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    end = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])
    nodes = [
        helper.make_node("Nonsense", ["x"], ["y"], "first", domain="of.mine"),
        helper.make_node("Exp", ["y"], ["z"], "second"),
    ]
    made = helper.make_model(
        helper.make_graph(nodes, "g", [port], [end]),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("of.mine", 1)],
    )
    path = tmp_path / "lacking.onnx"
    onnx.save(made, str(path))
    assert main(["onnx", str(path), "--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "operators  2: of.mine:Nonsense 1, Exp 1" in out
    assert "missing\n" in out
    assert "Nonsense" in out.split("missing\n")[1]
    assert "first" in out.split("missing\n")[1]


def _good() -> bytes:
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1000])
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 1000])
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", [port], [end])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def _cyclic() -> bytes:
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Exp", ["a"], ["b"])]
    end = helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "g", [port], [end])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


BAD: dict[str, bytes | None] = {
    "cut short": _good()[:40],
    "empty": b"",
    "no protobuf": b"\xff" * 100,
    "text": b"this is no model",
    "a cycle": _cyclic(),
    "not there": None,
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = tmp_path / "bad.onnx", BAD[case]
    if data is not None:
        path.write_bytes(data)
    assert main(["onnx", str(path)]) == 1
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert err.startswith(str(path))
    assert "Traceback" not in err + out


@pytest.mark.parametrize("sizes", [["rows"], ["rows=-1"], ["=3"], ["columns=2"], ["rows=x"]])
def test_bad_sizes_are_one_line(
    sizes: list[str], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: list[Any] = [a for s in sizes for a in ("--size", s)]
    assert main(["onnx", str(model), *arguments]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert "--size" in err


def test_inputs_too_large_to_make_are_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", str(model), "--device", "cpu", "--size", "rows=999999999"]) == 1
    assert "has 2999999997 elements" in capsys.readouterr().out


def test_as_a_program_and_without_the_package(model: Path) -> None:
    """The command as users type it; where onnx is missing, the cure."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    hidden = "import sys; sys.modules['onnx'] = None; from everygrad.__main__ import main; "
    code = f"{hidden}sys.exit(main(['onnx', {str(model)!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "the onnx package is missing: pip install 'everygrad[onnx]'"
    ]
