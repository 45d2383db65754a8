"""Writing where indices point: scatter with every way to combine, index_copy, index_fill, put.

Of equal indices the last one wins where nothing is combined. An index outside its axis is an
OutOfRangeError, negative ones included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply, as_tensor
from everygrad.errors import ArgumentError, DtypeError, OutOfRangeError, ShapeError
from everygrad.ops.elementwise.basic import isnan, maximum, minimum, where
from everygrad.ops.index.gather import (
    CHECK_RANGE,
    SCATTER_ADD,
    check_gather,
    check_index,
    index_add,
    index_put,
    last_write,
    positive,
    taken,
)
from everygrad.ops.index.sort import argsort
from everygrad.ops.python.creation import arange, ones, zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel, check_kind
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.record.splits import slice_axes
from everygrad.ops.reduce.scans import segmented
from everygrad.ops.shape.movement import slice_axis

# --- kernels on vectors: x[index[k]] is combined with source[k] ----------------------------------


def _batched(op: Callable[[], Kernel]) -> Callable[..., Tensor]:
    """A batch of vectors is one vector, each example's indices moved to its own part of it."""

    def batch(inputs: list[Tensor], **params: Any) -> Tensor:
        x, index, source = inputs
        start = arange(x.shape[0], dtype=index.dtype, device=index.device) * x.shape[1]
        moved = index + start.reshape(-1, 1)
        flat = apply(op(), x.reshape(-1), moved.reshape(-1), source.reshape(-1), **params)
        return flat.reshape(x.shape)

    return batch


def _chosen(x: Tensor, winner: Tensor, values: Tensor, join: Any) -> Tensor:
    """values[winner] where there is one, joined with x by `join` (None: in its place)."""
    if values.size == 0:
        return x + values.sum().astype(x.dtype)  # nothing is written, but `values` stays connected
    written = winner >= 0
    found = taken(values, where(written, winner, 0), 0)
    return where(written, found if join is None else join(x, found), x)


def _extreme_portable(largest: bool) -> Callable[..., Tensor]:
    def portable(x: Tensor, index: Tensor, source: Tensor, include_self: bool) -> Tensor:
        """The elements written in order of size: the last one written is the extreme."""
        order = argsort(source, 0, descending=not largest)
        winner = last_write(taken(index, order, 0), x.shape[0])
        join = maximum if largest else minimum
        out = _chosen(x, winner, taken(source, order, 0), join if include_self else None)
        if largest or not x.dtype.is_float or not source.size:
            return out
        odd = where(isnan(source), index, x.shape[0])  # descending, a NaN is written first
        spoiled = slice_axis(last_write(odd, x.shape[0] + 1), 0, 0, x.shape[0]) >= 0
        return where(spoiled, float("nan"), out)

    return portable


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (isnan(a) & isnan(b))


def _shares(
    x: Tensor, index: Tensor, source: Tensor, out: Tensor, include_self: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Which elements of x and of source are the result, and how many each result has."""
    from_source = _same(source, taken(out, index, 0))
    nothing = zeros(x.shape, x.dtype, x.device)
    touched = index_add(nothing, index, ones(source.shape, x.dtype, x.device)) > 0
    from_x = _same(x, out) | ~touched if include_self else ~touched
    count = index_add(from_x.astype(x.dtype), index, from_source.astype(x.dtype))
    return from_x, from_source, maximum(count, 1.0)


def _extreme_dx(
    g: Tensor, x: Tensor, index: Tensor, source: Tensor, out: Tensor, include_self: bool
) -> Tensor:
    from_x, _, count = _shares(x, index, source, out, include_self)
    return where(from_x, g / count, 0.0)


def _extreme_dsource(
    g: Tensor, x: Tensor, index: Tensor, source: Tensor, out: Tensor, include_self: bool
) -> Tensor:
    _, from_source, count = _shares(x, index, source, out, include_self)
    return where(from_source, taken(g / count, index, 0), 0.0)


def _extreme_jvp(out: Tensor, inputs: Any, tangents: Any, include_self: bool) -> Tensor:
    x, index, source = inputs
    from_x, from_source, count = _shares(x, index, source, out, include_self)
    total = zeros(x.shape, x.dtype, x.device)
    if tangents[0] is not None:
        total = where(from_x, tangents[0], 0.0)
    if tangents[2] is not None:
        total = index_add(total, index, where(from_source, tangents[2], 0.0))
    return total / count


def _extreme_kernel(name: str, largest: bool) -> Kernel:
    op = Kernel(
        name,
        _extreme_portable(largest),
        ("x", "index", "source"),
        (_extreme_dx, None, _extreme_dsource),
        jvp=_extreme_jvp,
        batch=_batched(lambda: op),
        result=lambda x, index, source, include_self: (x.shape, x.dtype),
        splits=slice_axes,
    )
    return op


SCATTER_MAX = _extreme_kernel("scatter_max", True)
SCATTER_MIN = _extreme_kernel("scatter_min", False)


def _prod_portable(x: Tensor, index: Tensor, source: Tensor, include_self: bool) -> Tensor:
    """Equal indices brought together, and their products taken: right where factors are 0."""
    order = argsort(index, 0)
    names = taken(index, order, 0)
    products = segmented(taken(source, order, 0), names, lambda a, b: a * b)
    winner = last_write(names, x.shape[0])
    return _chosen(x, winner, products, (lambda a, b: a * b) if include_self else None)


SCATTER_PROD: Kernel = Kernel(
    "scatter_prod",
    _prod_portable,
    ("x", "index", "source"),
    batch=_batched(lambda: SCATTER_PROD),
    result=lambda x, index, source, include_self: (x.shape, x.dtype),
    splits=slice_axes,
)


def _vector_reference(fn: Any) -> Any:
    def reference(x: Any, index: Any, source: Any, include_self: bool) -> Any:
        out = x.copy()
        seen = set() if not include_self else set(range(len(x)))
        for place, value in zip(index, source, strict=True):
            out[place] = fn(out[place], value) if int(place) in seen else value
            seen.add(int(place))
        return out

    return reference


for _op, _fn in (
    (SCATTER_MAX, np.maximum),
    (SCATTER_MIN, np.minimum),
    (SCATTER_PROD, np.multiply),
):
    register(
        _op,
        (lambda op: lambda x, i, v, include_self: apply(op, x, i, v, include_self=include_self))(
            _op
        ),
        namespace="internal",
        reference=_vector_reference(_fn),
        samples=lambda: iter(
            (
                sample(s.real(3), np.array([2, 0, 2]), s.real(3, seed=1), True),
                sample(s.real(3), np.array([1, 1]), s.real(2, seed=1), False),
            )
        ),
    )

# --- scatter -------------------------------------------------------------------------------------


def _flat_places(index: Tensor, shape: shapes.Shape, axis: int) -> Tensor:
    """Where in a C-ordered tensor of `shape` each element of an index along `axis` points."""
    flat: Tensor | None = None
    for a, n in enumerate(shape):
        at = index
        if a != axis:
            at = arange(index.shape[a], dtype=dtypes.int64, device=index.device)
            at = at.reshape((-1,) + (1,) * (index.ndim - a - 1))
        flat = at if flat is None else flat * n + at
    assert flat is not None
    return flat.broadcast_to(index.shape).reshape(-1)


def _in_range(op: str, index: Tensor, size: int) -> Tensor:
    check_index(op, index)
    checked = apply(CHECK_RANGE, index, size=size, what=f"{op}: index")
    return checked.astype(dtypes.int64)


def _source(op: str, source: Any, shape: shapes.Shape, x: Tensor) -> Tensor:
    """What is written, in x's dtype, with one element for each index."""
    if not isinstance(source, Tensor):
        source = as_tensor(source, x).broadcast_to(shape)
    if source.shape != shape:
        raise ShapeError(f"{op}: a source of {source.shape} for an index of {shape}: one for each")
    if source.dtype is not x.dtype and dtypes.promote(x.dtype, source.dtype) is not x.dtype:
        raise DtypeError(f"{op}: {source.dtype} does not fit into {x.dtype}; use astype()")
    return source.astype(x.dtype)


_COMBINING = {"mul": SCATTER_PROD, "amax": SCATTER_MAX, "amin": SCATTER_MIN}
_REDUCES = ("add", "mean", *_COMBINING)
_KINDS = {
    None: "any",
    "add": "numeric",
    "mul": "numeric",
    "mean": "float",
    "amax": "real",
    "amin": "real",
}


def _scattered(x: Tensor, index: Tensor, source: Tensor, reduce: str | None, own: bool) -> Tensor:
    """`scatter` on vectors."""
    if reduce is None:
        return index_put(x, index, source)
    if reduce in _COMBINING:
        return apply(_COMBINING[reduce], x, index, source, include_self=own)
    each = ones(index.shape, dtypes.int64, index.device)
    count = index_add(zeros(x.shape, dtypes.int64, x.device), index, each)
    base = x if own else where(count > 0, zeros((), x.dtype, x.device), x)
    total = index_add(base, index, source)
    if reduce == "add":
        return total
    parts = maximum(count + 1 if own else count, 1)
    return total / parts.astype(dtypes.real_of(x.dtype))


def _scatter_reference(
    x: Any, index: Any, source: Any, axis: int = 0, reduce: Any = None, include_self: bool = True
) -> Any:
    groups: dict[Any, list[Any]] = {}
    for place in np.ndindex(index.shape):
        there = list(place)
        there[axis] = int(index[place])
        value = source[place] if isinstance(source, np.ndarray) else source
        groups.setdefault(tuple(there), []).append(value)
    fn: dict[str, Any] = {
        "add": np.sum,
        "mul": np.prod,
        "amax": np.max,
        "amin": np.min,
        "mean": np.mean,
    }
    out = x.copy()
    for place, values in groups.items():
        own = [x[place]] if include_self and reduce else []
        out[place] = fn[reduce]([*own, *values]) if reduce else values[-1]
    return out


def _scatter_samples() -> Any:
    index = np.array([[1, 0], [0, 1]])
    yield sample(s.real(2, 3), index, s.real(2, 2, seed=1), axis=1)
    yield sample(s.real(3), np.array([2, 0, 2]), s.real(3, seed=1), reduce="mul")
    yield sample(s.real(3), np.array([1, 1]), s.real(2, seed=1), reduce="add", include_self=False)


@composite(
    scalar_rows="row",
    kinds="any",
    torch="tests.support.beside_torch:scatter",
    reference=_scatter_reference,
    samples=_scatter_samples,
    refuses=(
        refuse(
            OutOfRangeError, "scatter: index 3 is out of range", s.real(3), np.array([3]), s.real(1)
        ),
        refuse(ShapeError, "scatter: a source of .*one for", s.real(3), np.array([1]), s.real(2)),
        refuse(
            ArgumentError,
            "scatter: reduce must be None or one of add, .*got 'max'",
            s.real(3),
            np.array([1]),
            s.real(1),
            reduce="max",
        ),
        refuse(
            DtypeError, "scatter: float64 does not fit", s.integers(3), np.array([1]), s.real(1)
        ),
    ),
)
def scatter(
    x: Tensor,
    index: Tensor,
    source: Tensor | float,
    axis: int = 0,
    reduce: str | None = None,
    include_self: bool = True,
) -> Tensor:
    """x with source[i][j] put at [index[i][j]][j] for axis 0, and likewise for the others.

    reduce        how what comes to one place is combined: "add", "mul" or "multiply", "amax",
                  "amin" or "mean"; None puts the last one there. Equal extremes share the
                  gradient evenly.
    include_self  whether x's own element is one of them
    """
    reduce = "mul" if reduce == "multiply" else reduce  # scatter's own name for it in PyTorch
    if reduce is not None and reduce not in _REDUCES:
        raise ArgumentError(
            f"scatter: reduce must be None or one of {', '.join(_REDUCES)}; got {reduce!r}"
        )
    at = check_gather("scatter", x, index, axis)
    check_kind("scatter", x.dtype, _KINDS[reduce])
    source = _source("scatter", source, index.shape, x)
    index = _in_range("scatter", index, x.shape[at])
    if reduce == "add" and include_self:
        return apply(SCATTER_ADD, x, index, source, axis=at)
    places = _flat_places(index, x.shape, at)
    out = _scattered(x.reshape(-1), places, source.reshape(-1), reduce, bool(include_self))
    return out.reshape(x.shape)


# --- whole slices --------------------------------------------------------------------------------


def _index_copied(x: Any, index: Any, source: Any, axis: int = 0) -> Any:
    out = np.moveaxis(x.copy(), axis, 0)
    out[index] = np.moveaxis(source, axis, 0)
    return np.moveaxis(out, 0, axis)


@composite(
    scalar_rows="row",
    torch=lambda torch, x, i, v, axis=0: torch.index_copy(x, axis, i, v),
    reference=_index_copied,
    samples=lambda: iter(
        (
            sample(s.real(3, 2), np.array([2, 0]), s.real(2, 2, seed=1)),
            sample(s.real(2, 3), np.array([2, 1]), s.real(2, 2, seed=1), axis=-1),
        )
    ),
    refuses=(
        refuse(
            OutOfRangeError,
            "index_copy: index 3 is out of range",
            s.real(3),
            np.array([3]),
            s.real(1),
        ),
        refuse(
            ShapeError,
            r"index_copy: .*needs a source of \(1, 3\)",
            s.real(4, 3),
            np.array([0]),
            s.real(2, 3),
        ),
    ),
)
def index_copy(x: Tensor, index: Tensor, source: Tensor, axis: int = 0) -> Tensor:
    """x with the slices that the index names replaced by those of `source`."""
    at = shapes.axis_index(axis, x.ndim, "index_copy")
    wanted = (*x.shape[:at], index.size, *x.shape[at + 1 :])
    if index.ndim != 1 or source.shape != wanted:
        raise ShapeError(
            f"index_copy: {x.shape} with an index {index.shape} needs a source of {wanted}, "
            f"got {source.shape}"
        )
    index = _in_range("index_copy", index, x.shape[at])
    source = _source("index_copy", source, wanted, x)
    return index_put(x.moveaxis(at, 0), index, source.moveaxis(at, 0)).moveaxis(0, at)


def _index_filled(x: Any, index: Any, value: Any, axis: int = 0) -> Any:
    out = np.moveaxis(x.copy(), axis, 0)
    out[index] = value
    return np.moveaxis(out, 0, axis)


@composite(
    torch=lambda torch, x, i, v, axis=0: torch.index_fill(x, axis, i, v),
    reference=_index_filled,
    samples=lambda: iter(
        (
            sample(s.real(3, 2), np.array([2, 0]), 7),
            sample(s.real(2, 3), np.array([1, 1]), s.real(seed=1), axis=-1),
        )
    ),
    refuses=(
        refuse(OutOfRangeError, "index_fill: index 3 is out of", s.real(3), np.array([3]), 1.0),
        refuse(
            DtypeError, "index_fill: .* does not fit into int64", s.integers(3), np.array([1]), 1.5
        ),
        refuse(ShapeError, "index_fill: the index must be a vector", s.real(3), np.array(1), 1.0),
    ),
)
def index_fill(x: Tensor, index: Tensor, value: Any, axis: int = 0) -> Tensor:
    """x with the slices that the index names filled with one value."""
    if not x.ndim and axis in (0, -1):  # one element, as in PyTorch
        row: Tensor = index_fill(x.reshape((1,)), index.reshape((-1,)), value)
        return row.reshape(())
    at = shapes.axis_index(axis, x.ndim, "index_fill")
    if index.ndim != 1:
        raise ShapeError(f"index_fill: the index must be a vector, got shape {index.shape}")
    index = _in_range("index_fill", index, x.shape[at])
    filled = last_write(index, x.shape[at]) >= 0
    rest = (1,) * (x.ndim - at - 1)
    return where(filled.reshape((-1, *rest)), _source("index_fill", value, (), x), x)


# --- flat ----------------------------------------------------------------------------------------


def _put_reference(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    out = x.reshape(-1).copy()
    if accumulate:
        np.add.at(out, index.reshape(-1), source.reshape(-1))
    else:
        out[index.reshape(-1)] = source.reshape(-1)
    return out.reshape(x.shape)


@composite(
    torch="torch:put",
    reference=_put_reference,
    samples=lambda: iter(
        (
            sample(s.real(2, 2), np.array([3, 0, -2]), s.real(3, seed=1)),
            sample(s.real(2, 2), np.array([[1, 1]]), s.real(1, 2, seed=1), accumulate=True),
        )
    ),
    refuses=(
        refuse(OutOfRangeError, "put: index 4 is out of", s.real(2, 2), np.array([4]), s.real(1)),
        refuse(ShapeError, "put: a source of .*one for each", s.real(3), np.array([1]), s.real(2)),
    ),
)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """x with elements replaced, or added to; the index counts as if x were flat, and from the end
    where it is negative."""
    source = _source("put", source, index.shape, x)
    check_index("put", index)
    places = _in_range("put", positive(index, x.size), x.size).reshape(-1)
    write = index_add if accumulate else index_put
    return write(x.reshape(-1), places, source.reshape(-1)).reshape(x.shape)
