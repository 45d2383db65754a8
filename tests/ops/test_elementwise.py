"""Elementwise ops and activations where the tests over the registry do not look: bits, ends of
ranges, kinks, and every name the Array API asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import everygrad as eg
from everygrad import nn
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from tests.support.checks import is_narrow, native_threshold, values

NAN, INF = np.nan, np.inf
ROOT = Path(__file__).parents[2]
STANDARD = {
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_left_shift", "bitwise_invert", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "ceil", "clip", "conj", "copysign", "cos", "cosh", "divide", "equal", "exp", "expm1", "floor",
    "floor_divide", "greater", "greater_equal", "hypot", "imag", "isfinite", "isinf", "isnan",
    "less", "less_equal", "log", "log1p", "log2", "log10", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative",
    "nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round", "sign",
    "signbit", "sin", "sinh", "square", "sqrt", "subtract", "tan", "tanh", "trunc",
}  # fmt: skip


def test_every_elementwise_function_of_the_standard_is_there() -> None:
    assert {name for name in STANDARD if not callable(getattr(eg, name, None))} == set()


def test_the_page_shows_the_record_as_it_is() -> None:
    page = (ROOT / "docs/adding-an-op.md").read_text(encoding="utf-8")
    record = page.split("-->\n```python\n")[1].split("```")[0]
    source = (ROOT / "everygrad/ops/elementwise/arithmetic.py").read_text(encoding="utf-8")
    assert "hypot" in record
    assert record in source


def on_both_ways(fn: Any) -> list[Any]:
    """The result by NumPy and by a compiled kernel (on a GPU, twice the same)."""
    found = []
    for threshold in (0, 1 << 40):
        with native_threshold(threshold):
            found.append(fn())
    return found


# --- integers ------------------------------------------------------------------------------------

WHOLE = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "minimum": np.minimum,
    "floor_divide": np.floor_divide, "remainder": np.remainder, "maximum": np.maximum,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "less": np.less, "equal": np.equal, "greater_equal": np.greater_equal,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "int64"])
@pytest.mark.parametrize("name", list(WHOLE))
def test_all_pairs_of_small_integers(name: str, dtype: str, device: str) -> None:
    """Signs and remainders: drivers have been wrong about those of negative numbers."""
    numbers = np.arange(*((0, 256) if dtype == "uint8" else (-128, 128)))
    a, b = (x.reshape(-1).astype(dtype) for x in np.meshgrid(numbers, numbers[numbers != 0]))
    x, y = eg.tensor(a, device=device), eg.tensor(b, device=device)
    for made in on_both_ways(lambda: getattr(eg, name)(x, y)):
        with np.errstate(over="ignore"):
            want = WHOLE[name](a, b)
        assert np.array_equal(values(made), want)


# --- bits ----------------------------------------------------------------------------------------

SPECIALS = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1.5, -2.25, 5e-324, -5e-324, 1e-45, 3e38, -3e38]


def grid(dtype: Any) -> tuple[Any, Any]:
    with np.errstate(over="ignore"):
        points = np.array(SPECIALS).astype(dtype)
    return np.repeat(points, len(points)), np.tile(points, len(points))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_neighbours_and_signs(dtype: str, device: str) -> None:
    if dtype == "float64" and is_narrow(device):
        pytest.skip("no float64 there")
    x, y = grid(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    a, b = eg.tensor(x, device=device), eg.tensor(y, device=device)
    for ours, theirs in ((eg.nextafter, np.nextafter), (eg.copysign, np.copysign)):
        with np.errstate(over="ignore"):
            want = theirs(x, y).astype(np.float64)
        for got in on_both_ways(lambda ours=ours: values(ours(a, b)).astype(np.float64)):
            np.testing.assert_array_equal(got, want)
            solid = ~np.isnan(want) & (x != y)  # of equal zeros NumPy takes the first in float16
            np.testing.assert_array_equal(np.signbit(got[solid]), np.signbit(want[solid]))
    for got in on_both_ways(lambda: values(eg.signbit(a))):
        np.testing.assert_array_equal(got, np.signbit(x))


def test_neighbours_of_every_float16(device: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[~np.isnan(x)]
    for towards in (INF, -INF, 0.0):
        y = np.float16(towards)
        got = eg.nextafter(eg.tensor(x, device=device), eg.tensor(y, device=device))
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(values(got), np.nextafter(x, y))


# --- integers and complex numbers ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_fmod_of_integers(dtype: str, device: str) -> None:
    limits = np.iinfo(dtype)
    points = np.array([limits.min, limits.min + 1, -7, -1, 0, 1, 3, 7, limits.max])
    points = points[(points >= limits.min)].astype(dtype)
    x, y = np.repeat(points, len(points)), np.tile(points, len(points))
    x, y = x[y != 0], y[y != 0]
    if limits.min < 0:  # the one quotient that overflows is C's to define
        keep = ~((x == limits.min) & (y == -1))
        x, y = x[keep], y[keep]
    a, b = eg.tensor(x, device=device), eg.tensor(y, device=device)
    for got in on_both_ways(lambda: eg.fmod(a, b)):
        assert str(got.dtype) == dtype
        np.testing.assert_array_equal(values(got), np.fmod(x, y))


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
def test_rounding_leaves_integers(name: str, device: str) -> None:
    for dtype in ("int8", "uint16", "int64"):
        x = np.array([0, 5, 100], dtype)
        got = getattr(eg, name)(eg.tensor(x, device=device))
        assert str(got.dtype) == dtype
        np.testing.assert_array_equal(values(got), x)


def test_sign_of_complex_numbers() -> None:
    z = np.array([3 + 4j, -1j, 0, 2 - 1j])
    x = eg.tensor(z, requires_grad=True)
    t = torch.tensor(z, requires_grad=True)
    ours, theirs = eg.sign(x), torch.sgn(t)
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy())
    seed = np.array([1 - 1j, 2j, 1, 0.5])
    (got,) = eg.autograd.grad(ours, [x], [eg.tensor(seed)])
    (want,) = torch.autograd.grad(theirs, [t], [torch.tensor(seed)])
    np.testing.assert_allclose(got.numpy(), want.numpy(), atol=1e-15)


# --- ends ----------------------------------------------------------------------------------------


def test_hypot_does_not_overflow(device: str) -> None:
    x = eg.tensor([3e38, 1e-38, INF, NAN, 0.0], dtype="float32", device=device)
    y = eg.tensor([1e38, 1e-38, NAN, 1.0, 0.0], dtype="float32", device=device)
    want = np.hypot(values(x).astype(np.float64), values(y).astype(np.float64))
    np.testing.assert_allclose(values(eg.hypot(x, y)), want.astype(np.float32), rtol=3e-7)


def test_cube_roots_of_all_sizes(device: str) -> None:
    for dtype in ("float32",) if is_narrow(device) else ("float32", "float64"):
        exponents = np.arange(-149, 128) if dtype == "float32" else np.arange(-1074, 1024, 7)
        x = (1.3 * 2.0**exponents).astype(dtype)
        x = np.concatenate([x[np.isfinite(x)], -x[:9], np.array([0, -0.0, INF], dtype)])
        want = np.cbrt(x.astype(np.float64))
        rtol = 3e-7 if dtype == "float32" else 5e-16
        for got in on_both_ways(lambda x=x: values(eg.cbrt(eg.tensor(x, device=device)))):
            np.testing.assert_allclose(got, want, rtol=rtol)


def test_logaddexp_of_infinities(device: str) -> None:
    pairs = [[INF, INF], [-INF, -INF], [INF, -INF], [-INF, 2.0], [NAN, 1.0], [1000.0, 1000.0]]
    x, y = np.array(pairs, np.float32).T
    a = eg.tensor(x, device=device, requires_grad=True)
    out = eg.logaddexp(a, eg.tensor(y, device=device))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(values(out), np.logaddexp(x, y), rtol=1e-6)
    out.sum().backward()
    np.testing.assert_allclose(values(a.grad), [0.5, 0.5, 1.0, 0.0, NAN, 0.5])


BASES = [*SPECIALS, 2.0, -2.0, -0.3, 0.7, 1e-20, -1e-20]


@pytest.mark.parametrize(
    "exponent", [0.5, -0.5, 0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 1.5, INF, -INF, NAN]
)
def test_a_number_as_exponent_is_a_tensor_of_it(exponent: float, device: str) -> None:
    """Shortcuts for such exponents keep what the standard says of 0 and infinities, signs too."""
    for dtype in ("float16", "float32") if is_narrow(device) else ("float32", "float64"):
        beside = np.repeat(np.array([exponent]), len(BASES)).astype(dtype)
        with np.errstate(all="ignore"):
            x = eg.tensor(np.array(BASES).astype(dtype), device=device)
            want = np.power(values(x), beside)
        scalar = eg.tensor(exponent, dtype=dtype, device=device)
        ways = (
            lambda x: x**exponent,
            eg.jit(lambda x: x**exponent),
            lambda x, y=scalar: x**y,
            lambda x, y=scalar: x ** y.broadcast_to(x.shape),
            lambda x, y=scalar: (x.reshape((4, 5)) ** y.broadcast_to((4, 1))).reshape((20,)),
        )
        for way in ways:
            for got in on_both_ways(lambda way=way, x=x: values(way(x))):
                rtol = 2e-3 if dtype == "float16" else 1e-6
                np.testing.assert_allclose(got, want, rtol=rtol, atol=2e-38)
                kept = ~np.isnan(want)
                np.testing.assert_array_equal(np.signbit(got)[kept], np.signbit(want)[kept])


@pytest.mark.parametrize("way", ["eager", "jit", "again"])
def test_slopes_in_the_exponent_are_pytorchs(way: str, device: str) -> None:
    """NaN for negative bases; at 0 none for exponents from 0 on, infinite below."""
    x, y = (
        np.array(v, np.float32).reshape(-1)
        for v in np.meshgrid(BASES, [-2.0, -1.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 3.5])
    )
    a, b = (torch.tensor(v, requires_grad=True) for v in (x, y))
    want = torch.autograd.grad((a**b).sum(), b)[0].numpy()
    t = eg.tensor(x, device=device)
    slope = eg.grad(lambda y: (t**y).sum())
    if way == "again":  # the rule as tensor ops
        u = eg.tensor(y, device=device, requires_grad=True)
        (got,) = eg.autograd.grad((t**u).sum(), u, create_graph=True)
    else:
        got = (eg.jit(slope) if way == "jit" else slope)(eg.tensor(y, device=device))
    np.testing.assert_allclose(values(got), want, rtol=1e-5)


def test_negative_powers_of_integers_are_refused(device: str) -> None:
    for dtype in ("int8", "int16", "int32", "int64"):
        x = eg.ones((3,), dtype=dtype, device=device)
        for work in (lambda x: x**-1, lambda x: eg.pow(x, -3)):
            for way in (lambda f: f, eg.jit, eg.vmap):
                with pytest.raises(ArgumentError, match=f"pow: an integer to .* {dtype} to the"):
                    way(work)(x)
        assert (x**-1.0).dtype.is_float
        assert (x**0).tolist() == [1, 1, 1]
        with pytest.raises(ArgumentError, match="pow: an integer to a negative power"):
            x **= -2
        assert x.tolist() == [1, 1, 1]
    small = eg.tensor([2, 3], dtype="uint8", device=device)
    assert (small ** eg.tensor([3, 2], dtype="uint8", device=device)).tolist() == [8, 9]


def test_slopes_of_square_roots_as_powers(device: str) -> None:
    x = eg.tensor([4.0, 0.25, 0.0, -0.0, -1.0], dtype="float32", device=device, requires_grad=True)
    (x**0.5).sum().backward()
    np.testing.assert_allclose(values(x.grad), [0.25, 1.0, INF, INF, NAN])


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_numbers_are_true_but_0(name: str, device: str) -> None:
    kinds = ["bool", "int8", "uint16", "int64", "float16", "float32", "complex64"]
    kinds += [] if is_narrow(device) else ["float64", "complex128"]
    x, y = (np.array(v) for v in ([0, 3, 0, 2, NAN, -0.0, INF], [0, 0, 1, NAN, 0, 2, -1]))
    for kind in kinds:
        whole = np.dtype(kind).kind in "biu"
        a, b = (np.where(np.isnan(v) | np.isinf(v), 5, v) if whole else v for v in (x, y))
        a, b = a.astype(kind), b.astype(kind)
        pair = [eg.tensor(v, device=device) for v in (a, b)]
        for fn in (getattr(eg, name), eg.jit(getattr(eg, name))):
            for got in on_both_ways(lambda fn=fn, pair=pair: fn(*pair)):
                assert str(got.dtype) == "bool"
                np.testing.assert_array_equal(values(got), getattr(np, name)(a, b))
        np.testing.assert_array_equal(values(eg.logical_not(pair[0])), np.logical_not(a))
    mixed = getattr(eg, name)(
        eg.tensor([1, 0], device=device), eg.tensor([0.5, NAN], device=device)
    )
    np.testing.assert_array_equal(values(mixed), getattr(np, name)([1, 0], [0.5, NAN]))


def test_imaginary_numbers_are_true() -> None:
    assert values(eg.logical_not(eg.tensor([1j, 0j, 2.0]))).tolist() == [False, True, False]


def test_nan_to_num_keeps_the_dtype(device: str) -> None:
    for dtype in ("float16", "bfloat16", "float32"):
        x = eg.tensor([NAN, INF, -INF, 1.0], dtype=dtype, device=device)
        got = eg.nan_to_num(x)
        limits = eg.finfo(x.dtype)
        assert str(got.dtype) == dtype
        assert values(got).astype(np.float64).tolist() == [0.0, limits.max, limits.min, 1.0]


def test_clip_keeps_the_dtype(device: str) -> None:
    x = eg.tensor(np.array([1, 50, 200], np.uint8), device=device)
    got = eg.clip(x, 10, 100)
    assert str(got.dtype) == "uint8"
    assert values(got).tolist() == [10, 50, 100]
    with pytest.raises(DtypeError, match="clip: uint8 does not hold bounds of float32"):
        eg.clip(x, 0.5, 3.0)


def test_lerp_meets_both_ends(device: str) -> None:
    x = eg.tensor([0.1, 1e8], dtype="float32", device=device)
    end = eg.tensor([0.7, 1.0], dtype="float32", device=device)
    np.testing.assert_array_equal(values(eg.lerp(x, end, 0.0)), values(x))
    np.testing.assert_array_equal(values(eg.lerp(x, end, 1.0)), values(end))


# --- activations ---------------------------------------------------------------------------------

KINKS = [-INF, -1e4, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 1e4, INF, NAN]
ACTIVATIONS: dict[str, tuple[Any, Any]] = {
    "relu6": (eg.relu6, F.relu6),
    "leaky_relu": (lambda x: eg.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
    "elu": (lambda x: eg.elu(x, 0.7), lambda x: F.elu(x, 0.7)),
    "celu": (lambda x: eg.celu(x, 0.7), lambda x: F.celu(x, 0.7)),
    "selu": (eg.selu, F.selu),
    "softsign": (eg.softsign, F.softsign),
    "hardtanh": (eg.hardtanh, F.hardtanh),
    "hardsigmoid": (eg.hardsigmoid, F.hardsigmoid),
    "hardswish": (eg.hardswish, F.hardswish),
    "hardshrink": (eg.hardshrink, F.hardshrink),
    "softshrink": (eg.softshrink, F.softshrink),
    "tanhshrink": (eg.tanhshrink, F.tanhshrink),
    "threshold": (lambda x: eg.threshold(x, 0.5, -2.0), lambda x: F.threshold(x, 0.5, -2.0)),
    "logsigmoid": (eg.logsigmoid, F.logsigmoid),
    "mish": (eg.mish, F.mish),
    "gelu_tanh": (eg.gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_at_kinks(name: str, device: str) -> None:
    """Values and slopes as PyTorch has them, at the kinks and far out."""
    ours, theirs = ACTIVATIONS[name]
    points = np.array([p for p in KINKS if not (name in ("mish", "gelu_tanh") and p == -INF)])
    if name in ("softsign", "tanhshrink", "mish", "gelu_tanh", "hardswish"):
        points = points[~np.isinf(points)]  # infinity less or over itself: PyTorch has NaN there
    points = points.astype(np.float32)
    t = torch.tensor(points, requires_grad=True)
    want = theirs(t)
    want.sum().backward()
    for size in (1, 3000):  # NumPy's way and the compiled one
        x = eg.tensor(np.tile(points, size), device=device, requires_grad=True)
        out = ours(x)
        out.sum().backward()
        expected = np.tile(want.detach().numpy(), size)
        np.testing.assert_allclose(values(out), expected, rtol=2e-5, atol=2e-6)
        slope = values(x.grad)
        clear = ~np.isnan(np.tile(points, size))
        expected = np.tile(t.grad.numpy(), size)
        np.testing.assert_allclose(slope[clear], expected[clear], rtol=2e-5, atol=2e-6)


MODULES: dict[str, tuple[Any, Any]] = {
    "ReLU6": ((), (2, 3)),
    "ELU": ((0.5,), (2, 3)),
    "CELU": ((0.5,), (2, 3)),
    "SELU": ((), (2, 3)),
    "Mish": ((), (2, 3)),
    "Softsign": ((), (2, 3)),
    "Hardtanh": ((-0.5, 0.8), (2, 3)),
    "Hardsigmoid": ((), (2, 3)),
    "Hardswish": ((), (2, 3)),
    "Hardshrink": ((0.3,), (2, 3)),
    "Softshrink": ((0.3,), (2, 3)),
    "Tanhshrink": ((), (2, 3)),
    "Threshold": ((0.1, 20.0), (2, 3)),
    "GLU": ((1,), (2, 4, 3)),
    "LogSigmoid": ((), (2, 3)),
    "PReLU": ((3,), (2, 3, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_equal_pytorch(name: str) -> None:
    arguments, shape = MODULES[name]
    ours, theirs = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    want = theirs(torch.tensor(x))
    np.testing.assert_allclose(
        ours(eg.tensor(x)).detach().numpy(), want.detach().numpy(), rtol=2e-6, atol=1e-6
    )
    assert repr(ours).startswith(f"{name}(")
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_modules_refuse_what_makes_no_sense() -> None:
    with pytest.raises(ArgumentError, match=r"Hardtanh: min_val 1 must be below max_val 0"):
        nn.Hardtanh(1, 0)
    with pytest.raises(ArgumentError, match="PReLU: num_parameters must be positive, got 0"):
        nn.PReLU(0)


# --- what PyTorch's and NumPy's users look for ----------------------------------------------------


def test_shapes_and_places() -> None:
    assert eg.broadcast_shapes((2, 1), 3, (1, 1, 3)) == (1, 2, 3)
    assert eg.broadcast_shapes() == ()
    with pytest.raises(ShapeError, match="broadcast_shapes: cannot broadcast"):
        eg.broadcast_shapes((2,), (3,))
    for offset in (-1, 0, 2):
        for name in ("tril_indices", "triu_indices"):
            got = getattr(eg, name)(3, 4, offset)
            np.testing.assert_array_equal(values(got), getattr(torch, name)(3, 4, offset))
    np.testing.assert_allclose(values(eg.logspace(-2, 3, 6)), np.logspace(-2, 3, 6), rtol=1e-6)
    with pytest.raises(ArgumentError, match="logspace: num must not be negative"):
        eg.logspace(0, 1, -1)


def test_closeness(device: str) -> None:
    x = eg.tensor([1.0, INF, NAN], device=device)
    assert not eg.allclose(x, x)
    assert eg.allclose(x, x, equal_nan=True)
    assert not eg.allclose(x[:2], eg.tensor([1.0, -INF], device=device), equal_nan=True)
    assert eg.allclose(eg.tensor([100, 200], device=device), eg.tensor([100, 200], device=device))
    assert not eg.isclose(eg.tensor([1.0], device=device), INF).item()


def test_the_distance_of_triplets() -> None:
    a, b, c = (np.random.default_rng(i).normal(size=(4, 3)) for i in range(3))
    for swap in (False, True):
        got = eg.nn.functional.triplet_margin_with_distance_loss(
            *map(eg.tensor, (a, b, c)), swap=swap, margin=0.7
        )
        want = F.triplet_margin_with_distance_loss(
            *map(torch.tensor, (a, b, c)), swap=swap, margin=0.7
        )
        np.testing.assert_allclose(values(got), want, rtol=1e-12)
