"""Fourier transforms: by native code (`fourier_plan`), and of other lengths by NumPy's pocketfft.

`np.fft.fft` takes three times as long to call as the ufunc inside it, and multiplies by a factor of
1 whose dtype it leaves to promotion: complex64 is then computed, and copied both ways, as
complex128, at an eighth of the speed. So the ufuncs are called directly, with a factor of the
result's own precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.backends.cpu.runtime.threaded_numpy import in_slabs, is_serial
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of

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


# --- native code ---------------------------------------------------------------------------------

_SHORT = {8: (4, 2), 4: (2, 2)}  # rows take two passes, the first of them even
_MOST = 1 << 20  # elements of a transform: longer ones leave the caches in every pass
_NARROW = edge(__name__, "_NARROW", 4, "size")  # columns that are worth a pass along them


@lru_cache(maxsize=1024)
def radices(n: int) -> tuple[int, ...]:
    """The radices of the passes for n elements, powers of two first; empty where n has factors
    other than 2, 3, 5 and 7."""
    if not 1 < n <= _MOST:
        return ()
    twos = (n & -n).bit_length() - 1
    found = [8] * (twos // 3 - (twos % 3 == 1 and twos > 1))
    found += {0: [], 2: [4], 1: [2] if twos == 1 else [4, 4]}[twos % 3]
    rest = n >> twos
    for r in (7, 5, 3):
        while rest % r == 0:
            rest //= r
            found.append(r)
    return tuple(found) if rest == 1 else ()


def row_radices(n: int) -> tuple[int, ...]:
    """Those of rows; empty for lengths that are not served."""
    return _SHORT.get(n, radices(n)) if n % 2 == 0 and n > 2 else ()


def _serves_reals(n: int, axis: int, x: Any) -> bool:
    return n % 4 == 0 and axis == x.ndim - 1 and bool(row_radices(n // 2))


def _serves_columns(x: Any, axis: int) -> bool:
    return size_of(x.shape[axis + 1 :]) >= _NARROW and bool(radices(x.shape[axis]))


def _contiguous(x: Any) -> Any:
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


# --- small arrays --------------------------------------------------------------------------------

# by layout and parameters: the shape and the dtype of the result, and the functions that make it,
# the first from x, the others in place
_small: dict[Any, tuple[tuple[int, ...], Any, tuple[Callable[[Any, Any], None], ...]]] = {}


def _remember(
    key: Any, shape: tuple[int, ...], dtype: Any, made: Sequence[Callable[[Any, Any], None]]
) -> None:
    if len(_small) >= 1000:
        _small.clear()
    _small[key] = (shape, dtype, tuple(made))


def _at_once(x: Any, key: Any) -> Any:
    """The result if functions for the key are known, else None."""
    found = _small.get(key)
    if found is None or not x.flags.c_contiguous:
        return None
    shape, dtype, functions = found
    source, out = x, np.empty(shape, dtype)
    for function in functions:
        function(source, out)
        source = out
    return out


def _remember_axes(key: Any, x: Any, axes: tuple[int, ...], inverse: bool, scale: float) -> None:
    """The functions of `dftn`, if native code serves all of the axes."""
    native, char, made = lazy_native.fourier_plan(), x.dtype.char, []
    for axis in reversed(axes):
        if axis == x.ndim - 1 and row_radices(x.shape[axis]):
            made.append(native.bound_rows(char, x.shape, x.shape[-1], "rows", inverse, (scale,)))
        elif axis < x.ndim - 1 and _serves_columns(x, axis):
            made.append(native.bound_columns(char, x.shape, axis, inverse, scale))
        else:
            return
        scale = 1.0
    _remember(key, x.shape, x.dtype, made)


def _of_reals(
    x: Any, key: Any, shape: tuple[int, ...], dtype: Any, kind: str, inverse: bool,
    factors: tuple[float, ...],
) -> Any:  # fmt: skip
    """One of the transforms of real numbers, by native code."""
    native = lazy_native.fourier_plan()
    if native.binds(x.size):
        made = native.bound_rows(x.dtype.char, x.shape, shape[-1], kind, inverse, factors)
        _remember(key, shape, dtype, [made])
    out = empty(shape, dtype)
    native.along_rows(_contiguous(x), out, kind, inverse, factors)
    return out


# --- the kernels ---------------------------------------------------------------------------------


def dft(x: Any, axis: int, inverse: bool) -> Any:
    return dftn(x, (axis,), inverse, 1.0)


def dftn(x: Any, axes: tuple[int, ...], inverse: bool, scale: float) -> Any:
    """Along one axis after the other, then times `scale`."""
    key = (x.shape, x.dtype.char, axes, inverse, scale)
    if (out := _at_once(x, key)) is not None:
        return out
    if not x.size or not axes:
        unit = _UNIT[x.dtype]
        return x * (unit if scale == 1.0 else type(unit)(scale))
    if _native_of(x, axes) and lazy_native.fourier_plan().binds(x.size):
        _remember_axes(key, x, axes, inverse, scale)
    given = x
    for axis in reversed(axes):  # the last one is contiguous, and best read from the input
        x = _along_one(x, axis, inverse, scale, x if x is not given else None)
        scale = 1.0
    return x


def _native_of(x: Any, axes: tuple[int, ...]) -> bool:
    return any(row_radices(x.shape[a]) if a == x.ndim - 1 else _serves_columns(x, a) for a in axes)


def _along_one(x: Any, axis: int, inverse: bool, scale: float, own: Any) -> Any:
    """Into `own`, if it is not None and nothing needs another array."""
    n = x.shape[axis]
    if axis == x.ndim - 1:
        if row_radices(n):
            out = empty(x.shape, x.dtype) if own is None else own
            lazy_native.fourier_plan().along_rows(_contiguous(x), out, "rows", inverse, (scale,))
            return out
    elif _serves_columns(x, axis):
        out = empty(x.shape, x.dtype) if own is None else own
        lazy_native.fourier_plan().along_columns(_contiguous(x), out, axis, inverse, scale)
        return out
    out, unit = empty(x.shape, x.dtype), _UNIT[x.dtype]
    factor = unit if scale == 1.0 else type(unit)(scale)
    _along(_INVERSE if inverse else _FORWARD, x, factor, out, axis)
    return out


def real_dft(x: Any, axis: int) -> Any:
    return real_dft_weighted(x, axis, 1.0, 1.0)


def real_dft_weighted(x: Any, axis: int, once: float, twice: float) -> Any:
    """Half the transform of real numbers, times `once` where an element stands for itself alone,
    times `twice` where it stands for its mirror image too."""
    key = ("real", x.shape, x.dtype.char, axis, once, twice)
    if (out := _at_once(x, key)) is not None:
        return out
    n = x.shape[axis]
    shape, dtype = (*x.shape[:axis], n // 2 + 1, *x.shape[axis + 1 :]), _COMPLEX[x.dtype]
    if not x.size:
        return np.zeros(shape, dtype)
    if _serves_reals(n, axis, x):
        return _of_reals(x, key, shape, dtype, "real", False, (1.0, once, 0.5 * twice))
    out = empty(shape, dtype)
    _along(_REAL[n % 2], x, _UNIT[x.dtype] * x.dtype.type(twice), out, axis)
    if once != twice:
        for end in _ends(out, axis, n):
            end *= x.dtype.type(once / twice)
    return out


def _ends(half: Any, axis: int, size: int) -> list[Any]:
    """The elements of half a transform that stand for themselves alone."""
    before = (slice(None),) * axis
    return [half[(*before, slice(k, k + 1))] for k in ((0,) if size % 2 else (0, size // 2))]


def half_dft(x: Any, axis: int, size: int) -> Any:
    """The real sequence of `size` elements whose transform begins with x, not divided by size."""
    return half_dft_weighted(x, axis, size, 1.0, 1.0)


def half_dft_weighted(x: Any, axis: int, size: int, once: float, twice: float) -> Any:
    """That of x with weights, as in `real_dft_weighted`."""
    key = ("half", x.shape, x.dtype.char, axis, size, once, twice)
    if (out := _at_once(x, key)) is not None:
        return out
    shape, real = (*x.shape[:axis], size, *x.shape[axis + 1 :]), _REALS[x.dtype]
    if not x.size:
        return np.zeros(shape, real)
    if _serves_reals(size, axis, x):
        return _of_reals(x, key, shape, real, "half", True, (1.0, once, twice))
    out = empty(shape, real)
    if once != twice:
        x = x.copy()
        for end in _ends(x, axis, size):
            end *= real.type(once / twice)
    _along(_HALF, x, _UNIT[real] * real.type(twice), out, axis)
    return out


def whole_dft(x: Any, axis: int, inverse: bool, scale: float) -> Any:
    """The transform of real numbers, with its mirror image."""
    key = ("whole", x.shape, x.dtype.char, axis, inverse, scale)
    if (out := _at_once(x, key)) is not None:
        return out
    n, dtype = x.shape[axis], _COMPLEX[x.dtype]
    if not x.size or not _serves_reals(n, axis, x):
        return dftn(x.astype(dtype), (axis,), inverse, scale)
    return _of_reals(x, key, x.shape, dtype, "whole", inverse, (1.0, scale, 0.5 * scale))


KERNELS: dict[str, Callable[..., Any]] = {
    "dft": dft,
    "dftn": dftn,
    "real_dft": real_dft,
    "real_dft_weighted": real_dft_weighted,
    "half_dft": half_dft,
    "half_dft_weighted": half_dft_weighted,
    "whole_dft": whole_dft,
}
