"""Locations that a traced function reads: names, attributes, items, containers, memory.

Each becomes a guard, if the object it belongs to comes from outside.
"""

from __future__ import annotations

import builtins
import functools
import gc
import inspect
from collections import deque, namedtuple
from collections.abc import Callable, ItemsView, Iterator, KeysView, Sequence, ValuesView
from enum import Enum
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from everygrad._jit.bytecode import UNKNOWN, Fresh, Imported, Some
from everygrad._jit.frames import Follower
from everygrad._jit.guards import (
    MISSING,
    Array,
    Attribute,
    Cell,
    Content,
    Descriptor,
    Facts,
    Guard,
    Item,
    Length,
    Memory,
    Method,
    Name,
    content_of,
    facts_of,
    in_class,
    is_plain,
    memory_of,
)
from everygrad._jit.inspection import (
    NOT_LOOKED_INTO,
    PACKAGE,
    counts_changes,
    has_attributes,
    hashable,
    holds,
    is_known,
    is_memory,
    is_ours,
    keeps_own_guards,
    of_the_package,
    overrides,
    shown,
    slots_of,
)
from everygrad.autograd.modes import transform_depth
from everygrad.core.tensor import Tensor, Wrapped
from everygrad.errors import TraceError

_MOST_ITEMS = 20_000  # of a container that is read in full
_MOST_BYTES = 1 << 20  # of a NumPy array, compared before each replay
CONTAINERS = (dict, list, set, deque, bytearray)
_ITERATED = (tuple, frozenset, *CONTAINERS)
_FACTS = {"shape", "dtype", "ndim", "size", "device", "requires_grad", "is_leaf", "T", "mT"}
_ARRAY_FACTS = {"shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides"}
_VIEWS = (MappingProxyType, KeysView, ValuesView, ItemsView)
_MOST_KNOWN = 256  # objects that one value may be
_FIELD = type(vars(namedtuple("_Field", "x"))["x"])  # the descriptor of a field of a named tuple


class Locations(Follower):
    """The reads of one trace. `met(module)` tells the tracer that a module matters."""

    def __init__(self, fn: Callable[..., Any], arguments: Sequence[Any], met: Any) -> None:
        super().__init__()
        self.met = met
        self.depth = transform_depth()
        self.guards: dict[Any, Guard] = {}
        self.functions: dict[CodeType, list[FunctionType]] = {}  # those from outside, by their code
        self.tensors: set[int] = set()  # ids of those that were read from Python
        self.property_code: CodeType | None = None
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
        if held is None or is_plain(held) or isinstance(held, Tensor) or id(held) in self.outside:
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
        elif isinstance(held, functools.partial):
            for value in (held.func, *held.args, *held.keywords.values()):
                self.mark(value, text)
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

    # --- reads, as `bytecode` meets them ---------------------------------------------------------

    def name(self, space: dict[str, Any], name: str) -> Any:
        """A global name, or a builtin."""
        if name not in space and hasattr(builtins, name):
            return getattr(builtins, name)
        value = space.get(name, MISSING)
        self.note(Name(name, space, value), name)
        return UNKNOWN if value is MISSING else value

    def cell(self, frame: FrameType, name: str) -> Any:
        """A variable of an enclosing function, or one that an inner function shares."""
        value = frame.f_locals.get(name, UNKNOWN)
        code = frame.f_code
        if value is UNKNOWN and not code.co_flags & inspect.CO_OPTIMIZED and frame.f_back:
            value = frame.f_back.f_locals.get(name, UNKNOWN)  # the body of a class
        if name in code.co_freevars and name != "__class__":  # which no program sets again
            place = code.co_freevars.index(name)
            for fn in self.functions_of(frame):
                cell = (fn.__closure__ or ())[place]
                guard = Cell(name, cell, MISSING)
                guard.value = guard.now()
                self.note(guard, name)
        return value

    def functions_of(self, frame: FrameType) -> list[FunctionType]:
        """The functions from outside that a frame may be a call of: usually one."""
        code = frame.f_code
        if code.co_qualname.startswith("__create_fn__"):  # dataclasses': its cells hold types
            return []
        known = self.functions.setdefault(code, [])
        variables = frame.f_locals
        held = [variables.get(n, MISSING) for n in code.co_freevars]
        fitting = [f for f in known if holds(f, held)]
        # nothing that is followed names a hook, say: all functions of its code are looked for
        if not fitting and code not in self.made_inside and code not in self._searched:
            self._searched.add(code)
            found = [f for f in gc.get_referrers(code) if isinstance(f, FunctionType)]
            known += [f for f in found if f.__code__ is code and f not in known]
            fitting = [f for f in known if holds(f, held)]
        return fitting

    def attribute(self, held: Any, name: str) -> Any:
        """held.name, without running any code of its class; UNKNOWN where that is needed."""
        self.property_code = None
        if isinstance(held, Imported):
            held = held.module()
        if held is UNKNOWN:
            return UNKNOWN
        if isinstance(held, Some):
            found = self.some([self.attribute(one, name) for one in held])
            self.property_code = None
            return found
        if type(held) is super:
            return self.inherited(held, name)
        if isinstance(held, Tensor):
            if name in _FACTS:
                self.facts(held)
            return UNKNOWN
        if isinstance(held, ModuleType):
            return self.module_attribute(held, name)
        if isinstance(held, type):
            return self.class_attribute(held, name)
        if isinstance(held, np.ndarray):
            if name not in _ARRAY_FACTS:
                self.consumed(held)
            elif self.is_outside(held):
                value = getattr(held, name)
                self.note(Attribute(f"{self.text_of(held)}.{name}", held, value, name), name)
            return UNKNOWN
        if isinstance(held, CONTAINERS) and not has_attributes(held):
            return getattr(held, name, UNKNOWN)  # a method, followed up when it is called
        return self.own_attribute(held, name)

    def module_attribute(self, module: ModuleType, name: str) -> Any:
        value = vars(module).get(name, UNKNOWN)
        file = getattr(module, "__file__", None) or "<frozen "
        if value is UNKNOWN:
            return UNKNOWN
        if is_ours(file) and (callable(value) or isinstance(value, ModuleType | type)):
            return value
        if file.startswith(PACKAGE):
            return value
        return self.note(Attribute(f"{module.__name__}.{name}", module, value, name), name)

    def class_attribute(self, kind: type, name: str) -> Any:
        raw = in_class(kind, name)
        if raw is MISSING:
            if not of_the_package(kind) and in_class(type(kind), name) is MISSING:
                self.note(Attribute(f"{kind.__name__}.{name}", kind, MISSING, name), name)
            return UNKNOWN if type(kind) is type else self.own_attribute(kind, name)
        if isinstance(raw, staticmethod | classmethod) or not hasattr(type(raw), "__get__"):
            value = getattr(kind, name)
        else:
            value = raw if isinstance(raw, FunctionType) else UNKNOWN
            if value is UNKNOWN:
                self.descriptor(kind, name, raw)
        if value is not UNKNOWN and not of_the_package(kind):
            self.note(Attribute(f"{kind.__name__}.{name}", kind, value, name), name)
        return value

    def own_attribute(self, held: Any, name: str) -> Any:
        kind = type(held)
        raw = in_class(kind, name)
        own: dict[str, Any] = vars(held) if has_attributes(held) or isinstance(held, Enum) else {}
        text = f"{self.text_of(held)}.{name}"
        outside = self.is_outside(held)
        if isinstance(held, Enum):
            if name in own or name in ("value", "name"):
                return self.note(Attribute(text, held, getattr(held, name), name), name)
        elif isinstance(raw, property):
            self.property_code = getattr(raw.fget, "__code__", None)
            if isinstance(raw.fget, FunctionType):
                self.mark(raw.fget, text)
            self.descriptor(kind, name, raw)
            if outside and not counts_changes(held) and held.__class__ is kind:
                self.note(Attribute(text, held, kind, "__class__"), "__class__")
            return UNKNOWN
        if isinstance(raw, _FIELD):
            value = getattr(held, name)
            if outside:
                self.mark(value, text)
            return value
        if isinstance(raw, MemberDescriptorType | GetSetDescriptorType):  # __slots__, __dict__
            value = getattr(held, name, MISSING)
            if outside and not keeps_own_guards(held):
                if name == "__dict__":
                    self.mark(value, text)
                else:
                    self.note(Attribute(text, held, value, name), name)
            return UNKNOWN if value is MISSING else value
        if name in own:
            value = own[name]
            if not outside:
                return value
            if counts_changes(held):
                self.met(held)
                self.mark(value, text)
                return value
            return self.note(Attribute(text, held, value, name), name)
        if isinstance(raw, FunctionType | MethodDescriptorType):
            if isinstance(raw, FunctionType) and not is_ours(raw.__code__.co_filename):
                guarded = held if outside and not counts_changes(held) else None
                self.note(Method(text, guarded, raw, name, kind), (kind, name))
            return MethodType(raw, held) if isinstance(raw, FunctionType) else getattr(held, name)
        if raw is MISSING:
            if outside and not keeps_own_guards(held):
                self.note(Attribute(text, held, MISSING, name), name)
            return UNKNOWN
        if hasattr(type(raw), "__get__"):
            if isinstance(raw, staticmethod | classmethod):
                self.mark(raw, text)
                return getattr(kind, name)
            self.descriptor(kind, name, raw)
            return UNKNOWN
        if outside and not counts_changes(held):
            return self.note(Attribute(text, held, raw, name), name)
        return self.note(Attribute(f"{kind.__name__}.{name}", kind, raw, name), name)

    def descriptor(self, kind: type, name: str, raw: Any) -> None:
        """A property or the like, which is run: by frames that are followed."""
        text = f"{kind.__name__}.{name}"
        if of_the_package(kind):
            return
        if isinstance(raw, property):  # asked of the class, it gives itself
            self.note(Attribute(text, kind, raw, name), name)
        elif not isinstance(raw, GetSetDescriptorType | MethodDescriptorType):
            self.note(Descriptor(text, kind, raw, name), name)

    def inherited(self, held: Any, name: str) -> Any:
        """super().name: of the classes after the one it is written in, the first that has it."""
        own = held.__self__
        kinds = (own if isinstance(own, type) else type(own)).__mro__
        for kind in kinds[kinds.index(held.__thisclass__) + 1 :]:
            value = self.class_attribute(kind, name)  # one between may get it later
            if name in vars(kind):
                raw = vars(kind)[name]
                if isinstance(raw, property):
                    self.property_code = getattr(raw.fget, "__code__", None)
                if isinstance(raw, classmethod):
                    return MethodType(raw.__func__, own if isinstance(own, type) else type(own))
                return MethodType(value, own) if isinstance(value, FunctionType) else value
        return UNKNOWN

    def facts(self, t: Tensor) -> None:
        data = t._data
        if isinstance(data, Wrapped) and data.is_shard:  # of a placed tensor, its part here
            data = data.inner._data
        made_inside = isinstance(data, Wrapped) and (data.plain or data.level > self.depth)
        if not made_inside:  # neither by the tracer nor by a transformation that it runs
            self.note(Facts("a tensor", t, facts_of(t)), "facts")

    def item(self, held: Any, key: Any) -> Any:
        """held[key]"""
        if held is UNKNOWN or isinstance(held, Tensor):
            return UNKNOWN
        if not is_known(key):
            self.consumed(key)
            key = UNKNOWN
        if isinstance(held, Some):  # of what they are elements of, or of themselves
            inner = [self.item(one, key) for one in held if isinstance(one, _ITERATED)]
            return self.some([*held, *inner])
        if isinstance(held, tuple | str | bytes | range | Fresh):
            return self.fixed_item(held, key)
        if not isinstance(held, dict | list) or overrides(held, "__getitem__"):
            self.consumed(held)
            return UNKNOWN
        if key is UNKNOWN or isinstance(key, slice) or not hashable(key):
            self.consumed(held)
            return UNKNOWN
        guard = Item(f"{self.text_of(held)}[{shown(key)}]", held, MISSING, key)
        if isinstance(held, list) and not isinstance(key, int):
            return UNKNOWN
        guard.value = guard.now()
        if self.is_outside(held):
            self.note(guard, (type(key), key))
        return UNKNOWN if guard.value is MISSING else guard.value

    def fixed_item(self, held: Any, key: Any) -> Any:
        if not isinstance(key, int | slice) or not getattr(held, "is_list", True):
            self.consumed(held)
            return UNKNOWN
        try:
            value = held[key]
        except Exception:  # the instruction itself is about to raise it
            return UNKNOWN
        if self.is_outside(held):
            self.mark(value, f"{self.text_of(held)}[{shown(key)}]")
        return value

    def some(self, found: Sequence[Any]) -> Any:
        """One of these values, of which those that can be looked into matter."""
        known = {id(v): v for v in found if v is not UNKNOWN and v is not None and not is_plain(v)}
        flat = [one for v in known.values() for one in (v if isinstance(v, Some) else (v,))]
        if not flat or len(flat) > _MOST_KNOWN:
            self.consumed(*flat)
            return UNKNOWN
        return Some({id(v): v for v in flat}.values())

    def contains(self, held: Any, key: Any) -> None:
        """key in held"""
        if isinstance(held, dict) and is_known(key) and hashable(key):
            self.item(held, key)
        else:
            self.consumed(held, key)

    def length(self, held: Any) -> None:
        """len(held), or whether there is anything in it."""
        if isinstance(held, Tensor):
            self.facts(held)
        elif isinstance(held, Some):
            for one in held:
                self.length(one)
        elif not isinstance(held, CONTAINERS):
            self.opaque(held)
        elif self.is_outside(held):
            self.note(Length(f"len({self.text_of(held)})", held, len(held)), "length")

    def content(self, held: Any, text: str | None = None) -> None:
        """All items of a container; those that are containers are not looked into."""
        if isinstance(held, Some):
            for one in held:
                self.content(one)
            return
        if not isinstance(held, _ITERATED):
            for part in self.opaque(held):
                self.content(part)
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
            if not is_plain(item):
                self.mark(item, f"{text}[{shown(key)}]")

    def opaque(self, held: Any) -> list[Any]:
        """What is neither a container nor an object with attributes: memory, iterators, views of
        dicts. Returns what it holds."""
        if not self.is_outside(held) or isinstance(held, Tensor | Imported) or has_attributes(held):
            return []
        if isinstance(held, np.ndarray):
            self.array(held)
            return []
        if isinstance(held, NOT_LOOKED_INTO) or keeps_own_guards(held):
            return []
        if slots_of(type(held)) and not isinstance(held, GeneratorType):
            return []
        if is_memory(held):
            self.array(held)
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

    def array(self, held: Any) -> None:
        if self.is_outside(held):
            text = self.text_of(held)
            array = isinstance(held, np.ndarray)
            size = held.nbytes if array else memoryview(held).nbytes
            kind = "a NumPy array" if array else type(held).__name__
            if size > _MOST_BYTES:
                raise TraceError(
                    f"jit: the function reads {text}, {kind} of {size} bytes whose "
                    f"values may change unseen; make it a tensor outside, with eg.tensor()"
                )
            if array:
                self.note(Array(text, held, held.copy()), "array")
            else:
                self.note(Memory(text, held, memory_of(held)), "memory")

    def consumed(self, *values: Any, objects: bool = True) -> None:
        """Values that something not followed may look at in full, with all they contain; but for
        what objects in containers hold, if not `objects`."""
        todo = [v for v in values if v is not UNKNOWN and self.may_hold(v)]
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
                looked_into = objects or isinstance(part, _ITERATED)
                if looked_into and id(part) not in seen and self.may_hold(part):
                    seen.add(id(part))
                    todo.append(part)

    def may_hold(self, value: Any) -> bool:
        """Whether something from outside may be reached through a value."""
        return value is not UNKNOWN and (self.is_outside(value) or isinstance(value, _ITERATED))

    def parts(self, held: Any) -> list[Any]:
        """What a container or an object holds; all of it is guarded now, if it is from outside."""
        if isinstance(held, (np.ndarray, *_ITERATED)):
            self.content(held)
            items = [] if isinstance(held, np.ndarray | bytearray) else content_of(held)
            return [x for x in items if not is_plain(x)]
        if keeps_own_guards(held) or isinstance(held, NOT_LOOKED_INTO):
            return []
        made_of_slots = slots_of(type(held)) and not isinstance(held, GeneratorType)
        if not (has_attributes(held) or made_of_slots):
            return [x for x in self.opaque(held) if not is_plain(x)]
        for name in slots_of(type(held)):
            self.own_attribute(held, name)
        own = vars(held) if has_attributes(held) else {}
        self.content(own, f"{self.text_of(held)}.__dict__")
        slots = [getattr(held, name, None) for name in slots_of(type(held))]
        return [x for x in (*own.values(), *slots) if not is_plain(x)]

    # --- writes ----------------------------------------------------------------------------------

    def writes_attribute(self, held: Any, name: str) -> None:
        """held.name gets another value: what was there before is noted, and looked at later."""
        if held is UNKNOWN or isinstance(held, Tensor) or not self.is_outside(held):
            return
        if counts_changes(held):
            self.met(held)
        elif not isinstance(in_class(type(held), name), property):
            before = getattr(held, name, MISSING)
            self.note(Attribute(f"{self.text_of(held)}.{name}", held, before, name), name)

    def writes_item(self, held: Any, key: Any) -> None:
        if held is UNKNOWN or isinstance(held, Tensor):
            return
        if isinstance(held, dict) and is_known(key) and hashable(key):
            self.item(held, key)
        else:
            self.consumed(held)
