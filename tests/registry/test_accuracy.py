"""Elementary functions within the bounds of NumPy's own table, row by row, eager and compiled.

The table is the one in NumPy's wheel: for each function inputs, correctly rounded results, and how
many units in the last place a result may be off.
"""

from __future__ import annotations

import csv
import math
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

import everygrad as eg
from everygrad.tools import accuracy_special
from tests.support.checks import is_narrow, native_threshold

pytestmark = pytest.mark.needs("float64")

FOLDER = Path(np.__file__).parent / "_core" / "tests" / "data"
NAMES = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctanh": "atanh", "cbrt": "cbrt", "cos": "cos", "cosh": "cosh", "exp": "exp", "exp2": "exp2",
    "expm1": "expm1", "log": "log", "log10": "log10", "log1p": "log1p", "log2": "log2",
    "sin": "sin", "sinh": "sinh", "tan": "tan", "tanh": "tanh",
}  # fmt: skip
RNG = np.random.default_rng(3)
WORDS = {"float32": (np.uint32, np.float32), "float64": (np.uint64, np.float64)}


@cache
def rows(name: str, dtype: str) -> tuple[Any, Any, Any]:
    """Inputs, results and bounds of one function."""
    lines = (FOLDER / f"umath-validation-set-{name}.csv").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    word, real = WORDS[dtype]
    short = f"np.{dtype}"
    found = [r for r in csv.DictReader(lines) if r["dtype"] == short]
    inputs = np.array([int(r["input"], 16) for r in found], word).view(real)
    outputs = np.array([int(r["output"], 16) for r in found], word).view(real)
    return inputs, outputs, np.array([int(r["ulperrortol"]) for r in found])


def off_by(got: Any, want: Any, dtype: str) -> Any:
    """How many representable numbers lie between, where both are numbers."""
    integer = np.int32 if dtype == "float32" else np.int64
    smallest = np.iinfo(integer).min

    def order(x: Any) -> Any:
        bits = x.view(integer).astype(object)
        return np.where(bits < 0, smallest - bits, bits)

    return np.abs(order(got) - order(want))


@pytest.mark.parametrize("way", ["numpy", "compiled op", "jit"])
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("name", NAMES)
def test_within_the_table(name: str, dtype: str, way: str) -> None:
    inputs, want, bounds = rows(name, dtype)
    function = getattr(eg, NAMES[name])
    x = eg.tensor(inputs)
    with native_threshold(0 if way == "compiled op" else 1 << 30):
        got = (eg.jit(function)(x) if way == "jit" else function(x)).numpy()
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    assert (np.isnan(got) == np.isnan(want)).all()
    far = ~same & (off_by(got, want, dtype) > bounds)
    worst = [f"{function.__name__}({inputs[i]!r}) = {got[i]!r}" for i in np.flatnonzero(far)[:5]]
    assert not far.any(), f"{far.sum()} of {len(far)} rows: {worst}"


def test_the_whole_table_is_read() -> None:
    files = {p.stem.removeprefix("umath-validation-set-") for p in FOLDER.glob("umath-*.csv")}
    assert files == {*NAMES}
    assert sum(len(rows(name, dtype)[0]) for name in NAMES for dtype in WORDS) > 26_000


@pytest.mark.parametrize("way", ["numpy", "compiled op", "jit"])
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize(
    "name", ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "expm1", "log1p"]
)
def test_subnormals_are_kept(name: str, dtype: str, way: str) -> None:
    """These are x itself for the smallest numbers."""
    smallest = np.finfo(dtype).smallest_subnormal
    x = eg.tensor(smallest * np.array([1, 2, -3, 1000], dtype))
    function = getattr(eg, name)
    with native_threshold(0 if way == "compiled op" else 1 << 30):
        got = eg.jit(function)(x) if way == "jit" else function(x)
    np.testing.assert_array_equal(got.numpy(), x.numpy())


@pytest.mark.parametrize("name", accuracy_special.SPECIAL)
def test_special_functions(name: str, device: str) -> None:
    """What docs/accuracy.md says of them, with some room: no one is off by 100 units."""
    for dtype in ("float32",) if is_narrow(device) else ("float32", "float64"):
        most = {"erfc": 3.1, "erfcx": 7.0, "ndtr": 4.5}.get(name, 100)
        assert accuracy_special.special_error(name, device, dtype) < most


@pytest.mark.parametrize("way", ["numpy", "compiled op", "jit"])
def test_erfc_over_its_whole_range(way: str) -> None:
    """Up to 26.5, where float64 ends: exp(-x * x) is made of x * x to all its digits."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-6, 26.5, 4000), rng.uniform(0.4, 1.2, 2000)])
    with mpmath.workdps(40):
        exact = np.array([np.longdouble(str(mpmath.erfc(float(v)))) for v in x])
    function, given = eg.special.erfc, eg.tensor(x)
    with native_threshold(0 if way == "compiled op" else 1 << 30):
        got = (eg.jit(function)(given) if way == "jit" else function(given)).numpy()
    assert accuracy_special.ulps(got, exact, "float64").max() < 3.1


def test_ulps_are_counted_from_the_floor() -> None:
    got, exact = np.float32([1.0, 0.5 + 2.0**-24]), np.array([1.0, 0.5], np.longdouble)
    assert accuracy_special.ulps(got, exact, "float32").tolist() == [0.0, 1.0]
    assert accuracy_special.ulps(got, exact, "float32", 1.0).tolist() == [0.0, 0.5]


def hard_angles() -> Any:
    """Doubles of every size that lie beside multiples of pi / 2: numerators of the best fractions
    for 2**e / (pi / 2)."""
    found = []
    with mpmath.workprec(2400):
        for e in range(-24, 971, 3):
            rest, (before, last) = mpmath.mpf(2) ** e / (mpmath.pi / 2), (1, 0)
            while True:
                whole = int(mpmath.floor(rest))
                before, last = last, whole * last + before
                if last >= 2**53:
                    break
                found.append(math.ldexp(last, e))
                rest = 1 / (rest - whole)
    return np.array([x for x in found if 1 < x < 1e308])


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_angles_in_float64(name: str) -> None:
    """Compiled, within 1.25 units; the C library is off by 100,000 at some of these."""
    x = hard_angles()
    x = np.concatenate([x[-3::-7], -x[::11], RNG.uniform(-1e9, 1e9, 300)])
    with mpmath.workprec(1400):
        exact = []
        for v in x:
            wide = getattr(mpmath, name)(mpmath.mpf(float(v)))
            near = float(wide)
            exact.append(np.longdouble(near) + np.longdouble(float(wide - near)))
    for got in (
        eg.jit(getattr(eg, name))(eg.tensor(x)),
        eg.jit(lambda x: getattr(eg, name)(x) * 1.0)(eg.tensor(np.tile(x, 30)))[: len(x)],
    ):
        assert accuracy_special.ulps(got.numpy(), np.array(exact), "float64").max() < 1.25
    ends = eg.jit(getattr(eg, name))(eg.tensor(np.array([np.inf, -np.inf, np.nan, -0.0, 0.0])))
    assert np.isnan(ends.numpy()[:3]).all()
    assert np.signbit(ends.numpy()[3:]).tolist() == [name != "cos", False]
