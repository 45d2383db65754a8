"""The negative log-likelihood of labels: a gather from rows of log-probabilities, and its vjp.

Labels are checked before they are used: the next read raises an error for a bad one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.source.c_types import LAYOUTS
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, extent, grid, is_wide
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

WHAT = "cross_entropy: label"


def _begin(name: str, x: CudaArray, target: CudaArray, *reaches: int) -> KernelWriter:
    """A kernel that reads values and labels, and writes results of the values' dtype."""
    w = KernelWriter(name, is_wide(extent(x.shape, x.strides), *reaches))
    memory = LAYOUTS[FROM_NP[x.dtype]].memory
    w.pointer(memory, "x")
    w.pointer(LAYOUTS[FROM_NP[target.dtype]].memory, "target")
    w.pointer("u64", "faults", written=True)
    w.pointer(memory, "out", written=True)
    w.thread()
    return w


def _write_loss(
    x: CudaArray, target: CudaArray, axis: int, ignored: int, number: int, multiprocessors: int
) -> WrittenKernel:
    lay = LAYOUTS[FROM_NP[x.dtype]]
    shape = target.shape or (1,)
    total = size_of(shape)
    w = _begin("nll_gather", x, target, total, extent(target.shape, target.strides))
    w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
    lines, names = w.split("e", shape, "i")
    w.add(*(f"  {line}" for line in lines))
    names = names if target.shape else []
    size, which = w.number(x.shape[axis], "size"), w.number(number, "number")
    places = [*names[:axis], f"({w.index})k", *names[axis:]]
    value = lay.load.format(f"x[{w.address(places, x.strides)}]")
    w.add(
        f"  const i64 k = (i64)target[{w.address(names, target.strides)}];",
        f"  {lay.register} picked = 0;",
        f"  if (k != (i64){ignored}) {{",
        f"    if (k < 0 || k >= {size}) fault(faults, {which}, k);",
        f"    else picked = -({value});",
        "  }",
        f"  out[e] = {lay.store.format('picked')};",
        "}",
    )
    return w.finish(grid(total, multiprocessors))


def nll_gather(
    dev: Cuda, logs: CudaArray, target: CudaArray, axis: int, ignore_index: int
) -> CudaArray:
    dtype = FROM_NP[logs.dtype]
    if not dtype.is_float or logs.storage is None:
        return NotImplemented
    out: CudaArray = dev.empty(target.shape, dtype)
    number = dev.gpu.check_number(WHAT, logs.shape[axis])
    layouts = (logs.shape, logs.strides, logs.dtype, target.shape, target.strides, target.dtype)
    kernel = dev.planned(
        ("nll_gather", *layouts, axis, ignore_index),
        lambda: _write_loss(logs, target, axis, ignore_index, number, dev.multiprocessors),
    )
    dev.gpu.launch(kernel, logs.ptr, target.ptr, dev.gpu.faults(), out.ptr)
    return out


def _write_spread(
    v: CudaArray, target: CudaArray, axis: int, classes: int, ignored: int, number: int,
    multiprocessors: int,
) -> WrittenKernel:  # fmt: skip
    lay = LAYOUTS[FROM_NP[v.dtype]]
    shape = (*v.shape[:axis], classes, *v.shape[axis:])
    total = size_of(shape)
    w = _begin("nll_scatter", v, target, total, extent(target.shape, target.strides))
    w.add(f"for ({w.index} e = thread; e < {w.number(total, 'count')}; e += threads) {{")
    lines, names = w.split("e", shape, "i")
    w.add(*(f"  {line}" for line in lines))
    here = names.pop(axis)
    size, which = w.number(classes, "classes"), w.number(number, "number")
    value = lay.load.format(f"x[{w.address(names, v.strides)}]")
    w.add(
        f"  const i64 k = (i64)target[{w.address(names, target.strides)}];",
        f"  {lay.register} spread = 0;",
        f"  if (k != (i64){ignored}) {{",
        f"    if (k == {here}) spread = -({value});",
        f"    else if (!{here} && (k < 0 || k >= {size})) fault(faults, {which}, k);",
        "  }",
        f"  out[e] = {lay.store.format('spread')};",
        "}",
    )
    return w.finish(grid(total, multiprocessors))


def nll_scatter(
    dev: Cuda, v: CudaArray, target: CudaArray, axis: int, classes: int, ignore_index: int
) -> CudaArray:
    dtype = FROM_NP[v.dtype]
    if not dtype.is_float or v.storage is None or not classes:
        return NotImplemented
    out: CudaArray = dev.empty((*v.shape[:axis], classes, *v.shape[axis:]), dtype)
    number = dev.gpu.check_number(WHAT, classes)
    layouts = (v.shape, v.strides, v.dtype, target.shape, target.strides, target.dtype)
    kernel = dev.planned(
        ("nll_scatter", *layouts, axis, classes, ignore_index),
        lambda: _write_spread(v, target, axis, classes, ignore_index, number, dev.multiprocessors),
    )
    dev.gpu.launch(kernel, v.ptr, target.ptr, dev.gpu.faults(), out.ptr)
    return out
