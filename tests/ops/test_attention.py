"""Attention: the compiled kernels against PyTorch, and what F makes of them."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import everygrad as eg
import everygrad.nn.functional as F
from everygrad.backends import thread_pool
from everygrad.backends.cpu.attention import attention as kernels
from everygrad.backends.cpu.kernels import run_work
from everygrad.backends.cpu.llvm.work import contiguous
from everygrad.backends.cpu.runtime import native_threads
from everygrad.errors import DtypeError, ShapeError
from everygrad.ops.nn.attention import attention, attention_masked
from tests.support.checks import close, without_kernel

TOLERANCE = {"float64": 1e-13, "float32": 1e-5}
# batch, heads, queries, keys, width, depth: whole vectors and ragged ones, few keys and many
SHAPES = (
    (2, 3, 128, 128, 32, 32),
    (1, 2, 37, 53, 20, 12),
    (1, 2, 64, 16, 16, 48),
    (1, 1, 1, 5, 3, 2),
    (1, 1, 300, 700, 64, 80),
    (3, 2, 50, 33, 8, 9),
    (1, 1, 20, 2100, 7, 16),
)


def inputs(shape: tuple[int, ...], dtype: str, seed: int = 0) -> list[Any]:
    """g, q, k and v; q and k laid out as a projection leaves them."""
    batch, heads, queries, keys, width, depth = shape
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(batch, queries, heads, width)).transpose(0, 2, 1, 3)
    k = rng.normal(size=(batch, keys, heads, width)).transpose(0, 2, 1, 3)
    v = rng.normal(size=(batch, heads, keys, depth))
    g = rng.normal(size=(batch, heads, queries, depth))
    return [x.astype(dtype) for x in (g, q, k, v)]


def added_mask(shape: tuple[int, ...], dtype: str) -> Any:
    """Some keys closed to some queries, one query closed altogether."""
    batch, _, queries, keys = shape[:4]
    rng = np.random.default_rng(5)
    mask = rng.normal(size=(batch, 1, queries, keys))
    mask[rng.random(mask.shape) < 0.3] = -np.inf
    mask[:, :, queries // 2] = -np.inf
    return mask.astype(dtype)


def referee(
    g: Any, q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False
) -> tuple[Any, list[Any]]:
    """PyTorch's attention and its derivatives, in float64."""
    q, k, v, g = (torch.tensor(x.astype(np.float64)) for x in (q, k, v, g))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    added = None if mask is None else torch.tensor(mask.astype(np.float64))
    out = TF.scaled_dot_product_attention(*leaves, added, is_causal=causal, scale=0.3)
    slopes = torch.autograd.grad(out, leaves, g)
    return out.detach().numpy(), [s.numpy() for s in slopes]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["full", "causal", "masked"])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_equal_torch(shape: tuple[int, ...], kind: str, dtype: str) -> None:
    g, q, k, v = inputs(shape, dtype)
    mask = added_mask(shape, dtype) if kind == "masked" else None
    whole = None if mask is None else np.broadcast_to(mask, (*q.shape[:3], k.shape[2]))
    want, slopes = referee(g, q, k, v, mask, kind == "causal")
    masks = [] if whole is None else [whole]
    layouts = [run_work.layout_of(x) for x in (g, q, k, v, *masks)]
    out = np.full((q.shape[0], q.shape[2], q.shape[1], v.shape[3]), np.nan, dtype)
    out = out.transpose(0, 2, 1, 3)
    flat = np.full(q.size + k.size + v.size, np.nan, dtype)
    rest = (0.3, kind == "causal", *layouts[4:])
    work = kernels.attention(*layouts[1:4], run_work.layout_of(out), *rest)
    run_work.run(work, [out], [q, k, v, *masks])
    close(out, want, TOLERANCE[dtype])
    work = kernels.attention_grads(*layouts[:4], run_work.layout_of(flat), *rest)
    run_work.run(work, [flat], [g, q, k, v, *masks])
    close(flat, np.concatenate([s.reshape(-1) for s in slopes]), TOLERANCE[dtype])


def test_offsets_and_empty_axes() -> None:
    g, q, k, v = inputs((1, 2, 9, 7, 5, 3), "float64")
    want, slopes = referee(g, q, k, v)
    room = [np.concatenate([np.full(3, np.nan), x.reshape(-1)]) for x in (g, q, k, v)]
    moved = [contiguous(eg.float64, x.shape)._replace(offset=3) for x in (g, q, k, v)]
    out, flat = np.empty(3 + want.size), np.empty(3 + q.size + k.size + v.size)
    layout = contiguous(eg.float64, want.shape)._replace(offset=3)
    run_work.run(kernels.attention(*moved[1:], layout, 0.3, False), [out], room[1:])
    close(out[3:], want.reshape(-1), 1e-13)
    layout = contiguous(eg.float64, (flat.size - 3,))._replace(offset=3)
    run_work.run(kernels.attention_grads(*moved, layout, 0.3, False), [flat], room)
    close(flat[3:], np.concatenate([s.reshape(-1) for s in slopes]), 1e-13)
    for shape in ((1, 2, 0, 7, 5, 3), (1, 2, 9, 7, 0, 3), (1, 2, 9, 7, 5, 0)):
        arrays = inputs(shape, "float64")
        want, slopes = referee(*arrays)
        flat = np.full(sum(s.size for s in slopes), np.nan)
        layouts = [run_work.layout_of(x) for x in (*arrays, flat)]
        run_work.run(kernels.attention_grads(*layouts, 0.3, False), [flat], arrays)
        close(flat, np.concatenate([s.reshape(-1) for s in slopes]), 1e-13)
        if not want.size:  # no op asks for it
            continue
        out = np.full(want.shape, np.nan)
        work = kernels.attention(*layouts[1:4], run_work.layout_of(out), 0.3, True)
        run_work.run(work, [out], arrays[1:])
        close(out, referee(*arrays, causal=True)[0], 1e-13)


def test_threads_do_not_change_bits() -> None:
    g, q, k, v = inputs((3, 3, 200, 200, 32, 32), "float32")
    found, before = [], thread_pool.num_threads()
    try:
        for count in (1, 2, 3):
            thread_pool.set_num_threads(count)
            out = kernels.run_attention(q, k, v, scale=0.2, causal=True)
            found.append((out.copy(), kernels.run_grads(g, q, k, v, scale=0.2, causal=True)))
    finally:
        thread_pool.set_num_threads(before)
    for out, slopes in found[1:]:
        np.testing.assert_array_equal(out, found[0][0])
        np.testing.assert_array_equal(slopes, found[0][1])


def test_scratch_does_not_grow_with_queries_times_keys() -> None:
    """Nor without bound with heads."""

    def scratch(batch: int, length: int) -> int:
        g, q, k, v = (
            run_work.layout_of(x) for x in inputs((batch, 1, length, length, 8, 8), "float32")
        )
        flat = run_work.layout_of(np.empty(3 * q.size, np.float32))
        return kernels.attention_grads(g, q, k, v, flat, 1.0, False).scratch

    assert scratch(1, 4096) < 2.1 * scratch(1, 2048)
    assert scratch(2000, 16) < 1 << 27


def test_large_scores_and_infinities() -> None:
    """Exponents out of range, scores of -inf, NaN where the scores are NaN, and nowhere else."""
    _, q, k, v = inputs((1, 1, 64, 64, 8, 8), "float32")
    q[..., 0, :] *= 1e4
    k[..., 5, :] = 0
    q[..., 3, 2] = np.nan
    out = kernels.run_attention(q, k, v, scale=10.0)
    want = TF.scaled_dot_product_attention(*map(torch.tensor, (q, k, v)), scale=10.0).numpy()
    assert np.isnan(out[0, 0, 3]).all()
    assert np.isfinite(np.delete(out, 3, axis=2)).all()
    close(np.delete(out, 3, axis=2), np.delete(want, 3, axis=2), 1e-4)


@pytest.mark.parametrize("kind", ["full", "causal", "masked", "learned mask"])
@pytest.mark.parametrize("shape", [(2, 3, 40, 48, 16, 8), (1, 2, 3, 4, 2, 5)])
def test_kernel_equals_portable_to_second_order(shape: tuple[int, ...], kind: str) -> None:
    """On shapes that are compiled and on small ones, also with a gradient for the mask."""
    arrays = inputs(shape, "float64")[1:]
    mask = eg.tensor(added_mask(shape, "float64"), requires_grad=kind == "learned mask")

    def run() -> list[Any]:
        leaves = [eg.tensor(a, requires_grad=True) for a in arrays]
        if "mask" in kind:
            out = attention_masked(*leaves, mask)
        else:
            out = attention(*leaves, causal=kind == "causal")
        leaves += [mask] if mask.requires_grad else []
        first = eg.autograd.grad((out * out).sum(), leaves, create_graph=True)
        total = sum((s * s).sum() for s in first)
        return [out, *first, *eg.autograd.grad(total, leaves)]

    got = run()
    with ExitStack() as stack:
        for name in kernels.KERNELS:
            stack.enter_context(without_kernel("cpu", name))
        want = run()
    for a, b in zip(got, want, strict=True):
        close(a, b, 1e-11)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats(dtype: str) -> None:
    g, q, k, v = (eg.tensor(x, dtype) for x in inputs((2, 2, 40, 50, 16, 8), "float32"))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*leaves, scale=0.3)
    slopes = eg.autograd.grad(out, leaves, g)
    wide = [x.detach().astype("float64").numpy() for x in (g, q, k, v)]
    want, want_slopes = referee(*wide)
    assert {str(x.dtype) for x in (out, *slopes)} == {dtype}
    tolerance = 4e-3 if dtype == "float16" else 3e-2
    close(out, want, tolerance)
    for a, b in zip(slopes, want_slopes, strict=True):
        close(a, b, tolerance)


def layouts(x: Any) -> list[Any]:
    gapped = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    gapped[..., ::2] = x
    flipped = np.flip(np.flip(x, 2).copy(), 2)
    return [x, np.asfortranarray(x), gapped[..., ::2], flipped]


def test_layouts() -> None:
    g, q, k, v = inputs((2, 3, 40, 50, 16, 8), "float32")
    want, slopes = referee(g, q, k, v)
    for mine in zip(*map(layouts, (g, q, k, v)), strict=True):
        close(kernels.run_attention(*mine[1:], scale=0.3), want, 1e-5)
        flat = kernels.run_grads(*mine, scale=0.3)
        close(flat, np.concatenate([s.reshape(-1) for s in slopes]), 1e-5)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
def test_any_number_of_batch_axes(batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(*batch, n, 16)) for n in (40, 30, 30))
    mask = rng.normal(size=(*(1,) * len(batch), 40, 1))
    want = TF.scaled_dot_product_attention(*map(torch.tensor, (q, k, v, mask))).numpy()
    got = attention_masked(*map(eg.tensor, (q, k, v, mask)))
    close(got, want, 1e-13)


def test_function_broadcasts_and_promotes() -> None:
    rng = np.random.default_rng(2)
    q = eg.tensor(rng.normal(size=(2, 4, 30, 16)), requires_grad=True)
    k, v = (eg.tensor(rng.normal(size=(1, 40, 16)), requires_grad=True) for _ in range(2))
    seen = eg.tensor(rng.random((2, 1, 1, 40)) > 0.3)
    out = F.scaled_dot_product_attention(q, k.astype("float32"), v, seen)
    assert out.dtype is eg.float64
    out.sum().backward()
    theirs = [torch.tensor(x.detach().numpy(), requires_grad=True) for x in (q, k, v)]
    keys = theirs[1].float().double()
    full = [theirs[0], *(x.expand(2, 4, 40, 16) for x in (keys, theirs[2]))]
    want = TF.scaled_dot_product_attention(*full, torch.tensor(seen.numpy()))
    want.sum().backward()
    close(out, want.detach().numpy(), 1e-12)
    for a, b in zip((q, k, v), theirs, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        close(a.grad, b.grad.numpy(), 1e-6)


def test_closed_query_gives_zero_and_no_nan() -> None:
    rng = np.random.default_rng(3)
    q, k, v = (eg.tensor(rng.normal(size=(2, 40, 16)), requires_grad=True) for _ in range(3))
    seen = np.ones((40, 40), bool)
    seen[7] = False
    out = F.scaled_dot_product_attention(q, k, v, eg.tensor(seen))
    out.sum().backward()
    slopes = [x.grad.numpy() for x in (q, k, v) if x.grad is not None]
    assert (out.detach().numpy()[:, 7] == 0).all()
    assert (slopes[0][:, 7] == 0).all()
    for slope in slopes:
        assert np.isfinite(slope).all()


def test_dropout_still_drops() -> None:
    x = eg.ones((2, 8, 4))
    out = F.scaled_dot_product_attention(x, x, x, dropout_p=1.0)
    assert (out.numpy() == 0).all()


def test_refuses() -> None:
    x = eg.ones((2, 3, 4))
    with pytest.raises(DtypeError, match="complex64"):
        F.scaled_dot_product_attention(*[x.astype("complex64")] * 3)
    with pytest.raises(ShapeError, match="attn_mask"):
        F.scaled_dot_product_attention(x, x, x, eg.ones((5, 2, 3, 3)))
    with pytest.raises(DtypeError, match="differ"):
        attention(x, x, x.astype("float64"))


@pytest.mark.parametrize("given", ["plain", "causal", "mask"])
def test_grouped_queries_are_pytorchs(given: str) -> None:
    """Several heads of the query to one of key and value, and their gradients."""
    rng = np.random.default_rng(4)
    arrays = [rng.normal(size=(2, h, 5, w)) for h, w in ((6, 8), (2, 8), (2, 4))]
    look = rng.random((2, 6, 5, 5)) > 0.3
    look[..., 0] = True
    ours = [eg.tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    causal = given == "causal"
    masks = (eg.tensor(look), torch.tensor(look)) if given == "mask" else (None, None)
    out = F.scaled_dot_product_attention(*ours, masks[0], is_causal=causal, enable_gqa=True)
    want = TF.scaled_dot_product_attention(*theirs, masks[1], is_causal=causal, enable_gqa=True)
    close(out, want.detach().numpy(), 1e-12)
    out.sum().backward()
    want.sum().backward()
    for x, t in zip(ours, theirs, strict=True):
        close(x.grad, t.grad.numpy(), 1e-12)


def test_grouped_queries_need_a_multiple() -> None:
    q, k = eg.ones((1, 5, 3, 4)), eg.ones((1, 2, 3, 4))
    with pytest.raises(ShapeError, match="5 heads of the query cannot share 2 of the key"):
        F.scaled_dot_product_attention(q, k, k, enable_gqa=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_stay_within_their_scratch(dtype: str) -> None:
    """Products of whole rows may write more rows than there are keys: there must be memory."""
    fence = 1 << 13
    for keys, width, causal in ((k, w, c) for k in range(8, 38) for w in (24, 48) for c in (0, 1)):
        g, q, k, v = inputs((1, 2, 13, keys, width, width), dtype)
        flat = np.empty(q.size + k.size + v.size, dtype)
        layouts = [run_work.layout_of(x) for x in (g, q, k, v, flat)]
        work = kernels.attention_grads(*layouts, 0.3, bool(causal))
        around = np.full((work.scratch + 2 * fence + 64) // 8, -0.0)  # + 0.0 is another number
        before = -(-(around.ctypes.data + fence) // 64) * 64
        given = [flat, g, q, k, v]
        args = (ctypes.c_void_p * 6)(*(a.ctypes.data for a in given), before)
        compiled = run_work.functions_of(work.steps)
        for step, function in zip(work.steps, compiled.addresses, strict=True):
            native_threads.parallel(function, step.blocks, ctypes.addressof(args))
        first = (before - around.ctypes.data) // 8
        untouched = np.concatenate([around[:first], around[first + work.scratch // 8 :]])
        assert np.signbit(untouched).all(), (keys, width, causal)
