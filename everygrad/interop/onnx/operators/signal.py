"""Fourier transforms of numbers whose real and imaginary parts lie along a last axis."""

from __future__ import annotations

from typing import Any

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ShapeError
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import checked_size, np_dtype


def _signal(x: Tensor) -> Tensor:
    """A tensor (..., 1) or (..., 2) as real or complex numbers."""
    wide = x if x.dtype.bits >= 32 else x.astype(eg.float32)
    if x.shape[-1] == 1:
        return wide[..., 0]
    if x.shape[-1] != 2:
        raise ShapeError(f"the last axis of a signal is 1 or 2 long, got shape {x.shape}")
    return eg.view_as_complex(wide)


def _parts(z: Tensor, dtype: Any) -> Tensor:
    return eg.stack([eg.real(z), eg.imag(z)], axis=-1).astype(dtype)


def _known(value: Any, default: Any) -> Any:
    return default if value is None else int(np.asarray(value).reshape(-1)[0])


@onnx_op("DFT", static=(1,))
def _dft_by_attribute(call: Call, x: Tensor, length: Any = None) -> Tensor:
    return _transformed(call, x, length, call("axis", 1))


@onnx_op("DFT", since=20, static=(1, 2))
def _dft(call: Call, x: Tensor, length: Any = None, axis: Any = None) -> Tensor:
    return _transformed(call, x, length, _known(axis, -2))


def _transformed(call: Call, x: Tensor, length: Any, axis: int) -> Tensor:
    axis %= x.ndim
    checked_size("DFT", (x.size, _known(length, 1)))
    signal = _signal(x)
    one_sided = bool(call("onesided", 0))
    if call("inverse", 0):
        if one_sided:
            n = _known(length, 2 * (x.shape[axis] - 1))
            return eg.fft.irfft(signal, n, axis).expand_dims(-1).astype(x.dtype)
        return _parts(eg.fft.ifft(signal, _known(length, x.shape[axis]), axis), x.dtype)
    n = _known(length, x.shape[axis])
    if one_sided:
        if x.shape[-1] == 1:
            return _parts(eg.fft.rfft(signal, n, axis), x.dtype)
        whole = eg.fft.fft(signal, n, axis)
        return _parts(whole[(*(slice(None),) * axis, slice(0, n // 2 + 1))], x.dtype)
    return _parts(eg.fft.fft(signal, n, axis), x.dtype)


@onnx_op("STFT", static=(1, 3))
def _stft(
    call: Call, x: Tensor, step: Any, window: Tensor | None = None, length: Any = None
) -> Any:
    size = _known(length, window.shape[0] if window is not None else None)
    if size is None:
        raise ShapeError("STFT: takes a window or a frame length")
    signal = _signal(x)
    frames = eg.unfold(signal, 1, size, _known(step, 1))
    if window is not None:
        frames = frames * window.astype(eg.float32 if window.dtype.bits < 32 else window.dtype)
    whole = x.shape[-1] == 2
    if call("onesided", 1) and not whole:
        return _parts(eg.fft.rfft(frames, None, -1), x.dtype)
    found = eg.fft.fft(frames, None, -1)
    return _parts(found[..., : size // 2 + 1] if call("onesided", 1) else found, x.dtype)


@onnx_op("MelWeightMatrix", static=(0, 1, 2, 3, 4), raw=True)
def _mel_weight_matrix(call: Call, bins: Any, size: Any, rate: Any, low: Any, high: Any) -> Any:
    """Triangles between points that are even on the mel scale, over a spectrum's bins."""
    count, dft = int(bins), int(size)
    points = dft // 2 + 1
    checked_size("MelWeightMatrix", (points, count))

    def mel(hertz: float) -> float:
        return float(2595 * np.log10(1 + hertz / 700))

    first, last = mel(float(low)), mel(float(high))
    edges = np.arange(count + 2) * (last - first) / (count + 2) + first
    hertz = 700 * (np.power(10.0, edges / 2595) - 1)
    at = ((dft + 1) * hertz // int(rate)).astype(np.int64)
    out = np.zeros((points, count))
    for i in range(count):
        left, peak, right = at[i], at[i + 1], at[i + 2]
        if peak == left:
            out[peak, i] = 1
        else:
            rising = np.arange(left, peak + 1)
            out[left : peak + 1, i] = (rising - left) / (peak - left)
        if right > peak:
            falling = np.arange(peak, right)
            out[peak:right, i] = (right - falling) / (right - peak)
    return out.astype(np_dtype(call("output_datatype", 1)))
