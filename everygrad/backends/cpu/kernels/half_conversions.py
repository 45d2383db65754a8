"""Conversions around kernels that compute in float32. Large arrays use a compiled kernel, since
NumPy converts half floats one at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.compiler.expr import Expr, Program, lower
from everygrad.core.config import config
from everygrad.dtypes import FROM_NP, DType, rounded

_F32 = np.dtype(np.float32)


@lru_cache
def _cast(source: DType, wanted: DType) -> Program:
    return lower(Expr("input", (), 0), [source], wanted)


def is_half(x: Any) -> bool:
    """Whether an array holds floats of 16 bits."""
    return x.dtype.itemsize == 2 and x.dtype.kind not in "iu"


def converted(x: Any, dtype: Any) -> Any:
    """x as another floating dtype with the same layout; x itself if it has that dtype."""
    if x.dtype == dtype:
        return x
    if x.size <= config.native_threshold:
        return rounded(x, FROM_NP[np.dtype(dtype)])
    order = sorted(range(x.ndim), key=lambda a: -x.strides[a])
    seen = x.transpose(order)
    out = empty(seen.shape, np.dtype(dtype))
    lazy_native.run(_cast(FROM_NP[x.dtype], FROM_NP[out.dtype]), [seen], out)
    return out.transpose(np.argsort(order))


def widened(x: Any) -> Any:
    """Half floats as float32, other arrays unchanged."""
    return converted(x, _F32) if is_half(x) else x
