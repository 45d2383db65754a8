"""What users may pass to ops: one rule for all of them.

Wherever an op takes a tensor it takes a NumPy array and a number too: an array becomes a tensor of
its dtype, a number a 0-d tensor that does not widen the others, both on the device of the tensors
beside them. Everything else, and a parameter of a wrong Python type, is refused by name. What an op
takes is read from its annotations, when it is first called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import as_tensor
from everygrad.errors import ArgumentError, AxisError, DtypeError, EverygradError
from everygrad.ops.record.keywords import needed_by_name, placed, renamed

# what a parameter says of itself -> the types that need no further look, and what to call them
_TENSORS: set[type] = {Tensor}  # and the subclasses seen so far
_LISTS: set[type] = set()  # what is in them is looked at
_TENSORS_OR_NONE: set[type] = {Tensor, type(None)}
_PLAIN: dict[str, tuple[set[type], str]] = {
    "Tensor": (_TENSORS, "a tensor"),
    "Sequence[Tensor]": (_LISTS, "a list of tensors"),
    "bool": ({bool}, "True or False"),
    "int": ({int}, "an integer"),
    "float": ({float, int}, "a number"),
    "str": ({str}, "a string"),
}
_UNKNOWN: set[type] = set()
_RENAMED = frozenset(("axis", "axis1", "axis2", "shift"))  # dim, dim0, dim1, shifts in PyTorch
_INDICES = ("index", "indices")
_INTERNAL = (TypeError, ValueError, AttributeError, KeyError, OverflowError)


class Parameter:
    """One parameter of an op: what it takes."""

    __slots__ = ("kind", "name", "optional", "plain")

    def __init__(self, name: str, annotation: Any) -> None:
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        kinds = text.split(" | ")
        self.name = name
        self.optional = "None" in kinds
        others = [kind for kind in kinds if kind != "None"]
        # what takes several kinds of things looks at them itself
        self.kind = others[0] if len(others) == 1 and others[0] in _PLAIN else ""
        self.plain = _PLAIN[self.kind][0] if self.kind else None  # None: anything
        if self.kind and self.optional:
            tensor = self.kind == "Tensor"
            self.plain = _TENSORS_OR_NONE if tensor else {*_PLAIN[self.kind][0], type(None)}

    def fits(self, value: Any) -> bool:
        """Whether a value is what the parameter asks for."""
        if not self.kind or (value is None and self.optional):
            return True
        if self.kind == "int":
            return hasattr(value, "__index__")
        if self.kind == "float":  # a tensor of one element is for the op to take or to refuse
            return isinstance(value, int | float | np.integer | np.floating | Tensor)
        if self.kind == "bool":
            return isinstance(value, np.bool_) or (isinstance(value, int) and value in (0, 1))
        return self.kind == "str" and isinstance(value, str)


class Signature:
    """The parameters of an op, by place and by name."""

    def __init__(self, op: str, function: Callable[..., Any]) -> None:
        self.op = op
        self.places: list[Parameter] = []
        self.rest: Parameter | None = None  # the one that takes any number of values
        self.names: dict[str, Parameter] = {}
        self.open = False  # it has a parameter that takes any name, and knows other names itself
        self.python = inspect.signature(function)
        for p in self.python.parameters.values():
            one = Parameter(p.name, p.annotation)
            if p.kind is p.VAR_KEYWORD:
                self.open = True
                continue
            if p.kind is p.VAR_POSITIONAL:
                self.rest = one
            elif p.kind is not p.KEYWORD_ONLY:
                self.places.append(one)
            self.names[p.name] = one
        self.needed = [n for n, p in self.python.parameters.items() if _is_needed(p)]
        self.plain_places = [one.plain for one in self.places]
        self.plain_names = {name: one.plain for name, one in self.names.items()}

    def at(self, i: int) -> Parameter | None:
        return self.places[i] if i < len(self.places) else self.rest

    def taken(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with tensors made of arrays and numbers; refuses what does not fit."""
        if self.open:
            kwargs = needed_by_name(self.needed[len(args) :], self.names, kwargs)
        else:
            args, kwargs = self.in_own_words(args, kwargs)
            if not kwargs.keys() <= self.names.keys():
                return [*args], kwargs  # Python itself says which one is unknown
        beside = _first_tensor([*args, *kwargs.values()])
        taken = [self.one(self.at(i), value, beside) for i, value in enumerate(args)]
        named = {k: self.one(self.names.get(k), value, beside) for k, value in kwargs.items()}
        return taken, named

    def in_own_words(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call in PyTorch's names, or in its order, as one in the op's own."""
        if not kwargs.keys() <= self.names.keys():
            kwargs = renamed(self.op, self.names, kwargs)
        if self.rest is None and len(args) > len(self.places):
            args, kwargs = placed(self.op, len(self.places), args, kwargs)
        # gather(x, dim, index): an axis where an index stands
        second = self.places[1].name if len(self.places) > 1 else ""
        if len(args) > 1 and isinstance(args[1], int) and second in _INDICES:
            if len(args) > 2 and isinstance(args[2], Tensor):
                return (args[0], *args[2:]), {"axis": args[1], **kwargs}
            if second in kwargs and "axis" not in kwargs:
                return (args[0], *args[2:]), {"axis": args[1], **kwargs}
        return args, kwargs

    def one(self, p: Parameter | None, value: Any, beside: Tensor | None) -> Any:
        if p is None or not p.kind or (value is None and p.optional):
            return value
        if p.kind == "Tensor":
            if p.name == "index" and isinstance(value, int):  # one number is x[i]
                raise DtypeError(
                    f"{self.op}: an index is a tensor of integers, got {value!r}; "
                    f"the index comes before the axis: {self.op}(x, index, ...)"
                )
            return tensor_of(self.op, value, beside)
        if p.kind == "Sequence[Tensor]":
            if not isinstance(value, Iterable) or isinstance(value, str | bytes | dict):
                raise no_tensor(self.op, value)
            return [v if type(v) in _TENSORS else tensor_of(self.op, v, beside) for v in value]
        if not p.fits(value):
            raise self.misfit(p, value)
        if p.kind == "int" and not isinstance(value, int):
            return value.__index__()
        return bool(value) if p.kind == "bool" else value

    def misfit(self, p: Parameter, value: Any) -> ArgumentError:
        wanted = _PLAIN[p.kind][1] + (" or None" if p.optional else "")
        got = f"{type(value).__name__} {value!r}"[:120]
        return ArgumentError(f"{self.op}: {p.name} must be {wanted}, got {got}")

    def explain(self, args: Sequence[Any], kwargs: dict[str, Any]) -> EverygradError | None:
        """After an error that names nothing: the first argument that is not of a plain type."""
        try:
            self.python.bind(*args, **kwargs)
        except TypeError:  # Python's own, about missing and unknown arguments
            return None
        given = [(self.at(i), v) for i, v in enumerate(args)]
        for p, value in [*given, *((self.names.get(k), v) for k, v in kwargs.items())]:
            if p is None or value is None or isinstance(value, Tensor | int | str | bool):
                continue
            if p.kind == "float" and isinstance(value, float):
                continue
            if not p.kind or not p.fits(value):
                kind = f"{type(value).__name__} {value!r}"[:120]
                return ArgumentError(f"{self.op}: does not take {p.name} = {kind}")
        return None


def _is_needed(p: inspect.Parameter) -> bool:
    return p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)


def _first_tensor(values: Iterable[Any]) -> Tensor | None:
    for value in values:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, list | tuple):
            found = _first_tensor(value)
            if found is not None:
                return found
    return None


def tensor_of(op: str, value: Any, beside: Tensor | None = None) -> Tensor:
    """A tensor from a tensor, a NumPy array or a number; refuses anything else."""
    if isinstance(value, Tensor):
        _TENSORS.add(type(value))
        _TENSORS_OR_NONE.add(type(value))
        return value
    if not isinstance(value, np.ndarray | bool | int | float | complex | np.generic):
        raise no_tensor(op, value)
    anchor = wrap(np.zeros((), np.float32)) if beside is None else beside
    if isinstance(value, np.ndarray):
        return as_tensor(value, anchor)
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, int):  # an index, a class, a count: it keeps its kind beside floats
        return as_tensor(np.asarray(number), anchor)
    return as_tensor(number, anchor)


def no_tensor(op: str, value: Any) -> DtypeError:
    kind = type(value).__name__
    return DtypeError(
        f"{op}: takes tensors, got {kind} {value!r}"[:200] + "; make one with eg.tensor()"
    )


def taking(
    function: Callable[..., Any], op: str | None = None, scalar_rows: str = ""
) -> Callable[..., Any]:
    """The function as users call it: arguments are taken by the rule of this file, and errors begin
    with its name, also where it is made of other ops.

    `scalar_rows`: along axis 0 or -1 of a 0-d tensor it finds one element, as in PyTorch. "row":
    the result is 0-d again; "index": where the index is. `register` notes it on the function.
    """
    name = op or function.__name__
    signature: Signature | None = None
    places: list[set[type] | None] = []
    names: dict[str, set[type] | None] = {}
    scalar_rows = scalar_rows or getattr(function, "scalar_rows", "")

    def read() -> Signature:
        nonlocal signature, places, names
        signature = Signature(name, function)
        places, names = signature.plain_places, signature.plain_names
        return signature

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        known = signature or read()
        plain = len(args) <= len(places)
        # values of the commonest types need no further look
        for types, value in zip(places, args):  # noqa: B905  # a keyword takes 0.1 us
            if types is not None and type(value) not in types:
                if types is _LISTS and type(value) is list and {*map(type, value)} <= _TENSORS:
                    continue
                plain = False
                break
        if kwargs and plain:
            for key, value in kwargs.items():
                types = names.get(key, _UNKNOWN)
                if types is not None and type(value) not in types:
                    plain = False
                    break
        try:
            if not plain:
                args, kwargs = known.taken(args, kwargs)  # type: ignore[assignment]
            return function(*args, **kwargs)
        except EverygradError as error:
            scalar = isinstance(error, AxisError) and error.of_scalar
            if not (scalar_rows and scalar and any(map(_is_scalar, (*args, *kwargs.values())))):
                if not str(error).startswith(name):
                    error.args = (f"{name}: {error}",)
                raise
        except _INTERNAL as error:
            explained = known.explain(args, kwargs)
            if explained is None:
                raise
            raise explained from error
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        out = call(*map(_as_row, args), **{key: _as_row(a) for key, a in kwargs.items()})
        kept = scalar_rows == "index" and not all(map(_is_scalar, given))
        return out if kept else _as_scalars(out)

    return call


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.ndim


def _as_row(value: Any) -> Any:
    return value.reshape((1,)) if _is_scalar(value) else value


def _as_scalars(out: Any) -> Any:
    """Rows of one element as 0-d tensors."""
    if isinstance(out, Tensor):
        return out.reshape(()) if out.shape == (1,) else out
    made = [_as_scalars(x) for x in out]
    return type(out)(*made) if hasattr(out, "_fields") else type(out)(made)


_SWITCHES = ("return", "copy", "non_blocking")  # no op computes with these


def takes_values(function: Callable[..., Any]) -> bool:
    """Whether a function takes more than its first tensor and integers, axes and shapes: those look
    at their values anyway."""
    kinds = [*function.__annotations__.items()][1:]
    return any(
        name not in _SWITCHES and {"Tensor", "float", "bool", "str"} & words
        for name, words in ((name, set(str(kind).split(" | "))) for name, kind in kinds)
    )


def needs_names(function: Callable[..., Any]) -> bool:
    """Whether a parameter that must be given has another name in PyTorch: Python refuses such a
    call before the function could look at it."""
    code = function.__code__
    required = code.co_varnames[1 : code.co_argcount - len(function.__defaults__ or ())]
    return any(name in _RENAMED for name in required)
