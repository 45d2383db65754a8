"""Rows of a table, looked up one by one or summed in bags."""

from __future__ import annotations

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import index_add, take
from everygrad.ops.index.scatter import scatter
from everygrad.ops.index.search import searchsorted
from everygrad.ops.nn.softmax_and_norm import embedding as _embedding
from everygrad.ops.python.creation import arange, full, ones, zeros
from everygrad.ops.python.inplace import assign
from everygrad.ops.reduce.norms_and_counts import norm


def padding_row(padding_idx: int, count: int) -> int:
    """The row `padding_idx` means in a table of `count` rows, counted from the end if negative."""
    if not -count <= padding_idx < count:
        raise ArgumentError(
            f"embedding: padding_idx {padding_idx} is outside a table of {count} rows"
        )
    return padding_idx % count


def _counts(indices: Tensor, rows: int, dtype: object) -> Tensor:
    """How often each row is named."""
    flat = indices.reshape(-1)
    nothing = zeros((rows,), dtype, indices.device)
    return index_add(nothing, flat, ones(flat.shape, dtype, indices.device))


@no_grad()
def renormalise(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the named rows of a table down, in place, to at most `max_norm`."""
    if not max_norm > 0:
        raise ArgumentError(f"embedding: max_norm must be positive, got {max_norm!r}")
    sizes = norm(weight, norm_type, 1, True)
    named = (_counts(indices, weight.shape[0], weight.dtype) > 0).expand_dims(1)
    scaled = where(named & (sizes > max_norm), weight * (max_norm / (sizes + 1e-7)), weight)
    assign(weight, scaled, "embedding")


def _shared(rows: Tensor, indices: Tensor, weight: Tensor) -> Tensor:
    """The same rows, whose gradient is over how often each one is named."""
    share = 1.0 / take(_counts(indices, weight.shape[0], rows.dtype), indices, axis=0)
    fixed = rows.detach()
    return fixed + (rows - fixed) * share.expand_dims(-1)


def embedding(
    indices: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` that the indices name; row `padding_idx` gets no gradient.

    `max_norm` scales the rows that are named down to that norm first, in the table itself.
    `scale_grad_by_freq` divides a row's gradient by how often it is named. Gradients are dense,
    whatever `sparse` says.

    >>> import everygrad as eg
    >>> eg.nn.functional.embedding(eg.tensor([2, 0]), eg.eye(3))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    if max_norm is not None:
        renormalise(weight, indices, max_norm, norm_type)
    rows: Tensor = _embedding(indices, weight)
    if scale_grad_by_freq:
        rows = _shared(rows, indices, weight)
    if padding_idx is None:
        return rows
    pad = padding_row(padding_idx, weight.shape[0])
    kept: Tensor = where((indices == pad).expand_dims(-1), rows.detach(), rows)
    return kept


def embedding_bag(
    indices: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of bags of rows: a bag is a row of `indices`, or, if they have one
    axis, what lies between two `offsets`.

    `padding_idx` counts in no bag. `per_sample_weights` scale the rows of a sum.
    `include_last_offset` says that the last offset is where the last bag ends.

    >>> import everygrad as eg
    >>> eg.nn.functional.embedding_bag(eg.tensor([[0, 1]]), eg.eye(2), mode="sum")
    tensor([[1., 1.]])
    """
    _check_bags(indices, offsets, mode, per_sample_weights, include_last_offset)
    flat, bags, count = _bags(indices, offsets, include_last_offset)
    if max_norm is not None:
        renormalise(weight, flat, max_norm, norm_type)
    rows: Tensor = _embedding(flat, weight)
    if scale_grad_by_freq:
        rows = _shared(rows, flat, weight)
    counted = ones(flat.shape, weight.dtype, weight.device)
    if padding_idx is not None:
        kept = flat != padding_row(padding_idx, weight.shape[0])
        counted = kept.astype(weight.dtype)
        if mode == "max":
            rows = where(kept.expand_dims(1), rows, -float("inf"))
        else:
            rows = where(kept.expand_dims(1), rows, 0.0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1).astype(rows.dtype)
    width = weight.shape[1]
    if mode == "max":
        low = full((count, width), -float("inf"), dtype=rows.dtype, device=rows.device)
        places = bags.expand_dims(1).broadcast_to(rows.shape)
        most = scatter(low, places, rows, axis=0, reduce="amax")
        out: Tensor = where(most == -float("inf"), 0.0, most)
        return out
    total = index_add(zeros((count, width), rows.dtype, rows.device), bags, rows)
    if mode == "sum":
        return total
    sizes = index_add(zeros((count,), rows.dtype, rows.device), bags, counted)
    mean: Tensor = total / where(sizes > 0, sizes, 1.0).expand_dims(1)
    return mean


def _check_bags(
    indices: Tensor, offsets: Tensor | None, mode: str, weights: Tensor | None, include_last: bool
) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f'embedding_bag: mode must be "sum", "mean" or "max", got {mode!r}')
    if weights is not None and mode != "sum":
        raise ArgumentError(
            f'embedding_bag: per_sample_weights are for mode="sum" only, got mode={mode!r}'
        )
    if weights is not None and weights.shape != indices.shape:
        raise ShapeError(
            f"embedding_bag: per_sample_weights {weights.shape} must have the shape of the "
            f"indices, {indices.shape}"
        )
    if not indices.dtype.is_integer:
        raise DtypeError(f"embedding_bag: indices must be integers, got {indices.dtype}")
    if indices.ndim == 2 and offsets is not None:
        raise ArgumentError(
            "embedding_bag: offsets are for indices with one axis; with two, rows are the bags"
        )
    if indices.ndim != 2 and (indices.ndim != 1 or offsets is None or offsets.ndim != 1):
        raise ShapeError(
            f"embedding_bag: takes indices (bags, length), or one axis with offsets (bags,); got "
            f"{indices.shape} and {None if offsets is None else offsets.shape}"
        )
    if include_last and (offsets is None or not offsets.shape[0]):
        raise ArgumentError("embedding_bag: include_last_offset needs offsets, one or more")


def _bags(
    indices: Tensor, offsets: Tensor | None, include_last: bool
) -> tuple[Tensor, Tensor, int]:
    """Indices in one axis, the bag of each, and how many bags there are."""
    if offsets is None:
        count, length = indices.shape
        numbers = arange(count, device=indices.device).expand_dims(1)
        return indices.reshape(-1), numbers.broadcast_to((count, length)).reshape(-1), count
    count = offsets.shape[0] - include_last
    places = arange(indices.shape[0], device=indices.device)
    begins = offsets.astype(dtypes.int64)[:count]
    return indices, searchsorted(begins, places, side="right") - 1, count
