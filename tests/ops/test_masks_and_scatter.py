"""Scattering, masks, movement and einops: edge cases, and PyTorch as referee."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.errors import DtypeError, OutOfRangeError, TraceError
from tests.support.beside_torch import beside
from tests.support.checks import close, fitted, is_narrow, values

RNG = np.random.default_rng(13)
TORCH_NAMES = {"add": "sum", "mul": "prod", "amax": "amax", "amin": "amin", "mean": "mean"}


def here(x: Any, device: str) -> Any:
    return eg.tensor(fitted(x, device), device=device)


# --- scatter -------------------------------------------------------------------------------------


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["add", "mul", "amax", "amin", "mean"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter(axis: int, reduce: str, include_self: bool, device: str) -> None:
    x, source = RNG.normal(size=(3, 4)), RNG.normal(size=(2, 3))
    index = RNG.integers(0, 3, (2, 3))
    beside(
        device,
        lambda x, i, v: eg.scatter(x, i, v, axis, reduce, include_self),
        lambda x, i, v: torch.scatter_reduce(
            x, axis, i, v, TORCH_NAMES[reduce], include_self=include_self
        ),
        x,
        index,
        source,
    )


def test_scatter_puts_the_last_one(device: str) -> None:
    x, source = RNG.normal(size=(2, 4)), RNG.normal(size=(2, 3))
    index = np.array([[3, 0, 1], [0, 2, 3]])
    beside(
        device,
        lambda x, i, v: eg.scatter(x, i, v, axis=1),
        lambda x, i, v: torch.scatter(x, 1, i, v),
        x,
        index,
        source,
    )
    t = here(np.zeros(3), device)
    ones = here(np.array([1, 1, 1]), device)
    for fn in (eg.scatter, eg.index_copy, eg.put):
        source = here(np.arange(3.0), device).requires_grad_()
        out = fn(t, ones, source)
        assert out.tolist() == [0, 2, 0]
        out.sum().backward()
        assert source.grad.tolist() == [0, 0, 1]  # PyTorch gives each of them the gradient
    assert eg.scatter(t, here(np.array([2]), device), 7).tolist() == [0, 0, 7]


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_equal_extremes_share(reduce: str, device: str) -> None:
    beside(
        device,
        lambda x, i, v: eg.scatter(x, i, v, reduce=reduce),
        lambda x, i, v: torch.scatter_reduce(x, 0, i, v, reduce),
        np.array([2.0, 1.0]),
        np.array([0, 0, 1, 1, 1]),
        np.array([2.0, 2.0, 3.0, 3.0, 0.0]),
    )


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_nan_is_the_extreme(reduce: str, device: str) -> None:
    x, index = here(np.zeros(3), device), here(np.array([1, 1, 1, 2]), device)
    source = here(np.array([4.0, np.nan, -4.0, np.nan]), device)
    for include_self in (True, False):
        out = eg.scatter(x, index, source, reduce=reduce, include_self=include_self)
        np.testing.assert_array_equal(values(out), [0, np.nan, np.nan])


def test_products_at_zeros(device: str) -> None:
    beside(
        device,
        lambda x, i, v: eg.scatter(x, i, v, reduce="mul"),
        lambda x, i, v: x * torch.stack([v[0] * v[2], v[1] * v[3], v[4]]),
        np.array([1.0, 0.0, 2.0]),
        np.array([0, 1, 0, 1, 2]),
        np.array([0.0, 3.0, 0.0, 4.0, 0.0]),
    )


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_scatter_of_integers(dtype: str, device: str) -> None:
    x, source = RNG.integers(1, 5, 4).astype(dtype), RNG.integers(1, 5, 6).astype(dtype)
    index = RNG.integers(0, 4, 6)
    for reduce in ("add", "mul", "amax", "amin"):
        for own in (True, False):
            got = eg.scatter(
                *(eg.tensor(v, device=device) for v in (x, index, source)),
                reduce=reduce,
                include_self=own,
            )
            want = torch.scatter_reduce(
                *(torch.tensor(x), 0, torch.tensor(index), torch.tensor(source)),
                TORCH_NAMES[reduce],
                include_self=own,
            )
            close(got, want.numpy(), 0)
            assert str(got.dtype) == dtype
    with pytest.raises(DtypeError, match="scatter: does not take"):
        eg.scatter(*(eg.tensor(v, device=device) for v in (x, index, source)), reduce="mean")


@pytest.mark.parametrize("reduce", [None, "add", "mul", "amax", "mean"])
def test_scatter_inside_jit_and_vmap(reduce: Any, device: str) -> None:
    x, source = here(RNG.normal(size=(3, 4)), device), here(RNG.normal(size=(3, 5)), device)
    index = here(RNG.integers(0, 4, (3, 5)), device)

    def loss(x: Any, index: Any, source: Any) -> Any:
        out = eg.scatter(x, index, source, reduce=reduce)
        return (out * out).sum()

    slope = eg.grad(loss, argnums=(0, 2))
    each = [slope(x[k], index[k], source[k]) for k in range(3)]
    for i, got in enumerate(eg.vmap(slope)(x, index, source)):
        close(got, np.stack([values(e[i]) for e in each]), 1e-10)
    for got, want in zip(eg.jit(slope)(x[0], index[0], source[0]), each[0], strict=True):
        close(got, want, 1e-10)


def test_nothing_is_scattered(device: str) -> None:
    x = eg.ones((3,), device=device, requires_grad=True)
    none = eg.zeros((0,), device=device, requires_grad=True)
    for reduce in (None, "add", "mul", "amax", "mean"):
        out = eg.scatter(x, eg.zeros((0,), "int64", device), none, reduce=reduce)
        assert out.tolist() == [1, 1, 1]
        out.sum().backward()
    assert none.grad.shape == (0,)


def test_slices_written_by_index(device: str) -> None:
    x, source = RNG.normal(size=(4, 3)), RNG.normal(size=(2, 3))
    index = np.array([3, 1])
    beside(device, eg.index_copy, lambda x, i, v: torch.index_copy(x, 0, i, v), x, index, source)
    beside(
        device,
        lambda x, i: eg.index_fill(x, i, 2.5, axis=1),
        lambda x, i: torch.index_fill(x, 1, i, 2.5),
        x,
        np.array([2, 0]),
    )
    places, some = np.array([[5, 0], [11, 7]]), RNG.normal(size=(2, 2))
    for accumulate in (False, True):
        beside(
            device,
            lambda x, i, v, a=accumulate: eg.put(x, i, v, a),
            lambda x, i, v, a=accumulate: torch.put(x, i, v, a),
            x,
            places,
            some,
        )
    beside(device, lambda x, i: eg.take(x, i, axis=None), torch.take, x, places)
    with pytest.raises(OutOfRangeError, match="take: index 12 is out of range"):
        values(eg.take(here(x, device), here(np.array([12]), device), axis=None))


# --- masks ---------------------------------------------------------------------------------------


def test_masks(device: str) -> None:
    x, source = RNG.normal(size=(3, 4)), RNG.normal(size=12)
    mask = RNG.uniform(size=(3, 4)) < 0.5
    beside(device, eg.masked_select, torch.masked_select, x, mask)
    beside(device, eg.masked_scatter, torch.masked_scatter, x, mask, source)
    beside(
        device,
        lambda x, m, v: eg.masked_fill(x, m, v),
        torch.masked_fill,
        x,
        mask[0],
        np.array(1.5),
    )
    none = np.zeros((3, 4), bool)
    beside(device, eg.masked_scatter, torch.masked_scatter, x, none, np.zeros(0))
    with pytest.raises(OutOfRangeError, match="masked_scatter: element"):
        values(eg.masked_scatter(here(x, device), here(~none, device), here(np.zeros(0), device)))
    with pytest.raises(TraceError, match="masked_select: the size of the result depends"):
        eg.jit(eg.masked_select)(here(x, device), here(mask, device))


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 5), (2, 0, 3)])
def test_nonzero(shape: Any, device: str) -> None:
    x = RNG.integers(-1, 2, shape) * 1.0
    t = here(x, device)
    for got, want in zip(eg.nonzero(t), np.nonzero(x), strict=True):
        close(got, want, 0)
        assert got.dtype is eg.int64
    close(eg.argwhere(t != 0), np.argwhere(x), 0)
    for got, want in zip(eg.where(t != 0), np.nonzero(x), strict=True):
        close(got, want, 0)
    assert t.count_nonzero().item() == np.count_nonzero(x)


# --- movement ------------------------------------------------------------------------------------


def test_windows(device: str) -> None:
    x = RNG.normal(size=(2, 7, 3))
    for axis, size, step in ((1, 3, 1), (1, 2, 3), (-1, 3, 1), (0, 1, 5)):
        beside(
            device,
            lambda t, a=axis, n=size, s=step: eg.unfold(t, a, n, s) ** 2,
            lambda t, a=axis, n=size, s=step: t.unfold(a, n, s) ** 2,
            x,
        )


def test_repeats_of_each_element(device: str) -> None:
    x, counts = RNG.normal(size=(3, 2)), np.array([2, 0, 3])
    beside(
        device,
        lambda t, n: eg.repeat_interleave(t, n, axis=0) ** 2,
        lambda t, n: torch.repeat_interleave(t, n, 0) ** 2,
        x,
        counts,
    )
    t = here(x, device)
    close(eg.repeat(t, [2, 0, 3], axis=0), np.repeat(x, counts, 0), 1e-6)
    close(eg.jit(lambda t: eg.repeat(t, [2, 0, 3], axis=0))(t), np.repeat(x, counts, 0), 1e-6)
    close(eg.repeat(t, here(np.array([2]), device), axis=1), np.repeat(x, 2, 1), 1e-6)
    with pytest.raises(TraceError):
        eg.jit(lambda t, n: eg.repeat(t, n, axis=0))(t, here(counts, device))


@pytest.mark.parametrize("offset", [-4, -1, 0, 2, 5])
def test_diagonals(offset: int, device: str) -> None:
    x = RNG.normal(size=(3, 4, 2))
    beside(
        device,
        lambda t: eg.diagonal(t, offset) ** 2,
        lambda t: torch.diagonal(t, offset) ** 2,
        x,
    )
    beside(
        device,
        lambda t: eg.diag_embed(t, offset, 0, 2) ** 2,
        lambda t: torch.diag_embed(t, offset, 0, 2) ** 2,
        x[:, :, 0],
    )
    beside(device, lambda t: eg.diag(t, offset), lambda t: torch.diag(t, offset), x[0, :, 0])


def test_parts_share_one_gradient(device: str) -> None:
    x = RNG.normal(size=(5, 2))
    beside(
        device, lambda t: [p * p for p in eg.unbind(t)], lambda t: [p * p for p in t.unbind()], x
    )
    for n in (1, 2, 3, 7):
        beside(
            device,
            lambda t, n=n: [p * p for p in eg.chunk(t, n)],
            lambda t, n=n: [p * p for p in torch.chunk(t, n)],
            x,
        )
        beside(
            device,
            lambda t, n=n: [p * p for p in eg.tensor_split(t, n)],
            lambda t, n=n: [p * p for p in torch.tensor_split(t, n)],
            x,
        )
    assert [p.shape for p in eg.chunk(eg.zeros((0,), device=device), 3)] == [(0,)] * 3
    several = eg.atleast_2d(eg.zeros((), device=device), eg.zeros((3,), device=device))
    assert [p.shape for p in several] == [(1, 1), (1, 3)]


# --- einops --------------------------------------------------------------------------------------


def test_einops(device: str) -> None:
    einops = pytest.importorskip("einops")
    x = RNG.normal(size=(2, 6, 3))
    for fn in (
        lambda t: einops.rearrange(t, "a (b c) d -> b (a d) c", b=2) ** 2,
        lambda t: einops.reduce(t, "a (b c) d -> c a", "mean", b=3) ** 2,
        lambda t: einops.reduce(t, "a b d -> a d", "max"),
        lambda t: einops.repeat(t, "a b d -> a (b 2) d 3") ** 2,
        lambda t: einops.einsum(t, t, "a b d, a c d -> b c"),
        lambda t: einops.pack([t, t[:, 0]], "a * d")[0] ** 2,
    ):
        beside(device, fn, fn, x)
        t = here(x, device)
        close(eg.jit(fn)(t), fn(t), 1e-12)
        close(eg.vmap(fn)(eg.stack([t, t]))[1], fn(t), 1e-12)
    with pytest.raises(einops.EinopsError, match="Wrong shape"):
        einops.rearrange(here(x, device), "a b -> b a")
    if not is_narrow(device):
        np.testing.assert_array_equal(einops.asnumpy(here(x, device)), x)
