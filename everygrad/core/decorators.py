"""Context managers as decorators: of functions, generators, coroutines and async generators.

A mode decorates what runs in the body of a function. Calling a generator function runs none of its
body, so its mode is entered whenever the body goes on and left at each `yield`: what the consumer
does in between is its own affair. A coroutine has the context variables of its task to itself, and
keeps its mode while it waits.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Make = Callable[[], AbstractContextManager[Any]]


def decorated(make: Make, fn: Callable[P, R]) -> Callable[P, R]:
    """`fn`, whose body runs within what `make` makes, anew for each call and each step."""
    if inspect.isasyncgenfunction(fn):
        return _async_generator(make, fn)
    if inspect.iscoroutinefunction(fn):
        return _coroutine(make, fn)
    if inspect.isgeneratorfunction(fn):
        return _generator(make, fn)

    @wraps(fn)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with make():
            return fn(*args, **kwargs)

    return inside


def _generator(make: Make, fn: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fn)
    def inside(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        body = fn(*args, **kwargs)
        try:
            with make():
                given = next(body)
            while True:
                try:
                    sent = yield given
                except GeneratorExit:
                    with make():
                        body.close()
                    raise
                except BaseException as error:
                    with make():
                        given = body.throw(error)
                else:
                    with make():
                        given = body.send(sent)
        except StopIteration as end:
            return end.value

    return inside


def _coroutine(make: Make, fn: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fn)
    async def inside(*args: Any, **kwargs: Any) -> Any:
        with make():
            return await fn(*args, **kwargs)

    return inside


def _async_generator(make: Make, fn: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fn)
    async def inside(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body = fn(*args, **kwargs)
        try:
            with make():
                given = await anext(body)
            while True:
                try:
                    sent = yield given
                except GeneratorExit:
                    with make():
                        await body.aclose()
                    raise
                except BaseException as error:
                    with make():
                        given = await body.athrow(error)
                else:
                    with make():
                        given = await body.asend(sent)
        except StopAsyncIteration:
            return

    return inside
