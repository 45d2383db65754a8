"""argmax and argmin, by the lowering that all GPUs share (`codegen.arg_reduce`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.kernels.launch_kernel import MACHINE, launch, layout_of
from everygrad.codegen.arg_reduce import plan
from everygrad.core.shapes import reduced

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU


def arg_reduce(
    dev: WebGPU, largest: bool, x: WebGPUArray, axis: int, keepdims: bool
) -> WebGPUArray:
    out: WebGPUArray = dev.empty(reduced(x.shape, (axis,), keepdims), dtypes.int64)
    if out.storage is not None and x.storage is not None:
        (lowered,) = plan(layout_of(x), axis, largest, MACHINE).launches
        launch(lowered, [x, out])
    return out
