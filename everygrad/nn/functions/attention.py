"""Attention in several heads, with its projections, as a function of weights."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.nn.functions.products import linear as _linear
from everygrad.ops.elementwise.basic import where
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.nn.softmax_and_norm import dropout, softmax
from everygrad.ops.python.creation import ones, zeros
from everygrad.ops.record.arguments import taking
from everygrad.ops.shape.joining import concat, pad

linear = taking(_linear)  # arrays are taken, as by nn.functional


class Projections(NamedTuple):
    """The weights of attention. Those of query, key and value are one matrix, or three."""

    in_weight: Tensor | None
    in_bias: Tensor | None
    separate: tuple[Tensor, Tensor, Tensor] | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None


def _check(name: str, query: Tensor, key: Tensor, value: Tensor, sizes: tuple[int, ...]) -> None:
    shown = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if not (query.ndim == key.ndim == value.ndim and query.ndim in (2, 3)):
        raise ShapeError(f"{name}: needs 3 axes, or 2 without batch: {shown}")
    for t, size in zip((query, key, value), sizes, strict=True):
        if t.shape[-1] != size:
            raise ShapeError(f"{name}: the last axis must be {size}: {shown}")


def _check_batches(name: str, query: Tensor, key: Tensor, value: Tensor, batch_first: bool) -> None:
    batch = 0 if batch_first else 1
    one_batch = query.ndim == 2 or query.shape[batch] == key.shape[batch]
    if key.shape[:-1] != value.shape[:-1] or not one_batch:
        raise ShapeError(
            f"{name}: keys and values must be as many, batches alike: "
            f"query {query.shape}, key {key.shape}, value {value.shape}"
        )


def _projected(query: Tensor, key: Tensor, value: Tensor, w: Projections) -> list[Tensor]:
    weight, bias = w.in_weight, w.in_bias
    width = query.shape[-1]
    if weight is not None and query is key and key is value:  # one product instead of three
        parts: list[Tensor] = linear(query, weight, bias).split(width, axis=-1)
        return parts
    assert weight is not None or w.separate is not None
    weights = weight.split(width) if weight is not None else w.separate
    biases = [None] * 3 if bias is None else bias.split(width)
    inputs = (query, key, value)
    return [linear(t, m, b) for t, m, b in zip(inputs, weights, biases, strict=True)]  # type: ignore[arg-type]


def _heads(x: Tensor, heads: int, batched: bool, batch_first: bool) -> Tensor:
    """(batch, heads, length, width of a head)."""
    if not batched:
        x = x.expand_dims(0)
    elif not batch_first:
        x = x.permute_dims((1, 0, 2))
    x = x.reshape(*x.shape[:2], heads, x.shape[2] // heads)
    return x.permute_dims((0, 2, 1, 3))


def _longer(x: Tensor, more: Tensor | None, heads: int) -> Tensor:
    """Keys or values with one more at the end, the same in all batches; `more` is (1, 1, width),
    None for zeros."""
    batch, _, _, width = x.shape
    shape = (batch, heads, 1, width)
    if more is None:
        last = zeros(shape, x.dtype, x.device)
    else:
        last = more.reshape(1, heads, 1, width).broadcast_to(shape).astype(x.dtype)
    out: Tensor = concat([x, last], axis=2)
    return out


def _mask(
    name: str,
    q: Tensor,
    keys: int,
    extra: int,
    padding: Tensor | None,
    pairs: Tensor | None,
    is_causal: bool,
) -> Tensor | None:
    """All masks as one, to be added to scores of (batch, heads, queries, keys + extra)."""
    batch, heads, queries = q.shape[:3]
    parts = []
    if padding is not None:
        if padding.shape not in ((batch, keys), (keys,) if batch == 1 else (batch, keys)):
            raise ShapeError(f"{name}: key_padding_mask {padding.shape} must be {(batch, keys)}")
        added = _additive(name, "key_padding_mask", padding, q)
        parts.append(added.reshape(batch, 1, 1, keys))
    if pairs is not None:
        allowed = ((queries, keys), (batch * heads, queries, keys))
        if pairs.shape not in allowed:
            raise ShapeError(
                f"{name}: attn_mask {pairs.shape} must be {allowed[0]} or {allowed[1]}"
            )
        shape = (batch, heads, queries, keys) if pairs.ndim == 3 else pairs.shape
        parts.append(_additive(name, "attn_mask", pairs, q).reshape(shape))
    if is_causal:
        closed = ~ones((queries, keys), "bool", q.device).tril()
        parts.append(_additive(name, "is_causal", closed, q))
    total: Tensor | None = None
    for part in parts:
        total = part if total is None else total + part
    if total is not None and extra:  # what was added at the end is open to all
        total = pad(total, ((0, 0),) * (total.ndim - 1) + ((0, extra),), 0.0)
    return total


def _additive(layer: str, name: str, mask: Tensor, like: Tensor) -> Tensor:
    """A bool mask as 0 where open and minus infinity where closed; a floating one as it is."""
    if mask.dtype.is_float:
        return mask.astype(like.dtype)
    if mask.dtype is not dtypes.bool_:
        raise DtypeError(f"{layer}: {name} must be bool or floating point, got {mask.dtype}")
    added: Tensor = where(mask, -math.inf, zeros((), like.dtype, like.device))
    return added


def attend(
    name: str,
    inputs: tuple[Tensor, Tensor, Tensor],
    w: Projections,
    heads: int,
    sizes: tuple[int, ...],
    attention: Any,
    *,
    batch_first: bool,
    dropout_p: float,
    key_padding_mask: Tensor | None,
    need_weights: bool,
    attn_mask: Tensor | None,
    average_attn_weights: bool,
    is_causal: bool,
    add_zero_attn: bool = False,
    static: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor | None]:
    """The result, and how much each query looked at each key. `attention` is
    scaled_dot_product_attention; `sizes` are the widths of query, key and value."""
    query, key, value = inputs
    _check(name, query, key, value, sizes)
    _check_batches(name, query, key, value, batch_first)
    batched = query.ndim == 3
    q, k, v = (_heads(t, heads, batched, batch_first) for t in _projected(query, key, value, w))
    for given in static:
        if given is not None and given.shape[:1] != (q.shape[0] * heads,):
            raise ShapeError(f"{name}: static keys and values must be (batch * heads, ...)")
    k = k if static[0] is None else static[0].reshape(*k.shape[:2], -1, k.shape[3])
    v = v if static[1] is None else static[1].reshape(*v.shape[:2], -1, v.shape[3])
    keys = k.shape[2]
    if w.bias_k is not None and w.bias_v is not None:
        k, v = _longer(k, w.bias_k, heads), _longer(v, w.bias_v, heads)
    if add_zero_attn:
        k, v = _longer(k, None, heads), _longer(v, None, heads)
    # where nothing but the order of the keys closes any, no mask need be made
    plain = key_padding_mask is None and attn_mask is None and k.shape[2] == keys
    ordered = is_causal and not need_weights and plain
    extra = k.shape[2] - keys
    mask = _mask(name, q, keys, extra, key_padding_mask, attn_mask, is_causal and not ordered)
    weights: Tensor | None = None
    if need_weights:
        scores = matmul(q * q.shape[3] ** -0.5, k.matrix_transpose())
        scores = scores if mask is None else scores + mask
        weights = dropout(softmax(scores) if k.shape[2] else scores, dropout_p)
        out = matmul(weights, v)
    else:
        out = attention(q, k, v, mask, dropout_p, ordered)
    # (batch, heads, queries, width) -> (batch, queries, embed_dim), in the caller's layout
    width = heads * out.shape[3]
    out = out.permute_dims((0, 2, 1, 3)).reshape(out.shape[0], out.shape[2], width)
    if not batched:
        out = out.squeeze(0)
    elif not batch_first:
        out = out.permute_dims((1, 0, 2))
    if weights is not None:
        weights = weights.mean(axis=1) if average_attn_weights else weights
        weights = weights if batched else weights.squeeze(0)
    return linear(out, w.out_weight, w.out_bias), weights


def separate_weights(
    q: Tensor | None, k: Tensor | None, v: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Three weights, none of them missing."""
    if q is None or k is None or v is None:
        raise ArgumentError(
            "multi_head_attention_forward: use_separate_proj_weight needs q_proj_weight, "
            "k_proj_weight and v_proj_weight"
        )
    return q, k, v
