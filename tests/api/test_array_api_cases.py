"""The Array API's special cases: infinities, NaN and signed zeros, whichever way a value takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from tests.support.checks import is_narrow

# --- real numbers --------------------------------------------------------------------------------

UNARY = """
abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan log log10
log1p log2 negative positive reciprocal round sign signbit sin sinh sqrt square tan tanh trunc
"""
BINARY = """
add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp
maximum minimum multiply nextafter not_equal pow remainder subtract
"""
VALUES = [
    *(sign * size for size in (0.0, 1e-42, 1e-30, 0.5, 1.0, 1.5, 2.0, 3.0, 1e30, math.inf)
      for sign in (1, -1)),
    math.nan,
]  # fmt: skip
SMALLEST_NORMAL = 2.0**-126  # of float32
MANY = 1 << 15  # elements enough for kernels of our own


def ways(function: Callable[..., Any]) -> Iterator[tuple[int, Callable[..., Any]]]:
    """How often an argument is repeated, and what is called then."""
    yield from ((1, function), (MANY, function), (1, eg.jit(function)))


def assert_same(got: np.ndarray, want: np.ndarray, *, signs: bool) -> None:
    """Equal up to rounding; zeros with their signs."""
    np.testing.assert_allclose(got, want, rtol=1e-5 if want.itemsize == 4 else 1e-12)
    if signs and want.dtype.kind == "f":
        zeros = want == 0
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", [*UNARY.split(), *BINARY.split()])
def test_real_cases(name: str, device: str) -> None:
    """NumPy's loops over arrays have all of them, but for the two of `floor_divide`."""
    arity = 1 if name in UNARY.split() else 2
    # WGSL leaves it to drivers whether subnormals are kept
    given = [v for v in VALUES if not (is_narrow(device) and 0 < abs(v) < SMALLEST_NORMAL)]
    columns = list(zip(*itertools.product(given, repeat=arity), strict=True))
    for dtype in ("float32",) if is_narrow(device) else ("float32", "float64"):
        arrays = [np.array(column, dtype) for column in columns]
        want = getattr(np, name)(*arrays)
        for times, call in ways(getattr(eg, name)):
            copies = -(-times // len(want))
            tensors = [eg.asarray(np.tile(a, copies), device=device) for a in arrays]
            got = call(*tensors).numpy()[-len(want) :]
            # which of 0 and -0 is the larger is left open
            assert_same(got, want, signs=name not in ("maximum", "minimum"))


# --- complex numbers -----------------------------------------------------------------------------

# parts of z, parts of the result; F is finite, N finite but not 0, P finite and above 0, A any
# number; ± in z stands for both signs, in a result for either
COMPLEX = {
    "acos": """±0 0 π/2 -0, ±0 nan π/2 nan, F inf π/2 -inf, N nan nan nan, -inf P π -inf,
        inf P 0 -inf, -inf inf 3π/4 -inf, inf inf π/4 -inf, ±inf nan nan ±inf, nan F nan nan,
        nan inf nan -inf""",
    "acosh": """±0 0 0 π/2, F inf inf π/2, N nan nan nan, 0 nan nan ±π/2, -inf P inf π, inf P inf 0,
        -inf inf inf 3π/4, inf inf inf π/4, ±inf nan inf nan, nan F nan nan, nan inf inf nan""",
    "asinh": """0 0 0 0, P inf inf π/2, F nan nan nan, inf P inf 0, inf inf inf π/4, nan 0 nan 0,
        nan N nan nan, nan inf ±inf nan""",
    "atanh": """0 0 0 0, 0 nan 0 nan, 1 0 inf 0, P inf 0 π/2, N nan nan nan, inf P 0 π/2,
        inf inf 0 π/2, inf nan 0 nan, nan F nan nan, nan inf ±0 π/2""",
    "cosh": """0 0 1 0, 0 inf nan ±0, 0 nan nan ±0, N inf nan nan, N nan nan nan, inf 0 inf 0,
        inf inf ±inf nan, inf nan inf nan, nan ±0 nan ±0, nan N nan nan""",
    "exp": """±0 0 1 0, F inf nan nan, F nan nan nan, inf 0 inf 0, -inf inf ±0 ±0, inf inf ±inf nan,
        -inf nan ±0 ±0, inf nan ±inf nan, nan 0 nan 0, nan N nan nan""",
    "expm1": """±0 0 0 0, F inf nan nan, F nan nan nan, inf 0 inf 0, -inf inf -1 ±0,
        inf inf ±inf nan, -inf nan -1 ±0, inf nan ±inf nan, nan 0 nan 0, nan N nan nan""",
    "log": """-0 0 -inf π, 0 0 -inf 0, F inf inf π/2, F nan nan nan, -inf P inf π, inf P inf 0,
        -inf inf inf 3π/4, inf inf inf π/4, ±inf nan inf nan, nan F nan nan, nan inf inf nan""",
    "log1p": """-1 0 -inf 0, F inf inf π/2, F nan nan nan, -inf P inf π, inf P inf 0,
        -inf inf inf 3π/4, inf inf inf π/4, ±inf nan inf nan, nan F nan nan, nan inf inf nan""",
    "sign": "±0 ±0 0 0, nan A nan nan, A nan nan nan",
    "sinh": """0 0 0 0, 0 inf ±0 nan, 0 nan ±0 nan, P inf nan nan, P nan nan nan, inf 0 inf 0,
        inf inf ±inf nan, inf nan ±inf nan, nan 0 nan 0, nan N nan nan""",
    "sqrt": """±0 0 0 0, A inf inf inf, F nan nan nan, -inf P 0 inf, inf P inf 0, -inf nan nan ±inf,
        inf nan inf nan, nan F nan nan""",
    "tanh": """0 0 0 0, N inf nan nan, 0 inf 0 nan, N nan nan nan, 0 nan 0 nan, inf P 1 0,
        inf inf 1 ±0, inf nan 1 ±0, nan 0 nan 0, nan N nan nan""",
}
PARTS = {
    **{"P": [1.0, 0.25], "N": [3.0, -0.5], "F": [3.0, -0.5, 0.0]},
    **{"A": [1.0, -0.0, math.inf, -math.inf, math.nan]},
    **{f"±{word}": [float(word), -float(word)] for word in ("0", "inf")},
    **{"π": [math.pi], "π/2": [math.pi / 2], "π/4": [math.pi / 4], "3π/4": [3 * math.pi / 4]},
}


def parts(word: str) -> list[float]:
    return PARTS[word] if word in PARTS else [float(word)]


def cases(name: str) -> list[tuple[complex, str, str]]:
    """Arguments, and the words for both parts of the result."""
    rows = [line.split() for line in COMPLEX[name].split(",")]
    pairs = [(itertools.product(parts(row[0]), parts(row[1])), *row[2:]) for row in rows]
    return [(complex(a, b), re, im) for given, re, im in pairs for a, b in given]


def assert_part(got: float, word: str, what: str) -> None:
    """The part is the one the word stands for, in sign too where the word has one."""
    want = parts(word.removeprefix("±"))[0]
    got, want = (abs(got), abs(want)) if word.startswith("±") else (got, want)
    assert got == pytest.approx(want, rel=1e-6, nan_ok=True), what
    assert want != 0 or math.copysign(1, got) == math.copysign(1, want), what


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_cases(name: str, dtype: type) -> None:
    """The standard's table, where it follows C99; of the conjugate the conjugate."""
    function, table = getattr(eg, name), cases(name)
    turns = (False,) if name == "sign" else (False, True)  # sign(0) is 0, whatever its signs
    z = np.array([case[0] for case in table], dtype)
    for call, turned in itertools.product((function, eg.jit(function)), turns):
        out = call(eg.asarray(z.conj() if turned else z)).numpy()
        for given, got, (_, re, im) in zip(z, out.conj() if turned else out, table, strict=True):
            assert_part(got.real, re, f"{name}({given}) = {got}")
            assert_part(got.imag, im, f"{name}({given}) = {got}")


@pytest.mark.parametrize("angle", [0.5, 2.0, 4.0, -1.0, 1e10])
def test_directions_to_infinity(angle: float) -> None:
    """An exponential's real part that is infinite gives only the size; the rest is a direction."""
    direction = (math.cos(angle), math.sin(angle))
    for name, a, size in (
        *(("exp", math.inf, math.inf), ("exp", -math.inf, 0.0), ("expm1", math.inf, math.inf)),
        *(("sinh", math.inf, math.inf), ("cosh", math.inf, math.inf)),
    ):
        got = complex(getattr(eg, name)(eg.asarray(complex(a, angle), dtype=eg.complex128)))
        for part, along in zip((got.real, got.imag), direction, strict=True):
            assert part == size * along, name
            assert math.copysign(1, part) == math.copysign(1, along), name


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_division_by_subnormal_numbers(dtype: type) -> None:
    """A quotient that is not large is not infinite, whatever the reciprocal of the divisor is."""
    least = np.finfo(dtype).smallest_subnormal
    y = np.array([complex(least, 0), complex(least, least), complex(-3 * least, 5 * least)], dtype)
    x = np.array([complex(2 * least, 0), complex(2 * least, 2 * least), y[2]], dtype)
    for call in (eg.divide, eg.jit(eg.divide)):
        np.testing.assert_allclose(call(eg.asarray(x), eg.asarray(y)).numpy(), [2, 2, 1], 1e-6)
    one = eg.ones((1,), dtype=eg.complex128)
    assert eg.isinf(eg.real(one / 0)).item()
    mixed = eg.divide(eg.asarray(x), eg.asarray(np.array([[0], [1], [np.nan]], dtype))).numpy()
    np.testing.assert_array_equal(mixed[1], x)
    assert not np.isfinite(mixed[[0, 2]]).any()
