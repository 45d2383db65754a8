"""Fourier transforms by NumPy's pocketfft.

`np.fft.fft` takes three times as long to call as the ufunc inside it, and multiplies by a factor of
1 whose dtype it leaves to promotion: complex64 is then computed, and copied both ways, as
complex128, at an eighth of the speed. So the ufuncs are called directly, with a factor of the
result's own precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad.backends.cpu.runtime.pool import empty
from everygrad.backends.cpu.runtime.threaded_numpy import in_slabs, is_serial

Ufunc = Callable[..., Any]  # (x, factor, out, axes=...), along the last axis unless given


def _public(transform: Callable[..., Any]) -> Ufunc:
    """NumPy's public function in the place of its ufunc."""

    def run(x: Any, factor: Any, out: Any, axes: Any = ((-1,),)) -> Any:
        (axis,) = axes[0]
        # the divisor of "forward" has the right dtype, and is taken out again
        size = x.shape[axis] if transform in (np.fft.fft, np.fft.rfft) else out.shape[axis]
        norm = "forward" if transform in (np.fft.fft, np.fft.rfft) else "backward"
        transform(x, out.shape[axis] if transform is np.fft.irfft else None, axis, norm, out=out)
        return np.multiply(out, factor * factor.dtype.type(size), out=out)

    return run


def _ufuncs() -> tuple[Ufunc, Ufunc, tuple[Ufunc, Ufunc], Ufunc]:
    """Forward, inverse, of real numbers of an even and an odd length, and back to these."""
    try:
        from numpy.fft import _pocketfft_umath as inside  # type: ignore[attr-defined]

        return inside.fft, inside.ifft, (inside.rfft_n_even, inside.rfft_n_odd), inside.irfft
    except (ImportError, AttributeError):  # not NumPy's to promise
        real = _public(np.fft.rfft)
        return _public(np.fft.fft), _public(np.fft.ifft), (real, real), _public(np.fft.irfft)


_FORWARD, _INVERSE, _REAL, _HALF = _ufuncs()
# of arrays of either kind, by dtype
_REALS: dict[Any, Any] = {np.dtype("c8"): np.dtype("f4"), np.dtype("c16"): np.dtype("f8")}
_COMPLEX: dict[Any, Any] = {real: dtype for dtype, real in _REALS.items()}
_UNIT: dict[Any, Any] = {real: real.type(1) for real in _COMPLEX}
_UNIT |= {dtype: _UNIT[real] for dtype, real in _REALS.items()}


def _along(ufunc: Ufunc, x: Any, factor: Any, out: Any, axis: int) -> None:
    """The ufunc along an axis, on several threads if the array is large."""
    if axis == x.ndim - 1:
        if is_serial(x):
            ufunc(x, factor, out)
        else:
            in_slabs(lambda a, b: ufunc(a, factor, b), x, out, axis)
        return
    axes = [(axis,), (), (axis,)]
    in_slabs(lambda a, b: ufunc(a, factor, b, axes=axes), x, out, axis)


def dft(x: Any, axis: int, inverse: bool) -> Any:
    return dftn(x, (axis,), inverse, 1.0)


def dftn(x: Any, axes: tuple[int, ...], inverse: bool, scale: float) -> Any:
    """Along one axis after the other, then times `scale`."""
    dtype = x.dtype
    unit = _UNIT[dtype]
    factor = unit if scale == 1.0 else type(unit)(scale)
    if not x.size or not axes:
        return x * factor
    ufunc = _INVERSE if inverse else _FORWARD
    for axis in reversed(axes):  # the last one is contiguous, and best read from the input
        out = empty(x.shape, dtype)
        _along(ufunc, x, factor, out, axis)
        x, factor = out, unit
    return x


def real_dft(x: Any, axis: int) -> Any:
    n = x.shape[axis]
    shape, dtype = (*x.shape[:axis], n // 2 + 1, *x.shape[axis + 1 :]), _COMPLEX[x.dtype]
    if not x.size:
        return np.zeros(shape, dtype)
    out = empty(shape, dtype)
    _along(_REAL[n % 2], x, _UNIT[x.dtype], out, axis)
    return out


def half_dft(x: Any, axis: int, size: int) -> Any:
    """The real sequence of `size` elements whose transform begins with x, not divided by size."""
    shape, real = (*x.shape[:axis], size, *x.shape[axis + 1 :]), _REALS[x.dtype]
    if not x.size:
        return np.zeros(shape, real)
    out = empty(shape, real)
    _along(_HALF, x, _UNIT[real], out, axis)
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    "dft": dft,
    "dftn": dftn,
    "real_dft": real_dft,
    "half_dft": half_dft,
}
