"""Generated matrix products: every layout and odd size against NumPy in float64."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends.cpu import registry
from everygrad.backends.cpu.gemm import gemm, gemm_tile
from everygrad.backends.cpu.kernels import run_work
from everygrad.errors import ArgumentError

LAYOUTS = ("rows", "columns", "strided", "reversed")
SIZES = [
    (1, 1, 1),
    (5, 0, 7),
    (1, 5, 40),
    (7, 3, 5),
    (13, 17, 33),
    (64, 128, 1),
    (3, 200, 130),
    (40, 39, 37),
    (30, 300, 100),
]


def laid_out(shape: tuple[int, ...], layout: str, dtype: str, rng: np.random.Generator) -> Any:
    """Random numbers; all layouts have the same shape and values, but other strides."""
    x = rng.standard_normal(shape).astype(dtype)
    if layout == "columns":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "strided":
        wide = np.zeros((*shape[:-2], 2 * shape[-2], 3 * shape[-1]), dtype)[..., ::2, ::3]
        wide[...] = x
        return wide
    return x[..., ::-1, ::-1] if layout == "reversed" else x


def check(a: Any, b: Any, out: Any = None) -> gemm.Work:
    """The product in `out`, or a new array, is a @ b to a few roundings."""
    if out is None:
        out = np.full((*a.shape[:-1], b.shape[-1]), np.nan, a.dtype)
    work = gemm.matmul(*(run_work.layout_of(x) for x in (a, b, out)))
    run_work.run(work, [out], [a, b])
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    bound = (a.shape[-1] + 2) * np.finfo(a.dtype).eps * (np.abs(wide_a) @ np.abs(wide_b))
    assert (np.abs(out - wide_a @ wide_b) <= bound).all()
    return work


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("b_layout", LAYOUTS)
@pytest.mark.parametrize("a_layout", LAYOUTS)
def test_layouts(a_layout: str, b_layout: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for m, k, n in SIZES if dtype == "float32" else SIZES[3:8]:
        check(laid_out((m, k), a_layout, dtype, rng), laid_out((k, n), b_layout, dtype, rng))


@pytest.mark.parametrize("size", range(1, 41, 3))
def test_odd_sizes(size: int) -> None:
    rng = np.random.default_rng(size)
    for m, k, n in ((size, 9, 20), (11, size, 18), (8, 5, size)):
        check(laid_out((m, k), "rows", "float32", rng), laid_out((k, n), "columns", "float32", rng))
        check(laid_out((m, k), "columns", "float32", rng), laid_out((k, n), "rows", "float32", rng))


@pytest.mark.parametrize(
    ("m", "k", "n", "a_layout", "b_layout"),
    [
        (128, 784, 512, "rows", "columns"),
        (512, 128, 784, "columns", "rows"),
        (1001, 137, 301, "columns", "columns"),
        (126, 2048, 40, "columns", "rows"),  # split-K, with a second stage
        (401, 513, 1201, "rows", "rows"),
    ],
)
def test_many_blocks(m: int, k: int, n: int, a_layout: str, b_layout: str) -> None:
    rng = np.random.default_rng(1)
    a, b = laid_out((m, k), a_layout, "float32", rng), laid_out((k, n), b_layout, "float32", rng)
    work = check(a, b)
    assert work.steps[0].blocks > 1


def test_batches_and_views() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 3, 9, 20)), rng.standard_normal((2, 3, 20, 35))
    check(a, b)
    check(a, np.broadcast_to(b[:1], b.shape))
    check(a, np.broadcast_to(b[0, 0], b.shape))  # one tall product
    check(np.broadcast_to(a[:, :1], a.shape), b)
    check(a[:, ::2], b[:, 1:], np.empty((2, 4, 9, 50))[:, ::2, :, 5:40])
    check(a.transpose(2, 1, 0, 3), np.broadcast_to(b[0, 0], (9, 3, 20, 35)))
    check(rng.standard_normal((40, 4, 4)), rng.standard_normal((40, 4, 4)))
    check(rng.standard_normal((2, 50, 2048)), rng.standard_normal((2, 2048, 3)))
    check(a[:0], b[:0])
    check(a[..., :0, :], b)


def test_offsets() -> None:
    rng = np.random.default_rng(3)
    a, b, out = rng.standard_normal((6, 7)), rng.standard_normal((7, 8)), np.zeros((6, 8))
    layouts = [run_work.layout_of(x[2:])._replace(offset=2 * x.shape[1]) for x in (a, out)]
    work = gemm.matmul(layouts[0], run_work.layout_of(b), layouts[1])
    run_work.run(work, [out], [a, b])
    assert np.allclose(out[2:], a[2:] @ b)
    assert not out[:2].any()


def test_the_same_bits_however_blocks_are_run() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((300, 300), np.float32) for _ in range(2))
    whole, pieces = np.empty_like(a), np.empty_like(a)
    work = gemm.matmul(*(run_work.layout_of(x) for x in (a, b, whole)))
    run_work.run(work, [whole], [a, b])
    one_by_one(work, pieces, a, b)
    assert (whole == pieces).all()


def one_by_one(work: gemm.Work, out: Any, a: Any, b: Any) -> None:
    """Runs a work without scratch memory block by block, the last block first."""
    assert not work.scratch
    args = (ctypes.c_void_p * 3)(*(x.ctypes.data for x in (out, a, b)))
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    for step in work.steps:
        compiled = run_work.functions_of((step,))
        function = kind(compiled.addresses[0])
        for block in reversed(range(step.blocks)):
            function(block, block + 1, ctypes.addressof(args))


@pytest.mark.parametrize("width", [16, 32])
def test_smaller_vectors(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for processors without AVX-512."""
    found = gemm_tile.machine()
    monkeypatch.setattr(
        gemm, "machine", lambda: gemm_tile.VectorRegisters(width, 16, found.has_fma)
    )
    rng = np.random.default_rng(5)
    for dtype in ("float32", "float64"):
        for m, k, n in ((13, 17, 33), (50, 70, 90), (3, 5, 2)):
            for a_layout, b_layout in (("rows", "columns"), ("columns", "rows")):
                check(
                    laid_out((m, k), a_layout, dtype, rng), laid_out((k, n), b_layout, dtype, rng)
                )


def test_refusals() -> None:
    a, b, out = np.zeros((2, 3), "f4"), np.zeros((3, 4), "f4"), np.zeros((2, 4), "f4")
    good = [run_work.layout_of(x) for x in (a, b, out)]
    with pytest.raises(ArgumentError, match="contiguous"):
        gemm.matmul(good[0], good[1], run_work.layout_of(out.T.copy().T))
    with pytest.raises(ArgumentError, match="does not make"):
        gemm.matmul(good[0], good[0], good[2])
    with pytest.raises(ArgumentError, match="no code"):
        gemm.matmul(good[0], run_work.layout_of(b.astype("f8")), good[2])


@pytest.mark.parametrize("k", [(1 << 20) + 7, 1 << 22, (1 << 22) + 1, 4_194_301])
@pytest.mark.parametrize("sides", [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_long_sums_keep_their_digits(k: int, sides: tuple[int, int]) -> None:
    """Equal terms, so that all roundings have one sign: a running sum is 4 percent off at 2**25."""
    m, n = sides
    x, y = np.full((m, k), 0.1, np.float32), np.full((k, n), 0.3, np.float32)
    exact = k * float(np.float32(0.1)) * float(np.float32(0.3))
    ways: list[Any] = [eg.jit]
    if m * k * n >= registry.OWN_PRODUCTS:  # smaller products use BLAS
        ways.append(lambda f: f)
    for a, b in ((x, y), (np.asfortranarray(x), y), (x, np.asfortranarray(y))):
        for way in ways:
            got = way(eg.matmul)(eg.tensor(a), eg.tensor(b)).numpy()
            most = 2 * math.sqrt(k) * 2.0**-24  # sums of sqrt(k) terms, and a sum of as many
            assert np.abs(got / exact - 1).max() < most, (k, sides)
