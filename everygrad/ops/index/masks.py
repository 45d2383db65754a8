"""Selecting by masks: which elements are not 0, and writing or reading where a mask is true.

Results whose size depends on values are eager only: one number is read from the device, and the
rest happens there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply, as_tensor
from everygrad.errors import DtypeError, OutOfRangeError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import CHECK_RANGE, known, last_write, take
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.reduce.norms_and_counts import count_nonzero
from everygrad.ops.reduce.scans import cumulative_sum
from everygrad.ops.shape.joining import stack
from everygrad.ops.shape.movement import slice_axis


def _places_portable(mask: Tensor, count: int) -> Tensor:
    """Each true element writes its place where its rank among the true ones says."""
    rank = cumulative_sum(mask, dtype=dtypes.int32) - 1
    written = last_write(where(mask, rank, count), count + 1)
    return slice_axis(written, 0, 0, count).astype(dtypes.int64)


NONZERO_PLACES: Kernel = Kernel(
    "nonzero_indices",
    _places_portable,
    ("mask",),
    constant=True,
    result=lambda mask, count: ((count,), dtypes.int64),
)
register(
    NONZERO_PLACES,
    lambda mask, count: apply(NONZERO_PLACES, mask, count=count),
    namespace="internal",
    gives="index",
    reference=lambda mask, count: np.flatnonzero(mask),
    samples=lambda: iter((sample(np.array([True, False, True, True]), 3),)),
)


def true_places(op: str, mask: Tensor) -> Tensor:
    """Where a mask is true, counted as if it were flat."""
    count = known(op, count_nonzero(mask))
    return apply(NONZERO_PLACES, mask.reshape(-1), count=count)


def _check_mask(op: str, mask: Any) -> None:
    if not isinstance(mask, Tensor) or mask.dtype is not dtypes.bool_:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise DtypeError(f"{op}: the mask must be a bool tensor, got {got}; compare first")


# --- which elements are not 0 --------------------------------------------------------------------


def _nonzero(op: str, x: Tensor) -> tuple[Tensor, ...]:
    if x.ndim == 0:
        raise ShapeError(f"{op}: a 0-d tensor has no axes to give indices for; reshape it to (1,)")
    there = x if x.dtype is dtypes.bool_ else x != 0
    rest = true_places(op, there)
    found = []
    for n in reversed(x.shape[1:]):
        found.append(rest % n if n else rest)
        rest = rest // n if n else rest
    return (rest, *reversed(found))


def _holed(*shape: int) -> Any:
    return np.where(s.booleans(*shape), s.real(*shape), 0.0)


_ZERO_D: Any = (refuse(ShapeError, "a 0-d tensor has no axes to give indices for", s.real()),)


@composite(
    by_values=True,
    flat=True,
    gives="index",
    reference=np.nonzero,
    samples=lambda: iter((sample(_holed(2, 3)), sample(s.booleans(4)), sample(s.real(0, 2)))),
    refuses=_ZERO_D,
)
def nonzero(x: Tensor, as_tuple: bool = True) -> Any:
    """The indices of the elements that are not 0, in C order: a vector for each axis; with
    `as_tuple=False`, as `argwhere` has them."""
    return _nonzero("nonzero", x) if as_tuple else argwhere(x)


@composite(
    by_values=True,
    flat=True,
    gives="index",
    reference=np.argwhere,
    samples=lambda: iter((sample(_holed(2, 3)), sample(s.booleans(4)))),
    refuses=_ZERO_D,
)
def argwhere(x: Tensor) -> Tensor:
    """The indices of the elements that are not 0, in C order: a row for each element."""
    return stack(_nonzero("argwhere", x), axis=1)


# --- masks ---------------------------------------------------------------------------------------


@composite(
    by_values=True,
    torch="torch:masked_select",
    reference=lambda x, mask: np.broadcast_arrays(x, mask)[0][np.broadcast_arrays(x, mask)[1]],
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.booleans(2, 3)),
            sample(s.real(2, 1), s.booleans(2)),
            sample(s.real(2), np.zeros(2, bool)),
        )
    ),
    refuses=(
        refuse(DtypeError, "masked_select: the mask must be a bool", s.real(2), s.real(2)),
        refuse(ShapeError, "masked_select: cannot broadcast", s.real(2), s.booleans(3)),
    ),
)
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask is true, as a vector; x and mask broadcast."""
    _check_mask("masked_select", mask)
    shape = shapes.broadcast("masked_select", x.shape, mask.shape)
    places = true_places("masked_select", mask.broadcast_to(shape))
    return take(x.broadcast_to(shape), places, axis=None)


def _fill(op: str, value: Any, x: Tensor) -> Tensor:
    """A value to fill with, in x's dtype."""
    value = value if isinstance(value, Tensor) else as_tensor(value, x)
    if value.dtype is not x.dtype and dtypes.promote(x.dtype, value.dtype) is not x.dtype:
        raise DtypeError(f"{op}: {value.dtype} does not fit into {x.dtype}; use astype()")
    return value.astype(x.dtype)


@composite(
    torch="torch:masked_fill",
    reference=lambda x, mask, value: np.where(mask, np.asarray(value).astype(x.dtype), x),
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.booleans(3), 7),
            sample(s.real(2), s.booleans(2), s.real(seed=1)),
        )
    ),
    refuses=(
        refuse(DtypeError, "masked_fill: the mask must be a bool", s.real(2), s.real(2), 0.0),
        refuse(DtypeError, "masked_fill: .*does not fit", s.integers(2), s.booleans(2), 0.5),
        refuse(ShapeError, "masked_fill: a value is a number", s.real(2), s.booleans(2), s.real(2)),
    ),
)
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """x with one value wherever the mask is true."""
    _check_mask("masked_fill", mask)
    value = _fill("masked_fill", value, x)
    if value.ndim:
        raise ShapeError(f"masked_fill: a value is a number, got shape {value.shape}; see where()")
    return where(mask, value, x)


def _scattered(x: Any, mask: Any, source: Any) -> Any:
    out = x.copy()
    mask = np.broadcast_to(mask, x.shape)
    out[mask] = source.reshape(-1)[: np.count_nonzero(mask)]
    return out


@composite(
    torch="torch:masked_scatter",
    reference=_scattered,
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.booleans(2, 3), s.real(6, seed=1)),
            sample(s.real(2, 2), np.array([True, False]), s.real(2, 2, seed=1)),
        )
    ),
    refuses=(
        refuse(DtypeError, "masked_scatter: the mask must be", s.real(2), s.real(2), s.real(2)),
        refuse(
            OutOfRangeError,
            "masked_scatter: element 1 is out of range",
            s.real(2),
            np.array([True, True]),
            s.real(1),
        ),
        refuse(ShapeError, "masked_scatter: a mask of", s.real(2), s.booleans(2, 2), s.real(4)),
    ),
)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """x with the elements where the mask is true replaced by those of `source`, in order."""
    _check_mask("masked_scatter", mask)
    if shapes.broadcast("masked_scatter", x.shape, mask.shape) != x.shape:
        raise ShapeError(f"masked_scatter: a mask of {mask.shape} does not fit x of {x.shape}")
    flat = mask.broadcast_to(x.shape).reshape(-1)
    source = _fill("masked_scatter", source, x).reshape(-1)
    what = "masked_scatter: element"
    if source.size == 0:  # right only if the mask is true nowhere
        bad = apply(CHECK_RANGE, flat.astype(dtypes.int64), size=1, what=what) > 0
        return where(bad, source.sum().astype(x.dtype), x.reshape(-1)).reshape(x.shape)
    rank = where(flat, cumulative_sum(flat) - 1, 0)
    rank = apply(CHECK_RANGE, rank, size=source.size, what=what)
    return where(flat, take(source, rank, 0), x.reshape(-1)).reshape(x.shape)
