"""Guards: what a traced function read from Python, and whether it is still so.

A guard knows one place (a name, an attribute, an item, a whole container) and the value that was
found there. Before a replay all guards of a trace are looked at by one generated function, in which
a guard that holds costs some 30 ns; only where something differs are they asked one by one, what it
was and is.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from operator import is_
from struct import pack
from types import BuiltinMethodType, CellType, MethodType
from typing import Any

import numpy as np

from everygrad.dtypes import DType
from everygrad.tensor import Tensor


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING: Any = _Missing()


def same(a: Any, b: Any) -> bool:
    """Whether a function cannot tell two values apart: plain ones by value and type, with the signs
    of zeros, all others by identity."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is float:
        return pack("d", a) == pack("d", b)
    if kind is complex:
        return same(a.real, b.real) and same(a.imag, b.imag)
    if kind in (int, str, bytes, bool, range, slice, frozenset):
        return bool(a == b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if kind is MethodType:
        return a.__self__ is b.__self__ and a.__func__ is b.__func__
    if kind is BuiltinMethodType:
        return a.__self__ is b.__self__ and a.__name__ == b.__name__
    return False


def is_plain(value: Any) -> bool:
    """Whether a value is known by what it is, not by which object it is."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    kinds = bool | int | float | complex | str | bytes | Enum | DType | range | np.generic
    return isinstance(value, kinds)


@dataclass(slots=True)
class Guard:
    """One place that was read: `text` names it as the program would."""

    text: str
    held: Any  # the object it is a place of
    value: Any  # what was found there

    def now(self) -> Any:
        """What is there now, MISSING if nothing."""
        raise NotImplementedError

    def test(self, i: int, space: dict[str, Any]) -> str:
        """A Python expression that is true where the place may have changed; a false alarm, or an
        exception, is looked into. `space` has `held` and `value` as h0 and v0 for i = 0, and may be
        given more names."""
        space[f"t{i}"] = self.holds
        return f"not t{i}()"

    def holds(self) -> bool:
        return same(self.now(), self.value)

    def changed_by_the_function(self) -> bool:
        """Whether another value was put there that a replay would not put there. What was missing,
        or None, may be made when it is first needed; tensors are the tracer's business."""
        if self.holds() or isinstance(self.now(), Tensor):
            return False
        return not (self.value is MISSING or self.value is None or isinstance(self.value, Tensor))

    def __str__(self) -> str:
        now = self.now()
        if is_plain(self.value) or is_plain(now) or self.value is MISSING or now is MISSING:
            return f"{self.text} was {_short(self.value)} and is {_short(now)}"
        return f"{self.text} is not what it was"


class Name(Guard):
    """A global name: `held` is the dict of globals."""

    def now(self) -> Any:
        return self.held.get(self.text, MISSING)

    def test(self, i: int, space: dict[str, Any]) -> str:
        return f"h{i}.get({self.text!r}, MISSING) is not v{i}"


class Cell(Guard):
    """A name of an enclosing function."""

    held: CellType

    def now(self) -> Any:
        try:
            return self.held.cell_contents
        except ValueError:  # not bound yet
            return MISSING

    def test(self, i: int, space: dict[str, Any]) -> str:
        return f"h{i}.cell_contents is not v{i}"


@dataclass(slots=True)
class Attribute(Guard):
    """An attribute that is no property, of an object or a class."""

    name: str

    def now(self) -> Any:
        return getattr(self.held, self.name, MISSING)

    def test(self, i: int, space: dict[str, Any]) -> str:
        if self.value is MISSING or not _is_name(self.name):
            return f"getattr(h{i}, {self.name!r}, MISSING) is not v{i}"
        return f"h{i}.{self.name} is not v{i}"


@dataclass(slots=True)
class Method(Guard):
    """A function found in the class of an object; `held` is None for objects made inside."""

    name: str
    kind: type

    def now(self) -> Any:
        if self.held is not None and self.name in getattr(self.held, "__dict__", ()):
            return self.held.__dict__[self.name]
        return getattr(self.kind, self.name, MISSING)

    def test(self, i: int, space: dict[str, Any]) -> str:
        space[f"k{i}"] = self.kind
        found = f"k{i}.{self.name} is not v{i}"
        if not hasattr(self.held, "__dict__"):
            return found
        return f"{found} or {self.name!r} in h{i}.__dict__"


@dataclass(slots=True)
class Item(Guard):
    """An item of a dict or a list."""

    key: Any

    def now(self) -> Any:
        if isinstance(self.held, dict):
            return dict.get(self.held, self.key, MISSING)
        try:
            return list.__getitem__(self.held, self.key)
        except IndexError:
            return MISSING

    def test(self, i: int, space: dict[str, Any]) -> str:
        space[f"k{i}"] = self.key
        if isinstance(self.held, dict):
            return f"dict.get(h{i}, k{i}, MISSING) is not v{i}"
        return f"h{i}[k{i}] is not v{i}"


class Length(Guard):
    """The length of a container."""

    def now(self) -> Any:
        return len(self.held)

    def test(self, i: int, space: dict[str, Any]) -> str:
        return f"len(h{i}) != v{i}"


class Content(Guard):
    """All items of a container, by a copy of them; items that are containers have guards of
    their own."""

    def now(self) -> Any:
        return content_of(self.held)

    def holds(self) -> bool:
        now = self.now()
        return len(now) == len(self.value) and all(map(same, now, self.value))

    def changed_by_the_function(self) -> bool:
        now = self.now()
        if isinstance(self.held, dict):
            before, after = _pairs(self.value), _pairs(now)
            return any(
                k not in after or (is_plain(after[k]) and not same(after[k], v))
                for k, v in before.items()
                if v is not None and not isinstance(v, Tensor)
            )
        plain, others = (sum(map(is_plain, items)) for items in (now, self.value))
        if plain != others or len(now) < len(self.value):
            return True
        return any(is_plain(b) and not same(a, b) for a, b in zip(now, self.value, strict=False))

    def test(self, i: int, space: dict[str, Any]) -> str:
        count, found = len(self.value), f"all(map(is_, h{i}, v{i}))"
        if isinstance(self.held, dict):
            count //= 2
            space[f"a{i}"], space[f"b{i}"] = self.value[::2], self.value[1::2]
            found = f"all(map(is_, h{i}, a{i})) and all(map(is_, dict.values(h{i}), b{i}))"
        return f"len(h{i}) != {count} or not ({found})"

    def __str__(self) -> str:
        before, after = len(self.value), len(self.now())
        if before != after:
            return f"{self.text} has another number of items"
        return f"an item of {self.text} is not what it was"


class Array(Guard):
    """The values of a NumPy array; `value` is a copy."""

    def now(self) -> Any:
        return self.held

    def holds(self) -> bool:
        a, b = self.held, self.value
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()

    def changed_by_the_function(self) -> bool:
        return not self.holds()

    def __str__(self) -> str:
        return f"the values of {self.text}, a NumPy array, are not what they were"


class Facts(Guard):
    """Shape, dtype, device of a tensor, and whether it requires grad."""

    held: Tensor

    def now(self) -> Any:
        return facts_of(self.held)

    def holds(self) -> bool:
        return bool(self.now() == self.value)

    def changed_by_the_function(self) -> bool:
        return False  # seen by the tracer

    def __str__(self) -> str:
        shape, dtype, device, requires = self.value
        now = self.now()
        if now[:3] != (shape, dtype, device):
            return f"a tensor from outside is no longer {dtype}{list(shape)} on {device}"
        return f"a tensor from outside {'no longer requires grad' if requires else 'requires grad'}"


class Count(Guard):
    """How often a thing of ours, such as an optimiser, has been changed: its `changes`."""

    def now(self) -> Any:
        return self.held.changes

    def test(self, i: int, space: dict[str, Any]) -> str:
        return f"h{i}.changes != v{i}"

    def __str__(self) -> str:
        return f"settings of {type(self.held).__name__} were changed"


class Kept(Item):
    """An item of a dict that must be this very object, such as the state of a parameter."""

    def __str__(self) -> str:
        return f"{self.text} was replaced"


def facts_of(t: Tensor) -> tuple[Any, ...]:
    return (t.shape, t.dtype, t.device, t._node is not None)


def content_of(held: Any) -> list[Any]:
    """The items of a container in order; of a dict, keys and values in turn."""
    if isinstance(held, dict):
        return [x for pair in dict.items(held) for x in pair]
    return list(held)


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _short(value: Any) -> str:
    text = repr(value) if is_plain(value) or value is MISSING or value is None else ""
    return text if 0 < len(text) <= 60 else f"another {type(value).__name__}"


class Guards:
    """The guards of one trace."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self.guards = list(guards)
        self.broken = _compiled(self.guards)

    def changed(self) -> str | None:
        """What is not as it was, in words."""
        if not self.broken():
            return None
        for guard in self.guards:
            if not guard.holds():
                return str(guard)
        return None  # equal values that are other objects


# --- all of them at once -------------------------------------------------------------------------


def _compiled(guards: list[Guard]) -> Callable[[], bool]:
    """A function that is false where every guard holds by identity."""
    space: dict[str, Any] = {"MISSING": MISSING, "is_": is_}
    lines = ["def broken():", "  try:"]
    for i, guard in enumerate(guards):
        space[f"h{i}"], space[f"v{i}"] = guard.held, guard.value
        lines.append(f"    if {guard.test(i, space)}: return True")
    lines += ["    return False", "  except Exception:", "    return True"]
    exec("\n".join(lines), space)
    found: Callable[[], bool] = space["broken"]
    return found


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
