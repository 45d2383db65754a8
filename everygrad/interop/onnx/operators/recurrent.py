"""RNN, LSTM and GRU: by the op for whole sequences where attributes allow, step by step else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.onnx.operators.registry import MICROSOFT, Call, onnx_op
from everygrad.ops.nn.recurrent import rnn_sequence

_DEFAULTS = {
    "RNN": ["Tanh"],
    "GRU": ["Sigmoid", "Tanh"],
    "LSTM": ["Sigmoid", "Tanh", "Tanh"],
}
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# where each gate of our op lies among ONNX's: z r h there, r z n here; i o f c, and i f g o
_ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}
_ALPHA = {"Affine": 1.0, "LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "HardSigmoid": 0.2, "Elu": 1.0}

Activation = Callable[[Tensor], Tensor]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """One of ONNX's activations, which are told by names of any case."""
    a = _ALPHA.get(name, 1.0) if alpha is None else alpha
    b = ({"HardSigmoid": 0.5, "Affine": 0.0}.get(name, 1.0)) if beta is None else beta
    known: dict[str, Activation] = {
        "affine": lambda x: a * x + b,
        "elu": lambda x: eg.elu(x, a),
        "hardsigmoid": lambda x: eg.clip(a * x + b, 0.0, 1.0),
        "leakyrelu": lambda x: eg.leaky_relu(x, a),
        "relu": eg.relu,
        "scaledtanh": lambda x: a * eg.tanh(b * x),
        "sigmoid": eg.sigmoid,
        "softplus": eg.softplus,
        "softsign": eg.softsign,
        "tanh": eg.tanh,
        "thresholdedrelu": lambda x: eg.where(x > a, x, eg.zeros_like(x)),
    }
    if name.lower() not in known:
        raise ArgumentError(f"activation {name!r} is not one of ONNX's: {', '.join(known)}")
    return known[name.lower()]


class Direction(NamedTuple):
    """One direction's weights: for the input, the state, their biases, the peepholes."""

    w: Tensor
    r: Tensor
    wb: Tensor
    rb: Tensor
    p: Tensor | None
    h: Tensor
    c: Tensor | None
    activations: list[Activation]
    plain: bool
    rounds: bool = False  # whether the state is quantised in front of each product


def _reordered(v: Tensor, op: str, hidden: int) -> Tensor:
    return eg.concat([v[k * hidden : (k + 1) * hidden] for k in _ORDER[op]], axis=0)


def _fast(call: Call, x: Tensor, d: Direction) -> tuple[Tensor, Tensor, Tensor | None]:
    """All steps by one op."""
    hidden = d.r.shape[1]
    mode = {"RNN": "tanh", "GRU": "gru", "LSTM": "lstm"}[call.op]
    if call.op == "RNN" and call("activations", ["Tanh"])[0].lower() == "relu":
        mode = "relu"
    w, r, wb, rb = (_reordered(v, call.op, hidden) for v in (d.w, d.r, d.wb, d.rb))
    gx = eg.matmul(x, w.mT) + wb
    start = d.h if d.c is None else eg.concat([d.h, d.c], axis=-1)
    found = rnn_sequence(gx, start, r, rb, mode)
    y = found[..., :hidden]
    return y, y[-1], found[-1, :, hidden:] if d.c is not None else None


def _rnn_step(call: Call, gx: Tensor, d: Direction, h: Tensor, c: Any) -> tuple[Tensor, Any]:
    return d.activations[0](_clipped(call, gx + eg.matmul(h, d.r.mT) + d.rb)), None


def _clipped(call: Call, x: Tensor) -> Tensor:
    limit = call("clip", 0.0)
    return eg.clip(x, -limit, limit) if limit else x


def _gru_step(call: Call, gx: Tensor, d: Direction, h: Tensor, c: Any) -> tuple[Tensor, Any]:
    n = h.shape[-1]
    gate, new = d.activations
    gh = eg.matmul(h, d.r[: 2 * n].mT) + d.rb[: 2 * n]
    z = gate(_clipped(call, gx[:, :n] + gh[:, :n]))
    r = gate(_clipped(call, gx[:, n : 2 * n] + gh[:, n:]))
    rh, rb = d.r[2 * n :].mT, d.rb[2 * n :]
    if call("linear_before_reset", 0):
        inner = r * (eg.matmul(h, rh) + rb)
    else:
        inner = eg.matmul(r * h, rh) + rb
    found = new(_clipped(call, gx[:, 2 * n :] + inner))
    return (1 - z) * found + z * h, None


def _lstm_step(call: Call, gx: Tensor, d: Direction, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    n = h.shape[-1]
    seen = quantised_and_back(h) if d.rounds else h
    gates = gx + eg.matmul(seen, d.r.mT) + d.rb
    i, o, f, g = (gates[:, k * n : (k + 1) * n] for k in range(4))
    gate, cell, out = d.activations
    if d.p is not None:
        i, f = i + d.p[:n] * c, f + d.p[2 * n :] * c
    i = gate(_clipped(call, i))
    f = 1 - i if call("input_forget", 0) else gate(_clipped(call, f))
    c = f * c + i * cell(_clipped(call, g))
    if d.p is not None:
        o = o + d.p[n : 2 * n] * c
    return gate(_clipped(call, o)) * out(c), c


_STEPS: dict[str, Callable[..., tuple[Tensor, Any]]] = {
    "RNN": _rnn_step,
    "GRU": _gru_step,
    "LSTM": _lstm_step,
}


def _slow(
    call: Call, x: Tensor, d: Direction, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Step by step; an example that has ended keeps its state, and its outputs are 0."""
    step = _STEPS[call.op]
    gx = eg.matmul(x, d.w.mT) + d.wb
    h, c = d.h, d.c
    rows = []
    for t in range(x.shape[0]):
        new_h, new_c = step(call, gx[t], d, h, c)
        if lengths is None:
            h, c = new_h, new_c
            rows.append(h)
            continue
        on = (lengths > t).expand_dims(1)
        h = eg.where(on, new_h, h)
        c = None if c is None else eg.where(on, new_c, c)
        rows.append(eg.where(on, new_h, eg.zeros_like(new_h)))
    return eg.stack(rows, axis=0), h, c


def _reversed(x: Tensor, lengths: Any) -> Tensor:
    """The steps backwards, each example's own."""
    if lengths is None:
        return eg.flip(x, 0)
    if isinstance(lengths, Tensor):
        ahead = eg.arange(x.shape[0], dtype=lengths.dtype, device=x.device).expand_dims(1)
        back = eg.where(ahead < lengths, lengths - 1 - ahead, ahead)
        each = eg.arange(x.shape[1], dtype=lengths.dtype, device=x.device)
        return x[back, each.broadcast_to(back.shape)]
    steps = np.arange(x.shape[0])[:, None]
    index = np.where(steps < lengths, lengths - 1 - steps, steps)
    batch = np.broadcast_to(np.arange(x.shape[1]), index.shape)
    return x[eg.asarray(index, device=x.device), eg.asarray(batch, device=x.device)]


@onnx_op("RNN", "GRU", "LSTM", either=(4,))
def _recurrent(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Any = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    p: Tensor | None = None,
) -> Any:
    return _layer(call, x, w, r, b, lengths, h, c, p, False)


@onnx_op("DynamicQuantizeLSTM", domain=MICROSOFT, either=(4,))
def _quantised_lstm(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Any,
    h: Tensor | None,
    c: Tensor | None,
    p: Tensor | None,
    w_scale: Tensor,
    w_zero: Tensor,
    r_scale: Tensor,
    r_zero: Tensor,
) -> Any:
    """Weights (directions, inputs, gates) are 8-bit integers; what they are multiplied with is
    quantised as it comes: all inputs at once, the state at each step."""
    wide = _dequantised(w, w_scale, w_zero)
    call.op = "LSTM"
    seen = quantised_and_back(x)
    return _layer(call, seen, wide, _dequantised(r, r_scale, r_zero), b, lengths, h, c, p, True)


def _dequantised(whole: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Weights as numbers, a row for each gate; a scale is of a direction, or of each gate."""
    shape = (whole.shape[0], 1, -1)
    wide = whole.astype(eg.float32) - zero.reshape(shape).astype(eg.float32)
    return (wide * scale.reshape(shape)).mT


def quantised_and_back(x: Tensor) -> Tensor:
    """x rounded to the 256 numbers between its smallest and largest, 0 among them."""
    low, high = eg.minimum(eg.amin(x), 0.0), eg.maximum(eg.amax(x), 0.0)
    scale = (high - low) / 255.0
    scale = eg.where(scale == 0, eg.ones_like(scale), scale)
    zero = eg.round(-low / scale)
    return (eg.clip(eg.round(x / scale) + zero, 0, 255) - zero) * scale


def _layer(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Any,
    h: Tensor | None,
    c: Tensor | None,
    p: Tensor | None,
    rounds: bool,
) -> Any:
    batch_first = bool(call("layout", 0))
    if batch_first:
        x = eg.swapaxes(x, 0, 1)
        h, c = (None if v is None else eg.swapaxes(v, 0, 1) for v in (h, c))
    steps, batch, _ = x.shape
    hidden = r.shape[2]
    if isinstance(lengths, np.ndarray) and (lengths == steps).all():
        lengths = None
    direction = call("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    ys, hs, cs = [], [], []
    for k in range(count):
        d = _direction(call, k, w, r, b, h, c, p, (batch, hidden), x)
        if rounds:
            d = d._replace(plain=False, rounds=True)
        backwards = direction == "reverse" or k == 1
        seen = _reversed(x, lengths) if backwards else x
        if d.plain and lengths is None and steps:
            y, last, cell = _fast(call, seen, d)
        else:
            known = None if lengths is None else eg.asarray(lengths, device=x.device)
            y, last, cell = _slow(call, seen, d, known)
        ys.append(_reversed(y, lengths) if backwards else y)
        hs.append(last)
        cs.append(cell)
    y, last = eg.stack(ys, axis=1), eg.stack(hs, axis=0)
    cells = eg.stack([v for v in cs if v is not None], axis=0) if call.op == "LSTM" else None
    if batch_first:
        y, last = eg.permute_dims(y, (2, 0, 1, 3)), eg.swapaxes(last, 0, 1)
        cells = None if cells is None else eg.swapaxes(cells, 0, 1)
    return (y, last) if cells is None else (y, last, cells)


def _direction(
    call: Call, k: int, w: Any, r: Any, b: Any, h: Any, c: Any, p: Any, shape: Any, x: Tensor
) -> Direction:
    width = _GATES[call.op] * shape[1]
    nothing = eg.zeros((width,), x.dtype, x.device)
    wb, rb = (nothing, nothing) if b is None else (b[k, :width], b[k, width:])
    zero = eg.zeros(shape, x.dtype, x.device)
    names = _DEFAULTS[call.op]
    per = len(names)
    given = call("activations", names * (k + 1))[k * per : (k + 1) * per]
    alphas, betas = (_each(call, v, k * per, per) for v in ("activation_alpha", "activation_beta"))
    plain = [n.lower() for n in given] == [n.lower() for n in names] or (
        call.op == "RNN" and given[0].lower() == "relu" and k == 0 and w.shape[0] == 1
    )
    plain = plain and not call("clip", 0.0) and p is None and not call("input_forget", 0)
    plain = plain and (call.op != "GRU" or bool(call("linear_before_reset", 0)))
    return Direction(
        w[k],
        r[k],
        wb,
        rb,
        None if p is None else p[k],
        zero if h is None else h[k],
        (zero if c is None else c[k]) if call.op == "LSTM" else None,
        [_activation(n, a, be) for n, a, be in zip(given, alphas, betas, strict=True)],
        plain,
    )


def _each(call: Call, attribute: str, first: int, count: int) -> list[float | None]:
    given: list[float | None] = list(call(attribute, []))
    return [*given, *[None] * (first + count)][first : first + count]
