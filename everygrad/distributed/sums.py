"""Sums over ranks in one fixed order, so that every rank and every run has the same bits.

Contributions are combined in the order of the ranks. Half floats are combined in float32 and
rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everygrad.amp.policy import HALVES
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.dtypes import FROM_NP

COMBINE: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def combined(parts: Sequence[Any], op: str, scratch: Any = None) -> Any:
    """The arrays of all ranks combined in the order of the ranks, as a new array; or in the memory
    of `scratch`, one of the first two, if nobody needs that any more."""
    first = parts[0]
    if len(parts) == 1:
        return first.copy()
    wide = np.dtype(np.float32) if FROM_NP[first.dtype] in HALVES else first.dtype
    combine = COMBINE[op]
    reuses = scratch is not None and scratch.dtype == wide
    total = scratch if reuses else empty(first.shape, wide)
    with np.errstate(all="ignore"):
        combine(first.astype(wide, copy=False), parts[1].astype(wide, copy=False), out=total)
        for part in parts[2:]:
            total = combine(total, part.astype(wide, copy=False), out=total)
    return total.astype(first.dtype, copy=False)
