"""What `eg.jit` makes of a module: a module like it whose calls are compiled.

It has the very attributes of the module: parameters, buffers, children, hooks and mode are one and
the same, whichever of the two they are reached through.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from everygrad.nn.module import Module


class _Compiled:
    """The part of a compiled module's class that is not the module's own."""

    jitted: Any
    original: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self).jitted(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(type(self).original)

    def __getattr__(self, name: str) -> Any:
        # what the module has not: lower(), memory(), clear(), uncompiled
        cls = type(self)
        if name.startswith("__"):
            raise AttributeError(f"{cls.__name__} has no attribute {name!r}")
        return getattr(cls.jitted if hasattr(cls.jitted, name) else cls.original, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = deepcopy(type(self).jitted, memo)
        return compiled(made.fn, made)


def compiled(module: Module, jitted: Any) -> Module:
    """A module with all of `module`'s attributes that calls `jitted`."""
    cls = type(module)
    members = {
        "jitted": jitted,
        "original": module,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }
    made: Any = object.__new__(type(cls.__name__, (_Compiled, cls), members))
    object.__setattr__(made, "__dict__", vars(module))
    return made
