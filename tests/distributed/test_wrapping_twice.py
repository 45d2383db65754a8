"""Wrappers around wrappers, on other axes of a mesh, and around modules that have one already."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn, optim
from everygrad.errors import ArgumentError
from everygrad.nn import functional as F

RNG = np.random.default_rng(2)
X, Y = RNG.standard_normal((8, 6)), RNG.standard_normal((8, 4))
STEPS = 4
AROUND = [(0, 0), (0, 3), (1, 0), (2, 0)]  # levels of the outer wrapper and the inner one


def net() -> nn.Module:
    eg.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 4)).double()


def wrapped(module: nn.Module, mesh: dist.Mesh, axis: str, level: int, size: int = 2**20) -> Any:
    if level == 0:
        return dist.DataParallel(module, mesh, axis, bucket_bytes=size)
    return dist.shard(module, mesh, axis, level, size)


def trained(model: Any, rows: slice, jit: bool, mesh: dist.Mesh) -> list[float]:
    opt = optim.AdamW(model.parameters(), lr=0.05)
    eg.manual_seed(11)

    def step(x: eg.Tensor, y: eg.Tensor) -> eg.Tensor:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        opt.step()
        return dist.all_reduce(loss.detach(), mesh, None, "mean")

    run = eg.jit(step) if jit else step
    return [run(eg.tensor(X[rows]), eg.tensor(Y[rows])).item() for _ in range(STEPS)]


@pytest.mark.parametrize("size", [1, 2**20])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(("outer", "inner"), AROUND)
def test_two_axes_share_a_batch(outer: int, inner: int, jit: bool, size: int) -> None:
    """Losses and masks are those of one process; the last axis has neighbouring rows."""

    def run() -> list[float]:
        mesh = dist.Mesh({"a": 2, "b": 2})
        model = wrapped(wrapped(net(), mesh, "b", inner, size), mesh, "a", outer, size)
        return trained(model, slice(2 * dist.rank(), 2 * dist.rank() + 2), jit, mesh)

    want = trained(net(), slice(None), jit, dist.Mesh({"a": 1}))
    for found in dist.run_local(run, 4):
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("outer", "inner"), [pair for pair in product(range(4), repeat=2) if pair not in AROUND]
)
def test_others_are_refused_before_anything_is_done(outer: int, inner: int) -> None:
    def run() -> list[float]:
        mesh = dist.Mesh({"a": 2, "b": 2})
        model = wrapped(net(), mesh, "b", inner)
        with pytest.raises(ArgumentError, match=r"which .* does not go around; ZeRO 3 goes inside"):
            wrapped(model, mesh, "a", outer)
        with pytest.raises(ArgumentError, match="along 'b' already; wrap it once"):
            wrapped(nn.Sequential(model), mesh, "b", outer)
        rows = slice(4 * mesh.coordinate("b"), 4 * mesh.coordinate("b") + 4)
        return trained(model, rows, False, mesh)

    want = trained(net(), slice(None), False, dist.Mesh({"a": 1}))
    for found in dist.run_local(run, 4):
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_module_may_be_wrapped_anew(level: int) -> None:
    """The new wrapper has the gradients, and the one before says so."""

    def run() -> list[float]:
        mesh = dist.Mesh({"a": 2})
        module = net()
        before = wrapped(module, mesh, "a", level)
        module.append(nn.Identity())
        model = wrapped(module, mesh, "a", level)
        with pytest.raises(ArgumentError, match=r"0.weight, .* was wrapped again since"):
            before(eg.tensor(X[:4]))
        return trained(model, slice(4 * dist.rank(), 4 * dist.rank() + 4), False, mesh)

    want = trained(net(), slice(None), False, dist.Mesh({"a": 1}))
    for found in dist.run_local(run, 2):
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)
