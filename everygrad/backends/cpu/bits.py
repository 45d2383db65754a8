"""Random bits: Philox 4x32-10 by NumPy, and for many words by a compiled kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad.backends.cpu import native
from everygrad.backends.cpu.pool import empty
from everygrad.config import config

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # what the key grows by each round
_ALL = 0xFFFFFFFF
_U32 = np.dtype(np.uint32)


def philox(state: Any, count: int) -> Any:
    """`count` words from the state (two words of key, two of counter) on."""
    blocks = -(-count // 4)
    out = empty((blocks, 4), _U32)
    first = int(state[3]) << 32 | int(state[2])
    if blocks > config.native_threshold:
        native.drawing().draw(out.ctypes.data, blocks, int(state[1]) << 32 | int(state[0]), first)
    else:
        places = np.arange(blocks, dtype=np.uint64) + np.uint64(first)
        low, high = (places & np.uint64(_ALL)), (places >> np.uint64(32))
        for which, word in enumerate(_by_numpy(low, high, int(state[0]), int(state[1]))):
            out[:, which] = word
    return out.reshape(-1)[:count]


def _by_numpy(low: Any, high: Any, k0: int, k1: int) -> list[Any]:
    c0, c1 = low.astype(np.uint32), high.astype(np.uint32)
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    m0, m1 = (np.uint64(m) for m in MULTIPLIERS)
    for _ in range(ROUNDS):
        p0, p1 = c0.astype(np.uint64) * m0, c2.astype(np.uint64) * m1
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)).astype(np.uint32) ^ c1 ^ np.uint32(k0),
            p1.astype(np.uint32),
            (p0 >> np.uint64(32)).astype(np.uint32) ^ c3 ^ np.uint32(k1),
            p0.astype(np.uint32),
        )
        k0, k1 = (k0 + WEYL[0]) & _ALL, (k1 + WEYL[1]) & _ALL
    return [c0, c1, c2, c3]
