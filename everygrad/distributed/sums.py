"""Sums over ranks in one fixed order, so that every rank and every run has the same bits.

Contributions are combined in the order of the ranks. Half floats are combined in float32 and
rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everygrad.amp.policy import HALVES
from everygrad.dtypes import FROM_NP

COMBINE: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def combined(parts: Sequence[Any], op: str) -> Any:
    """The arrays of all ranks combined in the order of the ranks, as a new array."""
    first = parts[0]
    if len(parts) == 1:
        return first.copy()
    wide = np.dtype(np.float32) if FROM_NP[first.dtype] in HALVES else first.dtype
    combine = COMBINE[op]
    with np.errstate(all="ignore"):
        total = np.asarray(
            combine(first.astype(wide, copy=False), parts[1].astype(wide, copy=False))
        )
        for part in parts[2:]:
            total = combine(total, part.astype(wide, copy=False), out=total)
    return total.astype(first.dtype, copy=False)
