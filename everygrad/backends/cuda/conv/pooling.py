"""Pooling, by the lowerings that all devices share (`codegen.pooling`). Channels-last images give
channels-last results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everygrad.backends import pooling
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.driver.cudnn import channels_last_strides, is_channels_last
from everygrad.backends.cuda.kernels.launch_kernel import launch, layout_of, machine
from everygrad.codegen import pooling as lowering
from everygrad.codegen.copy import Layout
from everygrad.core.shapes import Shape
from everygrad.core.strides import row_major
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

_PLAIN = (0, 1, 2, 3)  # axes from the outermost to the innermost
_LAST = (0, 2, 3, 1)


def _run(
    dev: Cuda, form: str, arrays: Sequence[CudaArray], window: Any, image: Shape, dtype: DType
) -> Any:
    if any(FROM_NP[a.dtype].is_complex for a in arrays):
        return NotImplemented
    shape = pooling.shape_of(form, window, image)
    out: CudaArray = dev.empty(shape, dtype)
    if out.storage is None or any(a.storage is None for a in arrays):
        return out
    last = is_channels_last(arrays[-1].shape, arrays[-1].strides)
    order = _LAST if last else _PLAIN
    made = Layout(dtype, shape, channels_last_strides(shape) if last else row_major(shape))
    key = (form, tuple(map(layout_of, arrays)), window, image, made, order)
    numbers = machine(dev.multiprocessors)
    launch(dev, ("pooling", *key), lambda: lowering.pooling(*key, numbers), [*arrays, out])
    return out.view(shape, made.strides)


KERNELS = pooling.kernels(_run)
