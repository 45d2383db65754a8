"""Host-side random choices: seeds and orders of items, the same for a seed on every machine.

They are made of Philox's words and of sorting alone, so that neither NumPy's version nor the number
of workers has a say in them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad.core.scopes import untraced
from everygrad.ops.random.generators import Generator, default_generator

_MASK = (1 << 64) - 1


def seed_from(generator: Generator | None) -> int:
    """A seed of 64 bits; the generator's stream moves on by one step."""
    with untraced():
        low, high = (generator or default_generator).bits(2).tolist()
    return int(low) | int(high) << 32


def mixed(*numbers: int) -> int:
    """A seed of 64 bits for a tuple of numbers: neighbours have nothing in common (splitmix64)."""
    state = 0
    for n in numbers:
        state = (state ^ (n & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def words_of(seed: int, count: int) -> Any:
    """`count` random uint64 of the stream of `seed`, as a NumPy array."""
    with untraced():
        return Generator(seed).bits(2 * count).numpy().view(np.uint64)


def permutation_of(count: int, seed: int) -> Any:
    """The numbers from 0 to count - 1 in the random order of `seed`, as a NumPy array."""
    return np.argsort(words_of(seed, count), kind="stable")


def units_of(seed: int, count: int) -> Any:
    """`count` float64 in [0, 1) of the stream of `seed`."""
    return (words_of(seed, count) >> np.uint64(11)) * 2.0**-53


def integers_of(seed: int, count: int, high: int) -> Any:
    """`count` integers from 0 to high - 1 of the stream of `seed`."""
    # 53 random bits spread over `high` < 2**40 items: no item is 2**-13 likelier than another
    return (units_of(seed, count) * high).astype(np.int64)
