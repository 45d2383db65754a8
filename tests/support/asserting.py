"""Whether a test checks something for certain: on every way through it that ends normally.

A check is an `assert`, a `with pytest.raises(...)` and its like, NumPy's `assert_...`, or a call of
a function or method of tests/ that checks for certain. A loop is taken to run at least once, unless
it says itself that it may not (`for x in xs if there else ()`); whoever gathers what to loop over
asserts that there is something (`support.samples_of`). It checks if none of its turns can pass by
the check: by `continue`, an `if` without `else`, a caught exception. Where some can, the test
counts what it checked and asserts the count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_BLOCKS = {"raises", "warns", "deprecated_call"}


class Unsure(NamedTuple):
    """A test that may pass without a check."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


class Ways(NamedTuple):
    """How statements may end: None for a way that does not exist, else whether all who go it have
    checked something."""

    on: bool | None  # to the next statement
    turn: bool | None  # to the next turn of the loop, or out of it
    out: bool | None  # out of the function

    def joined(self, other: Ways) -> Ways:
        return Ways(*(_both(a, b) for a, b in zip(self, other, strict=True)))


def _both(a: bool | None, b: bool | None) -> bool | None:
    return b if a is None else a if b is None else a and b


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


class _File:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef)]
        self.functions = {n.name: n for n in reversed(found)}
        self.tests = [n for n in found if n.name.startswith("test_")]
        self.imported: dict[str, str] = {}  # names, and the file of tests/ they come from
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
                home = (node.module or "").split(".")[-1]
                self.imported |= {a.asname or a.name: home for a in node.names}


class Analysis:
    """All files of a folder of tests; functions are followed by their names."""

    def __init__(self, folder: Path) -> None:
        self.files = {p.stem: _File(p) for p in sorted(folder.rglob("*.py"))}
        self.known: dict[tuple[str, str], bool] = {}

    def unsure(self) -> list[Unsure]:
        return [
            Unsure(file.path.name, test.lineno, test.name)
            for name, file in self.files.items()
            if name.startswith("test_")
            for test in file.tests
            if not self.surely(file, test)
        ]

    def surely(self, file: _File, function: ast.FunctionDef) -> bool:
        ways = self.block(file, function.body, False)
        return _both(ways.on, ways.out) is not False

    def block(self, file: _File, body: Sequence[ast.stmt], checked: bool) -> Ways:
        ways = Ways(checked, None, None)
        for statement in body:
            if ways.on is None:
                break
            after = self.statement(file, statement, ways.on)
            ways = Ways(after.on, _both(ways.turn, after.turn), _both(ways.out, after.out))
        return ways

    def statement(self, file: _File, node: ast.stmt, checked: bool) -> Ways:
        if isinstance(node, ast.Return):
            return Ways(None, None, checked or self.calls(file, node))
        if isinstance(node, ast.Raise):
            return Ways(None, None, None)
        if isinstance(node, ast.Continue | ast.Break):
            return Ways(None, checked, None)
        if isinstance(node, ast.With):
            names = {_name(getattr(i.context_expr, "func", i.context_expr)) for i in node.items}
            inside = self.block(file, node.body, checked)
            # what raises inside `raises` goes on behind it
            return Ways(True, inside.turn, inside.out) if names & _BLOCKS else inside
        if isinstance(node, ast.For | ast.While):
            turn = self.block(file, node.body, checked)
            each = _both(turn.on, turn.turn)
            sure = isinstance(node, ast.For) and not _maybe_empty(node.iter) and each is not False
            return Ways(checked or sure, None, turn.out)
        if isinstance(node, ast.If):
            yes = self.block(file, node.body, checked)
            return yes.joined(self.block(file, node.orelse, checked))
        if isinstance(node, ast.Try):
            ways = self.block(file, [*node.body, *node.orelse], checked)
            for handler in node.handlers:
                ways = ways.joined(self.block(file, handler.body, checked))
            last = self.block(file, node.finalbody, False).on
            return Ways(ways.on if ways.on is None else ways.on or bool(last), ways.turn, ways.out)
        return Ways(checked or isinstance(node, ast.Assert) or self.calls(file, node), None, None)

    def calls(self, file: _File, node: ast.stmt) -> bool:
        """Whether a statement calls something that checks."""
        return any(self.call(file, n) for n in _own(node) if isinstance(n, ast.Call))

    def call(self, file: _File, call: ast.Call) -> bool:
        name = _name(call.func)
        if name.startswith("assert_") or name in ("fail", "raises"):
            return True
        home = file if name in file.functions else self.files.get(file.imported.get(name, ""))
        if home is None or name not in home.functions:
            return False
        key = (home.path.stem, name)
        if key not in self.known:
            self.known[key] = False  # of one that calls itself
            self.known[key] = self.surely(home, home.functions[name])
        return self.known[key]


def _maybe_empty(node: ast.expr) -> bool:
    """Whether what a loop goes over is written so that it may have nothing in it."""
    ends = [n for i in ast.walk(node) if isinstance(i, ast.IfExp) for n in (i.body, i.orelse)]
    return any(isinstance(n, ast.Tuple | ast.List) and not n.elts for n in ends)


def _own(node: ast.stmt) -> Iterable[ast.AST]:
    """What runs when a statement runs: not functions it defines, nor what may be left out."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return []
    todo: list[ast.AST] = [node]
    for n in todo:
        if not isinstance(n, ast.Lambda | ast.IfExp | ast.BoolOp | ast.comprehension):
            todo.extend(ast.iter_child_nodes(n))
    return todo
