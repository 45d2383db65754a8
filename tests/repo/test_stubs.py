"""The typed stubs: fresh, complete, and of use to a type checker."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import everygrad as eg
from devtools import stubs

ROOT = Path(__file__).parents[2]

# What a user writes. A line that must be refused names the error it must be refused with.
PROGRAM = """
from typing import Any, assert_type

import numpy as np

import everygrad as eg

x = eg.tensor([1.0, 2.0], requires_grad=True)
assert_type(x, eg.Tensor)
assert_type(x + 1, eg.Tensor)
assert_type(2.0 * x - x / 3, eg.Tensor)
assert_type(np.float32(3) * x, eg.Tensor)
assert_type(-x @ abs(x), eg.Tensor)
assert_type(x == 1, eg.Tensor)
assert_type((x > 0) & ~(x < 0), eg.Tensor)
assert_type(x**2, eg.Tensor)
assert_type(x[0, ..., None], eg.Tensor)
assert_type(x.sum(axis=0).mean(), eg.Tensor)
assert_type(x.T, eg.Tensor)
assert_type(x.dtype is eg.float32, bool)
assert_type(x.shape, tuple[int, ...])
assert_type(x.grad, eg.Tensor | None)
assert_type(float(x.sum()), float)
assert_type(x.numpy(), np.ndarray[Any, Any])
assert_type(x.split(1), list[eg.Tensor])
assert_type(eg.exp(x), eg.Tensor)
assert_type(eg.exp(1.5), eg.Tensor)
assert_type(eg.maximum(x, 0.5), eg.Tensor)
assert_type(eg.where(x > 0, x, 0.0), eg.Tensor)
assert_type(eg.zeros((2, 3), dtype=eg.bool), eg.Tensor)
assert_type(eg.gradcheck(lambda x: x, x), bool)
assert_type(eg.tools.graph_text(x), str)
assert_type(eg.rand((3,), generator=eg.Generator(1)), eg.Tensor)
assert_type(eg.softmax(x, dim=1), eg.Tensor)
assert_type(x.view(1, 2).sum(dim=0, keepdim=True), eg.Tensor)
assert_type(x.size(0) + x.numel() + x.dim(), Any)
assert_type(x.float().half().cpu(), eg.Tensor)
assert_type(eg.cat([x, x], dim=0), eg.Tensor)
assert_type(x.cumsum(dim=0), eg.Tensor)
x.backward(retain_graph=True)
x.register_hook(lambda g: g * 2).remove()
y = x.detach()
y += 1
y[0] = 2.0
for row in x:
    assert_type(row, eg.Tensor)
with eg.no_grad():
    pass

x.sun()  # attr-defined
eg.expp(x)  # attr-defined
eg.exp("a")  # arg-type
x + "a"  # operator
[1] + x  # operator
x.sum(axis="rows")  # arg-type
eg.concat(3)  # arg-type
x.backward(retain_graph="yes")  # arg-type
eg.softmax(x, dimension=1)  # call-arg
x.softmax(dimm=1)  # call-arg
x.shape = (3,)  # misc
total: int = x.sum()  # assignment
"""


def mypy(path: Path) -> list[tuple[int, str]]:
    """The line and code of each error mypy finds in a file, as strict as it is with the package."""
    # with the package's own configuration, so that `make check` and this share one cache
    command = [sys.executable, "-m", "mypy", path]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    pattern = rf"^[^\n]*{re.escape(path.name)}:(\d+): error: .*\[([\w-]+)\]$"
    return [(int(n), code) for n, code in re.findall(pattern, run.stdout, re.MULTILINE)]


def test_stubs_are_fresh() -> None:
    command = [sys.executable, "-m", "devtools.stubs", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_stale_stub_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    path = tmp_path / "tensor.pyi"
    monkeypatch.setattr(stubs, "stubs", lambda: {path: "new\n"})
    assert stubs.main(["--check"]) == 1
    assert "tensor.pyi is stale: run python -m devtools.stubs" in capsys.readouterr().err
    assert not path.exists()
    assert stubs.main([]) == 0
    assert path.read_text() == "new\n"
    assert stubs.main(["--check"]) == 0
    assert stubs.main(["--chekc"]) == 2


def test_every_method_and_public_name_is_there() -> None:
    classes = {
        node.name: {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        for node in ast.parse(stubs.tensor_stub()).body
        if isinstance(node, ast.ClassDef)
    }
    attached = {n for n, v in vars(eg.Tensor).items() if callable(v) or isinstance(v, property)}
    assert attached - {"__hash__", "__doc__", "__getattr__"} <= classes["Tensor"]
    assert "__getattr__" not in classes["Tensor"]  # it would let any name pass
    assert "interpret" in classes["Wrapped"]
    found = set()
    for node in ast.parse(stubs.package_stub()).body:
        match node:
            case ast.ImportFrom(names=names):
                found |= {a.asname for a in names if a.asname == a.name}
            case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
    assert found == {*eg.__all__, *eg._ALIASES, "compile"}


def test_mypy(tmp_path: Path) -> None:
    # one test: two runs at once would fight over mypy's cache
    script = tmp_path / "user_script.py"
    script.write_text(PROGRAM)
    wrong = [
        (n, line.split("#")[1].strip())
        for n, line in enumerate(PROGRAM.splitlines(), 1)
        if "  # " in line
    ]
    assert mypy(script) == wrong
    # beside a .pyi mypy reads no .py unless it is named; what the registry adds is not known there
    expected = {"operator", "index", "attr-defined", "unused-ignore"}
    assert [e for e in mypy(ROOT / "everygrad/core/tensor.py") if e[1] not in expected] == []
