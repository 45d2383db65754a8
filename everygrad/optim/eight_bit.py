"""Adam with its averages kept in eight bits an element.

Elements are divided into blocks. Of each block the largest magnitude is kept, and of each element
the number of the nearest entry of a table from -1 to 1, whose entries lie closer towards 0: a
relative error of a few percent over seven decades (Dettmers et al., 2021).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, Unpack

import numpy as np

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import abs, ceil, maximum, minimum, sqrt, where
from everygrad.ops.python.creation import full, zeros
from everygrad.ops.shape.joining import pad
from everygrad.optim.adamw import Adam, corrected_rate, corrected_root, first_share
from everygrad.optim.group import Group, State, precise
from everygrad.optim.optimizer import Switches
from everygrad.optim.rule import Shared, Update, descent, squared

_DECADES = 7
AVERAGE = Update(
    "adam8bit.average",
    lambda m, p, g, share, *, weight_decay, maximize: (
        m + (descent(g, p, weight_decay, maximize) - m) * share
    ),
)
SQUARE = Update(
    "adam8bit.square",
    lambda v, p, g, *, beta, weight_decay, maximize: (
        v * beta + squared(descent(g, p, weight_decay, maximize)) * (1 - beta)
    ),
)
MOVE = Update(
    "adam8bit.move",
    lambda p, m, v, lr, rate, root, *, eps, decay: (
        (p - p * (lr * decay) if decay else p) - rate * m / (sqrt(v) / root + eps)
    ),
)


@cache
def table(signed: bool) -> Any:
    """The 256 values: 0, 1, and in each of seven decades the middles of equal parts, twice as many
    as in the decade below; half of them negative if `signed`."""
    values = [0.0, 1.0]
    for decade in range(_DECADES):
        ends = np.linspace(0.1, 1.0, 2 ** (decade + (not signed)) + 1)
        middles = (ends[:-1] + ends[1:]) / 2 * 10.0 ** (decade + 1 - _DECADES)
        values += [*middles, *(-middles if signed else ())]
    return np.sort(np.array(values))


class Adam8bit(Adam):
    """Adam whose two averages take a byte an element each, a quarter of float32's memory.

    block_size     elements that share one scale
    min_8bit_size  parameters of fewer elements keep their averages as they are

    >>> import everygrad as eg
    >>> w = eg.ones((64, 64), requires_grad=True)
    >>> opt = eg.optim.Adam8bit([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> round(w[0, 0].item(), 4), opt.state[w]["state1"].dtype.name
    (0.5, 'uint8')
    """

    reduces = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        block_size: int = 256,
        min_8bit_size: int = 4096,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        self._sizes = {"block_size": block_size, "min_8bit_size": min_8bit_size}
        super().__init__(
            *(params, lr, betas, eps, weight_decay),
            maximize=maximize,
            decoupled_weight_decay=decoupled_weight_decay,
            master_weights=master_weights,
            **switches,
        )

    def add_param_group(self, param_group: Any) -> None:
        """Optimise more parameters, with settings of their own."""
        self.defaults.update(self._sizes)
        super().add_param_group(param_group)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        for name, least in (("block_size", 2), ("min_8bit_size", 0)):
            value = group[name]
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ArgumentError(
                    f"{self._name}: {name} must be an integer of at least {least}, got {value!r}"
                )
        if group["amsgrad"]:
            raise ArgumentError(f"{self._name}: amsgrad needs the averages as they are; use Adam")

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        if p.size < group["min_8bit_size"]:
            super().make_state(p, state, group, shared)
        elif self.begin(p, state, shared):
            size = group["block_size"]
            blocks = -(-p.size // size)
            with shared.outside():
                for i, signed in (("1", True), ("2", False)):
                    zero = int(np.searchsorted(table(signed), 0.0))
                    state[f"state{i}"] = full((blocks, size), zero, dtypes.uint8, p.device)
                    state[f"absmax{i}"] = zeros((blocks, 1), dtypes.float32, p.device)

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        if "state1" not in state:
            super().update(p, g, state, group, shared)
            return
        step, lr = shared.next_step(state), shared.lr(p)
        decoupled, decay = group["decoupled_weight_decay"], group["weight_decay"]
        l2 = {"weight_decay": 0.0 if decoupled else decay, "maximize": group["maximize"]}
        m = apply(AVERAGE, _read(p, state, "1"), p, g, first_share(p, shared), **l2)
        v = _read(p, state, "2")
        v = apply(SQUARE, v, p, g, beta=group["betas"][1], **l2)
        _write(state, "1", m, shared)
        _write(state, "2", v, shared)
        scales = (corrected_rate(p, step, shared), corrected_root(p, step, group, shared))
        settings = {"eps": group["eps"], "decay": decay if decoupled else 0.0}
        shared.put(p, apply(MOVE, p, m, v, lr, *scales, **settings))


class AdamW8bit(Adam8bit):
    """AdamW whose two averages take a byte an element each.

    >>> import everygrad as eg
    >>> w = eg.ones((64, 64), requires_grad=True)
    >>> opt = eg.optim.AdamW8bit([w], lr=0.5, weight_decay=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> round(w[0, 0].item(), 4)
    0.25
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        block_size: int = 256,
        min_8bit_size: int = 4096,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        super().__init__(
            *(params, lr, betas, eps, weight_decay),
            block_size=block_size,
            min_8bit_size=min_8bit_size,
            maximize=maximize,
            decoupled_weight_decay=True,
            master_weights=master_weights,
            **switches,
        )


# --- blocks --------------------------------------------------------------------------------------


class Decade(NamedTuple):
    """The entries of one decade of the table: equally spaced, from one number of an entry on. All
    are magnitudes, counted from 0, which is entry 0."""

    number: int
    entries: int
    first: float
    spacing: float
    above: float  # the middle between the last entry below and its first


@cache
def decades(signed: bool) -> tuple[Decade, ...]:
    """The decades of the table, and 1.0, which stands alone behind them."""
    entries = [v for v in table(signed) if v >= 0]
    made, number = [], 1
    for decade in range(_DECADES):
        count = 2 ** (decade + (not signed))
        spacing = 0.9 / count * 10.0 ** (decade + 1 - _DECADES)
        above = (entries[number - 1] + entries[number]) / 2
        made.append(Decade(number, count, float(entries[number]), spacing, float(above)))
        number += count
    return (*made, Decade(number, 1, 1.0, 1.0, float(entries[-2] + 1.0) / 2))


def _value(code: Any, signed: bool) -> Any:
    """The entry of the table that a code stands for."""
    zero = float(np.searchsorted(table(signed), 0.0))
    place = abs(code - zero)
    found: Any = place * 0.0
    for d in decades(signed):
        found = where(
            place >= float(d.number), (place - float(d.number)) * d.spacing + d.first, found
        )
    return where(code < zero, -found, found)


def _code(x: Any, signed: bool) -> Any:
    """The code of the entry nearest to x, from -1 to 1."""
    size: Any = abs(x)
    found: Any = size * 0.0
    for d in decades(signed):
        step = minimum(maximum(ceil((size - d.first) / d.spacing - 0.5), 0.0), float(d.entries - 1))
        found = where(size > d.above, step + float(d.number), found)
    zero = float(np.searchsorted(table(signed), 0.0))
    # there is no -1: the largest negative entry is one nearer to 0
    return where(x < 0.0, zero - minimum(found, zero), found + zero)


READ = Update("adam8bit.read", lambda largest, code, *, signed: _value(code, signed) * largest)
CODE = Update(
    "adam8bit.code",
    lambda x, largest, *, signed: _code(x / where(largest > 0.0, largest, 1.0), signed),
)


def _read(p: Tensor, state: State, i: str) -> Tensor:
    """An average, in the shape of its parameter."""
    codes, largest = state[f"state{i}"], state[f"absmax{i}"]
    values = apply(READ, largest, codes.astype(dtypes.float32), signed=i == "1")
    if codes.size != p.size:
        values = values.reshape((codes.size,))[: p.size]
    made: Tensor = values.reshape(p.shape).astype(precise(p))
    return made


def _write(state: State, i: str, value: Tensor, shared: Shared) -> None:
    """Put an average into its bytes."""
    codes = state[f"state{i}"]
    flat = value.reshape((value.size,)).astype(dtypes.float32)
    if codes.size != value.size:
        flat = pad(flat, [(0, codes.size - value.size)])
    blocks = flat.reshape(codes.shape)
    largest = abs(blocks).max(axis=1, keepdims=True)
    made = apply(CODE, blocks, largest, signed=i == "1")
    shared.put(codes, made.astype(dtypes.uint8))
    shared.put(state[f"absmax{i}"], largest)
