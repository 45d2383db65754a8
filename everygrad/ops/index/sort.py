"""Sorting: the order of elements along an axis, and what is read off it.

NaN counts as larger than every number, as in NumPy and PyTorch: last when ascending, first when
descending. Equal elements keep their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.compiler.expr import call
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, AxisError, DtypeError
from everygrad.ops.elementwise.basic import isnan, where
from everygrad.ops.index.gather import gather
from everygrad.ops.python.creation import arange, full
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Elementwise, Kernel, check_kind
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.record.splits import other_axes
from everygrad.ops.record.torch_calls import ValuesAndIndices as ValuesAndIndices, in_order
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import flip, slice_axis

# --- the order -----------------------------------------------------------------------------------

Pair = tuple[Tensor, Tensor]  # keys and places


def _extremes(dtype: dtypes.DType) -> tuple[Any, Any]:
    """The smallest and the largest value of a dtype."""
    if dtype.is_float:
        return float("-inf"), float("inf")
    facts = np.iinfo(dtype.np)
    return int(facts.min), int(facts.max)


def _padded(keys: Tensor, descending: bool) -> Pair:
    """Keys without NaN, padded to a power of two, and places that break their ties.

    A NaN is the largest value, with a place beyond all others (or before, when descending); the
    padding is last in either case. The true place is what is left modulo the padded size.
    """
    rows, n = keys.shape
    size = 1 << (n - 1).bit_length()
    low, high = _extremes(keys.dtype)
    places = arange(n, dtype=dtypes.int32, device=keys.device).broadcast_to((rows, n))
    if keys.dtype.is_float:
        odd = isnan(keys)
        places = where(odd, places - size if descending else places + size, places)
        keys = where(odd, high, keys)
    if size == n:
        return keys, places
    rest = full((rows, size - n), low if descending else high, keys.dtype, keys.device)
    last = arange(n, size, dtype=dtypes.int32, device=keys.device) + 2 * size
    return (
        concat([keys, rest], axis=1),
        concat([places, last.broadcast_to((rows, size - n))], axis=1),
    )


def _swaps(key: Any, place: Any, other: Any, its: Any, second: Any, descending: bool) -> Any:
    """Whether an element and its partner change places, of which `second` stands behind."""
    after = call("lt", key, other) if descending else call("gt", key, other)
    after = after | (call("eq", key, other) & call("gt", place, its))
    return call("xor", after, second)


# a round of the network for each element: its key, its place, those of its partner, whether the
# partner stands before it
KEY: Elementwise = Elementwise(
    "argsort.key",
    lambda key, place, other, its, second, *, descending: call(
        "select", _swaps(key, place, other, its, second, descending), other, key
    ),
)
PLACE: Elementwise = Elementwise(
    "argsort.place",
    lambda key, place, other, its, second, *, descending: call(
        "select", _swaps(key, place, other, its, second, descending), its, place
    ),
)


def _round(pair: Pair, second: Tensor, width: int, mirrored: bool, descending: bool) -> Pair:
    """Each run of `width` elements compared, half against half; the second read backwards first."""
    rows, size = pair[0].shape
    key, place = (v.reshape((rows, size // width, 2, width // 2)) for v in pair)
    axes = (2, 3) if mirrored else (2,)
    given = key, place, flip(key, axes), flip(place, axes), second
    made = [apply(op, *given, descending=descending).reshape(rows, size) for op in (KEY, PLACE)]
    return made[0], made[1]


def _argsort_portable(x: Tensor, axis: int, descending: bool) -> Tensor:
    """A bitonic network, all of whose comparisons point the same way: log(n)^2 / 2 rounds."""
    moved = x.moveaxis(axis, -1)
    n = moved.shape[-1]
    keys = moved.reshape((shapes.size_of(moved.shape[:-1]), n))
    if x.dtype in (dtypes.bool_, dtypes.float16, dtypes.bfloat16):
        keys = keys.astype(dtypes.float32)
    if n < 2:
        return arange(n, device=x.device).broadcast_to(moved.shape).moveaxis(-1, axis)
    pair = _padded(keys, descending)
    second = arange(2, device=x.device).reshape(2, 1) == 1
    size, width = pair[0].shape[1], 2
    while width <= size:
        pair = _round(pair, second, width, True, descending)
        part = width // 2
        while part > 1:
            pair = _round(pair, second, part, False, descending)
            part //= 2
        width *= 2
    places = slice_axis(pair[1], 1, 0, n) & (size - 1)
    return places.astype(dtypes.int64).reshape(moved.shape).moveaxis(-1, axis)


ARGSORT: Kernel = Kernel(
    "argsort",
    _argsort_portable,
    ("x",),
    constant=True,
    batch=lambda xs, axis, descending: apply(ARGSORT, xs[0], axis=axis + 1, descending=descending),
    result=lambda x, axis, descending: (x.shape, dtypes.int64),
    splits=other_axes,
)


def _along(op: str, x: Tensor, axis: int) -> int:
    check_kind(op, x.dtype, "ordered")
    return shapes.axis_index(axis, x.ndim, op)


def argsort(x: Tensor, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that sort x along an axis. Always stable; NaN counts as the largest."""
    return apply(ARGSORT, x, axis=_along("argsort", x, axis), descending=bool(descending))


def _reference(x: Any, axis: int = -1, descending: bool = False) -> Any:
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    n = x.shape[axis]
    return n - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


def _sorted_reference(x: Any, axis: int = -1, descending: bool = False) -> Any:
    return np.take_along_axis(x, _reference(x, axis, descending), axis)


register(
    ARGSORT,
    argsort,
    scalar_rows="row",
    methods=("argsort",),
    kinds="ordered",
    gives="index",
    reference=_reference,
    samples=lambda: iter(
        (
            sample(np.array([2.0, np.nan, 2.0, -1.0])),
            sample(s.real(3, 2), axis=0, descending=True),
            sample(s.real(2, 0)),
        )
    ),
    refuses=(
        refuse(AxisError, "argsort: axis 2 is out of range", s.real(2, 3), axis=2),
        refuse(DtypeError, "argsort: does not take complex128", s.real(2) * 1j),
    ),
)

# --- what is read off it -------------------------------------------------------------------------


def _ordered_samples() -> Any:
    yield sample(s.real(2, 3))
    yield sample(s.real(4, 1), axis=0, descending=True)


# without a derivative a sort of the values alone is faster; with one, the order has to be known
SORT: Kernel = Kernel(
    "sort",
    lambda x, axis, descending: gather(
        x, apply(ARGSORT, x.detach(), axis=axis, descending=descending), axis
    ),
    ("x",),
    batch=lambda xs, axis, descending: apply(SORT, xs[0], axis=axis + 1, descending=descending),
    result=lambda x, axis, descending: (x.shape, x.dtype),
    splits=other_axes,
)


def sort(
    x: Tensor,
    *dim: Any,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    **names: Any,
) -> Any:
    """The elements in order along an axis. The gradient goes back to where each came from.

    An axis by position or as `dim=` is PyTorch's call, which gives the indices too:
    `values, indices = x.sort(1)`.
    """
    if dim or names:
        return in_order(x, dim, axis, descending, stable, names)
    return apply(SORT, x, axis=_along("sort", x, axis), descending=bool(descending))


register(
    SORT,
    sort,
    scalar_rows="row",
    methods=("sort",),
    kinds="ordered",
    torch=lambda torch, x, axis=-1, descending=False: torch.sort(x, axis, descending).values,
    reference=_sorted_reference,
    samples=_ordered_samples,
    refuses=(refuse(AxisError, "sort: axis 2 is out of range", s.real(2, 3), axis=2),),
)


@composite(
    kinds="ordered",
    torch="torch:msort",
    reference=lambda x: np.sort(x, axis=0),
    samples=lambda: iter((sample(s.real(3, 2)),)),
    refuses=(refuse(AxisError, "sort: axis 0 given, but a 0-d", s.real()),),
)
def msort(x: Tensor) -> Tensor:
    """`sort` along the first axis."""
    return sort(x, axis=0)


def _top_portable(x: Tensor, axis: int, k: int, largest: bool) -> Tensor:
    order = apply(ARGSORT, x, axis=axis, descending=largest)
    return slice_axis(order, axis, 0, k)


TOP_INDEX: Kernel = Kernel(
    "top_index",
    _top_portable,
    ("x",),
    constant=True,
    batch=lambda xs, axis, k, largest: apply(TOP_INDEX, xs[0], axis=axis + 1, k=k, largest=largest),
    result=lambda x, axis, k, largest: (
        (*x.shape[:axis], k, *x.shape[axis + 1 :]),
        dtypes.int64,
    ),
    splits=other_axes,
)
register(
    TOP_INDEX,
    lambda x, axis, k, largest: apply(TOP_INDEX, x, axis=axis, k=k, largest=largest),
    namespace="internal",
    gives="index",
    reference=lambda x, axis, k, largest: np.take(_reference(x, axis, largest), range(k), axis),
    samples=lambda: iter(
        (sample(np.array([1.0, 2.0, 2.0, 0.0]), 0, 1, True), sample(s.real(2, 4), 1, 2, False))
    ),
)


def _check_count(op: str, k: Any, x: Tensor, axis: int, least: int) -> int:
    count = shapes.as_int(k, op, "k")
    if not least <= count <= x.shape[axis]:
        raise ArgumentError(
            f"{op}: k must be from {least} to {x.shape[axis]}, the size of axis {axis} of "
            f"{x.shape}; got {count}"
        )
    return count


@composite(
    scalar_rows="row",
    kinds="ordered",
    tested_as=lambda *args, **kwargs: topk(*args, **kwargs).values,
    torch=lambda torch, x, k, axis=-1, largest=True: torch.topk(x, k, axis, largest).values,
    reference=lambda x, k, axis=-1, largest=True: np.take(
        _sorted_reference(x, axis, largest), range(k), axis
    ),
    samples=lambda: iter((sample(s.real(2, 4), 2), sample(s.real(3), 2, axis=0, largest=False))),
    refuses=(refuse(ArgumentError, "topk: k must be from 0 to 3.*got 4", s.real(3), 4),),
)
def topk(
    x: Tensor, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> ValuesAndIndices:
    """The k largest (or smallest) elements along an axis, and their indices.

    In order, whatever `sorted` says; of equal elements the first.
    """
    at = _along("topk", x, axis)
    count = _check_count("topk", k, x, at, 0)
    indices = apply(TOP_INDEX, x, axis=at, k=count, largest=bool(largest))
    return ValuesAndIndices(gather(x, indices, at), indices)


@composite(
    scalar_rows="row",
    kinds="ordered",
    tested_as=lambda *args, **kwargs: kthvalue(*args, **kwargs).values,
    torch=lambda torch, x, k, axis=-1: torch.kthvalue(x, k, axis).values,
    reference=lambda x, k, axis=-1: np.take(np.sort(x, axis=axis), k - 1, axis),
    samples=lambda: iter((sample(s.real(2, 4), 2), sample(s.real(3), 3, axis=0))),
    refuses=(refuse(ArgumentError, "kthvalue: k must be from 1 to 3.*got 0", s.real(3), 0),),
)
def kthvalue(x: Tensor, k: int, axis: int = -1, keepdims: bool = False) -> ValuesAndIndices:
    """The k-th smallest element along an axis, counted from 1, and its index."""
    at = _along("kthvalue", x, axis)
    place = _check_count("kthvalue", k, x, at, 1) - 1
    order = apply(ARGSORT, x, axis=at, descending=False)
    indices = slice_axis(order, at, place, 1)
    shape = shapes.reduced(x.shape, (at,), keepdims)
    return ValuesAndIndices(gather(x, indices, at).reshape(shape), indices.reshape(shape))
