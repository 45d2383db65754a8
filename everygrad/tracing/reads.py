"""What a function reads from Python while it is traced: names, attributes, items, containers.

A compiled function takes all of it for granted, so each place that was read becomes a guard, which
is looked at before every replay: another value there means another trace. A place that the function
itself changes is refused, for a replay would not change it.

Functions of the user's are followed instruction by instruction (`bytecode`); everygrad's own and
the standard library's are not, and the containers and objects handed to them count as read in
full. Only what comes from outside is guarded: what is reached from the arguments, from global names
and from the variables of enclosing functions. Modules and optimisers of ours count their changes,
and tensors are the tracer's inputs.
"""

from __future__ import annotations

import builtins
import functools
import gc
from collections import deque, namedtuple
from collections.abc import Callable, Sequence
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from everygrad.errors import TraceError
from everygrad.tensor import Tensor
from everygrad.tracing.bytecode import UNKNOWN, Fresh, Some
from everygrad.tracing.following import Follower
from everygrad.tracing.guards import (
    MISSING,
    Array,
    Attribute,
    Cell,
    Content,
    Facts,
    Guard,
    Item,
    Length,
    Method,
    Name,
    content_of,
    facts_of,
    is_plain,
)
from everygrad.tracing.inspection import (
    PACKAGE,
    counts_changes,
    elements_of,
    has_attributes,
    hashable,
    holds,
    in_class,
    is_ours,
    keeps_own_guards,
    known_in,
    of_the_package,
    overrides,
    shown,
    slots_of,
)

_MOST_ITEMS = 20_000  # of a container that is read in full
_MOST_BYTES = 1 << 20  # of a NumPy array, compared before each replay
_CONTAINERS = (dict, list, set, deque, bytearray)
_ITERATED = (tuple, frozenset, *_CONTAINERS)
_FACTS = {"shape", "dtype", "ndim", "size", "device", "requires_grad", "is_leaf", "T", "mT"}
_ARRAY_FACTS = {"shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides"}
_MOST_KNOWN = 256  # objects that one value may be
_FIELD = type(vars(namedtuple("_Field", "x"))["x"])  # the descriptor of a field of a named tuple
_HARMLESS: frozenset[Any] = frozenset(
    (isinstance, issubclass, id, callable, print, range, super, object, repr, hash)
)
# These give the elements of containers, or compare them, and look into no object by themselves.
_ITERATING: frozenset[Any] = frozenset(
    (
        *(zip, enumerate, reversed, iter, next, list, tuple, set, frozenset, dict, sorted),
        *(map, filter, sum, min, max, any, all),
    )
)


class Reads(Follower):
    """The reads of one trace. `met(module)` tells the tracer that a module matters."""

    def __init__(self, fn: Callable[..., Any], arguments: Sequence[Any], met: Any) -> None:
        super().__init__()
        self.met = met
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
        elif isinstance(held, functools.partial):
            for value in (held.func, *held.args, *held.keywords.values()):
                self.mark(value, text)
        elif isinstance(held, staticmethod | classmethod):
            self.mark(held.__func__, text)
        elif has_attributes(held) and "uncompiled" in vars(held):  # another compiled function
            self.mark(vars(held)["uncompiled"], text)

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
        """Keep a guard, unless there is one for that place already; returns the value."""
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
        if held is UNKNOWN:
            return UNKNOWN
        if isinstance(held, Some):
            return self.some([self.attribute(one, name) for one in held])
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
        if isinstance(held, _CONTAINERS) and not has_attributes(held):
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
            return UNKNOWN
        if isinstance(raw, staticmethod | classmethod) or not hasattr(type(raw), "__get__"):
            value = getattr(kind, name)
        else:
            value = raw if isinstance(raw, FunctionType) else UNKNOWN
        if value is not UNKNOWN and not of_the_package(kind):
            self.note(Attribute(f"{kind.__name__}.{name}", kind, value, name), name)
        return value

    def own_attribute(self, held: Any, name: str) -> Any:
        kind = type(held)
        raw = in_class(kind, name)
        own: dict[str, Any] = vars(held) if has_attributes(held) else {}
        text = f"{self.text_of(held)}.{name}"
        outside = self.is_outside(held)
        if isinstance(raw, property):
            self.property_code = getattr(raw.fget, "__code__", None)
            if isinstance(raw.fget, FunctionType):
                self.mark(raw.fget, text)
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
            return UNKNOWN
        if outside and not counts_changes(held):
            return self.note(Attribute(text, held, raw, name), name)
        return self.note(Attribute(f"{kind.__name__}.{name}", kind, raw, name), name)

    def inherited(self, cls: Any, held: Any, name: str) -> Any:
        """super().name"""
        if not isinstance(cls, type) or held is UNKNOWN:
            return UNKNOWN
        kinds = type(held).__mro__
        for kind in kinds[kinds.index(cls) + 1 :] if cls in kinds else ():
            if name in vars(kind):
                value = self.class_attribute(kind, name)
                return MethodType(value, held) if isinstance(value, FunctionType) else value
        return UNKNOWN

    def facts(self, t: Tensor) -> None:
        if isinstance(t._data, np.ndarray) or not hasattr(t._data, "tracer"):
            self.note(Facts("a tensor", t, facts_of(t)), "facts")

    def item(self, held: Any, key: Any) -> Any:
        """held[key]"""
        if held is UNKNOWN or isinstance(held, Tensor):
            return UNKNOWN
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
        if isinstance(held, dict) and key is not UNKNOWN and hashable(key):
            self.item(held, key)
        else:
            self.consumed(held)

    def length(self, held: Any) -> None:
        """len(held), or whether there is anything in it."""
        if isinstance(held, Tensor):
            self.facts(held)
        elif isinstance(held, _CONTAINERS) and self.is_outside(held):
            self.note(Length(f"len({self.text_of(held)})", held, len(held)), "length")

    def content(self, held: Any, text: str | None = None) -> None:
        """All items of a container; those that are containers are not looked into."""
        if isinstance(held, np.ndarray):
            self.array(held)
            return
        known = isinstance(held, _ITERATED)
        if not known or not (text is not None or self.is_outside(held)):
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

    def array(self, held: Any) -> None:
        if self.is_outside(held):
            text = self.text_of(held)
            if held.nbytes > _MOST_BYTES:
                raise TraceError(
                    f"jit: the function reads {text}, a NumPy array of {held.nbytes} bytes whose "
                    f"values may change unseen; make it a tensor outside, with eg.tensor()"
                )
            self.note(Array(text, held, held.copy()), "array")

    def consumed(self, *values: Any, objects: bool = True) -> None:
        """Values that something not followed may look at in full, with all they contain; but for
        what objects in containers hold, if not `objects`."""
        todo = [v for v in values if self.may_hold(v)]
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
        if keeps_own_guards(held) or callable(held) or isinstance(held, ModuleType):
            return []
        if not (has_attributes(held) or slots_of(type(held))):
            return []
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
        if isinstance(held, dict) and key is not UNKNOWN and hashable(key):
            self.item(held, key)
        else:
            self.consumed(held)

    # --- calls -----------------------------------------------------------------------------------

    def call(self, callee: Any, args: Sequence[Any]) -> Any:
        """callee(*args): the result where it is known without running anything."""
        if known_in(callee, _HARMLESS):
            return UNKNOWN
        if callee is type and len(args) == 1 and args[0] is not UNKNOWN:
            return type(args[0])
        if callee is vars and len(args) == 1 and has_attributes(args[0]):
            return self.attribute(args[0], "__dict__")
        if callee is len and args:
            self.length(args[0])
            return UNKNOWN
        if any(callee is f for f in (getattr, hasattr, setattr, delattr)) and len(args) >= 2:
            return self.reflection(callee, args)
        if isinstance(callee, BuiltinFunctionType) and isinstance(callee.__self__, _CONTAINERS):
            return self.container_method(callee, args)
        fn = callee.__func__ if isinstance(callee, MethodType) else callee
        if isinstance(fn, FunctionType):
            if not is_ours(fn.__code__.co_filename):
                return UNKNOWN  # followed
        elif isinstance(fn, type) and isinstance(in_class(fn, "__init__"), FunctionType):
            return UNKNOWN
        if known_in(callee, _ITERATING):
            self.consumed(*args, objects=False)
            return self.some([x for a in args for x in elements_of(a)])
        self.consumed(*args)
        return UNKNOWN

    def reflection(self, callee: Any, args: Sequence[Any]) -> Any:
        held, name = args[0], args[1]
        if type(name) is not str:
            self.consumed(held)
            return UNKNOWN
        if callee is setattr or callee is delattr:
            self.writes_attribute(held, name)
            return UNKNOWN
        value = self.attribute(held, name)
        return value if callee is getattr else UNKNOWN

    def container_method(self, method: Any, args: Sequence[Any]) -> Any:
        held, name = method.__self__, method.__name__
        if name == "get" and isinstance(held, dict) and args and args[0] is not UNKNOWN:
            value = self.item(held, args[0])
            if value is UNKNOWN and len(args) > 1:
                return args[1]
            return value
        if name in ("items", "values", "keys", "append", "add", "extend", "insert", "clear"):
            self.content(held)  # its items come one by one, or do not matter
        else:
            self.consumed(held)
        self.consumed(*args)
        return self.some(elements_of(held))

    # --- the end ---------------------------------------------------------------------------------

    def finish(self, result: Any) -> tuple[list[Guard], bool]:
        """The guards, and whether the function made something when it was first needed, which a
        replay would not do. Refuses a function that changed what it read."""
        self.guarded(self.consumed, result)
        if self.failed is not None:
            raise self.failed
        guards = list(self.guards.values())
        changed = [g for g in guards if not g.holds()]
        for guard in changed:
            if guard.changed_by_the_function():
                raise TraceError(
                    f"jit: the function changes {guard.text}, which a replay would not do; keep "
                    f"what changes from call to call in a tensor, or change it outside"
                )
        # what the function made is there now, for the one call that the trace serves
        return [g for g in guards if g.holds()], bool(changed)
