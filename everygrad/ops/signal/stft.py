"""Around Fourier transforms: frequencies, shifts, and transforms of short stretches of a signal."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import abs as absolute
from everygrad.ops.index.gather import index_add, taken
from everygrad.ops.linalg.checks import constant
from everygrad.ops.python.creation import zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.shape.joining import roll, stack
from everygrad.ops.shape.movement import slice_axis
from everygrad.ops.signal.dft import as_complex
from everygrad.ops.signal.fft import fft, ifft, irfft, rfft


def _frequencies(op: str, values: Any, n: int, d: float, dtype: Any, device: str | None) -> Tensor:
    if shapes.as_int(n, op, "n") < 1:
        raise ArgumentError(f"{op}: n must be at least 1, got {n}")
    wanted = dtypes.as_dtype(dtype or dtypes.DEFAULT_FLOAT)
    if not wanted.is_float:
        raise DtypeError(f"{op}: frequencies are real floating-point numbers, not {wanted}")
    return constant((values / (n * d)).astype(wanted.np), device)


def fftfreq(n: int, *, d: float = 1.0, dtype: Any = None, device: str | None = None) -> Tensor:
    """The frequency of each element of `fft`, samples being d apart: 0, 1, ... -2, -1 over n d."""
    return _frequencies("fftfreq", np.fft.fftfreq(max(n, 1)) * n, n, d, dtype, device)


def rfftfreq(n: int, *, d: float = 1.0, dtype: Any = None, device: str | None = None) -> Tensor:
    """The frequency of each element of `rfft`: 0, 1, ... n // 2 over n d."""
    return _frequencies("rfftfreq", np.arange(n // 2 + 1), n, d, dtype, device)


def _shifted(op: str, x: Tensor, axes: Any, sign: int) -> Tensor:
    found = shapes.axis_tuple(axes, x.ndim, op)
    by = tuple(x.shape[a] // 2 if sign > 0 else -(x.shape[a] // 2) for a in found)
    return roll(x, by, axis=found)


@composite(
    name="fft_fftshift",
    methods=(),
    namespace="fft",
    reference=lambda x, **options: np.fft.fftshift(x, **options),
    samples=lambda: iter((sample(s.real(5)), sample(s.real(2, 3), axes=1))),
)
def fftshift(x: Tensor, *, axes: Any = None) -> Tensor:
    """Frequency 0 moved from the front to the middle of the axes, all unless given."""
    return _shifted("fftshift", x, axes, 1)


@composite(
    name="fft_ifftshift",
    methods=(),
    namespace="fft",
    reference=lambda x, **options: np.fft.ifftshift(x, **options),
    samples=lambda: iter((sample(s.real(5)), sample(s.real(2, 3), axes=1))),
)
def ifftshift(x: Tensor, *, axes: Any = None) -> Tensor:
    """The inverse of `fftshift`: the two differ where a size is odd."""
    return _shifted("ifftshift", x, axes, -1)


# --- short stretches -----------------------------------------------------------------------------


def _window(op: str, window: Tensor | None, n_fft: int, win_length: Any, like: Tensor) -> Tensor:
    """The window, in the middle of n_fft elements."""
    length = n_fft if win_length is None else shapes.as_int(win_length, op, "win_length")
    if not 0 < length <= n_fft:
        raise ArgumentError(f"{op}: win_length must be from 1 to n_fft {n_fft}, got {length}")
    dtype = dtypes.real_of(like.dtype)
    if window is None:
        window = zeros((length,), dtype, like.device) + 1
    if window.shape != (length,):
        raise ShapeError(f"{op}: a window of {window.shape}, which must be ({length},)")
    if window.dtype.is_complex:
        raise DtypeError(f"{op}: a window is real, got {window.dtype}; take real() or abs() first")
    before = (n_fft - length) // 2
    return window.astype(dtype).pad(((before, n_fft - length - before),))


def _places(op: str, n_fft: Any, hop_length: Any) -> tuple[int, int]:
    size = shapes.as_int(n_fft, op, "n_fft")
    hop = size // 4 if hop_length is None else shapes.as_int(hop_length, op, "hop_length")
    if size < 1 or hop < 1:
        raise ArgumentError(f"{op}: n_fft and hop_length must be above 0, got {size} and {hop}")
    return size, hop


_PAD_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap", "constant": ""}


def _padding(count: int, pad: int, mode: str) -> Any:
    """For each element of the padded signal, its place in the signal; `count` is a place of 0."""
    places = np.arange(count)
    if mode == "constant":
        return np.pad(places, pad, constant_values=count)
    how: Any = _PAD_MODES[mode]
    return np.pad(places, pad, mode=how)


@composite(
    methods=(),
    namespace="fft",
    kinds="float",
    reference="tests.support.references.fft:stft",
    samples=lambda: iter(
        (
            sample(s.real(7), 4, hop_length=2),
            sample(s.real(2, 5), 4, 1, 3, center=False, normalized=True),
        )
    ),
    refuses=(
        refuse(ShapeError, "stft: takes a signal, or a batch of them", s.real(2, 2, 5), 4),
        refuse(ShapeError, "stft: a signal of 3 elements is shorter than n_fft 8", s.real(3), 8,
               center=False),
        refuse(ArgumentError, "stft: pad_mode must be", s.real(9), 4, pad_mode="mirror"),
        refuse(DtypeError, "stft: a window is real, got", s.real(9), 4, window=s.real(4) * 1j),
    ),
)  # fmt: skip
def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool = True,
) -> Tensor:
    """Transforms of stretches of n_fft elements of a signal, `hop_length` (n_fft // 4) apart, each
    times the window: (..., frequencies, stretches). With `center`, stretches are centred at
    their places, the signal padded by n_fft // 2 on both sides. `normalized` divides by the root
    of n_fft. Half of the frequencies are given for real signals, unless `onesided` is False.
    Without `return_complex` the last axis has real and imaginary parts."""
    check_kind("stft", input.dtype, "float")
    if input.ndim not in (1, 2):
        raise ShapeError(f"stft: takes a signal, or a batch of them, got shape {input.shape}")
    x = _widened(input)
    size, hop = _places("stft", n_fft, hop_length)
    half = not x.dtype.is_complex if onesided is None else onesided
    if half and x.dtype.is_complex:
        raise ArgumentError("stft: onesided=True is for real signals, this one is complex")
    stretches = _stretches(x, size, hop, size // 2 if center else 0, pad_mode)
    stretches = stretches * _window("stft", window, size, win_length, x)
    norm = "ortho" if normalized else "backward"
    out = rfft(stretches, norm=norm) if half else fft(stretches, norm=norm)
    out = out.matrix_transpose()
    return out if return_complex else stack([out.real(), out.imag()], axis=-1)


def _widened(x: Tensor) -> Tensor:
    return x.astype(dtypes.float32) if x.dtype.itemsize == 2 else x


def _stretches(x: Tensor, size: int, hop: int, pad: int, mode: str) -> Tensor:
    """(..., stretches, size) of a signal padded by `pad` on both sides."""
    count = x.shape[-1]
    if mode not in _PAD_MODES:
        known = ", ".join(_PAD_MODES)
        raise ArgumentError(f"stft: pad_mode must be one of {known}, got {mode!r}")
    if mode == "reflect" and pad >= count:
        raise ShapeError(
            f"stft: a signal of {count} elements cannot be reflected by {pad}; use a smaller "
            f'n_fft, or pad_mode="constant"'
        )
    places = _padding(count, pad, mode) if pad else np.arange(count)
    if len(places) < size:
        raise ShapeError(f"stft: a signal of {count} elements is shorter than n_fft {size}")
    if pad and mode == "constant":
        x = x.pad((*((0, 0),) * (x.ndim - 1), (0, 1)))
    starts = np.arange(0, len(places) - size + 1, hop)
    index = places[starts[:, None] + np.arange(size)]
    return taken(x, constant(index, x.device), axis=-1)


@composite(
    methods=(),
    namespace="fft",
    kinds="float",
    reference="tests.support.references.fft:istft",
    samples=lambda: iter(
        (sample(s.real(3, 4), 4, hop_length=2), sample(s.real(2, 3, 3), 4, 1, normalized=True))
    ),
    refuses=(
        refuse(ShapeError, "istft: n_fft 4 needs 3 frequencies, got 4", s.real(4, 3), 4),
        refuse(ShapeError, "istft: takes", s.real(4), 4),
    ),
)
def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal of which `stft` gives this: stretches times the window, added up where they
    overlap, and divided by the sum of squared windows there. Where that is 0, so is the result."""
    check_kind("istft", input.dtype, "float")
    if input.ndim not in (2, 3):
        raise ShapeError(f"istft: takes (frequencies, stretches), or a batch, got {input.shape}")
    size, hop = _places("istft", n_fft, hop_length)
    x = as_complex(_widened(input)).matrix_transpose()
    half = not return_complex if onesided is None else onesided
    need = size // 2 + 1 if half else size
    if x.shape[-1] != need:
        raise ShapeError(f"istft: n_fft {size} needs {need} frequencies, got {x.shape[-1]}")
    norm = "ortho" if normalized else "backward"
    stretches = irfft(x, n=size, norm=norm) if half else ifft(x, norm=norm)
    shape = _window("istft", window, size, win_length, stretches)
    signal = _added_up(stretches * shape, hop)
    weight = _added_up((shape * shape).broadcast_to(stretches.shape[-2:]), hop)
    out = _trimmed(_divided(signal, weight), size // 2 if center else 0, length)
    return out.astype(input.dtype) if input.dtype.itemsize == 2 and half else out


def _added_up(stretches: Tensor, hop: int) -> Tensor:
    """Stretches `hop` apart, added where they overlap."""
    count, size = stretches.shape[-2:]
    batch = stretches.shape[:-2]
    places = (np.arange(count)[:, None] * hop + np.arange(size)).reshape(-1)
    empty = zeros((*batch, hop * (count - 1) + size), stretches.dtype, stretches.device)
    flat = stretches.reshape((*batch, count * size))
    return index_add(empty, constant(places, stretches.device), flat, axis=-1)


def _trimmed(x: Tensor, pad: int, length: int | None) -> Tensor:
    """x without `pad` elements on both sides; or from there on, cut or filled to a length."""
    total = x.shape[-1]
    end = total - pad if length is None else min(pad + length, total)
    kept = slice_axis(x, x.ndim - 1, pad, max(0, end - pad))
    short = 0 if length is None else length - kept.shape[-1]
    return kept.pad((*((0, 0),) * (x.ndim - 1), (0, short))) if short > 0 else kept


def _divided(signal: Tensor, weight: Tensor) -> Tensor:
    """signal / weight, as it is where the weight is 0."""
    gone = (absolute(weight) < 1e-11).astype(weight.dtype)
    return signal / (weight + gone)
