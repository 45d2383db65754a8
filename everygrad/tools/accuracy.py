"""How far elementary functions are off, on the device at hand, in units in the last place.

Each function gets the same 20,000 float32 inputs on every device. References are NumPy's in
`longdouble` (64 bits of significand on x86, never fewer than float64's 53) and the C library's
error functions. One unit in the last place (ulp) is the distance between float32 numbers at the
exact result, so a correctly rounded function is off by 0.5 at most.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg
from everygrad.config import config

COUNT = 20_000
_LIMIT = 2.0**128  # where float32 ends; infinity counts as this
_TINY = 2.0**-126  # the smallest normal float32


class Error(NamedTuple):
    """What was found of one function on one device.

    normal     the largest error in ulp where inputs and result are normal numbers, 0 or infinite
    at         the inputs of that error
    subnormal  the largest error in ulp where an input or the result is subnormal
    flushed    whether some subnormal result came out as 0: GPUs may treat them so
    wrong_nan  for how many inputs exactly one of result and reference is NaN
    """

    normal: float
    at: tuple[float, ...]
    subnormal: float
    flushed: bool
    wrong_nan: int


class Function(NamedTuple):
    """An op, its reference in longdouble, and where its inputs are interesting."""

    reference: Callable[..., Any]
    low: float
    high: float
    near: tuple[float, ...] = ()  # inputs crowd here too
    second: tuple[float, float] | None = None  # of a function of two: the other one's range


# --- references ----------------------------------------------------------------------------------


def _each(fn: Callable[[float], float], x: Any) -> Any:
    """A function of Python floats, element by element."""
    return np.array([fn(float(v)) for v in x], np.longdouble)


def _sigmoid(x: Any) -> Any:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _gelu(x: Any) -> Any:
    return x * 0.5 * _each(math.erfc, x * -math.sqrt(0.5))  # erfc: 1 + erf would cancel


_TURNS = tuple(k * math.pi / 2 for k in (1, -1, 2, 3, 4, -7, 100, 1001, 65535, 10**6, 10**9))

FUNCTIONS = {
    "exp": Function(np.exp, -104, 89),
    "exp2": Function(np.exp2, -150, 128),
    "expm1": Function(np.expm1, -20, 89),
    "log": Function(np.log, 0, 100, (1.0,)),
    "log1p": Function(np.log1p, -1, 100, (-1.0,)),
    "log2": Function(np.log2, 0, 100, (1.0,)),
    "log10": Function(np.log10, 0, 100, (1.0,)),
    "sqrt": Function(np.sqrt, 0, 100),
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), 0, 100),
    "reciprocal": Function(lambda x: 1 / x, -100, 100),
    "sin": Function(np.sin, -100, 100, _TURNS),
    "cos": Function(np.cos, -100, 100, _TURNS),
    "tan": Function(np.tan, -100, 100, _TURNS),
    "asin": Function(np.arcsin, -1, 1, (1.0, -1.0, 0.5)),
    "acos": Function(np.arccos, -1, 1, (1.0, -1.0, 0.5)),
    "atan": Function(np.arctan, -10, 10, (1.0,)),
    "sinh": Function(np.sinh, -90, 90, (1.0,)),
    "cosh": Function(np.cosh, -90, 90),
    "tanh": Function(np.tanh, -10, 10),
    "asinh": Function(np.arcsinh, -10, 10),
    "acosh": Function(np.arccosh, 1, 100, (1.0,)),
    "atanh": Function(np.arctanh, -1, 1, (1.0, -1.0)),
    "erf": Function(lambda x: _each(math.erf, x), -4, 4),
    "sigmoid": Function(_sigmoid, -104, 20),
    "softplus": Function(lambda x: np.logaddexp(np.longdouble(0), x), -104, 20),
    "silu": Function(lambda x: x * _sigmoid(x), -110, 20),
    "gelu": Function(_gelu, -14, 10),
    "divide": Function(np.divide, -100, 100, second=(-100, 100)),
    "pow": Function(np.power, 0, 10, (1.0,), second=(-40, 40)),
    "atan2": Function(np.arctan2, -10, 10, second=(-10, 10)),
}


# --- inputs --------------------------------------------------------------------------------------

_SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, np.inf, -np.inf, np.nan, 3.4028235e38, -3.4028235e38,
     2.0**-126, -(2.0**-126), 2.0**-149, -(2.0**-149)],
    np.float32,
)  # fmt: skip


def _signed(random: np.random.Generator, sizes: Any) -> Any:
    return sizes * random.choice([-1.0, 1.0], len(sizes))


def _spread(random: np.random.Generator, count: int, low: int, high: int) -> Any:
    """Numbers of both signs, their exponents even from `low` to `high`."""
    exponents = random.integers(low, high, count)
    return _signed(random, np.ldexp(random.uniform(1, 2, count), exponents))


def _crowd(random: np.random.Generator, count: int, low: float, high: float, near: Any) -> Any:
    """`count` inputs of the kinds that matter, in float32."""
    subnormal = _spread(random, count // 20, -149, -126)
    small = _spread(random, count // 8, -40, 0)
    if near:
        centres = np.resize(np.array(near), count // 8)
        close = centres * (1 + _spread(random, len(centres), -25, -2))
    else:
        close = random.uniform(low / 8, high / 8, count // 8)
    whole = _spread(random, count // 4, -126, 128)
    rest = count - len(_SPECIAL) - sum(map(len, (subnormal, small, close, whole)))
    typical = random.uniform(low, high, rest)
    parts = (_SPECIAL, subnormal, small, close, whole, typical)
    return np.concatenate([p.astype(np.float32) for p in parts])


def inputs(name: str, count: int = COUNT) -> tuple[Any, ...]:
    """The fixed inputs of a function: one float32 array, or two."""
    function = FUNCTIONS[name]
    random = np.random.default_rng(zlib.crc32(name.encode()))
    x = _crowd(random, count, function.low, function.high, function.near)
    if function.second is None:
        return (x,)
    y = random.permutation(_crowd(random, count, *function.second, ()))
    if name == "pow":  # negative numbers have powers at integers only
        whole = random.random(count) < 0.2
        x = np.where(whole & (np.arange(count) % 2 == 1), -x, x)
        y = np.where(whole, np.rint(y), y)
    return x, y


# --- measuring -----------------------------------------------------------------------------------


def _clipped(x: Any) -> Any:
    return np.clip(np.asarray(x, np.longdouble), -_LIMIT, _LIMIT)


def _ulp(exact: Any) -> Any:
    """The distance between float32 numbers at `exact`."""
    exponents = np.clip(np.frexp(exact)[1], -125, 128)
    return np.ldexp(np.longdouble(1), exponents - 24)


def _is_subnormal(x: Any) -> Any:
    return (x != 0) & (np.abs(x) < _TINY)


def compare(got: Any, exact: Any, given: Sequence[Any]) -> Error:
    """The errors of float32 results against exact ones."""
    numbers = ~(np.isnan(got) | np.isnan(exact))
    want = _clipped(np.where(numbers, exact, 0))
    error = np.abs(_clipped(np.where(numbers, got, 0)) - want) / _ulp(want)
    small = _is_subnormal(want)
    flushed = small & (got == 0) & (np.abs(want) > 2.0**-148)
    for x in given:
        small |= _is_subnormal(x)
    normal = np.where(small, 0, error)
    worst = int(normal.argmax())
    return Error(
        float(normal[worst]),
        tuple(float(x[worst]) for x in given),
        float(np.where(small, error, 0).max()),
        bool(flushed.any()),
        int((np.isnan(got) != np.isnan(exact)).sum()),
    )


def reference(name: str, given: Sequence[Any]) -> Any:
    """The results to about 64 bits."""
    with np.errstate(all="ignore"):
        return FUNCTIONS[name].reference(*(x.astype(np.longdouble) for x in given))


def measure(name: str, device: str) -> Error:
    """The errors of one function on one device."""
    given = inputs(name)
    tensors = [eg.tensor(x, device=device) for x in given]
    with np.errstate(all="ignore"):
        got = getattr(eg, name)(*tensors).numpy()
    return compare(got, reference(name, given), given)


@contextmanager
def way(name: str) -> Iterator[None]:
    """Inside, the CPU computes in one of its two ways, whatever the size of a tensor."""
    before = config.native_threshold
    config.native_threshold = 1 << 62 if name == "numpy" else 0
    try:
        yield
    finally:
        config.native_threshold = before


WAYS = {"cpu": ("compiled", "numpy")}  # small tensors on the CPU go through NumPy


def columns(device: str) -> list[str]:
    """The names under which a device's results are kept: one for each way it computes."""
    return [f"{device} ({w})" for w in WAYS[device]] if device in WAYS else [device]


def measure_all(device: str) -> Iterator[tuple[str, str, Error | Exception]]:
    """(function, column, what was found) for each; what a function raises is found as well."""
    for name in FUNCTIONS:
        for column, how in zip(columns(device), WAYS.get(device, ("",)), strict=True):
            try:
                with way(how):
                    yield name, column, measure(name, device)
            except Exception as error:
                yield name, column, error
