"""Nested containers of tensors, flattened the same way everywhere.

optree's C++ gives the GIL up and takes it again. The interpreter ends a daemon thread where it next
asks for the GIL, by unwinding its stack, and C++ that must not throw then ends the process. So when
the process ends, threads stop in front of optree instead: see `_close`.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import optree
from optree.registry import __GLOBAL_NAMESPACE as _EVERYWHERE

_flatten: Callable[..., Any] = optree.tree_flatten
_unflatten: Callable[..., Any] = optree.tree_unflatten
_leaves: Callable[..., Any] = optree.tree_leaves
_paths: Callable[..., Any] = optree.tree_paths
_broadcast: Callable[..., Any] = optree.tree_broadcast_prefix


def flatten(tree: Any, none_is_leaf: bool = False) -> tuple[list[Any], Any]:
    """The leaves in order, and the structure for `unflatten`."""
    leaves, structure = _flatten(tree, none_is_leaf=none_is_leaf)
    return leaves, structure


def unflatten(structure: Any, leaves: list[Any]) -> Any:
    return _unflatten(structure, leaves)


def leaves_of(tree: Any, none_is_leaf: bool = False) -> list[Any]:
    found: list[Any] = _leaves(tree, none_is_leaf=none_is_leaf)
    return found


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    leaves, structure = flatten(tree)
    return unflatten(structure, [fn(leaf) for leaf in leaves])


def spread(prefix: Any, tree: Any) -> list[Any]:
    """One value for each leaf of `tree`, from one value or a prefix of its containers."""
    full = _broadcast(prefix, tree, none_is_leaf=True)
    return leaves_of(full, none_is_leaf=True)


def paths_of(tree: Any, none_is_leaf: bool = False) -> list[tuple[Any, ...]]:
    """Where each leaf is: keys and indices from the outside in."""
    found: list[tuple[Any, ...]] = _paths(tree, none_is_leaf=none_is_leaf)
    return found


def register(kind: type, flatten_one: Callable[[Any], Any], unflatten_one: Any) -> None:
    """Let objects of a class be containers: `flatten_one` gives (leaves, what is no leaf), and
    `unflatten_one(what is no leaf, leaves)` makes one again."""
    optree.register_pytree_node(kind, flatten_one, unflatten_one, namespace=_EVERYWHERE)


# --- the end of the process ----------------------------------------------------------------------

_CALLERS = frozenset(f.__code__ for f in (flatten, unflatten, leaves_of, spread, paths_of))
_PATIENCE = 5.0  # seconds for a container's own flattening to end, which may be anything


def _depth(frame: FrameType | None) -> int:
    """How many calls of this module's functions a stack is in."""
    found = 0
    while frame is not None:
        found += frame.f_code in _CALLERS
        frame = frame.f_back
    return found


def _closed(real: Callable[..., Any]) -> Callable[..., Any]:
    """`real`, in which threads other than this one do not begin any more: they wait for the end.
    One that is inside already, in a container's own flattening, goes on until it is out."""
    ending = threading.get_ident()

    def wait_or_call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != ending and _depth(sys._getframe()) == 1:
            _forever.acquire()
        return real(*args, **kwargs)

    _CLOSED.add(wait_or_call.__code__)
    return wait_or_call


_forever = threading.Lock()
_CLOSED: set[Any] = set()


def _is_inside(frame: FrameType) -> bool:
    """Whether a thread may be in optree: it is in a call of ours, and does not wait in front."""
    return _depth(frame) > (frame.f_code in _CLOSED)


def _close() -> None:
    """Keep the other threads out of optree from now on, and wait until they are."""
    _forever.acquire()
    here = globals()
    for name in ("_flatten", "_unflatten", "_leaves", "_paths", "_broadcast"):
        here[name] = _closed(here[name])
    mine, end = threading.get_ident(), time.monotonic() + _PATIENCE
    while time.monotonic() < end and any(
        _is_inside(frame) for ident, frame in sys._current_frames().items() if ident != mine
    ):
        time.sleep(0.0005)


atexit.register(_close)  # after all threads that are no daemons have ended
