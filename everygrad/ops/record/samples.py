"""Inputs for the tests: small, seeded, of every awkward shape. NumPy arrays stand for tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from everygrad.ops.record.spec import Sample

UNARY_SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (2, 3), (0,), (2, 1, 3))
BINARY_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((), (2,)),
    ((1,), (0,)),
    ((), ()),
)


@cache
def _unit(shape: tuple[int, ...], seed: int) -> Any:
    """Scattered numbers in [0, 1), without NumPy's generator, which is slow to import.

    Not to be written to: records ask for the same few again and again.
    """
    count = 1
    for n in shape:
        count *= n
    places = np.arange(1, count + 1) + 1000.0 * seed + 100.0 * len(shape)
    return np.modf(np.abs(np.sin(places * 12.9898) * 43758.5453))[0].reshape(shape)


def real(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Any:
    """Scattered float64 numbers, the same for the same arguments."""
    return np.asarray(low + (high - low) * _unit(shape, seed))


def integers(*shape: int, low: int = 0, high: int = 5, seed: int = 0) -> Any:
    return np.asarray(np.floor(real(*shape, low=low, high=high, seed=seed))).astype(np.int64)


def booleans(*shape: int, seed: int = 0) -> Any:
    return np.asarray(_unit(shape, seed) < 0.5)


def truths(*shape: int, seed: int = 0) -> Any:
    """Numbers of which about half are 0."""
    return np.asarray(np.where(booleans(*shape, seed=seed), real(*shape, seed=seed), 0.0))


def unary(low: float = -2.0, high: float = 2.0) -> Callable[[], Iterator[Sample]]:
    def make() -> Iterator[Sample]:
        for shape in UNARY_SHAPES:
            yield Sample((real(*shape, low=low, high=high),))

    return make


def binary(
    low: float = -2.0, high: float = 2.0, low_y: float | None = None, high_y: float | None = None
) -> Callable[[], Iterator[Sample]]:
    def make() -> Iterator[Sample]:
        for a, b in BINARY_SHAPES:
            y = real(
                *b,
                low=low if low_y is None else low_y,
                high=high if high_y is None else high_y,
                seed=1,
            )
            yield Sample((real(*a, low=low, high=high), y))

    return make


def unary_of(make_array: Callable[..., Any]) -> Callable[[], Iterator[Sample]]:
    def make() -> Iterator[Sample]:
        for shape in UNARY_SHAPES:
            yield Sample((make_array(*shape),))

    return make


def binary_of(make_array: Callable[..., Any]) -> Callable[[], Iterator[Sample]]:
    def make() -> Iterator[Sample]:
        for a, b in BINARY_SHAPES:
            yield Sample((make_array(*a), make_array(*b, seed=1)))

    return make
