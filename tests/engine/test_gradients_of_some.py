"""Gradients of some inputs alone: what leads nowhere is not computed, and changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import base
from everygrad.errors import GradientError


def leaf(given: Any) -> Any:
    return eg.tensor(given, dtype="float64", requires_grad=True)


def values(x: Any) -> Any:
    return x.detach().numpy()


_TWO = {
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / (y * y + 1),
    "matmul": lambda x, y: x @ y,
    "linear": eg.nn.functional.linear,
    "linear_bias": lambda x, y: eg.nn.functional.linear(x, y, y[0]),
    "solve": lambda x, y: eg.linalg.solve(x @ x.mT + eg.eye(3, dtype="float64"), y),
    "concat": lambda x, y: eg.concat([x, y]) ** 2,
    "where": lambda x, y: eg.where(x > 0, x * y, y),
    "layer_norm": lambda x, y: eg.layer_norm(x, (3,), y[0], y[1]),
}


@pytest.mark.parametrize("name", _TWO)
def test_a_gradient_does_not_depend_on_what_else_is_asked(name: str) -> None:
    """Of any of the inputs, and derived again by all of them."""
    rng = np.random.default_rng(3)
    x, y = leaf(rng.standard_normal((3, 3))), leaf(rng.standard_normal((3, 3)))
    out = (_TWO[name](x, y) ** 2).sum()
    both = eg.autograd.grad(out, [x, y], retain_graph=True, create_graph=True)
    for t, expected in zip((x, y), both, strict=True):
        (one,) = eg.autograd.grad(out, [t], retain_graph=True, create_graph=True)
        (plain,) = eg.autograd.grad(out, [t], retain_graph=True)
        np.testing.assert_array_equal(values(one), values(expected))
        np.testing.assert_allclose(values(plain), values(expected), rtol=1e-12, atol=1e-12)
        again = eg.autograd.grad((one * one).sum(), [x, y], retain_graph=True)
        wanted = eg.autograd.grad((expected * expected).sum(), [x, y], retain_graph=True)
        for a, b in zip(again, wanted, strict=True):
            np.testing.assert_allclose(values(a), values(b), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_that_leads_nowhere_is_not_computed(
    create_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, b = leaf(np.ones((2, 3))), leaf(np.ones((4, 3))), leaf(np.ones(4))
    out = eg.tanh(eg.nn.functional.linear(x, w, b)).sum()

    def refused(*given: Any) -> Any:
        raise AssertionError("the weight's gradient was computed")

    monkeypatch.setitem(base.get("cpu").kernels, "linear_weight", refused)
    (g,) = eg.autograd.grad(out, [x], retain_graph=True, create_graph=create_graph)
    assert g.shape == (2, 3)
    with pytest.raises(GradientError, match="the weight's gradient was computed"):
        eg.autograd.grad(out, [x, w])


def test_hooks_see_gradients_that_lead_nowhere() -> None:
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    doubled, seen = y * 2, []
    doubled.register_hook(lambda g: seen.append(values(g).tolist()))
    eg.autograd.grad((x * doubled).sum(), [x])
    assert seen == [[1.0, 2.0]]
