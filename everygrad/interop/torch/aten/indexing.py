"""Elements found or written by indices and masks, sorted, searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import everygrad as eg
from everygrad import dtypes
from everygrad.core.shapes import broadcast, size_of
from everygrad.errors import TraceError
from everygrad.interop.torch.aten.axes import along
from everygrad.interop.torch.aten.registry import Result, Tensor, aten
from everygrad.ops.index.gather import index_put as put_slices

_BY_VALUES = "the size of its result depends on values"

# --- x[indices] ----------------------------------------------------------------------------------


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (dtypes.bool_, dtypes.uint8)


def _as_index(index: Tensor | None) -> Any:
    if index is None:
        return slice(None)
    return index.astype(dtypes.bool_) if _is_mask(index) else index


@aten("index.Tensor", "_unsafe_index.Tensor", "index.Tensor_hacked_twin")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return x[tuple(_as_index(i) for i in indices)]


@aten("_unsafe_masked_index.default")
def masked_index(x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: Any) -> Tensor:
    clipped = [
        None if i is None else eg.clamp(i, 0, n - 1) for i, n in zip(indices, x.shape, strict=False)
    ]
    return eg.where(mask, index(x, clipped), eg.full((), fill, x.dtype, x.device))


@aten("_unsafe_masked_index_put_accumulate.default")
def masked_index_add(
    x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> Tensor:
    clipped = [
        None if i is None else eg.clamp(i, 0, n - 1) for i, n in zip(indices, x.shape, strict=False)
    ]
    return index_put(x, clipped, eg.where(mask, values, eg.zeros((), x.dtype, x.device)), True)


@aten(
    *("index_put.default", "_unsafe_index_put.default", "index_put.hacked_twin"),
    *("_index_put_impl.default",),
)
def index_put(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    values = values.astype(x.dtype)
    masks = [(at, i) for at, i in enumerate(indices) if _is_mask(i)]
    if masks and sum(i is not None for i in indices) == 1:
        return _put_where(x, masks[0][0], _as_index(masks[0][1]), values, accumulate)
    if masks:
        given = tuple(_as_index(i) for i in indices)
        return eg.index_put(x, given, values, accumulate)
    return _put_at(x, indices, values, accumulate)


def _put_where(x: Tensor, at: int, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """x[:, ..., mask] = values, by a choice for each element: where it goes needs no sizes."""
    rest = x.ndim - at - mask.ndim
    chosen = mask.reshape((*mask.shape, *(1,) * rest))
    if values.ndim == rest + 1 and values.shape[0] == 1:
        values = values.reshape(values.shape[1:])
    if values.ndim <= rest:
        return eg.where(chosen, x + values if accumulate else values, x)
    # the values come in the order of the places: the one before the axes of the mask counts them
    front = x.moveaxis(tuple(range(at, at + mask.ndim)), tuple(range(mask.ndim)))
    lead, count = x.shape[:at], values.shape[-1 - rest]
    values = values.broadcast_to((*lead, count, *x.shape[at + mask.ndim :])).moveaxis(at, 0)
    rank = eg.clamp(eg.cumsum(mask.reshape(-1).astype(dtypes.int64), 0) - 1, 0, max(count - 1, 0))
    spread = eg.take(values, rank, axis=0) if count else eg.zeros(front.shape, x.dtype, x.device)
    spread = spread.reshape(front.shape)
    wide = mask.reshape((*mask.shape, *(1,) * (x.ndim - mask.ndim)))
    out = eg.where(wide, front + spread if accumulate else spread, front)
    return out.moveaxis(tuple(range(mask.ndim)), tuple(range(at, at + mask.ndim)))


def _put_at(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    """The indexed axes as one in front, and the others as what is written there."""
    axes = [a for a, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    shape = broadcast("index_put", *(i.shape for i in given))
    sizes = [x.shape[a] for a in axes]
    flat: Tensor | None = None
    for i, n in zip(given, sizes, strict=True):
        i = i.astype(dtypes.int64)
        i = eg.where(i < 0, i + n, i)
        flat = i if flat is None else flat * n + i
    if flat is None:
        return x + values if accumulate else values.broadcast_to(x.shape)
    order = (*axes, *(a for a in range(x.ndim) if a not in axes))
    front = x.permute_dims(order)
    rest = front.shape[len(axes) :]
    # side by side the new axes stand where the indexed ones did, else in front
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    place = axes[0] if together else 0
    values = values.broadcast_to((*rest[:place], *shape, *rest[place:]))
    moved = values.moveaxis(
        tuple(range(place, place + len(shape))), tuple(range(len(shape)))
    ).reshape((size_of(shape), *rest))
    rows = front.reshape((size_of(tuple(sizes)), *rest))
    where_to = flat.broadcast_to(shape).reshape(-1)
    out = eg.index_add(rows, where_to, moved) if accumulate else put_slices(rows, where_to, moved)
    back = tuple(order.index(a) for a in range(x.ndim))
    return out.reshape(front.shape).permute_dims(back)


# --- one index for each element, or each slice ---------------------------------------------------


@aten("gather.default")
def gather(x: Tensor, dim: int, at: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if not at.size:  # which may have any number of axes
        return x.reshape(-1)[:0].reshape(at.shape)
    if not x.ndim:
        return x.broadcast_to(at.shape)
    if not at.ndim:
        return eg.gather(x, at.reshape(1), axis=dim).reshape(())
    return eg.gather(x, at.astype(dtypes.int64), axis=dim)


def _scattered(
    x: Tensor, dim: int, at: Tensor, source: Any, combine: str | None, include_self: bool = True
) -> Tensor:
    shape = x.shape
    if not x.ndim:
        x = x.reshape(1)
    at = at.reshape(1) if not at.ndim else at
    if not isinstance(source, Tensor):
        source = eg.full(at.shape, source, x.dtype, x.device)
    source = (source.reshape(1) if not source.ndim else source).astype(x.dtype)
    # more may be given than is written
    source = source[tuple(slice(n) for n in at.shape)]
    if at.size == 0:
        return eg.clone(x).reshape(shape)
    at = at.astype(dtypes.int64)
    if combine is not None and x.dtype is dtypes.bool_:  # sums and extremes of 0 and 1
        number = _scattered(
            x.astype(dtypes.int64), dim, at, source.astype(dtypes.int64), combine, include_self
        )
        return (number != 0).reshape(shape)
    if combine == "mean" and not x.dtype.is_differentiable:
        count = eg.full(x.shape, int(include_self), x.dtype, x.device)
        count = eg.scatter_add(count, at, eg.ones(at.shape, x.dtype, x.device), axis=dim)
        total = _scattered(x, dim, at, source, "add", include_self)
        return (total.reshape(x.shape) // eg.maximum(count, 1)).reshape(shape)
    if combine == "add" and include_self:
        return eg.scatter_add(x, at, source, axis=dim).reshape(shape)
    out = eg.scatter(x, at, source, axis=dim, reduce=combine, include_self=include_self)
    return out.reshape(shape)


@aten("scatter.src", "scatter.value")
def scatter(x: Tensor, dim: int, at: Tensor, source: Any) -> Tensor:
    return _scattered(x, dim, at, source, None)


_COMBINED = {
    **{"add": "add", "sum": "add", "multiply": "mul", "prod": "mul"},
    **{"mean": "mean", "amax": "amax", "amin": "amin"},
}


@aten("scatter.reduce", "scatter.value_reduce")
def scatter_combined(x: Tensor, dim: int, at: Tensor, source: Any, *, reduce: str) -> Tensor:
    return _scattered(x, dim, at, source, _COMBINED[reduce])


@aten("scatter_add.default")
def scatter_add(x: Tensor, dim: int, at: Tensor, source: Tensor) -> Tensor:
    return _scattered(x, dim, at, source, "add")


@aten("scatter_reduce.two")
def scatter_reduce(
    x: Tensor, dim: int, at: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _scattered(x, dim, at, source, _COMBINED[reduce], include_self)


@aten("index_select.default")
def index_select(x: Tensor, dim: int, at: Tensor) -> Tensor:
    if not x.ndim:
        return x
    return eg.take(x, at.reshape(-1), axis=dim)


def _slices(x: Tensor, dim: int, at: Tensor, source: Tensor) -> tuple[Tensor, int, Tensor, Tensor]:
    """x, its axis, the indices and what is written, for tensors without axes too."""
    at = at.reshape(-1)
    if not x.ndim:
        return x.reshape(1), 0, at, source.reshape(-1)
    wanted = (*x.shape[: dim % x.ndim], at.size, *x.shape[dim % x.ndim + 1 :])
    return x, dim % x.ndim, at, source.reshape(wanted)


@aten("index_add.default")
def index_add(x: Tensor, dim: int, at: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    whole, axis, at, source = _slices(x, dim, at, source.astype(x.dtype))
    source = source if alpha == 1 else source * alpha
    return eg.index_add(whole, at, source, axis=axis).reshape(x.shape)


@aten("index_copy.default")
def index_copy(x: Tensor, dim: int, at: Tensor, source: Tensor) -> Tensor:
    whole, axis, at, source = _slices(x, dim, at, source.astype(x.dtype))
    return eg.index_copy(whole, at, source, axis=axis).reshape(x.shape)


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(x: Tensor, dim: int, at: Tensor, value: Any) -> Tensor:
    shape = (
        (at.size,)
        if not x.ndim
        else (*x.shape[: dim % x.ndim], at.size, *x.shape[dim % x.ndim + 1 :])
    )
    if not isinstance(value, Tensor):
        value = eg.full((), value, x.dtype, x.device)
    return index_copy(x, dim, at, value.astype(x.dtype).broadcast_to(shape))


@aten("index_reduce.default")
def index_reduce(
    x: Tensor, dim: int, at: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    whole, axis, at, source = _slices(x, dim, at, source.astype(x.dtype))
    spread = at.reshape((-1,) + (1,) * (whole.ndim - axis - 1)).broadcast_to(source.shape)
    out = _scattered(whole, axis, spread, source, _COMBINED[reduce], include_self)
    return out.reshape(x.shape)


@aten("take.default")
def take(x: Tensor, at: Tensor) -> Tensor:
    return eg.take(x.reshape(-1), at, axis=0)


@aten("put.default")
def put(x: Tensor, at: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return eg.put(x, at.reshape(-1), source.reshape(-1), accumulate)


@aten("embedding.default")
def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    row = padding_idx if padding_idx >= 0 else None  # -1: no row is for padding
    out = eg.nn.functional.embedding(
        indices, weight, padding_idx=row, scale_grad_by_freq=scale_grad_by_freq
    )
    return out


@aten("embedding_dense_backward.default")
def embedding_dense_backward(
    g: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    flat = indices.reshape(-1)
    rows = g.reshape((flat.size, g.shape[-1]))
    if scale_grad_by_freq:
        counts = eg.zeros((num_weights,), g.dtype, g.device)
        counts = eg.index_add(counts, flat, eg.ones(flat.shape, g.dtype, g.device))
        rows = rows / eg.take(counts, flat, axis=0).expand_dims(-1)
    if padding_idx >= 0:
        rows = eg.where((flat == padding_idx).expand_dims(-1), 0.0, rows)
    return eg.index_add(eg.zeros((num_weights, g.shape[-1]), g.dtype, g.device), flat, rows)


# --- masks ---------------------------------------------------------------------------------------


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        value = eg.full((), value, x.dtype, x.device)
    return eg.where(mask.astype(dtypes.bool_), value.astype(x.dtype), x)


@aten("masked_scatter.default")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    shape = broadcast("masked_scatter", x.shape, mask.shape)
    flat = mask.astype(dtypes.bool_).broadcast_to(shape).reshape(-1)
    if not source.size:
        return eg.clone(x.broadcast_to(shape))
    rank = eg.cumsum(flat.astype(dtypes.int64), 0) - 1
    found = eg.take(source.reshape(-1), eg.clamp(rank, 0, source.size - 1), axis=0)
    return eg.where(flat, found.astype(x.dtype), x.broadcast_to(shape).reshape(-1)).reshape(shape)


@aten("masked_scatter_backward.default")
def masked_scatter_backward(g: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    count = size_of(tuple(sizes))
    flat = mask.astype(dtypes.bool_).broadcast_to(g.shape).reshape(-1)
    rank = eg.cumsum(flat.astype(dtypes.int64), 0) - 1
    kept = eg.where(flat, g.reshape(-1), 0.0)
    at = eg.clamp(rank, 0, max(count - 1, 0))
    return eg.index_add(eg.zeros((count,), g.dtype, g.device), at, kept).reshape(tuple(sizes))


@aten(
    *("nonzero.default", "nonzero_static.default", "masked_select.default", "_unique2.default"),
    *("unique_dim.default", "unique_consecutive.default", "repeat_interleave.Tensor"),
    *("bincount.default", "argwhere.default"),
    refused=_BY_VALUES,
)
def sized_by_values(*_: Any, **__: Any) -> Tensor:
    raise TraceError(f"a PyTorch graph cannot hold this op here: {_BY_VALUES}")


@aten("_local_scalar_dense.default", "item.default", refused="it reads a value in the graph")
def read_value(*_: Any) -> Any:
    raise TraceError("item: a PyTorch graph cannot hold this op here: it reads a value")


# --- order ---------------------------------------------------------------------------------------


@aten("topk.default")
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return along(lambda v, d: tuple(eg.topk(v, k, axis=d, largest=largest)), x, dim)


def _sorted(x: Tensor, dim: int, descending: bool) -> Any:
    def both(v: Tensor, d: int) -> list[Tensor]:
        key = v.detach()
        key = key.astype(dtypes.uint8) if key.dtype is dtypes.bool_ else key
        at = eg.argsort(key, axis=d, descending=descending)
        return [eg.gather(v, at, axis=d), at]

    return along(both, x, dim)


@aten("sort.default")
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return _sorted(x, dim, descending)


@aten("sort.stable")
def sort_stable(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    return _sorted(x, dim, descending)


@aten("argsort.default")
def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return _sorted(x.detach(), dim, descending)[1]


@aten("argsort.stable")
def argsort_stable(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    return argsort(x, dim, descending)


@aten("msort.default")
def msort(x: Tensor) -> Tensor:
    return _sorted(x, 0, False)[0]


@aten("searchsorted.Tensor", "searchsorted.Scalar", wants_result=True)
def searchsorted(
    edges: Tensor,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
    result: Result,
) -> Tensor:
    if not isinstance(values, Tensor):
        values = eg.full((), values, edges.dtype, edges.device)
    common = eg.result_type(edges, values)
    return eg.searchsorted(
        edges.astype(common),
        values.astype(common),
        side=side or ("right" if right else "left"),
        sorter=sorter,
    )


@aten("bucketize.Tensor", "bucketize.Scalar", wants_result=True)
def bucketize(
    values: Any,
    boundaries: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    result: Result,
) -> Tensor:
    return searchsorted(boundaries, values, right=right, result=result)


@aten("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    return eg.isin(elements, test_elements, invert)


@aten("one_hot.default")
def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise TraceError("one_hot: num_classes must be given: else it depends on the values")
    return eg.one_hot(x, num_classes).astype(dtypes.int64)
