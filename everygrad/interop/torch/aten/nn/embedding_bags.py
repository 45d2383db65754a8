"""Bags of rows of a table, with what PyTorch keeps for their backward."""

from __future__ import annotations

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.registry import Result, aten
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import index_add, take
from everygrad.ops.index.scatter import scatter
from everygrad.ops.index.search import searchsorted
from everygrad.ops.python.creation import arange, full, ones, zeros

Maybe = Tensor | None
_SUM, _MEAN, _MAX = 0, 1, 2


def _bag_of_each(indices: Tensor, offsets: Tensor, bags: int) -> Tensor:
    places = arange(indices.shape[0], dtype=dtypes.int64, device=indices.device)
    begins = offsets.astype(dtypes.int64)[:bags]
    return searchsorted(begins, places, side="right") - 1


@aten("_embedding_bag.default", "_embedding_bag_forward_only.default", wants_result=True)
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Maybe = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    result: list[Result],
) -> list[Tensor]:
    """Sums, means or maxima of bags; the bag of each index; how many each bag counts; and, for
    maxima, the row each came from."""
    bags = result[0].shape[0]
    bag = _bag_of_each(indices, offsets, bags)
    kept = indices != padding_idx
    rows = take(weight, indices, axis=0)
    counted = kept.astype(dtypes.int64)
    sizes = index_add(zeros((bags,), dtypes.int64, weight.device), bag, counted)
    if mode == _MAX:
        out, origin = _largest(rows, indices, bag, kept, bags)
    else:
        scaled = rows if per_sample_weights is None else rows * per_sample_weights.expand_dims(1)
        shown = where(kept.expand_dims(1), scaled, 0.0)
        out = index_add(zeros((bags, rows.shape[1]), rows.dtype, rows.device), bag, shown)
        if mode == _MEAN:
            out = out / where(sizes > 0, sizes, 1).astype(out.dtype).expand_dims(1)
        else:
            sizes = sizes * 0  # PyTorch counts only where it divides
        origin = sizes
    asked = [out, bag, sizes, origin]
    # PyTorch leaves out what the mode at hand needs no backward for
    found = [_fitted(x, r, weight) for x, r in zip(asked, result, strict=True)]
    return found


def _fitted(x: Tensor, result: Result, like: Tensor) -> Tensor:
    return x if x.shape == result.shape else zeros(result.shape, result.dtype, like.device)


def _largest(
    rows: Tensor, indices: Tensor, bag: Tensor, kept: Tensor, bags: int
) -> tuple[Tensor, Tensor]:
    """The largest of each bag and column, and the row of the table it is from: the first of them.
    An empty bag gives 0, from nowhere (-1)."""
    low = -float("inf")
    shown = where(kept.expand_dims(1), rows, low)
    places = bag.expand_dims(1).broadcast_to(rows.shape)
    nothing = full((bags, rows.shape[1]), low, dtype=rows.dtype, device=rows.device)
    most = scatter(nothing, places, shown, axis=0, reduce="amax")
    count = rows.shape[0]
    numbers = arange(count, dtype=dtypes.int64, device=rows.device).expand_dims(1)
    winner = where((shown == take(most, bag, axis=0)) & kept.expand_dims(1), numbers, count)
    unset = full((bags, rows.shape[1]), count, dtype=dtypes.int64, device=rows.device)
    first = scatter(unset, places, winner, axis=0, reduce="amin")
    found = first < count
    origin = where(found, take(indices, where(found, first, 0), axis=0), -1) if count else first - 1
    return where(found, most, 0.0), origin


@aten("_embedding_bag_dense_backward.default")
def dense_backward(
    g: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Maybe = None,
    padding_idx: int = -1,
) -> Tensor:
    nothing = zeros((num_weights, g.shape[1]), g.dtype, g.device)
    if mode == _MAX:
        named = maximum_indices >= 0
        at = where(named, maximum_indices, 0)
        return nothing.scatter_add(at, where(named, g, 0.0), axis=0)
    bag = offset2bag
    rows = take(g, bag, axis=0)
    if mode == _MEAN:
        sizes = where(bag_size > 0, bag_size, 1).astype(g.dtype)
        rows = rows / take(sizes, bag, axis=0).expand_dims(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.expand_dims(1)
    if scale_grad_by_freq:
        each = ones(indices.shape, g.dtype, g.device)
        counts = index_add(zeros((num_weights,), g.dtype, g.device), indices, each)
        rows = rows / take(counts, indices, axis=0).expand_dims(1)
    rows = where((indices == padding_idx).expand_dims(1), 0.0, rows)
    return index_add(nothing, indices, rows)


@aten("_embedding_bag_backward.default")
def backward(
    g: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Maybe,
    padding_idx: int = -1,
) -> Tensor:
    bag = offset2bag
    if bag.shape[0] != indices.shape[0]:  # PyTorch's forward left it to the backward
        bag = _bag_of_each(indices, offsets, g.shape[0])
    return dense_backward(
        g, indices, bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


@aten("_embedding_bag_per_sample_weights_backward.default")
def per_sample_weights_backward(
    g: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    bag = offset2bag
    if bag.shape[0] != indices.shape[0]:
        bag = _bag_of_each(indices, offsets, g.shape[0])
    found = (take(g, bag, axis=0) * take(weight, indices, axis=0)).sum(axis=1)
    return where(indices == padding_idx, 0.0, found)
