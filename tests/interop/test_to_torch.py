"""`eg.to_torch`: functions of ours inside PyTorch's graphs, beside PyTorch's own."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.errors import ArgumentError

W = np.linspace(-1.0, 1.0, 12).reshape(4, 3)

# a function of ours, the same of PyTorch's, and shapes of the arguments
PAIRS = {
    "square": (lambda x: x * x, lambda x: x * x, [(3,)]),
    "exp": (eg.exp, torch.exp, [(2, 3)]),
    "matmul": (lambda x, w: eg.tanh(x @ w), lambda x, w: torch.tanh(x @ w), [(2, 4), (4, 3)]),
    "closure": (
        lambda x: eg.sin(x @ eg.tensor(W)),
        lambda x: torch.sin(x @ torch.tensor(W)),
        [(2, 4)],
    ),
    "softmax": (lambda x: eg.softmax(x, -1), lambda x: torch.softmax(x, -1), [(3, 4)]),
    "view": (lambda x: x.T * 1.0, lambda x: x.T * 1.0, [(3, 4)]),
    "jitted": (eg.jit(lambda x, y: eg.exp(x) * y), lambda x, y: torch.exp(x) * y, [(3,), (3,)]),
    "0-d": (lambda x: (x**3).sum(), lambda x: (x**3).sum(), [(4,)]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_derivatives_of_two_orders(name):
    mine, theirs, shapes = PAIRS[name]
    found = []
    for fn in (eg.to_torch(mine), theirs):
        torch.manual_seed(0)
        xs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
        out = fn(*xs)
        seed = torch.randn_like(out).requires_grad_()
        grads = torch.autograd.grad(out, xs, seed, create_graph=True)
        second = torch.autograd.grad(
            sum((g * g).sum() for g in grads), [*xs, seed], allow_unused=True
        )
        plain = torch.autograd.grad(fn(*xs), xs, seed.detach())
        found.append([out, *grads, *second, *plain])
    for got, want in zip(*found, strict=True):
        # an input that decides nothing: zeros from us, nothing from PyTorch
        want = torch.zeros_like(got) if want is None and got is not None else want
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_pytorchs_own_checks():
    f = eg.to_torch(lambda x, w: eg.tanh(x @ w).sum(-1))
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(f, (x, w))
    assert torch.autograd.gradgradcheck(f, (x, w))


def test_a_part_of_a_model_is_trained():
    first = torch.nn.Linear(4, 5)
    f = eg.to_torch(lambda x: eg.nn.functional.gelu(x))
    x = torch.randn(3, 4)
    f(first(x)).sum().backward()
    mine = first.weight.grad.clone()
    first.zero_grad()
    torch.nn.functional.gelu(first(x)).sum().backward()
    torch.testing.assert_close(mine, first.weight.grad, rtol=1e-5, atol=1e-6)


def test_containers_numbers_and_several_results():
    def fn(pair, scale, *, add):
        return {"a": pair["x"] * scale, "b": (pair["y"] + add, eg.argmax(pair["x"]))}

    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    out = eg.to_torch(fn)({"x": x, "y": y}, 2.0, add=1)
    torch.testing.assert_close(out["a"], x * 2)
    torch.testing.assert_close(out["b"][0], y + 1)
    assert out["b"][1].dtype == torch.int64
    assert out["b"][1].item() == int(x.argmax())
    assert out["a"].requires_grad
    assert not out["b"][1].requires_grad
    out["a"].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_inputs_are_shared():
    seen = []
    f = eg.to_torch(lambda x: (seen.append(x._data.ctypes.data), x + 1)[1])
    x = torch.randn(3)
    f(x)
    assert seen == [x.data_ptr()]


KEPT = eg.ones((3,))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x,
        lambda x: x.reshape(-1),
        lambda x: x[1:],
        lambda x: x.clone(),
        lambda x: KEPT,
        lambda x: KEPT[None],
        lambda x: eg.zeros((3,)),
        eg.jit(lambda x: x * 1.0),
        eg.jit(lambda x: eg.zeros((3,)) + 1.0),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_results_may_be_written(fn, training):
    f = eg.to_torch(fn)
    x = torch.randn(3, requires_grad=training)
    before = x.detach().clone()
    want = f(x).detach().clone()
    for _ in range(2):
        out = f(x)
        with torch.no_grad():
            out.fill_(9.0)
    assert torch.equal(x.detach(), before)
    assert KEPT.tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(f(x).detach(), want)


def test_large_results_are_not_copied():
    made = []

    def more(x):
        made.append(x + 1)
        return made[-1]

    f = eg.to_torch(more)
    x = torch.zeros(300, 300, requires_grad=True)
    out = f(x)
    assert out.data_ptr() == made[0]._data.ctypes.data


def test_what_was_written_before_backward_is_noticed():
    f = eg.to_torch(eg.exp)
    x = torch.randn(3, requires_grad=True)
    out = f(x)
    with torch.no_grad():
        out.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = f(x)
    with torch.no_grad():
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_nothing_is_left_behind():
    f = eg.to_torch(eg.exp)
    x = torch.randn(3, requires_grad=True)
    out = f(x)
    held = weakref.ref(out)
    out.sum().backward()
    del out
    gc.collect()
    assert held() is None


def test_bad_functions_are_refused():
    with pytest.raises(ArgumentError, match="to_torch: takes a function, got int"):
        eg.to_torch(3)
    with pytest.raises(ArgumentError, match="to_torch: the function returned a float"):
        eg.to_torch(lambda x: 1.0)(torch.ones(2))
