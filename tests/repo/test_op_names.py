"""What is known about an op stands in its record: outside `ops/`, code asks for facts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from everygrad import ops
from everygrad.compiler.facts import FACTS
from everygrad.ops.record.spec import REGISTRY
from tests.repo.test_packaging import PACKAGE, SOURCES

# Words that are spelled like ops and name something else, by what is compared with them.
OTHER_WORDS = {
    "fn": "a scalar function of `compile.expr`",
    "intrinsic": "the same, asked of an op",
    "combine": "how a reduction combines two elements",
    "reduction": "the same, of an accumulator",
    "rule": "how a scalar function's dtype follows from its arguments",
    "epilogue": "cuBLASLt's name of an epilogue",
    "packs": "which operand a matrix product packs",
    "packing": "how it packs one",
    "batches": "which matrices a library takes at once",
    "along": "an axis of a tile",
    "axis": "an axis of a tile",
    "what": "what a line of WGSL does",
    "approximate": "an argument of gelu, in PyTorch's words",
    "nonlinearity": "an argument of nn.init, in PyTorch's words",
    "orthogonal_map": "an argument of nn.utils.parametrizations, in PyTorch's words",
    "best": "which of a metric's values a checkpoint keeps",
    "mode": "the same, of ReduceLROnPlateau, in PyTorch's words",
    "threshold_mode": "an argument of ReduceLROnPlateau, in PyTorch's words",
    "op": "how a collective combines, in MPI's words; an op itself is never a string",
    "kind": "how rotary positions are scaled, in Hugging Face's words",
}
# What is left, by file and text, with the reason.
REMAINING = {
    ("_jit/reads.py", "name in"): "methods of Python's containers",
    (
        "backends/cuda/graph/epilogues.py",
        "getattr(v.facts.derivative_of, 'epilogue', None) in _WITH_AUX",
    ): "cuBLASLt's names of epilogues",
    ("nn/functional.py", "_name not in _HELPERS"): "names of Python functions in this module",
    ("tools/accuracy.py", "name == 'pow'"): "a row of a table of accuracies, not an op",
    ("tools/accuracy.py", "name in ENDS_IN_ARITHMETIC"): "the same",
}


def _op_names() -> set[str]:
    ops.load_all()
    derivatives = (f"{n}.d{i}" for n, op in REGISTRY.items() for i in range(len(op.rules)))
    return {*REGISTRY, *derivatives, "copy", "sum_alone"}


def _strings(node: ast.expr) -> set[str]:
    """The strings that an expression spells out: one, or a collection of them."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return set().union(*map(_strings, node.elts))
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("frozenset", "set", "tuple"):
        return set().union(*map(_strings, node.args))
    return set()


def _subject(node: ast.expr) -> str:
    """The last word of what is compared: `name` of v.name, `intrinsic` of op.intrinsic()."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def comparisons(text: str, names: set[str]) -> Iterator[str]:
    """The comparisons of a file with the name of an op. Looking one up in a dict is none: a table
    by name is how a backend says which kernel serves which op."""
    tree = ast.parse(text)
    collections = {
        target.id: _strings(node.value) & names
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = [s for s in sides if _strings(s) & names or collections.get(_subject(s))]
            others = [_subject(s) for s in sides if s not in named]
            if named and not {*others} & {*OTHER_WORDS}:
                yield ast.unparse(node)
        elif isinstance(node, ast.Match) and _subject(node.subject) not in OTHER_WORDS:
            values = [
                p.value
                for c in node.cases
                for p in ast.walk(c.pattern)
                if isinstance(p, ast.MatchValue)
            ]
            if any(_strings(v) & names for v in values):
                yield ast.unparse(node.subject)


def test_only_records_know_ops_by_name() -> None:
    names = _op_names()
    left = dict.fromkeys(REMAINING, 0)
    for path in SOURCES:
        part = path.relative_to(PACKAGE).as_posix()
        if part.startswith(("ops/", "interop/")):  # records, and tables from others' names to ours
            continue
        for found in comparisons(path.read_text(encoding="utf-8"), names):
            known = [k for k in REMAINING if k[0] == part and found.startswith(k[1])]
            assert known, f"{part}: {found}: make it a fact of the record (compiler/facts.py)"
            left[known[0]] += 1
    assert {*left.values()} == {1}, f"each is there once: {left}"


def test_the_counter_sees_what_it_should() -> None:
    names = {"add", "take", "copy"}
    seen = """
KNOWN = ("add", "other")
KERNELS = {"add": 1}
a = v.name == "add"
b = op.name in ("take", "copy")
c = v.name in KNOWN
d = v.name in KERNELS or v.op.combine == "add" or v.name == "unknown"
match v.name:
    case "take" | "none":
        pass
"""
    assert [*comparisons(seen, names)] == [
        "v.name", "v.name == 'add'", "op.name in ('take', 'copy')", "v.name in KNOWN"
    ]  # fmt: skip


def test_every_fact_is_read() -> None:
    """A fact that nobody outside the records asks for is no fact, but a note."""
    readers: set[str] = set()
    sources: list[Path] = [p for p in SOURCES if p.name != "facts.py"]
    for path in sources:
        if path.relative_to(PACKAGE).parts[0] != "ops":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            readers |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert sources
    assert not FACTS - readers
