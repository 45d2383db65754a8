"""Copies and view ops that strides cannot express: one kernel writes the contiguous result.

Elements are copied as bits, several neighbours at once where alignment allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.kernels.elementwise import grid
from everygrad.backends.cuda.source.c_types import RAW
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, extent, is_wide
from everygrad.backends.strided_views import Slices
from everygrad.compiler.expr import Inst, Program
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

# dtypes of each size, to copy bits unchanged
_BITS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


@lru_cache
def _copying(dtype: DType) -> Program:
    return Program((Inst("input", dtype, (), 0),))


def bits_of(dtype: DType) -> DType:
    """The dtype to copy elements as: a float register may change the bits of a NaN."""
    return _BITS.get(dtype.itemsize, dtype)


def contiguous(dev: Cuda, x: CudaArray) -> CudaArray:
    """The array, copied if it is not contiguous."""
    return x if x.storage is None or x.is_contiguous else copied(dev, x)


def copied(dev: Cuda, x: CudaArray) -> CudaArray:
    """A contiguous copy."""
    bits = bits_of(FROM_NP[x.dtype])
    copy: CudaArray = dev.elementwise("copy", _copying(bits), [x.bitcast(bits.np)], ordered=True)
    return CudaArray(x.device, x.shape, x.dtype, copy.storage)


# --- vectors of elements ------------------------------------------------------------------------


def unit(
    itemsize: int, inner: Sequence[int], strides: Sequence[Shape], places: Sequence[int]
) -> int:
    """How many elements can be copied as one: `inner` are sizes that it must divide, `strides`
    those of arrays whose last axis must be contiguous, `places` their addresses."""
    count = 16 // itemsize
    while count > 1:
        whole = all(n % count == 0 for n in inner)
        for steps, place in zip(strides, places, strict=True):
            whole &= steps[-1] == 1 and place % (count * itemsize) == 0
            whole &= all(s % count == 0 for s in steps[:-1])
        if whole:
            break
        count //= 2
    return count


def packed(shape: Shape, count: int) -> Shape:
    """A shape whose last axis counts vectors."""
    return (*shape[:-1], shape[-1] // count)


def packed_strides(strides: Shape, count: int) -> Shape:
    return (*(s // count for s in strides[:-1]), strides[-1])


# --- unslice: zeros, except where a slice would read-----------------------------------------------


def _write_unslice(
    shape: Shape, slices: Slices, strides: Shape, size: int, multiprocessors: int
) -> WrittenKernel:
    total = size_of(shape)
    inside = tuple(n for _, n, _ in slices)
    w = KernelWriter("unslice", is_wide(total, extent(inside, strides), *shape))
    memory = RAW[size]
    w.pointer(memory, "x")
    w.pointer(memory, "out", written=True)
    w.thread()
    count = w.number(total, "count")
    w.add(f"for ({w.index} e = thread; e < {count}; e += threads) {{")
    lines, names = w.split("e", shape, "i")
    w.add(*(f"  {line}" for line in lines))
    tests, places = [], []
    for k, (start, n, step) in enumerate(slices):
        if (start, n, step) == (0, shape[k], 1):
            places.append(names[k])
            continue
        d, s = f"d{k}", w.number(step)
        w.add(f"  const {w.index} {d} = {names[k]} - {w.number(start)}, q{k} = {d} / {s};")
        tests.append(f"q{k} * {s} == {d} && q{k} >= 0 && q{k} < {w.number(n)}")
        places.append(f"q{k}")
    w.add(
        f"  out[e] = {' && '.join(tests) or 'true'} ? x[{w.address(places, strides)}] "
        f": {memory}{{}};",
        "}",
    )
    return w.finish(grid(total, multiprocessors))


def unslice(dev: Cuda, x: CudaArray, shape: Shape, slices: Slices) -> CudaArray:
    dtype = FROM_NP[x.dtype]
    if x.storage is None or not size_of(shape) or not shape:
        return x if not shape else dev.full(shape, 0, dtype)
    out: CudaArray = dev.empty(shape, dtype)
    key = ("unslice", shape, slices, x.strides, dtype.itemsize, x.ptr % 16)

    def write() -> WrittenKernel:
        inner = [shape[-1], slices[-1][0], slices[-1][1]]
        count = 1
        if slices[-1][2] == 1:
            count = unit(dtype.itemsize, inner, [x.strides], [x.ptr])
        start, n, step = slices[-1]
        last = (start // count, n // count, step)
        return _write_unslice(
            packed(shape, count), (*slices[:-1], last), packed_strides(x.strides, count),
            dtype.itemsize * count, dev.multiprocessors,
        )  # fmt: skip

    dev.gpu.launch(dev.planned(key, write), x.ptr, out.ptr)
    return out


# --- concat --------------------------------------------------------------------------------------


def _write_concat(
    shape: Shape,
    axis: int,
    ends: Sequence[int],
    strides: Sequence[Shape],
    size: int,
    multiprocessors: int,
) -> WrittenKernel:
    total = size_of(shape)
    reach = max(extent(shape, tuple(map(abs, s))) for s in strides)
    w = KernelWriter("concat", is_wide(total, reach))
    memory = RAW[size]
    for k in range(len(strides)):
        w.pointer(memory, f"x{k}")
    w.pointer(memory, "out", written=True)
    w.thread()
    count = w.number(total, "count")
    w.add(f"for ({w.index} e = thread; e < {count}; e += threads) {{")
    lines, names = w.split("e", shape, "i")
    w.add(*(f"  {line}" for line in lines), f"  {memory} v;")
    start = "0"
    for k, steps in enumerate(strides):
        end = w.number(ends[k])
        moved = [f"({n} - {start})" if a == axis else n for a, n in enumerate(names)]
        word = f"{'else ' if k else ''}if ({names[axis]} < {end})"
        if k == len(strides) - 1:
            word = "else" if k else ""
        w.add(f"  {word} v = x{k}[{w.address(moved, steps)}];")
        start = end
    w.add("  out[e] = v;", "}")
    return w.finish(grid(total, multiprocessors))


def concat_into(dev: Cuda, out: CudaArray, there: Sequence[CudaArray], axis: int) -> None:
    """Concatenate arrays along an axis into `out`."""
    shape, dtype = out.shape, out.dtype
    layouts = [(x.shape[axis], x.strides, x.ptr % 16) for x in there]
    key = ("concat", shape, axis, dtype.itemsize, *layouts)

    def write() -> WrittenKernel:
        inner = [shape[-1], *(x.shape[-1] for x in there)]
        strides = [tuple(s if n != 1 else 0 for n, s in zip(x.shape, x.strides, strict=True))
                   for x in there]  # fmt: skip
        count = unit(dtype.itemsize, inner, strides, [x.ptr for x in there])
        ends, end = [], 0
        for x in there:
            end += x.shape[axis] // (count if axis == len(shape) - 1 else 1)
            ends.append(end)
        small = [packed_strides(s, count) for s in strides]
        size = dtype.itemsize * count
        return _write_concat(packed(shape, count), axis, ends, small, size, dev.multiprocessors)

    dev.gpu.launch(dev.planned(key, write), *(x.ptr for x in there), out.ptr)
