"""Windows: how much each element of a stretch counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError
from everygrad.ops.linalg.checks import constant


def _made(
    op: str,
    values: Callable[[Any], Any],
    window_length: int,
    periodic: bool,
    dtype: Any,
    device: str | None,
) -> Tensor:
    """values of places from 0 to 1; a periodic window lacks the last, which the next one begins
    with."""
    count = shapes.as_int(window_length, op, "window_length")
    if count < 0:
        raise ArgumentError(f"{op}: window_length must not be negative, got {count}")
    wanted = dtypes.as_dtype(dtype or dtypes.DEFAULT_FLOAT)
    if not wanted.is_float:
        raise DtypeError(f"{op}: a window is of real floating-point numbers, not {wanted}")
    last = count if periodic else count - 1
    made = values(np.arange(count) / last) if count > 1 else np.ones(count)
    return constant(made.astype(wanted.np), device)


def hann_window(
    window_length: int, periodic: bool = True, dtype: Any = None, device: str | None = None
) -> Tensor:
    """(1 - cos(2 pi t)) / 2 for t from 0 to 1; `periodic` windows are the first of one more."""
    return hamming_window(window_length, periodic, 0.5, 0.5, dtype, device)


def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    dtype: Any = None,
    device: str | None = None,
) -> Tensor:
    """alpha - beta cos(2 pi t) for t from 0 to 1; `periodic` windows are the first of one more."""
    return _made(
        "hamming_window",
        lambda t: alpha - beta * np.cos(2 * np.pi * t),
        *(window_length, periodic, dtype, device),
    )


def blackman_window(
    window_length: int, periodic: bool = True, dtype: Any = None, device: str | None = None
) -> Tensor:
    """0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t), never below 0."""

    def values(t: Any) -> Any:
        made = 0.42 - 0.5 * np.cos(2 * np.pi * t) + 0.08 * np.cos(4 * np.pi * t)
        return np.maximum(made, 0)  # rounding leaves less than 0 at the ends

    return _made("blackman_window", values, window_length, periodic, dtype, device)


def bartlett_window(
    window_length: int, periodic: bool = True, dtype: Any = None, device: str | None = None
) -> Tensor:
    """A triangle from 0 to 1 and back."""

    def values(t: Any) -> Any:
        return 1 - np.abs(2 * t - 1)

    return _made("bartlett_window", values, window_length, periodic, dtype, device)


def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    dtype: Any = None,
    device: str | None = None,
) -> Tensor:
    """I0(beta sqrt(1 - (2 t - 1)^2)) / I0(beta), I0 being a Bessel function."""

    def values(t: Any) -> Any:
        return np.i0(beta * np.sqrt(np.maximum(0, 1 - (2 * t - 1) ** 2))) / np.i0(beta)

    return _made("kaiser_window", values, window_length, periodic, dtype, device)


__all__ = ["bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"]
