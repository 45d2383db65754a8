"""PyTorch's and NumPy's names for parameters of ops: `dim` for `axis`, `keepdim` for `keepdims`.

They are looked at only after a call did not fit the op's own signature, so that a call which does
fit pays nothing. The table is `core/torch_names.KEYWORDS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

from everygrad.core.torch_names import FIRST, KEYWORDS, POSITIONS
from everygrad.errors import ArgumentError


def meant(alias: str, parameters: Collection[str]) -> str | None:
    """The parameter that another library calls `alias`, among those of an op; None if none is.

    >>> meant("dim", ("x", "axis", "keepdims")), meant("dims", ("x", "axes"))
    ('axis', 'axes')
    """
    for name in KEYWORDS.get(alias, ()):
        if name in parameters:
            return name
    return next(iter(parameters)) if alias in FIRST and parameters else None


def aliases_of(parameters: Collection[str]) -> dict[str, str]:
    """Each other name that a call may use, with the parameter it stands for: for stubs and docs."""
    found = {alias: meant(alias, parameters) for alias in KEYWORDS}
    return {a: name for a, name in found.items() if name is not None and a not in parameters}


def renamed(op: str, parameters: Collection[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments under the names an op has for them. What is unknown stays as it is, and
    Python says so."""
    made: dict[str, Any] = {}
    for key, value in given.items():
        if key in parameters:
            name = key
        elif key == "out":
            raise ArgumentError(f"{op}: values never change, out= has no meaning; use the result")
        else:
            name = meant(key, parameters) or key
            value = int(value) if key == "unbiased" else value
        if name in made or (name != key and name in given):
            raise ArgumentError(f"{op}: {key} and {name} are the same parameter; give one of them")
        made[name] = value
    return made


def placed(op: str, count: int, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, Any]:
    """Arguments by position behind the `count` that an op takes so: PyTorch's order gives them
    their names."""
    names = POSITIONS.get(op, ())
    extra = args[count:]
    if len(extra) > len(names):
        return args, given
    return args[:count], {**dict(zip(names, extra, strict=False)), **given}


@cache
def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}


def with_names(
    function: Callable[..., Any], names: Mapping[str, Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call an op again whose `**names` caught keywords that are not its own, under its own names.

    `args` and `kwargs` are what its parameters hold: where one was given besides, it is refused.
    """
    op, defaults = function.__name__, _defaults(function)
    places = dict(zip(defaults, args, strict=False))
    held = {k: v for k, v in {**places, **kwargs}.items() if v is not defaults[k]}
    made = renamed(op, defaults, names)
    for key in made:
        if key not in defaults:
            raise TypeError(f"{op}() got an unexpected keyword argument {key!r}")
        if key in held:
            alias = next(n for n in names if n == key or meant(n, defaults) == key)
            raise ArgumentError(f"{op}: {alias} and {key} are the same parameter; give one of them")
    x, *_ = defaults
    return function(held.pop(x), **held, **made) if x in held else function(**held, **made)
