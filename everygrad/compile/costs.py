"""What an op costs, estimated from shapes: one operation an element, two a multiply-add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everygrad.compile.ir import Value
from everygrad.core.shapes import Shape, size_of


def flops(
    name: str, kind: str, shape: Shape, inputs: Sequence[Shape], params: dict[str, Any]
) -> int:
    """Arithmetic operations of an op that makes a result of this shape. `kind` is its family."""
    if name in ("matmul", "linear", "linear_bias"):
        return 2 * size_of(shape) * inputs[0][-1]
    if name == "linear_weight":
        return 2 * size_of(inputs[0]) * inputs[1][-1]
    if name.startswith(("conv2d", "convolve3d")):
        return _convolution(name, shape, inputs, params["window"])
    if name in ("attention", "attention_masked"):
        return _attention(*inputs[:3]) // (2 if params.get("causal") else 1)
    if name in ("attention_grads", "attention_masked_grads"):  # five products where forward has two
        return 5 * _attention(*inputs[1:4]) // (4 if params.get("causal") else 2)
    if kind == "elementwise":
        return size_of(shape)
    return size_of(inputs[0]) if kind == "reduction" else 0


def flops_of(v: Value) -> int:
    """The same of a value in a graph."""
    return flops(v.name, v.kind, v.shape, [a.shape for a in v.args], v.params)


def _convolution(name: str, shape: Shape, inputs: Sequence[Shape], window: Any) -> int:
    of_weight = name.endswith("_weight")
    places = size_of(inputs[1][2:] if of_weight else shape[2:])
    channels = inputs[0][1] * (inputs[1][1] if of_weight else shape[1])
    return 2 * inputs[0][0] * places * size_of(window.size) * channels // int(window.groups)


def _attention(q: Shape, k: Shape, v: Shape) -> int:
    """Two products: queries with keys, weights with values."""
    return 2 * size_of(q[:-1]) * k[-2] * (q[-1] + v[-1])
