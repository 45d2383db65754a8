"""Products of complex matrices as four products of their parts, which have tiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray, storage_of
from everygrad.backends.webgpu.gemm.choose_kernel import TINY
from everygrad.backends.webgpu.source.render import element_kernel, slot
from everygrad.core.shapes import size_of

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU


def pays(x: WebGPUArray, y: WebGPUArray) -> bool:
    """Whether these are complex matrices of some size."""
    return x.dtype.kind == "c" and size_of(x.shape) * y.shape[-1] >= TINY


def _part(x: WebGPUArray, imaginary: int) -> WebGPUArray:
    """One part of complex numbers: a view of every second float."""
    strides = tuple(2 * s for s in x.strides)
    offset = 2 * x.offset + imaginary
    return WebGPUArray(x.device, x.shape, np.dtype(np.float32), x.storage, offset, strides)


@lru_cache
def _joined_text() -> str:
    """Complex numbers from ac, bd, ad and bc of (a + bi)(c + di). Uniform: the count."""
    a = [f"bits_f(a{i}[e])" for i in range(4)]
    text = (
        "fn element(e: u32) -> vec2<u32> {\n"
        f"  return c_of({a[0]} - {a[1]}, {a[2]} + {a[3]});\n}}\n"
    )
    return element_kernel(4, 1, dtypes.complex64, text, slot(0))


def multiply(
    dev: WebGPU,
    x: WebGPUArray,
    y: WebGPUArray,
    matmul: Callable[[WebGPU, WebGPUArray, WebGPUArray], WebGPUArray],
) -> WebGPUArray:
    """x @ y, by `matmul` of real matrices."""
    pairs = ((0, 0), (1, 1), (0, 1), (1, 0))
    made = [matmul(dev, _part(x, i), _part(y, j)) for i, j in pairs]
    out: WebGPUArray = dev.empty(made[0].shape, dtypes.complex64)
    count = size_of(out.shape)
    storages = [storage_of(part) for part in made]
    dev.launch("complex product", _joined_text(), storages, out, [count], count)
    return out
