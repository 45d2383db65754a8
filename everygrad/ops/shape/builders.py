"""Tensors made of few numbers: places of a triangle, powers, blocks, all pairs; one-hot rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, OutOfRangeError, ShapeError
from everygrad.ops.index.gather import CHECK_RANGE
from everygrad.ops.linalg.checks import constant
from everygrad.ops.python.creation import arange, meshgrid, zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.keywords import spelled
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.shape.joining import concat, stack


def broadcast_shapes(*given: Any) -> tuple[int, ...]:
    """The shape that tensors of these shapes, or of one axis of these sizes, broadcast to.

    >>> import everygrad as eg
    >>> eg.broadcast_shapes((3, 1), (4,), 1)
    (3, 4)
    """
    found = [(one,) if isinstance(one, int) else tuple(one) for one in given]
    return shapes.broadcast("broadcast_shapes", *found) if found else ()


@spelled
def logspace(
    start: float,
    stop: float,
    num: int,
    base: float = 10.0,
    dtype: Any = None,
    device: str | None = None,
) -> Tensor:
    """`num` numbers from base ** start to base ** stop, each the same factor above the last."""
    wanted = dtypes.as_dtype(dtype or dtypes.DEFAULT_FLOAT)
    if num < 0:
        raise ArgumentError(f"logspace: num must not be negative, got {num}")
    return constant((base ** np.linspace(start, stop, num)).astype(wanted.np), device)


def _triangle(
    op: str, rows: int, columns: int, places: Any, device: str | None, dtype: Any
) -> Tensor:
    for name, size in (("rows", rows), ("columns", columns)):
        if shapes.as_int(size, op, name) < 0:
            raise ArgumentError(f"{op}: {name} must not be negative, got {size}")
    wanted = dtypes.as_dtype(dtype or dtypes.int64)
    return constant(np.stack(places).astype(wanted.np), device)


@spelled
def tril_indices(
    rows: int, columns: int, offset: int = 0, device: str | None = None, dtype: Any = None
) -> Tensor:
    """(2, count): the rows and columns of what `tril` keeps of a matrix."""
    places = np.tril_indices(max(rows, 0), offset, max(columns, 0))
    return _triangle("tril_indices", rows, columns, places, device, dtype)


@spelled
def triu_indices(
    rows: int, columns: int, offset: int = 0, device: str | None = None, dtype: Any = None
) -> Tensor:
    """(2, count): the rows and columns of what `triu` keeps of a matrix."""
    places = np.triu_indices(max(rows, 0), offset, max(columns, 0))
    return _triangle("triu_indices", rows, columns, places, device, dtype)


def _one_hot_reference(x: Any, num_classes: int) -> Any:
    return (x[..., None] == np.arange(num_classes)).astype(np.int64)


@composite(
    kinds="integer",
    methods=(),
    gives="index",
    flat=True,
    torch=None,
    reference=_one_hot_reference,
    samples=lambda: iter((sample(s.integers(2, 2, high=3), 3), sample(s.integers(3), 5))),
    refuses=(
        refuse(OutOfRangeError, "one_hot: label 4", np.array([0, 4]), 3),
        refuse(DtypeError, "one_hot: does not take float64", s.real(2), 3),
        refuse(ArgumentError, "one_hot: num_classes must be at least 1", np.array([0]), 0),
    ),
)
def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """For each label a row of `num_classes` integers, 1 at the label and 0 elsewhere. With -1 the
    largest label is the last class; it must be known for that."""
    check_kind("one_hot", x.dtype, "integer")
    count = shapes.as_int(num_classes, "one_hot", "num_classes")
    if count == -1 and x.size:
        count = 1 + int(x.max().item())
    if count < 1:
        raise ArgumentError(f"one_hot: num_classes must be at least 1, got {count}")
    labels = apply(CHECK_RANGE, x.astype(dtypes.int64), size=count, what="one_hot: label")
    return (labels.expand_dims(-1) == arange(count, device=x.device)).astype(dtypes.int64)


@composite(
    kinds="numeric",
    methods=(),
    torch=lambda torch, *blocks: torch.block_diag(*blocks),
    reference=lambda *blocks: _blocks_reference(*blocks),
    samples=lambda: iter(
        (sample(s.real(2, 2), s.real(1, 3, seed=1)), sample(s.real(2), s.real(), s.real(0, 2)))
    ),
    refuses=(refuse(ShapeError, r"block_diag: .* got \(1, 2, 2\)", s.real(1, 2, 2)),),
)
def block_diag(*blocks: Tensor) -> Tensor:
    """A matrix with these along its diagonal, and 0 elsewhere; a vector is a row."""
    if not blocks:
        raise ArgumentError("block_diag: needs at least one matrix")
    for block in blocks:
        if block.ndim > 2:
            raise ShapeError(f"block_diag: takes matrices, vectors and numbers, got {block.shape}")
    flat = [b if b.ndim == 2 else b.reshape((1, -1)) for b in blocks]
    width, before, rows = sum(b.shape[1] for b in flat), 0, []
    for b in flat:
        rows.append(b.pad(((0, 0), (before, width - before - b.shape[1]))))
        before += b.shape[1]
    return concat(rows, axis=0)


def _blocks_reference(*blocks: Any) -> Any:
    flat = [np.atleast_2d(b) for b in blocks]
    out = np.zeros((sum(len(b) for b in flat), sum(b.shape[1] for b in flat)), flat[0].dtype)
    row = column = 0
    for b in flat:
        out[row : row + len(b), column : column + b.shape[1]] = b
        row, column = row + len(b), column + b.shape[1]
    return out


@composite(
    kinds="numeric",
    methods=(),
    torch=lambda torch, *xs: torch.cartesian_prod(*xs),
    reference=lambda *xs: (
        np.stack([m.reshape(-1) for m in np.meshgrid(*xs, indexing="ij")], -1)
        if len(xs) > 1
        else xs[0]
    ),
    samples=lambda: iter((sample(s.real(2), s.real(3, seed=1)), sample(s.real(3)))),
    refuses=(refuse(ShapeError, r"cartesian_prod: .* got \(2, 2\)", s.real(2, 2)),),
)
def cartesian_prod(*vectors: Tensor) -> Tensor:
    """(count, vectors): every choice of one element of each, the last changing fastest."""
    if not vectors:
        raise ArgumentError("cartesian_prod: needs at least one vector")
    for v in vectors:
        if v.ndim != 1:
            raise ShapeError(f"cartesian_prod: takes vectors, got {v.shape}")
    if len(vectors) == 1:
        return vectors[0]
    return stack([m.reshape((-1,)) for m in meshgrid(*vectors, indexing="ij")], axis=1)


@composite(
    kinds="numeric",
    methods=(),
    torch=None,
    reference=lambda x, n=None, increasing=False: np.stack(
        [x**k for k in (range(n or x.shape[-1]) if increasing else range(n or x.shape[-1])[::-1])],
        -1,
    ),
    samples=lambda: iter((sample(s.real(3)), sample(s.real(2, 2), n=4, increasing=True))),
    refuses=(
        refuse(ArgumentError, "vander: n must not be negative, got -1", s.real(3), n=-1),
        refuse(ShapeError, "vander: needs vectors", s.real()),
    ),
)
def vander(x: Tensor, n: int | None = None, increasing: bool = False) -> Tensor:
    """For each element of the last axis a row of its powers n - 1 down to 0, or up from 0."""
    check_kind("vander", x.dtype, "numeric")
    if not x.ndim:
        raise ShapeError("vander: needs vectors, got a 0-d tensor")
    count = x.shape[-1] if n is None else shapes.as_int(n, "vander", "n")
    if count < 0:
        raise ArgumentError(f"vander: n must not be negative, got {count}")
    if not count:
        return zeros((*x.shape, 0), dtype=x.dtype, device=x.device)
    powers = [x * 0 + 1] + [x] * (count > 1)
    for _ in range(2, count):
        powers.append(powers[-1] * x)
    return stack(powers if increasing else powers[::-1], axis=-1)


@composite(
    torch=lambda torch, x, axis, sizes: torch.unflatten(x, axis, sizes),
    reference=lambda x, axis, sizes: x.reshape(
        (*x.shape[: axis % x.ndim], *sizes, *x.shape[axis % x.ndim + 1 :])
    ),
    samples=lambda: iter((sample(s.real(2, 6), 1, (2, 3)), sample(s.real(4, 2), -2, (2, -1)))),
    refuses=(refuse(ShapeError, "unflatten: .* do not make", s.real(2, 6), 1, (4, 2)),),
)
def unflatten(x: Tensor, axis: int, sizes: Sequence[int]) -> Tensor:
    """x with one axis as several, of these sizes; one of them may be -1."""
    at = shapes.axis_index(axis, x.ndim, "unflatten")
    sizes = shapes.as_shape(sizes, "unflatten")
    known = shapes.size_of(tuple(n for n in sizes if n != -1))
    free = sizes.count(-1)
    size = x.shape[at]
    if free > 1 or (free and (not known or size % known)) or (not free and known != size):
        raise ShapeError(f"unflatten: sizes {sizes} do not make the {size} of axis {axis}")
    return x.reshape((*x.shape[:at], *sizes, *x.shape[at + 1 :]))
