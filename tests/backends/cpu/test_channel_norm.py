"""Batch norm by kernels over channels, beside PyTorch and beside its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.backends.cpu.fused.row_loops import GRAIN
from everygrad.nn import functional as F
from everygrad.ops.nn import normalisation

# few channels and many, a channel shorter and longer than a task, one place
SHAPES = [(4, 3, 5), (2, 1, 7, 3), (3, 70, 2, 2), (9, 5, 1), (2, 3, GRAIN), (2, 5, 2, 3, 2)]


def _given(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x, g = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    weight, bias = (rng.standard_normal(shape[1]).astype(dtype) for _ in range(2))
    return x + 3, g, weight, bias


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_as_in_pytorch(shape, dtype):
    x, g, weight, bias = _given(shape, dtype)
    found = []
    for lib, norm in ((eg, F.batch_norm), (torch, torch.nn.functional.batch_norm)):
        given = [lib.tensor(a, requires_grad=True) for a in (x, weight, bias)]
        mean, var = lib.asarray(np.zeros(shape[1], dtype)), lib.asarray(np.ones(shape[1], dtype))
        y = norm(given[0], mean, var, *given[1:], True)
        if lib is eg:
            assert y._node.op.name == "channel_norm"
        (y * lib.asarray(g)).sum().backward()
        found.append([t.detach().numpy() for t in (y, mean, var, *(p.grad for p in given))])
    eps = 300 * np.finfo(dtype).eps
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=eps, atol=eps * np.abs(theirs).max())


def test_without_weights_and_with_a_broadcast_gradient():
    x = eg.tensor(_given((3, 4, 5), np.float64)[0], requires_grad=True)
    y = F.batch_norm(x, None, None, training=True)
    assert y._node.op.name == "channel_norm"
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 0, atol=1e-12)
    np.testing.assert_allclose(y.detach().numpy().mean(axis=(0, 2)), 0, atol=1e-12)


def test_halves_and_empty_images_keep_the_definition():
    x = eg.tensor(_given((3, 4, 5), np.float16)[0], requires_grad=True)
    weight = eg.ones((4,), requires_grad=True)
    assert F.batch_norm(x, None, None, weight, training=True)._node.op.name != "channel_norm"


@pytest.mark.parametrize("which", ["gradient", "hessian", "forward", "vmap", "jit", "checkpoint"])
def test_transformed_as_its_definition_is(which, monkeypatch):
    x, g, weight, bias = (eg.tensor(a) for a in _given((3, 2, 4), np.float64))

    def loss(x, weight, bias):
        return (F.batch_norm(x, None, None, weight, bias, True) ** 3 * g).sum()

    def found():
        given = (x, weight, bias)
        if which == "gradient":
            return eg.grad(loss, argnums=(0, 1, 2))(*given)
        if which == "hessian":
            return (eg.grad(lambda *t: sum((d * d).sum() for d in eg.grad(loss, argnums=(0, 1, 2))(*t)))(*given),)  # noqa: E501  # fmt: skip
        if which == "forward":
            return eg.jvp(loss, given, (g, weight, bias))
        if which == "vmap":
            return (eg.vmap(eg.grad(loss), in_axes=(0, None, None))(eg.stack([x, x + g]), weight, bias),)  # noqa: E501  # fmt: skip
        if which == "jit":
            return eg.jit(eg.grad(loss, argnums=(0, 1, 2)))(*given)
        return eg.grad(lambda *t: eg.checkpoint(loss, *t), argnums=(0, 1, 2))(*given)

    ours = found()
    monkeypatch.setattr(normalisation, "serves", lambda *_: False)
    for a, b in zip(ours, found(), strict=True):
        a, b = a.detach().numpy(), b.detach().numpy()
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
