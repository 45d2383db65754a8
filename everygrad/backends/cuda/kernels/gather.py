"""Gathers, and checks of values. Kernels check every index before they use it: a bad one reads
nothing, and the next read raises an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.kernels.copy_kernels import packed_strides, unit
from everygrad.backends.cuda.kernels.elementwise import grid
from everygrad.backends.cuda.source.c_types import LAYOUTS, RAW
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, extent, is_wide
from everygrad.compiler.expr import Inst, Program
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import collapse
from everygrad.dtypes import FROM_NP
from everygrad.errors import EverygradError, OutOfRangeError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


def index_line(w: KernelWriter, place: str, size: str, number: str, otherwise: str) -> None:
    """Lines that read an index as `k`; a bad one is recorded, and `otherwise` runs instead."""
    w.add(
        f"  const i64 k = (i64)index[{place}];",
        f"  if (k < 0 || k >= {size}) {{ fault(faults, {number}, k); {otherwise} }}",
    )


def pointers(w: KernelWriter, memory: str, index: CudaArray) -> None:
    """Declare what every kernel here reads and writes: x, the index, the faults."""
    w.pointer(memory, "x")
    w.pointer(LAYOUTS[FROM_NP[index.dtype]].memory, "index")
    w.pointer("u64", "faults", written=True)


def nothing_to_take(dev: Cuda, op: str, index: CudaArray, size: int) -> OutOfRangeError:
    first = int(dev.to_numpy(index).reshape(-1)[0])
    return OutOfRangeError(f"{op}: index {first} is out of range for an axis of size {size}")


# --- checks --------------------------------------------------------------------------------------


def _write_check(x: CudaArray, size: int, number: int, multiprocessors: int) -> WrittenKernel:
    """Check that bools are true, and that indices are below the size."""
    shape, (strides,) = collapse(x.shape, [x.strides])
    total = size_of(shape)
    w = KernelWriter("check_range", is_wide(total, extent(shape, strides), size))
    w.pointer(LAYOUTS[FROM_NP[x.dtype]].memory, "index")
    w.pointer("u64", "faults", written=True)
    w.thread()
    w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
    lines, names = w.split("e", shape, "i")
    w.add(*(f"  {line}" for line in lines))
    place = w.address(names, strides)
    which = w.number(number, "number")
    if FROM_NP[x.dtype] is dtypes.bool_:
        w.add(f"  if (!index[{place}]) fault(faults, {which}, 0);")
    else:
        index_line(w, place, w.number(size, "size"), which, "")
    w.add("}")
    return w.finish(grid(total, multiprocessors))


def check_range(dev: Cuda, x: CudaArray, size: int, what: str) -> CudaArray:
    return _checked(dev, x, size, dev.gpu.check_number(what, size))


def check_true(dev: Cuda, ok: CudaArray, what: str, error: type[EverygradError]) -> CudaArray:
    return _checked(dev, ok, 1, dev.gpu.check_number(what, 1, error))


def _checked(dev: Cuda, x: CudaArray, size: int, number: int) -> CudaArray:
    if x.storage is None:
        return x
    key = ("check_range", x.shape, x.strides, x.dtype, size, number)
    kernel = dev.planned(key, lambda: _write_check(x, size, number, dev.multiprocessors))
    dev.gpu.launch(kernel, x.ptr, dev.gpu.faults())
    return x


# --- take and gather -----------------------------------------------------------------------------


def _write_take(
    x: CudaArray, index: CudaArray, axis: int, number: int, multiprocessors: int
) -> WrittenKernel:
    """Results have axes before, of the index, and after; those after are copied as vectors."""
    size = x.dtype.itemsize
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    count = unit(size, [after[-1]], [x.strides], [x.ptr]) if after else 1
    if after:
        after = (*after[:-1], after[-1] // count)
    steps = packed_strides(x.strides, count) if after else x.strides
    shape = (*before, *index.shape, *after)
    total = size_of(shape)
    reach = (extent(x.shape, x.strides), extent(index.shape, index.strides))
    w = KernelWriter("take", is_wide(total, *reach))
    memory = RAW[size * count]
    pointers(w, memory, index)
    w.pointer(memory, "out", written=True)
    w.thread()
    w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
    lines, names = w.split("e", shape or (1,), "i")
    w.add(*(f"  {line}" for line in lines))
    first, last = len(before), len(before) + len(index.shape)
    place = w.address(names[first:last] if shape else [], index.strides)
    bad = f"out[e] = {memory}{{}}; continue;"
    index_line(w, place, w.number(x.shape[axis], "size"), w.number(number, "number"), bad)
    places = [*names[:first], f"({w.index})k", *names[last:]] if shape else [f"({w.index})k"]
    w.add(f"  out[e] = x[{w.address(places, steps)}];", "}")
    return w.finish(grid(total, multiprocessors))


def take(dev: Cuda, x: CudaArray, index: CudaArray, axis: int) -> CudaArray:
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if index.storage is not None and x.shape[axis] == 0:
        raise nothing_to_take(dev, "take", index, 0)
    if not size_of(shape):  # nothing is gathered, but the indices are checked
        check_range(dev, index, x.shape[axis], "take: index")
    out: CudaArray = dev.empty(shape, FROM_NP[x.dtype])
    if out.storage is None:
        return out
    number = dev.gpu.check_number("take: index", x.shape[axis])
    layouts = (x.shape, x.strides, x.ptr % 16, index.shape, index.strides, index.dtype)
    key = ("take", *layouts, x.dtype.itemsize, axis)
    kernel = dev.planned(key, lambda: _write_take(x, index, axis, number, dev.multiprocessors))
    dev.gpu.launch(kernel, x.ptr, index.ptr, dev.gpu.faults(), out.ptr)
    return out


def _write_gather(
    x: CudaArray, index: CudaArray, axis: int, number: int, multiprocessors: int
) -> WrittenKernel:
    shape = index.shape
    total = size_of(shape)
    reach = (extent(x.shape, x.strides), extent(shape, index.strides))
    w = KernelWriter("gather", is_wide(total, *reach))
    memory = RAW[x.dtype.itemsize]
    pointers(w, memory, index)
    w.pointer(memory, "out", written=True)
    w.thread()
    w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
    lines, names = w.split("e", shape, "i")
    w.add(*(f"  {line}" for line in lines))
    bad = f"out[e] = {memory}{{}}; continue;"
    size, which = w.number(x.shape[axis], "size"), w.number(number, "number")
    index_line(w, w.address(names, index.strides), size, which, bad)
    places = [f"({w.index})k" if a == axis else n for a, n in enumerate(names)]
    w.add(f"  out[e] = x[{w.address(places, x.strides)}];", "}")
    return w.finish(grid(total, multiprocessors))


def gather(dev: Cuda, x: CudaArray, index: CudaArray, axis: int) -> CudaArray:
    if index.storage is not None and x.storage is None:
        raise nothing_to_take(dev, "gather", index, x.shape[axis])
    out: CudaArray = dev.empty(index.shape, FROM_NP[x.dtype])
    if out.storage is None:
        return out
    number = dev.gpu.check_number("gather: index", x.shape[axis])
    layouts: tuple[Shape | Any, ...] = (x.shape, x.strides, index.shape, index.strides)
    key = ("gather", *layouts, index.dtype, x.dtype.itemsize, axis)
    kernel = dev.planned(key, lambda: _write_gather(x, index, axis, number, dev.multiprocessors))
    dev.gpu.launch(kernel, x.ptr, index.ptr, dev.gpu.faults(), out.ptr)
    return out


# --- the last writer ------------------------------------------------------------------------------


def _write_last(index: CudaArray, size: int, number: int, multiprocessors: int) -> WrittenKernel:
    """Positions count from 1, so that 0 means that nothing is written."""
    total = index.shape[0]
    w = KernelWriter("last_write", is_wide(total, extent(index.shape, index.strides), size))
    w.pointer(LAYOUTS[FROM_NP[index.dtype]].memory, "index")
    w.pointer("u64", "faults", written=True)
    w.pointer("u64", "out", written=True)
    w.thread()
    w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
    place = w.address(["e"], index.strides)
    index_line(w, place, w.number(size, "size"), w.number(number, "number"), "continue;")
    w.add("  atomicMax(out + k, (u64)e + 1);", "}")
    return w.finish(grid(total, multiprocessors))


def _minus_one(dtype: Any) -> Program:
    return Program(
        (
            Inst("input", dtypes.uint64, (), 0),
            Inst("cast", dtype, (0,)),
            Inst("const", dtype, (), 1),
            Inst("sub", dtype, (1, 2)),
        )
    )


_MINUS_ONE = {dtype: _minus_one(dtype) for dtype in dtypes.INTEGERS}


def last_write(dev: Cuda, index: CudaArray, size: int) -> CudaArray:
    dtype = FROM_NP[index.dtype]
    if not size:
        if index.storage is not None:
            raise nothing_to_take(dev, "setitem", index, 0)
        return dev.empty((0,), dtype)
    found: CudaArray = dev.empty((size,), dtypes.uint64)
    dev.gpu.clear(found.ptr, 8 * size)
    if index.storage is not None:
        number = dev.gpu.check_number("setitem: index", size)
        key = ("last_write", index.shape, index.strides, dtype, size)
        kernel = dev.planned(key, lambda: _write_last(index, size, number, dev.multiprocessors))
        dev.gpu.launch(kernel, index.ptr, dev.gpu.faults(), found.ptr)
    out: CudaArray = dev.elementwise("last_write", _MINUS_ONE[dtype], [found])
    return out
