"""Gradients of results, given as arguments of a compiled function: each call uses its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import everygrad as eg

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": eg.gelu,
    "exp": eg.exp,
    "square": lambda x: x * x,
    "identity": lambda x: x.reshape(8),
    "cumsum": lambda x: eg.cumulative_sum(x),
    "softmax": eg.softmax,
    "product": lambda x: eg.eye(8) @ x,
}


def by_vjp(f: Any, g: eg.Tensor, x: eg.Tensor) -> eg.Tensor:
    return eg.vjp(f, x)[1](g)[0]


def by_grad(f: Any, g: eg.Tensor, x: eg.Tensor) -> eg.Tensor:
    place = x.detach()
    place.requires_grad = True
    return eg.autograd.grad(f(place), place, g)[0]


def by_backward(f: Any, g: eg.Tensor, x: eg.Tensor) -> eg.Tensor:
    place = x.detach()
    place.requires_grad = True
    f(place).backward(g)
    found: eg.Tensor = place.grad
    return found


@pytest.mark.parametrize("way", [by_vjp, by_grad, by_backward])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_seed_that_no_op_touched_is_an_argument(name: str, way: Any, device: str) -> None:
    f = FUNCTIONS[name]
    if name == "product":
        one = eg.eye(8, device=device)
        f = lambda x: one @ x  # noqa: E731
    compiled = eg.jit(lambda g, x: way(f, g, x))
    x = eg.linspace(-1.0, 1.0, 8, device=device)
    for factor in (1.0, 2.0, -3.0):
        g = eg.linspace(0.5, 1.5, 8, device=device) * factor
        assert eg.allclose(compiled(g, x), way(f, g, x), 1e-5, 1e-6)


def test_a_seed_from_outside_is_read_at_each_call(device: str) -> None:
    g = eg.ones((8,), device=device)
    x = eg.linspace(-1.0, 1.0, 8, device=device)
    compiled = eg.jit(lambda x: by_vjp(eg.gelu, g, x))
    first = compiled(x)
    g *= 2.0
    assert eg.allclose(compiled(x), first * 2, 1e-5, 1e-6)
