"""The graph: one Node for each recorded op, one Leaf for each tensor that asked for gradients.

A node holds what its op's derivative needs and nothing else: payloads, never Tensors, so that the
graph owns no cycle and a value that is rebound later cannot change what was saved.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everygrad.core.op import Op

if TYPE_CHECKING:
    from everygrad.core.tensor import Tensor

Hook = Callable[[Any], Any]
_handle_ids = itertools.count()


class HookHandle:
    """Returned by every `register_...hook`; `remove()` takes the hook away, twice does no harm."""

    def __init__(self, hooks: dict[int, Hook]) -> None:
        self._hooks = hooks
        self.id = next(_handle_ids)

    def remove(self) -> None:
        self._hooks.pop(self.id, None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Node:
    """One recorded op: where its inputs came from, and what its derivative needs.

    op       the op record; its `vjp(node, g, create_graph)` gives one gradient for each parent
    parents  the node of each tensor input, None where no gradient is wanted
    saved    payloads kept for the derivative, or a placeholder for them (`fulfil`); None once the
    graph
             has been used up
    params   the op's keyword parameters
    shape    the shape of the result, which is the shape of its gradient
    hooks    functions of the summed gradient, by handle, or None
    """

    __slots__ = ("hooks", "op", "params", "parents", "saved", "shape")
    is_leaf = False
    level = 0  # the transformation this node belongs to
    where: str | None = None  # the user's line, noted in anomaly mode
    op: Op
    parents: tuple[Node | None, ...]
    saved: Any
    params: Any
    shape: tuple[int, ...]
    hooks: dict[int, Hook] | None

    @property
    def whole(self) -> Node:
        """The node in the graph, of which a rule may be given a part (`PartNode`)."""
        return self

    def add_hook(self, hook: Hook) -> HookHandle:
        """Run `hook` on the summed gradient, once for each backward pass."""
        if self.hooks is None:
            self.hooks = {}
        handle = HookHandle(self.hooks)
        self.hooks[handle.id] = hook
        return handle

    def __repr__(self) -> str:
        name = getattr(self.op, "name", "leaf")
        return f"<{name} {list(self.shape)}{' at ' + self.where if self.where else ''}>"


class MarkedNode(Node):
    """A node with something beyond the ordinary: a transformation level, or the user's line."""

    __slots__ = ("__weakref__", "level", "where")

    def __init__(self, level: int, where: str | None) -> None:
        self.level = level
        self.where = where


class PartNode(Node):
    """A node as a rule sees it where not all gradients are asked for: the other parents are None,
    as if they wanted none. It is not in the graph: `whole` is."""

    __slots__ = ("_whole", "level", "where")

    def __init__(self, node: Node, parents: tuple[Node | None, ...]) -> None:
        self.op = node.op
        self.parents = parents
        self.saved = node.saved
        self.params = node.params
        self.shape = node.shape
        self.hooks = None
        self.level = node.level
        self.where = node.where
        self._whole = node

    @property
    def whole(self) -> Node:
        return self._whole


class Leaf(Node):
    """The end of the graph at a tensor that asked for gradients.

    It knows its tensor weakly: the tensor owns the leaf, the graph owns the leaf, and a gradient
    that itself carries a graph (create_graph) closes no cycle.
    """

    __slots__ = ("after_hooks", "level", "tensor")
    is_leaf = True

    def __init__(self, tensor: Tensor, level: int = 0) -> None:
        self.op = None  # type: ignore[assignment]  # `is_leaf` says so
        self.parents = ()
        self.saved = ()
        self.params = None
        self.shape = tensor.shape
        self.hooks = None
        self.level = level
        self.tensor = weakref.ref(tensor)
        self.after_hooks: dict[int, Hook] | None = None  # run on the tensor once .grad is complete
