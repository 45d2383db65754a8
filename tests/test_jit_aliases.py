"""eg.jit where one tensor goes by several names, or changes what it is between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from tests.support import close, values

Case = Callable[[Callable[..., Any]], Any]


def ones(*shape: int) -> Any:
    return eg.tensor(np.ones(shape, np.float32))


def returns_what_it_replaces(jit: Any) -> Any:
    p = ones(3)

    def f() -> Any:
        old = p.detach()
        with eg.no_grad():
            p.__iadd__(1.0)
        return old

    g = jit(f)
    return [g() for _ in range(3)], p


def moves_round(jit: Any) -> Any:
    p, q = ones(2), ones(2) * 10.0

    def f() -> None:
        old = p.detach()
        with eg.no_grad():
            p.rebind(q.detach()._data, None)
            q.rebind((old + 1.0)._data, None)

    g = jit(f)
    for _ in range(4):
        g()
    return [p, q]


def given_twice(jit: Any) -> Any:
    def f(a: Any, b: Any) -> Any:
        a += 1.0
        b *= 2.0
        return a + b

    g = jit(f)
    x, y, z = ones(2), ones(2), ones(2)
    return [g(x, y), g(z, z), z, x, y, g(y, x), x, y]


def gradient_of_one_given_twice(jit: Any) -> Any:
    g = jit(lambda a, b: (a * b).sum().backward())
    w, v = ones(2).requires_grad_(), ones(2).requires_grad_()
    g(w, w)
    g(w, v)
    return [w.grad, v.grad]


def an_argument_that_is_captured(jit: Any) -> Any:
    p = ones(2)

    def f(a: Any) -> Any:
        a += 1.0
        return p * 1.0

    g = jit(f)
    q = ones(2)
    first = g(q)
    return [first, g(p), p, g(q), q]


def captured_first(jit: Any) -> Any:
    p = ones(2)

    def f(a: Any) -> Any:
        a += 1.0
        return p * 1.0

    g = jit(f)
    q = ones(2)
    return [g(p), p, g(q), q, p]


def an_argument_gathers_gradients(jit: Any) -> Any:
    g = jit(lambda w: (w * w).sum().backward())
    w = ones(3).requires_grad_()
    for _ in range(3):
        g(w)
    first = w.grad
    w.grad = None
    g(w)
    return [first, w.grad]


def starts_to_require_grad(jit: Any) -> Any:
    a = ones(3)
    b = a.detach()
    g = jit(lambda x: (x * a * b).sum())
    x = ones(3)
    g(x)
    b.requires_grad_()
    g(x).backward()
    return [b.grad]


def signed_zeros(jit: Any) -> Any:
    g = jit(lambda x, k: 1.0 / (x * k))
    x = ones(2)
    return [g(x, 0.0), g(x, -0.0)]


def a_measure_of_a_used_graph(jit: Any) -> Any:
    w = ones(3).requires_grad_()

    def f(x: Any) -> Any:
        w.grad = None
        loss = (x * w * w).mean()
        loss.backward()
        return loss.detach(), eg.exp(loss)

    g = jit(f)
    return [*g(ones(3)), *g(ones(3)), w.grad]


def a_function_that_knows_itself(jit: Any) -> Any:
    def f(x: Any) -> Any:
        def inner(n: int) -> Any:
            return y if n == 0 else inner(n - 1) * 2.0

        y = x + 1.0
        return inner(3)

    g = jit(f)
    return [g(ones(2)), g(ones(2)), g(ones(2))]


CASES: list[Case] = [
    returns_what_it_replaces,
    moves_round,
    given_twice,
    gradient_of_one_given_twice,
    an_argument_that_is_captured,
    captured_first,
    an_argument_gathers_gradients,
    starts_to_require_grad,
    signed_zeros,
    a_measure_of_a_used_graph,
    a_function_that_knows_itself,
]


def flat(found: Any) -> list[Any]:
    if isinstance(found, list | tuple):
        return [x for part in found for x in flat(part)]
    return [values(found)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_as_eager(case: Case) -> None:
    got, want = flat(case(eg.jit)), flat(case(lambda f: f))
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-6)


def test_jit_of_a_jitted_function_keeps_its_own_settings() -> None:
    inner = eg.jit(lambda x: x + 1.0)
    outer = eg.jit(inner, verify=True, fallback="eager")
    assert outer.verify
    assert outer.fallback == "eager"
    assert outer.entries is not inner.entries
    close(outer(ones(2)), ones(2) + 1.0, 0)
