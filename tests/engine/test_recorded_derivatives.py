"""Derivatives of large arrays that are recorded as one op: of any order as by formula."""

from __future__ import annotations

import numpy as np
import pytest

import everygrad as eg
from everygrad.compiler.expr import Expr
from everygrad.core.context import fast_limit
from everygrad.ops.record.polynomials import derivative, evaluate, is_polynomial


def _orders(f, x):
    """Gradients of the first four orders, each of a nonlinear function of the one before."""
    x = x.detach().requires_grad_(True)
    (first,) = eg.autograd.grad((f(x) ** 2).sum(), x, create_graph=True)
    (second,) = eg.autograd.grad((first**2).sum(), x, create_graph=True)
    (third,) = eg.autograd.grad((second**2).sum(), x, create_graph=True)
    (third**2).sum().backward()
    return [t.detach().numpy() for t in (first, second, third, x.grad)]


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "silu", "exp", "square", "softplus"])
def test_large_as_small(name):
    rows = 8
    x = eg.tensor(np.random.default_rng(0).standard_normal((rows, fast_limit() // 4)))
    f = getattr(eg, name)
    large = _orders(f, x)
    small = [_orders(f, x[i]) for i in range(rows)]
    for k, got in enumerate(large):
        want = np.stack([s[k] for s in small])
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10 * np.abs(want).max())


def test_a_polynomial_is_recorded_as_one_op():
    x = eg.randn((2, fast_limit())).requires_grad_(True)
    (g,) = eg.autograd.grad(eg.tanh(x).sum(), x, create_graph=True)
    assert g._node.op.name == "tanh.d0"
    (small,) = eg.autograd.grad(eg.tanh(x[0, :9]).sum(), x, create_graph=True)
    assert small._node.op.name != "tanh.d0"


def test_derivatives_of_polynomials():
    rng = np.random.default_rng(1)
    x, y = Expr.inputs(2)
    for e in (x * y * y, -(x - y) * (1 - x * x), 2.0 * x + y - 3.0, x * 5.0 - y * x * y):
        assert is_polynomial(e)
        at = rng.standard_normal(2)
        for k in (0, 1):
            step = 1e-6 * np.eye(2)[k]
            want = (evaluate(e, at + step) - evaluate(e, at - step)) / 2e-6
            found = derivative(e, k, Expr("input", (), 2))
            assert abs(evaluate(found, (*at, 1.0)) - want) < 1e-7
    assert derivative(x * 2, 1, y) is None
    assert not is_polynomial(x / y)
