"""Checks of data pipes: types that annotations promise, and whether a chain is deterministic."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from everygrad.core.scopes import Setting
from everygrad.errors import ArgumentError, DtypeError

F = TypeVar("F", bound=Callable[..., Any])
_guaranteed: ContextVar[bool] = ContextVar("everygrad_pipes_deterministic", default=False)
_unchecked: ContextVar[bool] = ContextVar("everygrad_pipes_unchecked", default=False)


class guaranteed_datapipes_determinism(Setting):  # noqa: N801  # PyTorch's name
    """A block in which pipes that are not deterministic are refused.

    >>> import everygrad as eg
    >>> with eg.data.guaranteed_datapipes_determinism():
    ...     pipe = eg.data.IterableWrapper([1]).shuffle()
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_guaranteed, True)


class runtime_validation_disabled(Setting):  # noqa: N801  # PyTorch's name
    """A block in which `runtime_validation` checks nothing.

    >>> import everygrad as eg
    >>> with eg.data.runtime_validation_disabled():
    ...     pass
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_unchecked, True)


def check_deterministic(kind: type, seeded: bool = False) -> None:
    """Refuse a pipe that a guarantee excludes; ours shuffle by a seed, so they never are."""
    if _guaranteed.get() and not seeded:
        raise ArgumentError(
            f"{kind.__name__} is not deterministic, inside guaranteed_datapipes_determinism()"
        )


def non_deterministic(arg: Any) -> Any:
    """A decorator for pipes whose items come in no fixed order: of a class, or with a function of
    its arguments that says whether they do.

    >>> import everygrad as eg
    >>> @eg.data.non_deterministic
    ... class Live(eg.data.IterDataPipe):
    ...     def __iter__(self): return iter(())
    >>> with eg.data.guaranteed_datapipes_determinism():
    ...     Live()
    Traceback (most recent call last):
        ...
    everygrad.errors.ArgumentError: Live is not deterministic, inside \
guaranteed_datapipes_determinism()
    """
    if inspect.isclass(arg):
        return _checked_class(arg, lambda *args, **kwargs: True)
    if not callable(arg):
        raise ArgumentError(f"non_deterministic: takes a class or a function, got {arg!r}")
    return lambda kind: _checked_class(kind, arg)


def _checked_class(kind: Any, loose: Callable[..., Any]) -> Any:
    begin = kind.__init__

    @functools.wraps(begin)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if loose(*args, **kwargs):
            check_deterministic(kind)
        begin(self, *args, **kwargs)

    kind.__init__ = init
    return kind


def argument_validation(f: F) -> F:
    """A decorator that holds arguments to their annotations.

    >>> import everygrad as eg
    >>> @eg.data.argument_validation
    ... def half(n: int): return n // 2
    >>> half("4")
    Traceback (most recent call last):
        ...
    everygrad.errors.DtypeError: half: n must be int, got str
    """
    signature = inspect.signature(f)

    @functools.wraps(f)
    def checked(*args: Any, **kwargs: Any) -> Any:
        hints = typing.get_type_hints(f)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            plain = signature.parameters[name].kind not in (
                inspect.Parameter.VAR_POSITIONAL,
                inspect.Parameter.VAR_KEYWORD,
            )
            if plain and name in hints and not fits(value, hints[name]):
                raise DtypeError(
                    f"{f.__name__}: {name} must be {_shown(hints[name])}, got "
                    f"{type(value).__name__}"
                )
        return f(*args, **kwargs)

    return typing.cast(F, checked)


def runtime_validation(f: F) -> F:
    """A decorator of a pipe's `__iter__` that holds what it yields to the pipe's item type.

    >>> import everygrad as eg
    >>> class Numbers(eg.data.IterDataPipe[int]):
    ...     @eg.data.runtime_validation
    ...     def __iter__(self): return iter([1, "2"])
    >>> list(Numbers())
    Traceback (most recent call last):
        ...
    everygrad.errors.DtypeError: Numbers: items must be int, got str
    """

    @functools.wraps(f)
    def checked(self: Any) -> Iterator[Any]:
        hint = _item_type(type(self))
        for item in f(self):
            if not _unchecked.get() and not fits(item, hint):
                raise DtypeError(
                    f"{type(self).__name__}: items must be {_shown(hint)}, got "
                    f"{type(item).__name__}"
                )
            yield item

    return typing.cast(F, checked)


def _item_type(kind: type) -> Any:
    """T of a class that derives from IterDataPipe[T] or the like."""
    for base in kind.__mro__:
        for origin in base.__dict__.get("__orig_bases__", ()):
            args = typing.get_args(origin)
            if args and typing.get_origin(origin) is not typing.Generic:
                return args[0]
    return Any


def _shown(hint: Any) -> str:
    return hint.__name__ if inspect.isclass(hint) and not typing.get_args(hint) else str(hint)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type, as far as that can be seen from the value."""
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if hint is None:
        return value is None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in args)
    if origin is typing.Literal:
        return value in args
    if not inspect.isclass(origin or hint):
        return True
    if not isinstance(value, origin or hint):
        return False
    if origin is tuple and args:
        if args[-1] is Ellipsis:
            return all(fits(v, args[0]) for v in value)
        return len(value) == len(args) and all(map(fits, value, args))
    if origin in (list, set, frozenset) and args:
        return all(fits(v, args[0]) for v in value)
    if origin is dict and args:
        return all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items())
    return True
