"""How far special functions, and elementary ones in float64, are off, in units in the last place.

References of special functions are mpmath's to 30 digits, of elementary ones NumPy's in
`longdouble`. Where a function goes through 0 its error is small against the values around, not
against the result; results below the function's `floor` are held against the floor.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from everygrad.ops.python.creation import tensor
from everygrad.ops.record.spec import REGISTRY
from everygrad.tools import accuracy

COUNT = 400
_DIGITS = {"float32": (24, -125, 128), "float64": (53, -1021, 1024)}  # and the ends of exponents


class Special(NamedTuple):
    """An op, mpmath's function as a function of (mpmath, x, ...), and where inputs lie."""

    reference: Callable[..., Any]
    ranges: tuple[tuple[float, float], ...]
    floor: float = 0.0
    before: tuple[Any, ...] = ()  # numbers in front of the tensors
    after: tuple[Any, ...] = ()
    many: int = COUNT  # inputs; more where mpmath is quick
    double: tuple[tuple[float, float], ...] = ()  # in float64, where that has more results


def _scaled(order: int) -> Callable[..., Any]:
    return lambda m, x: m.besseli(order, x) * m.exp(-abs(x))


def _tail(m: Any, x: Any) -> Any:
    """ncdf(x), which cancels where mpmath adds erf to 1."""
    return m.erfc(-x / m.sqrt(2)) / 2


def _inverse(m: Any, p: Any) -> Any:
    return -m.sqrt(2) * m.erfinv(1 - 2 * m.mpf(p))


SPECIAL = {
    "erfc": Special(lambda m, x: m.erfc(x), ((-4, 9),), many=4000, double=((-4, 26.4),)),
    "erfcx": Special(lambda m, x: m.exp(m.mpf(x) ** 2) * m.erfc(x), ((-5, 25),), many=4000),
    "erfinv": Special(lambda m, x: m.erfinv(x), ((-0.999, 0.999),)),
    "ndtr": Special(_tail, ((-12, 8),), many=4000),
    "ndtri": Special(_inverse, ((0.001, 0.999),), 0.1),
    "log_ndtr": Special(lambda m, x: m.log(_tail(m, x)), ((-60, 4),)),
    "logit": Special(lambda m, p: m.log(p) - m.log1p(-p), ((0.001, 0.999),), 0.1),
    "entr": Special(lambda m, x: -x * m.log(x), ((0.001, 5),), 0.1),
    "xlogy": Special(lambda m, x, y: x * m.log(y), ((-5, 5), (0.01, 9)), 0.1),
    "xlog1py": Special(lambda m, x, y: x * m.log1p(y), ((-5, 5), (-0.9, 9))),
    "sinc": Special(lambda m, x: m.sincpi(x), ((-20, 20),), 0.01),
    "lgamma": Special(lambda m, x: m.loggamma(x), ((0.01, 60),), 1e-3),
    "digamma": Special(lambda m, x: m.psi(0, x), ((0.01, 60),), 0.01),
    "polygamma": Special(lambda m, x: m.psi(1, x), ((0.01, 60),), before=(1,)),
    "zeta": Special(lambda m, x: m.zeta(x), ((-9, 30),), 0.01),
    "beta": Special(lambda m, x, y: m.beta(x, y), ((0.05, 20), (0.05, 20))),
    "betaln": Special(lambda m, x, y: m.log(m.beta(x, y)), ((0.05, 20), (0.05, 20)), 1.0),
    "gammainc": Special(
        lambda m, a, x: m.gammainc(a, 0, x, regularized=True), ((0.1, 30), (0.1, 60)), 1e-3
    ),
    "gammaincc": Special(
        lambda m, a, x: m.gammainc(a, x, regularized=True), ((0.1, 30), (0.1, 60)), 1e-3
    ),
    "i0": Special(lambda m, x: m.besseli(0, x), ((-60, 60),)),
    "i0e": Special(_scaled(0), ((-60, 60),)),
    "i1": Special(lambda m, x: m.besseli(1, x), ((-60, 60),)),
    "i1e": Special(_scaled(1), ((-60, 60),)),
    "j0": Special(lambda m, x: m.besselj(0, x), ((-50, 50),), 0.05),
    "j1": Special(lambda m, x: m.besselj(1, x), ((-50, 50),), 0.05),
    "y0": Special(lambda m, x: m.bessely(0, x), ((0.01, 50),), 0.05),
    "y1": Special(lambda m, x: m.bessely(1, x), ((0.01, 50),), 0.05),
    "spherical_jn": Special(
        lambda m, x: m.sqrt(m.pi / (2 * m.mpf(x))) * m.besselj(2.5, x), ((0.1, 40),), 0.01, (2,)
    ),
    "legendre_polynomial_p": Special(lambda m, x: m.legendre(7, x), ((-1, 1),), 0.3, after=(7,)),
    "hermite_polynomial_h": Special(lambda m, x: m.hermite(6, x), ((-4, 4),), 500.0, after=(6,)),
    "laguerre_polynomial_l": Special(lambda m, x: m.laguerre(5, 0, x), ((0, 12),), 1.0, after=(5,)),
}


def _inputs(name: str, dtype: str) -> list[Any]:
    """Even over each range, and crowded towards its middle and its ends."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    found, count = [], SPECIAL[name].many
    wide = SPECIAL[name].double if dtype == "float64" else ()
    for low, high in wide or SPECIAL[name].ranges:
        even = random.uniform(low, high, count // 2)
        bent = 0.5 + 0.5 * np.sin(random.uniform(-1.57, 1.57, count - count // 2)) ** 3
        found.append(np.concatenate([even, low + (high - low) * bent]).astype(dtype))
    return found


def _exact(name: str, given: Sequence[Any]) -> Any:
    """mpmath's results, as longdouble."""
    m = import_module("mpmath")
    with m.workdps(30):
        found = [SPECIAL[name].reference(m, *map(float, row)) for row in zip(*given, strict=True)]
        pairs = [(float(v), v) for v in (m.re(v) for v in found)]
        return np.array(
            [np.longdouble(a) + np.longdouble(float(v - m.mpf(a))) for a, v in pairs],
            np.longdouble,
        )


def ulps(got: Any, exact: Any, dtype: str, floor: float = 0.0) -> Any:
    """The error of each result in units in the last place of the exact one, or of the floor."""
    digits, low, high = _DIGITS[dtype]
    exponents = np.clip(np.frexp(np.maximum(np.abs(exact), floor))[1], low, high)
    return np.abs(got.astype(np.longdouble) - exact) / np.ldexp(
        np.longdouble(1), exponents - digits
    )


def special_error(name: str, device: str, dtype: str) -> float:
    """The largest error of a special function."""
    case = SPECIAL[name]
    given = _inputs(name, dtype)
    tensors = [tensor(x, device=device) for x in given]
    got = REGISTRY[name].function(*case.before, *tensors, *case.after).numpy()
    return float(ulps(got, _exact(name, given), dtype, case.floor).max())


def elementary_error(name: str) -> float:
    """The largest error of an elementary function in float64 on the CPU, of normal numbers."""
    given = [x.astype(np.float64) for x in accuracy.inputs(name)]
    with np.errstate(all="ignore"):
        got = REGISTRY[name].function(*(tensor(x) for x in given)).numpy()
    exact = accuracy.reference(name, given)
    normal = np.isfinite(got) & np.isfinite(exact) & (np.abs(exact) > 2.0**-1021)
    got, exact = np.where(normal, got, 0.0), np.where(normal, exact, np.longdouble(0))
    return float(ulps(got, exact, "float64").max())


def _row(name: str, values: Sequence[float]) -> str:
    return f"| {name} | {' | '.join(map(accuracy.as_text, values))} |"


def _special_rows(devices: Sequence[str]) -> Iterator[str]:
    columns = [("cpu", "float32"), ("cpu", "float64")]
    columns += [("webgpu", "float32")] if "webgpu" in devices else []
    yield f"| function | {' | '.join(' '.join(c) for c in columns)} |"
    yield f"| --- | {' | '.join('---:' for _ in columns)} |"
    for name in SPECIAL:
        yield _row(name, [special_error(name, *c) for c in columns])


def _elementary_rows() -> Iterator[str]:
    yield "| function | cpu (compiled) | cpu (numpy) |"
    yield "| --- | ---: | ---: |"
    for name in accuracy.FUNCTIONS:
        found = []
        for how in accuracy.WAYS["cpu"]:
            with accuracy.way(how):
                found.append(elementary_error(name))
        yield _row(name, found)


_SECTION = """## In float64

The same inputs, in float64 on the CPU; the largest error in ulp of results that are normal numbers.

{elementary}

## Special functions

The largest error in ulp over {count} inputs of each function's usual range, and ten times as many
where mpmath is quick. Where a function goes through 0 its error is small against the values around
it, and is counted in units of these. References are mpmath's, to 30 digits.

{special}
"""


def section(devices: Sequence[str]) -> str:
    """The part of docs/accuracy.md that this module measures; none of it without mpmath."""
    if find_spec("mpmath") is None:
        return "Special functions and float64 were not measured: that needs mpmath.\n"
    REGISTRY["lgamma"]  # loads the family
    return _SECTION.format(
        elementary="\n".join(_elementary_rows()),
        special="\n".join(_special_rows(devices)),
        count=COUNT,
    )
