"""Products of 16-bit floats: every path that this processor can run, against float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import thread_pool
from everygrad.backends.cpu import registry
from everygrad.backends.cpu.gemm import gemm, gemm_tile
from everygrad.backends.cpu.graph.execution_plan import NativeStep, build
from everygrad.backends.cpu.kernels import run_work
from everygrad.compiler.ir import Graph
from everygrad.ops.record.spec import REGISTRY
from tests.backends.cpu.test_gemm import LAYOUTS, SIZES, laid_out, one_by_one

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # of one rounding to the nearest
HAS_DOTS = gemm_tile.machine().has_bf16_dots
# dtype, bytes of a vector, whether pairs are multiplied
PATHS = [
    *[("bfloat16", 64, True)] * HAS_DOTS,
    *[("bfloat16", 32, True)] * HAS_DOTS,
    *[(dtype, width, False) for dtype in DTYPES for width in (16, 32, 64)],
]


def play(path: tuple[str, int, bool], patch: pytest.MonkeyPatch) -> None:
    """The generator writes code for another processor."""
    _, width, dots = path
    found = gemm_tile.machine()
    target = gemm_tile.VectorRegisters(width, 32 if width == 64 else 16, found.has_fma, dots)
    if width > found.width:
        pytest.skip("no vectors of this size here")
    patch.setattr(gemm, "machine", lambda: target)


@pytest.fixture(autouse=True)
def _works() -> Iterator[None]:
    """Works depend on the processor that is played, which is not part of their key."""
    gemm.matmul.cache_clear()
    yield
    gemm.matmul.cache_clear()


def product(a: Any, b: Any) -> tuple[Any, gemm.Work]:
    out = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32).astype(a.dtype)
    out[...] = np.nan
    work = gemm.matmul(*(run_work.layout_of(x) for x in (a, b, out)))
    run_work.run(work, [out], [a, b])
    return out, work


def check(a: Any, b: Any, out: Any) -> None:
    """Each element is the product, rounded once, to what a float32 sum loses."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    want = wide_a @ wide_b
    lost = (a.shape[-1] + 2) * 2.0**-23 * (np.abs(wide_a) @ np.abs(wide_b))
    bound = ROUNDING[a.dtype.name] * (np.abs(want) + lost) + lost + 2.0**-25  # float16 subnormals
    apart = np.abs(out.astype(np.float64) - want)
    assert (apart <= bound).all(), (a.shape, b.shape, a.strides, b.strides)


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_layouts(path: tuple[str, int, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    play(path, monkeypatch)
    rng = np.random.default_rng(0)
    for m, k, n in SIZES if path == PATHS[0] else SIZES[1::3]:
        for a_layout, b_layout in itertools.product(LAYOUTS, LAYOUTS):
            a = laid_out((m, k), a_layout, DTYPES[path[0]], rng)
            b = laid_out((k, n), b_layout, DTYPES[path[0]], rng)
            check(a, b, product(a, b)[0])


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_the_ends_of_k(path: tuple[str, int, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Around whole pairs, the squares that packing transposes, and the stretches of k."""
    play(path, monkeypatch)
    each = 2 if path[2] else 1
    rng = np.random.default_rng(1)
    longest = each * gemm.HALF_PANEL // (4 * (path[1] // 4))  # one vector wide
    for k in (1, 2, 3, 4, 7, 8, 9, 10, longest - 1, longest, longest + 1, longest + 2 * each + 1):
        for a_layout, b_layout in (("rows", "columns"), ("columns", "rows"), ("strided", "rows")):
            a = laid_out((5, k), a_layout, DTYPES[path[0]], rng)
            b = laid_out((k, 3), b_layout, DTYPES[path[0]], rng)
            check(a, b, product(a, b)[0])


@pytest.mark.parametrize("path", PATHS[:1] + PATHS[-1:], ids=str)
def test_blocks_and_batches(path: tuple[str, int, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    play(path, monkeypatch)
    rng = np.random.default_rng(2)
    dtype = DTYPES[path[0]]
    for m, k, n in ((128, 784, 512), (301, 137, 257), (126, 4096, 40), (40, 4095, 24)):
        a, b = laid_out((m, k), "rows", dtype, rng), laid_out((k, n), "columns", dtype, rng)
        out, work = product(a, b)
        check(a, b, out)
        assert work.steps[0].blocks > 1 or k % 2  # an odd k of pairs is not split
    a, b = laid_out((2, 3, 9, 21), "rows", dtype, rng), laid_out((2, 3, 21, 35), "rows", dtype, rng)
    for x, y in ((a, b), (a, np.broadcast_to(b[:1], b.shape)), (a[..., ::2, :], b), (a[:0], b[:0])):
        check(x, y, product(x, y)[0])


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_infinities_stay_in_their_rows(
    path: tuple[str, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An odd k has half a pair at the end of each row, beside which the next row begins."""
    play(path, monkeypatch)
    for k, layout in itertools.product((1, 4, 5, 9, 64, 65), ("rows", "columns")):
        rng = np.random.default_rng(k)
        a = laid_out((6, k), layout, DTYPES[path[0]], rng)
        b = laid_out((k, 18), layout, DTYPES[path[0]], rng)
        a[1, 0], a[3, -1], b[0, 5], b[-1, 7] = np.inf, -np.inf, np.inf, np.nan
        got = product(a, b)[0].astype(np.float64)
        with np.errstate(invalid="ignore"):
            want = a.astype(np.float64) @ b.astype(np.float64)
        assert (np.isnan(got) == np.isnan(want)).all(), (k, layout)
        infinite = np.isinf(want)
        assert (got[infinite] == want[infinite]).all(), (k, layout)
        assert np.isfinite(got[np.isfinite(want)]).all(), (k, layout)


def test_large_sums_overflow_to_infinity() -> None:
    """65,504 is the largest float16; sums beyond it are held in float32 until they are rounded."""
    x = np.full((64, 64), 128, np.float16)
    assert np.isinf(product(x, x)[0]).all()
    x[:, 32:] = -128
    y = np.full((64, 64), 128, np.float16)
    assert (product(x, y)[0] == 0).all()


@pytest.mark.skipif(not HAS_DOTS, reason="no dot products of pairs here")
def test_pairs_take_subnormal_numbers_for_zero() -> None:
    """The one thing that dot products lose beside widening: documented, as in other libraries."""
    tiny = np.float32(2.0**-130).astype(ml_dtypes.bfloat16)
    a, b = np.full((4, 8), tiny), np.full((8, 4), 1, ml_dtypes.bfloat16)
    assert (product(a, b)[0].astype(np.float32) == 0).all()
    a[:, 1:] = np.float32(2.0**-100).astype(ml_dtypes.bfloat16)
    assert (product(a, b)[0].astype(np.float32) == np.float32(7 * 2.0**-100)).all()


@pytest.mark.parametrize("path", PATHS[:1] + PATHS[-1:], ids=str)
def test_the_same_bits_however_blocks_are_run(
    path: tuple[str, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(path, monkeypatch)
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((300, 300)).astype(DTYPES[path[0]]) for _ in range(2))
    whole, work = product(a, b)
    if not work.scratch:
        pieces = np.empty_like(a)
        one_by_one(work, pieces, a, b)
        assert (whole.view(np.uint16) == pieces.view(np.uint16)).all()
    before = thread_pool.num_threads()
    try:
        for threads in (1, 2, 3):
            thread_pool.set_num_threads(threads)
            for k in (300, 301, 4096):
                x, y = (rng.standard_normal(s).astype(a.dtype) for s in ((65, k), (k, 70)))
                assert (product(x, y)[0].view(np.uint16) == product(x, y)[0].view(np.uint16)).all()
            assert (product(a, b)[0].view(np.uint16) == whole.view(np.uint16)).all()
    finally:
        thread_pool.set_num_threads(before)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_to_second_order(dtype: str, compiled: bool) -> None:
    """By the kernels, at a size above the one from which eager products use them."""
    rng = np.random.default_rng(5)
    m, k, n = 70, 67, 72
    assert m * k * n >= registry.HALF_PRODUCTS
    x, w = rng.standard_normal((m, k)) / 8, rng.standard_normal((k, n)) / 8

    def loss(x: Any, w: Any) -> Any:
        return ((x @ w) ** 2).astype("float32" if x.dtype != eg.float64 else "float64").sum()

    def second(x: Any, w: Any) -> Any:
        return eg.grad(lambda x, w: (eg.grad(loss)(x, w) * x).astype(x.dtype).sum(), 1)(x, w)

    halves = [eg.tensor(a).astype(dtype) for a in (x, w)]
    exact = [t.astype("float64") for t in halves]
    for of in (eg.grad(loss), eg.grad(loss, 1), second):
        got = (eg.jit(of) if compiled else of)(*halves)
        assert got.dtype == halves[0].dtype
        want = of(*exact).detach().numpy()
        apart = np.abs(got.detach().astype("float64").numpy() - want)
        assert apart.max() <= 8 * ROUNDING[dtype] * np.abs(want).max()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("name", ["matmul", "linear"])
def test_compiled_products_are_native(dtype: str, name: str) -> None:
    """No call of NumPy between native steps."""
    graph = Graph()
    inputs = [graph.input((64, 64), eg.dtypes.as_dtype(dtype)) for _ in range(2)]
    graph.outputs = [graph.call(REGISTRY[name], inputs, {})]
    assert all(isinstance(step, NativeStep) for step in build(graph).steps)
