"""Scans as native work, by the lowering that all devices share (`codegen.scan`).

Sums and products of floats accumulate in float64 and are rounded when they are stored.
"""

from __future__ import annotations

from functools import lru_cache

from everygrad import dtypes
from everygrad.backends.cpu.llvm.kernel_render import render
from everygrad.backends.cpu.llvm.work import ArrayLayout, Work
from everygrad.codegen import scan as lowering
from everygrad.codegen.machine import Machine
from everygrad.compiler.thresholds import edge

_ROWS_AT_ONCE = edge(__name__, "_ROWS_AT_ONCE", 4, "size")
CORE = Machine(
    threads=1,
    wide_float=dtypes.float64,
    narrow_index=dtypes.uint64,
    narrow=1 << 62,
    wide_index=None,
    in_flight=_ROWS_AT_ONCE,
    checks_before=True,
)


@lru_cache(maxsize=1024)
def scan(op: str, x: ArrayLayout, axis: int, reverse: bool = False) -> Work:
    """args: out, x (a and b of a recurrence), all contiguous, not empty."""
    (launch,) = lowering.plan(op, x.dtype, x.shape, axis, CORE, reverse).launches
    last = len(launch.arrays) - 1
    return render(launch.kernel, (last, *range(last)))
