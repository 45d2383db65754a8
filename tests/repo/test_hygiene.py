"""Tests about the tests: each checks something for certain, and none by a clock that runs short."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.asserting import Analysis

TESTS = Path(__file__).parents[1]

SURE = {
    "an assert": "assert x",
    "after a branch": "if x:\n    pass\nassert x",
    "both branches": "if x:\n    assert x\nelse:\n    assert y",
    "a branch that leaves checked": "if x:\n    assert x\n    return\nassert y",
    "raises": "with pytest.raises(ValueError):\n    f()",
    "a loop": "for x in xs:\n    assert x",
    "a loop that continues checked": (
        "for x in xs:\n    if x:\n        assert x\n        continue\n    assert not x"
    ),
    "a count": "n = 0\nfor x in xs:\n    if x:\n        continue\n    n += 1\nassert n",
    "numpy": "np.testing.assert_array_equal(x, y)",
    "a helper": "helper(x)",
    "a method": "case.helper()",
    "in a block": "with open(x):\n    assert x",
    "an exception that checks": "try:\n    f()\nexcept E:\n    assert x\nelse:\n    assert y",
    "one that goes on": "try:\n    f()\nexcept E:\n    pass\nassert y",
    "finally": "try:\n    f()\nfinally:\n    assert y",
    "or raises": "if x:\n    raise E\nassert y",
}
UNSURE = {
    "nothing": "f()",
    "a branch": "if x:\n    assert x",
    "a branch that leaves": "if x:\n    return\nassert x",
    "continue": "for x in xs:\n    if x:\n        continue\n    assert x",
    "break": "for x in xs:\n    if x:\n        break\n    assert x",
    "a loop that may be empty": "for x in xs if y else ():\n    assert x",
    "while": "while x:\n    assert x",
    "a caught exception": "try:\n    f()\nexcept E:\n    pass\nelse:\n    assert x",
    "a definition": "def inner():\n    assert x",
    "a helper that does not": "other(x)",
    "a choice": "helper(x) if y else None",
    "and": "x and helper(x)",
}  # fmt: skip
HELPERS = "def helper(x):\n    assert x\n\ndef other(x):\n    if x:\n        assert x\n\n"


def is_sure(body: str, folder: Path) -> bool:
    text = "\n    ".join(body.splitlines())
    (folder / "test_it.py").write_text(f"{HELPERS}def test_it():\n    {text}\n")
    return not Analysis(folder).unsure()


@pytest.mark.parametrize("name", SURE)
def test_what_is_sure(name: str, tmp_path: Path) -> None:
    assert is_sure(SURE[name], tmp_path)


@pytest.mark.parametrize("name", UNSURE)
def test_what_is_not(name: str, tmp_path: Path) -> None:
    assert not is_sure(UNSURE[name], tmp_path)


def test_every_test_checks_something() -> None:
    found = [str(u) for u in Analysis(TESTS).unsure()]
    assert not found, "may pass without a check; count what they check: " + ", ".join(found)


CLOCKS = {"perf_counter", "monotonic", "time"}


def _by_a_clock(node: ast.AST) -> bool:
    called = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
    return any((c.attr if isinstance(c, ast.Attribute) else "") in CLOCKS for c in called)


def test_no_assert_by_a_clock_under_a_second() -> None:
    """Another process that takes the CPU for a moment must not fail a test."""
    files = sorted(TESTS.rglob("test_*.py"))
    assert files
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
            timed = {  # names given a difference of two readings
                t.id
                for n in ast.walk(function)
                if isinstance(n, ast.Assign) and _by_a_clock(n.value)
                for t in n.targets
                if isinstance(t, ast.Name)
            }
            compared = [
                c
                for a in ast.walk(function)
                if isinstance(a, ast.Assert)
                for c in ast.walk(a)
                if isinstance(c, ast.Compare)
            ]
            for c in compared:
                names = {n.id for n in ast.walk(c) if isinstance(n, ast.Name)}
                limits = [n.value for n in c.comparators if isinstance(n, ast.Constant)]
                short = any(isinstance(v, float | int) and v < 1 for v in limits)
                where = f"{path.name}:{c.lineno}"
                assert not (short and (_by_a_clock(c) or names & timed)), where
