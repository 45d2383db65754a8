"""NumPy functions along one axis, run on several threads: NumPy releases the GIL inside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad.backends import thread_pool
from everygrad.compiler.thresholds import edge

# elements of a slab that are worth waking a thread
_MIN_BLOCK = edge(__name__, "_MIN_BLOCK", 1 << 15, "elements")


def is_serial(x: Any) -> bool:
    """Whether `in_slabs` calls its function once, on all of x."""
    return x.ndim == 1 or x.size < 2 * _MIN_BLOCK


def in_slabs(fn: Callable[[Any, Any], object], x: Any, out: Any, axis: int) -> None:
    """fn(x, out), which fills `out` along `axis`, on slabs of both that split another axis."""
    if is_serial(x):
        fn(x, out)
        return
    cut = max((a for a in range(x.ndim) if a != axis), key=lambda a: x.shape[a])

    def run(lo: int, hi: int) -> None:
        part = (slice(None),) * cut + (slice(lo, hi),)
        fn(x[part], out[part])

    thread_pool.parallel_for(x.shape[cut], max(1, _MIN_BLOCK * x.shape[cut] // x.size), run)
