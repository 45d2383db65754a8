"""What a PyTorch user meets: names that are others here, habits that work, and the words said
where one does not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import nn, optim
from everygrad.core.torch_names import FUNCTIONS, METHODS
from everygrad.errors import ArgumentError, DtypeError, FunctionError, GradientError, ShapeError
from everygrad.nn import functional as F

pytestmark = pytest.mark.needs("float64")

# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_named(name: str) -> None:
    assert name not in eg.__all__
    with pytest.raises(AttributeError, match=f"everygrad has no '{name}'; in place of PyTorch's"):
        getattr(eg, name)


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_named(name: str) -> None:
    assert not hasattr(eg.Tensor, name)
    with pytest.raises(AttributeError, match=f"Tensor has no '{name}'; in place of PyTorch's"):
        getattr(eg.ones(2), name)


def test_cures_are_there() -> None:
    """Every name that a cure begins with is one of everygrad's."""
    checked = 0
    for names in (FUNCTIONS, METHODS):
        for name, cure in names.items():
            found = re.match(r"(?:x\.|eg\.)?((?:linalg|special)\.)?([A-Za-z0-9_]+)(?=[(,]|$)", cure)
            if found is None:  # a sentence, or an expression
                continue
            part, word = found.groups()
            places = [getattr(eg, part[:-1])] if part else [eg, eg.Tensor]
            assert any(hasattr(p, word) for p in places) or word == "isinstance", (name, cure)
            checked += 1
    assert checked > len(METHODS) / 2


def test_other_names_stay_unknown() -> None:
    for thing, message in (
        (eg.ones(2), "'Tensor' object has no attribute 'vieww'$"),
        (eg, "everygrad has no 'vieww'$"),
    ):
        with pytest.raises(AttributeError, match=message):
            _ = thing.vieww
    with pytest.raises(AttributeError, match=r"in place: write x = x\.relu\(\.\.\.\), or x \+= y"):
        _ = eg.ones(2).relu_
    assert eg.ones(2).grad is None


# --- habits --------------------------------------------------------------------------------------


def test_leaves_are_made_at_once(device: str) -> None:
    x = eg.ones((2,), device=device)
    made = [
        *(f((2,), device=device, requires_grad=True) for f in (eg.rand, eg.randn, eg.zeros)),
        *(f(x, requires_grad=True) for f in (eg.rand_like, eg.randn_like, eg.zeros_like)),
        *(f(x, requires_grad=True) for f in (eg.ones_like, eg.empty_like)),
        eg.full((2,), x[0], requires_grad=True),
        eg.full_like(x, 3.0, requires_grad=True),
        eg.arange(2.0, device=device, requires_grad=True),
        eg.linspace(0, 1, 2, device=device, requires_grad=True),
    ]
    for leaf in made:
        assert leaf.shape == (2,)
        assert leaf.device == x.device
        (leaf * 3.0).sum().backward()
        assert leaf.grad.tolist() == [3.0, 3.0]
    assert eg.eye(2, requires_grad=True).requires_grad
    with pytest.raises(DtypeError, match="only floating and complex tensors have derivatives"):
        eg.arange(2, requires_grad=True)


def test_sizes_and_axes_as_numbers() -> None:
    x = eg.randn((2, 1, 3))
    assert x.expand(-1, 4, -1).shape == x.expand((5, 2, 4, 3))[0].shape == (2, 4, 3)
    assert x.permute_dims(2, 0, 1).shape == eg.permute_dims(x, (2, 0, 1)).shape == (3, 2, 1)
    assert x.squeeze().shape == (2, 3)
    assert eg.ones(()).permute_dims().shape == ()
    with pytest.raises(ShapeError, match=r"expand: -1 at 0 of \(-1, 2, 1, 3\) is no axis of"):
        x.expand(-1, 2, 1, 3)
    made = [f(2, 3, dtype=eg.float64) for f in (eg.zeros, eg.ones, eg.empty, eg.rand, eg.randn)]
    assert {(t.shape, t.dtype) for t in made} == {((2, 3), eg.float64)}
    assert eg.zeros((2, 3), eg.int64, "cpu").dtype is eg.ones(size=(2,), dtype=eg.int64).dtype
    with pytest.raises(TypeError, match=r"zeros\(\) got an unexpected keyword argument 'shap'"):
        eg.zeros(2, 3, shap=3)


def test_moving_as_another_tensor() -> None:
    x = eg.ones(2).to(eg.zeros(1, dtype=eg.float64))
    assert x.dtype is eg.float64
    assert x.to("cpu", non_blocking=True).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["gather", "index_select", "scatter"])
def test_an_index_alone_is_a_tensor(name: str) -> None:
    x = eg.ones((2, 2))
    with pytest.raises(DtypeError, match=rf"comes before the axis: {name}\(x, index"):
        getattr(x, name)(0, *((1.0,) if name == "scatter" else ()))


def test_functions_without_a_context() -> None:
    with pytest.raises(FunctionError, match=r"Exp: defines PyTorch's backward\(ctx, g\); here"):

        class Exp(eg.Function):
            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g


# --- a choice with derivatives -------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, -1])
def test_gumbel_softmax(device: str, axis: int) -> None:
    shares = eg.tensor([0.2, 0.3, 0.5], device=device)
    logits = eg.log(shares).expand(4000, 3)
    logits = logits if axis else logits.mT
    eg.manual_seed(3)
    for call in (lambda f: f, eg.jit):
        chosen = call(lambda x: eg.gumbel_softmax(x, hard=True, axis=axis))(logits)
        assert set(chosen.reshape(-1).tolist()) == {0.0, 1.0}
        np.testing.assert_array_equal(chosen.sum(axis=axis).numpy(), 1.0)
        found = chosen.mean(axis=1 + axis if axis else 1).numpy()
        np.testing.assert_allclose(found, shares.numpy(), atol=0.03)


def test_the_derivative_of_a_hard_choice_is_that_of_the_soft_one() -> None:
    grads = []
    for hard in (False, True):
        x = eg.tensor([[0.3, -1.0, 0.5]], requires_grad=True)
        out = eg.gumbel_softmax(x, tau=0.7, hard=hard, generator=eg.Generator(5))
        (out * eg.arange(3.0)).sum().backward()
        grads.append(x.grad.numpy())
    np.testing.assert_array_equal(*grads)
    assert np.abs(grads[0]).max() > 0.01
    with pytest.raises(ArgumentError, match="gumbel_softmax: tau must be positive, got 0"):
        eg.gumbel_softmax(eg.zeros(3), tau=0)
    with pytest.raises(DtypeError, match="gumbel_softmax: does not take int64"):
        eg.gumbel_softmax(eg.arange(3))


# --- gradients between backward and step ---------------------------------------------------------


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("kind", [2.0, 1.0, 3.5, math.inf])
@pytest.mark.parametrize("limit", [0.5, 1e3])
def test_clipping_norms(kind: float, limit: float, jitted: bool) -> None:
    """As PyTorch does it: what it returns, and what it leaves in the gradients."""
    grads = [np.array([[3.0, -4.0], [0.5, 0.0]]), np.array(2.0), np.zeros((0, 2)), None]
    own = [nn.Parameter(eg.zeros(np.shape(g), dtype=eg.float64)) for g in grads]
    theirs = [torch.nn.Parameter(torch.zeros(np.shape(g), dtype=torch.float64)) for g in grads]
    if math.isinf(kind):  # of nothing there is no largest
        own, theirs, grads = own[:2], theirs[:2], grads[:2]
    for p, q, g in zip(own, theirs, grads, strict=True):
        p.grad = None if g is None else eg.asarray(g)
        q.grad = None if g is None else torch.tensor(g)
    clip = lambda: nn.utils.clip_grad_norm_(own, limit, kind)  # noqa: E731
    total = (eg.jit(clip) if jitted else clip)()
    want = torch.nn.utils.clip_grad_norm_(theirs, limit, kind)
    np.testing.assert_allclose(total.numpy(), want.numpy(), rtol=1e-12)
    for p, q in zip(own, theirs, strict=True):
        assert (p.grad is None) is (q.grad is None)
        if p.grad is not None:
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-12)


def test_clipping_values() -> None:
    p = nn.Parameter(eg.zeros(3))
    p.grad = eg.tensor([-3.0, 0.5, 7.0])
    nn.utils.clip_grad_value_([p, nn.Parameter(eg.zeros(1))], 1.0)
    assert p.grad.tolist() == [-1.0, 0.5, 1.0]
    assert nn.utils.clip_grad_norm_([], 1.0).item() == 0.0
    p.grad = eg.tensor([-3.0, math.inf, 7.0])
    with pytest.raises(GradientError, match="the norm of the gradients is inf; look for its"):
        nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    assert p.grad.tolist() == [-3.0, math.inf, 7.0]
    for call in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
        with pytest.raises(ArgumentError, match=r"not .*negative, got -1"):
            call(p, -1)


# --- whole steps, eager and compiled -------------------------------------------------------------


def the_same(make: Callable[[], Callable[..., Any]], *calls: tuple[Any, ...]) -> None:
    """Steps on fresh parameters give the same numbers, call by call, compiled or not."""
    runs = []
    for compile_ in (lambda f: f, eg.jit):
        eg.manual_seed(1)
        step = compile_(make())
        runs.append([[t.detach().numpy() for t in step(*args)] for args in calls])
    for eager, jitted in zip(*runs, strict=True):
        for a, b in zip(eager, jitted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_gradients_given_as_arguments() -> None:
    """`p.grad = g` inside a compiled step: of each call its own, to one parameter or several."""
    outside = eg.full((3,), 5.0)

    def make() -> Callable[..., Any]:
        a, b, c = (nn.Parameter(eg.ones(3)) for _ in range(3))
        opt = optim.SGD([a, b, c], lr=0.1, momentum=0.9)

        def step(g: Any) -> Any:
            a.grad = g
            b.grad = g
            (b * 2.0).sum().backward()
            c.grad = outside
            opt.step()
            return a * 1.0, b * 1.0, c * 1.0, a.grad, b.grad, c.grad

        return step

    given = [eg.full((3,), v) for v in (1.0, 2.0, 2.0, -3.0)]
    the_same(make, *((g,) for g in given))
    assert [g[0].item() for g in given] == [1.0, 2.0, 2.0, -3.0]


def test_a_gradient_given_outlives_the_step() -> None:
    p = nn.Parameter(eg.ones(2))

    @eg.jit
    def keep(g: Any) -> None:
        p.grad = g

    for v in (1.0, 2.0, 3.0):
        keep(eg.full((2,), v))
        assert p.grad is not None
        assert p.grad.tolist() == [v, v]
    keep(p.grad)
    assert p.grad.tolist() == [3.0, 3.0]
    source = eg.ones(2, requires_grad=True)
    made = source * 2.0  # a result of ops outside

    @eg.jit
    def keep_outer() -> None:
        p.grad = made

    with pytest.raises(eg.errors.TraceError, match="result of ops recorded outside the function"):
        keep_outer()
    assert p.grad.tolist() == [3.0, 3.0]
    assert made.tolist() == [2.0, 2.0]


def test_two_optimisers() -> None:
    def make() -> Callable[..., Any]:
        maker = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        judge = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        ours, theirs = (optim.AdamW(m.parameters(), lr=1e-3) for m in (maker, judge))
        loss = nn.BCEWithLogitsLoss()

        def step(real: Any) -> Any:
            fake = maker(eg.randn((4, 3)))
            theirs.zero_grad()
            seen = loss(judge(real), eg.ones((4, 1))) + loss(judge(fake.detach()), eg.zeros((4, 1)))
            seen.backward()
            theirs.step()
            ours.zero_grad()
            fooled = loss(judge(fake), eg.ones((4, 1)))
            fooled.backward()
            ours.step()
            return seen, fooled

        return step

    the_same(make, *[(eg.randn((4, 2)),)] * 3)


def test_a_sampled_code() -> None:
    def make() -> Callable[..., Any]:
        encoder, decoder = nn.Linear(6, 4), nn.Linear(2, 6)
        opt = optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=1e-2)

        def step(x: Any) -> Any:
            mean, logvar = encoder(x).chunk(2, axis=1)
            code = mean + (0.5 * logvar).exp() * eg.randn_like(mean)
            again = F.binary_cross_entropy_with_logits(decoder(code), x, reduction="sum")
            loss = again - 0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum()
            opt.zero_grad()
            loss.backward()
            for p in decoder.parameters():
                p.grad *= eg.clamp(0.1 / (p.grad.norm() + 1e-6), max=1.0)
            opt.step()
            return (loss,)

        return step

    the_same(make, *[(eg.rand((5, 6)),)] * 3)
