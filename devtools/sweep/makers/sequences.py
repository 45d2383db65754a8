"""Losses of sequences, and complex numbers in elementwise ops and products."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem


def ctc(d: Draw) -> Problem:
    """Lengths of every kind, repeated labels among them."""
    batch, classes = d.size(9), d.between(2, 40)
    longest = d.size(d.pick((3, 12, 40)))
    steps = d.between(2 * longest + 1, 2 * longest + 9)  # every target can be emitted
    dtype, reduction = d.dtype(halves=0), d.pick(("none", "sum", "mean"))
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


SECTION = OpSection(
    "sequences",
    ("complex_functions", "ctc", "scan"),
    {"ctc_loss": (1, ctc), "complex": (1, complexes), "complex matmul": (0.5, complex_products)},
    weight=0.5,
    absent={"webgpu": ("complex", "complex matmul")},
)
