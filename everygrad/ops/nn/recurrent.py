"""Recurrent layers over a whole sequence, each as one op.

    rnn_reserve   all states and gates of all steps: (steps, batch, kept * hidden)
    rnn_sequence  the states alone, (steps, batch, states * hidden), with a derivative
    rnn_grads     what comes back through time: gradients of the gates, and of the start

At each step gates = gx[t] + h @ w^T + b, and `mode` says what becomes of them:

    lstm  gates i, f, g, o; c = sigmoid(f) c + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c)
    gru   gates r, z, n; the hidden part of n is scaled by sigmoid(r), h = (1 - z) n + z h
    tanh  h = tanh(gates)
    relu  h = relu(gates)

gx (steps, batch, gates * hidden) is the input's part of all gates, `start` (batch, states * hidden)
the states before the first step: h, and c for an lstm. The reserve spares the derivative from
computing gates again where a device has kernels; definitions do not read it, so that higher
derivatives are those of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply, operands
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import relu, sigmoid, tanh
from everygrad.ops.linalg.matmul import linear, matmul
from everygrad.ops.python.creation import zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel, check_kind
from everygrad.ops.record.spec import Sample, refuse, register, sample
from everygrad.ops.record.splits import at_axes
from everygrad.ops.shape.joining import concat, stack
from everygrad.ops.shape.movement import slice_axis


class RecurrentMode(NamedTuple):
    """How many of each a mode has: gates, states, rows of its reserve, gradients of gates."""

    gates: int
    states: int
    kept: int
    slopes: int


MODES = {
    "lstm": RecurrentMode(4, 2, 6, 4),  # kept: h, c, i, f, g, o
    "gru": RecurrentMode(3, 1, 5, 4),  # kept: h, r, z, n, and the hidden part of n
    "tanh": RecurrentMode(1, 1, 1, 1),
    "relu": RecurrentMode(1, 1, 1, 1),
}

# --- one step ------------------------------------------------------------------------------------


def _parts(x: Tensor, count: int) -> list[Tensor]:
    width = x.shape[-1] // count
    return [slice_axis(x, x.ndim - 1, k * width, width) for k in range(count)]


def lstm_step(gates: Tensor, c: Tensor) -> list[Tensor]:
    """h, c and the gates after one step."""
    i, f, g, o = _parts(gates, 4)
    i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    c = f * c + i * g
    return [o * tanh(c), c, i, f, g, o]


def gru_step(gx: Tensor, gh: Tensor, h: Tensor) -> list[Tensor]:
    """h and the gates after one step, and the hidden part of the last gate."""
    (xr, xz, xn), (hr, hz, hn) = _parts(gx, 3), _parts(gh, 3)
    r, z = sigmoid(xr + hr), sigmoid(xz + hz)
    n = tanh(xn + r * hn)
    return [n + z * (h - n), r, z, n, hn]


def recurrent_step(mode: str, gx: Tensor, gh: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
    """What one step keeps, its states first."""
    if mode == "lstm":
        return lstm_step(gx + gh, states[1])
    if mode == "gru":
        return gru_step(gx, gh, states[0])
    return [(tanh if mode == "tanh" else relu)(gx + gh)]


# --- portable definitions ------------------------------------------------------------------------


def _all_steps(inputs: Sequence[Tensor], mode: str) -> list[list[Tensor]]:
    gx, start, w, b = inputs
    states = _parts(start, MODES[mode].states)
    found = []
    for t in range(gx.shape[0]):
        found.append(recurrent_step(mode, gx[t], linear(states[0], w) + b, states))
        states = found[-1][: len(states)]
    return found


def _stacked(found: list[list[Tensor]], rows: int, dtype: Any) -> Tensor:
    return stack([concat(step[:rows], axis=-1) for step in found], axis=0).astype(dtype)


def _wide(*inputs: Tensor) -> list[Tensor]:
    """Half floats as float32: a state is added to at every step."""
    return [x.astype(dtypes.float32) if x.dtype.bits <= 16 else x for x in inputs]


def _reserve_portable(gx: Tensor, start: Tensor, w: Tensor, b: Tensor, *, mode: str) -> Tensor:
    return _stacked(_all_steps(_wide(gx, start, w, b), mode), MODES[mode].kept, gx.dtype)


def _states_portable(
    gx: Tensor, start: Tensor, w: Tensor, b: Tensor, reserve: Tensor, *, mode: str
) -> Tensor:
    return _stacked(_all_steps(_wide(gx, start, w, b), mode), MODES[mode].states, gx.dtype)


def lstm_back(
    gh: Tensor, gc: Tensor, step: list[Tensor], c_before: Tensor
) -> tuple[list[Tensor], Tensor]:
    """The gradients of the gates, and of the cell state before the step."""
    _, c, i, f, g, o = step
    t = tanh(c)
    dc = gc + gh * o * (1 - t * t)
    gates = [
        dc * g * (i * (1 - i)),
        dc * c_before * (f * (1 - f)),
        dc * i * (1 - g * g),
        gh * t * (o * (1 - o)),
    ]
    return gates, dc * f


def gru_back(gh: Tensor, step: list[Tensor], h_before: Tensor) -> tuple[list[Tensor], Tensor]:
    """The gradients of the gates' hidden parts, then that of the last one's other part; and of h
    directly."""
    _, r, z, n, hn = step
    dn = gh * (1 - z) * (1 - n * n)
    dz = gh * (h_before - n) * (z * (1 - z))
    return [dn * hn * (r * (1 - r)), dz, dn * r, dn], gh * z


def _grads_portable(
    g: Tensor,
    gx: Tensor,
    start: Tensor,
    w: Tensor,
    b: Tensor,
    reserve: Tensor,
    *,
    mode: str,
) -> Tensor:
    dtype = gx.dtype
    g, gx, start, w, b = _wide(g, gx, start, w, b)
    found = _all_steps((gx, start, w, b), mode)
    count, hidden_size = MODES[mode].states, w.shape[1]
    nothing = zeros((gx.shape[1], hidden_size), gx.dtype, gx.device)
    carried = [nothing] * count
    rows: list[Tensor] = []
    for t in range(len(found) - 1, -1, -1):
        before = found[t - 1][:count] if t else _parts(start, count)
        coming = _parts(g[t], count)
        gh = carried[0] + coming[0]
        direct: Tensor | None = None
        if mode == "lstm":
            gates, gc = lstm_back(gh, carried[1] + coming[1], found[t], before[1])
            hidden = concat(gates, axis=-1)
        elif mode == "gru":
            gates, direct = gru_back(gh, found[t], before[0])
            hidden = concat(gates[:3], axis=-1)
        else:
            h = found[t][0]
            gates = [gh * (1 - h * h) if mode == "tanh" else where(h > 0, gh, 0.0)]
            hidden = gates[0]
        back = matmul(hidden, w)
        carried = [back if direct is None else back + direct]
        if mode == "lstm":
            carried.append(gc)
        rows.append(concat(gates, axis=-1))
    last = [*carried, *[nothing] * (MODES[mode].slopes - count)]
    return stack([*rows[::-1], concat(last, axis=-1)], axis=0).astype(dtype)


# --- records -------------------------------------------------------------------------------------


class _RnnSequence(Kernel):
    """The derivative: back through time by one op, then one product for the weight."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        out, gx, start, w, b, reserve = self.restore(node, create_graph)
        mode = node.params["mode"]
        steps, hidden = gx.shape[0], w.shape[1]
        found = apply(RNN_GRADS, g, gx, start, w, b, reserve, mode=mode)
        slopes, last = slice_axis(found, 0, 0, steps), found[steps]
        d_gx = d_gh = slopes
        if mode == "gru":
            d_gh = slice_axis(slopes, 2, 0, 3 * hidden)
            dn = slice_axis(slopes, 2, 3 * hidden, hidden)
            d_gx = concat([slice_axis(slopes, 2, 0, 2 * hidden), dn], axis=2)
        wanted = [parent is not None for parent in node.parents]
        results: list[Tensor | None] = [d_gx if wanted[0] else None]
        results.append(slice_axis(last, 1, 0, start.shape[1]) if wanted[1] else None)
        first = slice_axis(start, 1, 0, hidden).expand_dims(0)
        before = concat([first, slice_axis(out[:-1], 2, 0, hidden)], axis=0)
        flat = d_gh.reshape(-1, d_gh.shape[2])
        # this way round the wide matrix is read along its rows: a third faster on CPUs
        rows = before.reshape(-1, hidden)
        results.append(matmul(rows.mT, flat).mT if wanted[2] else None)
        results += [d_gh.sum(axis=(0, 1)) if wanted[3] else None, None]
        return results


def _rows_of(mode: str, field: str, gx: Any, w: Any) -> tuple[Shape, Any]:
    steps, n = gx.shape[:2]
    return (steps, n, getattr(MODES[mode], field) * w.shape[1]), gx.dtype


def _flops(shape: Shape, inputs: Sequence[Shape], params: dict[str, Any]) -> int:
    """Of the products; the gates' own are few."""
    steps, n, gates = inputs[0]
    return 2 * steps * n * gates * (gates // MODES[params["mode"]].gates)


RNN_RESERVE: Kernel = Kernel(
    "rnn_reserve",
    _reserve_portable,
    ("gx", "start", "w", "b"),
    result=lambda gx, start, w, b, mode: _rows_of(mode, "kept", gx, w),
    flops=_flops,
    constants={"modes": MODES},
    splits=at_axes(((1, 0, None, None), 1)),
)
RNN_SEQUENCE: _RnnSequence = _RnnSequence(
    "rnn_sequence",
    _states_portable,
    ("gx", "start", "w", "b", "reserve"),
    (*(lambda g, out, gx, start, w, b, reserve: g,) * 4, None),
    result=lambda gx, start, w, b, reserve, mode: _rows_of(mode, "states", gx, w),
    splits=at_axes(((1, 0, None, None, 1), 1)),
)
RNN_GRADS: Kernel = Kernel(
    "rnn_grads",
    _grads_portable,
    ("g", "gx", "start", "w", "b", "reserve"),
    result=lambda g, gx, start, w, b, reserve, mode: (
        (gx.shape[0] + 1, gx.shape[1], MODES[mode].slopes * w.shape[1]),
        gx.dtype,
    ),
    flops=lambda shape, inputs, params: _flops(shape, inputs[1:], params),
    splits=at_axes(((1, 1, 0, None, None, 1), 1)),
)


# --- functions -----------------------------------------------------------------------------------


def _checked(
    gx: Tensor, start: Tensor, w: Tensor, b: Tensor | None, mode: str
) -> tuple[Tensor, ...]:
    if mode not in MODES:
        raise ArgumentError(f"rnn_sequence: mode must be one of {', '.join(MODES)}, got {mode!r}")
    if b is None:
        b = zeros(w.shape[:1], w.dtype, w.device)
    gx, start, w, b = operands("rnn_sequence", gx, start, w, b, floating=True)
    check_kind("rnn_sequence", gx.dtype, "real float")
    gates, states, *_ = MODES[mode]
    hidden = w.shape[-1]
    fits = w.ndim == 2 and gx.ndim == 3 and w.shape[0] == gates * hidden == gx.shape[2]
    if not fits or start.shape != (gx.shape[1], states * hidden) or b.shape != w.shape[:1]:
        raise ShapeError(
            f"rnn_sequence: gx {gx.shape}, start {start.shape}, w {w.shape}, b {b.shape} must be "
            f"(steps, batch, {gates} * hidden), (batch, {states} * hidden), "
            f"({gates} * hidden, hidden) and ({gates} * hidden,) for mode {mode!r}"
        )
    if not gx.shape[0]:
        raise ShapeError(f"rnn_sequence: there are no steps in gx {gx.shape}")
    return gx, start, w, b


def rnn_sequence(
    gx: Tensor, start: Tensor, w: Tensor, b: Tensor | None = None, mode: str = "lstm"
) -> Tensor:
    """(steps, batch, states * hidden): h of every step, and for an lstm c of every step."""
    return rnn_sequence_and_reserve(gx, start, w, b, mode)[0]


def rnn_sequence_and_reserve(
    gx: Tensor,
    start: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    mode: str = "lstm",
    reserve: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`rnn_sequence`, and what its derivative reads again; `reserve`: that of an earlier call."""
    given = _checked(gx, start, w, b, mode)
    if reserve is None:
        with no_grad():
            reserve = apply(RNN_RESERVE, *given, mode=mode)
    return apply(RNN_SEQUENCE, *given, reserve, mode=mode), reserve


def rnn_reserve(
    gx: Tensor, start: Tensor, w: Tensor, b: Tensor | None = None, mode: str = "lstm"
) -> Tensor:
    """All that a step makes, of every step: (steps, batch, kept * hidden)."""
    return apply(RNN_RESERVE, *_checked(gx, start, w, b, mode), mode=mode)


def rnn_grads(
    g: Tensor, gx: Tensor, start: Tensor, w: Tensor, b: Tensor, mode: str = "lstm"
) -> Tensor:
    """(steps + 1, batch, slopes * hidden): of the gates at each step; last, those of `start`."""
    given = _checked(gx, start, w, b, mode)
    with no_grad():
        reserve = apply(RNN_RESERVE, *given, mode=mode)
    return apply(RNN_GRADS, g.astype(given[0].dtype), *given, reserve, mode=mode)


def _inputs(mode: str, steps: int, n: int, hidden: int) -> tuple[Any, ...]:
    gates, states, *_ = MODES[mode]
    return (
        s.real(steps, n, gates * hidden),
        s.real(n, states * hidden, seed=1),
        s.real(gates * hidden, hidden, seed=2) * 0.5,
        s.real(gates * hidden, seed=3) * 0.5,
    )


def _samples() -> Iterator[Sample]:
    yield sample(*_inputs("lstm", 3, 2, 2))
    yield sample(*_inputs("gru", 2, 2, 3), mode="gru")
    yield sample(*_inputs("tanh", 2, 1, 3), mode="tanh")


def _grad_samples() -> Iterator[Sample]:
    yield sample(s.real(2, 2, 4, seed=4), *_inputs("lstm", 2, 2, 2))
    yield sample(s.real(2, 2, 3, seed=4), *_inputs("gru", 2, 2, 3), mode="gru")
    yield sample(s.real(2, 1, 2, seed=4), *_inputs("tanh", 2, 1, 2), mode="tanh")


_GX, _START, _W, _B = _inputs("lstm", 2, 2, 2)
register(
    RNN_SEQUENCE,
    rnn_sequence,
    namespace="internal",
    kinds="real float",
    torch=None,
    reference="tests.support.references.recurrent:rnn_sequence",
    samples=_samples,
    refuses=(
        refuse(ArgumentError, "rnn_sequence: mode must be", _GX, _START, _W, _B, mode="rnn"),
        refuse(ShapeError, "rnn_sequence: gx .* must be", _GX, _START[:, :2], _W, _B),
        refuse(ShapeError, "rnn_sequence: there are no steps", _GX[:0], _START, _W, _B),
    ),
)
register(
    RNN_RESERVE,
    rnn_reserve,
    namespace="internal",
    kinds="real float",
    torch=None,
    reference="tests.support.references.recurrent:rnn_reserve",
    samples=_samples,
)
register(
    RNN_GRADS,
    rnn_grads,
    namespace="internal",
    kinds="real float",
    torch=None,
    reference="tests.support.references.recurrent:rnn_grads",
    samples=_grad_samples,
)
