"""Random bits: Philox 4x32-10 by NumPy, or by a compiled kernel if it is loaded or pays."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.core.config import config
from everygrad.core.context import records

_ALL = 0xFFFFFFFF
_U32 = np.dtype(np.uint32)
_LOW, _HALF = np.uint64(_ALL), np.uint64(32)


def philox(state: Any, count: int) -> Any:
    """`count` words, starting at the state (two words of key, two of counter)."""
    blocks = -(-count // 4)
    out = empty((blocks, 4), _U32)
    k0, k1, low, high = state.tolist()
    first = high << 32 | low
    if blocks > config.native_threshold or lazy_native.is_loaded():
        lazy_native.philox_llvm().draw(out, blocks, k1 << 32 | k0, first)
    else:
        _by_numpy(out, first, k0, k1)
    flat = out.reshape(-1)
    return flat if flat.size == count else flat[:count]


@cache
def _constants() -> tuple[int, Any, int, int]:
    """The rounds, the multipliers as a column, and the increments of the key."""
    known = records.by_name["philox"].constants
    return known["rounds"], np.array(known["multipliers"], np.uint64)[:, None], *known["weyl"]


def _by_numpy(out: Any, first: int, k0: int, k1: int) -> None:
    """One array holds the words c0 and c2 of all blocks, another c1 and c3: both products of a
    round are one call."""
    counters = np.arange(len(out), dtype=np.uint64) + np.uint64(first)
    even, odd = np.zeros((2, *counters.shape), np.uint64), np.zeros((2, *counters.shape), np.uint64)
    even[0], odd[0] = counters & _LOW, counters >> _HALF
    rounds, multipliers, w0, w1 = _constants()
    for _ in range(rounds):
        product = even * multipliers
        even = odd ^ (product >> _HALF)[::-1]
        even ^= np.array([[k0], [k1]], np.uint64)
        odd = (product & _LOW)[::-1]
        k0, k1 = (k0 + w0) & _ALL, (k1 + w1) & _ALL
    out[:, 0::2], out[:, 1::2] = even.T, odd.T


def advanced(state: Any, blocks: int) -> Any:
    """The state after `blocks` blocks."""
    k0, k1, low, high = state.tolist()
    at = ((high << 32 | low) + blocks) & 0xFFFFFFFFFFFFFFFF
    return np.array((k0, k1, at & _ALL, at >> 32), _U32)
