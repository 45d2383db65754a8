"""Attributes of one module that are computed from its parameters whenever they are read.

The module's class becomes a subclass with a property; parametrisations, pruning and the older
weight norms are made of it. Nothing is assigned while the module runs, so a compiled function sees
a computation like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad.errors import ArgumentError
from everygrad.nn.module import Module

Getter = Callable[[Any], Any]
Setter = Callable[[Any, Any], None]


def computed_names(module: Module) -> tuple[str, ...]:
    """The attributes of a module that are computed."""
    found: tuple[str, ...] = getattr(type(module), "computed", ())
    return found


def compute(module: Module, name: str, getter: Getter, setter: Setter | None = None) -> None:
    """Let `module.name` be getter(module) from now on; the attribute must be gone."""
    cls = type(module)
    base = getattr(cls, "uncomputed", cls)
    names = (*computed_names(module), name)
    members = {k: v for k, v in vars(cls).items() if k in names} if base is not cls else {}

    def refuse(self: Any, value: Any) -> None:
        raise ArgumentError(
            f"{base.__name__}.{name} is computed from other parameters and cannot be assigned; "
            f"remove what computes it first"
        )

    members[name] = property(getter, refuse if setter is None else setter)
    _become(module, base, names, members)


def keep(module: Module, name: str) -> None:
    """Let `module.name` be an attribute like others again."""
    cls = type(module)
    names = tuple(n for n in computed_names(module) if n != name)
    members = {k: v for k, v in vars(cls).items() if k in names}
    _become(module, cls.uncomputed, names, members)  # type: ignore[attr-defined]


def _become(module: Module, base: Any, names: tuple[str, ...], members: dict[str, Any]) -> None:
    made = base
    if names:
        facts = {"computed": names, "uncomputed": base, "__module__": base.__module__}
        made = type(f"Parametrized{base.__name__}", (base,), {**members, **facts})
    vars(module)  # a module's state is its attributes: nothing else changes
    object.__setattr__(module, "__class__", made)
    Module.changes += 1
