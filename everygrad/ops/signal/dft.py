"""Discrete Fourier transforms: the kernels that `fft`, the functions of the Array API, is made of.

`dft` takes complex numbers to complex ones along one axis, `real_dft` real numbers to the first
half of their transform, `half_dft` such a half back to real numbers. None of them divides by the
length: norms are factors of the functions around. `dftn` is `dft` along several axes and such a
factor. All are linear, and each one's derivative is another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.ops.elementwise.basic import real
from everygrad.ops.linalg.checks import constant
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import register, sample
from everygrad.ops.record.splits import other_axes
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import flip, slice_axis

_DIRECT = 32  # the length up to which a transform is a product with the matrix of all waves

# --- portable: Cooley and Tukey, Bluestein -------------------------------------------------------


def _constant(values: Any, like: Tensor) -> Tensor:
    return constant(values.astype(like._data.dtype), like.device)


@lru_cache(maxsize=64)
def _waves(rows: int, columns: int, length: int, sign: int) -> Any:
    """exp(sign 2 pi i j k / length)."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    return np.exp(sign * 2j * np.pi / length * turns)


def _factor(n: int) -> int:
    """The largest factor up to the direct length, 1 for a large prime."""
    return max((f for f in range(1, _DIRECT + 1) if n % f == 0), default=1)


def _transformed(x: Tensor, sign: int) -> Tensor:
    """Along the last axis."""
    n = x.shape[-1]
    if n <= _DIRECT:
        if n <= 1:
            return x
        flat = x.reshape((shapes.size_of(x.shape[:-1]), n))
        return matmul(flat, _constant(_waves(n, n, n, sign), x)).reshape(x.shape)
    f = _factor(n)
    return _bluestein(x, sign) if f == 1 else _split(x, f, sign)


def _split(x: Tensor, f: int, sign: int) -> Tensor:
    """Cooley and Tukey: n = f * m as f transforms of length m, twiddled, then m of length f."""
    n = x.shape[-1]
    m = n // f
    batch = x.shape[:-1]
    inner = _transformed(x.reshape((*batch, m, f)).matrix_transpose(), sign)  # (f, m)
    inner = inner * _constant(_waves(f, m, n, sign), x)
    outer = _transformed(inner.matrix_transpose(), sign)  # (m, f)
    return outer.matrix_transpose().reshape((*batch, n))


def _bluestein(x: Tensor, sign: int) -> Tensor:
    """A length with a large prime factor as a convolution, done at a power of two."""
    n = x.shape[-1]
    size = 1 << (2 * n - 1).bit_length()
    k = np.arange(n, dtype=np.int64)
    chirp = np.exp(sign * 1j * np.pi / n * (k * k % (2 * n)))
    kernel = np.zeros(size, np.complex128)
    kernel[:n] = chirp.conj()
    kernel[size - n + 1 :] = chirp[:0:-1].conj()
    spectrum = np.fft.fft(kernel) / size
    modulation = _constant(chirp, x)
    padded = (x * modulation).pad((*((0, 0),) * (x.ndim - 1), (0, size - n)))
    product = _transformed(padded, -1) * _constant(spectrum, x)
    return slice_axis(_transformed(product, 1), x.ndim - 1, 0, n) * modulation


def _dft_portable(x: Tensor, axis: int, inverse: bool) -> Tensor:
    if not x.size:
        return x
    last = x.ndim - 1
    moved = x if axis == last else x.moveaxis(axis, last)
    out = _transformed(moved, 1 if inverse else -1)
    return out if axis == last else out.moveaxis(last, axis)


DFT: Kernel = Kernel(
    "dft",
    _dft_portable,
    ("x",),
    (lambda g, axis, inverse: apply(DFT, g, axis=axis, inverse=not inverse),),
    linear=(0,),
    batch=lambda xs, axis, inverse: apply(DFT, xs[0], axis=axis + 1, inverse=inverse),
    result=lambda x, axis, inverse: (x.shape, x.dtype),
    splits=other_axes,
)


def scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


def _dftn_portable(x: Tensor, axes: shapes.Shape, inverse: bool, scale: float) -> Tensor:
    for axis in axes:
        x = apply(DFT, x, axis=axis, inverse=inverse)
    return scaled(x, scale)


def _dftn_batch(xs: Sequence[Tensor], axes: shapes.Shape, inverse: bool, scale: float) -> Tensor:
    return apply(DFTN, xs[0], axes=tuple(a + 1 for a in axes), inverse=inverse, scale=scale)


# along several axes, scaled: one call where a library has it, and a compiler sees `DFT`s
DFTN: Kernel = Kernel(
    "dftn",
    _dftn_portable,
    ("x",),
    (lambda g, axes, inverse, scale: apply(DFTN, g, axes=axes, inverse=not inverse, scale=scale),),
    linear=(0,),
    batch=_dftn_batch,
    splits=other_axes,
)


# --- dtypes -------------------------------------------------------------------------------------


def widened(x: Tensor) -> Tensor:
    return x.astype(dtypes.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else x


def rounded(out: Tensor, x: Tensor) -> Tensor:
    """A real result in the dtype of the half floats it was made from."""
    return out.astype(x.dtype) if x.dtype in (dtypes.float16, dtypes.bfloat16) else out


def as_complex(x: Tensor) -> Tensor:
    """x as complex numbers; there are none smaller than complex64."""
    return x if x.dtype.is_complex else x.astype(dtypes.complex_of(x.dtype))


# --- real numbers --------------------------------------------------------------------------------


def _halved(x: Tensor, axis: int, size: int, once: float, twice: float) -> Tensor:
    """Half a transform times `once` where it has an element that stands for itself alone, `twice`
    where one stands for its mirror image too; `size` is the whole length."""
    weights = _weights(x.ndim, axis, size, once, twice)
    return x * constant(weights.astype(dtypes.real_of(x.dtype).np), x.device)


def _weights(ndim: int, axis: int, size: int, once: float, twice: float) -> Any:
    weights = np.full(size // 2 + 1, twice)
    weights[0] = once
    if size % 2 == 0:
        weights[-1] = once
    return weights.reshape((-1, *(1,) * (ndim - axis - 1)))


def _real_portable(x: Tensor, axis: int) -> Tensor:
    whole = apply(DFT, x.astype(dtypes.complex_of(x.dtype)), axis=axis, inverse=False)
    return slice_axis(whole, axis, 0, x.shape[axis] // 2 + 1)


def _half_portable(x: Tensor, axis: int, size: int) -> Tensor:
    """The other half is the mirror image of the first, conjugated."""
    first = 1  # the mirror image lacks element 0, and for an even length the last
    count = size - x.shape[axis]
    mirror = flip(slice_axis(x, axis, first, count), axis).conj()
    return real(apply(DFT, concat([x, mirror], axis=axis), axis=axis, inverse=True))


def _cut(shape: shapes.Shape, axis: int, size: int) -> shapes.Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


REAL_DFT: Kernel = Kernel(
    "real_dft",
    _real_portable,
    ("x",),
    (
        lambda g, shape, axis: apply(
            HALF_DFT, _halved(g, axis, shape[axis], 1.0, 0.5), axis=axis, size=shape[axis]
        ),
    ),
    linear=(0,),
    batch=lambda xs, axis: apply(REAL_DFT, xs[0], axis=axis + 1),
    result=lambda x, axis: (
        _cut(x.shape, axis, x.shape[axis] // 2 + 1),
        dtypes.complex_of(x.dtype),
    ),
    splits=other_axes,
)
HALF_DFT: Kernel = Kernel(
    "half_dft",
    _half_portable,
    ("x",),
    (lambda g, axis, size: _halved(apply(REAL_DFT, g, axis=axis), axis, size, 1.0, 2.0),),
    linear=(0,),
    batch=lambda xs, axis, size: apply(HALF_DFT, xs[0], axis=axis + 1, size=size),
    result=lambda x, axis, size: (_cut(x.shape, axis, size), dtypes.real_of(x.dtype)),
    splits=other_axes,
)


def _real_weighted_portable(x: Tensor, axis: int, once: float, twice: float) -> Tensor:
    half = apply(REAL_DFT, x, axis=axis)
    return scaled(half, once) if once == twice else _halved(half, axis, x.shape[axis], once, twice)


def _half_weighted_portable(x: Tensor, axis: int, size: int, once: float, twice: float) -> Tensor:
    if once == twice:
        return scaled(apply(HALF_DFT, x, axis=axis, size=size), once)
    return apply(HALF_DFT, _halved(x, axis, size, once, twice), axis=axis, size=size)


# half a transform times `once` where an element stands for itself alone, `twice` where it stands
# for its mirror image too: each the other's derivative
REAL_DFT_WEIGHTED: Kernel = Kernel(
    "real_dft_weighted",
    _real_weighted_portable,
    ("x",),
    (
        lambda g, shape, axis, once, twice: apply(
            HALF_DFT_WEIGHTED, g, axis=axis, size=shape[axis], once=once, twice=twice / 2
        ),
    ),
    linear=(0,),
    batch=lambda xs, axis, once, twice: apply(
        REAL_DFT_WEIGHTED, xs[0], axis=axis + 1, once=once, twice=twice
    ),
    result=lambda x, axis, once, twice: (
        _cut(x.shape, axis, x.shape[axis] // 2 + 1),
        dtypes.complex_of(x.dtype),
    ),
    splits=other_axes,
)
HALF_DFT_WEIGHTED: Kernel = Kernel(
    "half_dft_weighted",
    _half_weighted_portable,
    ("x",),
    (
        lambda g, axis, size, once, twice: apply(
            REAL_DFT_WEIGHTED, g, axis=axis, once=once, twice=twice * 2
        ),
    ),
    linear=(0,),
    batch=lambda xs, axis, size, once, twice: apply(
        HALF_DFT_WEIGHTED, xs[0], axis=axis + 1, size=size, once=once, twice=twice
    ),
    result=lambda x, axis, size, once, twice: (
        _cut(x.shape, axis, size),
        dtypes.real_of(x.dtype),
    ),
    splits=other_axes,
)


def _whole_portable(x: Tensor, axis: int, inverse: bool, scale: float) -> Tensor:
    return apply(DFTN, as_complex(x), axes=(axis,), inverse=inverse, scale=scale)


# of real numbers, with its mirror image
WHOLE_DFT: Kernel = Kernel(
    "whole_dft",
    _whole_portable,
    ("x",),
    (
        lambda g, axis, inverse, scale: real(
            apply(DFTN, g, axes=(axis,), inverse=not inverse, scale=scale)
        ),
    ),
    linear=(0,),
    batch=lambda xs, axis, inverse, scale: apply(
        WHOLE_DFT, xs[0], axis=axis + 1, inverse=inverse, scale=scale
    ),
    result=lambda x, axis, inverse, scale: (x.shape, dtypes.complex_of(x.dtype)),
    splits=other_axes,
)
register(
    DFT,
    lambda x, axis, inverse: apply(DFT, as_complex(x), axis=axis, inverse=inverse),
    reference=lambda x, axis, inverse: (
        np.fft.ifft(x, axis=axis, norm="forward") if inverse else np.fft.fft(x, axis=axis)
    ),
    namespace="internal",
    samples=lambda: iter((sample(s.real(2, 5), 1, False), sample(s.real(37), 0, True))),
)
register(
    DFTN,
    lambda x, axes, inverse, scale: apply(
        DFTN, as_complex(x), axes=axes, inverse=inverse, scale=scale
    ),
    reference=lambda x, axes, inverse, scale: (
        (np.fft.ifftn(x, axes=axes, norm="forward") if inverse else np.fft.fftn(x, axes=axes))
        * scale
    ),
    namespace="internal",
    samples=lambda: iter(
        (sample(s.real(2, 5), (0, 1), False, 0.5), sample(s.real(3, 2), (0,), True, 1.0))
    ),
)
register(
    REAL_DFT,
    lambda x, axis: apply(REAL_DFT, widened(x), axis=axis),
    reference=lambda x, axis: np.fft.rfft(x, axis=axis),
    namespace="internal",
    samples=lambda: iter((sample(s.real(2, 5), 1), sample(s.real(4, 2), 0))),
)
register(
    HALF_DFT,
    lambda x, axis, size: rounded(apply(HALF_DFT, as_complex(x), axis=axis, size=size), x),
    reference=lambda x, axis, size: np.fft.irfft(x, size, axis=axis, norm="forward"),
    namespace="internal",
    samples=lambda: iter((sample(s.real(2, 3), 1, 5), sample(s.real(3, 2), 0, 4))),
)
register(
    REAL_DFT_WEIGHTED,
    lambda x, axis, once, twice: apply(
        REAL_DFT_WEIGHTED, widened(x), axis=axis, once=once, twice=twice
    ),
    reference=lambda x, axis, once, twice: (
        np.fft.rfft(x, axis=axis) * _weights(x.ndim, axis, x.shape[axis], once, twice)
    ),
    namespace="internal",
    samples=lambda: iter(
        (sample(s.real(2, 5), 1, 1.0, 2.0), sample(s.real(4, 2), 0, 0.5, 0.25),
         sample(s.real(32), 0, 2.0, 2.0))
    ),
)  # fmt: skip
register(
    HALF_DFT_WEIGHTED,
    lambda x, axis, size, once, twice: rounded(
        apply(HALF_DFT_WEIGHTED, as_complex(x), axis=axis, size=size, once=once, twice=twice), x
    ),
    reference=lambda x, axis, size, once, twice: np.fft.irfft(
        x * _weights(x.ndim, axis, size, once, twice), size, axis=axis, norm="forward"
    ),
    namespace="internal",
    samples=lambda: iter(
        (sample(s.real(2, 3), 1, 5, 1.0, 0.5), sample(s.real(3, 2), 0, 4, 0.25, 2.0),
         sample(s.real(17), 0, 32, 0.5, 0.5))
    ),
)  # fmt: skip
register(
    WHOLE_DFT,
    lambda x, axis, inverse, scale: apply(
        WHOLE_DFT, widened(x), axis=axis, inverse=inverse, scale=scale
    ),
    reference=lambda x, axis, inverse, scale: (
        (np.fft.ifft(x, axis=axis, norm="forward") if inverse else np.fft.fft(x, axis=axis)) * scale
    ),
    namespace="internal",
    kinds="real float",
    samples=lambda: iter(
        (sample(s.real(2, 5), 1, False, 0.5), sample(s.real(4, 2), 0, True, 1.0),
         sample(s.real(2, 32), 1, True, 0.25))
    ),
)  # fmt: skip
