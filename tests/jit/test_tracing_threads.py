"""A trace, a profile or an autocast block in one thread leaves the ops of all others alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn, optim
from everygrad.core.context import fast_limit, tracing
from everygrad.core.tensor import Tensor, Wrapped
from everygrad.tools import profile
from tests.support.checks import values


class AnotherThread:
    """Works in a thread of its own, whenever it is called; by locks alone, since a function that is
    traced may start no thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.failed: list[BaseException] = []
        self.over = False
        self.go, self.done = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.done.acquire()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while self.go.acquire() and not self.over:
            try:
                self.work()
            except BaseException as error:
                self.failed.append(error)
            self.done.release()

    def __call__(self) -> None:
        self.go.release()
        assert self.done.acquire(timeout=60)

    def end(self) -> None:
        """Stop, and raise here what was raised there."""
        self.over = True
        self.go.release()
        self.thread.join(60)
        assert not self.thread.is_alive()
        for error in self.failed:
            raise error


def state_of(tensors: list[Tensor]) -> list[Any]:
    grads = [t.grad for t in tensors]
    return [values(t.detach()) for t in tensors] + [None if g is None else values(g) for g in grads]


def test_a_tensor_that_another_thread_captures_keeps_its_payload() -> None:
    """At every stage of a training step's trace: values, gradients and ops are the usual ones."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    opt = optim.AdamW(model.parameters(), lr=0.1)
    x = eg.ones((5, 3))
    held = [*model.parameters(), *model.buffers()]
    model(x).sum().backward()
    before = state_of(held)
    looked = 0

    def look() -> None:
        nonlocal looked
        for t in held:
            assert not isinstance(t._data, Wrapped)
            np.testing.assert_array_equal(values((t * 2).detach()), 2 * values(t.detach()))
        for a, b in zip(state_of(held), before, strict=True):
            np.testing.assert_array_equal(a, b)
        w = held[0].detach().requires_grad_()
        (w * w).sum().backward()
        assert w.grad is not None
        np.testing.assert_array_equal(values(w.grad), 2 * values(w.detach()))
        looked += 1

    elsewhere = AnotherThread(look)

    def step() -> Tensor:
        loss = model(x).sum()
        elsewhere()  # the statistics have new values, in the trace alone
        opt.zero_grad()
        loss.backward()
        elsewhere()
        opt.step()
        elsewhere()
        return loss

    eg.jit(step).lower()
    elsewhere.end()
    assert looked == 3
    for a, b in zip(state_of(held), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_trace_that_fails_has_changed_nothing() -> None:
    w = eg.ones((3,)).requires_grad_()
    buffer = eg.zeros((3,))

    def fails() -> None:
        nonlocal buffer
        buffer += w.detach()
        (w * 2).sum().backward()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        eg.jit(fails)()
    assert values(buffer).tolist() == [0.0] * 3
    assert w.grad is None
    assert w.requires_grad
    assert w.is_leaf


def test_a_value_of_another_dtype_is_refused_inside() -> None:
    q = eg.ones((5,))

    def f() -> None:
        q.rebind(q.astype("float64")._data, None)

    with pytest.raises(eg.errors.TraceError, match=r"float32\[5\], is given a value float64\[5\]"):
        eg.jit(f)()
    assert q.dtype is eg.float32


@pytest.mark.parametrize("kind", ["jit", "profile", "autocast", "find_nan"])
def test_what_one_thread_watches_does_not_slow_another(kind: str) -> None:
    limit = fast_limit()
    w = eg.ones((4, 4))
    looked = 0

    def look() -> None:
        nonlocal looked
        assert fast_limit() == limit >= 0
        assert tracing.get() is None
        assert (w @ w).dtype is eg.float32
        assert type((w * 2)._data) is np.ndarray
        looked += 1

    elsewhere = AnotherThread(look)

    def inside() -> Tensor:
        elsewhere()
        return w + 1.0

    contexts: dict[str, Any] = {
        "jit": nullcontext(),
        "profile": profile(),
        "autocast": eg.autocast(),
        "find_nan": eg.find_nan(),
    }
    with contexts[kind]:
        (eg.jit(inside) if kind == "jit" else inside)()
    elsewhere.end()
    assert looked == 1
    assert fast_limit() == limit
