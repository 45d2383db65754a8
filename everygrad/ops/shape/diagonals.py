"""Diagonals read and written, and quarter turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.core import shapes
from everygrad.core.tensor import Tensor, view
from everygrad.errors import AxisError, ShapeError
from everygrad.ops.record import samples as s
from everygrad.ops.record.keywords import with_names
from everygrad.ops.record.spec import composite, refuse, same, sample
from everygrad.ops.shape.movement import flip, put_slices, slice_axis, swapaxes


def _two(op: str, axis1: int, axis2: int, ndim: int) -> tuple[int, int]:
    """Two different axes."""
    a, b = shapes.axis_tuple((axis1, axis2), ndim, op)
    return a, b


@composite(
    torch=lambda torch, x, offset=0, axis1=0, axis2=1: torch.diagonal(x, offset, axis1, axis2),
    reference=lambda x, offset=0, axis1=0, axis2=1: np.diagonal(x, offset, axis1, axis2),
    samples=lambda: iter(
        (
            sample(s.real(2, 3)),
            sample(s.real(3, 2, 2), offset=-1, axis1=-1, axis2=0),
            sample(s.real(2, 2), offset=5),
        )
    ),
    refuses=(
        refuse(AxisError, "diagonal: axis 1 is out of range for 1", s.real(3)),
        refuse(AxisError, "diagonal: .*names a dimension twice", s.real(3, 3), 0, 1, -1),
    ),
)
def diagonal(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1, **names: Any) -> Tensor:
    """The elements on a diagonal of two axes, as a last axis. A positive offset lies above."""
    if names:
        return with_names(diagonal, names, x, offset, axis1, axis2)
    a, b = _two("diagonal", axis1, axis2, x.ndim)
    k = shapes.as_int(offset, "diagonal", "offset")
    x = x.moveaxis((a, b), (-2, -1))
    rows, columns = x.shape[-2:]
    count = max(0, min(rows + min(k, 0), columns - max(k, 0)))
    start = (k if k >= 0 else -k * columns) if count else 0
    flat = x.reshape((*x.shape[:-2], rows * columns))  # from one to the next is a row and a column
    return slice_axis(flat, flat.ndim - 1, start, count, columns + 1)


def _embedded(x: Any, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Any:
    n = x.shape[-1] + abs(offset)
    out = np.zeros((*x.shape[:-1], n, n), x.dtype)
    i = np.arange(x.shape[-1])
    out[..., i + max(0, -offset), i + max(0, offset)] = x
    return np.moveaxis(out, (-2, -1), (axis1, axis2))


@composite(
    torch=lambda torch, x, offset=0, axis1=-2, axis2=-1: torch.diag_embed(x, offset, axis1, axis2),
    reference=_embedded,
    samples=lambda: iter((sample(s.real(2, 2), offset=1, axis1=0), sample(s.real(2), offset=-1))),
    refuses=(refuse(AxisError, "diag_embed: a 0-d tensor has no diagonal", s.real()),),
)
def diag_embed(
    x: Tensor, offset: int = 0, axis1: int = -2, axis2: int = -1, **names: Any
) -> Tensor:
    """The last axis put on a diagonal of two new axes, zero elsewhere: `diagonal` undone."""
    if names:
        return with_names(diag_embed, names, x, offset, axis1, axis2)
    if x.ndim == 0:
        raise AxisError("diag_embed: a 0-d tensor has no diagonal to embed; reshape it to (1,)")
    a, b = _two("diag_embed", axis1, axis2, x.ndim + 1)
    k = shapes.as_int(offset, "diag_embed", "offset")
    count = x.shape[-1]
    n = count + abs(k)
    start = k if k >= 0 else -k * n
    along = (start if count else 0, count, n + 1)
    slices = (*((0, m, 1) for m in x.shape[:-1]), along)
    flat = put_slices(x, (*x.shape[:-1], n * n), slices)
    return flat.reshape((*x.shape[:-1], n, n)).moveaxis((-2, -1), (a, b))


@composite(
    torch="torch:diag",
    reference=np.diag,
    samples=lambda: iter((sample(s.real(2), 1), sample(s.real(3, 2), -1))),
    refuses=(refuse(ShapeError, "diag: takes a vector or a matrix", s.real(2, 2, 2)),),
)
def diag(x: Tensor, offset: int = 0, **names: Any) -> Tensor:
    """A matrix with the vector x on a diagonal, or the diagonal of the matrix x."""
    if names:
        return with_names(diag, names, x, offset)
    if x.ndim not in (1, 2):
        raise ShapeError(
            f"diag: takes a vector or a matrix, got shape {x.shape}; see diagonal() and "
            f"diag_embed()"
        )
    return diag_embed(x, offset) if x.ndim == 1 else diagonal(x, offset)


@composite(
    torch=lambda torch, x, k=1, axes=(0, 1): torch.rot90(x, k, axes),
    reference=lambda x, k=1, axes=(0, 1): np.rot90(x, k, axes),
    samples=lambda: iter(
        (
            sample(s.real(2, 3)),
            sample(s.real(2, 2, 2), 2, axes=(0, -1)),
            sample(s.real(2, 3), -1),
        )
    ),
    refuses=(
        refuse(AxisError, "rot90: takes two axes", s.real(2, 3), 1, (0,)),
        refuse(AxisError, "rot90: .*names a dimension twice", s.real(2, 3), 1, (0, 0)),
    ),
)
def rot90(x: Tensor, k: int = 1, axes: Sequence[int] = (0, 1), **names: Any) -> Tensor:
    """x rotated by k quarters of a circle, from the first axis towards the second."""
    if names:
        return with_names(rot90, names, x, k, axes)
    if not isinstance(axes, Sequence) or len(axes) != 2:
        raise AxisError(f"rot90: takes two axes, got {axes!r}")
    a, b = _two("rot90", axes[0], axes[1], x.ndim)
    quarters = shapes.as_int(k, "rot90", "k") % 4
    if quarters == 0:
        return view(same(x), x)
    if quarters == 2:
        return flip(x, axis=(a, b))
    transposed = swapaxes(x, a, b)
    return flip(transposed, axis=a if quarters == 1 else b)
