"""PyTorch's names: public, or private ones that say which versions were tried once they move."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import everygrad
from everygrad.errors import ArgumentError
from everygrad.interop.torch import versions
from everygrad.interop.torch.versions import torch_name

FOLDER = Path(everygrad.__file__).parent / "interop/torch"
FILES = sorted(FOLDER.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
# what a check at run time provides for
PROVIDED = {"torch._C._dynamo": "compiled.py: torch.empty_strided serves where it is gone"}
# public, though they look otherwise: the operator namespace's class, documented for backends
OPERATORS = {"torch._ops.OpOverload"}


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None


def _is_private(name: str) -> bool:
    parts = name.split(".")
    # `torch.ops.aten._softmax` and the like are ATen's ops, public by their schemas
    hidden = any(p.startswith("_") and not p.startswith("__") for p in parts)
    return parts[0] in ("torch", "functorch") and parts[1:2] != ["ops"] and hidden


def _used(tree: ast.Module) -> Iterator[str]:
    """Names of PyTorch's that a file uses directly, the longest of each chain."""
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.Attribute):
            inner.add(id(node.value))
            if id(node) not in inner and (name := _dotted(node)) is not None:
                yield name


def _asked(tree: ast.Module) -> Iterator[str]:
    """Names that a file asks `torch_name` for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _dotted(node.func) == "torch_name":
            assert isinstance(node.args[0], ast.Constant)
            yield node.args[0].value


ASKED = sorted({name for tree in TREES.values() for name in _asked(tree)})


def test_private_names_are_asked_for_by_torch_name() -> None:
    found = {
        f"{path.name}: {name}"
        for path, tree in TREES.items()
        for name in _used(tree)
        if _is_private(name) and name not in OPERATORS
        if not any(name.startswith(known) for known in PROVIDED)
    }
    assert not found
    assert ASKED


@pytest.mark.parametrize("name", ASKED)
def test_each_that_moved_says_what_was_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = torch_name(name)
    path, _, last = name.rpartition(".")
    assert getattr(torch_name(path), last) is held
    monkeypatch.delattr(torch_name(path), last)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, name, None)  # neither is there a module of this name
    with pytest.raises(ArgumentError, match=f"has no {name}; .* were tried are 2"):
        torch_name(name)


def test_the_installed_version_was_tried() -> None:
    assert torch.__version__.partition("+")[0] in versions.TRIED
