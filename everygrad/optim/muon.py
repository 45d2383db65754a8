"""Muon: a matrix's momentum, made orthogonal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Unpack

from everygrad import dtypes
from everygrad.core.shapes import Shape, size_of
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import clamp, sqrt
from everygrad.ops.python.creation import zeros_like
from everygrad.ops.shape.joining import concat, pad, stack
from everygrad.optim.group import Group, State, precise
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import Change, Rule, Shared, Update

MOMENTUM = Update("muon.momentum", lambda buf, g, share: buf + (g - buf) * share)
# into a copy of the gradient
NESTEROV = Update("muon.nesterov", lambda d, buf, share: buf + (d - buf) * share)
MOVE = Update(
    "muon.move",
    lambda p, step, lr, *, ratio, decay: (p - p * (lr * decay) if decay else p) - step * lr * ratio,
)
_BATCH = 1 << 22  # elements of matrices that are made orthogonal at a time: copies of them
# multiplications with zeros, for each Newton-Schulz step, that a GPU does sooner than it takes
# to start the kernels of another batch
_SPARE = 1 << 25
_RATIOS = (None, "original", "match_rms_adamw")


class Muon(Optimizer):
    """Orthogonal steps for matrices; other parameters belong to another optimiser.

    ns_coefficients  of the quintic that pushes singular values towards 1
    ns_steps         how often it is applied
    ns_dtype         what it is computed in
    adjust_lr_fn     "original": longer steps for tall ones; "match_rms_adamw": AdamW's rates

    >>> import everygrad as eg
    >>> w = eg.eye(3) * 2
    >>> w = w.requires_grad_()
    >>> opt = eg.optim.Muon([w], lr=0.1)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w[0, 0].item() < 2.0
    True
    """

    elementwise = False
    reduces = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        ns_dtype: str = "bfloat16",
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "ns_dtype": ns_dtype,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        self.check_at_least_zero(group, "momentum", "eps")
        if group["adjust_lr_fn"] not in _RATIOS:
            raise ArgumentError(
                f"Muon: adjust_lr_fn must be one of {_RATIOS}, got {group['adjust_lr_fn']!r}"
            )
        steps = group["ns_steps"]
        if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps < 100:
            raise ArgumentError(f"Muon: ns_steps must be an integer below 100, got {steps!r}")
        if len(group["ns_coefficients"]) != 3:
            raise ArgumentError(
                f"Muon: ns_coefficients must be three numbers, got {group['ns_coefficients']}"
            )
        if not dtypes.as_dtype(group["ns_dtype"]).is_float:
            raise ArgumentError(
                f"Muon: ns_dtype must be a floating point dtype, got {group['ns_dtype']!r}"
            )

    def _check_param(self, i: int, p: Any) -> None:
        super()._check_param(i, p)
        if p.ndim != 2:
            raise ShapeError(
                f"Muon: parameter {i} has shape {p.shape}; it takes matrices, give the others to "
                f"AdamW"
            )

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        if "momentum_buffer" not in state:
            with shared.outside():
                state["momentum_buffer"] = zeros_like(p)

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        buf = state["momentum_buffer"]
        share = shared.number(p, "1 - momentum", lambda group: 1 - group["momentum"])
        d = shared.alias(g) if g.dtype is p.dtype else g.astype(p.dtype)
        nesterov = group["nesterov"]
        rule = shared.once("rule", lambda: _averaged(nesterov))
        shared.change(rule, buf, g, share, d)
        waiting: list[tuple[Tensor, Tensor]] = shared.once("matrices", list)
        if not waiting:
            shared.then(lambda: _move_all(waiting, group, shared))
        waiting.append((p, d if nesterov else buf))


def _move_all(waiting: list[tuple[Tensor, Tensor]], group: Group, shared: Shared) -> None:
    """Move parameters by their momenta, which are made orthogonal many at a time."""
    kinds: dict[Any, list[tuple[Tensor, Tensor]]] = {}
    for p, x in waiting:
        kinds.setdefault((x.dtype, p.device), []).append((p, x))
    waiting.clear()
    waiting.clear()
    for (_, device), pairs in kinds.items():
        spare = 0 if device == "cpu" else _SPARE
        for shape, those in stacks([x.shape for _, x in pairs], spare):
            some = [pairs[k] for k in those]
            steps = orthogonal([x for _, x in some], group, shape)
            for (p, _), step in zip(some, steps, strict=True):
                settings = {
                    "ratio": _ratio(group["adjust_lr_fn"], p),
                    "decay": group["weight_decay"],
                }
                shared.change(Rule(Change(MOVE, (0, 1, 2), settings)), p, step, shared.lr(p))


def stacks(shapes: Sequence[Shape], spare: int) -> Iterator[tuple[Shape, list[int]]]:
    """Which matrices are made orthogonal as one batch, by their places, and the shape that all of
    them are padded to, with no more rows than columns. Those of other shapes join where products
    with zeros cost less than `spare` multiplications a step."""
    kinds: dict[Shape, list[int]] = {}
    for k, shape in enumerate(shapes):
        kinds.setdefault((min(shape), max(shape)), []).append(k)
    joined: list[tuple[Shape, list[int]]] = []
    for (rows, columns), those in sorted(kinds.items(), reverse=True):
        for i, (shape, others) in enumerate(joined):
            most = (max(rows, shape[0]), max(columns, shape[1]))
            padded = _work(most) * (len(those) + len(others))
            if padded - sum(_work(shapes[k]) for k in (*those, *others)) <= spare:
                joined[i] = most, [*others, *those]
                break
        else:
            joined.append(((rows, columns), those))
    for shape, those in joined:
        count = max(1, _BATCH // max(1, size_of(shape)))
        for start in range(0, len(those), count):
            yield shape, those[start : start + count]


def _work(shape: Shape) -> int:
    """Multiplications of one Newton-Schulz step."""
    rows, columns = min(shape), max(shape)
    return rows * rows * (2 * columns + rows)


def _averaged(nesterov: bool) -> Rule:
    buf, g, share, d = range(4)
    ahead = [Change(NESTEROV, (d, buf, share), {})] if nesterov else []
    return Rule(Change(MOMENTUM, (buf, g, share), {}), *ahead)


def _ratio(kind: str | None, p: Tensor) -> float:
    rows, columns = p.shape
    if kind == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def orthogonal(xs: Sequence[Tensor], group: Group, shape: Shape) -> list[Tensor]:
    """About the orthogonal matrices nearest to some: Newton-Schulz steps, which bring all singular
    values near 1. All are padded to one shape by zeros, which stay zeros. Products are in
    `ns_dtype`; what is added up is rounded to it once."""
    a, b, c = group["ns_coefficients"]
    dtype, wide = dtypes.as_dtype(group["ns_dtype"]), precise(xs[0])
    tall = [x.shape[0] > x.shape[1] for x in xs]
    flat = [x.mT if t else x for x, t in zip(xs, tall, strict=True)]
    y = _batch(flat, shape).astype(dtype)
    size = sqrt((y.astype(wide) * y.astype(wide)).sum(axis=(1, 2), keepdims=True))
    y = (y.astype(wide) / clamp(size, min=group["eps"])).astype(dtype)
    for _ in range(group["ns_steps"]):
        gram = y @ y.mT
        slope = (gram.astype(wide) * b + (gram @ gram).astype(wide) * c).astype(dtype)
        y = (y.astype(wide) * a + (slope @ y).astype(wide)).astype(dtype)
    made = [y[k, :m, :n] for k, (m, n) in enumerate(x.shape for x in flat)]
    return [x.mT if t else x for x, t in zip(made, tall, strict=True)]


def _batch(xs: Sequence[Tensor], shape: Shape) -> Tensor:
    """Matrices as one batch, in their order, those of other shapes with zeros behind them."""
    parts = []
    for (m, n), some in groupby(xs, key=lambda x: x.shape):
        those = [*some]
        y = stack(those) if len(those) > 1 else those[0].expand_dims(0)
        if (m, n) != shape:
            y = pad(y, ((0, 0), (0, shape[0] - m), (0, shape[1] - n)))
        parts.append(y)
    return concat(parts) if len(parts) > 1 else parts[0]
