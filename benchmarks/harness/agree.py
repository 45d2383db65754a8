"""Whether two peers computed the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.workloads import Array

# How far a weight has moved is known only to the rounding of the weight, which is a thousand
# times as large as the step.
CHANGE_TOLERANCE = 1e-2


def load(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as saved:
        return {name: saved[name] for name in saved.files}


def difference(ours: Array, theirs: Array) -> float:
    """The norm of the difference over the norm of the whole: 0 equal, about 1 unrelated.

    By norm and not by element: AdamW divides by the size of the gradient, which makes rounding
    in an element near zero as large as the element.
    """
    whole = float(np.linalg.norm(theirs.astype(np.float64)))
    apart = float(np.linalg.norm(ours.astype(np.float64) - theirs.astype(np.float64)))
    return apart / whole if whole else apart


def disagreements(
    ours: Mapping[str, Array], theirs: Mapping[str, Array], tolerance: float
) -> list[str]:
    """One line for each output that is missing or differs; none when the peers agree."""
    lines = [f"{name}: only one peer gives it" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        a, b = ours[name], theirs[name]
        allowed = CHANGE_TOLERANCE if ".change." in name else tolerance
        if a.shape != b.shape or a.dtype != b.dtype:
            lines.append(f"{name}: {a.dtype}{a.shape} and {b.dtype}{b.shape}")
        # Written so that NaN, which compares false with everything, disagrees.
        elif not (apart := difference(a, b)) <= allowed:
            lines.append(f"{name}: differs by {apart:.1e} of its norm, {allowed:.0e} allowed")
    return lines
