"""Optimisers that PyTorch has not, as the papers give them, in NumPy and float64: each takes a
parameter and its gradients, and gives the parameter after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def lion(
    p: Array,
    grads: list[Array],
    lr: float = 1e-4,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> list[Array]:
    """Chen et al. 2023, algorithm 2."""
    m, found = np.zeros_like(p), []
    for g in grads:
        g = -g if maximize else g
        c = betas[0] * m + (1 - betas[0]) * g
        p = p - lr * (np.sign(c) + weight_decay * p)
        m = betas[1] * m + (1 - betas[1]) * g
        found.append(p)
    return found


def lamb(
    p: Array,
    grads: list[Array],
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 1e-2,
    bounds: tuple[float, float] | None = None,
    maximize: bool = False,
) -> list[Array]:
    """You et al. 2019, algorithm 2."""
    m, v, found = np.zeros_like(p), np.zeros_like(p), []
    for t, g in enumerate(grads, 1):
        g = -g if maximize else g
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        r = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
        u = r + weight_decay * p
        size, length = np.sqrt((p * p).sum()), np.sqrt((u * u).sum())
        phi = size if bounds is None else min(max(size, bounds[0]), bounds[1])
        p = p - lr * (phi / length if size > 0 and length > 0 else 1.0) * u
        found.append(p)
    return found


def schedule_free(
    p: Array,
    grads: list[Array],
    lr: float = 2.5e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
    r: float = 0.0,
    weight_lr_power: float = 2.0,
) -> list[Array]:
    """Defazio et al. 2024: x is the average, z the plain iterate, gradients are taken at y; the
    paper's three sequences, where ours keeps two."""
    x, z, y = p, p, p
    v, total, highest, found = np.zeros_like(p), 0.0, 0.0, []
    for t, g in enumerate(grads, 1):
        gamma = lr * (min(1.0, t / warmup_steps) if warmup_steps else 1.0)
        v = betas[1] * v + (1 - betas[1]) * g * g
        step = g / (np.sqrt(v / (1 - betas[1] ** t)) + eps) + weight_decay * y
        z = z - gamma * step
        highest = max(highest, gamma)
        weight = t**r * highest**weight_lr_power
        total += weight
        c = weight / total
        x = (1 - c) * x + c * z
        y = (1 - betas[0]) * z + betas[0] * x
        found.append(y)
    return found


def _entries(signed: bool) -> Array:
    """Dynamic tree quantisation: an exponent of ten in unary, then a linear fraction."""
    bits = 7 if signed else 8
    values = {0.0, 1.0}
    for zeros in range(7):
        steps = 2 ** (bits - 1 - zeros)
        for k in range(steps):
            value = (0.1 + 0.9 * (k + 0.5) / steps) * 10.0**-zeros
            values |= {value, -value} if signed else {value}
    return np.array(sorted(values))


def _through_bytes(x: Array, block_size: int, signed: bool) -> Array:
    """What is left of x when each block's values are rounded to the nearest entries."""
    flat, entries, found = x.reshape(-1), _entries(signed), []
    for begin in range(0, flat.size, block_size):
        block = flat[begin : begin + block_size]
        scale = np.abs(block).max()
        share = block / scale if scale > 0 else block
        nearest = np.abs(share[:, None] - entries[None, :]).argmin(1)
        found.append(entries[nearest] * scale)
    return np.concatenate(found).reshape(x.shape)


def adam8bit(
    p: Array,
    grads: list[Array],
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    block_size: int = 256,
    min_8bit_size: int = 4096,
    maximize: bool = False,
    decoupled: bool = False,
) -> list[Array]:
    """Dettmers et al. 2021: Adam, whose averages go through bytes between steps."""
    m, v, found = np.zeros_like(p), np.zeros_like(p), []
    for t, g in enumerate(grads, 1):
        g = -g if maximize else g
        g = g if decoupled else g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p = p * (1 - lr * weight_decay) if decoupled else p
        p = p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
        if p.size >= min_8bit_size:
            m, v = _through_bytes(m, block_size, True), _through_bytes(v, block_size, False)
        found.append(p)
    return found


def adamw8bit(p: Array, grads: list[Array], **settings: Any) -> list[Array]:
    return adam8bit(p, grads, **{"weight_decay": 1e-2, **settings}, decoupled=True)


FORMULAS: dict[str, Callable[..., list[Array]]] = {
    "Lion": lion,
    "LAMB": lamb,
    "ScheduleFreeAdamW": schedule_free,
    "Adam8bit": adam8bit,
    "AdamW8bit": adamw8bit,
}
