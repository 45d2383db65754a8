"""What is refused of an ONNX file before memory is taken for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from everygrad.errors import ArgumentError, FileError, MissingFileError

DEEPEST = 24  # graphs inside nodes inside graphs
MOST_NODES = 1 << 17  # of a file, with every function counted at each of its calls
Functions = dict[tuple[str, str, str], FunctionProto]


def read_model(source: Any) -> tuple[ModelProto, str, Path | None]:
    """A model from a path, from bytes or as it is; its name in errors; the folder it lies in."""
    if isinstance(source, ModelProto):
        return source, "load_onnx", None
    if isinstance(source, bytes | bytearray | memoryview):
        return parse(bytes(source), "load_onnx"), "load_onnx", None
    if not isinstance(source, str | os.PathLike):
        raise ArgumentError(
            "load_onnx: takes a path, bytes or an onnx.ModelProto, got " + type(source).__name__
        )
    path = Path(os.fsdecode(source))
    what = f"load_onnx: {path.name}"
    if not path.is_file():
        raise MissingFileError(f"load_onnx: there is no file {str(path)!r}")
    return parse(path.read_bytes(), what), what, path.parent


def parse(data: bytes, what: str) -> ModelProto:
    """The model that bytes say, with nothing but its structure looked at."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError) as error:
        raise FileError(f"{what}: not an ONNX model, or cut short: {error}") from None
    return model


def domain_of(name: str) -> str:
    """A domain's name; the default one has two."""
    return "" if name == "ai.onnx" else name


def opsets_of(model: ModelProto | FunctionProto) -> dict[str, int]:
    """The version of each domain that a model or function is written for."""
    return {domain_of(o.domain): o.version for o in model.opset_import}


def too_new(opsets: dict[str, int]) -> list[str]:
    """Opsets of ONNX's own that the installed package does not know."""
    latest = onnx.defs.onnx_opset_version()
    version = opsets.get("", 1)
    if not 1 <= version <= latest:
        return [f"opset {version} of ai.onnx (onnx {onnx.__version__} knows 1 to {latest})"]
    return []


def label(node: NodeProto, index: int) -> str:
    """How a node is called in errors: by its name, else by what it makes."""
    made = next((o for o in node.output if o), "")
    return node.name or (f"the node of {made!r}" if made else f"node {index}")


def check_model(model: ModelProto, what: str) -> None:
    """Refuse a model whose parts do not hold together."""
    if not model.ir_version or not model.HasField("graph"):
        raise FileError(f"{what}: not an ONNX model: it has no version or no graph")
    functions = functions_of(model, what)
    _no_recursion(functions, what)
    for function in functions.values():
        _check_nodes(function.node, {*function.input}, function.output, what, 1)
    check_graph(model.graph, set(), what, 0)


def functions_of(model: ModelProto, what: str) -> Functions:
    """The model's own functions by domain, name and overload."""
    found: Functions = {}
    for f in model.functions:
        key = (domain_of(f.domain), f.name, f.overload)
        if key in found:
            raise FileError(f"{what}: function {f.name!r} is defined twice")
        found[key] = f
    return found


def graphs_of(node: NodeProto) -> list[tuple[str, GraphProto]]:
    """The graphs inside a node, by attribute."""
    found = []
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            found.append((a.name, a.g))
        found += [(a.name, g) for g in a.graphs]
    return found


def _no_recursion(functions: Functions, what: str) -> None:
    """Refuse functions that call themselves, by whatever way: they would never end."""
    calls: dict[Any, set[Any]] = {}
    for key, function in functions.items():
        calls[key] = {k for k in _called(function.node, what, 0) if k in functions}
    finished: set[Any] = set()
    for start in calls:
        path: list[Any] = []
        todo = [(start, False)]
        while todo:
            key, leaving = todo.pop()
            if leaving:
                finished.add(path.pop())
            elif key in path:
                raise FileError(f"{what}: function {key[1]!r} calls itself")
            elif key not in finished:
                path.append(key)
                todo.append((key, True))
                todo += [(k, False) for k in calls[key]]


def _called(nodes: Iterable[NodeProto], what: str, depth: int) -> Iterable[Any]:
    _check_depth(depth, what)
    for node in nodes:
        yield domain_of(node.domain), node.op_type, node.overload
        for _, graph in graphs_of(node):
            yield from _called(graph.node, what, depth + 1)


def _check_depth(depth: int, what: str) -> None:
    if depth > DEEPEST:
        raise FileError(f"{what}: graphs are nested more than {DEEPEST} deep")


def check_graph(graph: GraphProto, outer: set[str], what: str, depth: int) -> None:
    """Refuse names that are used before they are made, or made twice, here and inside nodes."""
    _check_depth(depth, what)
    stored = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    given = [v.name for v in graph.input]
    for kind, names in (("initializer", stored), ("input", given)):
        twice = {n for n in names if names.count(n) > 1} if len(names) != len({*names}) else set()
        if twice or "" in names:
            raise FileError(f"{what}: an {kind} has no name of its own: {sorted(twice) or ''}")
    own = {*stored, *given}
    _check_nodes(graph.node, own, [v.name for v in graph.output], what, depth, outer)


def _check_nodes(
    nodes: Any,
    own: set[str],
    outputs: Iterable[str],
    what: str,
    depth: int,
    outer: set[str] | None = None,
) -> None:
    outer = outer or set()
    if len(nodes) > MOST_NODES:
        raise FileError(f"{what}: {len(nodes)} nodes; at most {MOST_NODES} are read")
    made_later = {o for node in nodes for o in node.output if o}
    for index, node in enumerate(nodes):
        if not node.op_type:
            raise FileError(f"{what}: {label(node, index)} names no operator")
        lost = [n for n in node.input if n and n not in own and n not in outer]
        if lost:
            cause = "the graph is cyclic or out of order" if lost[0] in made_later else "no such"
            raise FileError(
                f"{what}: {label(node, index)} ({node.op_type}) uses {lost[0]!r}, which nothing "
                f"before it makes ({cause})"
            )
        for attribute in node.attribute:
            if not attribute.name:
                raise FileError(f"{what}: {label(node, index)} has an attribute without a name")
        for _, graph in graphs_of(node):
            check_graph(graph, own | outer, what, depth + 1)
        for name in node.output:
            if name and name in own:
                raise FileError(f"{what}: {label(node, index)} makes {name!r} a second time")
            own.add(name)
        own.discard("")
    lost = [n for n in outputs if n not in own and n not in outer]
    if lost:
        raise FileError(f"{what}: nothing makes the output {lost[0]!r}")
