"""Where gradients stop in an exported graph: `detach` and `no_grad`, which decomposing drops.

A mark of our own, which copies, takes their place. A detached tensor is a view in PyTorch, though:
where one name is written to and another read afterwards, the marks stand before the reads instead.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Node

from everygrad.core.tensor import Tensor
from everygrad.errors import TraceError
from everygrad.interop.torch.aten.registry import aten

_LIBRARY: Any = torch.library.Library("everygrad", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("stop_gradient(Tensor x) -> Tensor")
torch.library.impl(_LIBRARY, "stop_gradient", "CompositeExplicitAutograd")(lambda x: x.clone())
torch.library.register_fake("everygrad::stop_gradient", torch.empty_like, lib=_LIBRARY)
_STOP = torch.ops.everygrad.stop_gradient.default
_REGION = "wrap_with_set_grad_enabled"


@aten("everygrad::stop_gradient.default")
def stop_gradient(x: Tensor) -> Tensor:
    return x.detach()


@contextmanager
def marked(exported: Any) -> Iterator[None]:
    """The program's graph with its detached values marked; as it was when the block ends."""
    added: list[Node] = []
    graph = exported.graph_module.graph
    nodes = list(graph.nodes)
    memory = _Memory(nodes, _without_gradient(exported))
    try:
        for node in nodes:
            if node.op != "call_function":
                continue
            if node.target is torch.ops.aten.detach.default:
                added += memory.mark(node)
            elif _is_region(node):
                _refuse_nested(node)
                for result in [] if node.args[0] else list(node.users):
                    added += memory.mark(result)
        yield
    finally:
        for node in reversed(added):
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
            graph.erase_node(node)


def _without_gradient(exported: Any) -> set[str]:
    """Names of placeholders whose tensors have no gradient: buffers and constants."""
    signature = exported.graph_signature
    return {
        *signature.inputs_to_buffers,
        *signature.inputs_to_lifted_tensor_constants,
        *signature.inputs_to_lifted_custom_objs,
    }


def _is_region(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == _REGION


def _inner(region: Node) -> list[Node]:
    """The nodes of the graph that a region runs."""
    module: Any = getattr(region.graph.owning_module, str(region.args[1].target))  # type: ignore[union-attr]
    return list(module.graph.nodes)


def _refuse_nested(region: Node) -> None:
    if any(_is_region(n) and n.args[0] for n in _inner(region)):
        raise TraceError("from_torch: enable_grad() inside no_grad() is not taken over")


class _Memory:
    """Which nodes of a graph name the same memory, and which of them write to it."""

    def __init__(self, nodes: list[Node], without_gradient: set[str]) -> None:
        self.without_gradient = without_gradient
        self.at = {node: i for i, node in enumerate(nodes)}
        self.shown: dict[Node, Node] = {}  # what a node is another name of
        self.written: dict[Node, list[Node]] = {}  # by root: the names that are written to
        self.writers: dict[Node, list[Node]] = {}  # by such a name: who writes
        self.names: dict[Node, list[Node]] = {}  # by root
        for node in nodes:
            source = _source(node)
            if source is not None:
                self.shown[node] = source
            self.names.setdefault(self.root(node), []).append(node)
            for name in _written(node):
                self.written.setdefault(self.root(name), []).append(name)
                self.writers.setdefault(name, []).append(node)

    def root(self, node: Node) -> Node:
        while node in self.shown:
            node = self.shown[node]
        return node

    def behind(self, node: Node, mark: Node) -> bool:
        """Whether a node names its memory by way of another."""
        while node is not mark:
            if node not in self.shown:
                return False
            node = self.shown[node]
        return True

    def mark(self, node: Node) -> list[Node]:
        """Stop the gradient at a node; the nodes that were added."""
        root = self.root(node)
        if not self._is_seen_elsewhere(node, root):
            return [_stop_behind(node)]
        added = []
        for name in self.names[root]:
            if not self.behind(name, node):
                continue
            for reader in list(name.users):
                if reader not in self.shown and name not in _written(reader):
                    added.append(_stop_before(name, reader))
        return added

    def _is_seen_elsewhere(self, node: Node, root: Node) -> bool:
        """Whether what is written by one name is read by the other."""
        found = False
        for name in self.written.get(root, ()):
            inside = self.behind(name, node)
            for writer in self.writers[name]:
                outside = inside and root.op in ("placeholder", "get_attr")
                for other in self.names[root]:
                    if self.behind(other, node) is not inside:
                        outside |= any(self.at[u] > self.at[writer] for u in other.users)
                if outside and inside and root.name not in self.without_gradient:
                    raise TraceError(_refusal(writer, node))
                found |= outside
        return found


def _refusal(writer: Node, node: Node) -> str:
    name = str(writer.target).removeprefix("aten.").removesuffix(".default")
    if "embedding_renorm" in name:
        return (
            "from_torch: max_norm of an embedding, which changes its weights in each call, is not "
            "taken over: give the layer max_norm=None, and renormalise the weights between calls"
        )
    return (
        f"from_torch: {name} ({writer.name}) writes by a detached name ({node.name}) to a value "
        f"that has a gradient, which does not see it; write to a clone"
    )


def _source(node: Node) -> Node | None:
    """The node whose memory a node's result is in."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        several, index = node.args[:2]
        if not isinstance(several, Node):
            return None
        return _given_back(several, index) if _is_region(several) else _source(several)
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns or schema.returns[0].alias_info is None:
        return None
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            found = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            return found if isinstance(found, Node) else None
    return None


def _given_back(region: Node, index: Any) -> Node | None:
    """The input of a region that one of its results is a name of."""
    nodes = _inner(region)
    results: Any = nodes[-1].args[0]
    found = results[index]
    while isinstance(found, Node) and found.op == "call_function":
        found = _source(found)
    inputs = [n for n in nodes if n.op == "placeholder"]
    given = region.args[2 + inputs.index(found)] if found in inputs else None
    return given if isinstance(given, Node) else None


def _written(node: Node) -> list[Node]:
    """The names that a node writes to."""
    if node.op != "call_function":
        return []
    if _is_region(node):
        return _written_inside(node)
    schema = getattr(node.target, "_schema", None)
    found = []
    for i, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            several = given if isinstance(given, (list, tuple)) else [given]
            found += [n for n in several if isinstance(n, Node)]
    return found


def _written_inside(region: Node) -> list[Node]:
    nodes = _inner(region)
    inputs = [n for n in nodes if n.op == "placeholder"]
    found = []
    for name in (name for n in nodes for name in _written(n)):
        here: Node | None = name
        while here is not None and here.op == "call_function":
            here = _source(here)
        if here in inputs:
            given = region.args[2 + inputs.index(here)]
            found += [given] if isinstance(given, Node) else []
    return found


def _stop_behind(node: Node) -> Node:
    """A mark that everybody reads in place of a node."""
    with node.graph.inserting_after(node):
        stop = node.graph.call_function(_STOP, (node,))
    stop.meta = dict(node.meta)
    node.replace_all_uses_with(stop, delete_user_cb=lambda user: user is not stop)
    return stop


def _stop_before(node: Node, reader: Node) -> Node:
    """A mark that one reader reads in place of a node."""
    with node.graph.inserting_before(reader):
        stop = node.graph.call_function(_STOP, (node,))
    stop.meta = dict(node.meta)
    reader.replace_input_with(node, stop)
    return stop
