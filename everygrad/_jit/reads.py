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
import operator
import os
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

from everygrad._jit.bytecode import UNKNOWN, Imported, Some
from everygrad._jit.contents import CONTAINERS
from everygrad._jit.guards import MISSING, Guard, Memo, Variable, in_class, results_of
from everygrad._jit.inspection import (
    NOT_LOOKED_INTO,
    elements_of,
    has_attributes,
    is_known,
    is_ours,
    known_in,
    of_the_package,
)
from everygrad._jit.locations import Locations
from everygrad.core.tensor import Tensor
from everygrad.errors import TraceError

_HARMLESS: frozenset[Any] = frozenset(
    (isinstance, issubclass, id, callable, print, range, super, object, repr, hash)
)
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
            return (
                self.some([type(one) for one in args[0]])
                if isinstance(args[0], Some)
                else type(args[0])
            )
        if callee is vars and len(args) == 1 and has_attributes(args[0]):
            return self.attribute(args[0], "__dict__")
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
        elif isinstance(fn, type) and isinstance(in_class(fn, "__init__"), FunctionType):
            return UNKNOWN
        return self.unfollowed(callee, args)

    def unfollowed(self, callee: Any, args: Sequence[Any]) -> Any:
        """callee(*args) of one that is not followed: it may look at all it is given, and give any
        of it back, or something of the same kind."""
        owner = getattr(callee, "__self__", None)
        if isinstance(owner, ContextVar) and callee.__name__ == "get":
            return self.note(Variable(f"{owner.name}.get()", owner, owner.get(MISSING)), "variable")
        if isinstance(callee, weakref.ref):
            self.mark(callee(), self.text_of(callee))
            return callee()
        if isinstance(callee, functools._lru_cache_wrapper):
            self.note(Memo(self.text_of(callee), callee, results_of(callee)), "results")
            args = [*args, *results_of(callee)]
            for one in results_of(callee):
                self.mark(one, self.text_of(callee))
        if isinstance(callee, operator.attrgetter) and args:
            return self.some([self.path(args[0], path) for path in callee.__reduce__()[1]])
        if callee in (importlib.import_module, __import__) and args and type(args[0]) is str:
            return Imported(args[0] if callee is importlib.import_module else args[0].split(".")[0])
        if callee is os.getenv:
            self.mark(os.environ, "os.environ")
            owner = os.environ
        if known_in(callee, _ITERATING):
            self.consumed(*args, objects=False)
        else:
            self.consumed(*args)
            if not isinstance(owner, ModuleType | type):
                self.consumed(owner)
        if of_the_package(type(callee)) or str(getattr(callee, "__module__", "")).startswith(
            "everygrad"
        ):
            return UNKNOWN  # a tensor
        given = [owner, *args, *(x for a in args for x in elements_of(a))]
        return self.some([x for x in given if not isinstance(x, (*NOT_LOOKED_INTO, Tensor))])

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
