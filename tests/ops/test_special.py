"""Special functions: accuracy over their whole range, ends and poles, derivatives of high order.

SciPy is the referee; mpmath where SciPy has fewer digits than these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from scipy import special as scipy

import everygrad as eg
from everygrad import special
from everygrad.errors import ArgumentError, DtypeError
from tests.support.checks import is_narrow, native_threshold, values
from tests.support.references import special as references

NAN, INF = np.nan, np.inf
RNG = np.random.default_rng(7)


NAMES = {
    "beta", "betaln", "chebyshev_polynomial_t", "chebyshev_polynomial_u", "digamma", "entr", "erf",
    "erfc", "erfcx", "erfinv", "expit", "gammainc", "gammaincc", "gammaln", "hermite_polynomial_h",
    "hermite_polynomial_he", "i0", "i0e", "i1", "i1e", "j0", "j1", "laguerre_polynomial_l",
    "legendre_polynomial_p", "lgamma", "log_ndtr", "logit", "ndtr", "ndtri", "polygamma", "psi",
    "sinc", "spherical_jn", "xlog1py", "xlogy", "y0", "y1", "zeta",
}  # fmt: skip


def test_names() -> None:
    assert {n for n in vars(special) if not n.startswith("_")} >= NAMES
    assert special.psi is special.digamma
    assert special.gammaln is special.lgamma
    assert special.expit is eg.sigmoid


class Range(NamedTuple):
    """Inputs of a function, its referee, and what it is held to: relative, above `floor`."""

    inputs: tuple[Any, ...]
    referee: Callable[..., Any]
    wide: float = 1e-14
    narrow: float = 2e-6
    floor: float = 1e-30


def line(low: float, high: float, count: int = 400) -> Any:
    return np.linspace(low, high, count)


SHARES = np.concatenate([line(0.001, 0.999), 10.0 ** -np.arange(1, 30, 3)])
POSITIVE = np.concatenate([line(0.01, 30), [1e-8, 100.0, 1e5]])
NEGATIVE = line(-8.03, -0.01, 301)
PAIRS = (line(0.1, 12, 40)[:, None], line(0.1, 12, 40))
BELOW = line(-9.87, -0.11, 23)
MIXED = np.concatenate([BELOW + 0.29, line(0.13, 14, 20), [1.0, 2.0, 7.0]])
SHAPE = np.exp(RNG.uniform(np.log(0.05), np.log(300.0), 300))
BESIDE = np.where(
    RNG.random(300) < 0.5,
    np.abs(SHAPE + 2 * np.sqrt(SHAPE) * RNG.normal(size=300)),
    SHAPE * np.exp(RNG.uniform(-1.5, 1.0, 300)),
)
RANGES = {
    "erfc": Range((line(-4, 9),), scipy.erfc),
    "erfcx": Range((line(-5, 80),), scipy.erfcx, 2e-14),
    "erfinv": Range((np.concatenate([line(-0.999, 0.999), 1e-9 * SHARES]),), scipy.erfinv),
    "ndtr": Range((line(-12, 9),), scipy.ndtr, 5e-14),
    "ndtri": Range((SHARES,), scipy.ndtri, 1e-14, 2e-6, 1e-2),
    "log_ndtr": Range((line(-60, 4),), scipy.log_ndtr, 1e-13, 2e-6, 1e-4),
    "logit": Range((SHARES,), scipy.logit, 1e-14, 2e-6, 1e-3),
    "entr": Range((line(0, 5),), scipy.entr, 1e-14, 2e-6, 1e-2),
    "xlog1py": Range((line(-3, 3, 40)[:, None], line(-0.99, 5, 40)), scipy.xlog1py, 1e-14),
    "lgamma": Range((POSITIVE,), references.lgamma, 1e-14, 3e-6, 1e-2),
    "lgamma below 0": Range((NEGATIVE,), references.lgamma, 1e-13, 3e-6, 1.0),
    "digamma": Range((POSITIVE,), scipy.digamma, 2e-13, 3e-6, 1e-2),
    "digamma below 0": Range((NEGATIVE,), scipy.digamma, 1e-12, 3e-6, 1.0),
    "betaln": Range(
        (line(0.1, 12, 40)[:, None], line(0.1, 12, 40)), scipy.betaln, 1e-13, 5e-6, 1.0
    ),
    "beta": Range((line(0.1, 12, 40)[:, None], line(0.1, 12, 40)), scipy.beta, 1e-13, 1e-5),
    "betaln below 0": Range((BELOW[:, None], MIXED), references.betaln, 1e-12, 1e-4, 1.0),
    "beta below 0": Range((BELOW[:, None], MIXED), references.beta, 1e-11, 2e-4, 1e-3),
    "gammainc": Range((SHAPE, BESIDE), scipy.gammainc, 1e-12, 5e-5, 1e-20),
    "gammaincc": Range((SHAPE, BESIDE), scipy.gammaincc, 1e-12, 5e-5, 1e-20),
    "i0": Range((line(-60, 80),), scipy.i0),
    "i0e": Range((line(-60, 500),), scipy.i0e),
    "i1": Range((line(-60, 80),), scipy.i1),
    "i1e": Range((line(-60, 500),), scipy.i1e),
    "j0": Range((line(-20, 60, 161),), references.j0, 1e-14, 1e-5, 1e-2),
    "j1": Range((line(-20, 60, 161),), references.j1, 1e-14, 1e-5, 1e-2),
    "y0": Range((line(0.01, 60, 120),), references.y0, 1e-13, 2e-5, 1e-2),
    "y1": Range((line(0.01, 60, 120),), references.y1, 1e-13, 2e-5, 1e-2),
}


def off(got: Any, want: Any, floor: float) -> Any:
    """The error of each element relative to its size, or to the floor."""
    return np.abs(values(got).astype(np.float64) - want) / np.maximum(np.abs(want), floor)


def held(case: Range, function: Callable[..., Any], device: str) -> None:
    """The function on float32 and float64 inputs, by NumPy and compiled, against the referee."""
    for dtype in ("float32",) if is_narrow(device) else ("float32", "float64"):
        given = [np.asarray(x).astype(dtype) for x in case.inputs]
        want = case.referee(*(x.astype(np.float64) for x in given))
        for threshold in (0, 1 << 40):
            with native_threshold(threshold):
                got = function(*(eg.tensor(x, device=device) for x in given))
            assert str(got.dtype) == dtype
            error = off(got, want, case.floor)
            worst = int(error.argmax())
            bound = case.wide if dtype == "float64" else case.narrow
            where = [float(np.broadcast_to(x, error.shape).reshape(-1)[worst]) for x in given]
            assert error.max() <= bound, f"{dtype}: off by {error.max():.1e} at {where}"


@pytest.mark.parametrize("what", RANGES)
def test_accuracy(what: str, device: str) -> None:
    held(RANGES[what], getattr(special, what.split()[0]), device)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_polygamma(n: int, device: str) -> None:
    x = np.concatenate([POSITIVE[POSITIVE < 1e3], NEGATIVE])
    x = x[np.abs(x - np.round(x)) > 0.02]  # at a pole float32 has no digits of the distance
    case = Range((x[x > 0.01],), lambda v: scipy.polygamma(n, v), 1e-13, 5e-6)
    held(case, lambda v: special.polygamma(n, v), device)
    below = Range((x[x < 0],), lambda v: scipy.polygamma(n, v), 1e-12, 2e-4, 1.0)
    held(below, lambda v: special.polygamma(n, v), device)


@pytest.mark.parametrize("x", [1.01, 2.0, 3.5, 12.0])
def test_zeta(x: float, device: str) -> None:
    case = Range((line(0.05, 40, 200),), lambda q: scipy.zeta(x, q), 1e-14, 3e-6)
    held(case, lambda q: special.zeta(x, q), device)


@pytest.mark.parametrize("x", [2.0, 3.0, 6.0, 7.0])
def test_zeta_below_0(x: float, device: str) -> None:
    q = line(-6.43, -0.13, 60)
    q = np.append(q[np.abs(q - np.round(q)) > 0.02], [-0.5, -1.5, -5.5])
    size = float(np.abs(scipy.zeta(x, q)).max())
    case = Range((q,), lambda q: scipy.zeta(x, q), 1e-13, 3e-5, 1e-3 * size)
    held(case, lambda q: special.zeta(x, q), device)


def test_zeta_of_riemann(device: str) -> None:
    x = np.concatenate([line(-12.1, 0.97, 150), line(1.03, 40, 60)])
    held(Range((x,), scipy.zeta, 1e-12, 1e-4, 3e-3), special.zeta, device)


POLYNOMIALS = {
    "chebyshev_polynomial_t": (scipy.eval_chebyt, (-1.0, 1.0)),
    "chebyshev_polynomial_u": (scipy.eval_chebyu, (-1.0, 1.0)),
    "legendre_polynomial_p": (scipy.eval_legendre, (-1.0, 1.0)),
    "hermite_polynomial_h": (scipy.eval_hermite, (-3.0, 3.0)),
    "hermite_polynomial_he": (scipy.eval_hermitenorm, (-3.0, 3.0)),
    "laguerre_polynomial_l": (scipy.eval_laguerre, (0.0, 8.0)),
}


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str, device: str) -> None:
    referee, ends = POLYNOMIALS[name]
    x = line(*ends, 41)
    for n in (0, 1, 2, 7, 12):
        size = float(np.abs(referee(n, x)).max())
        case = Range((x,), lambda v, n=n: referee(n, v), 1e-13, 3e-5, size)
        held(case, lambda v, n=n: getattr(special, name)(v, n), device)


@pytest.mark.parametrize("n", [0, 1, 2, 6])
def test_spherical(n: int, device: str) -> None:
    case = Range((line(-30, 30, 301),), lambda x: scipy.spherical_jn(n, x), 1e-13, 3e-5, 1e-2)
    held(case, lambda x: special.spherical_jn(n, x), device)


# --- ends and poles ------------------------------------------------------------------------------

ENDS: dict[str, list[tuple[Any, Any]]] = {
    "erfc": [(INF, 0), (-INF, 2), (0, 1), (30.0, 0)],
    "erfcx": [(INF, 0), (-INF, INF), (-40.0, INF), (0, 1)],
    "erfinv": [(1, INF), (-1, -INF), (1.5, NAN), (-2, NAN), (0, 0)],
    "ndtri": [(0, -INF), (1, INF), (-0.1, NAN), (1.1, NAN), (0.5, 0)],
    "ndtr": [(INF, 1), (-INF, 0), (0, 0.5)],
    "log_ndtr": [(INF, 0), (-INF, -INF), (-1e15, -5e29)],
    "logit": [(0, -INF), (1, INF), (2, NAN), (0.5, 0)],
    "entr": [(0, 0), (-1, -INF), (INF, -INF)],
    "lgamma": [(0, INF), (-3, INF), (1, 0), (2, 0), (INF, INF), (-INF, INF)],
    "digamma": [(0.0, -INF), (-0.0, INF), (-2, NAN), (INF, INF)],
    "i0": [(INF, INF), (-INF, INF), (0, 1)],
    "i1": [(INF, INF), (-INF, -INF), (0, 0)],
    "i0e": [(INF, 0), (0, 1)],
    "j0": [(INF, 0), (-INF, 0), (0, 1)],
    "j1": [(INF, 0), (0, 0)],
    "y0": [(0, -INF), (-1, NAN), (INF, 0)],
    "y1": [(0, -INF), (-1, NAN), (INF, 0)],
}


@pytest.mark.parametrize("name", ENDS)
def test_ends(name: str, device: str) -> None:
    points, want = (np.array(column, np.float32) for column in zip(*ENDS[name], strict=True))
    for threshold in (0, 1 << 40):
        with native_threshold(threshold):
            x = eg.tensor(np.append(points, np.float32(NAN)), device=device)
            got = values(getattr(special, name)(x))
        np.testing.assert_allclose(got, np.append(want, NAN), rtol=1e-6)


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_ends_of_incomplete_gamma(name: str, device: str) -> None:
    a, x = np.meshgrid(*[np.array([0, 1, 3, INF, NAN, -1], np.float32)] * 2)
    got = values(getattr(special, name)(eg.tensor(a, device=device), eg.tensor(x, device=device)))
    np.testing.assert_allclose(got, getattr(scipy, name)(a, x), rtol=1e-6)


def test_poles_of_zeta_and_polygamma(device: str) -> None:
    q = eg.tensor([0.0, -1.0, -0.5, INF], dtype="float32", device=device)
    np.testing.assert_array_equal(values(special.zeta(2.5, q)), [INF, INF, NAN, 0])
    one = eg.tensor([1.0, 0.5], dtype="float32", device=device)
    np.testing.assert_array_equal(values(special.zeta(one, 1.0)), [INF, NAN])
    ends = eg.tensor([1.0, 0.0, -2.0, INF, -INF, NAN], dtype="float32", device=device)
    np.testing.assert_allclose(values(special.zeta(ends)), [INF, -0.5, 0, 1, NAN, NAN], rtol=1e-6)
    x = eg.tensor([0.0, -0.0, -3.0, -INF], dtype="float32", device=device)
    np.testing.assert_array_equal(values(special.polygamma(1, x)), [INF] * 4)
    np.testing.assert_array_equal(values(special.polygamma(2, x)), [-INF] * 4)
    far = eg.tensor([INF, 1e30], dtype="float32", device=device)
    np.testing.assert_allclose(values(special.polygamma(1, far)), [0.0, 1e-30], rtol=1e-5)


def test_beta_of_integers(device: str) -> None:
    """At a pole there is a limit where the sum is one too, and the other argument is not."""
    a, b = np.meshgrid(np.arange(-4.0, 5.0), np.arange(-4.0, 5.0))
    for name in ("beta", "betaln"):
        pair = [eg.tensor(v.astype(np.float32), device=device) for v in (a, b)]
        got, want = values(getattr(special, name)(*pair)), getattr(references, name)(a, b)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_sinc_of_integers(device: str) -> None:
    x = np.array([-12, -1, 1, 2, 100, 1e7, 0], np.float32)
    assert values(special.sinc(eg.tensor(x, device=device))).tolist() == [0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("name", ["chebyshev_polynomial_t", "laguerre_polynomial_l"])
def test_polynomials_end_at_infinity(name: str, device: str) -> None:
    x = eg.tensor([-INF, -1e30, 1e30, INF], dtype="float32", device=device)
    sign = -1.0 if name[0] == "l" else 1.0
    np.testing.assert_array_equal(
        values(getattr(special, name)(x, 5)), np.array([-1, -1, 1, 1]) * sign * INF
    )


def test_integers_become_floating_point(device: str) -> None:
    got = special.lgamma(eg.tensor([3, 5], device=device))
    assert str(got.dtype) == "float32"
    np.testing.assert_allclose(values(got), np.log([2.0, 24.0]), rtol=1e-6)


# --- derivatives ---------------------------------------------------------------------------------


def slopes(fn: Callable[[Any], Any], x: float, count: int) -> list[float]:
    """The first derivatives of a function of one number, by reverse mode on itself."""
    t = eg.tensor(x, dtype="float64", requires_grad=True)
    out, found = fn(t), []
    for _ in range(count):
        (out,) = eg.autograd.grad(out, [t], create_graph=True)
        found.append(out.item())
    return found


HIGH = {
    "i1": (special.i1, lambda x: mpmath.besseli(1, x), (0.0, 1.5, 10.0)),
    "i0e": (special.i0e, lambda x: mpmath.exp(-x) * mpmath.besseli(0, x), (1.5, 10.0)),
    "j0": (special.j0, lambda x: mpmath.besselj(0, x), (0.0, 2.5, 9.0)),
    "j1": (special.j1, lambda x: mpmath.besselj(1, x), (0.0, 2.5, 9.0)),
    "spherical": (
        lambda x: special.spherical_jn(2, x),
        lambda x: mpmath.sqrt(mpmath.pi / (2 * x)) * mpmath.besselj(2.5, x),
        (0.8, 7.0),
    ),
    "lgamma": (special.lgamma, mpmath.loggamma, (0.4, 1.46, 7.0)),
    "erfcx": (special.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x), (-0.5, 0.8)),
    "log_ndtr": (special.log_ndtr, lambda x: mpmath.log(mpmath.ncdf(x)), (-6.0, -0.5, 1.5)),
    "ndtri": (special.ndtri, lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1), (0.3, 0.95)),
    "sinc": (special.sinc, lambda x: mpmath.sincpi(x), (0.0, 0.3, 0.5, 2.5)),
    "zeta": (lambda q: special.zeta(2.5, q), lambda q: mpmath.zeta(2.5, q), (0.6, 3.0)),
    "zeta below 0": (
        lambda q: special.zeta(3.0, q),
        lambda q: mpmath.polygamma(2, q) / -2,
        (-0.6, -2.3),
    ),
    "zeta of riemann": (special.zeta, mpmath.zeta, (-3.4, -1.5, 0.3, 2.5)),
    "beta below 0": (lambda x: special.beta(x, 0.7), lambda x: mpmath.beta(x, 0.7), (-0.4, -2.6)),
    "betaln below 0": (
        lambda x: special.betaln(x, -0.7),
        lambda x: mpmath.log(abs(mpmath.beta(x, -0.7))),
        (-0.4, -2.6),
    ),
    "zeta in x": (
        lambda x: special.zeta(x, 0.7),
        lambda x: mpmath.zeta(x, mpmath.mpf(0.7)),
        (1.5, 4.0),
    ),
    "betaln": (
        lambda x: special.betaln(x, 2 * x),
        lambda x: mpmath.log(mpmath.beta(x, 2 * x)),
        (0.7, 4.0),
    ),
    "legendre": (
        lambda x: special.legendre_polynomial_p(x, 5),
        lambda x: mpmath.legendre(5, x),
        (0.0, 0.6, 1.0),
    ),
    "gammainc in x": (
        lambda x: special.gammainc(2.5, x),
        lambda x: mpmath.gammainc(2.5, 0, x, regularized=True),
        (0.5, 2.1, 6.0),
    ),
    "gammainc in a": (
        lambda a: special.gammainc(a, 3.0),
        lambda a: mpmath.gammainc(a, 0, 3.0, regularized=True),
        (0.5, 2.9, 8.0),
    ),
    "gammaincc in a, near 0": (
        lambda a: special.gammaincc(a, 0.7),
        lambda a: mpmath.gammainc(a, 0.7, mpmath.inf, regularized=True),
        (0.5, 3.0),
    ),
}


@pytest.mark.parametrize("what", HIGH)
def test_derivatives_of_high_order(what: str) -> None:
    """Three of them, against mpmath's."""
    function, referee, points = HIGH[what]
    with mpmath.workdps(40):
        for x in points:
            got = slopes(function, x, 3)
            want = [float(mpmath.re(mpmath.diff(referee, mpmath.mpf(x), n))) for n in (1, 2, 3)]
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9, err_msg=f"at {x}")


def test_derivatives_of_the_second_kind() -> None:
    for x in (0.7, 9.0):
        want = [scipy.yvp(1, x, n) for n in (1, 2, 3)]
        np.testing.assert_allclose(slopes(special.y1, x, 3), want, rtol=1e-12)


def test_a_compiled_function_of_special_functions() -> None:
    x = eg.tensor(line(0.3, 5.0, 50))

    def loss(x: Any) -> Any:
        shares = special.gammainc(x, 2.0) * special.i0e(x)
        return (special.lgamma(x) * special.ndtr(x) + shares).sum()

    want = eg.grad(loss)(x).numpy()
    np.testing.assert_allclose(eg.jit(eg.grad(loss))(x).numpy(), want, rtol=1e-11)


# --- refusals ------------------------------------------------------------------------------------


def test_complex_numbers_are_refused() -> None:
    z = eg.tensor([1 + 1j])
    for name in ("erfc", "lgamma", "j0", "gammainc"):
        args = (z, z) if name == "gammainc" else (z,)
        with pytest.raises(DtypeError, match="does not take complex"):
            getattr(special, name)(*args)


def test_orders_are_numbers() -> None:
    x = eg.tensor([1.0])
    for call in (
        lambda: special.polygamma(101, x),
        lambda: special.spherical_jn(61, x),
        lambda: special.laguerre_polynomial_l(x, True),
    ):
        with pytest.raises(ArgumentError, match="n must be an integer from 0 to"):
            call()
