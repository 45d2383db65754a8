"""How reductions combine values: defined once, read by every device, eagerly and compiled.

add       0.0 plus the terms. So the sum of nothing is 0.0, and so is the sum of -0.0 alone,
          whatever the size, the axes and the order of summation, as in NumPy and PyTorch. Means
          and running sums begin the same way (running sums do in PyTorch; NumPy's begin with the
          first element)
mul       1 times the factors
max, min  IEEE 754's maximum and minimum: a NaN wins, and 0.0 is above -0.0. The order of elements
          decides nothing (it does in NumPy and PyTorch, where the last zero or the first may win)
and, or   of truth values
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.dtypes import DType

COMBINATIONS = ("add", "mul", "max", "min", "and", "or")
_START: dict[str, int] = {"add": 0, "or": 0, "mul": 1, "and": 1}


def identity(combine: str, dtype: DType) -> Any:
    """What accumulating starts from, in the accumulator's dtype."""
    if combine in _START:
        return _START[combine]
    if dtype is dtypes.bool_:
        return combine == "min"
    if dtype.is_float:
        return -math.inf if combine == "max" else math.inf
    limits = np.iinfo(dtype.np)
    return int(limits.min if combine == "max" else limits.max)


def of_nothing(combine: str, dtype: DType, mean: bool) -> Any:
    """The result where there is nothing to combine."""
    if mean:
        return complex(math.nan, math.nan) if dtype.is_complex else math.nan
    return identity(combine, dtype)


def of_equal(combine: str, value: Any, count: int, mean: bool) -> Any:
    """The result where all of `count` elements are `value`."""
    if combine != "add":
        return value
    return _START["add"] + (value if mean else value * count)
