"""Nested containers of tensors, flattened the same way everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree
from optree.registry import __GLOBAL_NAMESPACE as _EVERYWHERE


def flatten(tree: Any, none_is_leaf: bool = False) -> tuple[list[Any], Any]:
    """The leaves in order, and the structure for `unflatten`."""
    leaves, structure = optree.tree_flatten(tree, none_is_leaf=none_is_leaf)
    return leaves, structure


def unflatten(structure: Any, leaves: list[Any]) -> Any:
    return optree.tree_unflatten(structure, leaves)


def leaves_of(tree: Any, none_is_leaf: bool = False) -> list[Any]:
    return optree.tree_leaves(tree, none_is_leaf=none_is_leaf)


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    return optree.tree_map(fn, tree)


def spread(prefix: Any, tree: Any) -> list[Any]:
    """One value for each leaf of `tree`, from one value or a prefix of its containers."""
    full = optree.tree_broadcast_prefix(prefix, tree, none_is_leaf=True)
    return optree.tree_leaves(full, none_is_leaf=True)


def register(kind: type, flatten_one: Callable[[Any], Any], unflatten_one: Any) -> None:
    """Let objects of a class be containers: `flatten_one` gives (leaves, what is no leaf), and
    `unflatten_one(what is no leaf, leaves)` makes one again."""
    optree.register_pytree_node(kind, flatten_one, unflatten_one, namespace=_EVERYWHERE)
