"""Nested containers of tensors, flattened the same way everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree


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
