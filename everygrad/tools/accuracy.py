"""How far elementary functions are off, on the device at hand, in units in the last place.

Each function gets the same 20,000 float32 inputs on every device. References are NumPy's in
`longdouble` (64 bits of significand on x86, never fewer than float64's 53) and the C library's
error functions. One unit in the last place (ulp) is the distance between float32 numbers at the
exact result, so a correctly rounded function is off by 0.5 at most.
"""

from __future__ import annotations

import datetime
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from everygrad.core.config import config
from everygrad.ops.python.creation import tensor
from everygrad.ops.record.spec import REGISTRY

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
    exact = -np.longdouble(x) * np.sqrt(np.longdouble(0.5))
    given = exact.astype(np.float64)
    # by erfc: 1 + erf would cancel; and by its slope to where it was asked for
    slope = -2 / math.sqrt(math.pi) * np.exp(-(np.longdouble(given) ** 2))
    return x * 0.5 * (_each(math.erfc, given) + slope * np.nan_to_num(exact - given))


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
    "add": Function(np.add, -100, 100, second=(-100, 100)),
    "multiply": Function(np.multiply, -100, 100, second=(-100, 100)),
    "divide": Function(np.divide, -100, 100, second=(-100, 100)),
    "remainder": Function(np.remainder, -100, 100, second=(-10, 10)),
    "floor_divide": Function(np.floor_divide, -100, 100, second=(-10, 10)),
    "pow": Function(np.power, 0, 10, (1.0,), second=(-40, 40)),
    "atan2": Function(np.arctan2, -10, 10, second=(-10, 10)),
    "cbrt": Function(np.cbrt, -100, 100),
    "hypot": Function(np.hypot, -100, 100, second=(-100, 100)),
    "logaddexp": Function(np.logaddexp, 0, 100, second=(0, 100)),
}


# What functions may be off on any device, in ulp; `doctor` and the tests hold them to it
_MOST = 4.0
BOUNDS = {
    "tan": 5.0,  # a quotient of two that are off
    "pow": 5.0,
    "gelu": 8.0,  # a product with a share that is off by 7
    "logaddexp": 8.0,  # near a result of 0 a difference
}
# these end in a sum or a product of their parts, which is the device's own, and may flush
ENDS_IN_ARITHMETIC = frozenset(
    ("softplus", "silu", "gelu", "add", "multiply", "hypot", "logaddexp")
)


def fault(name: str, found: Error) -> str | None:
    """What is wrong with a function of which this was measured; None if nothing is."""
    most = BOUNDS.get(name, _MOST)
    if found.wrong_nan:
        return f"NaN where there is a number, or a number for NaN, at {found.wrong_nan} inputs"
    if not found.normal <= most:
        where = ", ".join(map(repr, found.at))
        return f"off by {as_text(found.normal)} ulp at {where}: more than {most:g}"
    flushes_by_right = found.flushed and name in ENDS_IN_ARITHMETIC
    if not flushes_by_right and not found.subnormal <= most:
        return f"off by {as_text(found.subnormal)} ulp at subnormal numbers: more than {most:g}"
    return None


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


def flushes(device: str) -> bool:
    """Whether the device's sums or products take subnormal numbers for 0."""
    x = tensor(np.array([2.0**-130], np.float32), device=device)
    return not ((x + x).numpy().all() and (x * 0.5).numpy().all())


def measure(name: str, device: str) -> Error:
    """The errors of one function on one device."""
    given = inputs(name)
    tensors = [tensor(x, device=device) for x in given]
    with np.errstate(all="ignore"):
        got = REGISTRY[name].function(*tensors).numpy()
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


# --- as a table ----------------------------------------------------------------------------------

Found = Mapping[str, Any]  # an Error's fields, or "error"; with "function" and "column"


def as_text(value: float) -> str:
    """A number of units."""
    return f"{value:.2f}" if value < 1e3 else f"{value:.0e}"


def _cell(found: Found | None) -> str:
    """One measurement: normal / subnormal, in ulp."""
    if found is None:
        return ""
    if "error" in found:
        return "FAILED"
    low = "to 0" if found["flushed"] and found["subnormal"] > 1e3 else as_text(found["subnormal"])
    wrong = f", {found['wrong_nan']} NaN wrong" if found["wrong_nan"] else ""
    failed = " FAILED" if found.get("fault") else ""
    return f"{as_text(found['normal'])} / {low}{wrong}{failed}"


def table(found: Sequence[Found]) -> list[list[str]]:
    """A heading, then a row for each function; nothing where nothing was measured."""
    names = list(dict.fromkeys(f["column"] for f in found))
    cells = {(f["function"], f["column"]): f for f in found}
    rows = [[name, *(_cell(cells.get((name, c))) for c in names)] for name in FUNCTIONS]
    return [["function", *names], *rows] if found else []


_PAGE = """# Accuracy of the elementary and special functions

The largest error over 20,000 fixed float32 inputs for each function, in units in the last place
(ulp): a correctly rounded function is off by 0.5 at most. The inputs (`tools/accuracy.py`) are the
usual range, all exponents and both signs, near 0 and near the hard places, infinities and NaN.
Before the slash stand inputs and results that are normal numbers, behind it those where one is
subnormal; "to 0" means that a subnormal result came out as 0. References are NumPy's in
`longdouble`.

{table}

{measured}

On the CPU an op on a large tensor, and everything under `eg.jit`, runs in compiled kernels; an op
on a small tensor (up to `eg.config.native_threshold` elements, or fewer for an op that takes NumPy
several calls) is NumPy's. NumPy's own validation table (inputs, correctly rounded results and
bounds for 20 functions, in float32 and float64) holds on the CPU as well, row by row, in NumPy's
way, compiled, and under `eg.jit`: `tests/registry/test_accuracy.py` enforces it.
{remarks}
This page is made by

```sh
python -m everygrad doctor --accuracy-table > docs/accuracy.md
```

and `python -m everygrad doctor` prints the table for the machine and the adapter it runs on, and
fails where a figure is above what the function may be off: 4 ulp, but for {bounds}.

{more}
## What a GPU may do, and what everygrad does about it

WGSL lets a driver take subnormal numbers (smaller than 1.2e-38) for 0 whenever it computes or
compares, be off by 2.5 ulp in a division and by more in a square root, and fuse a product with a
sum or not. Drivers do. The functions of the table are written for that:

- Division and square roots are corrected by their exact remainders, in integers: correctly
  rounded on every device, with subnormal operands and results. So `x / x` is 1 for every x but 0,
  infinities and NaN.
- `//` and `%` are long division in integers, and give NumPy's bits on every device.
- The other functions take and give subnormal numbers by their bits. Comparisons, `maximum`,
  `minimum`, `sign`, `floor`, `ceil` and `astype(bool)` see them; loads, stores and moves keep them.
- NaN and infinity are told by their bits, and behave as on the CPU. Drivers that take `x - x` and
  `x * 0` for 0 and `(x + y) - x` for y in a compiled function are kept from it.
- `+`, `-` and `*` are the device's own. Where it flushes, so do they, and so do the functions that
  end in one: `softplus`, `silu`, `gelu`. `python -m everygrad doctor` says whether it does
  ("subnormals"), and the rows `add` and `multiply` show it.

`tests/backends/webgpu/test_math.py` enforces this on the worst device that WGSL allows: it rewrites
every kernel so that arithmetic flushes, divisions are off by 2.5 ulp, square roots by 4.5, and
products are fused.
"""
REMARKABLE = 10.0  # ulp from which on a reason is owed
REMARKS = {
    "logaddexp": "near a result of 0 is a difference: small against what it is given",
}


def _remarks(found: Sequence[Found]) -> str:
    """Why some figures are large."""
    large = {f["function"] for f in found if f.get("normal", 0.0) > REMARKABLE}
    lines = [f"- `{n}` {REMARKS.get(n, 'is further off than it should be')}" for n in FUNCTIONS
             if n in large]  # fmt: skip
    return "\n".join(["", "The large figures:", "", *lines, ""]) if lines else ""


def page(found: Sequence[Found], measured: Sequence[str], more: str = "") -> str:
    """docs/accuracy.md: `measured` says on what; `more` is what stands below the table."""
    heading, *rows = table(found) or [["nothing was measured"]]
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return _PAGE.format(
        table="\n".join(f"| {' | '.join(line)} |" for line in lines),
        measured="\n".join(
            [f"Measured on {datetime.date.today().isoformat()}:", "", *(f"- {m}" for m in measured)]
        ),
        remarks=_remarks(found),
        bounds=" and ".join(f"`{name}` {most:g}" for name, most in BOUNDS.items()),
        more=more,
    )
