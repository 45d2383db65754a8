"""Norms, quantiles, reductions without NaN, and scans: edge cases, and PyTorch as referee."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.autograd.api import grad
from everygrad.errors import AxisError
from everygrad.ops.reduce import reductions
from tests.support.beside_torch import beside
from tests.support.checks import close, fitted, is_narrow, values, without_kernel

RNG = np.random.default_rng(7)
NAN, INF = math.nan, math.inf


def here(x: Any, device: str) -> Any:
    return eg.tensor(fitted(x, device), device=device)


def gradient(fn: Any, x: Any, device: str) -> Any:
    t = eg.tensor(fitted(x, device), device=device, requires_grad=True)
    fn(t).sum().backward()
    return values(t.grad)


# --- norms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0, 1, 2, 3, 0.5, -1, -2.5, INF, -INF])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
def test_norm(p: float, axis: Any, device: str) -> None:
    x = RNG.uniform(0.5, 2, (3, 2, 4)) * RNG.choice([-1, 1], (3, 2, 4))
    beside(
        device,
        lambda t: eg.norm(t, p, axis, keepdims=axis == 0),
        lambda t: torch.linalg.vector_norm(t, p, axis, keepdim=axis == 0),
        x,
    )


@pytest.mark.parametrize("p", [0, 1, 2, 3, 0.5, -1, INF])
def test_norm_of_zeros_has_slope_zero(p: float, device: str) -> None:
    assert gradient(lambda x: eg.norm(x, p), np.zeros(3), device).tolist() == [0, 0, 0]
    x = np.array([0.0, 3.0, 4.0])
    found = gradient(lambda x: eg.norm(x, p), x, device)
    assert found[0] == 0
    assert np.isfinite(found).all()


def test_norm_of_complex_numbers() -> None:
    x = RNG.normal(size=(2, 3)) + 1j * RNG.normal(size=(2, 3))
    for p in (1, 2, 3.5, INF):
        t = eg.tensor(x, requires_grad=True)
        out = eg.norm(t, p, axis=1)
        assert str(out.dtype) == "float64"
        out.sum().backward()
        other = torch.tensor(x, requires_grad=True)
        want = torch.linalg.vector_norm(other, p, 1)
        want.sum().backward()
        close(out, want.detach().numpy(), 1e-12)
        close(t.grad, other.grad.numpy(), 1e-12)


def test_norm_of_nothing(device: str) -> None:
    assert eg.norm(eg.zeros((0,), device=device)).item() == 0
    assert eg.norm(eg.zeros((2, 0), device=device), 3, axis=1).tolist() == [0, 0]


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin", "cumsum", "cumprod"])
@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_nothing_are_empty(name: str, compiled: bool, device: str) -> None:
    """An empty axis has no largest element, but none is needed: as in PyTorch."""
    theirs = {"softmin": torch.nn.functional.softmin}.get(name) or getattr(torch, name)
    for shape, axis in (((0,), 0), ((3, 0), 1), ((3, 0), 0), ((2, 0, 4), 1), ((0, 5), -1)):
        x = here(np.ones(shape), device).requires_grad_()

        def run(x: Any, axis: int = axis) -> Any:
            y = getattr(eg, name)(x, axis=axis)
            return y.detach(), *grad((y * 2).sum(), [x])

        out, slope = (eg.jit(run) if compiled else run)(x)
        assert out.shape == tuple(theirs(torch.ones(shape), axis).shape) == shape
        assert slope.shape == shape
        assert (out.dtype, str(out.device)) == (x.dtype, str(x.device))
    batched = eg.vmap(lambda x: getattr(eg, name)(x, axis=0))(here(np.ones((2, 0)), device))
    assert batched.shape == (2, 0)
    none = here(np.ones(0), device)
    _, tangent = eg.jvp(lambda x: getattr(eg, name)(x, axis=0), [none], [none])
    assert tangent.shape == (0,)


# --- quantiles -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["linear", "lower", "higher", "nearest", "midpoint"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_quantile(how: str, axis: int | None, device: str) -> None:
    x, q = RNG.normal(size=(3, 4)), [0.0, 0.13, 0.61, 1.0]
    for at in (0.37, q):
        beside(
            device,
            lambda t, at=at: eg.quantile(t, at, axis, interpolation=how),
            lambda t, at=at: torch.quantile(
                t, torch.tensor(at, dtype=t.dtype), axis, interpolation=how
            ),
            x,
        )


def test_quantile_by_its_share(device: str) -> None:
    """q may be a tensor, and has a derivative."""
    beside(
        device,
        lambda t, q: eg.quantile(t, q, axis=1, keepdims=True),
        lambda t, q: torch.quantile(t, q, dim=1, keepdim=True),
        RNG.normal(size=(2, 5)),
        np.array([0.3, 0.8]),
    )
    x = eg.tensor(fitted(np.arange(3.0), device), device=device)
    out = eg.quantile(x, eg.tensor(fitted(np.array([-0.1, 0.5, 1.1, NAN]), device), device=device))
    np.testing.assert_array_equal(values(out), [NAN, 1, NAN, NAN])


def test_several_axes_at_once(device: str) -> None:
    x = fitted(RNG.normal(size=(2, 3, 2)), device)
    t = eg.tensor(x, device=device)
    for axis in ((0, 2), (-1, 1), (0, 1, 2), ()):
        axes: Any = axis
        close(eg.quantile(t, 0.3, axes), np.quantile(x, 0.3, axes), 1e-12)
        close(t.median(axes, keepdims=True).reshape(t.median(axes).shape), t.median(axes), 0)
        close(t.nanmax(axes), np.nanmax(x, axes) if axes else x, 0)
        close(t.nansum(axes), np.nansum(x, axes), 1e-12)
        assert t.count_nonzero(axes).shape == np.sum(x, axes).shape


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_median_is_the_lower_of_two(n: int, device: str) -> None:
    x = RNG.normal(size=(3, n))
    beside(device, lambda t: t.median(), torch.median, x)
    beside(device, lambda t: t.median(axis=1), lambda t: torch.median(t, 1).values, x)
    x[0, 0] = x[1, :] = NAN
    t = eg.tensor(fitted(x, device), device=device)
    close(t.median(axis=1), torch.median(torch.tensor(x), 1).values.numpy(), 1e-12)
    close(t.nanmedian(axis=1), torch.nanmedian(torch.tensor(x), 1).values.numpy(), 1e-12)
    ints = np.array([3, 1, 2, 9], np.int16)
    assert eg.tensor(ints, device=device).median().item() == 2


def test_nan_is_skipped_or_spreads(device: str) -> None:
    x = np.array([[1.0, NAN, 3.0, 2.0], [NAN] * 4, [5.0, 4.0, 7.0, 6.0]])
    t = eg.tensor(fitted(x, device), device=device)
    close(eg.quantile(t, 0.4, axis=1), np.quantile(x, 0.4, axis=1), 1e-6)
    close(t.nanquantile(0.4, axis=1), [1.8, NAN, 5.2], 1e-6)
    close(t.nanmean(axis=1), [2, NAN, 5.5], 1e-6)
    close(t.nanmax(axis=1), [3, NAN, 7], 0)
    close(t.nanmin(axis=1), [1, NAN, 4], 0)
    close(t.nansum(axis=1), [6, 0, 22], 1e-6)
    beside(device, lambda t: t.nanmean(axis=1), lambda t: torch.nanmean(t, 1), x[[0, 2]])
    beside(device, lambda t: t.nansum(axis=0), lambda t: torch.nansum(t, 0), x)


# --- scans ---------------------------------------------------------------------------------------

SHAPES = [((1,), 0), ((7,), 0), ((3, 4), 0), ((2, 3, 5), 1), ((2, 9), -1)]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_scans(shape: Any, axis: int, device: str) -> None:
    x = RNG.normal(size=shape)
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        beside(
            device,
            lambda t, name=name: getattr(eg, name)(t, axis),
            lambda t, name=name: getattr(torch, name)(t, axis),
            x,
        )
    for name in ("cummax", "cummin"):
        beside(
            device,
            lambda t, name=name: getattr(eg, name)(t, axis),
            lambda t, name=name: getattr(torch, name)(t, axis),
            np.round(x),  # equal elements: the indices say which
        )


KERNELS = ("cumulative_sum", "cumulative_prod", "cummax_index", "cummin_index", "logcumsumexp")


@pytest.mark.parametrize("n", [32, 33, 64, 100, 700])
def test_long_scans(n: int, device: str) -> None:
    """By blocks, and blocks of blocks; the CPU without its kernels."""
    x = np.round(RNG.uniform(-1, 1, (n, 2)), 2) + 1
    with ExitStack() as stack:
        for name in KERNELS if device == "cpu" else ():
            stack.enter_context(without_kernel("cpu", name))
        for axis, rows in ((0, x), (1, x.T)):
            for name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"):
                ours, theirs = getattr(eg, name), getattr(torch, name)
                t = here(rows, device)
                got, want = ours(t, axis), theirs(torch.tensor(rows), axis)
                pairs = zip(got, want, strict=True) if name[:4] == "cumm" else [(got, want)]
                for g, w in pairs:
                    close(g, w.numpy(), 1e-9)


def test_derivatives_of_long_scans(device: str) -> None:
    x = RNG.uniform(0.8, 1.2, 70)
    x[[20, 50]] = 0
    beside(device, lambda t: t.cumprod(0), lambda t: torch.cumprod(t, 0), x)
    beside(device, lambda t: t.logcumsumexp(0), lambda t: torch.logcumsumexp(t, 0), x)
    beside(device, lambda t: t.cumsum(0) ** 2, lambda t: torch.cumsum(t, 0) ** 2, x)


@pytest.mark.parametrize("zeros", [[0], [2], [4], [1, 3], [0, 1, 4]])
def test_cumprod_at_zeros(zeros: list[int], device: str) -> None:
    x = RNG.uniform(0.5, 2, (2, 5))
    x[0, zeros] = 0
    beside(device, lambda t: t.cumprod(1), lambda t: torch.cumprod(t, 1), x)


def test_cumprod_of_complex_numbers() -> None:
    x = RNG.normal(size=5) + 1j * RNG.normal(size=5)
    v = RNG.normal(size=5) + 1j * RNG.normal(size=5)
    t, other = eg.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    t.cumprod(0).backward(eg.tensor(v))
    torch.cumprod(other, 0).backward(torch.tensor(v))
    close(t.grad, other.grad.numpy(), 1e-12)


def test_extremes_with_nan(device: str) -> None:
    x = np.array([1.0, NAN, 3.0, NAN, 0.0])
    beside(device, lambda t: t.cummax(0), lambda t: torch.cummax(t, 0), x)
    beside(device, lambda t: t.cummin(0), lambda t: torch.cummin(t, 0), x)


def test_logcumsumexp_at_extremes(device: str) -> None:
    x = np.array([-INF, -INF, -1000.0, 1000.0, 1000.0, -INF])
    t = eg.tensor(fitted(x, device), device=device)
    close(t.logcumsumexp(0), np.logaddexp.accumulate(x), 1e-6)
    slopes = gradient(lambda t: t.logcumsumexp(0)[2:], x[:5], device)
    assert np.isfinite(slopes).all()
    close(slopes.sum(), 3.0, 1e-6)
    assert np.isposinf(values(eg.tensor([0.0, INF, 1.0], device=device).logcumsumexp(0))[1:]).all()


def test_sums_do_not_stall(device: str) -> None:
    """A running float32 sum of 2 ** 24 + ... ones would stop growing; halves much earlier."""
    x = eg.ones((5000,), "float16", device)
    close(x.cumsum(0)[-1], np.float16(5000), 0)
    if not is_narrow(device):
        big = np.full(200_000, 0.1, np.float32)
        want = np.cumsum(big.astype(np.float64))
        close(eg.tensor(big, device=device).cumsum(0), want, 1e-6)


LONG_ROWS: dict[str, tuple[Any, Any]] = {
    "sum": (lambda x: x.sum(axis=-1), lambda x: x.sum(-1)),
    "mean": (lambda x: x.mean(axis=-1), lambda x: x.mean(-1)),
    "sum of several axes": (
        lambda x: x.reshape((-1, 4, x.shape[-1] // 4)).sum(axis=(0, 2)),
        lambda x: x.reshape((-1, 4, x.shape[-1] // 4)).sum((0, 2)),
    ),
    "var": (lambda x: eg.var(x, axis=-1), lambda x: x.var(-1, correction=0)),
    "var of columns": (lambda x: eg.var(x.T, axis=0), lambda x: x.T.var(0, correction=0)),
    "norm": (lambda x: eg.norm(x, axis=-1), lambda x: torch.linalg.vector_norm(x, dim=-1)),
    "logsumexp": (lambda x: eg.logsumexp(x, axis=-1), lambda x: x.logsumexp(-1)),
    "softmax": (lambda x: eg.softmax(x, axis=-1), lambda x: x.softmax(-1)),
    "layer_norm": (
        lambda x: eg.layer_norm(x, x.shape[-1:]),
        lambda x: torch.layer_norm(x, x.shape[-1:]),
    ),
    "rms_norm": (
        lambda x: eg.rms_norm(x, x.shape[-1:], eps=1e-5),
        lambda x: torch.rms_norm(x, x.shape[-1:], eps=1e-5),
    ),
    "batch_norm": (
        lambda x: eg.batch_norm(x.T, None, None, training=True),
        lambda x: torch.nn.functional.batch_norm(x.T, None, None, training=True),
    ),
}


@pytest.mark.parametrize("name", LONG_ROWS)
@pytest.mark.parametrize("shape", [(1, 2_000_000), (3, 700_004), (32, 50_000), (100, 4100)])
@pytest.mark.parametrize("compiled", [False, True])
def test_long_rows_lose_no_digits(
    name: str, shape: tuple[int, int], compiled: bool, device: str
) -> None:
    """Values and gradients in float32 are as near to float64 as PyTorch's are, up to a factor of 4:
    sums of thousands of numbers are made of the sums of parts. 8 where there is no float64 in which
    the parts could be added up."""
    ours, theirs = LONG_ROWS[name]
    rng = np.random.default_rng(3)
    # numbers of many sizes: their squares make small terms of large sums
    x = (rng.uniform(0.5, 1, shape) * 2.0 ** rng.integers(-6, 3, shape)).astype(np.float32)
    weights = rng.uniform(0.5, 1, theirs(torch.from_numpy(x)).shape).astype(np.float32)

    def by_torch(dtype: Any) -> list[Any]:
        t = torch.from_numpy(x).to(dtype).requires_grad_()
        out = theirs(t)
        out.backward(torch.from_numpy(weights).to(dtype))
        return [out.detach().double().numpy(), t.grad.double().numpy()]

    def run(t: Any, w: Any) -> Any:
        out = ours(t)
        return out.detach(), *grad(out, [t], [w])

    given = eg.tensor(x, device=device, requires_grad=True), eg.tensor(weights, device=device)
    got = (eg.jit(run) if compiled else run)(*given)
    for mine, near, want in zip(got, by_torch(torch.float32), by_torch(torch.float64), strict=True):
        error = np.linalg.norm(values(mine).astype(np.float64) - want)
        usual = np.linalg.norm(near - want)
        half_ulp = 2.0**-24 * np.linalg.norm(want)
        assert error <= (8 if is_narrow(device) else 4) * max(usual, half_ulp)


def test_integers_accumulate_in_64_bits(device: str) -> None:
    x = eg.tensor(np.full(5, 100, np.int8), device=device)
    assert x.cumsum(0).tolist() == [100, 200, 300, 400, 500]
    assert str(x.cumsum(0).dtype) == "int64"
    assert str(x.cumsum(0, dtype="int16").dtype) == "int16"
    assert str(eg.tensor(np.ones(2, np.uint8), device=device).cumprod(0).dtype) == "uint64"
    assert eg.tensor([True, True], device=device).cumulative_sum().tolist() == [1, 2]


def test_initial_values(device: str) -> None:
    x = eg.tensor([2.0, 3.0], device=device)
    assert eg.cumulative_sum(x, include_initial=True).tolist() == [0, 2, 5]
    assert eg.cumulative_prod(x, include_initial=True).tolist() == [1, 2, 6]
    empty = eg.zeros((2, 0), device=device)
    assert eg.cumulative_prod(empty, axis=1, include_initial=True).tolist() == [[1], [1]]
    assert eg.cumulative_sum(eg.ones((), device=device), axis=0).item() == 1  # as PyTorch's
    with pytest.raises(AxisError, match="0-d"):
        eg.cumulative_sum(eg.ones((), device=device), axis=1)


def test_differences_and_integrals(device: str) -> None:
    y, x = RNG.normal(size=(3, 5)), np.sort(RNG.normal(size=5))
    beside(device, lambda t: t.diff(n=2), lambda t: torch.diff(t, 2), y)
    beside(
        device,
        lambda t, p: eg.diff(t, axis=0, prepend=p),
        lambda t, p: torch.diff(t, dim=0, prepend=p),
        y,
        RNG.normal(size=(2, 5)),
    )
    beside(device, eg.trapezoid, torch.trapezoid, y, x)
    beside(device, lambda t: eg.trapezoid(t, dx=0.3, axis=0),
           lambda t: torch.trapezoid(t, dx=0.3, dim=0), y)  # fmt: skip
    beside(device, eg.trapezoid, torch.trapezoid, y, np.sort(RNG.normal(size=(3, 5))))


@pytest.mark.parametrize("name", ["median", "cumprod", "logcumsumexp", "nanmean", "norm"])
def test_inside_jit_and_vmap(name: str, device: str) -> None:
    x = eg.tensor(fitted(RNG.normal(size=(3, 4)), device), device=device)

    def loss(row: Any) -> Any:
        fn = getattr(eg, name)
        out = fn(row, axis=0)
        return (out * out).sum()

    each = [values(eg.grad(loss)(row)) for row in x]
    close(eg.vmap(eg.grad(loss))(x), np.stack(each), 1e-10)
    close(eg.jit(eg.grad(loss))(x[0]), each[0], 1e-10)


@pytest.mark.parametrize("fn", [eg.sum, eg.max, eg.mean])
def test_large_reductions_of_one_element(fn: Any, device: str) -> None:
    """Nothing is combined along an axis of size 1, however long the others are."""
    x = eg.ones((300_000, 1), device=device)
    assert fn(x, axis=1).shape == (300_000,)
    assert fn(x, axis=1, keepdims=True)[7].tolist() == [1]


@pytest.mark.parametrize("correction", [1, 2, 3, 4, 7.5])
def test_more_correction_than_elements(correction: float, device: str) -> None:
    """Infinity, or NaN where all elements are equal: as NumPy and PyTorch have it."""
    for x in ([1.0, 2.0, 4.0], [5.0, 5.0, 5.0], [1.0, NAN, 2.0], [3.0], []):
        with warnings.catch_warnings(action="ignore"):  # PyTorch says that it makes no sense
            want = torch.var(torch.tensor(x), correction=correction).numpy()
        t = eg.tensor(np.array(x, np.float32), device=device)
        for way in (lambda f: f, eg.jit):
            for fn, expected in ((eg.var, want), (eg.std, np.sqrt(want))):
                got = values(way(lambda x, fn=fn: fn(x, correction=correction))(t))
                np.testing.assert_allclose(got, expected, rtol=1e-6)


# --- in pieces -----------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (1, 2), ()])
@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 131, 2), (64, 2, 3), (3, 2, 67)])
def test_reductions_in_pieces(
    shape: Any, axis: Any, keepdims: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is large is converted slice by slice; integers are the same whatever the slices."""
    for dtype in ("int8", "uint16", "int32", "bool"):
        x = RNG.integers(-3, 4, shape).astype(dtype)
        t = eg.tensor(x, device=device)
        given: Any = {"axis": axis, "keepdims": keepdims}
        wide = np.uint64 if dtype[0] == "u" else np.int64
        want = {
            "sum": x.sum(dtype=wide, **given),
            "prod": x.prod(dtype=wide, **given),
            "count_nonzero": (x != 0).sum(dtype=np.int64, **given),
        }
        for large in (1 << 22, 9, 1):
            monkeypatch.setattr(reductions, "_LARGE", large)
            for name, expected in want.items():
                got = getattr(eg, name)(t, **given).numpy()
                assert got.dtype == expected.dtype
                np.testing.assert_array_equal(got, expected, f"{name} {dtype} {large}")
        if dtype == "int8" and not keepdims:
            inside = eg.jit(lambda t: eg.sum(t, axis=axis))(t)
            np.testing.assert_array_equal(inside.numpy(), want["sum"])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", ["sum", "count_nonzero", "nonzero", "prod", "any", "all", "max"])
def test_small_integers_take_little_memory(name: str) -> None:
    """A copy in 64 bits would take eight times what is given, ten with the mask."""
    program = f"""
import numpy as np, everygrad as eg
def lines(word): return [int(l.split()[1]) for l in open("/proc/self/status") if word in l][0] << 10
eg.{name}(eg.ones((1 << 18,), dtype="int8"))  # what is loaded and compiled once
x = eg.tensor((np.arange(1 << 27, dtype=np.uint32) % 9973 == 0).view(np.int8))
eg.{name}(x[: 1 << 21])
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = lines("VmRSS")
eg.{name}(x)
print((lines("VmHWM") - before) / (1 << 27))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < 2.6
