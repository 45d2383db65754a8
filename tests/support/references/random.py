"""What random words mean as numbers, in NumPy: see `ops.randomwords`."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  # gives NumPy its bfloat16
import numpy as np

_KEPT = {"float32": 24, "float16": 11, "bfloat16": 8}


def _shares(words: Any, bits: int) -> Any:
    """The first `bits` bits as a fraction."""
    return np.floor(words.astype(np.float64) * 2.0 ** (bits - 32)) * 2.0**-bits


def unit(word: Any, dtype: str) -> Any:
    return _shares(word, _KEPT[dtype]).astype(dtype)


def unit_wide(high: Any, low: Any, dtype: str) -> Any:
    whole = high.astype(np.uint64) >> 5 << 26 | low.astype(np.uint64) >> 6
    return whole.astype(np.float64) * 2.0**-53


def fine_unit(word: Any, dtype: str) -> Any:
    return ((word.astype(np.float64) + 0.5) / 2.0**32).astype(dtype)


def _polar(u: Any, v: Any) -> Any:
    """The real part of a number of this radius and angle."""
    return (np.sqrt(-2.0 * np.log1p(-u)) * np.exp(2j * np.pi * v)).real


def normal(x: Any, y: Any, dtype: str) -> Any:
    return _polar(_shares(x, 24), _shares(y, 24)).astype(dtype)


def integer_from(word: Any, count: Any, low: Any, dtype: str) -> Any:
    exact = np.asarray(word, object) * np.asarray(count, object) // 2**32
    return np.asarray(exact + np.asarray(low, object)).astype(dtype)


def philox_advance(state: Any, blocks: int) -> Any:
    at = (int(state[2]) + (int(state[3]) << 32) + blocks) % 2**64
    return np.array([state[0], state[1], at % 2**32, at >> 32], np.uint32)
