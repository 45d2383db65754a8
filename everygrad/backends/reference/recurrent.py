"""Recurrent layers step by step, with what rounding may do to each step and to all after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad.backends.reference.tolerance import Expected, Way, accumulated, growth, off, wide

_STATES = {"lstm": 2, "gru": 1, "tanh": 1, "relu": 1}


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _step(mode: str, x: Any, h: Any, states: list[Any]) -> list[Any]:
    """What one step keeps, from both parts of its gates."""
    if mode == "lstm":
        i, f, g, o = np.split(x + h, 4, axis=-1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        c = f * states[1] + i * g
        return [o * np.tanh(c), c, i, f, g, o]
    if mode == "gru":
        (xr, xz, xn), (hr, hz, hn) = np.split(x, 3, axis=-1), np.split(h, 3, axis=-1)
        r, z = _sigmoid(xr + hr), _sigmoid(xz + hz)
        n = np.tanh(xn + r * hn)
        return [n + z * (states[0] - n), r, z, n, hn]
    return [np.tanh(x + h) if mode == "tanh" else np.maximum(x + h, 0)]


def _errors(
    mode: str, e: Any, made: list[Any], before: list[Any], lost: list[Any], u: float
) -> Any:
    """What each kept value may be off by: `e` is the error of the gates, `lost` of the states."""
    if mode == "lstm":
        h, _, i, f, g, o = made
        ei, ef, eg, eo = np.split(e, 4, axis=-1)
        ei, ef, eo = (part / 4 + 8 * u for part in (ei, ef, eo))
        eg = eg + 8 * u
        ec = f * lost[1] + np.abs(before[1]) * ef + i * eg + np.abs(g) * ei
        ec = ec + 8 * u * (np.abs(f * before[1]) + np.abs(i * g))
        return [eo + o * ec + 8 * u * (1 + np.abs(h)), ec, ei, ef, eg, eo]
    if mode == "gru":
        h, _, z, n, hn = made
        er, ez, ehn = np.split(e, 3, axis=-1)
        er, ez = er / 4 + 8 * u, ez / 4 + 8 * u
        en = ehn * 2 + np.abs(hn) * er + 8 * u * (1 + np.abs(hn))
        eh = en * 2 + z * lost[0] + (np.abs(before[0]) + np.abs(n)) * (ez + 8 * u)
        return [eh, er, ez, en, ehn]
    return [e + 8 * u * np.abs(made[0])]


def _reserve(gx: Any, start: Any, w: Any, b: Any, mode: str) -> Expected:
    u, hidden = accumulated(gx.dtype), w.shape[1]
    x, held, kernel, bias = wide(gx), wide(start), wide(w), wide(b)
    states = np.split(held, _STATES[mode], axis=-1)
    lost = [np.zeros_like(s) for s in states]
    values, errors = [], []
    for row in x:
        linear = states[0] @ kernel.T
        size = np.abs(row) + np.abs(states[0]) @ np.abs(kernel).T + np.abs(bias)
        e = lost[0] @ np.abs(kernel).T + 8 * growth(hidden) * u * size
        made = _step(mode, row, linear + bias, states)
        lost_now = _errors(mode, e, made, states, lost, u)
        values.append(np.concatenate(made, axis=-1))
        errors.append(np.concatenate(lost_now, axis=-1))
        states, lost = made[: len(states)], lost_now[: len(states)]
    value = np.stack(values)
    return Expected(value, np.stack(errors) + off(value, gx.dtype))


def _sequence(gx: Any, start: Any, w: Any, b: Any, reserve: Any, mode: str) -> Expected:
    found = _reserve(gx, start, w, b, mode)
    width = start.shape[1]
    return Expected(found.value[..., :width], found.error[..., :width])


def _back(g: Any, start: Any, w: Any, kept: Any, mode: str, sign: float) -> Any:
    """Gradients through time; with `sign` 1 every term counts with its size, for a bound."""
    count, hidden = _STATES[mode], w.shape[1]
    size = np.abs if sign > 0 else (lambda v: v)
    w, steps = size(w), len(kept)

    def sigmoid_slope(y: Any) -> Any:
        return y * (1 + sign * y)

    def tanh_slope(y: Any) -> Any:
        return 1 + sign * y * y

    carried = [np.zeros((g.shape[1], hidden)) for _ in range(2)]
    rows: list[Any] = []
    for t in range(steps - 1, -1, -1):
        parts = np.split(kept[t], kept.shape[2] // hidden, axis=-1)
        before = np.split(kept[t - 1][:, : count * hidden] if t else start, count, axis=-1)
        coming = [size(part) for part in np.split(g[t], count, axis=-1)]
        gh = carried[0] + coming[0]
        if mode == "lstm":
            _, c, i, f, gate, o = parts
            tanh = np.tanh(c)
            dc = carried[1] + coming[1] + gh * o * tanh_slope(tanh)
            made = [dc * size(gate) * sigmoid_slope(i), dc * size(before[1]) * sigmoid_slope(f),
                    dc * i * tanh_slope(gate), gh * size(tanh) * sigmoid_slope(o)]  # fmt: skip
            carried = [np.concatenate(made, axis=-1) @ w, dc * f]
        elif mode == "gru":
            _, r, z, n, hn = parts
            gh = gh + carried[1]
            dn = gh * (1 + sign * z) * tanh_slope(n)
            dz = gh * (size(before[0]) + sign * size(n)) * sigmoid_slope(z)
            made = [dn * size(hn) * sigmoid_slope(r), dz, dn * r, dn]
            carried = [np.concatenate(made[:3], axis=-1) @ w, gh * z]
        else:
            (h,) = parts
            made = [gh * tanh_slope(h) if mode == "tanh" else np.where(h > 0, gh, 0)]
            carried = [made[0] @ w, carried[1]]
        rows.append(np.concatenate(made, axis=-1))
    nothing = np.zeros_like(carried[0])
    last = {"lstm": [*carried, nothing, nothing], "gru": [carried[0] + carried[1], *[nothing] * 3]}
    rows.insert(0, np.concatenate(last.get(mode, carried[:1]), axis=-1))
    return np.stack(rows[::-1])


def _grads(g: Any, gx: Any, start: Any, w: Any, b: Any, reserve: Any, mode: str) -> Expected:
    back, begin, kernel, kept = wide(g), wide(start), wide(w), wide(reserve)
    value = _back(back, begin, kernel, kept, mode, -1.0)
    most = _back(back, begin, kernel, kept, mode, 1.0)
    c = 16 * accumulated(gx.dtype) * (len(gx) + 1) * growth(4 * w.shape[1])
    return Expected(value, c * most + off(value, gx.dtype))


# --- one step, of both parts of its gates --------------------------------------------------------


def _rnn_step(gx: Any, gh: Any, state: Any, mode: str) -> Expected:
    u, x, h, before = accumulated(gx.dtype), wide(gx), wide(gh), wide(state)
    states = [before] * _STATES[mode]  # an lstm's h has its place in the gates alone
    made = _step(mode, x, h, states)
    e, lost = 8 * u * (np.abs(x) + np.abs(h)), [np.zeros_like(before)] * len(states)
    errors = _errors(mode, e, made, states, lost, u)
    value = np.concatenate(made[: len(states)])
    return Expected(value, np.concatenate(errors[: len(states)]) + off(value, gx.dtype))


def _rnn_step_grads(g: Any, gx: Any, gh: Any, state: Any, mode: str) -> Expected:
    """As the last of many steps, with a weight of zeros: nothing comes back through it."""
    x, h, before = wide(gx), wide(gh), wide(state)
    states, width = [before] * _STATES[mode], before.shape[1]
    kept = np.concatenate(_step(mode, x, h, states), axis=-1)[None]
    coming = np.concatenate(np.split(wide(g), len(states)), axis=-1)[None]
    start, weight = np.concatenate(states, axis=-1), np.zeros((x.shape[1], width))

    def flat(sign: float) -> Any:
        gates, last = _back(coming, start, weight, kept, mode, sign)
        dr, dz, inner, outer = np.split(gates, 4, axis=-1)
        parts = [gates, last[:, width : 2 * width]]
        if mode == "gru":
            parts = [*(np.concatenate((dr, dz, d), axis=-1) for d in (outer, inner))]
            parts.append(last[:, :width])
        return np.concatenate([part.reshape(-1) for part in parts])

    value = flat(-1.0)
    return Expected(value, 64 * accumulated(gx.dtype) * flat(1.0) + off(value, gx.dtype))


WAYS: dict[str, Way] = {
    "rnn_reserve": _reserve,
    "rnn_sequence": _sequence,
    "rnn_grads": _grads,
    "rnn_step": _rnn_step,
    "rnn_step_grads": _rnn_step_grads,
}
