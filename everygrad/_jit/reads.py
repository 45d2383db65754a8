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

import functools
import importlib
import inspect
import operator
import os
import sys
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from enum import EnumType
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from everygrad._jit.bytecode import UNKNOWN, Fresh, Imported, Made, New, Some
from everygrad._jit.contents import CONTAINERS
from everygrad._jit.guards import (
    MISSING,
    Answer,
    Attribute,
    Guard,
    Item,
    Memo,
    in_class,
    is_plain,
    results_of,
)
from everygrad._jit.inspection import (
    NOT_LOOKED_INTO,
    ON_THE_HEAP,
    counts_changes,
    elements_of,
    has_attributes,
    is_known,
    is_ours,
    is_users,
    keeps_own_guards,
    keeps_to_itself,
    known_in,
    of_the_package,
    shared_sources,
    unfollowed_code,
    values_of_cells,
)
from everygrad._jit.locations import Locations
from everygrad._jit.native_state import is_alive, is_decimal, only_asks, refuse_outside
from everygrad.errors import TraceError

_HARMLESS: frozenset[Any] = frozenset((id, print, range, super, object))
_ASKING: frozenset[Any] = frozenset((isinstance, issubclass, callable))
# what tells how the process is set, without changing anything
_SETTINGS = {
    *("torch.is_grad_enabled", "torch.is_inference_mode_enabled", "torch.get_default_dtype"),
    *("sys.getrecursionlimit", "sys.getswitchinterval", "posix.getcwd"),
    *("numpy.geterr", "numpy.get_printoptions", "decimal.getcontext", "logging.getLogger"),
    *("_locale.localeconv", "locale.getlocale", "threading.current_thread"),
    *("threading.active_count", "signal.getsignal", "gc.get_threshold", "gc.get_debug"),
}
_ENVIRONMENT: frozenset[Any] = frozenset((os.getenv, os.path.expandvars, os.path.expanduser))
_INTO_NAMESPACES = (dir, inspect.getmembers, inspect.getattr_static)
_THREADS = ("threading", "_thread", "concurrent.futures", "multiprocessing")
_PRINTING = (str, repr, format, ascii, np.array2string, np.array_str, np.array_repr)
_OF_OBJECTS = (operator.attrgetter, operator.itemgetter, operator.methodcaller, BuiltinFunctionType)
_REFLECTION: frozenset[Any] = frozenset((getattr, hasattr, setattr, delattr))
# These give the elements of containers, or compare them, and look into no object by themselves.
_ITERATING: frozenset[Any] = frozenset(
    (
        *(zip, enumerate, reversed, iter, next, list, tuple, set, frozenset, dict, sorted),
        *(map, filter, sum, min, max, any, all),
    )
)


class Reads(Locations):
    """The reads of one trace: locations, and what calls look at."""

    # --- calls -----------------------------------------------------------------------------------

    def call(self, callee: Any, args: Sequence[Any]) -> Any:
        """callee(*args): the result where it is known without running anything."""
        if isinstance(callee, Some):
            return self.some([self.call(one, args) for one in callee])
        if known_in(callee, _HARMLESS):
            return UNKNOWN
        if callee is type and len(args) == 1 and args[0] is not UNKNOWN:
            if isinstance(args[0], Some):
                return self.some([type(one) for one in args[0]])
            if has_attributes(args[0]) and not keeps_own_guards(args[0]):
                self.attribute(args[0], "__class__")
            return type(args[0])
        if callee is vars and len(args) == 1 and args[0] is not UNKNOWN:
            return self.attribute(args[0], "__dict__")
        if known_in(callee, _ASKING):
            self.asked(callee, args)
            return UNKNOWN
        if callee in (eval, exec):
            return UNKNOWN  # followed
        if isinstance(callee, functools.partial):
            return self.call(callee.func, [*callee.args, *args, *callee.keywords.values()])
        if callee is len and args:
            self.length(args[0])
            return UNKNOWN
        if len(args) >= 2 and known_in(callee, _REFLECTION):
            return self.reflection(callee, args)
        if isinstance(callee, BuiltinFunctionType) and isinstance(callee.__self__, CONTAINERS):
            return self.container_method(callee, args)
        fn = callee.__func__ if isinstance(callee, MethodType) else callee
        if isinstance(fn, FunctionType):
            if not is_ours(fn.__code__.co_filename):
                return UNKNOWN  # followed
        elif isinstance(fn, type) and (init := in_class(fn, "__init__")) is not MISSING:
            if isinstance(init, FunctionType) and not unfollowed_code(init):
                if not of_the_package(fn):
                    self.note(Attribute(f"{fn.__name__}()", fn, init, "__init__"), "__init__")
                return UNKNOWN
            if init is object.__init__ and in_class(fn, "__new__") is object.__new__:
                return New(fn)
        return self.unfollowed(callee, args)

    def unfollowed(self, callee: Any, args: Sequence[Any]) -> Any:
        """callee(*args) of one that is not followed: it may look at all it is given, and give any
        of it back, or something of the same kind."""
        owner = getattr(callee, "__self__", None)
        if isinstance(owner, ContextVar) and callee.__name__ == "get":
            return self.variable(owner)
        for one in args:
            if isinstance(one, ContextVar):
                self.variable(one)
        self.check_threads(callee, owner, args)
        self.guard_native(callee, args)
        if isinstance(callee, MethodType) and isinstance(
            callee.__func__, functools._lru_cache_wrapper
        ):
            callee, args = callee.__func__, [owner, *args]
        name = f"{getattr(callee, '__module__', '')}.{getattr(callee, '__name__', '')}"
        refuse_outside(callee, owner if self.is_outside(owner) else None, name, args)
        settings = name in _SETTINGS or only_asks(callee, owner, name)
        if settings and all(is_plain(one) or isinstance(one, PurePath) for one in args):
            return self.answer(f"{name}()", callee, args)
        if isinstance(owner, functools._lru_cache_wrapper) and callee.__name__ == "cache_info":
            return self.answer(f"{self.text_of(owner)}.cache_info()", callee, args)
        if isinstance(callee, EnumType) and args:
            return self.member(callee, callee._value2member_map_, args[0])
        if callee in _INTO_NAMESPACES and args and isinstance(args[0], ModuleType | type):
            args = [self.attribute(args[0], "__dict__")]
        if isinstance(callee, weakref.ref):
            self.answer(f"{self.text_of(callee)}() is there", is_alive, [callee])
            self.mark(callee(), self.text_of(callee))
            return callee()
        if isinstance(callee, functools._lru_cache_wrapper):
            self.note(Memo(self.text_of(callee), callee, results_of(callee)), "results")
            args = [*args, *results_of(callee)]
            for one in results_of(callee):
                self.mark(one, self.text_of(callee))
        if isinstance(callee, operator.attrgetter) and args:
            return self.some([self.path(args[0], path) for path in callee.__reduce__()[1]])
        if callee is operator.attrgetter and all(type(a) is str for a in args):
            return operator.attrgetter(*args)
        if callee in (importlib.import_module, __import__) and args and type(args[0]) is str:
            return Imported(args[0] if callee is importlib.import_module else args[0].split(".")[0])
        if known_in(callee, _ENVIRONMENT):
            self.mark(os.environ, "os.environ")
            owner = os.environ
        if known_in(callee, _ITERATING):
            # a function written in C may look into the elements
            self.consumed(*args, objects=any(isinstance(one, _OF_OBJECTS) for one in args))
        else:
            self.consumed(*args)
            if any(owner is one for one in shared_sources()):
                self.mark(owner, f"{type(owner).__module__}.{callee.__name__}()")
            if not isinstance(callee, NOT_LOOKED_INTO):
                self.consumed(callee)
            sets_mode = counts_changes(owner) and callee.__name__ in ("train", "eval")
            if not isinstance(owner, ModuleType | type) and not sets_mode:
                self.consumed(owner)
            if unfollowed_code(callee) and not keeps_to_itself(callee):
                self.consumed(*values_of_cells(callee))
        if of_the_package(type(callee)) or str(getattr(callee, "__module__", "")).startswith(
            "everygrad"
        ):
            return UNKNOWN  # a tensor
        return self.given_back(owner, *args)

    def guard_native(self, callee: Any, args: Sequence[Any]) -> None:
        """Settings that functions written in C read, and what a class's __new__ is made of."""
        if callee in _PRINTING and any(isinstance(one, np.ndarray) for one in args):
            self.answer("numpy.get_printoptions()", np.get_printoptions, ())
        if is_decimal(callee):
            self.decimals()
        if isinstance(callee, BuiltinFunctionType) and callee.__module__ == "torch":
            default = sys.modules["torch"].get_default_dtype
            self.answer("torch.get_default_dtype()", default, ())
        made_by = in_class(callee, "__new__") if isinstance(callee, type) else MISSING
        made_by = getattr(made_by, "__func__", made_by)  # a static method
        if isinstance(made_by, FunctionType) and not of_the_package(callee):
            self.mark(made_by, f"{callee.__name__}.__new__")

    def asked(self, callee: Any, args: Sequence[Any]) -> None:
        """isinstance(held, kinds) and its relatives, of which the answer is a guard."""
        if not args or any(a is UNKNOWN or isinstance(a, New | Made | Fresh) for a in args):
            return
        for held in args[0] if isinstance(args[0], Some) else args[:1]:
            if not (has_attributes(held) or isinstance(held, type)) or keeps_own_guards(held):
                continue
            if isinstance(held, type) and not held.__flags__ & ON_THE_HEAP:
                continue
            if not self.is_outside(held) and not isinstance(held, type):
                continue
            self.answer(f"{callee.__name__}({self.text_of(held)})", callee, [held, *args[1:]])

    def answer(self, text: str, callee: Any, args: Sequence[Any]) -> Any:
        try:
            value = callee(*args)
        except Exception:  # the instruction itself is about to raise it
            return UNKNOWN
        guard = Answer(text, (callee, *args), value)
        kept = self.guards.setdefault((Answer, callee, *map(id, args)), guard)
        self.mark(kept.value, text)
        return kept.value

    def check_threads(self, callee: Any, owner: Any, args: Sequence[Any]) -> None:
        """Refuse to give work to another thread or process, which nobody follows."""
        kinds = (*type(owner).__mro__, *(callee.__mro__ if isinstance(callee, type) else ()))
        places = [k.__module__ for k in kinds] + [str(getattr(callee, "__module__", ""))]
        if not any(place.startswith(_THREADS) for place in places):
            return
        work = [*args, getattr(owner, "_target", None)]
        if getattr(callee, "__name__", "") == "start":
            work.append(getattr(type(owner), "run", None))
        if any(map(is_users, work)):
            raise TraceError(
                "jit: the function gives work to another thread or process "
                f"({self.text_of(callee)}), where nobody sees what it reads and computes; do that "
                f"outside, and pass what comes of it as an argument"
            )

    def path(self, held: Any, path: str) -> Any:
        for name in path.split("."):
            held = self.attribute(held, name)
        return held

    def reflection(self, callee: Any, args: Sequence[Any]) -> Any:
        held, name = args[0], args[1]
        if type(name) is not str:
            self.consumed(held)
            return self.some([held])
        if callee is setattr or callee is delattr:
            self.writes_attribute(held, name)
            return UNKNOWN
        value = self.attribute(held, name)
        if callee is not getattr:
            return UNKNOWN
        return self.some([value, *args[2:]]) if value is UNKNOWN else value

    def container_method(self, method: Any, args: Sequence[Any]) -> Any:
        held, name = method.__self__, method.__name__
        if name == "get" and isinstance(held, dict) and args and is_known(args[0]):
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

    def note_imports(self) -> None:
        """Which module a name stands for, or that there is none."""
        for name in self.imported:
            module = sys.modules.get(name, MISSING)
            file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
            if name not in sys.builtin_module_names and not (file and is_ours(file)):
                self.note(Item(f"the module {name}", sys.modules, module, name), (str, name))

    # --- the end ---------------------------------------------------------------------------------

    def finish(self, result: Any) -> tuple[list[Guard], bool]:
        """The guards, and whether the function made something when it was first needed, which a
        replay would not do. Refuses a function that changed what it read."""
        self.guarded(self.consumed, result)
        if self.failed is not None:
            raise self.failed
        self.guarded(self.note_imports)
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
