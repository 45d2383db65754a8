"""Optimisers' updates as ONNX has them (ai.onnx.preview.training): old values in, new ones out."""

from __future__ import annotations

from typing import Any

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.onnx.operators.registry import TRAINING, Call, onnx_op


def _grouped(values: tuple[Any, ...], kinds: int) -> list[tuple[Any, ...]]:
    """One tuple for each parameter: its value, its gradient, and its state."""
    count = len(values) // kinds
    return [tuple(values[k * count + i] for k in range(kinds)) for i in range(count)]


def _columns(rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(v for column in zip(*rows, strict=True) for v in column)


@onnx_op("Adagrad", domain=TRAINING)
def _adagrad(call: Call, rate: Tensor, step: Tensor, *values: Any) -> Any:
    slowed = rate / (1 + step.astype(rate.dtype) * call("decay_factor", 0.0))
    rows = []
    for x, g, h in _grouped(values, 3):
        g = call("norm_coefficient", 0.0) * x + g
        h = h + g * g
        rows.append((x - slowed * g / (eg.sqrt(h) + call("epsilon", 1e-6)), h))
    return _columns(rows)


@onnx_op("Adam", domain=TRAINING)
def _adam(call: Call, rate: Tensor, step: Tensor, *values: Any) -> Any:
    alpha, beta = call("alpha", 0.9), call("beta", 0.999)
    t = step.astype(rate.dtype)
    corrected = rate * eg.sqrt(1 - eg.pow(beta, t)) / (1 - eg.pow(alpha, t))
    eased = eg.where(t > 0, corrected, rate)
    rows = []
    for x, g, v, h in _grouped(values, 4):
        g = call("norm_coefficient", 0.0) * x + g
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        new = x - eased * v / (eg.sqrt(h) + call("epsilon", 1e-6))
        rows.append(((1 - call("norm_coefficient_post", 0.0)) * new, v, h))
    return _columns(rows)


@onnx_op("Momentum", domain=TRAINING)
def _momentum(call: Call, rate: Tensor, step: Tensor, *values: Any) -> Any:
    mode = call("mode")
    if mode not in ("standard", "nesterov"):
        raise ArgumentError(f"Momentum: mode is 'standard' or 'nesterov', got {mode!r}")
    alpha, beta = call("alpha"), call("beta")
    rows = []
    for x, g, v in _grouped(values, 3):
        g = call("norm_coefficient") * x + g
        now = eg.where(step > 0, eg.full_like(rate, beta), eg.ones_like(rate))
        v = alpha * v + now * g
        move = g + alpha * v if mode == "nesterov" else v
        rows.append((x - rate * move, v))
    return _columns(rows)
