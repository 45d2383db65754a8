"""WebGPU's functions on devices that flush subnormals, divide badly, and contract.

Every test runs three times: with the device's own arithmetic, with the worst that WGSL allows
(tests/support/hostile_wgsl.py), and with that and fused products. References are NumPy's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes
from everygrad.backends import base
from everygrad.backends.webgpu.driver.pipelines import Pipelines
from everygrad.backends.webgpu.source import render
from everygrad.tools import accuracy
from tests.conftest import DEVICES
from tests.support.hostile_wgsl import hostile

pytestmark = pytest.mark.skipif("webgpu" not in DEVICES, reason="this run promises no webgpu")
MODES = ("own", "flushing", "fusing")
TINY = np.float32(2.0**-126)
RNG = np.random.default_rng(1)


@pytest.fixture(params=MODES)
def arithmetic(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How the device computes while a test runs."""
    with_arithmetic(request.param, monkeypatch)
    yield request.param
    base.get("webgpu").launch_cache.clear()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """NumPy says nothing of overflows and NaN: they are what is asked for."""
    with np.errstate(all="ignore"):
        yield


def with_arithmetic(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = base.get("webgpu")
    backend.launch_cache.clear()
    if mode != "own":
        real = backend.gpu._compile

        def compiled(name: str, source: str, layout: Any) -> Any:
            return real(name, hostile(source, fused=mode == "fusing"), layout)

        monkeypatch.setattr(backend.gpu, "_pipelines", Pipelines(compiled))


def on(array: Any) -> eg.Tensor:
    return eg.tensor(np.asarray(array), device="webgpu")


def any_floats(count: int) -> Any:
    """Every size and kind: random bits, and subnormal numbers more often than those give."""
    bits = RNG.integers(0, 2**32, count, dtype=np.uint32)
    bits[::5] &= 0x807FFFFF
    bits[1::50] &= 0x80000000
    return bits.view(np.float32)


def same_bits(got: Any, want: Any, *given: Any) -> None:
    """Equal, zeros with their signs; any NaN will do for a NaN."""
    equal = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    bad = np.flatnonzero(~equal)
    shown = [(*(float(x[i]) for x in given), got[i], want[i]) for i in bad[:5]]
    assert not bad.size, f"{bad.size} of {got.size} differ: {shown}"


# --- the tools of these tests --------------------------------------------------------------------


def test_the_hostile_device_is_hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    with_arithmetic("flushing", monkeypatch)
    small = np.array([1e-40, -1e-40, 3e-39], np.float32)
    assert not (on(small) + on(small)).numpy().any()
    assert not (on(small) * 0.5).numpy().any()
    monkeypatch.setitem(render.TABLE, "div", {"f": "{0} / {1}"})
    monkeypatch.setitem(render.LIBRARY, "sqrt_f", "fn sqrt_f(x: f32) -> f32 { return sqrt(x); }\n")
    base.get("webgpu").launch_cache.clear()
    x, y = RNG.uniform(1, 2, (2, 10_000)).astype(np.float32)
    try:
        quotient, root = (on(x) / on(y)).numpy(), eg.sqrt(on(x)).numpy()
        tiny = (on(small) / on(small)).numpy()
    finally:
        base.get("webgpu").launch_cache.clear()
    for got, exact, most in ((quotient, x / y.astype(float), 2.5), (root, x**0.5, 4.5)):
        off = np.abs(got - exact) / np.spacing(exact.astype(np.float32))
        assert most - 0.6 < off.max() <= most + 2.5  # the device itself may be off, as WGSL says
        assert (off > 0.6).mean() > 0.5
    assert np.isnan(tiny).all()


def test_fused_products_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with_arithmetic("fusing", monkeypatch)
    x = RNG.uniform(1, 2, 1000).astype(np.float32)
    rounded = x * x
    compiled = eg.jit(lambda x, y: x * x - y)
    got = compiled(on(x), on(rounded)).numpy()
    np.testing.assert_array_equal(got, (x.astype(float) ** 2 - rounded).astype(np.float32))
    assert got.any()


# --- functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", accuracy.FUNCTIONS)
def test_functions_are_accurate(name: str, arithmetic: str) -> None:
    error = accuracy.measure(name, "webgpu")
    assert accuracy.fault(name, error) is None, error
    if name not in accuracy.ENDS_IN_ARITHMETIC:
        assert not error.flushed


def test_division_is_correctly_rounded(arithmetic: str) -> None:
    x, y = any_floats(200_000), any_floats(200_000)
    near = y[:1000] * np.float32(3)  # quotients that are whole, and quotients next to them
    x = np.concatenate([x, near, np.nextafter(near, np.float32(0)), TINY * any_floats(1000)])
    y = np.concatenate([y, y[:1000], y[:1000], RNG.uniform(1, 1e6, 1000).astype(np.float32)])
    same_bits((on(x) / on(y)).numpy(), x / y, x, y)


def test_roots_are_correctly_rounded(arithmetic: str) -> None:
    x = any_floats(200_000)
    whole = np.arange(1, 5000, dtype=np.float32) ** 2
    x = np.concatenate([x, whole, np.nextafter(whole, np.float32(0)), np.nextafter(whole, TINY)])
    same_bits(eg.sqrt(on(x)).numpy(), np.sqrt(x), x)


@pytest.mark.parametrize("name", ["remainder", "floor_divide"])
def test_remainders_are_those_of_numpy(name: str, arithmetic: str) -> None:
    x, y = any_floats(50_000), any_floats(50_000)
    near = y[:25_000] * RNG.integers(-50, 50, 25_000).astype(np.float32)
    x[:25_000] = np.where(RNG.random(25_000) < 0.5, near, np.nextafter(near, np.float32(1)))
    want = getattr(np, name)(x, y)
    same_bits(getattr(eg, name)(on(x), on(y)).numpy(), want, x, y)


# --- what drivers flush --------------------------------------------------------------------------

EDGES = np.array(
    [0, 1e-45, 1e-40, TINY, np.nextafter(TINY, np.float32(0)), 0.25, 0.5, 1, 1.5, 2.5, 8388607.5,
     8388608, 3e9, 3.4e38, np.inf, np.nan], np.float32
)  # fmt: skip
EDGES = np.concatenate([EDGES, -EDGES])
PAIRS = [np.repeat(EDGES, len(EDGES)), np.tile(EDGES, len(EDGES))]


@pytest.mark.parametrize(
    "name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
)
def test_comparisons_see_subnormals(name: str, arithmetic: str) -> None:
    got = getattr(eg, name)(*map(on, PAIRS)).numpy()
    np.testing.assert_array_equal(got, getattr(np, name)(*PAIRS))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_see_subnormals(name: str, arithmetic: str) -> None:
    got = getattr(eg, name)(*map(on, PAIRS)).numpy()
    np.testing.assert_array_equal(got, getattr(np, name)(*PAIRS))  # which zero is left open


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "sign", "negative", "abs"])
def test_rounding_and_signs_see_subnormals(name: str, arithmetic: str) -> None:
    x = np.concatenate([EDGES, any_floats(5000)])
    same_bits(getattr(eg, name)(on(x)).numpy(), getattr(np, name)(x), x)


@pytest.mark.parametrize("scale", [1.0, 2.0**-70, 2.0**-128, 2.0**-136])
def test_complex_quotients_of_subnormals(scale: float, arithmetic: str) -> None:
    """Of numbers of few digits, which are subnormal numbers exactly."""
    parts = np.round(RNG.uniform(0.5, 2, (4, 500)) * 16) / 16 * np.array([[1], [-1], [1], [-1]])
    x, y = (((p + 1j * q) * scale).astype(np.complex64) for p, q in (parts[:2], parts[2:]))
    for above in (x, (x / scale).astype(np.complex64)):
        want = above.astype(np.complex128) / y.astype(np.complex128)
        got = (on(above) / on(y)).numpy()
        fits = np.isfinite(want.astype(np.complex64))
        assert fits.any() or scale < 2.0**-127
        np.testing.assert_allclose(got[fits], want[fits], rtol=1e-6)


def test_a_subnormal_number_is_true(arithmetic: str) -> None:
    np.testing.assert_array_equal(on(EDGES).astype("bool").numpy(), EDGES.astype(bool))


def test_powers_at_the_edges_are_those_of_numpy(arithmetic: str) -> None:
    want = np.power(*(x.astype(np.longdouble) for x in PAIRS))
    got = eg.pow(*map(on, PAIRS)).numpy()
    error = accuracy.compare(got, want, PAIRS)
    assert max(error.normal, error.subnormal) <= 4.0, error
    assert not error.wrong_nan
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[got == 0]))


def test_large_powers_of_numbers_near_one(arithmetic: str) -> None:
    """The exponent multiplies the logarithm's error: it must be known to more than float32."""
    x = RNG.uniform(0.71, 1.41, 50_000).astype(np.float32)
    y = (RNG.uniform(-125, 125, len(x)) / np.log2(x.astype(np.float64))).astype(np.float32)
    want = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    error = accuracy.compare(eg.pow(on(x), on(y)).numpy(), want, [x, y])
    assert error.normal <= 2.0, error


REWRITTEN: dict[str, Any] = {  # by drivers, if they can
    "x - x": lambda x, y: x - x,
    "x + -x": lambda x, y: x + -x,
    "x * 0": lambda x, y: x * 0.0,
    "-0 * x": lambda x, y: -0.0 * x,
    "x * y * 0": lambda x, y: x * y * 0.0,
    "(y + x) - y": lambda x, y: (y + x) - y,
    "(y - x) + x": lambda x, y: (y - x) + x,
    "y - (y - x)": lambda x, y: y - (y - x),
    "x / x": lambda x, y: x / x,
    "(x / y) * y": lambda x, y: (x / y) * y,
    "sqrt(x) * sqrt(x)": lambda x, y: abs(x) ** 0.5 * abs(x) ** 0.5,
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_compiled_arithmetic_is_not_rewritten(name: str, arithmetic: str) -> None:
    x = np.array([0.0, -0.0, 1, -3.7, 1e-7, 0.1, np.inf, -np.inf, np.nan, 1e38], np.float32)
    y = RNG.uniform(1, 10, len(x)).astype(np.float32)
    function = REWRITTEN[name]
    same_bits(eg.jit(function)(on(x), on(y)).numpy(), function(x, y), x, y)


def test_subnormal_constants_are_bits() -> None:
    assert render.constant(1e-40, dtypes.float32) == "bits_f(71362u)"
    assert render.constant(float(TINY), dtypes.float32) == "1.1754943508222875e-38f"
