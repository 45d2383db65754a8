"""Where two arrays differ by more than rounding: element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

# in units of the dtype's epsilon, beside an element's scale
ROOM = {"sums": 64.0, "values": 64.0, "plain": 64.0}
ROOM_OF_HALVES = {"sums": 4.0, "values": 24.0, "plain": 4.0}  # intermediate results are rounded
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
SMALLEST = {"float64": 1e-290, "float32": 1e-36, "float16": 6e-5, "bfloat16": 1e-36}
LARGEST = {"float64": 1.7e308, "float32": 3.4e38, "float16": 65500.0, "bfloat16": 3.38e38}


def difference(
    got: Any,
    want: Any,
    scale: Any,
    kind: str,
    dtype: str,
    looseness: float = 1.0,
    signs: bool = True,
) -> str | None:
    """What differs, in words; None if nothing does. `signs`: of zeros too, where bits count."""
    if got.shape != want.shape:
        return f"shape {got.shape}, should be {want.shape}"
    if not want.size:
        return None
    if want.dtype.kind in "iub":
        bad = got.astype(np.int64) != want.astype(np.int64)
        return _shown(bad, got, want, None) if bad.any() else None
    wide = got.astype(np.float64)
    nan = np.isnan(want)
    if kind == "exact":
        alike = (wide == want) & ((np.signbit(wide) == np.signbit(want)) | (not signs))
        bad = ~(alike | nan & np.isnan(wide))
        return _shown(bad, wide, want, None) if bad.any() else None
    halves = dtype in ("float16", "bfloat16")
    room = (ROOM_OF_HALVES if halves else ROOM)[kind] * EPSILON[dtype] * looseness
    with np.errstate(invalid="ignore"):
        apart = np.abs(wide - want)
        limit = room * scale + SMALLEST[dtype]
        fine = (apart <= limit) | (wide == want) | (nan & np.isnan(wide))
        beyond = np.abs(want) > LARGEST[dtype] * (1 - room)  # rounded to infinity, or nearly
        fine |= beyond & np.isinf(wide) & (np.sign(wide) == np.sign(want))
    bad = ~fine
    return _shown(bad, wide, want, apart / limit) if bad.any() else None


def _shown(bad: Any, got: Any, want: Any, units: Any) -> str:
    """How many, and the worst or the first of them."""
    if units is None:
        at = np.unravel_index(np.argmax(bad), bad.shape)
        by = ""
    else:
        worst = np.where(bad, np.nan_to_num(units, nan=np.inf, posinf=np.inf), -1.0)
        at = np.unravel_index(np.argmax(worst), bad.shape)
        by = f", {worst[at]:.3g} times what rounding allows"
    place = tuple(int(i) for i in at)
    shown = f"{got[at].item()!r} at {place}, should be {want[at].item()!r}{by}"
    return f"{int(bad.sum())} of {bad.size} elements; {shown}"
