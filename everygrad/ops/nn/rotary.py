"""Rotary position embedding: pairs of elements rotated by angles that grow with the position."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import multiply
from everygrad.ops.elementwise.math import cos, exp, sin
from everygrad.ops.python.creation import arange
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.shape.joining import concat, stack
from everygrad.ops.shape.movement import slice_axis


def _reference(
    x: Any, positions: Any = None, base: float = 10000.0, interleaved: bool = False
) -> Any:
    half = x.shape[-1] // 2
    where = np.arange(x.shape[-2]) if positions is None else positions
    angles = np.asarray(where)[..., None] * base ** (-np.arange(half) / half)
    wide = x.astype(np.float64)
    first, second = (
        (wide[..., ::2], wide[..., 1::2]) if interleaved else (wide[..., :half], wide[..., half:])
    )
    rotated = first + 1j * second
    rotated = rotated * np.exp(1j * angles)
    pair = (rotated.real, rotated.imag)
    out = np.stack(pair, -1).reshape(x.shape) if interleaved else np.concatenate(pair, -1)
    return out.astype(x.dtype)


@composite(
    kinds="real float",
    torch=None,
    reference=_reference,
    samples=lambda: iter(
        (
            sample(s.real(3, 4)),
            sample(s.real(2, 2, 2), positions=np.array([5, 0]), base=100.0, interleaved=True),
        )
    ),
    refuses=(
        refuse(ShapeError, "rotary_embedding: the last axis of .* must be even", s.real(2, 3)),
        refuse(ShapeError, "rotary_embedding: x needs two axes", s.real(4)),
        refuse(ArgumentError, "rotary_embedding: base must be above 0", s.real(2, 2), base=0.0),
    ),
)
def rotary_embedding(
    x: Tensor, positions: Tensor | None = None, base: float = 10000.0, interleaved: bool = False
) -> Tensor:
    """x, of (..., positions, width), with each pair of elements rotated by position times
    base ** (-i / (width / 2)); the i-th pair is elements i and i + width / 2, or `interleaved`
    2 i and 2 i + 1. Products of two such vectors depend on the distance of their positions alone.
    """
    check_kind("rotary_embedding", x.dtype, "real float")
    if x.ndim < 2:
        raise ShapeError(
            f"rotary_embedding: x needs two axes, positions and width; it has shape {x.shape}"
        )
    if x.shape[-1] % 2:
        raise ShapeError(f"rotary_embedding: the last axis of {x.shape} must be even, for pairs")
    if base <= 0:
        raise ArgumentError(f"rotary_embedding: base must be above 0, got {base}")
    half = x.shape[-1] // 2
    wide = x if x.dtype is dtypes.float64 else x.astype(dtypes.float32)
    where = arange(x.shape[-2], device=x.device) if positions is None else positions
    rates = arange(half, dtype=wide.dtype, device=x.device) * (-np.log(base) / max(1, half)).item()
    angles = multiply(where.astype(wide.dtype).expand_dims(-1), exp(rates))
    turn, lean = cos(angles), sin(angles)
    if interleaved:
        first, second = (slice_axis(wide, x.ndim - 1, start, half, 2) for start in (0, 1))
    else:
        first, second = (slice_axis(wide, x.ndim - 1, start, half) for start in (0, half))
    pair = [first * turn - second * lean, second * turn + first * lean]
    out = stack(pair, axis=-1).reshape(x.shape) if interleaved else concat(pair, axis=-1)
    return out.astype(x.dtype)
