"""Matrix products, convolutions, attention and Fourier transforms, from their definitions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import log2, prod
from typing import Any

import numpy as np

from everygrad.backends.reference.tolerance import (
    Accuracy,
    Expected,
    Way,
    accumulated,
    for_products,
    growth,
    is_exact,
    off,
    total,
    unit,
)
from everygrad.core.shapes import Shape

# --- matrix products -----------------------------------------------------------------------------


def _sized(fn: Any, x: Any, y: Any, count: int, accuracy: Accuracy, **params: Any) -> Expected:
    """A bilinear map, with a bound from the same map of absolute values."""
    if is_exact(x.dtype):
        return Expected(fn(x, y, **params))
    a, b = for_products(x), for_products(y)
    value, size = fn(a, b, **params), fn(np.abs(a), np.abs(b), **params)
    made = total(value, size, count, x.dtype)
    if x.dtype == np.float32 or x.dtype == np.complex64:
        coarse = 2 * (accuracy.product - 2.0**-24)  # both factors are rounded before
        return made._replace(error=made.error + coarse * size)
    return made


def matmul(x: Any, y: Any, *, accuracy: Accuracy) -> Expected:
    return _sized(np.matmul, x, y, x.shape[-1], accuracy)


def linear(x: Any, w: Any, *, accuracy: Accuracy) -> Expected:
    return matmul(x, w.T, accuracy=accuracy)


def linear_weight(v: Any, x: Any, *, accuracy: Accuracy) -> Expected:
    rows = prod(v.shape[:-1])
    v, x = v.reshape((rows, v.shape[-1])), x.reshape((rows, x.shape[-1]))
    return matmul(v.T, x, accuracy=accuracy)


def linear_bias(x: Any, w: Any, b: Any, *, accuracy: Accuracy) -> Expected:
    value, error, _ = linear(x, w, accuracy=accuracy)
    out = value + for_products(b)
    return Expected(out, error + off(value, x.dtype) + off(out, x.dtype))


# --- convolutions over any number of axes --------------------------------------------------------


def _padded(x: Any, window: Any) -> Any:
    return np.pad(x, ((0, 0), (0, 0), *((p, p) for p in window.padding)))


def _taps(window: Any, out: Shape) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
    """For each element of the kernel, its place and what of the padded image it is laid over."""
    for tap in product(*map(range, window.size)):
        starts = [t * d for t, d in zip(tap, window.dilation, strict=True)]
        along = zip(starts, out, window.stride, strict=True)
        yield tap, (..., *(slice(s, s + n * step, step) for s, n, step in along))


def _in_groups(x: Any, groups: int) -> Any:
    """(batch, groups, channels / groups, places)."""
    n, c = x.shape[:2]
    return x.reshape((n, groups, c // groups, prod(x.shape[2:])))


def _convolved(x: Any, w: Any, window: Any) -> Any:
    out, groups = window.out_size(x.shape), window.groups
    x = _padded(x, window)
    made = np.zeros((x.shape[0], groups, w.shape[0] // groups, prod(out)), x.dtype)
    for tap, seen in _taps(window, out):
        kernel = w[(..., *tap)].reshape((groups, w.shape[0] // groups, w.shape[1]))
        made += np.matmul(kernel, _in_groups(x[seen], groups))
    return made.reshape((x.shape[0], w.shape[0], *out))


def _spread_back(y: Any, w: Any, window: Any, image: Shape) -> Any:
    groups = window.groups
    wide = [m + 2 * p for m, p in zip(image[2:], window.padding, strict=True)]
    made: Any = np.zeros((*image[:2], *wide), y.dtype)
    grads = _in_groups(y, groups)
    for tap, seen in _taps(window, y.shape[2:]):
        kernel = w[(..., *tap)].reshape((groups, w.shape[0] // groups, w.shape[1]))
        part = np.matmul(kernel.transpose(0, 2, 1), grads)
        made[seen] += part.reshape((*image[:2], *y.shape[2:]))
    inside = zip(window.padding, image[2:], strict=True)
    return made[(..., *(slice(p, p + m) for p, m in inside))]


def _weighed(x: Any, y: Any, window: Any, weight: Shape) -> Any:
    groups = window.groups
    x, grads = _padded(x, window), _in_groups(y, groups)
    made: Any = np.zeros(weight, x.dtype)
    for tap, seen in _taps(window, y.shape[2:]):
        each = np.matmul(grads, _in_groups(x[seen], groups).transpose(0, 1, 3, 2))
        made[(..., *tap)] = each.sum(axis=0).reshape(weight[:2])
    return made


def conv(x: Any, w: Any, window: Any, *, accuracy: Accuracy) -> Expected:
    return _sized(_convolved, x, w, prod(w.shape[1:]), accuracy, window=window)


def conv_input(y: Any, w: Any, window: Any, image: Shape, *, accuracy: Accuracy) -> Expected:
    count = w.shape[0] // window.groups * prod(window.size)
    return _sized(_spread_back, y, w, count, accuracy, window=window, image=image)


def conv_weight(x: Any, y: Any, window: Any, weight: Shape, *, accuracy: Accuracy) -> Expected:
    count = y.shape[0] * prod(y.shape[2:])
    return _sized(_weighed, x, y, count, accuracy, window=window, weight=weight)


# --- attention -----------------------------------------------------------------------------------


def _probabilities(
    q: Any, k: Any, mask: Any, scale: float, causal: bool, u: float
) -> tuple[Any, Any]:
    """How much each query looks at each key, and how far the largest of a row's logarithms is off:
    all of them share the error of their sum."""
    keys = k.swapaxes(-1, -2)
    scores, size = np.matmul(q * scale, keys), np.matmul(np.abs(q * scale), np.abs(keys))
    slack = growth(q.shape[-1]) * u * size
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    if mask is not None:
        mask = np.broadcast_to(mask, scores.shape)
        slack = slack + u * np.where(np.isfinite(mask), np.abs(mask), 0)
        alive = (mask != -np.inf).any(axis=-1, keepdims=True)
        scores = np.where(alive, np.where(mask == -np.inf, -np.inf, scores + mask), -np.inf)
    seen = scores != -np.inf
    top = np.max(scores, axis=-1, keepdims=True)
    top = np.where(np.isneginf(top), 0, top)
    e = np.exp(scores - top)
    whole = e.sum(axis=-1, keepdims=True)
    slack = slack + 4 * u * np.where(seen, np.abs(scores - top) + np.abs(scores) + 1, 0)
    apart = np.max(np.where(seen, slack, 0), axis=-1, keepdims=True)
    return e / np.where(whole == 0, 1, whole), 2 * apart


def _attention_inputs(arrays: Any, accuracy: Accuracy) -> tuple[list[Any], float, float]:
    """The arrays, the rounding of scores, and that of probabilities: halves on their way."""
    dtype = arrays[0].dtype
    u = max(accumulated(dtype), accuracy.product if dtype.itemsize < 8 else 0.0)
    return [for_products(a) for a in arrays], 2 * u, unit(dtype) + u


def attention(*arrays: Any, scale: float, causal: bool = False, accuracy: Accuracy) -> Expected:
    (q, k, v, *masks), u, up = _attention_inputs(arrays, accuracy)
    p, apart = _probabilities(q, k, masks[0] if masks else None, scale, causal, u)
    value, size = np.matmul(p, v), np.matmul(p, np.abs(v))
    error = (apart + up + growth(k.shape[-2]) * u) * size
    return Expected(value, error + off(value, arrays[0].dtype))


def attention_grads(
    *arrays: Any, scale: float, causal: bool = False, accuracy: Accuracy
) -> Expected:
    (g, q, k, v, *masks), u, up = _attention_inputs(arrays, accuracy)
    p, apart = _probabilities(q, k, masks[0] if masks else None, scale, causal, u)
    back, dp = p.swapaxes(-1, -2), np.matmul(g, v.swapaxes(-1, -2))
    size = np.matmul(np.abs(g), np.abs(v).swapaxes(-1, -2))
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    most = p * (size + (p * size).sum(axis=-1, keepdims=True))
    c = growth(max(q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1])) * u
    lost = (2 * apart + 2 * up + 2 * c) * most  # of ds
    turned, ends = ds.swapaxes(-1, -2), lost.swapaxes(-1, -2)
    parts = [
        (np.matmul(ds, k), np.matmul(lost + c * np.abs(ds), np.abs(k))),
        (np.matmul(turned, q), np.matmul(ends + c * np.abs(turned), np.abs(q))),
    ]
    parts = [(value * scale, error * abs(scale)) for value, error in parts]
    rows = (apart + up + c).swapaxes(-1, -2)
    parts.append((np.matmul(back, g), np.matmul(rows * back, np.abs(g))))
    value = np.concatenate([part.reshape(-1) for part, _ in parts])
    error = np.concatenate([part.reshape(-1) for _, part in parts])
    return Expected(value, error + off(value, arrays[0].dtype))


def attention_log_sums(
    *arrays: Any, scale: float, causal: bool = False, accuracy: Accuracy
) -> Expected:
    (q, k), u, _ = _attention_inputs(arrays, accuracy)
    keys = k.swapaxes(-1, -2)
    scores, size = np.matmul(q * scale, keys), np.matmul(np.abs(q * scale), np.abs(keys))
    if causal:
        seen = np.tri(*scores.shape[-2:], dtype=np.bool_)
        scores, size = np.where(seen, scores, -np.inf), np.where(seen, size, 0)
    top = np.max(scores, axis=-1, keepdims=True)
    value = np.log(np.exp(scores - top).sum(axis=-1)) + top[..., 0]
    c = growth(q.shape[-1]) * u
    error = c * size.max(axis=-1, initial=0) + growth(k.shape[-2]) * u + 4 * u * np.abs(value)
    dtype = np.dtype(np.float32) if arrays[0].dtype.itemsize < 4 else arrays[0].dtype
    return Expected(value, error + off(value, dtype))


def attention_saved_slopes(
    *arrays: Any, scale: float, causal: bool = False, accuracy: Accuracy
) -> Expected:
    """The same derivatives as from the inputs alone; `out`, as given, is rounded."""
    *inputs, out, _ = arrays
    found = attention_grads(*inputs, scale=scale, causal=causal, accuracy=accuracy)
    g, q, k, v = (for_products(a) for a in inputs)
    p, _ = _probabilities(q, k, None, scale, causal, unit(arrays[0].dtype))
    lost = unit(out.dtype) * np.abs(g * for_products(out)).sum(axis=-1, keepdims=True) * p
    by_query = np.matmul(lost, np.abs(k)) * abs(scale)
    by_key = np.matmul(lost.swapaxes(-1, -2), np.abs(q)) * abs(scale)
    more = np.concatenate([by_query.reshape(-1), by_key.reshape(-1), np.zeros(v.size)])
    return Expected(found.value, found.error + more)


# --- Fourier transforms --------------------------------------------------------------------------


def _transform(fn: Any, x: Any, axis: int | Shape, size: int, dtype: Any) -> Expected:
    """Errors spread over all elements: they are relative to the root of the sum of squares."""
    x = for_products(x)
    value = fn(x)
    length = np.sqrt((np.abs(x) ** 2).sum(axis=axis, keepdims=True))
    error = 16 * (2 + log2(max(1, size))) * unit(dtype) * length
    return Expected(value, np.broadcast_to(error, value.shape) + off(value, dtype))


def dft(x: Any, axis: int, inverse: bool) -> Expected:
    if not x.size:
        return Expected(x)
    norm: Any = "forward" if inverse else "backward"
    fn = np.fft.ifft if inverse else np.fft.fft
    return _transform(lambda a: fn(a, axis=axis, norm=norm), x, axis, x.shape[axis], x.dtype)


def dftn(x: Any, axes: Shape, inverse: bool, scale: float) -> Expected:
    if not x.size:
        return Expected(x)
    norm: Any = "forward" if inverse else "backward"
    fn = np.fft.ifftn if inverse else np.fft.fftn
    size = prod(x.shape[a] for a in axes)
    found = _transform(lambda a: fn(a, axes=axes, norm=norm), x, axes, size, x.dtype)
    return Expected(found.value * scale, found.error * abs(scale) + off(found.value, x.dtype))


def real_dft(x: Any, axis: int) -> Expected:
    if not x.size:
        shape = (*x.shape[:axis], x.shape[axis] // 2 + 1, *x.shape[axis + 1 :])
        return Expected(np.zeros(shape, np.complex128))
    return _transform(lambda a: np.fft.rfft(a, axis=axis), x, axis, x.shape[axis], x.dtype)


def half_dft(x: Any, axis: int, size: int) -> Expected:
    if not x.size:
        return Expected(np.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :])))
    real = x.real.dtype
    return _transform(
        lambda a: np.fft.irfft(a, size, axis=axis, norm="forward"), x, axis, size, real
    )


def _weights(x: Any, axis: int, size: int, once: float, twice: float) -> Any:
    """Of half a transform: where an element stands for itself alone, and where for two."""
    found = np.full(size // 2 + 1, twice)
    found[0] = once
    if size % 2 == 0:
        found[-1] = once
    return found.reshape((-1, *(1,) * (x.ndim - axis - 1)))


def real_dft_weighted(x: Any, axis: int, once: float, twice: float) -> Expected:
    found = real_dft(x, axis)
    if not x.size:
        return found
    weights = _weights(x, axis, x.shape[axis], once, twice)
    value = found.value * weights
    complex_ = np.result_type(x.dtype, np.complex64)
    return Expected(value, found.error * np.abs(weights) + off(value, complex_))


def half_dft_weighted(x: Any, axis: int, size: int, once: float, twice: float) -> Expected:
    if not x.size:
        return half_dft(x, axis, size)
    weighted = for_products(x) * _weights(x, axis, size, once, twice)
    return _transform(
        lambda a: np.fft.irfft(a, size, axis=axis, norm="forward"),
        weighted,
        axis,
        size,
        x.real.dtype,
    )


def whole_dft(x: Any, axis: int, inverse: bool, scale: float) -> Expected:
    return dftn(x.astype(np.result_type(x.dtype, np.complex64)), (axis,), inverse, scale)


# ways that must know how a device rounds what it multiplies
ROUNDED: dict[str, Way] = {
    "matmul": matmul,
    "linear": linear,
    "linear_weight": linear_weight,
    "linear_bias": linear_bias,
    "conv2d": conv,
    "conv2d_input": conv_input,
    "conv2d_weight": conv_weight,
    "convolve3d": conv,
    "convolve3d_input": conv_input,
    "convolve3d_weight": conv_weight,
    "attention": attention,
    "attention_masked": attention,
    "attention_grads": attention_grads,
    "attention_masked_grads": attention_grads,
    "attention_log_sums": attention_log_sums,
    "attention_saved_slopes": attention_saved_slopes,
}
TRANSFORMS: dict[str, Way] = {
    "dft": dft,
    "dftn": dftn,
    "real_dft": real_dft,
    "real_dft_weighted": real_dft_weighted,
    "half_dft": half_dft,
    "half_dft_weighted": half_dft_weighted,
    "whole_dft": whole_dft,
}
