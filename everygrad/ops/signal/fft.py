"""The functions of the Array API for Fourier transforms, made of the kernels of `dft`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, AxisError, DtypeError, ShapeError
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.shape.movement import slice_axis
from everygrad.ops.signal.dft import (
    DFT,
    DFTN,
    HALF_DFT_WEIGHTED,
    REAL_DFT,
    REAL_DFT_WEIGHTED,
    WHOLE_DFT,
    as_complex,
    rounded,
    scaled,
    widened,
)

# --- what the functions share --------------------------------------------------------------------


def _checked(op: str, x: Any, kinds: str = "float") -> Tensor:
    if not isinstance(x, Tensor):
        raise DtypeError(f"{op}: takes tensors, got {type(x).__name__}; use eg.tensor()")
    check_kind(op, x.dtype, kinds)
    return widened(x)


def _fitted(x: Tensor, axis: int, size: int) -> Tensor:
    """x cut, or filled up with zeros, to `size` along an axis."""
    have = x.shape[axis]
    if size == have:
        return x
    if size < have:
        return slice_axis(x, axis, 0, size)
    return x.pad(tuple((0, size - have if a == axis else 0) for a in range(x.ndim)))


def _length(op: str, n: Any, default: int) -> int:
    size = default if n is None else shapes.as_int(n, op, "n")
    if size < 1:
        raise ArgumentError(f"{op}: a transform needs at least one element, got length {size}")
    return size


def _scale(op: str, norm: Any, count: int, forward: bool) -> float:
    """The factor of a transform over `count` elements."""
    if norm not in ("backward", "ortho", "forward"):
        raise ArgumentError(f'{op}: norm must be "backward", "ortho" or "forward", got {norm!r}')
    if norm == "ortho":
        return 1.0 / math.sqrt(count)
    return 1.0 / count if (norm == "forward") == forward else 1.0


def _sizes(op: str, x: Tensor, s: Any, axes: Any) -> tuple[list[int], list[int]]:
    """The axes and the length along each, from what an n-dimensional transform is given."""
    if s is not None and not isinstance(s, Sequence):
        raise ArgumentError(f"{op}: s has a size for each axis, ({s!r},) for one, got {s!r}")
    if axes is None:
        count = x.ndim if s is None else len(s)
        axes = range(x.ndim - count, x.ndim)
    found = list(shapes.axis_tuple(axes, x.ndim, op))
    if s is not None and len(s) != len(found):
        raise ShapeError(f"{op}: s has {len(s)} sizes for {len(found)} axes")
    sizes = [x.shape[a] for a in found] if s is None else list(s)
    return found, [_length(op, n, n) if n != -1 else x.shape[a] for n, a in zip(sizes, found)]  # noqa: B905


# --- one dimension -------------------------------------------------------------------------------


def _numpy(name: str) -> Callable[..., Any]:
    """NumPy's function, which is imported when it is used."""
    return lambda *args, **options: getattr(np.fft, name)(*args, **options)


_PLANE = (-2, -1)
_KNOWN = frozenset((dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128))
# the parameters of the kernel for calls that were checked before, by all that is checked
Key = tuple[Any, ...] | None
_checked_before: dict[Key, dict[str, Any]] = {}


def _key(op: str, x: Any, size: Any, axis: Any, norm: Any) -> Key:
    """What a call is known by: None where there is more to it, as a size of its own. x is not a
    half float, which would be widened."""
    if size is not None or type(norm) is not str or type(x) is not Tensor:
        return None
    if (type(axis) is int or axis is None or axis is _PLANE) and x.dtype in _KNOWN:
        return op, x.shape, x.dtype, axis, norm
    return None


def _note(key: Key, params: dict[str, Any]) -> dict[str, Any]:
    if key is not None:
        if len(_checked_before) >= 1000:
            _checked_before.clear()
        _checked_before[key] = params
    return params


def _one(op: str, x: Tensor, n: Any, axis: int, norm: str, forward: bool) -> Tensor:
    key = _key(op, x, n, axis, norm)
    if (found := _checked_before.get(key)) is not None:
        return apply(DFTN, x, **found)
    x = _checked(op, x)
    at = shapes.axis_index(axis, x.ndim, op)
    size = _length(op, n, x.shape[at])
    factor = _scale(op, norm, size, forward)
    x = _fitted(x, at, size)
    if x.dtype.is_complex:
        params = {"axes": (at,), "inverse": not forward, "scale": factor}
        return apply(DFTN, x, **_note(key, params))
    return apply(WHOLE_DFT, x, axis=at, inverse=not forward, scale=factor)


def _samples_1d() -> Any:
    return iter(
        (
            sample(s.real(5)),
            sample(s.real(2, 3), n=4, axis=0, norm="ortho"),
            sample(s.real(2, 3), n=2, norm="forward"),
        )
    )


def _facts(name: str, kinds: str = "float") -> dict[str, Any]:
    """What the records have in common."""
    return {
        "name": f"fft_{name}",
        "methods": (),
        "namespace": "fft",
        "kinds": kinds,
        "reference": _numpy(name),
        "refuses": (
            refuse(ArgumentError, f'{name}: norm must be "backward", "ortho"', s.real(3), norm="b"),
            refuse(DtypeError, f"{name}: does not take int64", s.integers(3)),
        ),
    }


@composite(**_facts("fft"), samples=_samples_1d)
def fft(x: Tensor, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The discrete Fourier transform along an axis, cut or filled with zeros to length n. The norm
    divides by n "forward", here; "backward", in `ifft`; or by its root in both, "ortho"."""
    return _one("fft", x, n, axis, norm, forward=True)


@composite(**_facts("ifft"), samples=_samples_1d)
def ifft(x: Tensor, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `fft`."""
    return _one("ifft", x, n, axis, norm, forward=False)


def _to_half(x: Tensor, size: int, at: int, factor: float, key: Key = None) -> Tensor:
    params = {"axis": at, "once": factor, "twice": factor}
    return apply(REAL_DFT_WEIGHTED, _fitted(x, at, size), **_note(key, params))


def _from_half(x: Tensor, size: int, at: int, factor: float, key: Key = None) -> Tensor:
    half = _fitted(x, at, size // 2 + 1)
    params = {"axis": at, "size": size, "once": factor, "twice": factor}
    return apply(HALF_DFT_WEIGHTED, half, **_note(key, params))


@composite(**_facts("rfft", "real float"), samples=_samples_1d)
def rfft(x: Tensor, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The first n // 2 + 1 elements of the transform of real numbers: the others are these,
    conjugated and in reverse."""
    key = _key("rfft", x, n, axis, norm)
    if (found := _checked_before.get(key)) is not None:
        return apply(REAL_DFT_WEIGHTED, x, **found)
    x = _checked("rfft", x, "real float")
    at = shapes.axis_index(axis, x.ndim, "rfft")
    size = _length("rfft", n, x.shape[at])
    return _to_half(x, size, at, _scale("rfft", norm, size, forward=True), key)


@composite(**_facts("irfft"), samples=_samples_1d)
def irfft(x: Tensor, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `rfft`; n, the length of the result, is even unless it is given."""
    key = _key("irfft", x, n, axis, norm)
    if (found := _checked_before.get(key)) is not None:
        return apply(HALF_DFT_WEIGHTED, x, **found)
    wide = as_complex(_checked("irfft", x))
    at = shapes.axis_index(axis, x.ndim, "irfft")
    size = _length("irfft", n, 2 * (x.shape[at] - 1))
    factor = _scale("irfft", norm, size, forward=False)
    return rounded(_from_half(wide, size, at, factor, key if wide is x else None), x)


@composite(**_facts("hfft"), samples=_samples_1d)
def hfft(x: Tensor, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The transform, real, of a sequence that is its own mirror image conjugated, of which x has
    the first half."""
    wide = as_complex(_checked("hfft", x)).conj()
    at = shapes.axis_index(axis, x.ndim, "hfft")
    size = _length("hfft", n, 2 * (x.shape[at] - 1))
    return rounded(_from_half(wide, size, at, _scale("hfft", norm, size, forward=True)), x)


@composite(**_facts("ihfft", "real float"), samples=_samples_1d)
def ihfft(x: Tensor, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `hfft`."""
    x = _checked("ihfft", x, "real float")
    at = shapes.axis_index(axis, x.ndim, "ihfft")
    size = _length("ihfft", n, x.shape[at])
    return _to_half(x, size, at, _scale("ihfft", norm, size, forward=False)).conj()


# --- several dimensions --------------------------------------------------------------------------


def _several(op: str, x: Tensor, s: Any, axes: Any, norm: str, forward: bool) -> Tensor:
    key = _key(op, x, s, axes, norm)
    if (known := _checked_before.get(key)) is not None:
        return apply(DFTN, x, **known)
    given, x = x, as_complex(_checked(op, x))
    found, sizes = _sizes(op, x, s, axes)
    factor = _scale(op, norm, shapes.size_of(tuple(sizes)), forward)
    for a, n in zip(found, sizes, strict=True):
        x = _fitted(x, a, n)
    params = {"axes": tuple(found), "inverse": not forward, "scale": factor}
    return apply(DFTN, x, **_note(key if x is given else None, params))


def _real_several(op: str, x: Tensor, s: Any, axes: Any, norm: str) -> Tensor:
    """The last axis as real numbers, then the others."""
    x = _checked(op, x, "real float")
    found, sizes = _sizes(op, x, s, axes)
    if not found:
        raise AxisError(f"{op}: needs at least one axis to transform")
    factor = _scale(op, norm, shapes.size_of(tuple(sizes)), forward=True)
    x = apply(REAL_DFT, _fitted(x, found[-1], sizes[-1]), axis=found[-1])
    for a, n in zip(found[:-1], sizes[:-1], strict=True):
        x = apply(DFT, _fitted(x, a, n), axis=a, inverse=False)
    return scaled(x, factor)


def _several_real(op: str, x: Tensor, s: Any, axes: Any, norm: str) -> Tensor:
    """The other axes, then the last to real numbers."""
    given, x = x, as_complex(_checked(op, x))
    found, sizes = _sizes(op, x, s, axes)
    if not found:
        raise AxisError(f"{op}: needs at least one axis to transform")
    if s is None:
        sizes[-1] = _length(op, None, 2 * (x.shape[found[-1]] - 1))
    factor = _scale(op, norm, shapes.size_of(tuple(sizes)), forward=False)
    for a, n in zip(found[:-1], sizes[:-1], strict=True):
        x = apply(DFT, _fitted(x, a, n), axis=a, inverse=True)
    return rounded(_from_half(x, sizes[-1], found[-1], factor), given)


def _several_mirrored(op: str, x: Tensor, s: Any, axes: Any, norm: str) -> Tensor:
    """`_several_real` in the other direction."""
    given, x = x, as_complex(_checked(op, x))
    found, sizes = _sizes(op, x, s, axes)
    if not found:
        raise AxisError(f"{op}: needs at least one axis to transform")
    if s is None:
        sizes[-1] = _length(op, None, 2 * (x.shape[found[-1]] - 1))
    factor = _scale(op, norm, shapes.size_of(tuple(sizes)), forward=True)
    for a, n in zip(found[:-1], sizes[:-1], strict=True):
        x = apply(DFT, _fitted(x, a, n), axis=a, inverse=False)
    return rounded(_from_half(x.conj(), sizes[-1], found[-1], factor), given)


def _mirrored_several(op: str, x: Tensor, s: Any, axes: Any, norm: str) -> Tensor:
    """`_real_several` in the other direction."""
    x = _checked(op, x, "real float")
    found, sizes = _sizes(op, x, s, axes)
    if not found:
        raise AxisError(f"{op}: needs at least one axis to transform")
    factor = _scale(op, norm, shapes.size_of(tuple(sizes)), forward=False)
    x = apply(REAL_DFT, _fitted(x, found[-1], sizes[-1]), axis=found[-1]).conj()
    for a, n in zip(found[:-1], sizes[:-1], strict=True):
        x = apply(DFT, _fitted(x, a, n), axis=a, inverse=True)
    return scaled(x, factor)


def _samples_nd() -> Any:
    return iter(
        (sample(s.real(2, 3)), sample(s.real(2, 2, 2), s=(3, 2), axes=(0, -1), norm="ortho"))
    )


Axes = Sequence[int] | None


@composite(**_facts("fftn"), samples=_samples_nd)
def fftn(x: Tensor, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """`fft` along several axes, all unless given, each cut or filled to its size in s."""
    return _several("fftn", x, s, axes, norm, forward=True)


@composite(**_facts("ifftn"), samples=_samples_nd)
def ifftn(x: Tensor, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The inverse of `fftn`."""
    return _several("ifftn", x, s, axes, norm, forward=False)


@composite(**_facts("rfftn", "real float"), samples=_samples_nd)
def rfftn(x: Tensor, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """`fftn` of real numbers: half of it along the last of the axes."""
    return _real_several("rfftn", x, s, axes, norm)


@composite(**_facts("irfftn"), samples=_samples_nd)
def irfftn(x: Tensor, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The inverse of `rfftn`; the last size of s is that of the result, even unless given."""
    return _several_real("irfftn", x, s, axes, norm)


@composite(**{**_facts("hfftn"), "reference": "scipy.fft:hfftn"}, samples=_samples_nd)
def hfftn(x: Tensor, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """`hfft` along several axes, all unless given: real; x has half of the last of them."""
    return _several_mirrored("hfftn", x, s, axes, norm)


@composite(
    **{**_facts("ihfftn", "real float"), "reference": "scipy.fft:ihfftn"}, samples=_samples_nd
)
def ihfftn(x: Tensor, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The inverse of `hfftn`."""
    return _mirrored_several("ihfftn", x, s, axes, norm)


def _facts_2d(name: str, kinds: str = "float") -> dict[str, Any]:
    """Those of `_facts`, with matrices to refuse."""
    return {
        **_facts(name, kinds),
        "refuses": (
            refuse(AxisError, "axis -2 is out of range for 1", s.real(3)),
            refuse(DtypeError, "does not take int64", s.integers(2, 3)),
        ),
        "samples": lambda: iter(
            (sample(s.real(2, 3)), sample(s.real(2, 2), s=(1, 3)), sample(s.real(2, 2, 3)))
        ),
    }


@composite(**_facts_2d("fft2"))
def fft2(x: Tensor, *, s: Axes = None, axes: Axes = _PLANE, norm: str = "backward") -> Tensor:
    """`fftn` of the last two axes."""
    return _several("fft2", x, s, axes, norm, forward=True)


@composite(**_facts_2d("ifft2"))
def ifft2(x: Tensor, *, s: Axes = None, axes: Axes = _PLANE, norm: str = "backward") -> Tensor:
    """The inverse of `fft2`."""
    return _several("ifft2", x, s, axes, norm, forward=False)


@composite(**_facts_2d("rfft2", "real float"))
def rfft2(x: Tensor, *, s: Axes = None, axes: Axes = _PLANE, norm: str = "backward") -> Tensor:
    """`rfftn` of the last two axes."""
    return _real_several("rfft2", x, s, axes, norm)


@composite(**_facts_2d("irfft2"))
def irfft2(x: Tensor, *, s: Axes = None, axes: Axes = _PLANE, norm: str = "backward") -> Tensor:
    """The inverse of `rfft2`."""
    return _several_real("irfft2", x, s, axes, norm)


@composite(**{**_facts_2d("hfft2"), "reference": "scipy.fft:hfft2"})
def hfft2(x: Tensor, *, s: Axes = None, axes: Axes = _PLANE, norm: str = "backward") -> Tensor:
    """`hfftn` of the last two axes."""
    return _several_mirrored("hfft2", x, s, axes, norm)


@composite(**{**_facts_2d("ihfft2", "real float"), "reference": "scipy.fft:ihfft2"})
def ihfft2(x: Tensor, *, s: Axes = None, axes: Axes = _PLANE, norm: str = "backward") -> Tensor:
    """The inverse of `hfft2`."""
    return _mirrored_several("ihfft2", x, s, axes, norm)
