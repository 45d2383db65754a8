"""What comes from outside of a traced function, and all that containers, objects and memory hold.

What is read of it becomes a guard.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, Sequence, ValuesView
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
)
from typing import Any

import numpy as np

from everygrad._jit.bytecode import UNKNOWN, Imported, Some
from everygrad._jit.frames import Follower
from everygrad._jit.guards import (
    MISSING,
    Answer,
    Array,
    Attribute,
    Content,
    Drawn,
    Facts,
    Guard,
    Length,
    Members,
    Memory,
    NativeState,
    content_of,
    facts_of,
    in_class,
    is_plain,
    memory_of,
    state_of,
)
from everygrad._jit.inspection import (
    NOT_LOOKED_INTO,
    belongs_to_library,
    bound_to,
    counts_changes,
    draws,
    elements_of,
    has_attributes,
    is_memory,
    is_ours,
    keeps_own_guards,
    shown,
    slots_of,
    unfollowed_code,
)
from everygrad._jit.native_state import decimal_settings, is_decimal, kept_by
from everygrad.autograd.modes import transform_depth
from everygrad.core.tensor import Tensor, Wrapped
from everygrad.errors import TraceError

_MOST_ITEMS = 20_000  # of a container that is read in full
_MOST_BYTES = 1 << 20  # of a NumPy array, compared before each replay
CONTAINERS = (dict, list, set, deque, bytearray)
ITERATED = (tuple, frozenset, *CONTAINERS)
_VIEWS = (MappingProxyType, KeysView, ValuesView, ItemsView)
BOUND = (BuiltinFunctionType, MethodWrapperType, MethodType)
_MOST_KNOWN = 256  # objects that one value may be


class Space:
    """The names of a class: its __dict__, which cannot be written to."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


class Contents(Follower):
    """What is read in full. `met(module)` tells the tracer that a module matters."""

    def __init__(self, fn: Callable[..., Any], arguments: Sequence[Any], met: Any) -> None:
        super().__init__()
        self.met = met
        self.depth = transform_depth()
        self.guards: dict[Any, Guard] = {}
        self.functions: dict[CodeType, list[FunctionType]] = {}  # those from outside, by their code
        self.tensors: set[int] = set()  # ids of those that were read from Python
        self.imported: set[str] = set()  # names of modules
        self.property_code: CodeType | None = None
        self.decimal_settings = decimal_settings()
        self._searched: set[CodeType] = set()  # code all of whose functions are known
        self.mark(fn, getattr(fn, "__qualname__", "the function"))
        for argument in arguments:
            if not isinstance(argument, Tensor):
                self.mark(argument, f"an argument ({type(argument).__name__})")

    # --- what comes from outside -----------------------------------------------------------------

    def mark(self, held: Any, text: str) -> None:
        """An object is from outside: what is read of it from here on is guarded."""
        if isinstance(held, Tensor):
            self.tensors.add(id(held))
        if held is None or isinstance(held, Tensor) or id(held) in self.outside:
            return
        if is_plain(held) and not has_attributes(held):
            return
        self.outside[id(held)] = (held, text)
        if isinstance(held, MethodType):
            self.mark(held.__self__, "self")
            self.mark(held.__func__, text)
        elif isinstance(held, FunctionType):
            self.functions.setdefault(held.__code__, []).append(held)
            for value in (*(held.__defaults__ or ()), *(held.__kwdefaults__ or {}).values()):
                self.mark(value, f"a default of {held.__name__}")
            self.mark_cells(held)
            if not is_ours(held.__code__.co_filename):
                self.parts_of_function(held)
        elif isinstance(held, weakref.ref):
            self.mark(held(), text)
        elif isinstance(held, BOUND):
            self.mark(bound_to(held), text)
        elif isinstance(held, functools.partial):
            for name in ("func", "args"):  # __setstate__ changes them
                self.note(Attribute(f"{text}.{name}", held, getattr(held, name), name), name)
            for value in (held.func, *held.args):
                self.mark(value, text)
            if held.keywords:
                self.content(held.keywords, f"{text}.keywords")
            else:
                self.note(Length(f"{text}.keywords", held.keywords, 0), "length")
        elif isinstance(held, staticmethod | classmethod):
            self.mark(held.__func__, text)
        elif has_attributes(held) and "uncompiled" in vars(held):  # another compiled function
            self.mark(vars(held)["uncompiled"], text)

    def parts_of_function(self, fn: FunctionType) -> None:
        """A reloaded module may give a function other code and other defaults."""
        names = ["__code__", "__defaults__"]
        if fn.__kwdefaults__:
            names.append("__kwdefaults__")
            self.content(fn.__kwdefaults__, f"{fn.__name__}.__kwdefaults__")
        for name in names:
            self.note(Attribute(f"{fn.__name__}.{name}", fn, getattr(fn, name), name), name)

    def mark_cells(self, fn: FunctionType) -> None:
        """A wrapper that is not followed calls what it holds: eg.grad(f), vmap, functools.wraps."""
        if not is_ours(fn.__code__.co_filename):
            return
        for cell in fn.__closure__ or ():
            try:
                self.mark(cell.cell_contents, fn.__name__)
            except ValueError:  # not bound yet
                continue

    def is_outside(self, held: Any) -> bool:
        return id(held) in self.outside

    def text_of(self, held: Any) -> str:
        found = self.outside.get(id(held))
        return type(held).__name__ if found is None else found[1]

    def note(self, guard: Guard, key: Any) -> Any:
        """Keep a guard, unless there is one for that location already; returns the value."""
        kept = self.guards.setdefault((type(guard), id(guard.held), key), guard)
        if kept is guard:
            self.mark(guard.value, guard.text)
        return guard.value

    def own_attribute(self, held: Any, name: str) -> Any:
        """held.name, of an object that is neither a class nor a module."""
        raise NotImplementedError

    # --- all that a container or an object holds -------------------------------------------------

    def facts(self, t: Tensor) -> None:
        data = t._data
        if isinstance(data, Wrapped) and data.is_shard:  # of a placed tensor, its part here
            data = data.inner._data
        made_inside = isinstance(data, Wrapped) and (data.plain or data.level > self.depth)
        if not made_inside:  # neither by the tracer nor by a transformation that it runs
            self.note(Facts("a tensor", t, facts_of(t)), "facts")

    def some(self, found: Sequence[Any]) -> Any:
        """One of these values, of which those that can be looked into matter."""
        known = {id(v): v for v in found if v is not UNKNOWN and v is not None and not is_plain(v)}
        flat = [one for v in known.values() for one in (v if isinstance(v, Some) else (v,))]
        if not flat or len(flat) > _MOST_KNOWN:
            self.consumed(*flat)
            return UNKNOWN
        return Some({id(v): v for v in flat}.values())

    def length(self, held: Any) -> None:
        """len(held), or whether there is anything in it."""
        if isinstance(held, Tensor):
            self.facts(held)
        elif isinstance(held, Some):
            for one in held:
                self.length(one)
        elif not isinstance(held, CONTAINERS):
            self.truth(held)
        elif self.is_outside(held):
            self.note(Length(f"len({self.text_of(held)})", held, len(held)), "length")

    def truth(self, held: Any) -> None:
        """The length, or the truth, of what is no container of Python's own."""
        if not self.is_outside(held):
            return
        kind = type(held)
        found = [in_class(kind, name) for name in ("__bool__", "__len__")]
        if any(isinstance(raw, FunctionType) and not unfollowed_code(raw) for raw in found):
            return  # followed
        if found != [MISSING, MISSING]:
            self.consumed(held)
        elif has_attributes(held) and not keeps_own_guards(held):
            for name in ("__bool__", "__len__"):
                self.note(Attribute(f"{kind.__name__}.{name}", kind, MISSING, name), name)

    def content(self, held: Any, text: str | None = None) -> None:
        """All items of a container; those that are containers are not looked into."""
        if isinstance(held, Some):
            for one in held:
                self.content(one)
            return
        if not isinstance(held, ITERATED):
            ways = [in_class(type(held), name) for name in ("__iter__", "__getitem__")]
            followed = any(isinstance(w, FunctionType) and not unfollowed_code(w) for w in ways)
            if ways != [MISSING, MISSING] and not followed:
                self.consumed(held)
            return
        if text is None and not self.is_outside(held):
            return
        text = text or self.text_of(held)
        if len(held) > _MOST_ITEMS:
            raise TraceError(
                f"jit: the function reads all {len(held)} items of {text}, which would be compared "
                f"before every call; make it a tensor, or pass what is needed as an argument"
            )
        items = content_of(held)
        if not isinstance(held, tuple | frozenset):
            self.note(Content(text, held, items), "content")
        keys = [*held] if isinstance(held, dict) else range(len(items))
        for key, item in zip(keys, items[1::2] if isinstance(held, dict) else items, strict=True):
            self.mark(key, f"a key of {text}")
            self.mark(item, f"{text}[{shown(key)}]")

    def opaque(self, held: Any) -> list[Any]:
        """What is not, or not only, a container or an object with attributes: memory, random
        numbers, iterators, views of dicts. Returns what it holds."""
        if not self.is_outside(held) or isinstance(held, Tensor | Imported):
            return []
        if isinstance(held, np.ndarray):
            return self.array(held)
        if isinstance(held, NOT_LOOKED_INTO) or keeps_own_guards(held):
            return []
        if draws(held):
            self.note(Drawn(self.text_of(held), held, state_of(held)), "state")
            return []
        if (state := kept_by(held)) is not None:
            self.note(NativeState(self.text_of(held), held, state), "state")
            return []
        if is_memory(held):
            points = getattr(held, "contents", None) if hasattr(type(held), "contents") else None
            if points is not None:  # a pointer of ctypes
                self.mark(points, f"{self.text_of(held)}.contents")
            return self.array(held if points is None else points)
        if has_attributes(held):
            return []
        if slots_of(type(held)) and not isinstance(held, GeneratorType):
            return []
        if isinstance(held, Iterator):
            raise TraceError(
                f"jit: the function goes on with {self.text_of(held)}, an iterator from outside "
                f"({type(held).__name__}), which a replay would not do; take what is needed outside"
            )
        if not isinstance(held, _VIEWS):
            return []  # what C code keeps to itself, such as a queue, is not seen
        parts = [x for x in gc.get_referents(held) if not isinstance(x, type)]
        for part in parts:
            self.mark(part, self.text_of(held))
        return parts

    def array(self, held: Any) -> list[Any]:
        """Memory, by its values. Returns the objects it holds."""
        if not self.is_outside(held):
            return []
        text = self.text_of(held)
        array = isinstance(held, np.ndarray)
        if array and held.dtype.hasobject:
            self.note(Content(text, held, content_of(held)), "content")
            for item in content_of(held):
                self.mark(item, f"an item of {text}")
            return content_of(held)
        try:
            size = held.nbytes if array else len(memory_of(held)[-1])
        except Exception as error:
            raise TraceError(
                f"jit: the function reads {text}, a {type(held).__name__}, whose values cannot be "
                f"compared ({error}); make it a tensor outside, with eg.tensor()"
            ) from None
        kind = "a NumPy array" if array else type(held).__name__
        if size > _MOST_BYTES:
            raise TraceError(
                f"jit: the function reads {text}, {kind} of {size} bytes whose "
                f"values may change unseen; make it a tensor outside, with eg.tensor()"
            )
        if array:
            self.note(Array(text, held, np.array(held, copy=True)), "array")
        else:
            self.note(Memory(text, held, memory_of(held)), "memory")
        return []

    def consumed(self, *values: Any, objects: bool = True) -> None:
        """Values that something not followed may look at in full, with all they contain; but for
        what objects in containers hold, if not `objects`."""
        todo = [v for v in values if v is not UNKNOWN and self.may_hold(v)]
        if any(map(is_decimal, values)):
            self.decimals()
        if not todo:
            return
        seen = {id(v) for v in todo}
        for held in todo:
            if len(seen) > _MOST_ITEMS:
                raise TraceError(
                    f"jit: the function hands {self.text_of(todo[0])} to a function that may read "
                    f"all of its more than {_MOST_ITEMS} items; pass what is needed as an argument"
                )
            for part in self.parts(held):
                looked_into = objects or isinstance(part, ITERATED)
                if looked_into and id(part) not in seen and self.may_hold(part):
                    seen.add(id(part))
                    todo.append(part)

    def decimals(self) -> None:
        """Decimal numbers are computed by the settings that were in force when the call began."""
        guard = Answer("decimal.getcontext()", (decimal_settings,), self.decimal_settings)
        self.note(guard, "decimal")

    def may_hold(self, value: Any) -> bool:
        """Whether something from outside may be reached through a value."""
        if value is UNKNOWN:
            return False
        return self.is_outside(value) or isinstance(
            value, (*ITERATED, *BOUND, functools.partial, Space)
        )

    def parts(self, held: Any) -> list[Any]:
        """What a container or an object holds; all of it is guarded now, if it is from outside."""
        if isinstance(held, BOUND):
            return [] if (owner := bound_to(held)) is None else [owner]
        if isinstance(held, functools.partial):
            return [held.func, *held.args, *held.keywords.values()]
        if isinstance(held, Space):
            self.members(held)
            return []
        if isinstance(held, ITERATED):
            self.content(held)
            found = [] if isinstance(held, bytearray) else content_of(held)
        elif isinstance(held, NOT_LOOKED_INTO):
            return []
        elif counts_changes(held):
            for module in held.modules():
                self.met(module)
            return []
        elif keeps_own_guards(held):
            return []
        else:
            found = self.opaque(held)
        if has_attributes(held) or slots_of(type(held)):
            found = [*found, *self.own_parts(held)]
        return [x for x in found if not is_plain(x) or has_attributes(x)]

    def own_parts(self, held: Any) -> list[Any]:
        """The values of an object's attributes."""
        if isinstance(held, GeneratorType):
            return []
        for name in slots_of(type(held)):
            self.own_attribute(held, name)
        own = vars(held) if has_attributes(held) else {}
        if self.is_outside(held):
            self.content(own, f"{self.text_of(held)}.__dict__")
        slots = [getattr(held, name, None) for name in slots_of(type(held))]
        return [*own.values(), *slots]

    def members(self, space: Space) -> None:
        """All that a class has under its own names."""
        guard = Members(f"{space.kind.__name__}.__dict__", space.kind, None)
        guard.value = guard.now()
        self.note(guard, "members")

    def given_back(self, *values: Any) -> Any:
        """What something that is not followed may give: what it was given, with the elements of
        containers, and all that objects of the library such as a UserDict hold."""
        found: dict[int, Any] = {}
        todo = [(value, 0) for value in values]
        for held, depth in todo:
            if held is UNKNOWN or id(held) in found or len(found) > 4 * _MOST_KNOWN:
                continue
            found[id(held)] = held
            if isinstance(held, weakref.ref):
                todo.append((held(), depth))
            elif isinstance(held, ITERATED):
                todo += [(x, depth + 1) for x in elements_of(held)] if depth < 2 else []
            elif isinstance(held, np.ndarray) and held.dtype.hasobject:
                todo += [(x, depth + 1) for x in content_of(held)]
            elif isinstance(held, _VIEWS):
                todo += [(x, depth) for x in gc.get_referents(held)]
            elif has_attributes(held) and belongs_to_library(type(held)):
                todo += [(x, depth) for x in vars(held).values()]
            elif isinstance(held, BOUND):
                todo.append((bound_to(held), depth))
        kinds = (*NOT_LOOKED_INTO, Tensor)
        return self.some([x for x in found.values() if not isinstance(x, kinds)])
