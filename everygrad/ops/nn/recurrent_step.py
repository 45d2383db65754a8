"""One step of an LSTM or GRU cell as an op, for devices that have a kernel for it:

rnn_step        the states after the step, one below the other: (states * batch, hidden)
rnn_step_grads  the derivatives of <g, rnn_step> by the gates and the state, flat

Both parts of the gates are given, (batch, gates * hidden) each; the state is c for an lstm, whose h
has its place in the gates alone, and h for a gru. `ops.nn.recurrent` says what becomes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.amp.policy import policy
from everygrad.core.context import intercepted, tracing
from everygrad.core.shapes import size_of
from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import CPU, apply
from everygrad.ops.nn.recurrent import (
    MODES,
    gru_back,
    gru_step,
    lstm_back,
    lstm_step,
    recurrent_step,
)
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import register, sample
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import SLICE, slice_axis


def _portable(gx: Tensor, gh: Tensor, state: Tensor, mode: str) -> Tensor:
    if mode == "lstm":
        return concat(lstm_step(gx + gh, state)[:2], axis=0)
    return gru_step(gx, gh, state)[0]


def _parts(g: Tensor, gx: Tensor, gh: Tensor, state: Tensor, mode: str) -> list[Tensor]:
    """The derivatives by the gates, those of both parts where they differ, and by the state."""
    if mode == "lstm":
        n = state.shape[0]
        found = lstm_step(gx + gh, state)
        gates, by_c = lstm_back(slice_axis(g, 0, 0, n), slice_axis(g, 0, n, n), found, state)
        return [concat(gates, axis=-1), by_c]
    (dr, dz, inner, dn), by_h = gru_back(g, gru_step(gx, gh, state), state)
    return [concat([dr, dz, dn], axis=-1), concat([dr, dz, inner], axis=-1), by_h]


def _grads_portable(g: Tensor, gx: Tensor, gh: Tensor, state: Tensor, mode: str) -> Tensor:
    return concat(_parts(g, gx, gh, state, mode), axis=None)


class _RnnStep(Kernel):
    """All derivatives come from one op; those of derivatives from their definition."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        mode = node.params["mode"]
        _, gx, gh, state = self.restore(node, create_graph)
        if create_graph or intercepted() or not type(g._data) is np.ndarray is type(gx._data):
            found = _parts(g, gx, gh, state, mode)
        else:
            flat = apply(RNN_STEP_GRADS, g, gx, gh, state, mode=mode)._data
            found, at = [], 0
            for shape in (*(gx.shape, gh.shape)[: 1 + (mode == "gru")], state.shape):
                end = at + size_of(shape)
                found.append(wrap(flat[at:end].reshape(shape)))
                at = end
        if mode == "lstm":  # the sum of both parts
            found.insert(0, found[0])
        pairs = zip(node.parents, found, strict=True)
        return [None if parent is None else d for parent, d in pairs]


RNN_STEP: Kernel = _RnnStep(
    "rnn_step",
    _portable,
    ("gx", "gh", "state"),
    (lambda g, gx, gh, state: g,) * 3,
)
RNN_STEP_GRADS: Kernel = Kernel("rnn_step_grads", _grads_portable, ("g", "gx", "gh", "state"))


def _serves(mode: str, gx: Tensor, gh: Tensor, state: Tensor) -> bool:
    """Whether a step is computed by these ops: eagerly, where a kernel takes them. Inside compiled
    functions and transformations the ops of the definition join those around them."""
    if mode not in ("lstm", "gru") or "rnn_step" not in CPU.kernels:
        return False
    if intercepted() and (tracing.get() is not None or policy() is not None):
        return False
    given = (gx._data, gh._data, state._data)
    if any(type(a) is not np.ndarray or a.dtype is not given[0].dtype for a in given):
        return False
    fits = gx.shape == gh.shape == (state.shape[0], MODES[mode].gates * state.shape[-1])
    return fits and given[0].dtype.kind == "f" and given[0].itemsize >= 4


def cell_step(mode: str, gx: Tensor, gh: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
    """The states of a cell after one step, from both parts of its gates and those before."""
    state = states[-1]
    if not _serves(mode, gx, gh, state):
        return recurrent_step(mode, gx, gh, states)[: MODES[mode].states]
    out = apply(RNN_STEP, gx, gh, state, mode=mode)
    if mode == "gru":
        return [out]
    n, hidden = state.shape  # views of what nobody else holds
    return [apply(SLICE, out, slices=((at, n, 1), (0, hidden, 1))) for at in (0, n)]


def _inputs(mode: str) -> tuple[Any, ...]:
    gates = MODES[mode].gates
    return s.real(3, gates * 2), s.real(3, gates * 2, seed=1), s.real(3, 2, seed=2)


register(
    RNN_STEP,
    lambda gx, gh, state, mode: apply(RNN_STEP, gx, gh, state, mode=mode),
    kinds="real float",
    reference="tests.support.references.recurrent:rnn_step",
    namespace="internal",
    samples=lambda: iter([sample(*_inputs(mode), mode) for mode in ("lstm", "gru")]),
)
register(
    RNN_STEP_GRADS,
    lambda g, gx, gh, state, mode: apply(RNN_STEP_GRADS, g, gx, gh, state, mode=mode),
    kinds="real float",
    reference="tests.support.references.recurrent:rnn_step_grads",
    namespace="internal",
    samples=lambda: iter(
        [
            sample(s.real(6, 2, seed=3), *_inputs("lstm"), "lstm"),
            sample(s.real(3, 2, seed=3), *_inputs("gru"), "gru"),
        ]
    ),
)
