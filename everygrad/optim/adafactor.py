"""Adafactor: a matrix's average squared gradient kept as one row and one column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.ops.elementwise.basic import clamp, maximum, minimum, rsqrt, sqrt
from everygrad.ops.python.creation import zeros, zeros_like
from everygrad.ops.reduce.norms_and_counts import norm
from everygrad.optim.group import Group, State
from everygrad.optim.optimizer import Optimizer, Switches
from everygrad.optim.rule import Shared


class Adafactor(Optimizer):
    """Steps in proportion to the parameter, divided by a rank-one average of squares.

    beta2_decay  the average forgets by step ** beta2_decay
    eps          the least of the average's root (None: the dtype's own), and of the parameter's
                 root mean square
    d            the largest root mean square of a step before it is scaled

    >>> import everygrad as eg
    >>> w = eg.ones((2, 2), requires_grad=True)
    >>> opt = eg.optim.Adafactor([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w[0, 0].item()
    0.5
    """

    elementwise = False
    reduces = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        master_weights: bool = True,
        **switches: Unpack[Switches],
    ) -> None:
        settings = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "master_weights": master_weights,
        }
        super().__init__(params, settings, **switches)

    def check_group(self, group: Group) -> None:
        super().check_group(group)
        eps = group["eps"]
        if len(eps) != 2 or not (eps[0] is None or eps[0] >= 0) or not eps[1] >= 0:
            raise ArgumentError(
                f"Adafactor: eps must be two numbers of at least 0, the first may be None, "
                f"got {eps}"
            )
        if not group["beta2_decay"] <= 0:
            raise ArgumentError(
                f"Adafactor: beta2_decay must be at most 0, got {group['beta2_decay']!r}"
            )
        if not group["d"] >= 1:
            raise ArgumentError(f"Adafactor: d must be at least 1, got {group['d']!r}")

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        if not self.begin(p, state, shared):
            return
        with shared.outside():
            if p.ndim > 1:
                rows, columns = (*p.shape[:-1], 1), (*p.shape[:-2], 1, p.shape[-1])
                state["row_var"] = zeros(rows, p.dtype, p.device)
                state["col_var"] = zeros(columns, p.dtype, p.device)
            else:
                state["variance"] = zeros_like(p)

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        count, lr = shared.count(p, shared.next_step(state)), shared.lr(p)
        key = ("adafactor", id(count), p.dtype, p.device)
        share, rate = shared.once(
            key, lambda: (count ** group["beta2_decay"], minimum(lr, 1.0 / sqrt(count)))
        )
        eps1, eps2 = group["eps"]
        eps1 = dtypes.finfo(p.dtype).eps if eps1 is None else eps1
        g = (-g if group["maximize"] else g).astype(p.dtype)
        size = p.size**0.5
        alpha = maximum(norm(p) / size, eps2) * rate
        variance = _variance(g, state, share, eps1, shared)
        step = rsqrt(clamp(variance, min=eps1 * eps1)) * g
        largest = maximum(norm(step) / (size * group["d"]), 1.0)
        kept = p * (1.0 - lr * group["weight_decay"]) if group["weight_decay"] else p
        shared.put(p, (kept - step * (alpha / largest)).astype(p.dtype))


def _variance(g: Tensor, state: State, share: Tensor, eps1: float, shared: Shared) -> Tensor:
    """The average squared gradient, moved on by this one."""

    def follow(name: str, value: Tensor) -> Tensor:
        held = state[name]
        new: Tensor = (held + (value - held) * share).astype(held.dtype)
        shared.put(held, new)
        return new

    squares = g * g
    if "variance" in state:
        return follow("variance", squares)
    row = follow("row_var", squares.mean(-1, keepdims=True))
    column = follow("col_var", squares.mean(-2, keepdims=True))
    return row * column / clamp(row.mean(-2, keepdims=True), min=eps1)
