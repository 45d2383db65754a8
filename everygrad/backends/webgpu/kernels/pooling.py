"""Pooling, by the lowerings that all devices share (`codegen.pooling`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everygrad.backends import pooling
from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.kernels.launch_kernel import MACHINE, launch, layout_of
from everygrad.codegen import pooling as lowering
from everygrad.codegen.copy import Layout
from everygrad.core.shapes import Shape
from everygrad.core.strides import row_major
from everygrad.dtypes import DType

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

_ORDER = (0, 1, 2, 3)


def _run(
    dev: WebGPU, form: str, arrays: Sequence[WebGPUArray], window: Any, image: Shape, dtype: DType
) -> Any:
    shape = pooling.shape_of(form, window, image)
    if any(a.dtype.kind == "c" for a in arrays):
        return NotImplemented
    out: WebGPUArray = dev.empty(shape, dtype)
    if out.storage is not None and all(a.storage is not None for a in arrays):
        given, made = tuple(map(layout_of, arrays)), Layout(dtype, shape, row_major(shape))
        lowered = lowering.pooling(form, given, window, image, made, _ORDER, MACHINE)
        launch(lowered, [*arrays, out])
    return out


KERNELS = pooling.kernels(_run)
