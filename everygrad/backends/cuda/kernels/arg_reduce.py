"""argmax and argmin, by the lowering that all GPUs share (`codegen.arg_reduce`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.kernels.launch_kernel import launch, layout_of, machine
from everygrad.codegen.arg_reduce import plan
from everygrad.core.shapes import reduced

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


def arg_reduce(dev: Cuda, largest: bool, x: CudaArray, axis: int, keepdims: bool) -> CudaArray:
    out: CudaArray = dev.empty(reduced(x.shape, (axis,), keepdims), dtypes.int64)
    if out.storage is None or x.storage is None:
        return out
    found = plan(layout_of(x), axis, largest, machine(dev.multiprocessors))
    arrays = [x]
    last = len(found.launches) - 1
    for k in range(last + 1):
        made: CudaArray = out if k == last else dev.empty((found.between,), dtypes.int64)
        key = ("arg", k, largest, axis, x.dtype, x.shape, x.strides)
        launch(dev, key, partial(found.launches.__getitem__, k), [*arrays, made])
        arrays = [x, made]
    return out
