"""Ops with effects, which PyTorch orders by tokens: a factorisation that failed raises."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from everygrad.interop.torch.graph import overload

_CHECK = torch.ops.aten._linalg_check_errors.default


def settle_checks(module: GraphModule) -> None:
    """Make factorisations raise by themselves, in place of nodes that look at what they say.

    Tokens that nothing else orders go from the inputs to the outputs then.
    """
    for node in list(module.graph.nodes):
        if node.op != "call_function" or overload(node.target) != "torch::with_effects":
            continue
        maker = _maker(node)
        if maker is None:
            continue
        maker.kwargs = {**maker.kwargs, "check_errors": True}
        token: Any = node.args[0]
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(token)
            module.graph.erase_node(user)
        module.graph.erase_node(node)


def _maker(node: Node) -> Node | None:
    """The factorisation whose success a node checks; None for any other effect."""
    if node.args[1] is not _CHECK:
        return None
    info = node.args[2]
    if not isinstance(info, Node) or info.target is not operator.getitem:
        return None
    maker = info.args[0]
    schema = getattr(getattr(maker, "target", None), "_schema", None)
    names = [a.name for a in schema.arguments] if schema is not None else []
    return maker if isinstance(maker, Node) and "check_errors" in names else None
