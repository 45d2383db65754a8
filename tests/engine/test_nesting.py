"""Transformations inside transformations: every pair and triple gives the derivative it names.

All of them are taken of f(t) = t**3 element by element, so that each has a closed form.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg

V = np.array([1.0, 2.0])
E = eg.ones((2,), dtype="float64")
SECOND = np.zeros((2, 2, 2))
SECOND[0, 0, 0], SECOND[1, 1, 1] = 6 * V


def cube(t: Any) -> Any:
    return t**3


def slope(f: Callable[..., Any]) -> Callable[..., Any]:
    """The derivative along a direction of ones, by forward mode."""
    return lambda t: eg.jvp(f, (t,), (eg.ones_like(t),))[1]


def pull_rows(t: Any) -> Any:
    """The Jacobian by one pull function that a vmap calls."""
    _, pull = eg.vjp(cube, t)
    return eg.vmap(lambda s: pull(s)[0])(eg.eye(2, dtype="float64"))


def pull_slope(t: Any) -> Any:
    """A pull function inside forward mode, along another direction."""
    _, pull = eg.vjp(cube, t)
    return slope(lambda s: pull(s)[0])(E)


J, JF = eg.jacobian(cube), eg.jacfwd(cube)
TOTAL = eg.hessian(lambda t: (t**3).sum())
PAIRS = {
    "jvp(jacobian)": (slope(J), np.diag(6 * V)),
    "jvp(jacfwd)": (slope(JF), np.diag(6 * V)),
    "jacobian(jacobian)": (eg.jacobian(J), SECOND),
    "jacobian(jacfwd)": (eg.jacobian(JF), SECOND),
    "jacfwd(jacobian)": (eg.jacfwd(J), SECOND),
    "jacfwd(jacfwd)": (eg.jacfwd(JF), SECOND),
    "grad(jacobian)": (eg.grad(lambda t: J(t).sum()), 6 * V),
    "grad(jacfwd)": (eg.grad(lambda t: JF(t).sum()), 6 * V),
    "grad(jvp)": (eg.grad(lambda t: slope(cube)(t).sum()), 6 * V),
    "jvp(grad)": (slope(eg.grad(lambda t: cube(t).sum())), 6 * V),
    "jvp(pull in vmap)": (slope(pull_rows), np.diag(6 * V)),
    "jvp(pull in jvp)": (slope(pull_slope), 6 * V),
    "jvp(hessian)": (slope(TOTAL), 6 * np.eye(2)),
    "grad(hessian)": (eg.grad(lambda t: TOTAL(t).sum()), np.full(2, 6.0)),
    "jvp(jvp(jvp))": (slope(slope(slope(cube))), np.full(2, 6.0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_nested(name: str) -> None:
    f, expected = PAIRS[name]
    np.testing.assert_allclose(np.asarray(f(eg.tensor(V))), expected, atol=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_nested_inside_vmap(name: str) -> None:
    f, _ = PAIRS[name]
    points = eg.tensor(np.stack([V, 2 * V, -V]))
    together = np.asarray(eg.vmap(f)(points))
    one_by_one = np.stack([np.asarray(f(points[i])) for i in range(3)])
    np.testing.assert_allclose(together, one_by_one, atol=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_nested_reaches_a_captured_tensor(name: str) -> None:
    """The function of t and a scale w captured from outside: w gets the derivative too."""
    f, _ = PAIRS[name]
    w = eg.tensor(1.0, dtype="float64", requires_grad=True)
    # f is linear in its function; scaling the input by w makes d/dw a chain rule through all levels
    f(eg.tensor(V) * w).sum().backward()
    step = 1e-6
    up, down = (np.asarray(f(eg.tensor(V) * s)).sum() for s in (1 + step, 1 - step))
    assert w.grad is not None
    assert w.grad.item() == pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-6)
