"""Nodes of a graph that compute what an earlier one did: one of them serves.

PyTorch's own pass does the same before it splits a joint graph, and loads inductor's lowerings for
it, which takes a third of a second of the first step of training in every process.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from everygrad.interop.torch.sizes import has_symbols
from everygrad.interop.torch.versions import torch_name

pytree: Any = torch_name("torch.utils._pytree")


def without_repeated(module: GraphModule) -> None:
    """Have one node serve for all that compute the same. What is drawn differs each time, and so
    does what is read before and after a write; tensors that share memory with a result stay apart,
    as whoever gets them may write to one."""
    (output,) = module.graph.find_nodes(op="output")
    given = {s for n in output.all_input_nodes if (s := _storage(n)) is not None}
    first: dict[Hashable, Node] = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            first.clear()
            continue
        if not _is_repeatable(node) or _storage(node) in given:
            continue
        earlier = first.setdefault(_key(node), node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            module.graph.erase_node(node)


def _storage(node: Node) -> int | None:
    """The memory of a node's value; None for what is no dense tensor."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _is_repeatable(node: Node) -> bool:
    """Whether a node gives tensors of known sizes, the same for the same arguments."""
    if not isinstance(node.target, torch._ops.OpOverload) and node.target is not operator.getitem:
        return False
    values = pytree.tree_leaves(node.meta.get("val"))
    tensors = all(isinstance(v, torch.Tensor) and not has_symbols(v) for v in values)
    tags = getattr(node.target, "tags", ())
    return bool(values) and tensors and torch.Tag.nondeterministic_seeded not in tags


def _key(node: Node) -> Hashable:
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    return node.target, str(structure), tuple(map(_leaf, leaves))


def _leaf(value: Any) -> Hashable:
    """By its text where numbers are equal that mean different things: 1 and 1.0, 0.0 and -0.0."""
    return value if isinstance(value, Node) else (type(value), repr(value))
