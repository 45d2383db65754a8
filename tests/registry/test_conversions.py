"""Conversions between dtypes round once, whatever the size, the way and the device.

The numbers lie at and around the middle between two neighbours of the target, where a number that
was rounded to something in between is rounded wrongly; the referee is exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from tests.support.checks import is_narrow

# digits, and the smallest and largest exponents of normal numbers
TARGETS = {"bfloat16": (8, -126, 127), "float16": (11, -14, 15), "float32": (24, -126, 127)}
SOURCES = ("float64", "float32", "int64", "uint64", "int32", "uint32", "int16")
WAYS: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f, "jit": eg.jit}


def nearest(value: Any, digits: int, low: int, high: int) -> float:
    """A number rounded to so many binary digits, ties to even."""
    exact = abs(Fraction(value))
    if not exact:
        return 0.0
    e = exact.numerator.bit_length() - exact.denominator.bit_length()
    e -= Fraction(2) ** e > exact
    unit = Fraction(2) ** (max(e, low) - digits + 1)
    whole = round(exact / unit)  # Python's: ties to even
    made = whole * unit
    size = float("inf") if made >= Fraction(2) ** (high + 1) else float(made)
    return -size if value < 0 else size


def hard(source: str, target: str, count: int) -> Any:
    """Middles between neighbours, some a little more or less."""
    digits, low, high = TARGETS[target]
    rng = np.random.default_rng(len(source) * 31 + len(target))
    if source.startswith("float"):
        room = 53 if source == "float64" else 24
        middles = rng.integers(1 << digits, 1 << (digits + 1), count) * 2 + 1
        e = rng.integers(low - 4 - digits, high - digits - 1, count)
        off = rng.choice([-1, 0, 1], count) * 2.0 ** (digits + 2 - room)
        signs = rng.choice([-1.0, 1.0], count)
        with np.errstate(over="ignore"):
            return (signs * (middles + off) * 2.0**e).astype(source)
    bits = int(source[-2:])
    signed = source[0] == "i"
    out = []
    while len(out) < count:
        m = int(rng.integers(1 << digits, 1 << (digits + 1))) * 2 + 1
        shift = int(rng.integers(0, max(1, bits - digits - 2 - signed)))
        v = (m << shift) + int(rng.choice([-1, 0, 1]))
        v = -v if signed and rng.random() < 0.5 else v
        limits = np.iinfo(source)
        out.append(min(max(v, limits.min), limits.max))
    return np.array([*out[2:], limits.min, limits.max], source)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", TARGETS)
def test_conversions_round_once(target: str, source: str, way: str, device: str) -> None:
    if source == "float64" and is_narrow(device):
        with pytest.raises(eg.errors.EverygradError):
            eg.ones((2,), dtype=source, device=device)
        return
    x = hard(source, target, 300)
    want = np.array([nearest(v.item(), *TARGETS[target]) for v in x])
    convert = WAYS[way](lambda t: t.astype(target))
    for copies in (1, 1000):  # small, and large enough for compiled kernels
        t = eg.tensor(np.tile(x, copies), device=device)
        got = convert(t).numpy().astype(np.float64)
        np.testing.assert_array_equal(got, np.tile(want, copies))
        after = WAYS[way](lambda t: eg.where(t == t, t, t).astype(target) * 1)(t)  # in a kernel
        np.testing.assert_array_equal(after.numpy().astype(np.float64), np.tile(want, copies))


@pytest.mark.parametrize("source", ["float64", "int64"])
@pytest.mark.parametrize("target", TARGETS)
def test_numbers_round_once(target: str, source: str, device: str) -> None:
    """On the way into a tensor: as data, as one number, as a constant of a compiled function."""
    x = hard(source, target, 3000)
    x = x[abs(x.astype(np.float64)) < (2.0**15 if target == "float16" else 2.0**62)][:100]
    want = np.array([nearest(v.item(), *TARGETS[target]) for v in x])
    assert len(x) >= 20
    for data in (x, x.tolist()):
        got = eg.tensor(data, dtype=target, device=device).numpy().astype(np.float64)
        np.testing.assert_array_equal(got, want)
    for value, expected in zip(x.tolist()[:20], want, strict=False):
        assert eg.full((), value, dtype=target, device=device).item() == expected
        assert eg.full((2,), value, dtype=target, device=device).tolist() == [expected] * 2
    made = eg.jit(lambda t: [eg.full((2,), v, dtype=target, device=device) + t for v in first])
    first = x.tolist()[:8]
    zero = eg.zeros((2,), dtype=target, device=device)
    for one, expected in zip(made(zero), want, strict=False):
        assert one.tolist() == [expected] * 2


def test_running_sums_of_bfloat16_round_once() -> None:
    """They are kept in float64."""
    x = eg.tensor([1.0, 2.0**-8, 2.0**-40], dtype="bfloat16")
    assert eg.cumulative_sum(x).tolist() == [1.0, 1.0, 1.0 + 2.0**-7]
    assert eg.jit(eg.cumulative_sum)(x).tolist() == [1.0, 1.0, 1.0 + 2.0**-7]
