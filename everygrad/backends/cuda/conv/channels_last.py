"""Convolutions and pooling on arrays (batch, height, width, channels), for compiled functions.

They are the kernels for (batch, channels, height, width), which take arrays of any strides, on
permuted views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.conv import convolution, pooling
from everygrad.backends.strided_views import permute_dims

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


def _permuted(kernel: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    def run(dev: Cuda, *arrays: CudaArray, **params: Any) -> Any:
        given = (permute_dims(dev, a, (0, 3, 1, 2)) for a in arrays)
        out = kernel(dev, *given, **params, **how)
        return out if out is NotImplemented else permute_dims(dev, out, (0, 2, 3, 1))

    return run


KERNELS: dict[str, Callable[..., Any]] = {
    **{
        f"{name}_last": _permuted(kernel, last=True)
        for name, kernel in convolution.KERNELS.items()
        if name.startswith("conv2d")
    },
    **{f"{name}_last": _permuted(kernel) for name, kernel in pooling.KERNELS.items()},
}
