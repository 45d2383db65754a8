"""What a result should be, how far it may be off, and the first element that is further off."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

_WIDE = {
    "float16": np.float64, "bfloat16": np.float64, "float32": np.float64,
    "float64": np.longdouble, "complex64": np.complex128, "complex128": np.clongdouble,
}  # fmt: skip
_PRODUCTS = {"float64": np.float64, "complex128": np.complex128}  # BLAS has nothing wider
_finfo: Any = ml_dtypes.finfo
_SERIAL = 4096  # terms that a kernel may add one after the other
_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


class Accuracy(NamedTuple):
    """What can be asked of a device.

    `functions` is the error of exp, sin and their like in roundings, `basic` that of division and
    square roots: what is wrong is looked for, not the last digit (docs/accuracy.md). `product` is
    the rounding of what is multiplied in float32 (tf32 has 10 bits). `flushes`: numbers below the
    smallest normal one may be taken for 0. `contracts`: products may be added unrounded.
    """

    functions: float = 16.0
    basic: float = 1.0
    product: float = 2.0**-24
    flushes: bool = False
    contracts: bool = False


class Expected(NamedTuple):
    """The exact result in a wide dtype, and a bound for the error of each element.

    An element whose bound is infinite is not determined by the inputs' rounded values: it is not
    looked at. `signed`: where nothing may be off, zeros have their signs too.
    """

    value: Any
    error: Any = None  # None: nothing is ever rounded
    signed: bool = True


class Difference(NamedTuple):
    """The element that is furthest off: where it is, what it is, what it should be."""

    at: tuple[int, ...]
    got: Any
    want: Any
    allowed: float
    bad: int  # how many elements differ
    what: str = ""  # of what, if not of the result itself

    def __str__(self) -> str:
        place = list(self.at)
        of = f"{self.what} " if self.what else "element "
        more = f" ({self.bad} elements differ)" if self.bad > 1 else ""
        return f"{of}{place} is {self.got}, not {self.want} within {self.allowed:.3g}{more}"


def kind_of(dtype: Any) -> str:
    """NumPy's letter of a kind; bfloat16 is a float."""
    return "f" if dtype == ml_dtypes.bfloat16 else dtype.kind


def is_exact(dtype: Any) -> bool:
    """Whether numbers of a dtype are never rounded: integers and bools."""
    return kind_of(dtype) in "iub"


def unit(dtype: Any) -> float:
    """Half the distance of 1 from the next number: what rounding to a dtype may do."""
    found = _UNITS.get(np.dtype(dtype).name)
    return found if found is not None else float(np.finfo(dtype).eps) / 2


def limits(dtype: Any) -> tuple[float, float, float]:
    """The largest number of a floating-point dtype, the smallest normal one, the smallest."""
    facts: Any = _finfo(dtype) if dtype == ml_dtypes.bfloat16 else np.finfo(dtype)
    return float(facts.max), float(facts.smallest_normal), float(facts.smallest_subnormal)


def wide(x: Any) -> Any:
    """An array in numbers with many more digits; integers as they are."""
    found = _WIDE.get(x.dtype.name)
    return x if found is None else x.astype(found)


def for_products(x: Any) -> Any:
    """An array in the widest numbers of which BLAS makes products."""
    found = _PRODUCTS.get(x.dtype.name) or _WIDE.get(x.dtype.name)
    return x if found is None else x.astype(found)


def accumulated(dtype: Any) -> float:
    """The rounding of a sum on its way: that of float32 for halves."""
    return min(unit(dtype), 2.0**-24)


def growth(count: int) -> float:
    """How many roundings a sum of so many terms may be off by, relative to their sizes' sum.

    The worst order of adding gives `count`; sums are kept in lanes and blocks, and errors of both
    signs make up for one another, so a few times the root is more than what happens.
    """
    return 8 + 2 * sqrt(max(0, count))


def total(value: Any, size: Any, count: int, dtype: Any) -> Expected:
    """A sum of `count` terms whose absolute values sum to `size`."""
    if is_exact(dtype):
        return Expected(value)
    roundings = growth(count)
    if unit(dtype) <= 2.0**-53:  # the reference is rounded as coarsely
        # equal terms round one way: 448 of them, added one after the other, were off by 102
        roundings = max(2 * roundings, min(count, _SERIAL))
    return Expected(value, roundings * accumulated(dtype) * size + off(value, dtype))


def off(value: Any, dtype: Any, units: float = 1.0) -> Any:
    """What so many roundings of a result to a dtype may do."""
    return units * unit(dtype) * np.abs(value) + limits(dtype)[2]


def rounded(value: Any, dtype: Any) -> Any:
    """A wide result in its own dtype."""
    value = np.asarray(value)
    if kind_of(value.dtype) == "c" and kind_of(dtype) != "c":
        value = value.real
    with np.errstate(all="ignore"):
        return value.astype(dtype, copy=False)


def _same(got: Any, want: Any) -> Any:
    return (got == want) | ((got != got) & (want != want))


def difference(got: Any, expected: Expected, accuracy: Accuracy) -> Difference | None:
    """The element that is furthest off, if one is further off than the bound allows."""
    with np.errstate(all="ignore"):
        return _difference(got, expected, accuracy)


def _difference(got: Any, expected: Expected, accuracy: Accuracy) -> Difference | None:
    value = np.asarray(expected.value)
    error = np.asarray(0.0 if expected.error is None else expected.error, np.float64)
    if got.shape != value.shape:
        return Difference((), got.shape, value.shape, 0.0, 1, "the shape")
    if not got.size:
        return None
    if is_exact(got.dtype):
        bad = (got != value) & (error == 0)
        return _first(bad, got, value, error) if bad.any() else None
    want = rounded(value, got.dtype)
    bad = ~_same(got, want)
    if expected.error is not None:
        allowed = error + (limits(got.dtype)[1] if accuracy.flushes else 0.0)
        distance = np.abs(wide(got) - value)
        near = (distance <= allowed) | ~np.isfinite(allowed)
        # beyond the largest number, as far as the bound reaches, is infinity
        near |= np.isinf(got) & (np.abs(value) + allowed >= limits(got.dtype)[0])
        bad &= ~near
        return _first(bad, got, want, allowed, distance) if bad.any() else None
    if accuracy.flushes:
        normal = limits(got.dtype)[1]
        bad &= (np.abs(wide(got)) > normal) | (np.abs(value) > normal)
    if expected.signed and kind_of(got.dtype) == "f":
        bad |= (want == 0) & (got == 0) & (np.signbit(got) != np.signbit(want))
    return _first(bad, got, want, error) if bad.any() else None


def _first(bad: Any, got: Any, want: Any, allowed: Any, distance: Any = None) -> Difference:
    """Of the elements that differ, the one that is furthest beyond its bound."""
    count = int(np.count_nonzero(bad))
    allowed = np.broadcast_to(allowed, got.shape)
    if distance is None:
        place = int(np.argmax(bad))
    else:
        beyond = np.where(np.isnan(distance), np.inf, distance) / np.maximum(allowed, 1e-300)
        place = int(np.argmax(np.where(bad, beyond.astype(np.float64), -1.0)))
    at = tuple(int(i) for i in np.unravel_index(place, got.shape))
    return Difference(at, got[at], want[at], float(allowed[at]), count)


Way = Callable[..., Expected]
