"""differentiable=True: gradients flow through a step, to parameters, gradients and learning rates;
equal to PyTorch's where it has the switch, and to differences for every optimiser."""

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import nn, optim
from everygrad.errors import ArgumentError, GradientError
from tests.nn.test_optimizers_table import IDS, ONE_EACH, ROUNDED, ROWS, made, shapes_of

table = pytest.mark.parametrize(("name", "settings"), ROWS, ids=IDS)
each = pytest.mark.parametrize(("name", "settings"), ONE_EACH, ids=[name for name, _ in ONE_EACH])


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)  # what PyTorch counts its steps in
    yield
    torch.set_default_dtype(torch.float32)


def values(name: str, count: int) -> list[list[Any]]:
    rng = np.random.default_rng(11)
    return [[np.asarray(rng.standard_normal(s)) for s in shapes_of(name)] for _ in range(count)]


def meta_gradients(leaf: Any, make: Any, given: list[list[Any]], steps: int) -> list[Any]:
    """The gradients of a function of the parameters after some steps: of where they began, and of
    what their gradients were made of."""
    starts, weights, *rows = [[leaf(a) for a in row] for row in given]
    params = [w.clone() for w in starts]
    opt = make(params)
    for row in rows[:steps]:
        for p, g, w in zip(params, row, starts, strict=True):
            p.grad = g * (w * w + 1.0)  # PyTorch overwrites p itself
        opt.step()
    sum(((p * w) ** 2).sum() for p, w in zip(params, weights, strict=True)).backward()
    used = [t for row in rows[:steps] for t in row]
    return [t.grad.numpy() for t in [*starts, *used]]


def has_switch(name: str) -> bool:
    found = getattr(torch.optim, name, None)
    return found is not None and "differentiable" in inspect.signature(found).parameters


TORCH_ROWS = [(n, s) for n, s in ROWS if has_switch(n) and not (n == "SGD" and "momentum" in s)]


@pytest.mark.parametrize(("name", "settings"), TORCH_ROWS)
def test_gradients_through_a_step_are_pytorchs(name: str, settings: dict[str, Any]) -> None:
    """One step: PyTorch overwrites what a second one would need. (Of a first momentum of SGD's it
    takes no derivative at all: see the differences below.)"""
    given = values(name, 3)
    more = {**settings, "differentiable": True}
    ours = meta_gradients(
        lambda a: eg.tensor(a).requires_grad_(), lambda ps: made(name, ps, more), given, 1
    )
    theirs = meta_gradients(
        lambda a: torch.tensor(a, requires_grad=True),
        lambda ps: getattr(torch.optim, name)(ps, **more),
        given,
        1,
    )
    assert len(ours) == len(theirs) == 2 * len(given[0])
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


@table
def test_gradients_through_steps_are_those_of_differences(
    name: str, settings: dict[str, Any]
) -> None:
    starts, *rows = [row[:2] for row in values(name, 3)]
    rate = np.array(settings.get("lr", 0.01))
    steps = 1 if name in ROUNDED else 2  # bytes jump: differences across a later step see that

    def stepped(lr: eg.Tensor, *given: eg.Tensor) -> tuple[eg.Tensor, ...]:
        params = [t.clone() for t in given[: len(starts)]]
        more = {**settings, "lr": lr, "differentiable": True}
        opt = made(name, params, more)
        for i in range(steps):
            row = given[len(starts) * (i + 1) :]
            for p, g in zip(params, row, strict=False):
                p.grad = g * (p * p + 1.0)
            opt.step()
        return tuple(params)

    leaves = [
        eg.tensor(a).requires_grad_() for a in (rate, *starts, *(a for row in rows for a in row))
    ]
    assert eg.gradcheck(stepped, leaves, atol=1e-5, rtol=1e-4)


def loss_of(lib: Any, x: Any, y: Any, weights: list[Any]) -> Any:
    return ((lib.tanh(x @ weights[0]) @ weights[1] - y) ** 2).mean()


def inner_adam(meta: list[Any], x: Any, y: Any, steps: int) -> Any:
    """PyTorch's gradients through Adam by its formulas: its own steps overwrite what a second
    derivative needs."""
    weights = list(meta)
    m: list[Any] = [0.0 for _ in meta]
    v: list[Any] = [0.0 for _ in meta]
    for t in range(1, steps + 1):
        grads = torch.autograd.grad(loss_of(torch, x, y, weights), weights, create_graph=True)
        for k, g in enumerate(grads):
            m[k] = 0.9 * m[k] + 0.1 * g
            v[k] = 0.999 * v[k] + 0.001 * g * g
            root = (v[k] / (1 - 0.999**t)).sqrt() + 1e-8
            weights[k] = weights[k] - 0.1 * m[k] / (1 - 0.9**t) / root
    return loss_of(torch, x, y, weights)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_beginning_is_learnt_through_inner_steps(compiled: bool) -> None:
    rng = np.random.default_rng(5)
    start = [rng.standard_normal((3, 4)), rng.standard_normal((4, 2))]
    x, y = rng.standard_normal((6, 3)), rng.standard_normal((6, 2))
    theirs = [torch.tensor(a, requires_grad=True) for a in start]
    inner_adam(theirs, torch.tensor(x), torch.tensor(y), 3).backward()
    meta = [eg.tensor(a).requires_grad_() for a in start]

    def outer(x: eg.Tensor, y: eg.Tensor) -> eg.Tensor:
        for w in meta:
            w.grad = None
        weights = [w.clone() for w in meta]
        opt = optim.Adam(weights, lr=0.1, differentiable=True)
        for _ in range(3):
            grads = eg.autograd.grad(loss_of(eg, x, y, weights), weights, create_graph=True)
            for p, g in zip(weights, grads, strict=True):
                p.grad = g
            opt.step()
        loss: eg.Tensor = loss_of(eg, x, y, weights)
        loss.backward()
        return loss

    run = eg.jit(outer) if compiled else outer
    for _ in range(2):
        run(eg.tensor(x), eg.tensor(y))
        for w, t in zip(meta, theirs, strict=True):
            assert w.grad is not None
            want: Any = t.grad
            np.testing.assert_allclose(w.grad.numpy(), want.numpy(), rtol=1e-7, atol=1e-9)
            assert w.is_leaf


@each
def test_a_recorded_step_is_the_plain_one(name: str, settings: dict[str, Any], device: str) -> None:
    starts, *rows = values(name, 4)
    kind: dict[str, Any] = {"dtype": "float32", "device": device}
    plain = [eg.tensor(a, **kind).requires_grad_() for a in starts]
    leaves = [eg.tensor(a, **kind).requires_grad_() for a in starts]
    recorded = [t.clone() for t in leaves]
    opts = [
        getattr(optim, name)(plain, **settings),
        getattr(optim, name)(recorded, **settings, differentiable=True),
    ]
    for row in rows:
        for params in (plain, recorded):
            for p, g in zip(params, row, strict=True):
                p.grad = eg.tensor(g, **kind)
        for opt in opts:
            opt.step()
    for p, q in zip(plain, recorded, strict=True):
        assert p.is_leaf
        assert not q.is_leaf
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=2e-3, atol=1e-4)
    total: Any = sum(q.sum() for q in recorded)
    total.backward()
    assert all(t.grad is not None and t.grad.device == t.device for t in leaves)


def test_what_cannot_be_recorded_is_refused() -> None:
    p = eg.ones((2,), requires_grad=True)
    p.grad = eg.ones((2,))
    opt = optim.SGD([p], lr=0.5, differentiable=True)
    with pytest.raises(GradientError, match=r"it is a leaf.*give the optimiser p.clone\(\)"):
        opt.step()
    assert p.tolist() == [1.0, 1.0]
    with pytest.raises(GradientError, match="or anything with differentiable=True"):
        optim.SGD([p.clone()])
    q = p.clone()
    q.grad = eg.ones((2,))
    opt = optim.SGD([{"params": [q], "differentiable": True}], lr=0.5)
    with pytest.raises(ArgumentError, match="takes no found_inf"):
        opt.step(found_inf=eg.tensor(False))
    opt.step(grad_scale=eg.tensor(2.0))
    assert q.tolist() == [0.75, 0.75]
    with pytest.raises(ArgumentError, match="LBFGS: differentiable=True: its line search"):
        optim.LBFGS([p], differentiable=True)


def test_groups_choose_for_themselves() -> None:
    w, b = eg.ones((2,), requires_grad=True), eg.ones((2,), requires_grad=True)
    moving = w.clone()
    opt = optim.Adam([{"params": [moving], "differentiable": True}, {"params": [b]}], lr=0.5)
    for p in (moving, b):
        p.grad = eg.ones((2,))
    opt.step()
    assert b.is_leaf
    (moving * b).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == b.tolist()
    saved = opt.state_dict()
    assert not saved["state"][0]["exp_avg"].requires_grad
    model = nn.Linear(2, 1)
    with pytest.raises(GradientError, match="or anything with differentiable=True"):
        optim.Adam([model.weight * 2])
