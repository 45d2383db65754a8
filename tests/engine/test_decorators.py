"""Modes as decorators hold while a body runs, and only then: functions, generators, coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import everygrad as eg
from everygrad.amp.policy import policy
from everygrad.autograd.api import _leaf_ready, leaf_ready_hook
from everygrad.autograd.modes import anomaly_enabled, detect_anomaly, in_inference_mode
from everygrad.core.context import intercepted, watcher
from everygrad.errors import ArgumentError

# a mode, and what can be seen of it
MODES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "no_grad": (eg.no_grad, eg.is_grad_enabled),
    "enable_grad": (eg.enable_grad, eg.is_grad_enabled),
    "set_grad_enabled": (lambda: eg.set_grad_enabled(False), eg.is_grad_enabled),
    "inference_mode": (eg.inference_mode, in_inference_mode),
    "detect_anomaly": (detect_anomaly, anomaly_enabled),
    "autocast": (eg.autocast, lambda: (policy() is not None, intercepted())),
    "find_nan": (eg.find_nan, lambda: (watcher.get() is not None, intercepted())),
    "leaf_ready_hook": (
        lambda: leaf_ready_hook(print),
        lambda: bool(_leaf_ready.get()),
    ),
}


@pytest.fixture(params=MODES)
def mode(request: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    """The mode's maker, what can be seen of it, and that outside and inside of it."""
    make, seen = MODES[request.param]
    outer = eg.no_grad() if request.param == "enable_grad" else eg.enable_grad()
    with outer:
        outside = seen()
        with make():
            inside = seen()
        assert inside != outside
        yield make, seen, outside, inside
        assert seen() == outside


def test_functions(mode: Any) -> None:
    make, seen, outside, inside = mode

    @make()
    def call(again: int) -> list[Any]:
        return [seen(), *(call(again - 1) if again else [])]

    assert call(2) == [inside] * 3
    assert seen() == outside


def test_generators(mode: Any) -> None:
    """On while the body runs, off at each yield: nested, sent to, thrown into, closed, dropped."""
    make, seen, outside, inside = mode
    noted: list[Any] = []

    @make()
    def steps(count: int) -> Any:
        try:
            for _ in range(count):
                try:
                    sent = yield seen()
                    noted.append((sent, seen()))
                except KeyError:
                    noted.append(("thrown", seen()))
            return "done", seen()
        finally:
            noted.append(("end", seen()))

    assert inspect.isgeneratorfunction(steps)
    for got in steps(3):
        assert (got, seen()) == (inside, outside)
    assert noted == [*[(None, inside)] * 3, ("end", inside)]
    noted.clear()

    first, second = steps(2), steps(2)
    assert [next(first), seen(), next(second), seen()] == [inside, outside] * 2
    assert [first.send(1), seen(), second.send(2), seen()] == [inside, outside] * 2
    with pytest.raises(StopIteration) as end:
        first.throw(KeyError())
    assert end.value.value == ("done", inside)
    assert seen() == outside
    second.close()
    assert seen() == outside
    assert noted == [(1, inside), (2, inside), ("thrown", inside), ("end", inside), ("end", inside)]
    noted.clear()

    third = steps(2)
    next(third)
    with pytest.raises(ValueError, match="not caught"):
        third.throw(ValueError("not caught"))
    fourth = steps(5)
    next(fourth)
    del fourth  # the collector closes it
    assert noted == [("end", inside)] * 2
    assert seen() == outside

    def around() -> Any:
        return (yield from steps(1))

    outer = around()
    assert next(outer) == inside
    with pytest.raises(StopIteration) as end:
        next(outer)
    assert end.value.value == ("done", inside)


def test_coroutines(mode: Any) -> None:
    """Each task has its own context: one that waits in a mode leaves the others as they are."""
    make, seen, outside, inside = mode

    @make()
    async def work() -> list[Any]:
        found = [seen()]
        for _ in range(3):
            await asyncio.sleep(0)
            found.append(seen())
        return found

    async def beside() -> list[Any]:
        found = []
        for _ in range(4):
            found.append(seen() if not isinstance(outside, tuple) else seen()[0])
            await asyncio.sleep(0)
        return found

    async def both() -> Any:
        return await asyncio.gather(work(), beside(), work())

    assert inspect.iscoroutinefunction(work)
    one, other, two = asyncio.run(both())
    assert one == two == [inside] * 4
    # the second item of a tuple is a count for the process, not for a context
    assert other == [outside[0] if isinstance(outside, tuple) else outside] * 4


def test_async_generators(mode: Any) -> None:
    make, seen, outside, inside = mode
    noted: list[Any] = []

    @make()
    async def steps(count: int) -> AsyncIterator[Any]:
        try:
            for _ in range(count):
                await asyncio.sleep(0)
                try:
                    yield seen()
                except KeyError:
                    noted.append(("thrown", seen()))
        finally:
            noted.append(seen())

    async def consume() -> None:
        async for got in steps(3):
            assert (got, seen()) == (inside, outside)
        body: Any = steps(3)
        assert await anext(body) == inside
        assert await body.athrow(KeyError()) == inside
        assert seen() == outside
        await body.aclose()
        assert seen() == outside

    assert inspect.isasyncgenfunction(steps)
    asyncio.run(consume())
    assert noted == [inside, ("thrown", inside), inside]


def test_a_generator_of_batches_records_nothing() -> None:
    """What the issue was about."""
    w = eg.ones((3,), requires_grad=True)

    @eg.no_grad()
    def batches() -> Any:
        for i in range(3):
            yield w * i

    for batch in batches():
        assert not batch.requires_grad
        assert (w * 2).requires_grad


@pytest.mark.parametrize("name", ["no_grad", "enable_grad", "inference_mode"])
def test_a_mode_decorates_without_a_call(name: str) -> None:
    make, seen = MODES[name]

    class Holder:
        @make
        def method(self) -> Any:
            return seen()

    with eg.no_grad() if name == "enable_grad" else eg.enable_grad():
        outside = seen()
        with make():
            inside = seen()
        assert Holder().method() == make(seen)() == inside != outside
        assert seen() == outside
    with pytest.raises(ArgumentError, match=f"{name}: takes nothing, or a function to decorate"):
        make(True)
