"""Blocks that change context variables, and are left by one native call.

A signal handler may raise at any call of a Python function, before its first line: Ctrl-C pressed
as a `with` block ends can keep an `__exit__` written in Python from running at all, and what the
block had set would stay set for good. So the `__exit__` of a `Scope` is native: what it undoes is
prepared when the block is entered, and undone whole, in one call that no handler can interrupt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from io import IOBase
from operator import call
from typing import Any

from everygrad.core.context import INTERCEPT, tracing

Settings = tuple[tuple[ContextVar[Any], Any], ...]

# Everything an iterator does, in one native call: `drain(map(setattr, objects, names, values))`
# gives all of the objects their values, or, where a handler raises, none.
drain: Callable[[Iterable[Any]], None] = deque[Any](maxlen=0).extend


def at_once(*actions: Callable[[], Any]) -> Callable[[], None]:
    """Native functions as one: none of them, or all, whatever handlers of signals raise."""
    return partial(drain, map(call, actions))


class _Undo(IOBase):
    """IOBase's `__exit__` is native and calls whatever `close` is at that moment."""

    __slots__ = ("close",)
    closed = True  # there is no file: nothing is to be closed when it is collected
    close: Any  # once a block is entered, a function


class Scope:
    """A context manager that sets context variables. Blocks of one object may nest."""

    __slots__ = ("__dict__", "__exit__", "_undo")
    __exit__: Callable[..., None]
    has_more = False  # whether it defines `enter` or `leaving`
    watches = False  # True: ops take the slow way meanwhile, on which everyone sees them

    def __init__(self) -> None:
        self._undo = undo = _Undo()
        undo.close = None
        self.__exit__ = undo.__exit__

    def __init_subclass__(cls) -> None:
        cls.has_more = cls.enter is not Scope.enter or cls.leaving is not Scope.leaving

    def settings(self) -> Settings:
        """The variables and their values inside; asked for when a block is entered."""
        return ()

    def enter(self) -> None:
        """What else is done as a block is entered; if it raises, the block is left."""

    def leaving(self) -> tuple[Callable[[], Any], ...]:
        """What else is done as a block is left; asked for when it is entered. Functions written in
        Python come last: a handler may raise before they begin."""
        return ()

    def __enter__(self) -> Any:
        settings, undo, more = self.settings(), self._undo, self.has_more
        if self.watches:
            settings += INTERCEPT
        back: list[Callable[..., Any]] = [partial(setattr, undo, "close", undo.close)]
        for var, _ in settings:
            back.append(partial(var.set, var.get()))
        if more:
            back += self.leaving()
        undo.close = partial(drain, map(call, back))
        try:
            for var, value in settings:
                var.set(value)
            if more:
                self.enter()
        except BaseException:
            undo.close()
            raise
        return self


class Setting(Scope):
    """One variable has one value inside."""

    __slots__ = ()

    def __init__(self, var: ContextVar[Any], value: Any, watches: bool = False) -> None:
        super().__init__()
        self._settings = ((var, value),)
        self.watches = watches

    def settings(self) -> Settings:
        return self._settings


class intercepting(Scope):  # noqa: N801  # a context manager, read as a verb
    """Every op inside goes the slow way, on which everyone sees it."""

    __slots__ = ()
    watches = True


def untraced() -> Setting:
    """Nothing inside is traced: for state that a function makes when it first runs."""
    return Setting(tracing, None)


class Attribute(Scope):
    """One attribute of an object has one value inside, which `with` gives."""

    __slots__ = ()

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        super().__init__()
        self.owner, self.name, self.value = owner, name, value

    def __enter__(self) -> Any:
        super().__enter__()
        return self.value

    def enter(self) -> None:
        setattr(self.owner, self.name, self.value)

    def leaving(self) -> tuple[Callable[[], Any], ...]:
        return (partial(setattr, self.owner, self.name, getattr(self.owner, self.name)),)
