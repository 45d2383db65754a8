"""Guards: what a traced function read from Python, and whether it is still so.

A guard knows one place (a name, an attribute, an item, a whole container) and the value that was
found there. Before a replay all guards of a trace are looked at, those of one kind by one native
loop, in which a guard that holds costs some 50 ns; only where something differs are they asked one
by one, what it was and is.
"""

from __future__ import annotations

import gc
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import repeat
from operator import call, getitem, is_
from struct import pack
from types import BuiltinMethodType, CellType, MethodType
from typing import Any

import numpy as np

from everygrad._jit.native_state import kept_by
from everygrad.core.tensor import Size, Tensor
from everygrad.dtypes import DType
from everygrad.errors import TraceError


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
    if kind is Size:
        return bool(a.shape == b.shape)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if kind is MethodType:
        return a.__self__ is b.__self__ and a.__func__ is b.__func__
    if kind is BuiltinMethodType:
        return a.__self__ is b.__self__ and a.__name__ == b.__name__
    return False


_PLAIN = (bool, int, float, complex, str, bytes, Enum, DType, range, np.generic)


def is_plain(value: Any) -> bool:
    """Whether a value is known by what it is, not by which object it is."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return isinstance(value, _PLAIN) and not isinstance(value, np.void)  # memory


@dataclass(slots=True)
class Guard:
    """One place that was read: `text` names it as the program would."""

    text: str
    held: Any  # the object it is a place of
    value: Any  # what was found there

    def now(self) -> Any:
        """What is there now, MISSING if nothing."""
        raise NotImplementedError

    def join(self, all_of: Alike) -> None:
        """Have this place looked at with all others of its kind."""
        all_of.others.append(self.holds)

    def holds(self) -> bool:
        return same(self.now(), self.value)

    def refresh(self) -> None:
        """Take an equal object that is there now for the value: it is found at once next time."""
        now = self.now()
        if same(now, self.value):
            self.value = now

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

    def join(self, all_of: Alike) -> None:
        all_of.item(self.held, self.text, self.value)


class Cell(Guard):
    """A name of an enclosing function."""

    held: CellType

    def now(self) -> Any:
        try:
            return self.held.cell_contents
        except ValueError:  # not bound yet
            return MISSING

    def join(self, all_of: Alike) -> None:
        all_of.attribute(self.held, "cell_contents", self.value)


@dataclass(slots=True)
class Attribute(Guard):
    """An attribute that is no property, of an object or a class."""

    name: str

    def now(self) -> Any:
        return getattr(self.held, self.name, MISSING)

    def join(self, all_of: Alike) -> None:
        if self.value is MISSING:
            all_of.absent(self.held, self.name)
        elif self.now() is self.value:
            all_of.attribute(self.held, self.name, self.value)
        else:  # made anew whenever it is asked for
            super(Attribute, self).join(all_of)


@dataclass(slots=True)
class Method(Guard):
    """A function found in the class of an object; `held` is None for objects made inside."""

    name: str
    kind: type

    def now(self) -> Any:
        if self.held is not None and self.name in getattr(self.held, "__dict__", ()):
            return self.held.__dict__[self.name]
        kind = self.kind if self.held is None else self.held.__class__
        return getattr(kind, self.name, MISSING)

    def join(self, all_of: Alike) -> None:
        all_of.attribute(self.kind, self.name, self.value)
        if getattr(self.held, "__class__", None) is self.kind:  # it may be given another
            all_of.attribute(self.held, "__class__", self.kind)
        if hasattr(self.held, "__dict__"):
            all_of.item(self.held.__dict__, self.name, MISSING)


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

    def join(self, all_of: Alike) -> None:
        if isinstance(self.held, dict):
            all_of.item(self.held, self.key, self.value)
        elif self.value is MISSING:
            super(Item, self).join(all_of)
        else:
            all_of.place(self.held, self.key, self.value)


class OwnItem(Item):
    """An attribute of a module or the like, which counts its changes, but not those of its dict."""

    def changed_by_the_function(self) -> bool:
        return False  # what it counts is refused


class Length(Guard):
    """The length of a container."""

    def now(self) -> Any:
        return len(self.held)

    def join(self, all_of: Alike) -> None:
        all_of.sized.append(self.held)
        all_of.lengths.append(self.value)


class Content(Guard):
    """All items of a container, by a copy of them; items that are containers have guards of
    their own."""

    def now(self) -> Any:
        return content_of(self.held)

    def holds(self) -> bool:
        now = self.now()
        return len(now) == len(self.value) and all(map(same, now, self.value))

    def refresh(self) -> None:
        now = self.now()
        if len(now) == len(self.value) and all(map(same, now, self.value)):
            self.value = now

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

    def join(self, all_of: Alike) -> None:
        held, value = self.held, self.value
        if isinstance(held, OrderedDict | np.ndarray):
            all_of.others.append(self.holds)  # its order is not that of the dict it is
        elif isinstance(held, dict):
            all_of.others.append(partial(_same_items, held, value[::2], value[1::2]))
        else:
            all_of.others.append(partial(_same_elements, held, value))

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
        a, b = np.asarray(self.held), self.value  # of a masked one, what is under the mask too
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()

    def changed_by_the_function(self) -> bool:
        return not self.holds()

    def __str__(self) -> str:
        return f"the values of {self.text}, a NumPy array, are not what they were"


class Members(Content):
    """All that a class has under names of its own."""

    held: type

    def now(self) -> Any:
        return [x for pair in vars(self.held).items() for x in pair]

    def join(self, all_of: Alike) -> None:
        all_of.others.append(self.holds)


class Answer(Guard):
    """What a function of the library, which only looks at something, says of its arguments: whether
    an object is of a class, or how the process is set. `held` is the function and its arguments."""

    held: tuple[Any, ...]

    def now(self) -> Any:
        return self.held[0](*self.held[1:])

    def holds(self) -> bool:
        now = self.now()
        made_anew = isinstance(now, dict) and repr(now) == repr(self.value)
        return made_anew or same(now, self.value)


class Drawn(Guard):
    """The state of random numbers that are not ours."""

    def now(self) -> Any:
        return state_of(self.held)

    def changed_by_the_function(self) -> bool:
        if self.holds():
            return False
        raise TraceError(
            f"jit: the function draws random numbers from {self.text}, which a replay would not do "
            f"again; draw with eg.rand() and its relatives, or pass the numbers as arguments"
        )


class Memory(Guard):
    """The bytes of an array.array, a memoryview or another library's array; `value` is a copy, with
    its kind."""

    def now(self) -> Any:
        return memory_of(self.held)

    def changed_by_the_function(self) -> bool:
        return not self.holds()

    def __str__(self) -> str:
        return f"the values of {self.text} are not what they were"


class NativeState(Guard):
    """What an object written in C keeps to itself."""

    def now(self) -> Any:
        return kept_by(self.held)

    def changed_by_the_function(self) -> bool:
        return not self.holds()

    def __str__(self) -> str:
        return f"what {self.text} holds is not what it was"


@dataclass(slots=True)
class Descriptor(Guard):
    """What a class has under a name, where asking for it would run something; `held` is the
    class."""

    name: str

    def now(self) -> Any:
        return in_class(self.held, self.name)


class Memo(Guard):
    """The results that a functools.cache holds: those that were there still are."""

    def now(self) -> Any:
        return results_of(self.held)

    def holds(self) -> bool:
        return {id(v) for v in self.value} <= {id(v) for v in self.now()}

    def changed_by_the_function(self) -> bool:
        return not self.holds()

    def __str__(self) -> str:
        return f"the cache of {self.text} was cleared"


class Variable(Guard):
    """The value of a context variable."""

    def now(self) -> Any:
        return self.held.get(MISSING)


class OwnVariable(Guard):
    """The value of a context variable that has a default: one of ours."""

    held: ContextVar[Any]

    def now(self) -> Any:
        return self.held.get()


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

    def join(self, all_of: Alike) -> None:
        all_of.things.append(self.held)
        all_of.counts.append(self.value)

    def __str__(self) -> str:
        return f"settings of {type(self.held).__name__} were changed"


class Kept(Item):
    """An item of a dict that must be this very object, such as the state of a parameter."""

    def __str__(self) -> str:
        return f"{self.text} was replaced"


def facts_of(t: Tensor) -> tuple[Any, ...]:
    return (t.shape, t.dtype, t.device, t._node is not None)


def in_class(kind: type, name: str) -> Any:
    """What a class or one above it has under a name."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def results_of(cache: Any) -> list[Any]:
    """What a function decorated with functools.cache or lru_cache has kept."""
    held = [x for x in gc.get_referents(cache) if x is not vars(cache) and not isinstance(x, type)]
    whole = [v for x in held if type(x) is dict for v in x.values()]  # without a bound: a dict
    return [*held, *whole]


def state_of(source: Any) -> Any:
    """The state of a source of random numbers of Python's or NumPy's, as one value."""
    if isinstance(source, random.Random):
        return source.getstate()
    if hasattr(source, "get_state"):  # RandomState
        return _numbers_of(source.get_state(legacy=False))
    return _numbers_of(getattr(source, "bit_generator", source).state)


def _numbers_of(state: Any) -> Any:
    if isinstance(state, dict):
        return tuple(_numbers_of(value) for value in state.values())
    return state.tobytes() if isinstance(state, np.ndarray) else state


def foreign_values(held: Any) -> Any:
    """The values of another library's array as NumPy's, in the same memory where that is possible;
    a class that gives its memory away has the two methods that are looked for."""
    kind = type(held)
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__array__"):
        return np.asarray(held.detach() if hasattr(kind, "detach") else held)
    return None


def memory_of(held: Any) -> tuple[Any, ...]:
    if isinstance(held, np.void):
        return (repr(held.dtype), held.tobytes())
    if (values := foreign_values(held)) is not None:
        return (values.dtype.str, values.shape, values.tobytes())
    view = memoryview(held)
    return (view.format, view.shape, view.tobytes())


def content_of(held: Any) -> list[Any]:
    """The items of a container in order; of a dict, keys and values in turn."""
    if isinstance(held, dict):
        pairs = OrderedDict.items(held) if isinstance(held, OrderedDict) else dict.items(held)
        return [x for pair in pairs for x in pair]
    return held.ravel().tolist() if isinstance(held, np.ndarray) else list(held)


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _short(value: Any) -> str:
    text = repr(value) if is_plain(value) or value is MISSING or value is None else ""
    return text if 0 < len(text) <= 60 else f"another {type(value).__name__}"


def _same_elements(held: Any, before: list[Any]) -> bool:
    return len(held) == len(before) and all(map(is_, held, before))


def _same_items(held: dict[Any, Any], keys: list[Any], values: list[Any]) -> bool:
    if len(held) != len(keys) or not all(map(is_, held, keys)):
        return False
    return all(map(is_, dict.values(held), values))


# what says that something is not there any more; not every exception: a signal handler's may be any
_GONE = (AttributeError, LookupError, TypeError, ValueError, RuntimeError)


class Alike:
    """Places of a few kinds in columns, so that each kind is looked at by one native loop."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self.attributes: tuple[list[Any], list[str], list[Any]] = ([], [], [])
        self.absents: tuple[list[Any], list[str]] = ([], [])
        self.items: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        self.places: tuple[list[Any], list[int], list[Any]] = ([], [], [])
        self.sized: list[Any] = []
        self.lengths: list[int] = []
        self.things: list[Any] = []
        self.counts: list[int] = []
        self.others: list[Callable[[], bool]] = []
        for guard in guards:
            guard.join(self)

    def attribute(self, held: Any, name: str, value: Any) -> None:
        for column, entry in zip(self.attributes, (held, name, value), strict=True):
            column.append(entry)

    def absent(self, held: Any, name: str) -> None:
        self.absents[0].append(held)
        self.absents[1].append(name)

    def item(self, held: dict[Any, Any], key: Any, value: Any) -> None:
        for column, entry in zip(self.items, (held, key, value), strict=True):
            column.append(entry)

    def place(self, held: list[Any], place: int, value: Any) -> None:
        for column, entry in zip(self.places, (held, place, value), strict=True):
            column.append(entry)

    def hold(self) -> bool:
        """Whether every place has the very object that it had; if not, it may have an equal one."""
        owners, names, values = self.attributes
        dicts, keys, items = self.items
        try:
            return (
                all(map(is_, map(getattr, owners, names), values))
                and not any(map(hasattr, *self.absents))
                and all(map(is_, map(dict.get, dicts, keys, repeat(MISSING)), items))
                and all(map(is_, map(getitem, *self.places[:2]), self.places[2]))
                and list(map(len, self.sized)) == self.lengths
                and list(map(getattr, self.things, repeat("changes"))) == self.counts
                and all(map(call, self.others))
            )
        except _GONE:
            return False


_MOST_REFRESHED = 64


class Guards:
    """The guards of one trace."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self.guards = list(guards)
        self.hold = Alike(self.guards).hold
        self.refreshed = 0  # how often equal values were found that are other objects

    def changed(self) -> str | None:
        """What is not as it was, in words."""
        if self.hold():
            return None
        for guard in self.guards:
            if not guard.holds():
                return str(guard)
        if self.refreshed < _MOST_REFRESHED:  # equal values that are other objects
            self.refreshed += 1
            for guard in self.guards:
                guard.refresh()
            self.hold = Alike(self.guards).hold
        return None
