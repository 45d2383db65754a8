"""Locations that a traced function reads: names, attributes, items.

Each becomes a guard, if the object it belongs to comes from outside.
"""

from __future__ import annotations

import builtins
import functools
import gc
import inspect
from collections import namedtuple
from contextvars import ContextVar
from enum import Enum, EnumType
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Generic

import numpy as np

from everygrad._jit.bytecode import UNKNOWN, Fresh, Imported, New, Some
from everygrad._jit.contents import CONTAINERS, ITERATED, Contents, Space
from everygrad._jit.guards import (
    MISSING,
    Attribute,
    Cell,
    Descriptor,
    Item,
    Method,
    Name,
    OwnItem,
    Variable,
    in_class,
    is_plain,
    same,
)
from everygrad._jit.inspection import (
    ON_THE_HEAP,
    PACKAGE,
    belongs_to_library,
    counts_changes,
    has_attributes,
    hashable,
    holds,
    is_internal,
    is_known,
    is_ours,
    of_the_package,
    overrides,
    shown,
    unfollowed_code,
)
from everygrad.core.config import Config
from everygrad.core.tensor import Tensor

_FACTS = {"shape", "dtype", "ndim", "size", "device", "requires_grad", "is_leaf", "T", "mT"}
_ARRAY_FACTS = {"shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides"}
_OF_TYPES = {"__name__", "__qualname__", "__bases__", "__mro__", "__module__"}
_FIELD = type(vars(namedtuple("_Field", "x"))["x"])  # the descriptor of a field of a named tuple


class Locations(Contents):
    """The reads of one trace."""

    # --- reads, as `bytecode` meets them ---------------------------------------------------------

    def name(self, space: dict[str, Any], name: str) -> Any:
        """A global name, or a builtin."""
        if name not in space and hasattr(builtins, name):
            self.note(Name(name, space, MISSING), name)  # the program may get one of its own
            value = getattr(builtins, name)
            if getattr(value, "__module__", None) != "builtins":
                self.note(Item(name, vars(builtins), value, name), (str, name))
            return value
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
            return UNKNOWN if of_the_package(type(held)) else self.of_a_subclass(held, name)
        if isinstance(held, Config):
            value = getattr(held, name, MISSING)
            return self.note(Attribute(f"config.{name}", held, value, name), name)
        if isinstance(held, ModuleType):
            return self.module_attribute(held, name)
        if isinstance(held, type):
            return self.class_attribute(held, name)
        if isinstance(held, New):
            return self.of_new(held.kind, name)
        if isinstance(held, FrameType):
            return self.frame_attribute(held, name)
        if isinstance(held, np.ndarray):
            if name not in _ARRAY_FACTS:
                self.consumed(held)
                own = vars(held) if has_attributes(held) else {}
                return self.own_attribute(held, name) if name in own else UNKNOWN
            if self.is_outside(held):
                value = getattr(held, name)
                self.note(Attribute(f"{self.text_of(held)}.{name}", held, value, name), name)
            return UNKNOWN
        if isinstance(held, CONTAINERS) and not has_attributes(held):
            return getattr(held, name, UNKNOWN)  # a method, followed up when it is called
        return self.own_attribute(held, name)

    def module_attribute(self, module: ModuleType, name: str) -> Any:
        value = vars(module).get(name, UNKNOWN)
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        built_in = "<frozen " if origin in ("built-in", "frozen") else ""
        file = vars(module).get("__file__") or built_in
        if name == "__dict__":
            self.mark(vars(module), f"{module.__name__}.__dict__")
            return vars(module)
        if value is UNKNOWN:
            if not is_ours(file) or "__getattr__" not in vars(module):
                place = Item(f"{module.__name__}.{name}", vars(module), MISSING, name)
                self.note(place, (str, name))
            return UNKNOWN
        if is_ours(file) and (callable(value) or isinstance(value, ModuleType | type)):
            return value
        if file.startswith(PACKAGE):
            return value
        return self.note(Attribute(f"{module.__name__}.{name}", module, value, name), name)

    def class_attribute(self, kind: type, name: str) -> Any:
        raw = in_class(kind, name)
        if name == "__dict__":
            return Space(kind)
        if raw is MISSING or name in _OF_TYPES:
            if isinstance(in_class(type, name), GetSetDescriptorType | MemberDescriptorType):
                value = getattr(kind, name)
                if kind.__flags__ & ON_THE_HEAP and not of_the_package(kind):
                    self.note(Attribute(f"{kind.__name__}.{name}", kind, value, name), name)
                return value
            if not of_the_package(kind) and in_class(type(kind), name) is in_class(
                type(kind), "__getattr__"
            ):
                self.note(Attribute(f"{kind.__name__}.{name}", kind, MISSING, name), name)
            return UNKNOWN if type(kind) is type else self.own_attribute(kind, name)
        if isinstance(raw, staticmethod | classmethod) or not hasattr(type(raw), "__get__"):
            value = getattr(kind, name)
        else:
            value = raw if isinstance(raw, FunctionType) else UNKNOWN
            if value is UNKNOWN:
                self.descriptor(kind, name, raw)
        if value is not UNKNOWN and not of_the_package(kind):
            text = f"{kind.__name__}.{name}"
            if getattr(kind, name) is value:
                self.note(Attribute(text, kind, value, name), name)
            else:  # a method of the class
                self.note(Descriptor(text, kind, raw, name), name)
                self.mark(value, text)
        return value

    def of_a_subclass(self, held: Tensor, name: str) -> Any:
        """What a user's kind of tensor has beyond ours."""
        own: dict[str, Any] = getattr(held, "__dict__", {})
        if name in own:
            self.mark(own, type(held).__name__)
            return self.item(own, name)
        kinds = [kind for kind in type(held).__mro__ if name in vars(kind)]
        if kinds and not of_the_package(kinds[0]) and kinds[0] is not object:
            return self.class_attribute(type(held), name)
        return UNKNOWN

    def of_new(self, kind: type, name: str) -> Any:
        """An attribute of an object that was made just now, without an __init__."""
        raw = in_class(kind, name)
        if isinstance(raw, FunctionType):
            self.note(Method(f"{kind.__name__}.{name}", None, raw, name, kind), (kind, name))
            return UNKNOWN
        if isinstance(raw, property):
            self.property_code = getattr(raw.fget, "__code__", None)
            self.descriptor(kind, name, raw)
            return UNKNOWN
        return self.class_attribute(kind, name)

    def frame_attribute(self, frame: FrameType, name: str) -> Any:
        value = getattr(frame, name, UNKNOWN)
        if name == "f_globals":
            self.mark(value, "f_globals")
        return value

    def reached(self, held: Any, code: CodeType) -> None:
        """A function runs that nothing of the program's named: an operator's, or the forward of a
        module. Its class may get another."""
        kind = held if isinstance(held, type) else type(held)
        for base in kind.__mro__ if kind.__flags__ & ON_THE_HEAP else ():
            for name, raw in vars(base).items():
                fn = raw.__func__ if isinstance(raw, staticmethod | classmethod) else raw
                if not isinstance(fn, FunctionType) or fn.__code__ is not code:
                    continue
                if isinstance(raw, classmethod):
                    self.note(Descriptor(f"{kind.__name__}.{name}", kind, raw, name), name)
                else:
                    self.note(Attribute(f"{kind.__name__}.{name}", kind, fn, name), name)

    def own_attribute(self, held: Any, name: str) -> Any:
        kind = type(held)
        raw = in_class(kind, name)
        own: dict[str, Any] = (
            vars(held) if has_attributes(held) or isinstance(held, Enum | FunctionType) else {}
        )
        text = f"{self.text_of(held)}.{name}"
        outside = self.is_outside(held)
        if isinstance(held, Enum):
            if name in own or name in ("value", "name"):
                return self.note(Attribute(text, held, getattr(held, name), name), name)
        elif isinstance(raw, property):
            self.property_code = getattr(raw.fget, "__code__", None)
            if isinstance(raw.fget, FunctionType):
                self.mark(raw.fget, text)
            if outside and unfollowed_code(raw.fget) and belongs_to_library(kind):
                self.consumed(held)
                return self.given_back(held)
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
            if name == "__dict__" and counts_changes(held):
                self.met(held)
            if outside:
                return self.native_attribute(held, name, text)
            return getattr(held, name, UNKNOWN)
        if name in own:
            value = own[name]
            if not outside:
                return value
            if not counts_changes(held):
                return self.note(Attribute(text, held, value, name), name)
            self.met(held)
            if is_plain(value):  # written past __setattr__, no change would be counted
                return self.note(OwnItem(text, own, value, name), (str, name))
            self.mark(value, text)
            return value
        if isinstance(raw, FunctionType | MethodDescriptorType):
            if isinstance(raw, FunctionType) and not is_ours(raw.__code__.co_filename):
                guarded = held if outside and not counts_changes(held) else None
                self.note(Method(text, guarded, raw, name, kind), (kind, name))
            return MethodType(raw, held) if isinstance(raw, FunctionType) else getattr(held, name)
        if raw is MISSING:
            if outside and counts_changes(held):
                self.met(held)
            elif outside and not is_internal(held):
                if in_class(kind, "__getattr__") is MISSING:
                    self.note(Attribute(text, held, MISSING, name), name)
                else:  # asking would run it
                    if has_attributes(held):
                        self.note(Item(text, own, MISSING, name), (str, name))
                    if not isinstance(in_class(kind, "__getattr__"), FunctionType):
                        self.consumed(held)
            return UNKNOWN
        if hasattr(type(raw), "__get__"):
            if isinstance(raw, staticmethod | classmethod):
                self.mark(raw, text)
                return getattr(kind, name)
            self.descriptor(kind, name, raw)
            if isinstance(raw, functools._lru_cache_wrapper):
                self.mark(raw, text)
                return MethodType(raw, held)
            if outside and not isinstance(in_class(type(raw), "__get__"), FunctionType):
                return self.native_attribute(held, name, text)
            return UNKNOWN
        if outside and not counts_changes(held):
            return self.note(Attribute(text, held, raw, name), name)
        return self.note(Attribute(f"{kind.__name__}.{name}", kind, raw, name), name)

    def native_attribute(self, held: Any, name: str, text: str) -> Any:
        """What a slot, or another descriptor written in C, gives."""
        value = getattr(held, name, MISSING)
        if not is_internal(held):
            if name == "__dict__" or not same(value, getattr(held, name, MISSING)):
                self.mark(value, text)  # made anew whenever it is asked for
            else:
                self.note(Attribute(text, held, value, name), name)
        return UNKNOWN if value is MISSING else value

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
        if held.__thisclass__ not in kinds:  # of a metaclass, whose object is a class
            kinds = type(own).__mro__
        for kind in kinds[kinds.index(held.__thisclass__) + 1 :]:
            value = self.class_attribute(kind, name)  # one between may get it later
            if name in vars(kind):
                raw = vars(kind)[name]
                if isinstance(raw, property):
                    self.property_code = getattr(raw.fget, "__code__", None)
                if isinstance(raw, classmethod):
                    return MethodType(raw.__func__, own if isinstance(own, type) else type(own))
                if isinstance(value, FunctionType):
                    return MethodType(value, own)
                # a method written in C: what it is called with is not all that it sees
                return UNKNOWN if kinds is type(own).__mro__ and isinstance(own, type) else value
        return UNKNOWN

    def item(self, held: Any, key: Any) -> Any:
        """held[key]"""
        if isinstance(key, ContextVar):
            return self.variable(key)
        if held is UNKNOWN or isinstance(held, Tensor):
            self.consumed(key)
            return UNKNOWN
        if isinstance(held, Space):
            if type(key) is str:
                raw = in_class(held.kind, key)
                self.note(Descriptor(f"{held.kind.__name__}.{key}", held.kind, raw, key), key)
                return UNKNOWN if raw is MISSING else raw
            self.consumed(held)
            return UNKNOWN
        if not is_known(key):
            self.consumed(key)
            key = UNKNOWN
        if isinstance(held, Some):  # of what they are elements of, or of themselves
            inner = [self.item(one, key) for one in held if isinstance(one, ITERATED)]
            return self.some([*held, *inner])
        if isinstance(held, tuple | str | bytes | range | Fresh):
            return self.fixed_item(held, key)
        if isinstance(held, type) and Generic in held.__mro__:
            return held  # with types in brackets, whose attributes are those of the class
        if isinstance(held, EnumType):
            return self.member(held, held._member_map_, key)
        if not isinstance(held, dict | list) or overrides(held, "__getitem__"):
            self.consumed(held, key)
            return self.given_back(held)
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

    def member(self, kind: EnumType, members: dict[Any, Any], key: Any) -> Any:
        """A member of an enumeration by its name or value; any of them where that is not known."""
        text = f"a member of {kind.__name__}"
        known = key is not UNKNOWN and hashable(key) and key in members
        found = [members[key]] if known else list(kind._member_map_.values())
        for one in found:
            self.mark(one, text)
        return found[0] if known else self.some(found)

    def variable(self, owner: ContextVar[Any]) -> Any:
        return self.note(Variable(f"{owner.name}.get()", owner, owner.get(MISSING)), "variable")

    def contains(self, held: Any, key: Any) -> None:
        """key in held"""
        if isinstance(held, dict) and is_known(key) and hashable(key):
            self.item(held, key)
        else:
            self.consumed(held, key)

    # --- writes ----------------------------------------------------------------------------------

    def writes_attribute(self, held: Any, name: str, value: Any = None) -> None:
        """held.name gets another value: what was there before is noted, and looked at later."""
        if isinstance(held, Tensor):
            self.consumed(value)
        if held is UNKNOWN or isinstance(held, Tensor) or not self.is_outside(held):
            return
        if counts_changes(held):
            self.met(held)
        elif not isinstance(in_class(type(held), name), property):
            before = getattr(held, name, MISSING)
            self.note(Attribute(f"{self.text_of(held)}.{name}", held, before, name), name)

    def writes_item(self, held: Any, key: Any, value: Any = None) -> None:
        """held[key] = value: what a tensor, or anybody else's method, takes is read in full."""
        if held is UNKNOWN or isinstance(held, Tensor):
            self.consumed(key, value)
        elif isinstance(held, dict) and is_known(key) and hashable(key):
            self.item(held, key)
        else:
            self.consumed(held, key)
            if not isinstance(held, dict | list):
                self.consumed(value)
