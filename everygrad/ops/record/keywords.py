"""PyTorch's and NumPy's names for parameters of ops: `dim` for `axis`, `keepdim` for `keepdims`.

They are looked at only after a call did not fit the op's own signature, so that a call which does
fit pays nothing. The table is `core/torch_names.KEYWORDS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, wraps
from importlib import import_module
from typing import Any

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.core.torch_names import (
    BEFORE,
    FIRST,
    FROM_ZERO,
    KEYWORDS,
    LAYOUTS,
    LEGACY,
    POSITIONS,
)
from everygrad.errors import ArgumentError


def meant(alias: str, parameters: Collection[str]) -> str | None:
    """The parameter that another library calls `alias`, among those of an op; None if none is.

    >>> meant("dim", ("x", "axis", "keepdims")), meant("dims", ("x", "axes"))
    ('axis', 'axes')
    """
    for name in KEYWORDS.get(alias, ()):
        if name in parameters:
            return name
    return next((p for p in parameters if p not in BEFORE), None) if alias in FIRST else None


def aliases_of(parameters: Collection[str]) -> dict[str, str]:
    """Each other name that a call may use, with the parameter it stands for: for stubs and docs."""
    found = {alias: meant(alias, parameters) for alias in KEYWORDS}
    return {a: name for a, name in found.items() if name is not None and a not in parameters}


def renamed(op: str, parameters: Collection[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments under the names an op has for them. What is unknown stays as it is, and
    Python says so."""
    made: dict[str, Any] = {}
    if "reduction" in parameters and not given.keys().isdisjoint(LEGACY):
        given = _with_reduction(op, given)
    counted = FROM_ZERO.get(op, {})
    if counted and given.keys() & {*counted, *counted.values()} == counted.keys():
        given = {counted.get(key, key): value for key, value in given.items()}
    for key, value in given.items():
        if key in parameters:
            name = key
        elif key == "out":
            if value is None:  # NumPy's functions say so of every call
                continue
            raise ArgumentError(f"{op}: values never change, out= has no meaning; use the result")
        elif key in LAYOUTS:
            continue
        else:
            name = meant(key, parameters) or key
            value = int(value) if key == "unbiased" else value
        if name in made or (name != key and name in given):
            raise ArgumentError(f"{op}: {key} and {name} are the same parameter; give one of them")
        made[name] = value
    return made


def _with_reduction(op: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A call of a loss with PyTorch's oldest words for its `reduction`."""
    rest = {k: v for k, v in given.items() if k not in LEGACY}
    average, reduce = (given.get(name) for name in LEGACY)
    if average is None and reduce is None:
        return rest
    if "reduction" in rest:
        raise ArgumentError(f"{op}: size_average and reduce are what reduction says; give that")
    summed = "sum" if average is False else "mean"
    return {**rest, "reduction": "none" if reduce is False else summed}


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


def spelled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which understands the other names of its parameters too.

    >>> @spelled
    ... def share(x, axis=0):
    ...     return x, axis
    >>> share(input=3, dim=1)
    (3, 1)
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            names = _defaults(function)
            if not kwargs.keys() <= names.keys():
                kwargs = renamed(function.__name__, names, kwargs)
            first = next(iter(names))
            if first in kwargs and not args:  # it may be one that is taken by position alone
                args = (kwargs.pop(first),)
        return function(*args, **kwargs)

    return call


def needed_by_name(
    needed: Sequence[str], names: Collection[str], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Keywords of an op that knows other names itself, but for those of parameters it must have:
    `needed` are the ones that no argument by position is for.

    >>> needed_by_name(("x", "sizes"), ("x", "sizes", "axis"), {"input": 3, "dim": 1})
    {'x': 3, 'dim': 1}
    """
    made: dict[str, Any] = {}
    for key, value in given.items():
        name = None if key in names else meant(key, needed)
        made[key if name is None or name in given or name in made else name] = value
    return made


def torch_call(name: str, *args: Any) -> Any:
    """A call that PyTorch means otherwise than the Array API does: `torch_calls` has it, and loads
    with the first one."""
    return getattr(import_module("everygrad.ops.record.torch_calls"), name)(*args)


def unbiased(names: Mapping[str, Any], correction: float) -> dict[str, Any]:
    """The names of a call of std or var: with `dim` PyTorch's correction is 1 unless one is given.

    A default is told from a 0 that was given by its type: the default is a float.
    """
    given = not (type(correction) is float and correction == 0.0)
    if "unbiased" in names or "ddof" in names:
        if given:
            raise ArgumentError("give unbiased, ddof or correction, not several of them")
        return dict(names)
    if "correction" in names:
        return dict(names)
    if not given:
        correction = 1 if "dim" in names else 0
    return {**names, "correction": correction}


def cast_first(x: Tensor, names: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
    """The names of a call without PyTorch's `dtype`, and the input in that dtype."""
    rest = dict(names)
    rest.pop("_stacklevel", None)
    dtype = rest.pop("dtype", None)
    return rest, x if dtype is None else x.astype(dtype)


def only_ones(x: Tensor, names: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a call of squeeze: PyTorch leaves an axis alone whose size is not 1."""
    if "dim" not in names:
        return dict(names)
    given = names["dim"]
    axes = shapes.axis_tuple(given, x.ndim, "squeeze") if x.ndim else ()
    return {**names, "dim": tuple(a for a in axes if x.shape[a] == 1)}
