"""Shapes: views and copies of them, slices, joins, windows, and parts written back into a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.errors import ShapeError
from everygrad.interop.torch.aten.creation import fitting
from everygrad.interop.torch.aten.memory import row_major
from everygrad.interop.torch.aten.registry import Result, Tensor, aten

# --- the same elements, arranged in another way --------------------------------------------------


@aten(
    *("view.default", "_unsafe_view.default", "reshape.default", "view_copy.default"),
    *("_reshape_alias.default", "_reshape_copy.default", "flatten.using_ints"),
    *("unflatten.int", "prims::reshape.default", "prims::collapse_view.default"),
    *("prims::split_dim.default", "atleast_1d.default"),
    wants_result=True,
)
def view(x: Tensor, *_: Any, result: Result) -> Tensor:
    return x.reshape(result.shape)


@aten("permute.default", "permute_copy.default", "prims::transpose.default")
def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.permute_dims(tuple(dims)) if x.ndim else x


@aten("transpose.int", "transpose_copy.int", "swapaxes.default")
def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    return eg.swapaxes(x, dim0, dim1) if x.ndim else x


@aten("t.default", "t_copy.default", "numpy_T.default")
def t(x: Tensor) -> Tensor:
    return x.permute_dims(tuple(reversed(range(x.ndim))))


@aten("movedim.intlist")
def movedim(x: Tensor, source: Sequence[int], destination: Sequence[int]) -> Tensor:
    return eg.moveaxis(x, tuple(source), tuple(destination))


@aten(
    *("expand.default", "expand_copy.default", "prims::broadcast_in_dim.default"),
    wants_result=True,
)
def expand(x: Tensor, *args: Any, result: Result, **_: Any) -> Tensor:
    if len(args) == 2:  # broadcast_in_dim: which axes of the result those of x are
        kept = tuple(args[1])
        sizes = dict(zip(kept, x.shape, strict=True))
        x = x.reshape(tuple(sizes.get(a, 1) for a in range(len(result.shape))))
    return x.broadcast_to(result.shape)


@aten(
    *("squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_copy.default", "squeeze_copy.dim"),
    *("squeeze_copy.dims", "unsqueeze.default", "unsqueeze_copy.default", "prims::squeeze.default"),
    wants_result=True,
)
def squeeze(x: Tensor, *_: Any, result: Result) -> Tensor:
    return x.reshape(result.shape)


@aten("view.dtype", "view_copy.dtype")
def view_dtype(x: Tensor, dtype: Any) -> Tensor:
    if x.dtype is dtype:
        return x
    raise ShapeError(f"view: the bits of {x.dtype} are not read as {dtype} here; use a cast")


# --- parts ---------------------------------------------------------------------------------------


def _span(size: int, start: int | None, end: int | None, step: int) -> slice:
    """Where a slice begins and ends; PyTorch moves what lies outside to the edge."""
    first, last, _ = slice(start, end, step).indices(size)
    return slice(first, max(first, last), step)


def _on_axis(x: Tensor, dim: int, index: Any) -> Any:
    return (*(slice(None),) * (dim % x.ndim), index)


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(
    x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    span = _span(x.shape[dim], start, end, step)
    return x[_on_axis(x, dim, span)]


@aten("narrow.default", "narrow_copy.default")
def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    first = start + x.shape[dim] if start < 0 else start
    return slice_(x, dim, first, first + length)


@aten("select.int", "select_copy.int")
def select(x: Tensor, dim: int, index: int) -> Tensor:
    return x[_on_axis(x, dim, index)]


@aten("split.Tensor", "split_copy.Tensor", "split.default", "unsafe_split.Tensor")
def split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    return eg.split(x, size, axis=dim) if size else [x]


@aten(
    *("split_with_sizes.default", "split_with_sizes_copy.default", "split.sizes"),
    *("unsafe_split_with_sizes.default",),
)
def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    return eg.split(x, list(sizes), axis=dim)


@aten("chunk.default", "unsafe_chunk.default")
def chunk(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    size = -(-x.shape[dim] // chunks)
    return split(x, max(size, 1), dim)


@aten("unbind.int", "unbind_copy.int")
def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    return list(eg.unbind(x, axis=dim))


@aten("diagonal.default", "diagonal_copy.default")
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return eg.diagonal(x, offset, dim1, dim2)


@aten("diag_embed.default")
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    return eg.diag_embed(x, offset, dim1, dim2)


@aten("diag.default")
def diag(x: Tensor, offset: int = 0) -> Tensor:
    return eg.diag(x, offset)


@aten("unfold.default", "unfold_copy.default")
def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if not x.ndim:
        return x.reshape(1)[:size]
    return eg.unfold(x, axis=dim, size=size, step=step)


@aten("unfold_backward.default")
def unfold_backward(g: Tensor, shape: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    if not shape:
        return g.sum()
    at = dim % len(shape)
    windows = np.arange(g.shape[at])[:, None] * step + np.arange(size)
    g = g.moveaxis(-1, at + 1)
    flat = g.reshape((*g.shape[:at], windows.size, *g.shape[at + 2 :]))
    where_to = eg.asarray(windows.reshape(-1), device=g.device)
    return eg.index_add(eg.zeros(tuple(shape), g.dtype, g.device), where_to, flat, axis=at)


# --- joins and repeats ---------------------------------------------------------------------------


@aten("cat.default", "concat.default", "prims::cat.default", wants_result=True)
def cat(tensors: Sequence[Tensor], dim: int = 0, *, result: Result) -> Tensor:
    # PyTorch leaves out vectors without elements, whatever the shapes of the others
    parts = [p.astype(result.dtype) for p in tensors if p.shape != (0,)]
    if len(result.shape) == 1 or not parts:
        parts = parts or [tensors[0].astype(result.dtype)]
    return eg.concat(parts, axis=dim) if len(parts) > 1 else eg.clone(parts[0])


@aten("stack.default", wants_result=True)
def stack(tensors: Sequence[Tensor], dim: int = 0, *, result: Result) -> Tensor:
    return eg.stack([p.astype(result.dtype) for p in tensors], axis=dim)


@aten("repeat.default", "tile.default")
def repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    return eg.tile(x, tuple(repeats))


@aten("repeat_interleave.self_int")
def repeat_interleave(
    x: Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    return eg.repeat_interleave(x, repeats, axis=dim)


@aten("flip.default", "prims::rev.default")
def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    return eg.flip(x, axis=tuple(dims)) if dims and x.ndim else eg.clone(x)


@aten("roll.default")
def roll(x: Tensor, shifts: Any, dims: Sequence[int] = ()) -> Tensor:
    if not x.ndim:
        return x
    places = tuple(shifts) if isinstance(shifts, (list, tuple)) else (shifts,)
    if not dims:
        return eg.roll(x.reshape(-1), places[0], axis=0).reshape(x.shape)
    return eg.roll(x, places, axis=tuple(dims))


@aten("rot90.default")
def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    return eg.rot90(x, k, tuple(dims))


@aten("constant_pad_nd.default")
def constant_pad_nd(x: Tensor, pad: Sequence[int], value: Any = 0) -> Tensor:
    """Pairs for the last axis first; negative widths cut."""
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2)
    pairs += [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    cuts = tuple(
        slice(max(0, -low), n - max(0, -high))
        for n, (low, high) in zip(x.shape, pairs, strict=True)
    )
    if any(low < 0 or high < 0 for low, high in pairs):
        x = x[cuts]
    widths = tuple((max(low, 0), max(high, 0)) for low, high in pairs)
    if not any(low or high for low, high in widths):
        return eg.clone(x)
    return eg.pad(x, widths, value=fitting(value, x.dtype))


@aten("tril.default")
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return eg.tril(x, diagonal)


@aten("triu.default")
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return eg.triu(x, diagonal)


@aten("meshgrid.indexing", "meshgrid.default", wants_result=True)
def meshgrid(
    tensors: Sequence[Tensor], *, indexing: str = "ij", result: list[Result]
) -> list[Tensor]:
    return list(eg.meshgrid(*tensors, indexing=indexing))


@aten("block_diag.default")
def block_diag(tensors: Sequence[Tensor]) -> Tensor:
    return eg.block_diag(*tensors)


# --- parts written back --------------------------------------------------------------------------


@aten("slice_scatter.default")
def slice_scatter(
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    at = dim % x.ndim
    span = _span(x.shape[at], start, end, step)
    places = range(x.shape[at])[span]
    shape = (*x.shape[:at], len(places), *x.shape[at + 1 :])
    src = src.astype(x.dtype).broadcast_to(shape)
    if len(places) == x.shape[at]:
        return eg.clone(src)
    if step != 1:
        return eg.slice_scatter(x, src, at, span.start, span.stop, step)
    parts = [slice_(x, at, 0, span.start), src, slice_(x, at, span.stop, None)]
    return eg.concat([p for p in parts if p.shape[at]], axis=at)


@aten("select_scatter.default")
def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    at = index % x.shape[dim]
    return slice_scatter(x, src.expand_dims(dim % x.ndim), dim, at, at + 1)


@aten("diagonal_scatter.default")
def diagonal_scatter(
    x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    return eg.diagonal_scatter(x, src, offset, dim1, dim2)


@aten("slice_backward.default")
def slice_backward(
    g: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Tensor:
    return slice_scatter(eg.zeros(tuple(sizes), g.dtype, g.device), g, dim, start, end, step)


@aten("select_backward.default")
def select_backward(g: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    return select_scatter(eg.zeros(tuple(sizes), g.dtype, g.device), g, dim, index)


@aten("diagonal_backward.default")
def diagonal_backward(g: Tensor, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Tensor:
    return eg.diagonal_scatter(eg.zeros(tuple(sizes), g.dtype, g.device), g, offset, dim1, dim2)


# --- layouts -------------------------------------------------------------------------------------


def _storage_places(shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """Where in its storage each element of a strided tensor lies."""
    places = np.full(tuple(shape), offset, np.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        places += (np.arange(size) * stride).reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return places


def _elements(base: Result, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """Which elements of a tensor, counted as if it were flat, a strided view of its storage is."""
    own = _storage_places(base.shape, base.strides, base.offset).reshape(-1)
    wanted = _storage_places(shape, strides, offset)
    size = max(int(own.max(initial=-1)), int(wanted.max(initial=-1))) + 1
    back = np.full(size, -1, np.int64)
    back[own] = np.arange(own.size)
    found = back[wanted]
    if (found < 0).any():
        raise ShapeError(
            f"as_strided: {tuple(shape)} with strides {tuple(strides)} from {offset} reads memory "
            f"that a tensor of {base.shape} with strides {base.strides} does not own"
        )
    return found


def _as_permuted(x: Tensor, base: Result, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """The view as a reshape and a permutation, where it is one of a whole contiguous tensor."""
    order = sorted(range(len(shape)), key=lambda a: (-strides[a], shape[a]))
    laid = [shape[a] for a in order]
    steps = [math.prod(laid[i + 1 :]) for i in range(len(laid))]
    own = [math.prod(base.shape[i + 1 :]) for i in range(len(base.shape))]
    fits = all(n == 1 or strides[a] == s for a, n, s in zip(order, laid, steps, strict=True))
    whole = all(n == 1 or s == o for n, s, o in zip(base.shape, base.strides, own, strict=True))
    if not fits or not whole or math.prod(shape) != math.prod(base.shape):
        return None
    return x.reshape(tuple(laid)).permute_dims(tuple(np.argsort(order).tolist()))


@aten(
    "as_strided.default", "as_strided_copy.default", "prims::as_strided.default", wants_inputs=True
)
def as_strided(
    x: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
    *,
    inputs: list[Result],
) -> Tensor:
    base = inputs[0]
    offset = base.offset if storage_offset is None else storage_offset
    if offset == base.offset and len(size):
        easy: Tensor | None = _as_permuted(x, base, size, stride)
        if easy is not None:
            return easy
    found = eg.asarray(_elements(base, size, stride, offset), device=x.device)
    return eg.take(x.reshape(-1), found, axis=0)


@aten("as_strided_scatter.default", "prims::as_strided_scatter.default", wants_inputs=True)
def as_strided_scatter(
    x: Tensor,
    src: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
    *,
    inputs: list[Result],
) -> Tensor:
    base = inputs[0]
    offset = base.offset if storage_offset is None else storage_offset
    found = _elements(base, size, stride, offset)
    if found.size == x.size and (found.reshape(-1) == np.arange(x.size)).all():
        return src.astype(x.dtype).reshape(x.shape)
    at = eg.asarray(found.reshape(-1), device=x.device)
    return eg.put(x, at, src.astype(x.dtype).reshape(-1))


# --- sizes as values -----------------------------------------------------------------------------


@aten("sym_size.int", "size.int")
def sym_size(x: Tensor, dim: int) -> int:
    return x.shape[dim]


@aten("sym_numel.default", "numel.default")
def sym_numel(x: Tensor) -> int:
    return x.size


@aten("sym_stride.int", "stride.int", wants_inputs=True)
def sym_stride(x: Tensor, dim: int, *, inputs: list[Result]) -> int:
    return inputs[0].strides[dim]


@aten("sym_is_contiguous.default", "is_contiguous.default", wants_inputs=True)
def is_contiguous(x: Tensor, *_: Any, inputs: list[Result], **__: Any) -> bool:
    return row_major(inputs[0])


@aten("sym_storage_offset.default", wants_inputs=True)
def sym_storage_offset(x: Tensor, *, inputs: list[Result]) -> int:
    return inputs[0].offset
