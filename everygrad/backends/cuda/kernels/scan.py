"""Scans along an axis, by the lowering that all devices share (`codegen.scan`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.kernels.copy_kernels import contiguous
from everygrad.backends.cuda.kernels.launch_kernel import machine
from everygrad.backends.cuda.source.kernel_render import render
from everygrad.codegen import scan as lowering
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


def _scan(
    op: str, dev: Cuda, *arrays: CudaArray, axis: int, reverse: bool = False
) -> CudaArray | Any:
    dtype = FROM_NP[arrays[0].dtype]
    if not lowering.serves(dtype):
        return NotImplemented
    given = [contiguous(dev, a) for a in arrays]
    shape = given[0].shape
    out: CudaArray = dev.empty(shape, lowering.result_dtype(op, dtype))
    if not size_of(shape):
        return out
    key = ("scan", op, dtype, shape, axis, reverse)
    plan = dev.plans.get(key)
    if plan is None:
        made = lowering.plan(op, dtype, shape, axis, machine(dev.multiprocessors), reverse)
        kernels = [(dev.gpu.prepare(render(e.kernel)), e.arrays) for e in made.launches]
        plan = dev.keep(key, (kernels, made.temporaries))
    kernels, temporaries = plan
    held = [*given, out, *(dev.empty((count,), d) for d, count in temporaries)]
    for kernel, places in kernels:
        dev.gpu.launch(kernel, *(held[p].ptr for p in places))
    return out


def _kernel(op: str) -> Callable[..., Any]:
    def run(dev: Cuda, *arrays: CudaArray, **params: Any) -> Any:
        return _scan(op, dev, *arrays, **params)

    return run


KERNELS: dict[str, Callable[..., Any]] = {op: _kernel(op) for op in lowering.OPS}
