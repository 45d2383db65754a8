"""Graphs with symbolic sizes: one with known sizes is made for each set of sizes that is met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from everygrad.interop.torch.graph import overload
from everygrad.interop.torch.versions import torch_name

pytree: Any = torch_name("torch.utils._pytree")
_FakeTensorMode: Any = torch_name("torch._subclasses.FakeTensorMode")
_free_unbacked_symbols = torch_name("torch.fx.experimental.symbolic_shapes.free_unbacked_symbols")
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(module: GraphModule) -> bool:
    """Whether a size of any value in the graph is a symbol."""
    values = [n.meta.get("val") for n in module.graph.nodes]
    return any(map(has_symbols, pytree.tree_leaves(values)))


def has_symbols(value: Any) -> bool:
    """Whether a value is a symbol, or a tensor of symbolic sizes."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *strides))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def decided_by_values(module: GraphModule) -> dict[str, list[str]]:
    """Ops of a graph whose results' sizes only their values decide, with the nodes' names."""
    found: dict[str, list[str]] = {}
    known: set[Any] = set()
    for node in module.graph.nodes:
        symbols = _unbacked(node.meta.get("val"))
        if symbols - known and node.op == "call_function":
            name = f"{overload(node.target)} (the size of its result depends on values)"
            found.setdefault(name, []).append(node.name)
        known |= symbols
    return found


def _unbacked(value: Any) -> set[Any]:
    leaves = [v for v in pytree.tree_leaves(value) if has_symbols(v)]
    return set().union(*(_free_unbacked_symbols(v) for v in leaves))


def sizes_of(args: Sequence[Any]) -> tuple[Any, ...]:
    """What decides every size in a graph with these arguments."""
    return tuple([(a.shape, a.stride()) if isinstance(a, torch.Tensor) else a for a in args])


def with_sizes(module: GraphModule, args: Sequence[Any]) -> GraphModule:
    """The graph with the sizes that it has for these arguments. Nodes that compute sizes are gone:
    their results are numbers in the nodes that read them."""
    made = Graph()
    found: dict[Node, Any] = {}  # nodes of the new graph, or numbers
    values: dict[Node, Any] = {}
    given = iter(args)

    def new(value: Any) -> Any:
        return found[value] if isinstance(value, Node) else value

    def known(value: Any) -> Any:
        return values[value] if isinstance(value, Node) else value

    with _FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for node in module.graph.nodes:
            if node.op == "output":
                made.output(pytree.tree_map(new, node.args[0]))
                continue
            if node.op == "placeholder":
                value = _fake(next(given))
            elif node.op == "get_attr":
                held = getattr(module, node.target)
                value = mode.from_tensor(held) if isinstance(held, torch.Tensor) else held
            else:
                args_, kwargs = pytree.tree_map(known, (node.args, node.kwargs))
                value = node.target(*args_, **kwargs)
            values[node] = value
            if node.op == "call_function" and isinstance(value, _NUMBERS):
                found[node] = value
                continue
            copy = made.create_node(
                node.op,
                node.target,
                pytree.tree_map(new, node.args),
                pytree.tree_map(new, node.kwargs),
                node.name,
            )
            copy.meta = {**node.meta, "val": value}
            found[node] = value if isinstance(value, _NUMBERS) else copy
    return GraphModule(module, made)


def _fake(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
