"""Gathers and scatters as native work, by the lowerings that all devices share (`codegen.gather`,
`.scatter`). Arrays are contiguous, and indices were checked before."""

from __future__ import annotations

from functools import lru_cache

from everygrad.backends.cpu.kernels import copy_index
from everygrad.backends.cpu.kernels.scan import CORE
from everygrad.backends.cpu.llvm.kernel_render import render
from everygrad.backends.cpu.llvm.work import ArrayLayout, Work
from everygrad.codegen import gather as gathers, scatter as scatters
from everygrad.codegen.copy import Layout, bits_of
from everygrad.core.strides import row_major


def _layout(x: ArrayLayout) -> Layout:
    return Layout(x.dtype, x.shape, row_major(x.shape))


@lru_cache(maxsize=1024)
def gather(x: ArrayLayout, index: ArrayLayout, axis: int) -> Work:
    """One element for each index; args: out, x, index."""
    lowered = gathers.gather(_layout(x), _layout(index), axis, CORE)
    return render(lowered.kernel, (2, 0, 1))


@lru_cache(maxsize=1024)
def index_add(x: ArrayLayout, index: ArrayLayout, axis: int) -> Work:
    """out = x with slices of source added; args: out, x, index, source."""
    lowered = scatters.slices_in_order(
        "index_add", x.dtype, x.shape, _layout(index), axis, CORE, adds=True
    )
    return render(lowered.kernel, range(4))


@lru_cache(maxsize=1024)
def index_put(x: ArrayLayout, index: ArrayLayout) -> Work:
    """out = x with slices of axis 0 replaced; args: out, x, index, values."""
    lowered = scatters.slices_in_order(
        "index_put", bits_of(x.dtype), x.shape, _layout(index), 0, CORE, adds=False
    )
    return render(lowered.kernel, range(4))


@lru_cache(maxsize=1024)
def scatter_add(x: ArrayLayout, index: ArrayLayout, axis: int) -> Work:
    """out = x with each source element added; args: out, x, index, source."""
    whole = ArrayLayout(x.dtype, (x.size,), (1,))
    lowered = scatters.elements_in_order(x.dtype, x.shape, _layout(index), axis, CORE)
    return Work((copy_index.copy(whole, whole), *render(lowered.kernel, (0, None, 1, 2)).steps))


@lru_cache(maxsize=1024)
def last_write(index: ArrayLayout, size: int) -> Work:
    """For each of `size` indices the last position at which it occurs, or -1; args: out, index."""
    none, then = gathers.last_write_in_order(_layout(index), size, CORE)
    return Work((*render(none.kernel, (0,)).steps, *render(then.kernel, (1, 0)).steps))
