"""Deterministic scatter-adds, by the lowerings that all devices share (`codegen.scatter`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.kernels.copy_kernels import copied
from everygrad.backends.cuda.kernels.gather import check_range, nothing_to_take
from everygrad.backends.cuda.kernels.launch_kernel import launch, layout_of, machine
from everygrad.codegen import scatter as scatters, scatter_sorted
from everygrad.codegen.copy import Lowered
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP
from everygrad.errors import DeviceError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


def _scatter(
    dev: Cuda,
    op: str,
    x: CudaArray,
    index: CudaArray,
    source: CudaArray,
    axis: int,
    whole: bool,
) -> CudaArray:
    if index.storage is not None and x.shape[axis] == 0:
        raise nothing_to_take(dev, op, index, 0)
    text = f"{op}: index"
    if source.storage is None or x.storage is None:
        check_range(dev, index, x.shape[axis], text)
        return x
    what = scatters.Scatter(layout_of(x), layout_of(index), layout_of(source), axis, whole)
    if what.terms > scatters.FEW:
        number = dev.gpu.check_number(text, x.shape[axis])
        return _by_sorting(dev, op, x, index, source, what, number)
    check_range(dev, index, x.shape[axis], text)
    out: CudaArray = dev.empty(x.shape, FROM_NP[x.dtype])
    at = machine(dev.multiprocessors)
    launch(
        dev, ("search", op, what), lambda: scatters.search(op, what, at), [x, index, source, out]
    )
    return out


def _by_sorting(
    dev: Cuda,
    op: str,
    x: CudaArray,
    index: CudaArray,
    source: CudaArray,
    what: scatters.Scatter,
    number: int,
) -> CudaArray:
    pairs, places = size_of(index.shape), what.targets
    if pairs >= 1 << 31 or places >= (1 << 32) - 1:  # a block for each, and 32 bits of a key
        raise DeviceError(
            f"{op}: {pairs} indices into {places} places; the cuda backend sorts fewer than 2**31 "
            f"indices into fewer than 2**32 - 1 places; split the index"
        )
    at = machine(dev.multiprocessors)
    capacity = scatter_sorted.capacity_for(pairs, at)
    keys: CudaArray = dev.empty((capacity,), dtypes.uint64)
    launch(
        dev,
        ("keys", op, what, capacity),
        lambda: scatter_sorted.write_keys(what, capacity, at, number),
        [index, keys],
    )
    sort_keys(dev, keys)
    out = copied(dev, x)
    launch(
        dev,
        ("sums", op, what, capacity),
        lambda: scatter_sorted.add_runs(op, what, what.x.dtype, capacity, at),
        [keys, source, out],
    )
    return out


def _same(step: Lowered) -> Lowered:
    return step


def sort_keys(dev: Cuda, keys: CudaArray) -> None:
    """Sort in place; the number of keys is a power of two, and at least what a block sorts."""
    capacity = keys.shape[0]
    steps = dev.plans.get(("sort", capacity))
    if steps is None:
        steps = dev.keep(
            ("sort", capacity), scatter_sorted.sorting(capacity, machine(dev.multiprocessors))
        )
    for number, step in enumerate(steps):
        launch(dev, ("sort", capacity, number), partial(_same, step), [keys])


def index_add(dev: Cuda, x: CudaArray, index: CudaArray, source: CudaArray, axis: int) -> CudaArray:
    return _scatter(dev, "index_add", x, index, source, axis, whole=True)


def scatter_add(
    dev: Cuda, x: CudaArray, index: CudaArray, source: CudaArray, axis: int
) -> CudaArray:
    return _scatter(dev, "scatter_add", x, index, source, axis, whole=False)
