"""Losses and recurrences of sequences, and complex numbers in elementwise ops and products."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem
from everygrad.ops.nn.recurrent import MODES, rnn_sequence
from everygrad.ops.nn.recurrent_step import cell_step


def ctc(d: Draw) -> Problem:
    """Lengths of every kind, repeated labels among them."""
    batch, classes = d.size(9), d.between(2, 40)
    longest = d.size(d.pick((3, 12, 40)))
    steps = d.between(2 * longest + 1, 2 * longest + 9)  # every target can be emitted
    dtype, reduction = d.dtype(halves=0.3), d.pick(("none", "sum", "mean"))
    rng = d._values
    targets = rng.integers(1, d.pick((classes, 2)), (batch, longest))
    lengths = rng.integers(1, longest + 1, batch)
    times = rng.integers(2 * longest + 1, steps + 1, batch)
    x = d.floats((steps, batch, classes), dtype, -2, 2)
    given = [d.given(a, "int64", False, False) for a in (targets, times, lengths)]

    def ours(x: eg.Tensor, t: eg.Tensor, i: eg.Tensor, n: eg.Tensor) -> eg.Tensor:
        return eg.ctc_loss(eg.log_softmax(x, axis=-1), t, i, n, reduction=reduction)

    def theirs(x: torch.Tensor, t: torch.Tensor, i: torch.Tensor, n: torch.Tensor) -> Any:
        rows = torch.log_softmax(x, -1)
        return torch.nn.functional.ctc_loss(rows, t, i, n, reduction=reduction)

    return Problem((x, *given), ours, theirs, looseness=8.0, floor=1.0, dtype=dtype)


def _kind(dtype: str) -> str:
    return {"float32": "complex64", "float64": "complex128"}[dtype]


def _complex(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.complex(a, b)


BINARY = {"add": torch.add, "multiply": torch.mul, "divide": torch.div, "subtract": torch.sub}
UNARY = {
    "exp": torch.exp,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "conj": torch.conj_physical,
    "tanh": torch.tanh,
}


def complexes(d: Draw) -> Problem:
    """Of two tensors of parts; results as parts."""
    shape, dtype = d.any_shape(), d.dtype(halves=0, wide=0.5)
    first, second = d.pick(tuple(UNARY)), d.pick(tuple(BINARY))
    inputs = [d.floats(shape, dtype, low, 2.0) for low in (0.5, 0.5, 0.5, 0.5)]
    kind = _kind(dtype)

    def ours(a: eg.Tensor, b: eg.Tensor, c: eg.Tensor, e: eg.Tensor) -> Any:
        x, y = a.astype(kind) + b.astype(kind) * 1j, c.astype(kind) + e.astype(kind) * 1j
        out = getattr(eg, first)(getattr(eg, second)(x, y))
        return out if first == "abs" else [eg.real(out), eg.imag(out)]

    def theirs(a: Any, b: Any, c: Any, e: Any) -> Any:
        out = UNARY[first](BINARY[second](_complex(a, b), _complex(c, e)))
        return out if first == "abs" else [out.real, out.imag]

    return Problem(inputs, ours, theirs, floor=1.0, looseness=4.0, dtype=dtype)


def complex_products(d: Draw) -> Problem:
    m, k, n = d.shape(3, 64 * d.elements(1 << 14))
    dtype = d.dtype(halves=0, wide=0.5)
    kind = _kind(dtype)
    inputs = [d.floats(s, dtype, -1, 1) for s in ((m, k), (m, k), (k, n), (k, n))]

    def ours(a: eg.Tensor, b: eg.Tensor, c: eg.Tensor, e: eg.Tensor) -> Any:
        out = (a.astype(kind) + b.astype(kind) * 1j) @ (c.astype(kind) + e.astype(kind) * 1j)
        return [eg.real(out), eg.imag(out)]

    def theirs(a: Any, b: Any, c: Any, e: Any) -> Any:
        out = _complex(a, b) @ _complex(c, e)
        return [out.real, out.imag]

    return Problem(inputs, ours, theirs, floor=float(np.sqrt(k)), dtype=dtype)


def _stepped(mode: str, x: Any, gates: Any, states: Any) -> Any:
    """h, and c for an lstm, after one step of PyTorch's ops; `gates` is the states' part."""
    if mode == "lstm":
        i, f, g, o = (x + gates).chunk(4, -1)
        c = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
        return [torch.sigmoid(o) * torch.tanh(c), c]
    if mode == "gru":
        (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), gates.chunk(3, -1)
        n, z = torch.tanh(xn + torch.sigmoid(xr + hr) * hn), torch.sigmoid(xz + hz)
        return [(1 - z) * n + z * states[0]]
    return [(torch.tanh if mode == "tanh" else torch.relu)(x + gates)]


def recurrent(d: Draw) -> Problem:
    """A layer over a few steps; what goes round and round is rounded as often."""
    mode, dtype = d.pick(("lstm", "lstm", "gru", "tanh", "relu")), d.dtype()
    gates, states, *_ = MODES[mode]
    steps, batch, hidden = d.between(1, 5), d.size(d.pick((9, 40, 70))), d.size(d.pick((70, 600)))
    x = d.floats((steps, batch, gates * hidden), dtype, -1, 1)
    start = d.floats((batch, states * hidden), dtype, -1, 1)
    w = d.floats((gates * hidden, hidden), dtype, -(hidden**-0.5), hidden**-0.5)
    b = d.floats((gates * hidden,), dtype, -1, 1)

    def theirs(x: Any, start: Any, w: Any, b: Any) -> Any:
        now, rows = start.chunk(states, -1), []
        for t in range(steps):
            now = _stepped(mode, x[t], now[0] @ w.T + b, now)
            rows.append(torch.cat(now, -1))
        return torch.stack(rows)

    return Problem(
        (x, start, w, b),
        lambda *given: rnn_sequence(*given, mode=mode),
        theirs,
        floor=float(np.sqrt(hidden)),
        looseness=4.0,
        dtype=dtype,
    )


def cell(d: Draw) -> Problem:
    """One step of a cell, whose gates are given."""
    mode, dtype = d.pick(("lstm", "gru")), d.dtype(halves=0)
    gates, states, *_ = MODES[mode]
    batch, hidden = d.size(d.pick((9, 300))), d.size(d.pick((70, 600)))
    if d.chance(0.1):
        batch = 0
    parts = [d.floats((batch, gates * hidden), dtype, -2, 2) for _ in range(2)]
    now = [d.floats((batch, hidden), dtype, -1, 1) for _ in range(states)]
    return Problem(
        (*parts, *now),
        lambda x, h, *now: cell_step(mode, x, h, now),
        lambda x, h, *now: _stepped(mode, x, h, now),
        floor=1.0,
        dtype=dtype,
    )


SECTION = OpSection(
    "sequences",
    ("complex_functions", "ctc", "recurrent", "recurrent_step", "scan"),
    {
        "ctc_loss": (1, ctc),
        "complex": (1, complexes),
        "complex matmul": (0.5, complex_products),
        "rnn_sequence": (1, recurrent),
        "cell_step": (1, cell),
    },
    weight=0.5,
)
