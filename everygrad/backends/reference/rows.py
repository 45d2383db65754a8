"""Rows of logits, labels, alignments and random words."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from everygrad.backends.reference.tolerance import Expected, Way, accumulated, growth, off, wide
from everygrad.core.shapes import Shape

# --- softmax and its like ------------------------------------------------------------------------


def _bound(x: Any, axis: int, size: Any) -> Any:
    """What a few sums along a row may be off by, relative to a size."""
    return 4 * growth(x.shape[axis]) * accumulated(x.dtype) * size


def _exponentials(x: Any, axis: int) -> tuple[Any, Any, Any]:
    """x less the row's largest, exp of that, and the sum of those."""
    moved = wide(x) - np.max(wide(x), axis=axis, keepdims=True, initial=-np.inf)
    e = np.exp(moved)
    return moved, e, e.sum(axis=axis, keepdims=True)


def _softmax(x: Any, axis: int) -> Expected:
    moved, e, whole = _exponentials(x, axis)
    value = e / whole
    error = _bound(x, axis, value * (1 + np.abs(moved) + np.abs(wide(x))))
    return Expected(value, error + off(value, x.dtype))


def _log_softmax(x: Any, axis: int) -> Expected:
    moved, _, whole = _exponentials(x, axis)
    value = moved - np.log(whole)
    error = _bound(x, axis, 1 + np.abs(moved) + np.abs(wide(x)) + np.log(whole))
    return Expected(value, error + off(value, x.dtype))


def _softmax_vjp(g: Any, out: Any, axis: int) -> Expected:
    g, p = wide(g), wide(out)
    value = g * p - p * (g * p).sum(axis=axis, keepdims=True)
    size = np.abs(g * p) + np.abs(p) * np.abs(g * p).sum(axis=axis, keepdims=True)
    return Expected(value, _bound(out, axis, size) + off(value, out.dtype))


def _log_softmax_vjp(g: Any, out: Any, axis: int) -> Expected:
    g, logs = wide(g), wide(out)
    p = np.exp(logs)
    value = g - p * g.sum(axis=axis, keepdims=True)
    size = np.abs(g) + p * (1 + np.abs(logs)) * np.abs(g).sum(axis=axis, keepdims=True)
    return Expected(value, _bound(out, axis, size) + off(value, out.dtype))


def _spread(x: Any, axes: Shape, eps: float) -> tuple[Any, Any, Any, Any]:
    """x less its mean, what that may be off by, 1 / sqrt(variance + eps), its relative error."""
    held = wide(x)
    c = 4 * growth(prod(x.shape[a] for a in axes)) * accumulated(x.dtype)
    gone = held - held.mean(axis=axes, keepdims=True)
    lost = c * (np.abs(held) + np.abs(held).mean(axis=axes, keepdims=True))
    variance = (gone * gone).mean(axis=axes, keepdims=True)
    around = 2 * (np.abs(gone) * lost).mean(axis=axes, keepdims=True) + c * variance
    return gone, lost, 1 / np.sqrt(variance + eps), around / (variance + eps) + c


def _standardize(x: Any, axes: Shape, eps: float) -> Expected:
    gone, lost, scale, around = _spread(x, axes, eps)
    value = gone * scale
    return Expected(value, lost * scale + around * np.abs(value) + off(value, x.dtype))


def _scaled_standardize(x: Any, weight: Any, bias: Any, axes: Shape, eps: float) -> Expected:
    found = _standardize(x, axes, eps)
    w, b = wide(weight), wide(bias)
    value = found.value * w + b
    size = found.error * np.abs(w) + 4 * accumulated(x.dtype) * (
        np.abs(found.value * w) + np.abs(b)
    )
    return Expected(value, size + off(value, x.dtype))


def _scaled_standardize_vjp(g: Any, x: Any, weight: Any, axes: Shape, eps: float) -> Expected:
    unit = _standardize(x, axes, eps).value
    found = _standardize_vjp(wide(g) * wide(weight), unit, x, axes, eps)
    return Expected(found.value, 3 * found.error + off(found.value, x.dtype))


def _times_standardized(g: Any, x: Any, axes: Shape, eps: float) -> Expected:
    found, factor = _standardize(x, axes, eps), wide(g)
    value = found.value * factor
    return Expected(value, 2 * found.error * np.abs(factor) + off(value, x.dtype))


def _scaled_rms(x: Any, weight: Any, axes: Shape, eps: float) -> Expected:
    held = wide(x)
    value = held / np.sqrt((held * held).mean(axis=axes, keepdims=True) + eps) * wide(weight)
    c = 8 * growth(prod(x.shape[a] for a in axes)) * accumulated(x.dtype)
    return Expected(value, c * np.abs(value) + off(value, x.dtype))


def _standardize_vjp(g: Any, out: Any, x: Any, axes: Shape, eps: float) -> Expected:
    _, _, scale, around = _spread(x, axes, eps)
    c = 4 * growth(prod(x.shape[a] for a in axes)) * accumulated(x.dtype)
    g, y = wide(g), wide(out)
    along = (g * y).mean(axis=axes, keepdims=True)
    value = scale * (g - g.mean(axis=axes, keepdims=True) - y * along)
    size = np.abs(g) + np.abs(g).mean(axis=axes, keepdims=True)
    size = scale * (size + np.abs(y) * np.abs(g * y).mean(axis=axes, keepdims=True))
    return Expected(value, (c + around) * size + off(value, x.dtype))


def _over_channels(x: Any) -> tuple[Shape, Any]:
    """The axes of the images and places, and how a vector over the channels is shaped."""
    return (0, *range(2, x.ndim)), lambda v: wide(v).reshape((-1,) + (1,) * (x.ndim - 2))


def _channel_moments(x: Any) -> Expected:
    axes, _ = _over_channels(x)
    gone, lost, _, _ = _spread(x, axes, 1.0)
    c = 4 * growth(prod(x.shape[a] for a in axes)) * accumulated(x.dtype)
    value = np.stack((wide(x).mean(axis=axes), (gone * gone).mean(axis=axes)))
    mean = c * np.abs(wide(x)).mean(axis=axes)
    variance = 2 * (np.abs(gone) * lost).mean(axis=axes) + c * value[1]
    return Expected(value, np.stack((mean, variance)) + off(value, x.dtype))


def _channel_norm(x: Any, weight: Any, bias: Any, eps: float) -> Expected:
    axes, shaped = _over_channels(x)
    gone, lost, scale, around = _spread(x, axes, eps)
    w, b = shaped(weight), shaped(bias)
    value = gone * scale * w + b
    size = (lost * scale + (around + 4 * accumulated(x.dtype)) * np.abs(gone * scale)) * np.abs(w)
    size = size + 2 * accumulated(x.dtype) * (np.abs(value) + np.abs(b))
    return Expected(value, size + off(value, x.dtype))


def _channel_norm_grads(g: Any, x: Any, weight: Any, eps: float) -> Expected:
    axes, shaped = _over_channels(x)
    gone, lost, scale, around = _spread(x, axes, eps)
    c = 4 * growth(prod(x.shape[a] for a in axes)) * accumulated(x.dtype)
    g, w, y = wide(g), np.abs(shaped(weight)), gone * scale
    wrong = lost * scale + around * np.abs(y)  # of y
    along = (g * y).mean(axis=axes, keepdims=True)
    dx = shaped(weight) * scale * (g - g.mean(axis=axes, keepdims=True) - y * along)
    terms = np.abs(g * y).mean(axis=axes, keepdims=True)
    size = np.abs(g) + np.abs(g).mean(axis=axes, keepdims=True) + np.abs(y) * terms
    moved = wrong * terms + np.abs(y) * (np.abs(g) * wrong).mean(axis=axes, keepdims=True)
    parts = (dx, (g * y).sum(axis=axes), g.sum(axis=axes))
    sums = (c * np.abs(g * y) + np.abs(g) * wrong).sum(axis=axes)
    errors = (w * scale * ((c + around) * size + moved), sums, c * np.abs(g).sum(axis=axes))
    value, error = (np.concatenate([p.reshape(-1) for p in ps]) for ps in (parts, errors))
    return Expected(value, error + off(value, x.dtype))


# --- labels --------------------------------------------------------------------------------------


def _labels(target: Any, ignore_index: int) -> tuple[Any, Any]:
    counted = target != ignore_index
    return counted, np.where(counted, target, 0)


def _nll_gather(logs: Any, target: Any, axis: int, ignore_index: int) -> Expected:
    counted, labels = _labels(target, ignore_index)
    picked = np.take_along_axis(logs, np.expand_dims(labels, axis), axis).squeeze(axis)
    return Expected(np.where(counted, -picked, picked.dtype.type(0)), signed=False)


def _nll_scatter(v: Any, target: Any, axis: int, classes: int, ignore_index: int) -> Expected:
    counted, labels = _labels(target, ignore_index)
    out = np.zeros((*v.shape[:axis], classes, *v.shape[axis:]), v.dtype)
    values = np.where(counted, -v, v.dtype.type(0))
    np.put_along_axis(out, np.expand_dims(labels, axis), np.expand_dims(values, axis), axis)
    return Expected(out, signed=False)


def _softmax_cross_entropy(x: Any, target: Any, axis: int, ignore_index: int) -> Expected:
    logs = _log_softmax(x, axis)
    counted, labels = _labels(target, ignore_index)
    at = np.expand_dims(labels, axis)
    picked, error = (np.take_along_axis(a, at, axis).squeeze(axis) for a in logs[:2])
    return Expected(np.where(counted, -picked, 0), error)


def _count_labels(target: Any, ignore_index: int, dtype: Any) -> Expected:
    count = np.asarray(np.count_nonzero(target != ignore_index), np.float64)
    return Expected(count, off(count, dtype.np))


# --- alignments ----------------------------------------------------------------------------------

_NEVER = -1e30  # the logarithm of what cannot be


def _before(alpha: Any, skips: Any) -> list[Any]:
    """What may come before each state: itself, the one before it, the one two before."""
    n, states = alpha.shape
    padded = np.concatenate((np.full((n, 2), _NEVER), alpha), axis=1)
    return [alpha, padded[:, 1 : states + 1], np.where(skips, padded[:, :states], _NEVER)]


def _log_sum(ways: list[Any]) -> Any:
    top = np.max(ways, axis=0)
    return top + np.log(sum(np.exp(way - top) for way in ways))


def _ctc_states(emitted: Any, skips: Any, times: Any) -> Expected:
    held = emitted.astype(np.float64)
    u, going = accumulated(emitted.dtype), times.reshape(-1, 1)
    out = [np.where(np.arange(held.shape[2]) < 2, held[0], _NEVER)]
    lost = [u * np.abs(out[0])]
    for t in range(1, len(held)):
        ways, errors = _before(out[-1], skips), _before(lost[-1], skips)
        new = _log_sum(ways) + held[t]
        off_by = np.max(np.maximum(errors, 0), axis=0)
        off_by = off_by + 16 * u * (1 + np.abs(new) + np.abs(held[t]))
        out.append(np.where(going > t, new, out[-1]))
        lost.append(np.where(going > t, off_by, lost[-1]))
    return Expected(np.stack(out), np.stack(lost) + off(np.stack(out), emitted.dtype))


def _ctc_adjoint(back: Any, alphas: Any, skips: Any, times: Any) -> Expected:
    size = np.abs(np.where(alphas > _NEVER / 10, alphas, 0)).max(initial=1)
    value = _ctc_backwards(back.astype(np.float64), alphas, skips, times)
    most = _ctc_backwards(np.abs(back.astype(np.float64)), alphas, skips, times)
    c = 16 * accumulated(alphas.dtype) * (len(alphas) + size)
    return Expected(value, c * most + off(value, alphas.dtype))


def _ctc_backwards(back: Any, alphas: Any, skips: Any, times: Any) -> Any:
    steps, n, states = alphas.shape
    alphas, nothing = alphas.astype(np.float64), np.zeros((n, 2))
    now, found = back[steps - 1], []
    for t in range(steps - 1, 0, -1):
        going = times.reshape(-1, 1) > t
        moving = np.where(going, now, 0)
        found.append(moving)
        ways = _before(alphas[t - 1], skips)
        whole = _log_sum(ways)
        stay, step, skip = (moving * np.exp(way - whole) for way in ways)
        step = np.concatenate((step, nothing), axis=1)[:, 1 : states + 1]
        skip = np.concatenate((np.where(skips, skip, 0), nothing), axis=1)[:, 2 : states + 2]
        now = np.where(going, stay + step + skip, now) + back[t - 1]
    found.append(np.where(np.arange(states) < 2, now, 0))
    return np.stack(found[::-1])


# --- random words: Philox 4x32-10 ----------------------------------------------------------------

_MULTIPLIERS, _KEY_STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)


def _philox(state: Any, count: int) -> Expected:
    """Ten rounds of a bijection of four words, as Salmon and others define it."""
    k0, k1, low, high = (int(v) for v in state)
    blocks = -(-count // 4)
    at = np.arange(blocks, dtype=np.uint64) + np.uint64(high << 32 | low)
    c0, c1 = at & _WORD, at >> np.uint64(32)
    c2 = c3 = np.zeros(blocks, np.uint64)
    for _ in range(10):
        p0, p1 = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & _WORD,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & _WORD,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) % 2**32, (k1 + _KEY_STEPS[1]) % 2**32
    words = np.stack((c0, c1, c2, c3), axis=-1).reshape(-1)
    return Expected(words[:count].astype(np.uint32))


def _philox_advance(state: Any, blocks: int) -> Expected:
    k0, k1, low, high = (int(v) for v in state)
    at = ((high << 32 | low) + blocks) % 2**64
    return Expected(np.array((k0, k1, at % 2**32, at >> 32), np.uint32))


WAYS: dict[str, Way] = {
    "softmax": _softmax,
    "softmax_vjp": _softmax_vjp,
    "log_softmax": _log_softmax,
    "log_softmax_vjp": _log_softmax_vjp,
    "standardize": _standardize,
    "scaled_standardize": _scaled_standardize,
    "scaled_standardize_vjp": _scaled_standardize_vjp,
    "times_standardized": _times_standardized,
    "scaled_rms": _scaled_rms,
    "standardize_vjp": _standardize_vjp,
    "channel_moments": _channel_moments,
    "channel_norm": _channel_norm,
    "channel_norm_grads": _channel_norm_grads,
    "nll_gather": _nll_gather,
    "nll_scatter": _nll_scatter,
    "softmax_cross_entropy": _softmax_cross_entropy,
    "count_labels": _count_labels,
    "ctc_states": _ctc_states,
    "ctc_adjoint": _ctc_adjoint,
    "philox": _philox,
    "philox_advance": _philox_advance,
}
