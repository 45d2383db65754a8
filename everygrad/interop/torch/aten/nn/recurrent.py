"""Recurrent layers by our own ops, which run all steps as one kernel instead of node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.derivatives import pulled
from everygrad.interop.torch.aten.registry import Result, aten
from everygrad.nn.functional import dropout, linear
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.nn.recurrent import (
    MODES,
    lstm_step,
    rnn_sequence,
    rnn_sequence_and_reserve,
)
from everygrad.ops.python.creation import zeros
from everygrad.ops.shape.joining import concat, stack

Maybe = Tensor | None


def _direction(
    mode: str,
    x: Tensor,
    start: Sequence[Tensor],
    weights: Sequence[Tensor],
    back: bool,
    kept: Maybe = None,
) -> tuple[Tensor, list[Tensor], Maybe]:
    """One layer one way: h at all steps, the states after the last, and what its derivative reads
    again, where there is such a thing; `kept`: that of an earlier call.

    The weights are by input and by state, then perhaps both biases, then perhaps a projection."""
    w_in, w_state, *more = weights
    biases = more[:2] if len(more) >= 2 else []
    x = x.flip(axis=0) if back else x
    gx = matmul(x, w_in.mT)
    if len(more) % 2:
        h, states = _projected(gx, start, w_state, biases, more[-1])
        kept = None
    else:
        bias: Maybe = None
        if biases and mode == "gru":
            gx, bias = gx + biases[0], biases[1]
        elif biases:
            bias = biases[0] + biases[1]
        begin = start[0] if len(start) == 1 else concat(start, axis=1)
        found, kept = rnn_sequence_and_reserve(gx, begin, w_state, bias, mode, kept)
        size = w_state.shape[1]
        h = found[..., :size]
        states = [found[-1, :, k * size : (k + 1) * size] for k in range(MODES[mode].states)]
    return (h.flip(axis=0) if back else h), states, kept


def _projected(
    gx: Tensor, start: Sequence[Tensor], w_state: Tensor, biases: Sequence[Tensor], w_out: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """An LSTM whose hidden state has another width than its cells: step by step."""
    gx = gx + (biases[0] + biases[1]) if biases else gx
    h, c = start
    steps = []
    for t in range(gx.shape[0]):
        inner, c, *_ = lstm_step(gx[t] + linear(h, w_state), c)
        h = linear(inner, w_out)
        steps.append(h)
    return stack(steps, axis=0), [h, c]


def recurrent_layers(
    mode: str,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout_p: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    kept: Sequence[Tensor] = (),
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The last layer's h at all steps, each state of all layers after the last step, and what the
    derivatives of all layers read again; `kept`: that of an earlier call."""
    batched = x.ndim == 3
    if not batched:
        x, states = x.expand_dims(1), [s.expand_dims(1) for s in states]
    elif batch_first:
        x = x.swapaxes(0, 1)
    ways = 2 if bidirectional else 1
    each = len(params) // (num_layers * ways)
    lasts: list[list[Tensor]] = []
    reserves: list[Tensor] = []
    for layer in range(num_layers):
        outs = []
        for way in range(ways):
            at = layer * ways + way
            weights = params[at * each : (at + 1) * each]
            start, known = [s[at] for s in states], kept[at] if kept else None
            out, last, reserve = _direction(mode, x, start, weights, bool(way), known)
            outs.append(out)
            lasts.append(last)
            if reserve is not None:
                reserves.append(reserve)
        x = outs[0] if ways == 1 else concat(outs, axis=2)
        if dropout_p and train and layer < num_layers - 1:
            x = dropout(x, dropout_p)
    finals = [stack([last[k] for last in lasts], axis=0) for k in range(len(states))]
    if not batched:
        return x.squeeze(1), [f.squeeze(1) for f in finals], reserves
    return (x.swapaxes(0, 1) if batch_first else x), finals, reserves


@aten("lstm.input")
def lstm(x: Tensor, hx: Sequence[Tensor], *options: Any) -> tuple[Tensor, ...]:
    out, finals, _ = recurrent_layers("lstm", x, hx, *options)
    return (out, *finals)


def _one_state(mode: str) -> Any:
    def run(x: Tensor, hx: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        out, (last,), _ = recurrent_layers(mode, x, [hx], *options)
        return out, last

    return run


for _name, _mode in {"gru": "gru", "rnn_tanh": "tanh", "rnn_relu": "relu"}.items():
    aten(f"{_name}.input")(_one_state(_mode))


# --- cells ---------------------------------------------------------------------------------------


@aten("lstm_cell.default")
def lstm_cell(
    x: Tensor,
    hx: Sequence[Tensor],
    w_in: Tensor,
    w_state: Tensor,
    b_in: Maybe = None,
    b_state: Maybe = None,
) -> tuple[Tensor, Tensor]:
    gates = linear(x, w_in, b_in) + linear(hx[0], w_state, b_state)
    h, c, *_ = lstm_step(gates, hx[1])
    return h, c


def _cell(mode: str) -> Any:
    def run(
        x: Tensor,
        hx: Tensor,
        w_in: Tensor,
        w_state: Tensor,
        b_in: Maybe = None,
        b_state: Maybe = None,
    ) -> Tensor:
        batched = x.ndim == 2
        rows, start = (x, hx) if batched else (x.expand_dims(0), hx.expand_dims(0))
        gx = linear(rows, w_in, b_in).expand_dims(0)
        h = rnn_sequence(gx, start, w_state, b_state, mode)[0]
        return h if batched else h.squeeze(0)

    return run


for _name, _mode in {"gru": "gru", "rnn_tanh": "tanh", "rnn_relu": "relu"}.items():
    aten(f"{_name}_cell.default")(_cell(_mode))


# --- oneDNN's layer ------------------------------------------------------------------------------

_ONEDNN_MODES = {2: "lstm", 3: "gru"}


def _onednn(
    mode: int, has_biases: bool, reverse: bool, x: Tensor, weights: Sequence[Tensor], *start: Tensor
) -> tuple[Tensor, list[Tensor]]:
    kind = _ONEDNN_MODES[mode]
    shape = (x.shape[1], -1)
    states = [s.reshape(shape) for s in start[: MODES[kind].states]]
    chosen = weights if has_biases else weights[:2]
    h, states, _ = _direction(kind, x, states, chosen, reverse)
    return h, states


@aten("mkldnn_rnn_layer.default", wants_result=True)
def onednn_layer(
    x: Tensor,
    w0: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    hx: Tensor,
    cx: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
    *,
    result: Sequence[Result],
) -> list[Tensor]:
    """One layer one way. The last result is room that oneDNN keeps; our backward needs none."""
    h, states = _onednn(mode, has_biases, reverse, x, (w0, w1, w2, w3), hx, cx)
    last = [s.reshape(hx.shape) for s in states]
    last += [cx] * (2 - len(last))
    return [h, *last, zeros(result[3].shape, result[3].dtype, x.device)]


@aten("mkldnn_rnn_layer_backward.default")
def onednn_layer_backward(
    x: Tensor,
    w0: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    hx: Tensor,
    cx: Tensor,
    output: Tensor,
    hy: Tensor,
    cy: Tensor,
    grad_output: Maybe,
    grad_hy: Maybe,
    grad_cy: Maybe,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    batch_first: bool,
    workspace: Tensor,
) -> list[Tensor]:
    """By the input, the weights and biases, and both states."""

    def flat(x: Tensor, *given: Tensor) -> Tensor:
        h, states = _onednn(mode, has_biases, reverse, x, given[:4], *given[4:])
        return concat([h.reshape(-1), *(s.reshape(-1) for s in states)], axis=0)

    count = MODES[_ONEDNN_MODES[mode]].states
    coming = [(grad_output, output), (grad_hy, hy), (grad_cy, cy)][: count + 1]
    parts = [
        (zeros(like.shape, like.dtype, like.device) if g is None else g).reshape(-1)
        for g, like in coming
    ]
    found = pulled(flat, concat(parts, axis=0), x, w0, w1, w2, w3, hx, cx)
    return list(found)
