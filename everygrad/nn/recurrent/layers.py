"""Recurrent layers over whole sequences: RNN, LSTM, GRU."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn import functional as F, init
from everygrad.nn.dropout import check_probability
from everygrad.nn.linear import check_sizes
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.nn.utils.rnn import PackedSequence, packed_rows, padded_rows
from everygrad.ops.index.gather import take
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.nn.recurrent import MODES, lstm_step, rnn_sequence
from everygrad.ops.python.creation import asarray, empty, zeros
from everygrad.ops.random.generators import sharded_along
from everygrad.ops.record.arguments import tensor_of
from everygrad.ops.shape.joining import concat, stack


class _Weights(NamedTuple):
    """The parameters of one direction of one layer."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    weight_hr: Tensor | None


class _Batch(NamedTuple):
    """Lengths of sequences that end earlier than the longest, and rows to find their parts by.

    last      of all (step, sequence) rows, the last of each sequence
    mirrored  for each row, the row that comes there when each sequence is read from its end
    """

    last: Tensor
    mirrored: Tensor


def _batch_of(sizes: Sequence[int], device: str) -> _Batch:
    steps, n = len(sizes), sizes[0]
    lengths = np.array([sum(size > i for size in sizes) for i in range(n)])
    at, who = np.arange(steps)[:, None], np.arange(n)[None, :]
    mirrored = np.where(at < lengths, lengths - 1 - at, at) * n + who
    last = (lengths - 1) * n + np.arange(n)
    return _Batch(asarray(last, device=device), asarray(mirrored.reshape(-1), device=device))


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of (steps, batch, ...), by their place in steps * batch."""
    out: Tensor = take(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), index, axis=0)
    return out


class RNNBase(Module):
    """What the layers share: their weights, layer by layer, and the walk over layers.

    Called with (steps, batch, input_size), batch first if `batch_first`, (steps, input_size), or a
    PackedSequence; and, optionally, the state to start from, (layers * directions, batch, hidden).
    Returns the hidden states of the last layer at all steps, and the last states of all layers.
    """

    kind: ClassVar[str] = "tanh"  # the mode of `rnn_sequence`
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    proj_size: int

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if not isinstance(dropout, numbers.Real) or isinstance(dropout, bool):
            raise ArgumentError(f"{name}: dropout must be a number, got {dropout!r}")
        check_probability(name, "dropout", dropout)
        if isinstance(proj_size, bool) or not isinstance(proj_size, int) or proj_size < 0:
            raise ArgumentError(f"{name}: proj_size must be an integer from 0, got {proj_size!r}")
        if proj_size and self.kind != "lstm":
            raise ArgumentError(f"{name}: proj_size is for LSTM only, got {proj_size}")
        if proj_size >= hidden_size:
            raise ArgumentError(
                f"{name}: proj_size {proj_size} must be below hidden_size {hidden_size}"
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        for layer in range(num_layers):
            for end in self._ends():
                self._hold(layer, end, device, dtype)
        self.reset_parameters()

    def _ends(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    def _hold(self, layer: int, end: str, device: str, dtype: Any) -> None:
        rows = MODES[self.kind].gates * self.hidden_size
        out = self.proj_size or self.hidden_size
        width = self.input_size if not layer else out * len(self._ends())
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, width), "weight_hh": (rows, out)}
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        for name, shape in shapes.items():
            self.register_parameter(f"{name}_l{layer}{end}", Parameter(empty(shape, dtype, device)))

    def reset_parameters(self) -> None:
        """Draw new values, uniform within 1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: parameters need not lie next to each other here."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters of each layer and direction."""
        found = [self._weights(k, end) for k in range(self.num_layers) for end in self._ends()]
        return [[w for w in weights if w is not None] for weights in found]

    def _weights(self, layer: int, end: str) -> _Weights:
        names = [f"{name}_l{layer}{end}" for name in _Weights._fields]
        return _Weights(*[getattr(self, name, None) for name in names])  # type: ignore[arg-type]

    # --- running ---------------------------------------------------------------------------------

    def _run(self, input: Any, states: Sequence[Tensor] | None) -> tuple[Any, list[Tensor]]:
        """The last layer's hidden states, and the last states of all layers."""
        if not isinstance(input, PackedSequence):
            input = tensor_of(type(self).__name__, input, None)
        packed = input if isinstance(input, PackedSequence) else None
        x = self._steps_first(input)
        batched = packed is not None or input.ndim == 3
        given = None if states is None else [self._layered(s, packed, batched) for s in states]
        self._check_states(x, given)
        parts = None if packed is None else _batch_of(packed.batch_sizes, x.device)
        lasts: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            outs = []
            for k, end in enumerate(self._ends()):
                at = layer * len(self._ends()) + k
                start = self._start(x, given, at)
                out, last = self._direction(x, start, self._weights(layer, end), bool(end), parts)
                outs.append(out)
                lasts.append(last)
            x = outs[0] if len(outs) == 1 else concat(outs, axis=2)
            if self.dropout and layer < self.num_layers - 1:
                with sharded_along(1):  # the batch, of which ranks may have a part each
                    x = F.dropout(x, self.dropout, self.training)
        finals = [stack([last[k] for last in lasts], axis=0) for k in range(len(lasts[0]))]
        if packed is not None:
            order = packed.unsorted_indices
            if order is not None:
                finals = [take(t, order, axis=1) for t in finals]
            return replace(packed, data=packed_rows(x, packed.batch_sizes)), finals
        if not batched:
            return x.squeeze(1), [t.squeeze(1) for t in finals]
        return (x.swapaxes(0, 1) if self.batch_first else x), finals

    def _steps_first(self, input: Any) -> Tensor:
        """(steps, batch, input_size)."""
        name = type(self).__name__
        if isinstance(input, PackedSequence):
            x = padded_rows(input)
        elif input.ndim == 3:
            x = input.swapaxes(0, 1) if self.batch_first else input
        else:
            x = input.expand_dims(1) if input.ndim == 2 else input
        if x.ndim != 3 or x.shape[2] != self.input_size or not x.shape[0]:
            shown = input.data.shape if isinstance(input, PackedSequence) else input.shape
            order = "batch, steps" if self.batch_first else "steps, batch"
            raise ShapeError(
                f"{name}: takes ({order}, {self.input_size}) or (steps, {self.input_size}), with "
                f"one step or more, got {shown}"
            )
        return x

    def _layered(self, state: Tensor, packed: PackedSequence | None, batched: bool) -> Tensor:
        """A state as (layers * directions, batch, size), in the order of the batch."""
        if state.ndim != (3 if batched else 2):
            raise ShapeError(
                f"{type(self).__name__}: a state needs {3 if batched else 2} axes here, "
                f"got {state.shape}"
            )
        state = state if batched else state.expand_dims(1)
        if packed is not None and packed.sorted_indices is not None:
            state = take(state, packed.sorted_indices, axis=1)
        return state

    def _check_states(self, x: Tensor, states: Sequence[Tensor] | None) -> None:
        for state, size in zip(states or (), self._sizes(), strict=False):
            wanted = (self.num_layers * len(self._ends()), x.shape[1], size)
            if state.shape != wanted:
                raise ShapeError(
                    f"{type(self).__name__}: the state must have shape {wanted}, got {state.shape}"
                )

    def _sizes(self) -> tuple[int, ...]:
        """The width of each state: h, and c for an LSTM."""
        widths = (self.proj_size or self.hidden_size, self.hidden_size)
        return widths[: MODES[self.kind].states]

    def _start(self, x: Tensor, states: Sequence[Tensor] | None, at: int) -> list[Tensor]:
        if states is not None:
            return [s[at] for s in states]
        return [zeros((x.shape[1], size), x.dtype, x.device) for size in self._sizes()]

    def _direction(
        self, x: Tensor, start: list[Tensor], weights: _Weights, back: bool, parts: _Batch | None
    ) -> tuple[Tensor, list[Tensor]]:
        """h at all steps, and the states after the last step that each sequence has."""
        shape = x.shape[:2]
        if back:
            x = x.flip(axis=0) if parts is None else _rows(x, parts.mirrored).reshape(x.shape)
        # all steps at once, as the product whose gradient by the weight reads rows
        gx = matmul(x.reshape(-1, x.shape[2]), weights.weight_ih.mT).reshape(*shape, -1)
        states = self._states(gx, start, weights)
        if parts is None:
            last = [s[-1] for s in states]
        else:
            last = [_rows(s, parts.last) for s in states]
        h = states[0]
        if back:
            h = h.flip(axis=0) if parts is None else _rows(h, parts.mirrored)
        return h.reshape(*shape, h.shape[-1]), last

    def _states(self, gx: Tensor, start: list[Tensor], weights: _Weights) -> list[Tensor]:
        """Each state at all steps."""
        mode = self._mode()
        bias = weights.bias_hh
        if mode == "gru" or weights.weight_hr is not None:
            gx = gx if weights.bias_ih is None else gx + weights.bias_ih
        elif bias is not None and weights.bias_ih is not None:
            bias = bias + weights.bias_ih  # they always come together
        if weights.weight_hr is not None:
            return _projected(gx, start, weights)
        begin = start[0] if len(start) == 1 else concat(start, axis=1)
        found = rnn_sequence(gx, begin, weights.weight_hh, bias, mode)
        size = self.hidden_size
        return [found[..., k * size : (k + 1) * size] for k in range(MODES[mode].states)]

    def _mode(self) -> str:
        return self.kind

    def extra_repr(self) -> str:
        shown = f"{self.input_size}, {self.hidden_size}"
        usual = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False,
                 "dropout": 0.0, "bidirectional": False}  # fmt: skip
        for name, value in usual.items():
            own = getattr(self, name)
            shown += f", {name}={own}" if own != value else ""
        return shown


def _projected(gx: Tensor, start: list[Tensor], weights: _Weights) -> list[Tensor]:
    """An LSTM whose hidden state is o * tanh(c) brought to another width at each step."""
    h, c = start
    hs, cs = [], []
    for t in range(gx.shape[0]):
        gates = gx[t] + F.linear(h, weights.weight_hh, weights.bias_hh)
        wide, c, *_ = lstm_step(gates, c)
        assert weights.weight_hr is not None
        h = F.linear(wide, weights.weight_hr)
        hs.append(h)
        cs.append(c)
    return [stack(hs, axis=0), stack(cs, axis=0)]


class RNN(RNNBase):
    """h = tanh(x @ weight_ih^T + bias_ih + h @ weight_hh^T + bias_hh) step by step, or relu.

    >>> import everygrad as eg
    >>> out, h = eg.nn.RNN(3, 4, num_layers=2)(eg.ones((5, 2, 3)))
    >>> out.shape, h.shape
    ((5, 2, 4), (2, 2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f'RNN: nonlinearity must be "tanh" or "relu", got {nonlinearity!r}')
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )
        self.nonlinearity = nonlinearity

    def _mode(self) -> str:
        return self.nonlinearity

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        out, (h,) = self._run(input, None if hx is None else [hx])
        return out, h


class GRU(RNNBase):
    """Gated recurrent units, step by step.

    >>> import everygrad as eg
    >>> out, h = eg.nn.GRU(3, 4, bidirectional=True, batch_first=True)(eg.ones((2, 5, 3)))
    >>> out.shape, h.shape
    ((2, 5, 8), (2, 2, 4))
    """

    kind = "gru"

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        out, (h,) = self._run(input, None if hx is None else [hx])
        return out, h


class LSTM(RNNBase):
    """Long short-term memory, step by step; its state is a pair (h, c).

    `proj_size` brings the hidden state to fewer numbers at each step.

    >>> import everygrad as eg
    >>> out, (h, c) = eg.nn.LSTM(3, 4)(eg.ones((5, 2, 3)))
    >>> out.shape, h.shape, c.shape
    ((5, 2, 4), (1, 2, 4), (1, 2, 4))
    """

    kind = "lstm"

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        if hx is not None and (not isinstance(hx, tuple | list) or len(hx) != 2):
            raise ArgumentError(f"LSTM: hx must be a pair (h, c), got {type(hx).__name__}")
        out, (h, c) = self._run(input, hx)
        return out, (h, c)
