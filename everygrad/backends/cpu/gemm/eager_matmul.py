"""Large eager matrix products, on the kernels that compiled functions use.

A kernel is compiled for its shapes and layouts, which takes some 20 ms the first time on a machine
(later it comes from the disk cache), and runs up to twice as fast as NumPy's BLAS. Small products
use BLAS.
"""

from __future__ import annotations

from typing import Any

from everygrad.backends.cpu.gemm.gemm import matmul as product
from everygrad.backends.cpu.kernels.run_work import layout_of, run
from everygrad.backends.cpu.llvm.work import ArrayLayout, Work, contiguous
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.core.shapes import Shape, broadcast


def batched(x: ArrayLayout, batch: Shape) -> ArrayLayout:
    """x with its leading axes repeated to `batch`."""
    added = len(batch) - (len(x.shape) - 2)
    sizes = (1,) * added + x.shape[:-2]
    strides = (0,) * added + x.strides[:-2]
    steps = tuple(
        0 if n == 1 and m != 1 else s for n, m, s in zip(sizes, batch, strides, strict=True)
    )
    return ArrayLayout(x.dtype, (*batch, *x.shape[-2:]), (*steps, *x.strides[-2:]), x.offset)


_works: dict[Any, tuple[Work, Shape]] = {}  # by what layouts are made of, which takes longer
_MOST = 4096  # works that are remembered


def _work(x: ArrayLayout, y: ArrayLayout) -> tuple[Work, Shape]:
    batch = broadcast("matmul", x.shape[:-2], y.shape[:-2])
    shape = (*batch, x.shape[-2], y.shape[-1])
    return product(batched(x, batch), batched(y, batch), contiguous(x.dtype, shape)), shape


def matmul(x: Any, y: Any) -> Any:
    """x @ y for aligned arrays of one real floating dtype with two or more axes."""
    key = (x.dtype, x.shape, x.strides, y.shape, y.strides)
    found = _works.get(key)
    if found is None:
        if len(_works) >= _MOST:
            _works.clear()
        found = _works[key] = _work(layout_of(x), layout_of(y))
    work, shape = found
    out = empty(shape, x.dtype)
    run(work, [out], [x, y])
    return out
