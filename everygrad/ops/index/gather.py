"""Gathering and scattering: take, gather, scatter_add, and the kernels that getitem is made of.

An index outside its axis raises OutOfRangeError before anything is read. In `x[...]`, `take` and
`take_along_axis` negative indices are made positive first; `taken` and `taken_along` take none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends import base
from everygrad.compiler.facts import ValueCheck
from everygrad.core import shapes
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor, Wrapped, shared, wrap
from everygrad.dispatch import apply
from everygrad.errors import AxisError, DtypeError, OutOfRangeError, ShapeError, TraceError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import arange, zeros
from everygrad.ops.record import samples as s, splits
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import composite, refuse, register, same, sample
from everygrad.ops.shape.piecewise_gradient import Picking, join_gathered, join_taken


def check_index(op: str, index: Any) -> None:
    """Refuse anything but an integer tensor as an index."""
    if not isinstance(index, Tensor) or not index.dtype.is_integer:
        got = index.dtype if isinstance(index, Tensor) else type(index).__name__
        # PyTorch has the axis first
        cure = f"; the index comes before the axis: {op}(x, index, ...)" if got == "int" else ""
        raise DtypeError(f"{op}: the index must be an integer tensor, got {got}{cure}")


def positive(index: Tensor, size: int) -> Tensor:
    """Negative indices counted from the end of an axis; what is on neither side stays as it is."""
    if index.dtype.kind == "uint":
        return index
    payload = shared(index)
    if type(payload) is np.ndarray:  # values to look at: mostly none is negative
        if not payload.size or payload.min() >= 0:
            return index
        inside = (payload < 0) & (payload >= -size)
        return wrap(np.where(inside, payload.astype(np.int64) + size, payload))
    if size > dtypes.iinfo(index.dtype).max:
        index = index.astype(dtypes.int64)
    return where((index < 0) & (index >= -size), index + size, index)


def known(op: str, counts: Tensor) -> Any:
    """The numbers that the size of a result depends on, read from the device."""
    payload = shared(counts.detach())
    if isinstance(payload, Wrapped):
        raise TraceError(
            f"{op}: the size of the result depends on values, which are not known inside jit and "
            f"vmap; call it outside"
        )
    return base.get(counts.device).to_numpy(payload).tolist()


def _one_hot(index: Tensor, size: int, axis: int) -> Tensor:
    """index == 0, 1, ... size - 1 along a new axis at `axis`."""
    rest = index.ndim - axis
    places = arange(size, dtype=index.dtype, device=index.device).reshape((-1,) + (1,) * rest)
    return index.expand_dims(axis) == places


# --- take: whole slices along one axis -----------------------------------------------------------


def _take_portable(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """Sum over the axis of x where the index points, zero elsewhere."""
    flat = index.reshape(-1)
    hot = _one_hot(flat, x.shape[axis], 1)  # (index, axis)
    after = x.ndim - axis - 1
    hot = hot.reshape((*hot.shape, *(1,) * after))
    picked = where(hot, x.expand_dims(axis), zeros((), x.dtype, x.device)).sum(axis=axis + 1)
    return picked.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])).astype(x.dtype)


def _index_add_portable(x: Tensor, index: Tensor, source: Tensor, axis: int) -> Tensor:
    hot = _one_hot(index, x.shape[axis], 0)  # (axis, index)
    after = x.ndim - axis - 1
    hot = hot.reshape((*hot.shape, *(1,) * after))
    spread = where(hot, source.expand_dims(axis), zeros((), x.dtype, x.device))
    return x + spread.sum(axis=axis + 1).astype(x.dtype)


def _take_transpose(g: Tensor, index: Tensor, shape: Shape, axis: int) -> Tensor:
    g = g.reshape((*shape[:axis], index.size, *shape[axis + 1 :]))
    return apply(INDEX_ADD, zeros(shape, g.dtype, g.device), index.reshape(-1), g, axis=axis)


class _Take(Picking):
    """Batched where either side is, without copying the other."""

    def batched(
        self, values: Sequence[Tensor], flags: Sequence[bool], size: int, params: dict[str, Any]
    ) -> Tensor:
        (x, index), axis = values, params["axis"]
        if not flags[1]:
            return apply(TAKE, x, index, axis=axis + 1)
        if not flags[0]:
            return apply(TAKE, x, index, axis=axis).moveaxis(axis, 0)
        x = x.moveaxis(axis + 1, 1)
        rows, shifted = _merged(x, index)
        out = apply(TAKE, rows, shifted, axis=0)
        picked = tuple(range(1, index.ndim))
        return out.moveaxis(picked, tuple(axis + a for a in picked))


def _merged(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, n, ...) as one long first axis, and indices shifted to each example's part of it."""
    size, n = x.shape[:2]
    index = apply(CHECK_RANGE, index, size=n, what="take: index")
    start = arange(size, dtype=index.dtype, device=index.device) * n
    start = start.reshape((-1,) + (1,) * (index.ndim - 1))
    return x.reshape((size * n, *x.shape[2:])), index + start


class _IndexAdd(Kernel):
    def batched(
        self, values: Sequence[Tensor], flags: Sequence[bool], size: int, params: dict[str, Any]
    ) -> Tensor:
        axis = params["axis"]
        x, index, source = (
            v
            if has or (i == 1 and not flags[1])
            else v.expand_dims(0).broadcast_to((size, *v.shape))
            for i, (v, has) in enumerate(zip(values, flags, strict=True))
        )
        if not flags[1]:
            return apply(INDEX_ADD, x, index, source, axis=axis + 1)
        x, source = x.moveaxis(axis + 1, 1), source.moveaxis(axis + 1, 1)
        rows, shifted = _merged(x, index)
        flat = source.reshape((-1, *source.shape[2:]))
        out = apply(INDEX_ADD, rows, shifted.reshape(-1), flat, axis=0)
        return out.reshape(x.shape).moveaxis(1, axis + 1)


TAKE: Kernel = _Take(
    "take",
    _take_portable,
    ("x", "index"),
    (_take_transpose, None),
    join=join_taken,
    linear=(0,),
    result=lambda x, index, axis: (
        (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]),
        x.dtype,
    ),
    index_input=1,
    indexed_load=True,
    splits=splits.take_axes,
)
CHECK_RANGE: Kernel = Kernel(
    "check_range",
    lambda x, size, what: x,
    ("x",),
    constant=True,
    batch=lambda xs, size, what: apply(CHECK_RANGE, xs[0], size=size, what=what),
    result=lambda x, size, what: (x.shape, x.dtype),
    value_check=ValueCheck.RANGE,
    index_bound=lambda given, params: params["size"],
)
register(
    CHECK_RANGE,
    lambda x, size, what: apply(CHECK_RANGE, x, size=size, what=what),
    reference=lambda x, size, what: x,
    namespace="internal",
    samples=lambda: iter((sample(np.array([0, 1]), 2, "take: index"),)),
    refuses=(refuse(OutOfRangeError, "label 2 is out of range", np.array([2]), 2, "label"),),
)
INDEX_ADD: Kernel = _IndexAdd(
    "index_add",
    _index_add_portable,
    ("x", "index", "source"),
    (lambda g: g, None, lambda g, index, axis: apply(TAKE, g, index, axis=axis)),
    jvp=lambda out, inputs, tangents, axis: apply(
        INDEX_ADD,
        _or_zeros(tangents[0], inputs[0]),
        inputs[1],
        _or_zeros(tangents[2], inputs[2]),
        axis=axis,
    ),
    result=lambda x, index, source, axis: (x.shape, x.dtype),
    index_input=1,
    splits=splits.index_add_axes,
)


def _or_zeros(t: Tensor | None, like: Tensor) -> Tensor:
    return zeros(like.shape, like.dtype, like.device) if t is None else t


def taken(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """`take` where no index is negative; one that is is refused."""
    check_index("take", indices)
    return apply(TAKE, x, indices, axis=shapes.axis_index(axis, x.ndim, "take"))


def take(x: Tensor, indices: Tensor, axis: int | None = 0) -> Tensor:
    """The slices of x along an axis that the indices name, negative ones from the end, in their
    order and shape; with axis=None the elements, counted as if x were flat."""
    check_index("take", indices)
    if axis is None:
        x, axis = x.reshape(-1), 0
    at = shapes.axis_index(axis, x.ndim, "take")
    return apply(TAKE, x, positive(indices, x.shape[at]), axis=at)


register(
    TAKE,
    take,
    scalar_rows="index",
    methods=("take",),
    reference=np.take,
    samples=lambda: iter(
        (
            sample(s.real(4, 3), np.array([0, 2, 2]), axis=0),
            sample(s.real(2, 4), np.array([[-1, 0]]), axis=-1),
            sample(s.real(5), np.array(2), axis=0),
            sample(s.real(3, 2), np.zeros(0, np.int64), axis=1),
            sample(s.real(2, 2), np.array([[3], [0]]), axis=None),
        )
    ),
    refuses=(
        refuse(
            OutOfRangeError,
            "take: index 4 is out of range for an axis of size 4",
            s.real(4),
            np.array([4]),
        ),
        refuse(OutOfRangeError, "take: index -5 is out of range", s.real(4), np.array([-5])),
        refuse(
            DtypeError,
            "take: the index must be an integer tensor, got float64",
            s.real(4),
            s.real(2),
        ),
        refuse(AxisError, "take: axis 1", s.real(4), np.array([0]), axis=1),
    ),
)


@composite(
    scalar_rows="row",
    reference=np.take,
    samples=lambda: iter(
        (
            sample(s.real(4, 3), np.array([0, 2, 2]), axis=0),
            sample(s.real(2, 4), np.array([3, 0]), axis=1),
        )
    ),
    refuses=(
        refuse(ShapeError, "index_select: .*must have one dimension", s.real(4), np.array([[0]])),
        refuse(OutOfRangeError, "index 9 is out of range", s.real(4), np.array([9])),
        refuse(OutOfRangeError, "index -1 is out of range", s.real(4), np.array([-1])),
    ),
)
def index_select(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """`take` with a vector of indices, none of them negative."""
    check_index("index_select", index)
    axis = shapes.axis_index(axis, x.ndim, "index_select")
    if index.ndim != 1:
        raise ShapeError(f"index_select: the index must have one dimension, got {index.shape}")
    return taken(x, index, axis)


def index_add(
    x: Tensor, index: Tensor, source: Tensor, axis: int = 0, *, alpha: float = 1
) -> Tensor:
    """x with each slice of `source` added to the slice that its index names; repeats add up.
    `alpha` is a factor of the source."""
    check_index("index_add", index)
    at = shapes.axis_index(axis, x.ndim, "index_add")
    wanted = (*x.shape[:at], index.size, *x.shape[at + 1 :])
    if index.ndim != 1 or source.shape != wanted:
        raise ShapeError(
            f"index_add: {x.shape} with an index {index.shape} needs a source of {wanted}, "
            f"got {source.shape}"
        )
    source = source if alpha == 1 else source * alpha
    return apply(INDEX_ADD, x, index, source.astype(x.dtype), axis=at)


register(
    INDEX_ADD,
    index_add,
    scalar_rows="row",
    methods=("index_add",),
    reference="tests.support.references.basic:index_add",
    samples=lambda: iter(
        (
            sample(s.real(4, 3), np.array([0, 2, 2]), s.real(3, 3, seed=1)),
            sample(s.real(2, 4), np.array([3, 0]), s.real(2, 2), axis=-1),
            sample(s.real(3), np.zeros(0, np.int64), s.real(0)),
        )
    ),
    refuses=(
        refuse(
            ShapeError,
            r"index_add: .*needs a source of \(1, 3\)",
            s.real(4, 3),
            np.array([0]),
            s.real(2, 3),
        ),
        refuse(
            OutOfRangeError,
            "index_add: index 4 is out of range",
            s.real(4),
            np.array([4]),
            s.real(1),
        ),
    ),
)

# --- gather: one element for each index ----------------------------------------------------------


def _gather_portable(x: Tensor, index: Tensor, axis: int) -> Tensor:
    x = _trim(x, index.shape, axis)
    hot = _one_hot(index, x.shape[axis], axis)
    picked = where(hot, x.expand_dims(axis + 1), zeros((), x.dtype, x.device))
    return picked.sum(axis=axis).astype(x.dtype)


def _trim(x: Tensor, shape: Shape, axis: int) -> Tensor:
    """x cut to `shape` on every axis but one."""
    return x[tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(shape))]


def _scatter_add_portable(x: Tensor, index: Tensor, source: Tensor, axis: int) -> Tensor:
    hot = _one_hot(index, x.shape[axis], axis)
    spread = where(hot, source.expand_dims(axis), zeros((), x.dtype, x.device))
    total = spread.sum(axis=axis + 1).astype(x.dtype)
    return x + total.pad(tuple((0, n - m) for n, m in zip(x.shape, total.shape, strict=True)))


GATHER: Kernel = Picking(
    "gather",
    _gather_portable,
    ("x", "index"),
    (
        lambda g, index, shape, axis: apply(
            SCATTER_ADD, zeros(shape, g.dtype, g.device), index, g, axis=axis
        ),
        None,
    ),
    join=join_gathered,
    linear=(0,),
    splits=splits.gather_axes,
    batch=lambda xs, axis: apply(GATHER, *xs, axis=axis + 1),
    result=lambda x, index, axis: (index.shape, x.dtype),
    index_input=1,
    one_hot_if_single=True,
)
SCATTER_ADD: Kernel = Kernel(
    "scatter_add",
    _scatter_add_portable,
    ("x", "index", "source"),
    (lambda g: g, None, lambda g, index, axis: apply(GATHER, g, index, axis=axis)),
    jvp=lambda out, inputs, tangents, axis: apply(
        SCATTER_ADD,
        _or_zeros(tangents[0], inputs[0]),
        inputs[1],
        _or_zeros(tangents[2], inputs[2]),
        axis=axis,
    ),
    batch=lambda xs, axis: apply(SCATTER_ADD, *xs, axis=axis + 1),
    result=lambda x, index, source, axis: (x.shape, x.dtype),
    index_input=1,
    one_hot_if_single=True,
    splits=splits.scatter_add_axes,
)


def check_gather(op: str, x: Tensor, index: Tensor, axis: int) -> int:
    """The axis, if the index fits x along it as gather and scatter read it."""
    check_index(op, index)
    at = shapes.axis_index(axis, x.ndim, op)
    fits = index.ndim == x.ndim and all(
        m <= n for a, (m, n) in enumerate(zip(index.shape, x.shape, strict=True)) if a != at
    )
    if not fits:
        raise ShapeError(
            f"{op}: an index {index.shape} does not fit {x.shape}: it needs {x.ndim} dimensions, "
            f"none larger but that of axis {at}"
        )
    return at


def gather(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """out[i][j][k] = x[index[i][j][k]][j][k] for axis 0, and likewise for the others."""
    return apply(GATHER, x, index, axis=check_gather("gather", x, index, axis))


def scatter_add(x: Tensor, index: Tensor, source: Tensor, axis: int = 0) -> Tensor:
    """x with source[i][j][k] added at [index[i][j][k]][j][k] for axis 0; likewise for others."""
    at = check_gather("scatter_add", x, index, axis)
    if source.shape != index.shape:
        raise ShapeError(
            f"scatter_add: source {source.shape} and index {index.shape} must be alike"
        )
    return apply(SCATTER_ADD, x, index, source.astype(x.dtype), axis=at)


register(
    GATHER,
    gather,
    scalar_rows="index",
    methods=("gather",),
    reference="tests.support.references.basic:gather",
    samples=lambda: iter(
        (
            sample(s.real(3, 4), np.array([[0, 2, 1, 0]])),
            sample(s.real(3, 4), s.integers(2, 3, high=4), axis=1),
            sample(s.real(5), np.array([4, 4, 0])),
            sample(s.real(2, 3, 2), s.integers(2, 3, 2, high=3), axis=-2),
        )
    ),
    refuses=(
        refuse(OutOfRangeError, "gather: index 3 is out of range", s.real(3), np.array([3])),
        refuse(OutOfRangeError, "gather: index -1 is out of range", s.real(3), np.array([-1])),
        refuse(
            ShapeError, "gather: an index .* does not fit", s.real(3, 2), np.zeros((1, 3), np.int64)
        ),
        refuse(DtypeError, "gather: the index must be an integer tensor", s.real(3), s.real(3)),
    ),
)
register(
    SCATTER_ADD,
    scatter_add,
    scalar_rows="row",
    methods=("scatter_add",),
    reference="tests.support.references.basic:scatter_add",
    samples=lambda: iter(
        (
            sample(s.real(3, 4), np.array([[0, 2, 1, 0]]), s.real(1, 4)),
            sample(s.real(3, 4), s.integers(2, 3, high=4), s.real(2, 3), axis=1),
            sample(s.real(5), np.array([4, 4, 0]), s.real(3)),
        )
    ),
    refuses=(
        refuse(
            OutOfRangeError,
            "scatter_add: index 5 is out of range",
            s.real(3),
            np.array([5]),
            s.real(1),
        ),
        refuse(
            ShapeError, "source .* and index .* must be alike", s.real(3), np.array([0]), s.real(2)
        ),
    ),
)


@composite(
    reference=np.take_along_axis,
    samples=lambda: iter(
        (
            sample(s.real(3, 4), s.integers(3, 2, high=4), axis=1),
            sample(s.real(3, 4), s.integers(1, 4, high=3), axis=0),
            sample(s.real(4), np.array([-1, 2]), axis=-1),
        )
    ),
    refuses=(
        refuse(
            ShapeError, "take_along_axis: cannot broadcast", s.real(3, 4), s.integers(2, 2), axis=1
        ),
        refuse(OutOfRangeError, "index 9 is out of range", s.real(3), np.array([9]), axis=0),
    ),
)
def take_along_axis(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """`gather` with the other axes broadcast; negative indices count from the end."""
    check_index("take_along_axis", indices)
    at = shapes.axis_index(axis, x.ndim, "take_along_axis")
    return taken_along(x, positive(indices, x.shape[at]), at)


def taken_along(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """`take_along_axis` where no index is negative; one that is is refused."""
    at = shapes.axis_index(axis, x.ndim, "take_along_axis")
    if x.ndim != indices.ndim:
        raise ShapeError(f"take_along_axis: {x.shape} and {indices.shape} differ in dimensions")
    rest = shapes.broadcast("take_along_axis", _without(x.shape, at), _without(indices.shape, at))
    x = x.broadcast_to((*rest[:at], x.shape[at], *rest[at:]))
    indices = indices.broadcast_to((*rest[:at], indices.shape[at], *rest[at:]))
    return gather(x, indices, at)


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


# --- last_write: who wins when one place is assigned twice ------------------------------------


def _last_write_portable(index: Tensor, size: int) -> Tensor:
    count = index.shape[0]
    if count == 0:
        return zeros((size,), index.dtype, index.device) - 1
    order = arange(count, dtype=index.dtype, device=index.device)
    return where(_one_hot(index, size, 0), order, -1).max(axis=1)


def _last_write_batch(inputs: list[Tensor], size: int) -> Tensor:
    """A batch is one long vector of places, each example's moved to its own part of it."""
    (index,) = inputs
    batch, count = index.shape
    example = arange(batch, dtype=index.dtype, device=index.device).reshape(-1, 1)
    index = apply(CHECK_RANGE, index, size=size, what="setitem: index")
    found = last_write((index + example * size).reshape(-1), batch * size).reshape(batch, size)
    return where(found < 0, found, found - example * count)


LAST_WRITE: Kernel = Kernel(
    "last_write",
    _last_write_portable,
    ("index",),
    constant=True,
    batch=_last_write_batch,
    result=lambda index, size: ((size,), index.dtype),
)


def last_write(index: Tensor, size: int) -> Tensor:
    """For each of `size` places, the position of the last index that names it, or -1."""
    return apply(LAST_WRITE, index, size=size)


register(
    LAST_WRITE,
    last_write,
    reference="tests.support.references.basic:last_write",
    namespace="internal",
    samples=lambda: iter((sample(np.array([1, 3, 1]), 4), sample(np.zeros(0, np.int64), 2))),
    refuses=(refuse(OutOfRangeError, "index 4 is out of range", np.array([4]), 4),),
)


def _index_put_portable(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    winner = last_write(index, x.shape[0])
    rest: Sequence[int] = (1,) * (x.ndim - 1)
    written = winner >= 0
    if index.size == 0:  # nothing is written, but `values` stays connected
        return same(x) if values._node is None else x + values.sum(axis=0)
    chosen = taken(values, where(written, winner, 0), axis=0)
    return where(written.reshape((-1, *rest)), chosen, x)


def _left(g: Tensor, index: Tensor) -> Tensor:
    """What of a gradient belongs to x: nothing where it was replaced."""
    nothing = zeros((), g.dtype, g.device).broadcast_to((index.shape[0], *g.shape[1:]))
    return index_put(g, index, nothing)


def _put(g: Tensor, index: Tensor) -> Tensor:
    """What of a gradient belongs to the values: nothing where another was written later."""
    count = index.shape[0]
    winner = taken(last_write(index, g.shape[0]), index)
    wins = winner == arange(count, dtype=index.dtype, device=index.device)
    return where(wins.reshape((-1, *(1,) * (g.ndim - 1))), taken(g, index), 0)


INDEX_PUT: Kernel = Kernel(
    "index_put",
    _index_put_portable,
    ("x", "index", "values"),
    (_left, None, _put),
    result=lambda x, index, values: (x.shape, x.dtype),
    splits=splits.slice_axes,
)


def index_put(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """x with the slices of axis 0 that `index` names replaced; the last of equal indices wins."""
    return apply(INDEX_PUT, x, index, values)


register(
    INDEX_PUT,
    index_put,
    reference="tests.support.references.basic:index_put",
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(4), np.array([1, 3, 1]), s.real(3, seed=1)),
            sample(s.real(3, 2), np.array([2]), s.real(1, 2, seed=1)),
            sample(s.real(3, 2), np.zeros(0, np.int64), s.real(0, 2)),
        )
    ),
    refuses=(refuse(OutOfRangeError, "index 4 is out", s.real(4), np.array([4]), s.real(1)),),
)
