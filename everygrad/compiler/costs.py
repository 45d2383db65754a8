"""What an op costs, estimated from shapes: one operation an element, two a multiply-add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everygrad.compiler.facts import OpFacts
from everygrad.compiler.ir import Value
from everygrad.core.shapes import Shape, size_of


def flops(op: OpFacts, shape: Shape, inputs: Sequence[Shape], params: dict[str, Any]) -> int:
    """Arithmetic operations of an op that makes a result of this shape."""
    if op.flops is not None:
        return int(op.flops(shape, inputs, params))
    if op.family == "elementwise":
        return size_of(shape)
    return size_of(inputs[0]) if op.family == "reduction" else 0


def flops_of(v: Value) -> int:
    """The same of a value in a graph."""
    return 0 if v.op is None else flops(v.op, v.shape, [a.shape for a in v.args], v.params)


# --- what records of ops say ---------------------------------------------------------------------


def product(shape: Shape, inputs: Sequence[Shape], params: dict[str, Any]) -> int:
    """(..., m, k) times (..., k, n), or a weight's rows."""
    return 2 * size_of(shape) * inputs[0][-1]


def weight_product(shape: Shape, inputs: Sequence[Shape], params: dict[str, Any]) -> int:
    """The gradient of a weight: summed over all rows."""
    return 2 * size_of(inputs[0]) * inputs[1][-1]


def convolution(shape: Shape, inputs: Sequence[Shape], params: dict[str, Any]) -> int:
    """Of an image with a kernel, forwards or back to the image."""
    return _taps(inputs[0], inputs[0][1] * shape[1], shape[2:], params["window"])


def convolution_weight(shape: Shape, inputs: Sequence[Shape], params: dict[str, Any]) -> int:
    """The gradient of a kernel."""
    return _taps(inputs[0], inputs[0][1] * inputs[1][1], inputs[1][2:], params["window"])


def _taps(image: Shape, channels: int, places: Shape, window: Any) -> int:
    return 2 * image[0] * size_of(places) * size_of(window.size) * channels // int(window.groups)


def attention(shape: Shape, inputs: Sequence[Shape], params: dict[str, Any]) -> int:
    """Two products: queries with keys, weights with values; half of them where it is causal."""
    q, k, v = inputs[:3]
    both = 2 * size_of(q[:-1]) * k[-2] * (q[-1] + v[-1])
    return both // (2 if params.get("causal") else 1)


def attention_gradients(shape: Shape, inputs: Sequence[Shape], params: dict[str, Any]) -> int:
    """Five products where forward has two."""
    return 5 * attention(shape, inputs[1:4], {}) // (4 if params.get("causal") else 2)
