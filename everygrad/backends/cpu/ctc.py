"""The recursions of connectionist temporal classification by NumPy: see `ops.ctc`.

One step at a time, each a few calls for all examples and states: as a compiled function every step
would be kernels of its own, and their compilation would take longer than the training it is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

NEVER = -1e30  # the logarithm of what cannot be; see `ops.ctc`


def _three(wide: Any) -> Any:
    """Views along a first axis: each state, the one before it, the one two before; `wide` has two
    states in front."""
    *outer, item = wide.strides
    shape = (3, *wide.shape[:-1], wide.shape[-1] - 2)
    return as_strided(wide[..., 2:], shape, (-item, *outer, item))


def _limits(skips: Any, dtype: Any) -> Any:
    """What each way into a state may be at most: nothing may skip where `skips` is false."""
    out = np.full((3, *skips.shape), np.inf, dtype)
    out[2][~skips] = NEVER
    return out


def ctc_states(emitted: Any, skips: Any, times: Any) -> Any:
    steps, n, width = emitted.shape
    dtype = emitted.dtype
    out = np.empty(emitted.shape, dtype)
    out[0] = NEVER
    out[0, :, :2] = emitted[0, :, :2]
    wide = np.full((n, width + 2), NEVER, dtype)
    now, ways = wide[:, 2:], _three(wide)
    limits, parts, top = _limits(skips, dtype), np.empty((3, n, width), dtype), np.empty_like(now)
    first = int(times.min()) if n else 0
    for t in range(1, steps):
        now[...] = out[t - 1]
        np.minimum(ways, limits, out=parts)
        np.maximum.reduce(parts, axis=0, out=top)
        np.subtract(parts, top, out=parts)
        np.exp(parts, out=parts)
        new = np.add.reduce(parts, axis=0, out=out[t])
        np.log(new, out=new)
        new += top
        new += emitted[t]
        if t >= first:
            np.copyto(new, out[t - 1], where=(times <= t)[:, None])
    return out


def _shares(alphas: Any, skips: Any) -> Any:
    """(3, steps - 1, batch, states): what part of each state came by each way."""
    steps, n, width = alphas.shape
    wide = np.full((steps - 1, n, width + 2), NEVER, alphas.dtype)
    wide[..., 2:] = alphas[:-1]
    parts = np.minimum(_three(wide), _limits(skips, alphas.dtype)[:, None])
    parts -= parts.max(axis=0)
    np.exp(parts, out=parts)
    parts /= parts.sum(axis=0)
    parts[2] *= skips
    return parts


def ctc_adjoint(back: Any, alphas: Any, skips: Any, times: Any) -> Any:
    steps, n, width = alphas.shape
    out = np.empty(alphas.shape, alphas.dtype)
    shares = _shares(alphas, skips)
    parts = np.empty((3, n, width), alphas.dtype)
    before, step, skip = parts[0], parts[1, :, 1:], parts[2, :, 2:]
    by_one, by_two = before[:, :-1], before[:, :-2]
    going = times[:, None] > np.arange(steps)[:, None, None]  # (steps, batch, 1)
    first = int(times.min()) if n else 0
    now = back[-1].copy()
    for t in range(steps - 1, 0, -1):
        moving = np.multiply(now, going[t], out=out[t])
        np.multiply(moving, shares[:, t - 1], out=parts)
        by_one += step
        by_two += skip
        if t >= first:
            np.copyto(before, now, where=~going[t])
        np.add(before, back[t - 1], out=now)
    out[0] = 0
    out[0, :, :2] = now[:, :2]
    return out


KERNELS: dict[str, Callable[..., Any]] = {"ctc_states": ctc_states, "ctc_adjoint": ctc_adjoint}
