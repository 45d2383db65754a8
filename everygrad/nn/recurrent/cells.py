"""One step of a recurrent layer as a module."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn import init
from everygrad.nn.functions.products import linear
from everygrad.nn.linear import check_sizes
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.nn.recurrent import MODES
from everygrad.ops.nn.recurrent_step import cell_step
from everygrad.ops.python.creation import empty, zeros
from everygrad.ops.record.arguments import tensor_of


class RNNCellBase(Module):
    """What the cells share: weights of the input and of the hidden state, and their biases."""

    mode: ClassVar[str] = "tanh"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        rows = MODES[self.mode].gates * hidden_size
        self.weight_ih = Parameter(empty((rows, input_size), dtype, device))
        self.weight_hh = Parameter(empty((rows, hidden_size), dtype, device))
        self.bias_ih = Parameter(empty((rows,), dtype, device)) if bias else None
        self.bias_hh = Parameter(empty((rows,), dtype, device)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new values, uniform within 1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _stepped(self, mode: str, x: Tensor, states: Any) -> list[Tensor]:
        """The states after the step; `states` is None, or as many as the mode has."""
        name, count = type(self).__name__, MODES[mode].states
        x = tensor_of(name, x, None)
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{name}: takes (batch, {self.input_size}) or ({self.input_size},), got {x.shape}"
            )
        shape = (*x.shape[:-1], self.hidden_size)
        if states is None:
            states = [zeros(shape, x.dtype, x.device)] * count
        for state in states:
            if state.shape != shape:
                raise ShapeError(f"{name}: the state must have shape {shape}, got {state.shape}")
        gx = linear(x, self.weight_ih, self.bias_ih)
        gh = linear(states[0], self.weight_hh, self.bias_hh)
        return cell_step(mode, gx, gh, states)

    def extra_repr(self) -> str:
        bias = "" if self.bias_ih is not None else ", bias=False"
        return f"{self.input_size}, {self.hidden_size}{bias}"


class RNNCell(RNNCellBase):
    """h = tanh(x @ weight_ih^T + bias_ih + h @ weight_hh^T + bias_hh), or relu.

    >>> import everygrad as eg
    >>> eg.nn.RNNCell(3, 4)(eg.ones((2, 3))).shape
    (2, 4)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(
                f'RNNCell: nonlinearity must be "tanh" or "relu", got {nonlinearity!r}'
            )
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        states = None if hx is None else [hx]
        return self._stepped(self.nonlinearity, input, states)[0]

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return shown if self.nonlinearity == "tanh" else f"{shown}, nonlinearity='relu'"


class LSTMCell(RNNCellBase):
    """One step of an LSTM, from and to a pair (h, c).

    >>> import everygrad as eg
    >>> h, c = eg.nn.LSTMCell(3, 4)(eg.ones((2, 3)))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    mode = "lstm"

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Tensor]:
        if hx is not None and (not isinstance(hx, tuple | list) or len(hx) != 2):
            raise ArgumentError(f"LSTMCell: hx must be a pair (h, c), got {type(hx).__name__}")
        h, c = self._stepped("lstm", input, hx)
        return h, c


class GRUCell(RNNCellBase):
    """One step of a gated recurrent unit.

    >>> import everygrad as eg
    >>> eg.nn.GRUCell(3, 4)(eg.ones((3,))).shape
    (4,)
    """

    mode = "gru"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._stepped("gru", input, None if hx is None else [hx])[0]
