"""Attention on every device, eager and compiled, against float64: sizes, masks and layouts drawn at
random, and the corners where others divide by zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import everygrad as eg
import everygrad.nn.functional as F
from everygrad.errors import DtypeError, ShapeError
from tests.support.checks import close

TOLERANCE = {"float32": 1e-4, "float16": 2e-2}
LENGTHS = (1, 2, 7, 16, 33, 64, 65, 100)
WIDTHS = (1, 3, 7, 8, 40, 64, 96, 130)
LEAST = {name: float(np.finfo(name).min) for name in ("float32", "float16")}


class Case(NamedTuple):
    """One problem; `mask` is bool, of q's dtype, or None."""

    g: Any
    q: Any
    k: Any
    v: Any
    mask: Any
    options: dict[str, Any]


def drawn(seed: int) -> Case:
    """A problem drawn at random: batches and masks broadcast along any of their axes."""
    rng = np.random.default_rng(seed)
    dtype = ("float32", "float16")[seed % 2]

    def some(*shape: int) -> Any:
        return rng.normal(size=shape).astype(dtype)

    batch = rng.integers(1, 4, rng.integers(0, 4)).tolist()
    queries, keys = rng.choice(LENGTHS, 2).tolist()
    width, depth = rng.choice(WIDTHS, 2).tolist()
    pairs = (*batch, queries, keys)
    q, g = some(*batch, queries, width), some(*batch, queries, depth)
    alone = [1 if rng.random() < 0.2 else n for n in batch]
    k, v = some(*alone, keys, width), some(*batch, keys, depth)
    kind = ("none", "causal", "bool", "closed", "least")[seed // 2 % 5]
    options = {"is_causal": kind == "causal", "scale": [None, 0.3, -0.5][seed % 3]}
    mask = None
    if kind not in ("none", "causal"):
        shape = [1 if rng.random() < 0.3 else n for n in pairs][rng.integers(0, 2) :]
        shut = rng.random(shape) < 0.5
        low = -np.inf if kind == "closed" else LEAST[dtype]
        mask = ~shut if kind == "bool" else np.where(shut, low, some(*shape)).astype(dtype)
    return Case(g, q, k, v, mask, options)


def summed_to(d: Any, shape: tuple[int, ...]) -> Any:
    """A derivative brought back to the shape of what was broadcast."""
    d = d.sum(axis=tuple(range(d.ndim - len(shape))))
    axes = tuple(a for a, n in enumerate(shape) if n == 1)
    return d.sum(axis=axes, keepdims=True)


def expected(case: Case) -> list[Any]:
    """The result and the derivatives of <g, result> by q, k and v, in float64."""
    g, q, k, v = (np.asarray(x, np.float64) for x in case[:4])
    given = case.options["scale"]
    scale = q.shape[-1] ** -0.5 if given is None else given
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if case.options["is_causal"]:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if case.mask is not None and case.mask.dtype == bool:
        scores = np.where(case.mask, scores, -np.inf)
    elif case.mask is not None:
        # the sum as it is where a mask is so low that scores are lost in it
        scores = (scores + case.mask.astype(np.float64)).astype(np.float32).astype(np.float64)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = e.sum(axis=-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    dp = g @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) * scale
    slopes = (ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ g)
    return [p @ v, *(summed_to(d, x.shape) for d, x in zip(slopes, (q, k, v), strict=True))]


def odd(x: Any, device: str) -> eg.Tensor:
    """In the middle of something longer, from an odd element on."""
    room = np.concatenate([np.zeros(3, x.dtype), x.reshape(-1)])
    return eg.tensor(room, device=device)[3:].reshape(x.shape)


def turned(x: Any, device: str) -> eg.Tensor:
    """Column after column."""
    there = np.ascontiguousarray(np.swapaxes(x, -1, -2))
    return eg.tensor(there, device=device).matrix_transpose()


def backwards(x: Any, device: str) -> eg.Tensor:
    """From the last row to the first."""
    return eg.flip(eg.tensor(np.flip(x, -2).copy(), device=device), axis=-2)


def plain(x: Any, device: str) -> eg.Tensor:
    return eg.tensor(x, device=device)


LAYOUTS: tuple[Callable[[Any, str], eg.Tensor], ...] = (odd, turned, backwards, plain)


@pytest.mark.parametrize("seed", range(10))
def test_any_problem_in_any_layout(seed: int, device: str) -> None:
    case = drawn(seed)
    given = [LAYOUTS[(seed + i) % 4](x, device) for i, x in enumerate(case[:4])]
    mask = None if case.mask is None else plain(case.mask, device)

    def run(g: Any, q: Any, k: Any, v: Any) -> list[Any]:
        def loss(*inputs: Any) -> tuple[Any, Any]:
            out = F.scaled_dot_product_attention(*inputs, mask, **case.options)
            return (out * g).sum(), out

        slopes, out = eg.grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
        return [out, *slopes]

    want = expected(case)
    # what was run before takes other ways: a kernel launched again, a graph captured
    for step in (run, run, compiled := eg.jit(run), compiled):
        for a, b in zip(step(*given), want, strict=True):
            close(a, b, TOLERANCE[str(case.q.dtype)])


@pytest.mark.parametrize("low", [LEAST["float32"], -1e9, -np.inf], ids=str)
def test_a_query_that_all_keys_are_masked_for(low: float, device: str) -> None:
    """Equally low is not closed: such a query looks at all keys alike. -inf closes, and gives 0."""
    rng = np.random.default_rng(0)
    g, q, k, v = (rng.normal(size=(2, 40, 16)).astype(np.float32) for _ in range(4))
    mask = np.zeros((40, 40), np.float32)
    mask[7] = low
    leaves = [eg.tensor(x, device=device, requires_grad=True) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, eg.tensor(mask, device=device))
    want = expected(Case(g, q, k, v, mask, {"scale": None, "is_causal": False}))
    close(out, want[0], 1e-5)
    at = v.mean(axis=-2) if np.isfinite(low) else np.zeros((2, 16))
    close(out[:, 7], at, 1e-5)
    slopes = eg.autograd.grad(out, leaves, eg.tensor(g, device=device))
    for a, b in zip(slopes, want[1:], strict=True):
        close(a, b, 1e-5)


def test_a_learned_mask_of_half_floats_is_summed_before_it_is_rounded() -> None:
    """A number added to all scores changes nothing: its derivative is 0, and none of the rounding
    of ten thousand terms is to be seen in it."""
    rng = np.random.default_rng(1)
    q, k, v = (eg.tensor(rng.normal(size=(3, 60, 16)), "bfloat16") for _ in range(3))
    bias = eg.zeros((1, 1), "bfloat16", requires_grad=True)
    F.scaled_dot_product_attention(q, k, v, bias).astype("float32").sum().backward()
    assert bias.grad is not None
    assert bias.grad.shape == (1, 1)
    assert abs(bias.grad.item()) < 1e-4


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_no_keys_no_width_no_queries(dropout: float, device: str) -> None:
    """As PyTorch has it: who has nothing to look at gets 0; of no width, all scores are equal."""

    def run(queries: int, keys: int, width: int) -> Any:
        q, k = (eg.ones((2, n, width), device=device) for n in (queries, keys))
        v = eg.ones((2, keys, 5), device=device, requires_grad=True)
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        out.sum().backward()
        assert v.grad is not None
        assert v.grad.shape == v.shape
        return out.detach()

    assert (run(3, 0, 8) == eg.zeros((2, 3, 5), device=device)).all()
    assert run(0, 3, 8).shape == (2, 0, 5)
    if not dropout:
        assert (run(3, 4, 0) == eg.ones((2, 3, 5), device=device)).all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("shape", [(0, 5, 8), (3, 0, 8), (0, 0, 8)], ids=str)
def test_a_layer_of_no_batch_or_no_tokens(
    shape: tuple[int, ...], need_weights: bool, device: str
) -> None:
    ours = eg.nn.MultiheadAttention(8, 2, batch_first=True, device=device)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    found = ours(*[eg.zeros(shape, device=device)] * 3, need_weights=need_weights)
    want = theirs(*[torch.zeros(shape)] * 3, need_weights=need_weights)
    for a, b in zip(found, want, strict=True):
        assert (None if a is None else a.shape) == (None if b is None else tuple(b.shape))


def test_a_causal_layer_makes_no_mask() -> None:
    layer = eg.nn.MultiheadAttention(8, 2, batch_first=True)
    x = eg.tensor(np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32))
    step = eg.jit(lambda x: layer(x, x, x, need_weights=False, is_causal=True)[0])
    graph = str(step.lower(x).graph)
    assert "= attention %" in graph
    assert "attention_masked" not in graph
    close(step(x), layer(x, x, x, is_causal=True)[0], 1e-5)


def test_derivatives_of_no_examples(device: str) -> None:
    x = eg.zeros((0, 3, 8), device=device)
    slope = eg.grad(lambda x: F.scaled_dot_product_attention(x, x, x).sum())
    assert eg.vmap(slope)(x).shape == (0, 3, 8)


def test_masks_that_are_refused() -> None:
    """A mask of 0 and 1 that is neither bool nor floating point would be added."""
    x = eg.ones((1, 4, 3, 8))
    with pytest.raises(DtypeError, match=r"attn_mask must be bool or floating point, got int64"):
        F.scaled_dot_product_attention(x, x, x, eg.ones((3, 3), "int64"))
    shared = eg.ones((1, 2, 3, 8))
    with pytest.raises(ShapeError, match=r"attn_mask \(1, 2, 3, 3\) is not for 4 heads"):
        F.scaled_dot_product_attention(
            x, shared, shared, eg.ones((1, 2, 3, 3), "bool"), enable_gqa=True
        )
    with pytest.raises(ShapeError, match="need two axes"):
        F.scaled_dot_product_attention(x[0, 0, 0], x, x)
