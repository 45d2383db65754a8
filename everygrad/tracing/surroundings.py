"""What a function finds in Python around it: its closure and the globals it names.

A compiled function takes these for granted. They are looked at before each call: a name bound to
something else means another trace; a name the function itself changes is refused, for a replay
would not change it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CellType
from typing import Any

from everygrad.errors import TraceError
from everygrad.tensor import Tensor

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_EMPTY = object()


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return _EMPTY


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    return type(a) is type(b) and isinstance(a, _PLAIN) and (a == b or (a != a and b != b))


def _items(held: Any) -> list[Any] | None:
    """The elements of a container that are no tensors (those are looked after by the tracer)."""
    if isinstance(held, dict):
        return [x for k, v in held.items() if not isinstance(v, Tensor) for x in (k, v)]
    if isinstance(held, list | set):
        return [x for x in held if not isinstance(x, Tensor)]
    return None


class Surroundings:
    """The names of one function, and what they meant when it was traced."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        real: Any = getattr(fn, "__func__", fn)
        code = getattr(real, "__code__", None)
        if str(getattr(real, "__module__", "")).split(".")[0] == "everygrad":
            real = code = None  # our own functions remember what they like
        cells = getattr(real, "__closure__", None) or ()
        names = code.co_freevars if code is not None else ()
        self.cells = [(name, c, _content(c)) for name, c in zip(names, cells, strict=False)]
        space = getattr(real, "__globals__", {})
        used = code.co_names if code is not None else ()
        self.space = space
        self.names = [(n, space[n]) for n in used if n in space]
        held = [*((n, v) for n, _, v in self.cells), *self.names]
        self.containers = [(n, v, items) for n, v in held if (items := _items(v)) is not None]
        self.tensors = [
            (v, v.shape, v.dtype, v._node is None) for _, v in held if isinstance(v, Tensor)
        ]

    def changed(self) -> str | None:
        """What is not as it was, in words."""
        for name, cell, before in self.cells:
            now = _content(cell)
            if now is not before and not _same(now, before):
                return f"{name} is not what it was"
        space = self.space
        for name, before in self.names:
            now = space.get(name, _EMPTY)
            if now is not before and not _same(now, before):
                return f"{name} is not what it was"
        for t, shape, dtype, plain in self.tensors:
            if t.shape != shape or t.dtype is not dtype:
                return f"a tensor from outside is no longer {dtype}{list(shape)}"
            if (t._node is None) is not plain:
                return "a tensor from outside requires grad now, or no longer does"
        return None

    def check_unchanged(self) -> None:
        """Refuse a function that changed its surroundings while it was traced."""
        name = self.changed_by_value()
        if name is None:
            for n, held, before in self.containers:
                now = _items(held) or []
                if len(now) != len(before) or any(
                    not _same(a, b) for a, b in zip(now, before, strict=True)
                ):
                    name = n
        if name is not None:
            raise TraceError(
                f"jit: the function changes {name!r}, which a replay would not do; keep what "
                f"changes from call to call in a tensor, or change it outside"
            )

    def changed_by_value(self) -> str | None:
        """A number or text among the names that is another one now."""
        pairs = [(n, _content(c), before) for n, c, before in self.cells]
        pairs += [(n, self.space.get(n, _EMPTY), before) for n, before in self.names]
        for name, now, before in pairs:
            # nothing before: made when it was first needed, and there from now on
            if before is not None and isinstance(before, _PLAIN) and not _same(now, before):
                return name
        return None
