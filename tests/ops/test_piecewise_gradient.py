"""A tensor read in pieces (slices, takes, gathers): its gradient is put together once, whatever the
pieces are, by every way to compute it, and equal to NumPy's sum of all of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.core.scopes import intercepting
from everygrad.ops.shape import piecewise_gradient

SHAPES = [(6,), (5, 4), (3, 4, 5), (7, 1, 2), (40, 3)]


def drawn_slice(draw: random.Random, n: int) -> Any:
    kind = draw.randrange(6)
    if kind == 0:
        return draw.randrange(n)
    if kind == 1:
        return slice(None)
    if kind == 2:
        return slice(None, None, draw.choice([-1, 2, 3]))
    first = draw.randrange(n)
    return slice(first, draw.randrange(first, n) + 1)


def drawn_reads(seed: int, shape: tuple[int, ...]) -> list[Any]:
    """Functions of x that read a piece: (of a tensor or an array, weights for its elements)."""
    draw = random.Random(seed)
    reads: list[tuple[str, Any]] = []
    style = draw.choice(["row", "window", "any"])
    axis = draw.randrange(len(shape))
    for k in range(draw.choice([1, 2, 3, 9, 30])):
        n = shape[axis]
        if style == "row":  # x[:, t] in a loop, perhaps not all of them
            index: Any = (slice(None),) * axis + (draw.choice([k % n, draw.randrange(n)]),)
        elif style == "window":
            first = k % n
            index = (slice(None),) * axis + (slice(first, min(n, first + 2)),)
        else:
            index = tuple(drawn_slice(draw, m) for m in shape)
        reads.append(("slice", index))
        if draw.random() < 0.2:
            places = [draw.randrange(n) for _ in range(draw.randrange(1, 5))]
            reads.append(("take", (axis, np.array(places, draw.choice([np.int32, np.int64])))))
        if draw.random() < 0.2:
            wanted = tuple(2 if a == axis else m for a, m in enumerate(shape))
            draws = np.random.default_rng(seed + k)
            reads.append(("gather", (axis, draws.integers(0, n, wanted))))
        if draw.random() < 0.1:
            reads.append(("whole", None))
    return reads


def piece(x: Any, kind: str, what: Any) -> Any:
    if kind == "slice":
        return x[what]
    if kind == "whole":
        return x * 1.0
    axis, index = what
    index = eg.tensor(index, device=x.device)
    return eg.take(x, index, axis=axis) if kind == "take" else eg.gather(x, index, axis)


def loss(x: Any, reads: list[Any]) -> Any:
    total = 0.0
    for k, (kind, what) in enumerate(reads):
        found = piece(x, kind, what)
        total = total + (found * found * (0.5 + k % 7)).sum()
    return total


def expected(x: Any, reads: list[Any]) -> Any:
    """The gradient of `loss`, added up element by element."""
    g = np.zeros_like(x)
    for k, (kind, what) in enumerate(reads):
        places = np.arange(x.size).reshape(x.shape)
        if kind == "slice":
            places = places[what]
        elif kind == "take":
            places = np.take(places, what[1], axis=what[0])
        elif kind == "gather":
            places = np.take_along_axis(places, what[1], axis=what[0])
        np.add.at(
            g.reshape(-1), places.reshape(-1), 2 * (0.5 + k % 7) * x.reshape(-1)[places.reshape(-1)]
        )
    return g


def backward(x: Any, reads: list[Any], **how: Any) -> Any:
    x.grad = None
    loss(x, reads).backward(**how)
    return x.grad


WAYS = {
    "eager": backward,
    "two threads": lambda x, reads: backward(x, reads, workers=2),
    "grad": lambda x, reads: eg.grad(lambda x: loss(x, reads))(x),
    "jit": lambda x, reads: eg.jit(eg.grad(lambda x: loss(x, reads)))(x),
    "grad of jit": lambda x, reads: eg.grad(eg.jit(lambda x: loss(x, reads)))(x),
    "vmap": lambda x, reads: eg.vmap(eg.grad(lambda x: loss(x, reads)))(eg.stack([x, x]))[1],
}


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_pieces(way: str, device: str) -> None:
    checked = 0
    for seed in range(12 if "jit" in way else 40):
        shape = SHAPES[seed % len(SHAPES)]
        reads = drawn_reads(seed, shape)
        array = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        x = eg.tensor(array, device=device, requires_grad=True)
        got = WAYS[way](x, reads)
        assert got.dtype is eg.float32
        assert got.shape == shape
        np.testing.assert_allclose(
            got.detach().numpy(), expected(array, reads), rtol=2e-5, atol=1e-5
        )
        checked += len(reads)
    assert checked > 50


def test_second_derivatives(device: str) -> None:
    for seed in range(20):
        shape = SHAPES[seed % len(SHAPES)]
        reads = drawn_reads(seed, shape)
        array = np.random.default_rng(seed).normal(size=shape)
        x = eg.tensor(array.astype(np.float32), device=device, requires_grad=True)
        f = eg.grad(lambda x, reads=reads: loss(x, reads))
        again = eg.grad(lambda x, f=f: (f(x) * x).sum())(x)
        np.testing.assert_allclose(
            again.detach().numpy() / 2, expected(array, reads), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("how", ["slices", "takes", "windows", "elements"])
def test_the_work_is_linear(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that kernels of the backward pass write: as many for each step, however many."""
    written = 0
    real = eg.backends.base.get("cpu").run

    def counting(op: Any, arrays: Any, params: Any) -> Any:
        nonlocal written
        out = real(op, arrays, params)
        written += out.size
        return out

    def elements(n: int) -> int:
        nonlocal written
        x = eg.ones((n, 64), requires_grad=True)
        total = eg.zeros((64,))
        for t in range(n):
            if how == "slices":
                total = total + x[t]
            elif how == "takes":
                total = total + eg.take(x, eg.tensor([t, n - 1 - t]), axis=0).sum(axis=0)
            elif how == "windows":
                total = total + x[t : t + 3].sum(axis=0)
            else:
                total = total + x[t, (7 * t) % 64]
        loss = total.sum()
        written = 0
        with intercepting(), monkeypatch.context() as patch:  # every op goes the slow way
            patch.setattr(eg.backends.base.get("cpu"), "run", counting)
            loss.backward()
        return written

    small, large = elements(64), elements(256)
    assert small > 0
    assert large < 6 * small, (small, large)


def test_pieces_take_no_more_memory_than_twice_the_whole() -> None:
    most = 0
    real = piecewise_gradient.Pieces.added

    def added(self: Any, other: Any) -> Any:
        nonlocal most
        out = real(self, other)
        most = max(most, out.pending)
        return out

    x = eg.ones((10, 8), requires_grad=True)
    index = eg.tensor(np.arange(100) % 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piecewise_gradient.Pieces, "added", added)
        sum((x[index] * float(k)).sum() for k in range(50)).backward()
    np.testing.assert_allclose(x.grad.numpy(), np.full((10, 8), 10.0 * sum(range(50))))
    assert most <= 2 * x.size
