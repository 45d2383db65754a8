"""Pooling where the kernel language is rendered: which kernels of `codegen.pooling` an op takes.

The argmax of a window is recomputed from the image for its gradient, which costs less than saving
it: where windows do not overlap, while the gradient is written; where they do, by a kernel before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from everygrad import dtypes
from everygrad.codegen.pooling import overlap
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType

# (device, form, arrays, window, image, dtype of the result): the result, or NotImplemented
Run = Callable[[Any, str, Sequence[Any], Any, Shape, DType], Any]
_NARROW = 1 << 31


def shape_of(form: str, window: Any, image: Shape) -> Shape:
    """The result's shape: gradients have the image's, others that of the windows' places."""
    return image if "spread" in form else (*image[:2], *window.out_size(image))


def kernels(run: Run) -> dict[str, Callable[..., Any]]:
    """The kernels of a device by op; `run` launches one of the forms of `codegen.pooling`."""

    def index(dev: Any, x: Any, window: Any) -> Any:
        return run(dev, "index", [x], window, x.shape, dtypes.int64)

    def value(dev: Any, x: Any, window: Any) -> Any:
        return run(dev, "value", [x], window, x.shape, FROM_NP[x.dtype])

    def spread(dev: Any, g: Any, x: Any, window: Any) -> Any:
        dtype = FROM_NP[g.dtype]
        if not overlap(window):
            return run(dev, "spread apart", [g, x], window, x.shape, dtype)
        narrow = size_of(x.shape[2:]) < _NARROW
        found = run(dev, "index", [x], window, x.shape, dtypes.int32 if narrow else dtypes.int64)
        if found is NotImplemented:
            return found
        return run(dev, "spread", [g, found], window, x.shape, dtype)

    def total(dev: Any, x: Any, window: Any) -> Any:
        return run(dev, "sum", [x], window, x.shape, FROM_NP[x.dtype])

    def total_spread(dev: Any, g: Any, window: Any, image: Shape) -> Any:
        return run(dev, "sum spread", [g], window, image, FROM_NP[g.dtype])

    return {
        "max_pool2d_index": index,
        "max_pool2d_value": value,
        "max_pool2d_spread": spread,
        "sum_pool2d": total,
        "sum_pool2d_spread": total_spread,
    }
